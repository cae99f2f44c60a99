"""Load an agent, whatever engine trained it."""

import importlib.util
from pathlib import Path
from typing import Any

from drl.core.agent_files import check_finite, read_agent
from drl.core.errors import BadInput, MissingExtra, UnusableFile, did_you_mean
from drl.core.specs import PlainDict
from drl.core.variants import agent_in, find_variant
from drl.experiment.checkpoints import Checkpoints
from drl.experiment.run_folder import KEPT, find_agent_folder, find_run

ENGINES = ("torch", "jax")  # each loads agents of both


def load_agent(
    path: str | Path,
    model: object = None,
    device: str = "cpu",
    engine: str | None = None,
    which: str | int | None = None,
) -> Any:
    """The agent in an agent folder, a run, the newest run of an experiment, or a `.pth` file in a run's `models/`. Pass
    `model` if it is a custom one.

    `which` chooses among those that a run keeps: final, best (by the window of training), best-evaluated, or the step
    of a checkpoint.
    `engine` is torch, jax or numpy (MLPs only, no framework needed). The default is the engine that wrote the agent if
    it is installed, else the other one, else NumPy.
    """
    if Path(path).suffix == ".pth":
        if which is not None:
            raise BadInput(f"{path} is one model; leave out which, or name its run")
        return _from_pth(Path(path), model, device, engine)
    if which is not None and str(which) not in KEPT:
        return _at_step(path, str(which), load_agent(find_agent_folder(path, which), model, device, engine))
    path = find_agent_folder(path, which)
    card, _ = read_agent(path)
    if engine is None:
        engine = _first_installed(card["engine"], path)
    if engine == "numpy":
        if model is not None:
            raise BadInput("engine='numpy' runs only our own MLPs; a model of your own needs its engine")
        from drl.engines.numpy.agents import load_numpy_agent

        return _with_notes(load_numpy_agent(path), card)
    if engine not in ENGINES:
        raise BadInput(f"unknown engine {engine!r}; {did_you_mean(engine, [*ENGINES, 'numpy'])}")
    if importlib.util.find_spec(engine) is None:
        raise MissingExtra(f"engine {engine!r}", engine, engine)
    return _with_notes(agent_in(find_variant(card["variant"], path), engine).load(path, model, device), card)


def _with_notes(agent: Any, card: PlainDict) -> Any:
    agent.notes = card["notes"]
    return agent


def _from_pth(path: Path, model: object, device: str, engine: str | None) -> Any:
    """The newest agent of a run with the policy of a `.pth` file."""
    from drl.experiment.q_model_files import read_pth

    run = path.absolute().parent.parent
    if not (run / "run.json").exists():
        raise BadInput(f"{path} has no card; expected a file in the folder models/ of a run, or an agent folder")
    policy = read_pth(path)
    agent = load_agent(run, model, device, engine)
    state = agent.state_dict()
    own = state["model"]
    renamed = {f"actor.{name}" if f"actor.{name}" in own else name: array for name, array in policy.items()}
    acts = {name for name in own if name.startswith("actor.")} or own.keys()
    for name in acts | renamed.keys():
        if name not in own or name not in renamed or renamed[name].shape != own[name].shape:
            raise BadInput(f"{path} is not a policy of the agent in {run}: they differ in {name}")
    agent.load_state_dict(state | {"model": own | renamed})
    return agent


def _at_step(run: str | Path, step: str, agent: Any) -> Any:
    """The final agent of a run, brought back to a checkpoint."""
    if not hasattr(agent, "load_state_dict"):
        raise BadInput("a checkpoint needs torch or jax; NumPy alone runs the final, best and best-evaluated agent")
    state = Checkpoints(find_run(run) / "checkpoints").load(int(step))["trainer"]["agent"]
    check_finite(state["model"], f"the checkpoint of {run} at step {step}")
    agent.load_state_dict(state | {"rnn_state": None})
    return agent


def _first_installed(written_by: str, path: str | Path) -> str:
    if written_by not in ENGINES:
        raise UnusableFile(f"{path} was saved by the {written_by!r} engine, which this version cannot load")
    wanted = [written_by, *(name for name in ENGINES if name != written_by)]
    return next((name for name in wanted if importlib.util.find_spec(name) is not None), "numpy")
