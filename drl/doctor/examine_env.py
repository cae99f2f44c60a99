"""`examine_env`: play an environment with random actions and report problems, and scales that are hard to learn.

Actions at their bounds follow, and episodes that differ in one action or in some entries of all actions.
"""

import copy
import json
import time
from collections.abc import Iterator, Sequence
from functools import partial

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from drl.agents.agent_env import JAX_ONLY
from drl.core.errors import BadInput, DrlError, EnvFailed, NonFinite, plural
from drl.core.specs import Array
from drl.doctor.checked_env import Broken, CheckedEnv, Complaints, StepOutcome, box_columns
from drl.doctor.findings import ADVICE, PROBLEM, Diagnosis, Finding
from drl.doctor.random_play import RandomPlay, Trace, repetition_findings
from drl.envs.env_config import EnvConfig
from drl.envs.faults import close_anyway
from drl.envs.make_vec_env import make_env
from drl.envs.spaces import GymEnv, GymSpace, action_spec, obs_spec
from drl.runs.building import open_trainer
from drl.settings.experiment import Experiment

TIMED_STEPS = 128  # environment steps in the timed learning step
PATIENCE = 10.0  # seconds to wait for the end of an episode

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


def examine_env(config: EnvConfig, steps: int = 2000, seed: int = 0) -> Diagnosis:
    """Play `steps` random steps, repeat some of them, and report what is wrong or hard to learn."""
    if config.env.startswith(JAX_ONLY):
        raise BadInput(f"{config.env} is stepped by the JAX engine; `drl doctor` examines Gymnasium environments")
    fresh = partial(make_env, config)
    env = fresh()
    try:
        try:
            obs_spec(env.observation_space), action_spec(env.action_space)
        except BadInput as error:
            change = "use spaces that drl supports; see docs/environments.md"
            return Diagnosis(config.env, {}, (Finding("unusable-space", PROBLEM, str(error), change),))
        complaints, notes = Complaints(), list[str]()
        player = RandomPlay(env, complaints)
        trace = player.play(steps, seed)
        if len(trace.outcomes) == steps and _may_be_endless(env, trace):
            player.go_on(LONGEST, PATIENCE)
        masked = bool(player.checked.masked)
        # Broken numbers would be reported twice.
        found = complaints.findings() or list(scale_findings(env, trace, masked))
        if len(trace.outcomes) == steps:
            more = repetition_findings(env, trace, fresh, seed)
            if not any(finding.severity == PROBLEM for finding in more) and not masked:
                more += action_findings(env, seed, notes)
            known = {finding.name for finding in found}
            found += [finding for finding in more if finding.name not in known]
    finally:
        close_anyway(env.close, config.env)
    numbers: dict[str, float | str] = {"steps": len(trace.outcomes), "episodes": len(trace.lengths)}
    if trace.lengths:
        numbers |= {"mean length": float(np.mean(trace.lengths)), "mean return": float(np.mean(trace.returns))}
    if trace.outcomes:
        numbers |= {"smallest reward": float(trace.rewards.min()), "largest reward": float(trace.rewards.max())}
        numbers["steps per second"] = 1.0 / max(trace.seconds[0], 1e-9)
    if not any(finding.severity == PROBLEM for finding in found):
        try:
            with np.errstate(all="ignore"):  # overflows are reported below
                numbers |= _training_share(config, trace.seconds[0])
        except (EnvFailed, NonFinite) as error:
            found.append(_training_fault(error))
    return Diagnosis(config.env, numbers, tuple(found), tuple(notes))


def _training_share(config: EnvConfig, seconds: float) -> dict[str, float | str]:
    """Measure the environment's share of a training step of PPO with default settings."""
    if seconds > SLOW_STEP:
        return {"share of a training step": "nearly all"}
    pairs = [f"{name}={json.dumps(value, default=str)}" for name, value in config.env_kwargs.items()]
    settings = {"env": config.env, "env_kwargs": pairs, "wrappers": list(config.wrappers), "num_envs": 1}
    settings |= {"frame_stack": config.frame_stack, "rollout_length": TIMED_STEPS, "vectorization": "sync"}
    experiment = {"algorithm": "ppo", "compile": "off", **settings}
    try:
        with open_trainer(Experiment.from_flat(experiment, "doctor")) as trainer:
            next(steps := iter(trainer()))  # the first step also loads and allocates
            started = time.perf_counter()
            next(steps)
            whole = (time.perf_counter() - started) / TIMED_STEPS
    except BadInput:
        return {}  # PPO has no default network for this environment
    return {"share of a training step": f"{min(seconds / whole, 1.0):.0%} (ppo, one environment)"}


def _training_fault(error: DrlError) -> Finding:
    """Return a fault that appeared not in random play but in the first steps of training."""
    name, change = "training-fails", "drl train ppo --env ENV fails in the same way; find the cause"
    if isinstance(error, EnvFailed):
        name = "raises"
    elif "the observation is" in str(error) or "of the observation is" in str(error):
        name = "nan-observation"
    elif "rewards must be finite" in str(error):
        name = "nan-reward"
    else:
        change = "--normalize-reward --normalize-obs, or smaller rewards and observations in the environment"
    seen = f"two learning steps of PPO with its default settings ended with: {error}"
    return Finding(name, PROBLEM, seen, change)


def scale_findings(env: GymEnv, trace: Trace, masked: bool) -> Iterator[Finding]:
    """Yield ends, scales and a speed that are hard to learn. `masked`: whether the agent also sees action masks."""
    yield from _ends(env, trace)
    yield from _rewards(trace)
    yield from _observations(env.observation_space, trace, masked)
    yield from _bounds(env.action_space)
    seconds, resets = trace.seconds
    if seconds > SLOW_STEP:
        hours, rate, where = seconds * 1e6 / 3600, 1 / seconds, "step"
        seen = f"a step takes {seconds * 1000:.3g} ms ({rate:.0f} per second); a million steps take {hours:.1f} h"
        if resets > seconds / 2:
            where = "reset"
            seen += f"; {resets / seconds:.0%} of that is spent in resets"
        yield Finding("slow-steps", ADVICE, seen, f"--vectorization async --num-envs 8, or profile `{where}`")


def _ends(env: GymEnv, trace: Trace) -> Iterator[Finding]:
    lengths = trace.lengths
    if _may_be_endless(env, trace):
        seen = f"one episode lasted {trace.running:,} random steps without being terminated or truncated"
        limit = "give a limit: --wrapper TimeLimit:max_episode_steps=1000"
        severity = PROBLEM if trace.running >= LONGEST else ADVICE  # slow steps: it may still end
        yield Finding("endless-episodes", severity, seen, f"let `step` return terminated or truncated, or {limit}")
    alike = len(lengths) >= 5 and len(set(lengths)) == 1
    if alike and all(trace.terminated) and lengths[0] >= SAME_LENGTH:
        seen = f"all {len(lengths)} episodes terminated after exactly {lengths[0]} steps: that looks like a time limit"
        change = (
            "return truncated=True at a time limit, so that the last state's value is bootstrapped (or use "
            f"--wrapper TimeLimit:max_episode_steps={lengths[0]}); terminated is correct if the agent observes the time"
        )
        yield Finding("time-limit-as-terminated", ADVICE, seen, change)


def _may_be_endless(env: GymEnv, trace: Trace) -> bool:
    """Whether no episode has ended, and no registration or TimeLimit wrapper limits them."""
    limits = [env.spec.max_episode_steps if env.spec else None]
    layer = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, TimeLimit):
            limits.append(layer._max_episode_steps)
        layer = layer.env
    limit = min((limit for limit in limits if limit), default=0)
    return not trace.lengths and limit < len(trace.outcomes)


def _rewards(trace: Trace) -> Iterator[Finding]:
    rewards = trace.rewards[np.isfinite(trace.rewards)]
    if not len(rewards):
        return
    largest, size = float(np.abs(rewards).max()), float(np.sqrt(np.mean(np.square(rewards))))
    same = np.ptp(rewards) == 0 and len(set(trace.lengths)) <= 1 and len(rewards) >= ENOUGH
    unfinished = rewards[0] < 0 and not any(trace.terminated)  # a cost for every step until a goal is reached
    if same and not unfinished:
        seen = f"all {len(rewards):,} rewards are {rewards[0]:g}, and all episodes have the same length"
        change = (
            "check the reward; if it is correct, random actions cannot reach the goal: also reward progress, "
            "start episodes nearer to the goal, or explore more (--entropy-coef, --epsilon-decay)"
        )
        yield Finding("constant-reward", ADVICE, seen, change)
    elif size > LARGE_REWARD or 0 < largest < SMALL_REWARD:
        seen = f"the root mean square of the rewards is {size:.3g}, the largest is {largest:.3g}"
        yield Finding("reward-scale", ADVICE, seen, "--normalize-reward, or divide the reward in the environment")


def _observations(space: GymSpace, trace: Trace, masked: bool) -> Iterator[Finding]:
    digests = {*trace.firsts, *(outcome.obs for outcome in trace.outcomes)}
    count = len(trace.outcomes) + len(trace.firsts)
    if len(digests) == 1 and max(trace.lengths, default=2) > 1 and count >= ENOUGH and not masked:
        seen = f"all {count:,} observations are the same"
        yield Finding("constant-observation", PROBLEM, seen, "return the information that the agent needs")
        return
    columns = box_columns(space)
    table = np.stack(trace.rows) if columns and trace.rows else np.zeros((0, 0))  # [observations, numbers]
    table = table[np.isfinite(table).all(axis=1)]
    if len(table):
        yield from _entries(columns, table)


def _entries(columns: Columns, table: Array) -> Iterator[Finding]:
    """Check the numbers of observations, one column each, for their scale, range and changes."""
    names, low, high = (np.array(part) for part in zip(*columns, strict=True))
    largest, spread = np.abs(table).max(axis=0), np.ptp(table, axis=0)
    off = (largest > LARGE_OBS) | ((largest < SMALL_OBS) & (spread > 0))
    if off.any():
        worst = _listed([f"{names[i]} up to {largest[i]:.3g}" for i in np.flatnonzero(off)])
        seen = f"some entries are far from magnitude 1: {worst}"
        yield Finding("observation-scale", ADVICE, seen, "--normalize-obs")
    with np.errstate(over="ignore", invalid="ignore"):
        width = high - low
        unused = np.isfinite(width) & (spread > 0) & (spread < UNUSED_RANGE * width)
    if unused.any():
        words = _listed([f"{names[i]} takes {spread[i]:.3g} of its {width[i]:.3g}" for i in np.flatnonzero(unused)])
        change = "set `observation_space` bounds near the actual range (wrappers scale by them), or --normalize-obs"
        yield Finding("bounds-never-approached", ADVICE, f"less than 1 % is used: {words}", change)
    still = spread == 0
    if len(table) >= ENOUGH and still.any() and not still.all():
        words = _listed([f"{names[i]} = {table[0, i]:.3g}" for i in np.flatnonzero(still)])
        count = f"{int(still.sum())} of {len(columns)} entries never changed in {plural(len(table), 'observation')}"
        yield Finding("constant-entries", ADVICE, f"{count}: {words}", "check that they are filled, or remove them")


def _listed(words: Sequence[str], most: int = 4) -> str:
    return "; ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def _bounds(space: GymSpace) -> Iterator[Finding]:
    if not isinstance(space, spaces.Box):
        return
    largest = float(np.abs(np.array([space.low, space.high], float)).max())
    if np.isinf(largest):
        count = int((np.isinf(space.low) | np.isinf(space.high)).sum())
        seen = f"{count} of {space.low.size} entries of the action have no bound; policies begin at 0 with deviation 1"
        change = "set `action_space` to a sensible range; drl scales [-1, 1] to it"
        yield Finding("unbounded-actions", ADVICE, seen, change)
    elif largest >= LARGE_ACTION:
        seen = f"actions reach {largest:.3g}; [-1, 1] is scaled to the bounds, so every action is huge"
        yield Finding("action-bounds", ADVICE, seen, "set `action_space` to a sensible range")


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
