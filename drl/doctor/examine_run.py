"""`drl.doctor` and `examine_run`: read a run's records, let its agent play, and report likely problems.

The agent's play shows what no record has: actions, values, and what the normalizer clips.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from drl.core.errors import BadInput, DrlError, UnusableFile, plural
from drl.core.network_parts import import_plugins
from drl.core.safe_files import stay_inside
from drl.core.setting_rules import check_size, check_whole
from drl.doctor.findings import Diagnosis, draw_evidence
from drl.doctor.run_checks import no_progress, run_findings
from drl.doctor.run_records import AgentPlay, RunRecords, first_fifth, last_fifth, play_agent
from drl.envs.env_config import EnvLike
from drl.envs.env_names import WrapperLike
from drl.envs.faults import reason
from drl.envs.spaces import EnvKwargs
from drl.runs.folder.finished import Finished
from drl.runs.folder.run_folder import find_run


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
    from drl.doctor.examine_env import examine_env
    from drl.experiment.one_call import as_settings
    from drl.settings.experiment import AUTO, RunConfig

    settings = as_settings(env, env_kwargs, wrappers)
    named = tuple(settings.get("wrappers", AUTO))
    pairs = tuple(settings.get("env_kwargs", ()))
    run = RunConfig(env=settings["env"], env_kwargs=pairs, wrappers=named, frame_stack=settings.get("frame_stack", 1))
    try:
        return examine_env(run.env_config, steps, seed)
    except BadInput as error:
        if isinstance(env, str) and "/" in env and ":" not in env:  # meant to be a path
            raise BadInput(f"there is no folder {env}, and {error}") from error
        raise


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
