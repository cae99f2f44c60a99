"""Checks of episode ends, rewards, observations, actions and speed in random play: legal, but hard to learn."""

from collections.abc import Sequence

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from drl.core.errors import plural
from drl.core.specs import Array
from drl.doctor.findings import ADVICE, PROBLEM, Finding
from drl.doctor.obs_faults import box_columns
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
        limits.append(getattr(layer, "_max_episode_steps", None))
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


Columns = Sequence[tuple[str, float, float]]  # name, low, high


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
