"""Checks whether actions at their bounds are safe, and whether actions have any effect."""

import copy
import time
from collections.abc import Iterator, Sequence

import numpy as np
from gymnasium import spaces

from drl.core.specs import Array
from drl.doctor.checked_env import CheckedEnv, Outcome
from drl.doctor.complaints import Broken, Complaints
from drl.doctor.findings import ADVICE, PROBLEM, Finding
from drl.envs.spaces import GymEnv, GymSpace

CORNERS = 64  # steps at the lowest bounds, at the highest, and at any
PREFIXES = (0, 1, 2, 4, 8, 16, 32)  # random steps before the varied action
AFTER = 20  # steps after the varied action
MOST_CHOICES = 12  # tried choices of a Discrete action
LONG, LONGEST = 2000, 10_000  # compared steps of whole episodes; LONGEST if the first episode does not end
RANDOM = 5  # random action sequences in whole episodes
PATIENCE = 10.0  # seconds for all whole episodes


def action_findings(env: GymEnv, seed: int, notes: list[str]) -> list[Finding]:
    """Find faults with actions at their bounds, and actions or entries of actions without effect."""
    faults, found = Complaints(), list[Finding]()
    try:
        _play_corners(CheckedEnv(env, faults, " (with actions at their bounds)"), seed)
        checked = CheckedEnv(env, faults, " (with actions that are varied)")
        space = copy.deepcopy(env.action_space)  # instances may share one space
        idle = [entry for entry in range(_entries(space)) if not _matters(checked, space, entry, seed)]
        found = _idle_findings(space, _surely_idle(checked, space, idle, seed, notes))
    except Broken:
        pass
    return [*faults.findings(), *found]


def _play_corners(checked: CheckedEnv, seed: int) -> None:
    """Play actions at the bounds of a Box, which trained policies often take and random play never does."""
    space = checked.env.action_space
    if not isinstance(space, spaces.Box):
        return
    bounds = np.array([_values(space, entry) for entry in range(_entries(space))])  # [entries, low and high]
    chosen = np.random.default_rng(seed).integers(0, 2, (CORNERS, len(bounds)))
    for picks in (np.zeros_like(chosen), np.ones_like(chosen), chosen):
        over, episode = True, 0
        for pick in picks:
            if over:
                checked.reset(seed + episode)
                episode += 1
            action = np.take_along_axis(bounds, pick[:, None], axis=1).reshape(space.shape).astype(space.dtype)
            over = checked.step(action).over


def _idle_findings(space: GymSpace, idle: Sequence[int]) -> list[Finding]:
    entries = _entries(space)
    if not idle:
        return []
    where = f"in {AFTER} steps from {len(PREFIXES)} states, nor in whole episodes with the same seeds"
    if len(idle) == entries:
        seen = f"no action changed any observation, reward or episode end {where}"
        return [Finding("actions-without-effect", PROBLEM, seen, "use the argument of `step`")]
    which = ", ".join(map(str, idle[:10]))
    seen = f"entries {which} of {entries} of the action changed nothing {where}, at their lowest and highest values"
    change = "remove these entries from `action_space`, or use them"
    return [Finding("action-entry-without-effect", ADVICE, seen, change)]


def _matters(checked: CheckedEnv, space: GymSpace, entry: int, seed: int) -> bool:
    """Whether varying one action changes anything soon."""
    for prefix in PREFIXES:
        space.seed(seed + prefix)
        before, after = ([space.sample() for _ in range(count)] for count in (prefix, AFTER))
        played = _outcomes(checked, seed + prefix, before)
        if played and played[-1].over:
            before = before[: len(played) - 1]  # then the last action of the episode is varied
        variants = _variants(space, space.sample(), entry)
        outcomes = [_outcomes(checked, seed + prefix, [*before, varied, *after]) for varied in variants]
        if any(each != outcomes[0] for each in outcomes[1:]):
            return True
    return False


def _outcomes(checked: CheckedEnv, seed: int, actions: list[object]) -> list[Outcome]:
    """Play the actions and return their outcomes up to the end of the episode."""
    checked.reset(seed)
    outcomes = []
    for action in actions:
        outcomes.append(checked.step(action))
        if outcomes[-1].over:
            break
    return outcomes


def _surely_idle(checked: CheckedEnv, space: GymSpace, idle: list[int], seed: int, notes: list[str]) -> list[int]:
    """Return the entries that change nothing in whole episodes either, because effects may be late or rare."""
    until = time.monotonic() + PATIENCE
    try:
        if not idle or not _differs(checked, space, idle, seed, until):
            return idle  # no effect even when varied together
        return [entry for entry in idle if len(idle) > 1 and not _differs(checked, space, [entry], seed, until)]
    except TimeoutError:
        notes.append(f"the effect of actions: {PATIENCE:.0f} s of whole episodes were too short to judge")
        return []


def _differs(checked: CheckedEnv, space: GymSpace, entries: list[int], seed: int, until: float) -> bool:
    """Whether whole episodes differ if only these entries of the actions have other values."""
    expected: list[Outcome] = []
    for picks in _patterns(space, entries, seed):
        number = 0
        for number, outcome in enumerate(_episodes(checked, space, entries, picks, seed), start=1):
            if time.monotonic() > until:
                raise TimeoutError
            if len(expected) < number:
                expected.append(outcome)
            elif expected[number - 1] != outcome:
                return True
    return False


def _patterns(space: GymSpace, entries: list[int], seed: int) -> Iterator[Array]:
    """Yield indices of each entry's value at each step, `[LONGEST, entries]`: constant, alternating, random."""
    counts = np.array([len(_values(space, entry)) for entry in entries])
    shape = (LONGEST, len(entries))
    yield from (np.broadcast_to(np.minimum(choice, counts - 1), shape) for choice in _spread(counts.max()))
    yield np.arange(LONGEST)[:, None] % counts
    generator = np.random.default_rng(seed)
    yield from (generator.integers(0, counts, shape) for _ in range(RANDOM))


def _episodes(checked: CheckedEnv, space: GymSpace, entries: list[int], picks: Array, seed: int) -> Iterator[Outcome]:
    values = [_values(space, entry) for entry in entries]
    space.seed(seed)  # for the other entries
    over, ends = True, 0
    for step, pick in enumerate(picks):
        if over:
            checked.reset(seed + ends)
        action = space.sample()
        for entry, each, choice in zip(entries, values, pick, strict=True):
            action = _with(space, action, entry, each[choice])
        outcome = checked.step(action)
        over, ends = outcome.over, ends + outcome.over
        yield outcome
        if step + 1 >= LONG and ends:
            return


def _entries(space: GymSpace) -> int:
    return 1 if isinstance(space, spaces.Discrete) else int(np.prod(space.shape or (1,)))


def _variants(space: GymSpace, base: object, entry: int) -> Iterator[object]:
    """Yield the action with other values in one entry."""
    values = _values(space, entry)
    return (_with(space, base, entry, values[choice]) for choice in _spread(len(values)))


def _with(space: GymSpace, base: object, entry: int, value: float) -> object:
    if isinstance(space, spaces.Discrete):
        return int(value)
    varied: Array = np.array(base)
    varied.reshape(-1)[entry] = value
    return varied


def _values(space: GymSpace, entry: int) -> tuple[float, ...]:
    if isinstance(space, spaces.Box):
        low, high = float(space.low.ravel()[entry]), float(space.high.ravel()[entry])
        low = low if np.isfinite(low) else high - 2.0 if np.isfinite(high) else -1.0
        return low, high if np.isfinite(high) else low + 2.0
    if isinstance(space, spaces.Discrete):
        return tuple(int(space.start) + choice for choice in range(int(space.n)))
    if isinstance(space, spaces.MultiDiscrete):
        start, count = int(space.start.ravel()[entry]), int(space.nvec.ravel()[entry])
        return tuple(start + choice for choice in range(count))
    return (0, 1)


def _spread(count: int) -> list[int]:
    """Return at most `MOST_CHOICES` of `count` choices, including the first and the last."""
    return sorted({round(each) for each in np.linspace(0, count - 1, min(count, MOST_CHOICES)).tolist()})
