"""`drl.doctor`: play an environment, or read a run's records and let its agent play, and report likely problems."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from drl.agents.agent_env import JAX_ONLY, env_for, is_env_of, own_run
from drl.agents.load_agent import load_agent
from drl.core.errors import BadInput, DrlError, EnvFailed, NonFinite, UnusableFile, plural
from drl.core.network_parts import import_plugins
from drl.core.safe_files import stay_inside
from drl.core.setting_rules import check_size, check_whole
from drl.core.specs import Array
from drl.doctor.checked_env import Complaints, box_columns
from drl.doctor.findings import ADVICE, PROBLEM, Diagnosis, Finding, draw_evidence
from drl.doctor.random_play import RandomPlay, Trace, action_findings, repetition_findings
from drl.doctor.run_checks import no_progress, run_findings
from drl.doctor.run_records import AgentPlay, RunRecords, first_fifth, last_fifth, play_agent
from drl.envs.env_config import EnvConfig, EnvLike
from drl.envs.env_names import WrapperLike
from drl.envs.faults import close_anyway, reason
from drl.envs.make_vec_env import make_env
from drl.envs.spaces import EnvKwargs, GymEnv, GymSpace, action_spec, obs_spec
from drl.runs.building import open_trainer
from drl.runs.folder.finished import Finished
from drl.runs.folder.run_folder import find_run
from drl.settings.experiment import AUTO, Experiment, RunConfig
from drl.settings.layering import env_settings

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
Columns = Sequence[tuple[str, float, float]]  # name, low, high


def doctor(
    subject: str | Path | Finished | EnvLike,
    *,
    env_kwargs: EnvKwargs | None = None,
    wrappers: Iterable[WrapperLike] | None = None,
    steps: int = 2000,
    seed: int = 0,
    picture: bool = True,
    trust: bool = False,
    console: bool = False,
) -> Diagnosis:
    """Report likely problems of an environment or a run, and what to change.

    `subject` is a run, its experiment, or a single-agent environment in any form that `train` takes. `env_kwargs` and
    `wrappers` are for an environment; `wrappers` defaults to the wrappers it usually needs. `steps` is the number of
    steps to play, with random actions in an environment and the agent's actions in a run. For a run, `picture` draws
    the evidence into its folder `doctor/`, and `trust` imports the modules that the run names, which runs their code.
    `console=True` prints the result.
    """
    check_size("subject", subject)
    check_whole("steps", steps, 10)
    check_whole("seed", seed, 0)
    run = subject.folder if isinstance(subject, Finished) else subject
    if isinstance(run, str | Path) and Path(run).is_dir():
        if env_kwargs is not None or wrappers is not None:
            raise BadInput(f"{run} is a folder; --env-kwargs and --wrapper are for an environment")
        diagnosis = examine_run(run, steps, seed, trust=trust, picture=picture)
    elif isinstance(run, Path):
        raise BadInput(f"there is no folder {run}; expected a run folder or the name of an environment")
    else:
        if trust or not picture:
            raise BadInput(f"--trust and --no-picture are for a run, and there is no folder {run}")
        diagnosis = _examine_env(run, env_kwargs, wrappers, steps, seed)
    if console:
        print(diagnosis)
    return diagnosis


def _examine_env(
    env: EnvLike, env_kwargs: EnvKwargs | None, wrappers: Iterable[WrapperLike] | None, steps: int, seed: int
) -> Diagnosis:
    settings = env_settings(env, env_kwargs, wrappers)
    named = tuple(settings.get("wrappers", AUTO))
    pairs = tuple(settings.get("env_kwargs", ()))
    run = RunConfig(env=settings["env"], env_kwargs=pairs, wrappers=named, frame_stack=settings.get("frame_stack", 1))
    try:
        return examine_env(run.env_config, steps, seed)
    except BadInput as error:
        if isinstance(env, str) and "/" in env and ":" not in env:  # meant to be a path
            raise BadInput(f"there is no folder {env}, and {error}") from error
        raise


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


def examine_run(
    path: str | Path, steps: int = 2000, seed: int = 0, *, trust: bool = False, picture: bool = True
) -> Diagnosis:
    """Report causes first, then symptoms. `trust`: import the modules that the run names, which runs their code."""
    folder = find_run(path)
    out = stay_inside(folder, folder / "doctor" / "evidence.png")
    notes, pictures = list[str](), list[str]()
    try:
        with np.errstate(all="ignore"):  # numbers may overflow
            run = RunRecords(folder)
            status = str(run.record.get("status", "unknown"))
            numbers: dict[str, float | str] = {"status": status, "steps": run.env_steps}
            numbers |= {"of its budget": f"{run.used:.0%}", "episodes": len(run.returns)}
            if len(run.returns):
                first, last = (float(np.nanmean(part(run.returns))) for part in (first_fifth, last_fifth))
                numbers |= {"first returns": first, "last returns": last}
                numbers["truncated"] = f"{1.0 - run.episodes.terminated.mean():.0%}"
            play = _play(run, steps, seed, trust, notes)
            findings = list(run_findings(run, play)) or list(no_progress(run))
            if not run.rows and not findings and run.record.get("status") == "finished":
                raise UnusableFile(f"{folder} has finished, but its metrics.jsonl has no rows to examine")
    except DrlError:
        raise
    except Exception as error:  # a run's files are untrusted
        raise UnusableFile(f"{folder} cannot be examined ({reason(error)})") from error
    if not run.rows:
        notes.insert(0, "learning: metrics.jsonl has no rows")
    elif run.early:
        counts = f"{plural(len(run.rows), 'learning step')}, {plural(run.updates, 'update')} and "
        counts += plural(len(run.returns), "episode")
        notes.insert(0, f"learning: too early to say after {counts}")
    if picture and any(finding.series is not None for finding in findings):
        try:
            pictures.append(str(draw_evidence(findings, folder, out)))
        except Exception as error:  # a full disk, or numbers too large for an axis
            notes.append(f"there is no picture of the evidence: {reason(error)}")
    return Diagnosis(str(folder), numbers, tuple(findings), tuple(notes), tuple(pictures))


def _play(run: RunRecords, steps: int, seed: int, trust: bool, notes: list[str]) -> AgentPlay | None:
    """Let the agent play in its environment; None and a note if that is not possible."""
    try:
        if trust and isinstance(plugins := run.settings.get("plugins"), list):
            import_plugins([name for name in plugins if isinstance(name, str)])
        own = own_run(run.folder / "agent")
        agent = load_agent(run.folder)
        trust = trust or is_env_of(agent, own)
        config = env_for(agent, source=f"{run.folder}/agent/card.json", trust=trust)
        vectorization = "envpool" if run.settings.get("vectorization") == "envpool" else "sync"
        return play_agent(agent, config, steps, seed, vectorization)
    except UnusableFile:
        raise
    except DrlError as error:
        notes.append(f"the agent's actions and values: {error}")
        return None
