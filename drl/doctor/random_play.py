"""Random play, recorded, repeated and varied.

Determinism is checked with the same episodes again, in a fresh environment, and alternating with another one. Effects
of actions are checked at their bounds, and with episodes that differ in one action or in some entries of all actions.
"""

import copy
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from drl.core.errors import plural
from drl.core.specs import Array
from drl.doctor.checked_env import Broken, CheckedEnv, Complaints, StepOutcome, box_row
from drl.doctor.findings import ADVICE, PROBLEM, Finding
from drl.envs.faults import close_anyway
from drl.envs.spaces import GymEnv, GymSpace, flat_mask

AGAIN = 500  # compared steps
TOGETHER = 100  # steps of each of two alternating environments
SOON, CLEAR = 20, 1e-4  # steps, relative size: caches of physics engines cause later or smaller differences
SEEDS = 5  # tried seeds


# Effects of actions
CORNERS = 64  # steps at the lowest bounds, at the highest, and at any
PREFIXES = (0, 1, 2, 4, 8, 16, 32)  # random steps before the varied action
AFTER = 20  # steps after the varied action
MOST_CHOICES = 12  # tried choices of a Discrete action
COMPARED, MOST_COMPARED = 2000, 10_000  # steps of whole episodes; the latter if the first one does not end
RANDOM = 5  # random action sequences in whole episodes
EPISODE_SECONDS = 10.0  # seconds for all whole episodes


@dataclass
class Trace:
    """Record of random play."""

    step_seconds: list[float]
    reset_seconds: list[float]
    outcomes: list[StepOutcome] = field(default_factory=list)  # of every step
    firsts: list[bytes] = field(default_factory=list)  # digests of the first observations of episodes
    rows: list[Array] = field(default_factory=list)  # numbers of Boxes in every observation, see `box_row`
    lengths: list[int] = field(default_factory=list)  # of finished episodes
    returns: list[float] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)
    running: int = 0  # steps of the episode that has not ended

    @property
    def rewards(self) -> Array:
        """Rewards of all steps."""
        return np.array([outcome.reward for outcome in self.outcomes])

    @property
    def seconds(self) -> tuple[float, float]:
        """Mean seconds of a step, and of the resets per step. The first step and reset may load something and do not
        count."""
        steps, resets = self.step_seconds[1:] or self.step_seconds, self.reset_seconds[1:]
        count = max(len(steps), 1)
        return (sum(steps) + sum(resets)) / count, sum(resets) / count


class RandomPlay:
    """Random steps over several episodes, each with its own seed. Ends early if the environment breaks."""

    def __init__(self, env: GymEnv, complaints: Complaints):
        self.checked: CheckedEnv = CheckedEnv(env, complaints)
        self.trace: Trace = Trace(self.checked.step_seconds, self.checked.reset_seconds)
        self.space: spaces.Space[Any] = copy.deepcopy(env.action_space)  # instances may share one space
        self._return = 0.0  # of the running episode

    def play(self, steps: int, seed: int) -> Trace:
        """Take up to `steps` steps; the first episode starts with `seed`."""
        for _ in self.walk(steps, seed):
            pass
        return self.trace

    def walk(self, steps: int, seed: int) -> Iterator[None]:
        """Like `play`, as a generator of single steps."""
        trace = self.trace
        self.space.seed(seed)
        try:
            self._reset(seed)
            while len(trace.outcomes) < steps:
                outcome = self._step()
                trace.outcomes.append(outcome)
                trace.rows.append(box_row(self.checked.env.observation_space, self.checked.obs))
                if outcome.over:
                    self._reset(seed + len(trace.lengths))
                yield
        except Broken:
            pass

    def go_on(self, longest: int, seconds: float) -> None:
        """Continue the current episode to its end, for up to `longest` steps or `seconds`. Only its end is recorded."""
        until = time.monotonic() + seconds
        try:
            while self.trace.running < longest and time.monotonic() < until and not self._step().over:
                pass
        except Broken:
            pass

    def _reset(self, seed: int) -> None:
        self.trace.firsts.append(self.checked.reset(seed))
        self.trace.rows.append(box_row(self.checked.env.observation_space, self.checked.obs))

    def _step(self) -> StepOutcome:
        trace, outcome = self.trace, self.checked.step(self._action())
        trace.running, self._return = trace.running + 1, self._return + outcome.reward
        if outcome.over:
            trace.lengths.append(trace.running)
            trace.returns.append(self._return)
            trace.terminated.append(outcome.terminated)
            trace.running, self._return = 0, 0.0
        return outcome

    def _action(self) -> object:
        """Sample a random legal action."""
        space, mask = self.space, self.checked.mask
        if mask is None:
            return space.sample()
        flat = flat_mask(mask).astype(np.int8)
        if isinstance(space, spaces.Discrete):
            return space.sample(mask=flat)
        if isinstance(space, spaces.MultiDiscrete):
            return space.sample(mask=tuple(np.split(flat, np.cumsum(space.nvec.ravel())[:-1])))
        action = space.sample()  # of a MultiBinary: the mask has two entries for each
        legal = np.take_along_axis(flat.reshape(-1, 2), action.reshape(-1, 1), axis=1).reshape(action.shape)
        return np.where(legal, action, 1 - action).astype(action.dtype)


class Difference(NamedTuple):
    """First difference between two traces."""

    where: str
    step: int  # 0: in the first observation
    size: float  # relative to the largest numbers; infinite if unknown

    @property
    def clear(self) -> bool:
        """Whether it is too large or too early for rounding and caches."""
        return self.step <= SOON and self.size > CLEAR


def repetition_findings(env: GymEnv, trace: Trace, fresh: Callable[[], GymEnv], seed: int) -> list[Finding]:
    """Compare the trace of `env` with the same episodes in a fresh environment and in the same one again."""
    steps, space = min(len(trace.outcomes), AGAIN), env.observation_space
    faults = Complaints()  # faults that appear only in repeated play
    again = RandomPlay(env, faults).play(steps, seed)
    other = fresh()
    try:
        elsewhere = RandomPlay(other, faults).play(steps, seed)
        if faults.first and min(len(again.outcomes), len(elsewhere.outcomes)) < steps:
            return faults.findings()
        if (gap := _difference(space, trace, elsewhere)) is not None:
            seen = f"two environments with seed {seed} and the same actions differ {gap.where}"
            change = "draw every random number from `self.np_random`, and begin reset with `super().reset(seed=seed)`"
            seen += "; runs cannot be repeated or resumed exactly"
            return [Finding("not-deterministic", PROBLEM, seen, change)]
        if again.firsts and again.firsts[0] == trace.outcomes[-1].obs != trace.firsts[0]:
            seen = f"after {plural(len(trace.outcomes), 'step')}, reset(seed={seed}) returned the last observation"
            return [Finding("reset-without-effect", PROBLEM, seen, "reset the whole state in reset")]
        if (gap := _difference(space, trace, again)) is not None:
            seen = f"the same environment with the same seed {seed} and actions differs {gap.where} after it has played"
            change = "reset everything in reset, including counters, caches and goals that earlier episodes changed"
            severity = PROBLEM if gap.step == 0 or gap.clear else ADVICE
            return [Finding("depends-on-earlier-episodes", severity, seen, change)]
        return _shared_state(env, other, trace, seed) or _ignored_seed(env, seed)
    finally:
        close_anyway(other.close, "the environment")


def _shared_state(env: GymEnv, other: GymEnv, trace: Trace, seed: int) -> list[Finding]:
    """Step two instances alternately; the second must not affect the first. Each has its own state of the global random
    generators: an environment that seeds these in reset shares nothing that would harm training."""
    faults = Complaints()
    one, two = RandomPlay(env, faults), RandomPlay(other, faults)
    steps = min(len(trace.outcomes), TOGETHER)
    walks = deque((walk, _global_random()) for walk in (one.walk(steps, seed), two.walk(steps, seed + SEEDS)))
    while walks:
        walk, (python_state, numpy_state) = walks.popleft()
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        if next(walk, StopIteration) is StopIteration:
            break
        walks.append((walk, _global_random()))
    if min(len(one.trace.outcomes), len(two.trace.outcomes)) < steps:
        return faults.findings()
    gap = _difference(env.observation_space, trace, one.trace)
    if gap is None or not gap.clear:
        return []
    seen = f"two environments that are stepped alternately affect each other: with seed {seed} one differs {gap.where}"
    change = "keep state in `self`, created in `__init__` or reset, not in the class, the module or a default argument"
    return [Finding("shared-state", PROBLEM, seen, change)]


def _global_random() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()  # noqa: NPY002 (an environment may use it)


def _ignored_seed(env: GymEnv, seed: int) -> list[Finding]:
    """Check whether reset passes its seed on. Gymnasium's reset stores the seed that it was given."""
    checked, taken = CheckedEnv(env, Complaints()), []
    try:
        for number in range(SEEDS):
            checked.reset(seed + number)
            taken.append(getattr(env.unwrapped, "_np_random_seed", None))
    except Broken:
        return []
    first = taken[0]
    if not isinstance(first, int) or first < 0 or len(set(taken)) > 1:  # -1: a generator of its own
        return []
    seen = f"reset with {SEEDS} different seeds began with seed {first} each time: all episodes draw the same numbers"
    return [Finding("seed-without-effect", ADVICE, seen, "pass the seed on: `super().reset(seed=seed)`")]


def _difference(space: GymSpace, one: Trace, other: Trace) -> Difference | None:
    """Return the first difference between two traces; None if there is none."""
    if one.firsts[:1] != other.firsts[:1]:
        return Difference("in the first observation", 0, np.inf)
    begun = 1  # started episodes, each with a row for its first observation
    for number, (a, b) in enumerate(zip(one.outcomes, other.outcomes, strict=False), start=1):
        pairs = zip(a._fields, a, b, strict=True)
        parts = [name for name, x, y in pairs if x != y and not (x != x and y != y)]  # NaN equals NaN here
        if parts:
            size = _size(space, one, other, number, begun + number - 1)
            return Difference(f"at step {number:,} (in {', '.join(parts)})", number, size)
        begun += a.over
    for number, (first, second) in enumerate(zip(one.firsts, other.firsts, strict=False), start=1):
        if first != second:
            return Difference(f"in the first observation of episode {number:,}", SOON + 1, np.inf)
    return None


def _size(space: GymSpace, one: Trace, other: Trace, step: int, row: int) -> float:
    """Distance of two traces at a step, relative to the largest numbers so far."""
    a, b = one.outcomes[step - 1], other.outcomes[step - 1]
    if (a.terminated, a.truncated) != (b.terminated, b.truncated):
        return np.inf
    sizes = [abs(a.reward - b.reward) / max(np.abs(one.rewards).max(), 1e-12)]
    table, numbers = np.stack(one.rows[: row + 1]), other.rows[row]
    if len(numbers) and not np.array_equal(table[-1], numbers):
        sizes.append(float((np.abs(table[-1] - numbers) / np.maximum(np.abs(table).max(axis=0), 1e-12)).max()))
    elif a.obs != b.obs and _has_choices(space):
        return np.inf
    return max(sizes)


def _has_choices(space: GymSpace) -> bool:
    """Whether observations have discrete parts, which rounding cannot change slightly."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return any(map(_has_choices, space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces))
    return not isinstance(space, spaces.Box)


def action_findings(env: GymEnv, seed: int, notes: list[str]) -> list[Finding]:
    """Find faults with actions at their bounds, and actions or entries of actions without effect."""
    faults, found = Complaints(), list[Finding]()
    try:
        if isinstance(env.action_space, spaces.Box):
            _play_corners(CheckedEnv(env, faults, " (with actions at their bounds)"), env.action_space, seed)
        varied = VariedPlay(CheckedEnv(env, faults, " (with actions that are varied)"), seed)
        entries = range(len(varied.choices))
        idle = varied.surely_idle([entry for entry in entries if not varied.matters(entry)], notes)
        where = f"in {AFTER} steps from {len(PREFIXES)} states, nor in whole episodes with the same seeds"
        if idle and len(idle) == len(entries):
            seen = f"no action changed any observation, reward or episode end {where}"
            found.append(Finding("actions-without-effect", PROBLEM, seen, "use the argument of `step`"))
        elif idle:
            which = f"entries {', '.join(map(str, idle[:10]))} of {len(entries)}"
            seen = f"{which} of the action changed nothing {where}, at their lowest and highest values"
            change = "remove these entries from `action_space`, or use them"
            found.append(Finding("action-entry-without-effect", ADVICE, seen, change))
    except Broken:
        pass
    return [*faults.findings(), *found]


def _play_corners(checked: CheckedEnv, space: spaces.Box, seed: int) -> None:
    """Play actions at the bounds of a Box, which trained policies often take and random play never does."""
    bounds = np.array(_choices(space))  # [entries, low and high]
    chosen = np.random.default_rng(seed).integers(0, 2, (CORNERS, len(bounds)))
    for picks in (np.zeros_like(chosen), np.ones_like(chosen), chosen):
        over, episode = True, 0
        for pick in picks:
            if over:
                checked.reset(seed + episode)
                episode += 1
            action = np.take_along_axis(bounds, pick[:, None], axis=1).reshape(space.shape).astype(space.dtype)
            over = checked.step(action).over


class VariedPlay:
    """Plays episodes that differ in some entries of their actions only."""

    def __init__(self, checked: CheckedEnv, seed: int):
        self.checked: CheckedEnv = checked
        self.seed: int = seed
        self.space: GymSpace = copy.deepcopy(checked.env.action_space)  # instances may share one space
        self.choices: list[tuple[float, ...]] = _choices(self.space)  # of each entry

    def matters(self, entry: int) -> bool:
        """Whether varying one action changes anything soon."""
        space, choices = self.space, self.choices[entry]
        for prefix in PREFIXES:
            space.seed(self.seed + prefix)
            before, after = ([space.sample() for _ in range(count)] for count in (prefix, AFTER))
            played = self._outcomes(self.seed + prefix, before)
            if played and played[-1].over:
                before = before[: len(played) - 1]  # then the last action of the episode is varied
            base = space.sample()
            variants = (self._with(base, entry, choices[choice]) for choice in _spread(len(choices)))
            outcomes = [self._outcomes(self.seed + prefix, [*before, action, *after]) for action in variants]
            if any(each != outcomes[0] for each in outcomes[1:]):
                return True
        return False

    def _outcomes(self, seed: int, actions: list[object]) -> list[StepOutcome]:
        """Play the actions and return their outcomes up to the end of the episode."""
        self.checked.reset(seed)
        outcomes = []
        for action in actions:
            outcomes.append(self.checked.step(action))
            if outcomes[-1].over:
                break
        return outcomes

    def surely_idle(self, idle: list[int], notes: list[str]) -> list[int]:
        """Return the entries that change nothing in whole episodes either, because effects may be late or rare."""
        until = time.monotonic() + EPISODE_SECONDS
        try:
            if not idle or not self._differs(idle, until):
                return idle  # no effect even when varied together
            return [entry for entry in idle if len(idle) > 1 and not self._differs([entry], until)]
        except TimeoutError:
            notes.append(f"the effect of actions: {EPISODE_SECONDS:.0f} s of whole episodes were too short to judge")
            return []

    def _differs(self, entries: list[int], until: float) -> bool:
        """Whether whole episodes differ if only these entries of the actions have other values."""
        expected: list[StepOutcome] = []
        for picks in self._patterns(entries):
            for number, outcome in enumerate(self._episodes(entries, picks)):
                if time.monotonic() > until:
                    raise TimeoutError
                if len(expected) <= number:
                    expected.append(outcome)
                elif expected[number] != outcome:
                    return True
        return False

    def _patterns(self, entries: list[int]) -> Iterator[Array]:
        """Yield indices of each entry's value at each step, `[MOST_COMPARED, entries]`: constant, alternating,
        random."""
        counts = np.array([len(self.choices[entry]) for entry in entries])
        shape = (MOST_COMPARED, len(entries))
        yield from (np.broadcast_to(np.minimum(choice, counts - 1), shape) for choice in _spread(counts.max()))
        yield np.arange(MOST_COMPARED)[:, None] % counts
        generator = np.random.default_rng(self.seed)
        yield from (generator.integers(0, counts, shape) for _ in range(RANDOM))

    def _episodes(self, entries: list[int], picks: Array) -> Iterator[StepOutcome]:
        self.space.seed(self.seed)  # for the other entries
        over, ends = True, 0
        for step, pick in enumerate(picks):
            if over:
                self.checked.reset(self.seed + ends)
            action = self.space.sample()
            for entry, choice in zip(entries, pick, strict=True):
                action = self._with(action, entry, self.choices[entry][choice])
            outcome = self.checked.step(action)
            over, ends = outcome.over, ends + outcome.over
            yield outcome
            if step + 1 >= COMPARED and ends:
                return

    def _with(self, action: object, entry: int, value: float) -> object:
        if isinstance(self.space, spaces.Discrete):
            return int(value)
        varied: Array = np.array(action)
        varied.reshape(-1)[entry] = value
        return varied


def _choices(space: GymSpace) -> list[tuple[float, ...]]:
    """Return the values of each entry of an action; of a Box its bounds, or two finite numbers."""
    if isinstance(space, spaces.Box):
        low, high = space.low.ravel().astype(float), space.high.ravel().astype(float)
        low = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high - 2.0, -1.0))
        high = np.where(np.isfinite(high), high, low + 2.0)
        return list(zip(low.tolist(), high.tolist(), strict=True))
    if isinstance(space, spaces.Discrete):
        return [tuple(range(int(space.start), int(space.start) + int(space.n)))]
    if isinstance(space, spaces.MultiDiscrete):
        pairs = zip(space.start.ravel().tolist(), space.nvec.ravel().tolist(), strict=True)
        return [tuple(range(start, start + count)) for start, count in pairs]
    return [(0, 1)] * int(np.prod(space.shape or (1,)))


def _spread(count: int) -> list[int]:
    """Return at most `MOST_CHOICES` of `count` choices, including the first and the last."""
    return sorted({round(each) for each in np.linspace(0, count - 1, min(count, MOST_CHOICES)).tolist()})
