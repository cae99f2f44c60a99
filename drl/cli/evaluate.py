"""`drl evaluate RUN|AGENT`: measure an agent, or watch it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from drl.cli.flags import parse_flags
from drl.core.agent_files import read_agent
from drl.core.configs import require
from drl.core.contracts import Agent
from drl.core.errors import BadInput, UnusableFile
from drl.core.network_parts import import_plugins
from drl.core.safe_files import stay_inside
from drl.core.state_files import PlainDict
from drl.envs.trust import check_trusted
from drl.experiment.run_folder import find_agent_folder

if TYPE_CHECKING:
    from drl.experiment.evaluation import Evaluation

MOST_FRAMES = 1000  # largest frame_stack that an agent's card may name


@dataclass(frozen=True)
class Flags:
    agent: Annotated[str, tyro.conf.Positional]  # a run, an experiment (its newest run) or an agent folder
    # Of a run: final (the newest), best (by the window of training), best-evaluated, or the step of a kept checkpoint.
    which: str | None = None
    env: str | None = None  # environment to play in; default: the one it was trained in
    episodes: int = 10
    seed: int = 1  # for the evaluation's environments and actions
    sampled: bool = False  # sample actions from the policy instead of taking the most likely
    temperature: float = 1.0  # of sampled actions
    render: bool = False  # play in the environment's own window
    video: bool = False  # film one episode into the run's videos folder
    step_by_step: bool = False  # print observation, values or probabilities, action and reward of every step
    json: bool = False  # print the summary as JSON and nothing else
    plugins: tuple[str, ...] = ()  # your own modules to import first
    trust: bool = False  # import the environment's module named on the agent's card; this runs its code


def main(arguments: list[str]) -> int:
    flags = parse_flags(Flags, arguments, prog="drl evaluate", description="Measure or watch a trained agent.")
    require(flags, "a whole number of at least 1", "episodes", lambda x: x >= 1)
    require(flags, "a whole number of at least 0", "seed", lambda x: x >= 0)
    require(flags, "a number above 0", "temperature", lambda x: x > 0)
    if flags.temperature != 1.0 and not flags.sampled:
        raise BadInput("--temperature is for sampled actions; add --sampled")
    import_plugins(flags.plugins)
    folder = find_agent_folder(flags.agent, flags.which)
    card, _ = read_agent(folder)
    notes = card["notes"]
    env = flags.env or notes.get("env")
    check_notes(notes, f"{folder}/card.json")
    if env is not None and flags.env is None and not flags.trust:
        check_trusted(str(env), f"{folder}/card.json", f"drl evaluate {flags.agent}")
    frame_stack = notes.get("frame_stack", 1)
    env_kwargs = notes.get("env_kwargs") if env == notes.get("env") else None
    if env is None:
        raise BadInput(f"{folder} does not name its environment; add --env ID")

    from drl.experiment.load_agent import load_agent

    agent = load_agent(flags.agent, which=flags.which)
    if flags.sampled and flags.temperature != 1.0:
        if not hasattr(agent, "temperature"):
            raise BadInput("--temperature is for agents with a policy; this one acts by action values")
        agent.temperature = flags.temperature
    result = _play(agent, env, flags, frame_stack, env_kwargs)
    if flags.json:
        print(json.dumps({"env": env, "agent": str(folder)} | result.summary()))
    else:
        print(f"{env}: {result.sentence()}")
    if flags.video:  # last: the numbers are there if it fails
        _film(agent, env, flags, folder, frame_stack, env_kwargs)
    return 0


def _film(agent: Agent, env: str, flags: Flags, folder: Path, frame_stack: int, env_kwargs: PlainDict | None) -> None:
    from drl.experiment.watch import film

    path = film(
        agent,
        env,
        stay_inside(folder.parent, _free_name(folder.parent / "videos", "evaluation", ".mp4")),
        flags.seed,
        explore=flags.sampled,
        frame_stack=frame_stack,
        env_kwargs=env_kwargs,
    )
    if path is None:
        raise BadInput(f"{env} cannot be drawn: it has no render mode 'rgb_array'")
    if not flags.json:
        print(f"video: {path}")


def _play(agent: Agent, env: str, flags: Flags, frame_stack: int, env_kwargs: PlainDict | None) -> "Evaluation":
    from drl.experiment.evaluation import Evaluation, evaluate
    from drl.experiment.watch import watch

    if flags.render or flags.step_by_step:
        if flags.json:
            raise BadInput("--json prints numbers only; leave out --render and --step-by-step")
        mode = "human" if flags.render else "ansi"
        episodes = watch(
            agent,
            env,
            mode,
            flags.episodes,
            flags.seed,
            explore=flags.sampled,
            frame_stack=frame_stack,
            env_kwargs=env_kwargs,
        )
        return Evaluation(episodes)
    return evaluate(
        agent,
        env,
        flags.episodes,
        flags.seed,
        explore=flags.sampled,
        frame_stack=frame_stack,
        env_kwargs=env_kwargs,
    )


def check_notes(notes: PlainDict, source: str) -> None:
    """Check the types of a card's notes about its environment."""
    stack = notes.get("frame_stack", 1)
    kinds = {"env": (str, type(None)), "env_kwargs": (dict, type(None))}
    wrong = [name for name, kind in kinds.items() if not isinstance(notes.get(name), kind)]
    if wrong or isinstance(stack, bool) or not isinstance(stack, int) or not 1 <= stack <= MOST_FRAMES:
        raise UnusableFile(f"{source} describes its environment wrongly, in {', '.join(wrong) or 'frame_stack'}")


def _free_name(folder: Path, stem: str, suffix: str) -> Path:
    """A file that does not exist yet."""
    numbers = (f"{stem}_{i}{suffix}" for i in range(1, 100_000))
    return next(folder / name for name in numbers if not (folder / name).exists())
