"""`drl.doctor` and `examine_run`: read a run's records, let its agent play, and report likely problems.

The agent's play shows what no record has: actions, values, and what the normalizer clips.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drl.agents.agent_env import EnvOptions, open_vec_env
from drl.agents.evaluation import check_fit, own_stream
from drl.core.contracts import Agent
from drl.core.errors import BadInput, DrlError, UnusableFile, plural
from drl.core.network_parts import import_plugins
from drl.core.safe_files import stay_inside
from drl.core.setting_rules import check_size, check_whole
from drl.core.specs import Array
from drl.doctor.findings import PROBLEM, Diagnosis, Finding, Series, draw_evidence
from drl.doctor.run_checks import CAUSES, LOSSES, RETURNS, UPDATES, has_vanished, no_progress
from drl.doctor.run_records import RunRecords, first_fifth, last_fifth
from drl.envs.env_config import EnvConfig, EnvLike
from drl.envs.env_names import WrapperLike
from drl.envs.faults import reason
from drl.envs.spaces import EnvKwargs
from drl.runs.folder.finished import Finished
from drl.runs.folder.run_folder import find_run

ONE_ACTION = 0.99  # share of steps
SATURATED = 0.9  # share of all action entries at a bound
BEYOND = 1.5  # times the largest possible return
CLIPPED = 0.5  # share of an entry's normalized numbers at the normalizer's limit
NUM_ENVS = 4


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
        found = examine_run(run, steps, seed, trust=trust, picture=picture)
    elif isinstance(run, Path):
        raise BadInput(f"there is no folder {run}; expected a run folder or the name of an environment")
    else:
        if trust or not picture:
            raise BadInput(f"--trust and --no-picture are for a run, and there is no folder {run}")
        found = _examine_env(run, env_kwargs, wrappers, steps, seed)
    if console:
        print(found)
    return found


def _examine_env(
    env: EnvLike, env_kwargs: EnvKwargs | None, wrappers: Iterable[WrapperLike] | None, steps: int, seed: int
) -> Diagnosis:
    from drl.doctor.examine_env import examine_env
    from drl.settings.experiment import AUTO, RunConfig
    from drl.settings.layering import env_settings

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


class AgentPlay(NamedTuple):
    """Observations and actions of the agent without exploration."""

    agent: Agent
    obs: Array  # [M, …] encoded
    actions: Array  # [M, …] in the policy's units
    rewards: Array  # [M]
    policy: Array | None  # [M, choices] probabilities of discrete actions
    values: Array | None  # [M] predicted values


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
            findings, losses = _found(run, (*CAUSES, *RETURNS, *UPDATES)), _found(run, LOSSES)
            numbers = _numbers(run)
            play = _play(run, steps, seed, trust, notes)
            if play is not None:
                findings += [found for check in AGENT if (found := check(run, play)) is not None]
            findings += losses
            findings += [] if findings else _found(run, (no_progress,))
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


def _found(run: RunRecords, checks: Iterable[Callable[[RunRecords], Finding | None]]) -> list[Finding]:
    return [found for check in checks if (found := check(run)) is not None]


def _numbers(run: RunRecords) -> dict[str, float | str]:
    numbers: dict[str, float | str] = {"status": str(run.record.get("status", "unknown")), "steps": run.env_steps}
    numbers |= {"of its budget": f"{run.used:.0%}", "episodes": len(run.returns)}
    if len(run.returns):
        first, last = (float(np.nanmean(part(run.returns))) for part in (first_fifth, last_fifth))
        numbers |= {"first returns": first, "last returns": last}
        numbers["truncated"] = f"{1.0 - run.episodes.terminated.mean():.0%}"
    return numbers


def _play(run: RunRecords, steps: int, seed: int, trust: bool, notes: list[str]) -> AgentPlay | None:
    """Let the agent play in its environment; None and a note if that is not possible."""
    from drl.agents.agent_env import env_for, is_env_of, own_run
    from drl.agents.load_agent import load_agent

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


def play_agent(agent: Agent, config: EnvConfig, steps: int, seed: int, vectorization: str) -> AgentPlay:
    """Let the agent play `steps` steps in a few parallel environments."""
    options: EnvOptions = {"vectorization": vectorization}
    seen: list[tuple[Array, Array, Array, Array | None, Array | None]] = []
    with open_vec_env(config, NUM_ENVS, seed, seeds_stream="evaluation", **options) as envs, own_stream(agent, seed):
        check_fit(agent, envs.obs_spec, envs.action_spec, config.env)
        obs = envs.reset()
        agent.begin()
        for _ in range(-(-steps // NUM_ENVS)):
            thoughts = agent.explain_encoded(obs, envs.action_mask)
            values = thoughts.get("value")
            if values is None and "q" in thoughts:
                values = thoughts["q"].max(axis=-1)
            action = agent.decide(obs, False, envs.action_mask)
            step = envs.step(agent.action_spec.to_env(action))
            policy = thoughts.get("policy") if agent.action_spec.kind == "discrete" else None
            seen.append((obs.copy(), action, step.reward, policy, values))
            obs = step.obs
            if agent.recurrent:
                agent.begin(step.over)
    all_obs, actions, rewards, policies, all_values = zip(*seen, strict=True)
    return AgentPlay(
        agent, *(np.concatenate(each) for each in (all_obs, actions, rewards)), *map(_joined, (policies, all_values))
    )


def _joined(parts: tuple[Array | None, ...]) -> Array | None:
    there = [part for part in parts if part is not None]
    return np.concatenate(there) if len(there) == len(parts) else None


def unused_actions(run: RunRecords, play: AgentPlay) -> Finding | None:
    """The agent almost always takes the same action."""
    spec = play.agent.action_spec
    if run.early or run.improved or spec.kind != "discrete" or spec.sizes[0] < 2:
        return None
    taken = np.bincount(play.actions.astype(int).ravel(), minlength=spec.sizes[0]) / play.actions.size
    shares = taken if play.policy is None else play.policy.mean(axis=0)
    if shares.max() < ONE_ACTION:
        return None
    seen = f"the agent takes action {shares.argmax()} in {shares.max():.1%} of {plural(len(play.actions), 'step')}"
    change = run.advice("--entropy-coef 0.01", "a larger --epsilon-decay", run.slower)
    series = Series("share of the steps", np.arange(len(shares)), shares, over="action")
    return Finding("unused-actions", PROBLEM, f"{seen}, out of {len(shares)} actions", change, series)


def saturated_actions(run: RunRecords, play: AgentPlay) -> Finding | None:
    """Most continuous actions are at a bound."""
    gradients = run.learned("actor_grad_norm")
    stuck = gradients is not None and has_vanished(gradients)  # the return may have risen a little by chance
    if run.early or (run.improved and not stuck) or play.agent.action_spec.kind != "box":
        return None
    share = float((np.abs(play.actions) >= 0.99).mean())
    if share < SATURATED:
        return None
    why = "the actor's gradient is 0" if stuck else "the return has not risen"
    seen = f"{share:.0%} of the entries of the agent's actions are at a bound, and {why}"
    change = run.advice(run.slower, "a smaller --actor-learning-rate", "--normalize-obs")
    counts, edges = np.histogram(np.clip(play.actions, -1.0, 1.0), bins=21, range=(-1.0, 1.0))
    series = Series("share of the entries", (edges[1:] + edges[:-1]) / 2, counts / counts.sum(), over="action")
    return Finding("saturated-actions", PROBLEM, seen, change, series)


def values_beyond_returns(run: RunRecords, play: AgentPlay) -> Finding | None:
    """Values exceed the return of any sequence of rewards."""
    if run.settings.get("normalize_reward") or run.setting("reward_scale", 1.0) != 1.0 or run.early:
        return None
    gamma, means = run.setting("gamma", 0.99), run.series("rollout/mean_reward")
    largest = float(max(np.abs(play.rewards).max(), 0.0 if means is None else np.abs(means.y).max()))
    allowed = largest / (1.0 - gamma) if gamma < 1 else float(np.nanmax(np.abs(run.returns)))
    heat, mood = run.series("learn/temperature"), run.series("learn/entropy")
    if heat is not None and mood is not None:  # soft values contain future entropy
        allowed += float(heat.y.max() * np.abs(mood.y).max()) / max(1.0 - gamma, 1e-3)
    learned = run.learned("mean_q", allowed)
    expected = float(np.percentile(np.abs(play.values), 90)) if play.values is not None else 0.0
    if learned is not None:
        expected = max(expected, float(np.abs(last_fifth(learned.y)).mean()))
    if expected <= BEYOND * allowed or allowed == 0:
        return None
    seen = (
        f"the agent predicts {expected:.4g}; rewards of at most {largest:.3g} with gamma {gamma:g} allow {allowed:.4g}"
    )
    double = () if run.settings.get("double") else ("--double",)
    change = run.advice(*double, "--num-critics 2", "a smaller --tau", run.slower)
    return Finding("values-beyond-returns", PROBLEM, seen, change, learned)


def stale_normalizer(run: RunRecords, play: AgentPlay) -> Finding | None:
    """Observations are outside the range that the normalizer has seen."""
    normalizer = play.agent.normalizer
    if normalizer is None or play.obs.dtype.names:
        return None
    outside = np.abs(normalizer(play.obs)).reshape(len(play.obs), -1) >= normalizer.clip - 1e-3
    shares = outside.mean(axis=0)
    if normalizer.count and shares.max() < CLIPPED:
        return None
    entry = int(shares.argmax())
    seen = (
        f"the normalizer clips {shares[entry]:.0%} of the numbers in entry {entry}: they are far from the training data"
    )
    change = "train longer with --normalize-obs, and evaluate in the training environment"
    series = Series("share that is clipped", np.arange(len(shares)), shares, over="entry of the observation")
    return Finding("stale-normalizer", PROBLEM, seen, change, series)


AGENT = (values_beyond_returns, unused_actions, saturated_actions, stale_normalizer)
