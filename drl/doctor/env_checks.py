"""Checks of environments that are legal but hard to learn: episode ends, rewards, observations, actions, speed.

They use random play, actions at their bounds, and episodes that differ in one action or in some entries of all actions.
"""

import copy
import time
from collections.abc import Iterator, Sequence

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from drl.core.errors import plural
from drl.core.specs import Array
from drl.doctor.checked_env import Broken, CheckedEnv, Complaints, StepOutcome, box_columns
from drl.doctor.findings import ADVICE, PROBLEM, Finding
from drl.doctor.random_play import Trace
from drl.envs.spaces import GymEnv, GymSpace

LARGE_REWARD, SMALL_REWARD = 100.0, 1e-3  # root mean square, largest absolute value
LARGE_OBS, SMALL_OBS = 100.0, 1e-3  # largest absolute value of an entry
UNUSED_RANGE = 0.01  # used share of an observation's bounds
LARGE_ACTION = 1000.0  # bound
SLOW_STEP = 5e-3  # seconds, resets included
ENOUGH = 300  # observations needed to call a number constant
LONGEST = 20_000  # steps without an end before an episode counts as endless
SAME_LENGTH = 50  # steps from which episodes of equal length look like a time limit

# Effects of actions
CORNERS = 64  # steps at the lowest bounds, at the highest, and at any
PREFIXES = (0, 1, 2, 4, 8, 16, 32)  # random steps before the varied action
AFTER = 20  # steps after the varied action
MOST_CHOICES = 12  # tried choices of a Discrete action
COMPARED, MOST_COMPARED = 2000, 10_000  # steps of whole episodes; the latter if the first one does not end
RANDOM = 5  # random action sequences in whole episodes
EPISODE_SECONDS = 10.0  # seconds for all whole episodes
Columns = Sequence[tuple[str, float, float]]  # name, low, high


def scale_findings(env: GymEnv, trace: Trace, masked: bool) -> list[Finding]:
    """Find scales that are hard to learn. `masked`: whether the agent also sees action masks."""
    found = [*_ends(env, trace), *_rewards(trace), *_observations(env.observation_space, trace, masked)]
    return [*found, *_actions(env.action_space), *_speed(trace)]


def _ends(env: GymEnv, trace: Trace) -> list[Finding]:
    lengths = trace.lengths
    if not lengths:
        if not may_be_endless(env, trace):
            return []  # too few steps to judge
        seen = f"one episode lasted {trace.running:,} random steps without being terminated or truncated"
        change = (
            "let `step` return terminated or truncated, or give a limit: --wrapper TimeLimit:max_episode_steps=1000"
        )
        severity = PROBLEM if trace.running >= LONGEST else ADVICE  # slow steps: it may still end
        return [Finding("endless-episodes", severity, seen, change)]
    alike = len(lengths) >= 5 and len(set(lengths)) == 1
    if alike and all(trace.terminated) and lengths[0] >= SAME_LENGTH:
        seen = f"all {len(lengths)} episodes terminated after exactly {lengths[0]} steps: that looks like a time limit"
        change = (
            "return truncated=True at a time limit, so that the last state's value is bootstrapped (or use "
            f"--wrapper TimeLimit:max_episode_steps={lengths[0]}); terminated is correct if the agent observes the time"
        )
        return [Finding("time-limit-as-terminated", ADVICE, seen, change)]
    return []


def may_be_endless(env: GymEnv, trace: Trace) -> bool:
    """Whether no episode has ended and there is no time limit."""
    limit = _time_limit(env)
    return not trace.lengths and (limit is None or limit < len(trace.outcomes))


def _time_limit(env: GymEnv) -> int | None:
    """Return the time limit of the environment's registration or of a TimeLimit wrapper."""
    limits = [env.spec.max_episode_steps if env.spec else None]
    layer = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, TimeLimit):
            limits.append(layer._max_episode_steps)
        layer = layer.env
    return min((int(limit) for limit in limits if limit), default=None)


def _rewards(trace: Trace) -> list[Finding]:
    rewards = trace.rewards[np.isfinite(trace.rewards)]
    if not len(rewards):
        return []
    largest, size = float(np.abs(rewards).max()), float(np.sqrt(np.mean(np.square(rewards))))
    same = np.ptp(rewards) == 0 and len(set(trace.lengths)) <= 1 and len(rewards) >= ENOUGH
    unfinished = rewards[0] < 0 and not any(trace.terminated)  # a cost for every step until a goal is reached
    if same and not unfinished:
        seen = f"all {len(rewards):,} rewards are {rewards[0]:g}, and all episodes have the same length"
        change = (
            "check the reward; if it is correct, random actions cannot reach the goal: also reward progress, "
            "start episodes nearer to the goal, or explore more (--entropy-coef, --epsilon-decay)"
        )
        return [Finding("constant-reward", ADVICE, seen, change)]
    if size > LARGE_REWARD or 0 < largest < SMALL_REWARD:
        seen = f"the root mean square of the rewards is {size:.3g}, the largest is {largest:.3g}"
        return [Finding("reward-scale", ADVICE, seen, "--normalize-reward, or divide the reward in the environment")]
    return []


def _observations(space: GymSpace, trace: Trace, masked: bool) -> list[Finding]:
    digests = {*trace.firsts, *(outcome.obs for outcome in trace.outcomes)}
    count = len(trace.outcomes) + len(trace.firsts)
    if len(digests) == 1 and max(trace.lengths, default=2) > 1 and count >= ENOUGH and not masked:
        seen = f"all {count:,} observations are the same"
        return [Finding("constant-observation", PROBLEM, seen, "return the information that the agent needs")]
    columns = box_columns(space)
    if not columns or not trace.rows:
        return []
    table = np.stack(trace.rows)  # [observations, numbers]
    table = table[np.isfinite(table).all(axis=1)]
    if not len(table):
        return []
    return [*_scales(columns, table), *_constants(columns, table)]


def _scales(columns: Columns, table: Array) -> list[Finding]:
    found = []
    largest, spread = np.abs(table).max(axis=0), np.ptp(table, axis=0)
    off = (largest > LARGE_OBS) | ((largest < SMALL_OBS) & (spread > 0))
    if off.any():
        worst = _listed([f"{columns[i][0]} up to {largest[i]:.3g}" for i in np.flatnonzero(off).tolist()])
        found.append(
            Finding("observation-scale", ADVICE, f"some entries are far from magnitude 1: {worst}", "--normalize-obs")
        )
    low, high = (np.array([column[side] for column in columns]) for side in (1, 2))
    with np.errstate(over="ignore", invalid="ignore"):
        unused = np.isfinite(high - low) & (spread > 0) & (spread < UNUSED_RANGE * (high - low))
    if unused.any():
        words = [
            f"{columns[i][0]} takes {spread[i]:.3g} of its {high[i] - low[i]:.3g}"
            for i in np.flatnonzero(unused).tolist()
        ]
        change = "set `observation_space` bounds near the actual range (wrappers scale by them), or --normalize-obs"
        found.append(Finding("bounds-never-approached", ADVICE, f"less than 1 % is used: {_listed(words)}", change))
    return found


def _constants(columns: Columns, table: Array) -> list[Finding]:
    still = np.ptp(table, axis=0) == 0
    if len(table) < ENOUGH or not still.any() or still.all():
        return []
    words = _listed([f"{columns[i][0]} = {table[0, i]:.3g}" for i in np.flatnonzero(still).tolist()])
    seen = f"{int(still.sum())} of {len(columns)} entries never changed in {plural(len(table), 'observation')}: {words}"
    return [Finding("constant-entries", ADVICE, seen, "check that they are filled, or remove them")]


def _listed(words: Sequence[str], most: int = 4) -> str:
    return "; ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def _actions(space: GymSpace) -> list[Finding]:
    if not isinstance(space, spaces.Box):
        return []
    bounds = np.abs(np.concatenate([space.low.ravel(), space.high.ravel()]).astype(float))
    if np.isinf(bounds).any():
        count = int((np.isinf(space.low) | np.isinf(space.high)).sum())
        seen = f"{count} of {space.low.size} entries of the action have no bound; policies begin at 0 with deviation 1"
        change = "set `action_space` to a sensible range; drl scales [-1, 1] to it"
        return [Finding("unbounded-actions", ADVICE, seen, change)]
    if bounds.max() >= LARGE_ACTION:
        seen = f"actions reach {bounds.max():.3g}; [-1, 1] is scaled to the bounds, so every action is huge"
        change = "set `action_space` to a sensible range"
        return [Finding("action-bounds", ADVICE, seen, change)]
    return []


def _speed(trace: Trace) -> list[Finding]:
    seconds, resets = trace.seconds
    if seconds <= SLOW_STEP:
        return []
    hours = seconds * 1e6 / 3600
    seen = f"a step takes {seconds * 1000:.3g} ms ({1 / seconds:.0f} per second); a million steps take {hours:.1f} h"
    where = "reset" if resets > seconds / 2 else "step"
    if where == "reset":
        seen += f"; {resets / seconds:.0%} of that is spent in resets"
    return [Finding("slow-steps", ADVICE, seen, f"--vectorization async --num-envs 8, or profile `{where}`")]


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


def _outcomes(checked: CheckedEnv, seed: int, actions: list[object]) -> list[StepOutcome]:
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
    until = time.monotonic() + EPISODE_SECONDS
    try:
        if not idle or not _differs(checked, space, idle, seed, until):
            return idle  # no effect even when varied together
        return [entry for entry in idle if len(idle) > 1 and not _differs(checked, space, [entry], seed, until)]
    except TimeoutError:
        notes.append(f"the effect of actions: {EPISODE_SECONDS:.0f} s of whole episodes were too short to judge")
        return []


def _differs(checked: CheckedEnv, space: GymSpace, entries: list[int], seed: int, until: float) -> bool:
    """Whether whole episodes differ if only these entries of the actions have other values."""
    expected: list[StepOutcome] = []
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
    """Yield indices of each entry's value at each step, `[MOST_COMPARED, entries]`: constant, alternating, random."""
    counts = np.array([len(_values(space, entry)) for entry in entries])
    shape = (MOST_COMPARED, len(entries))
    yield from (np.broadcast_to(np.minimum(choice, counts - 1), shape) for choice in _spread(counts.max()))
    yield np.arange(MOST_COMPARED)[:, None] % counts
    generator = np.random.default_rng(seed)
    yield from (generator.integers(0, counts, shape) for _ in range(RANDOM))


def _episodes(
    checked: CheckedEnv, space: GymSpace, entries: list[int], picks: Array, seed: int
) -> Iterator[StepOutcome]:
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
        if step + 1 >= COMPARED and ends:
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
