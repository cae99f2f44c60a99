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
    """The agent in an agent folder, a run, or the newest run of an experiment. Pass `model` if it is a custom one.

    `which` chooses among those that a run keeps: final, best (by the window of training), best-evaluated, or the step
    of a checkpoint.
    `engine` is torch, jax or numpy (MLPs only, no framework needed). The default is the engine that wrote the agent if
    it is installed, else the other one, else NumPy.
    """
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
