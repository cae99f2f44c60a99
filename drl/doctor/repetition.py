"""Whether an environment repeats itself, and whether its actions change anything: the same episodes, played again."""

from collections.abc import Callable, Iterator

import numpy as np
from gymnasium import spaces

from drl.core.specs import Array
from drl.doctor.findings import ADVICE, PROBLEM, Finding
from drl.doctor.obs_faults import digest_of
from drl.doctor.random_play import Complaints, Outcome, RandomPlay, Trace
from drl.envs.faults import close_anyway
from drl.envs.spaces import GymEnv, GymSpace

AGAIN = 500  # steps that are compared
PREFIXES = (0, 1, 2, 4, 8, 16, 32)  # random steps before the action that is varied
AFTER = 20  # steps after it
MOST_CHOICES = 12  # of a Discrete action that are tried
USE_SEED = "draw every random number from `self.np_random`, and begin reset with `super().reset(seed=seed)`"


def repetition_findings(env: GymEnv, trace: Trace, fresh: Callable[[], GymEnv], seed: int) -> list[Finding]:
    """Compare what was played in `env` with the same episodes in a fresh environment, and in the same one again."""
    steps = min(len(trace.outcomes), AGAIN)
    faults = Complaints()  # that come only when it is played again
    again = RandomPlay(env, faults).play(steps, seed)
    other = fresh()
    try:
        elsewhere = RandomPlay(other, faults).play(steps, seed)
    finally:
        close_anyway(other.close, "the environment")
    if faults.first and min(len(again.outcomes), len(elsewhere.outcomes)) < steps:
        return faults.findings()
    if (where := _difference(trace, elsewhere)) is not None:
        seen = f"two environments with seed {seed} and the same actions differ {where}"
        return [Finding("not-deterministic", PROBLEM, f"{seen}; runs cannot be repeated or resumed exactly", USE_SEED)]
    if trace.outcomes and again.firsts and again.firsts[0] == trace.outcomes[-1].obs != trace.firsts[0]:
        seen = f"after {len(trace.outcomes):,} steps, reset(seed={seed}) returned the last observation, not a first one"
        return [Finding("reset-without-effect", PROBLEM, seen, "put the whole state back to its beginning in reset")]
    if (where := _difference(trace, again)) is not None:
        seen = f"the same environment with the same seed {seed} and actions differs {where} once it has played before"
        change = "put everything back in reset, also counters, caches and goals that earlier episodes have changed"
        severity = PROBLEM if again.firsts[:1] != trace.firsts[:1] else ADVICE  # physics engines keep caches, too
        return [Finding("depends-on-earlier-episodes", severity, seen, change)]
    return []


def _difference(one: Trace, other: Trace) -> str | None:
    """Where two traces begin to differ; None: nowhere."""
    if one.firsts[:1] != other.firsts[:1]:
        return "in the first observation"
    for number, (a, b) in enumerate(zip(one.outcomes, other.outcomes, strict=False), start=1):
        parts = [name for name, x, y in zip(a._fields, a, b, strict=True) if not _same(x, y)]
        if parts:
            return f"at step {number:,} (in {', '.join(parts)})"
    pairs = zip(one.firsts, other.firsts, strict=False)
    return next((f"in the first observation of episode {i + 1:,}" for i, (a, b) in enumerate(pairs) if a != b), None)


def _same(one: object, other: object) -> bool:
    return one == other or (one != one and other != other)  # NaN


def action_findings(env: GymEnv, seed: int) -> list[Finding]:
    """Actions, or entries of an action, that change nothing that is seen afterwards."""
    space = env.action_space
    entries = _entries(space)
    idle = [entry for entry in range(entries) if not _matters(env, entry, seed)]
    if not idle:
        return []
    if len(idle) == entries:
        seen = f"from {len(PREFIXES)} situations, no action changed any observation, reward or end in {AFTER} steps"
        return [Finding("actions-without-effect", PROBLEM, seen, "use the argument of `step`")]
    which = ", ".join(map(str, idle[:10]))
    seen = f"entries {which} of {entries} of the action changed nothing in {AFTER} steps, at their lowest and highest"
    return [
        Finding("action-entry-without-effect", ADVICE, seen, "leave these entries out of `action_space`, or use them")
    ]


def _matters(env: GymEnv, entry: int, seed: int) -> bool:
    for prefix in PREFIXES:
        env.action_space.seed(seed + prefix)
        before, after = ([env.action_space.sample() for _ in range(count)] for count in (prefix, AFTER))
        played = _outcomes(env, seed + prefix, before)
        if played and (played[-1].terminated or played[-1].truncated):
            before = before[: len(played) - 1]  # then it is the last action of the episode that is varied
        variants = _variants(env.action_space, env.action_space.sample(), entry)
        outcomes = [_outcomes(env, seed + prefix, [*before, varied, *after]) for varied in variants]
        if any(each != outcomes[0] for each in outcomes[1:]):
            return True
    return False


def _outcomes(env: GymEnv, seed: int, actions: list[object]) -> list[Outcome]:
    """What the actions lead to, up to the end of the episode."""
    env.reset(seed=seed)
    outcomes = []
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(action)
        outcomes.append(Outcome(digest_of(obs), float(reward), bool(terminated), bool(truncated)))
        if terminated or truncated:
            break
    return outcomes


def _entries(space: GymSpace) -> int:
    return 1 if isinstance(space, spaces.Discrete) else int(np.prod(space.shape or (1,)))


def _variants(space: GymSpace, base: object, entry: int) -> Iterator[object]:
    """The action with other values in one entry."""
    if isinstance(space, spaces.Discrete):
        yield from (int(space.start) + choice for choice in range(min(int(space.n), MOST_CHOICES)))
        return
    for value in _values(space, entry):
        varied: Array = np.array(base)
        varied.reshape(-1)[entry] = value
        yield varied


def _values(space: GymSpace, entry: int) -> tuple[float, ...]:
    if isinstance(space, spaces.Box):
        low, high = float(space.low.ravel()[entry]), float(space.high.ravel()[entry])
        low = low if np.isfinite(low) else high - 2.0 if np.isfinite(high) else -1.0
        return low, high if np.isfinite(high) else low + 2.0
    if isinstance(space, spaces.MultiDiscrete):
        start, count = int(space.start.ravel()[entry]), int(space.nvec.ravel()[entry])
        return tuple(float(start + choice) for choice in range(min(count, MOST_CHOICES)))
    return (0.0, 1.0)
