"""Load an agent, whatever engine trained it."""

import importlib.util
from pathlib import Path
from typing import Any

from drl.core.agent_files import read_agent
from drl.core.errors import BadInput, MissingExtra, UnusableFile, did_you_mean
from drl.core.specs import PlainDict
from drl.core.variants import agent_in, find_variant
from drl.experiment.run_folder import find_agent_folder

ENGINES = ("torch", "jax")  # each loads agents of both


def load_agent(path: str | Path, model: object = None, device: str = "cpu", engine: str | None = None) -> Any:
    """The agent in an agent folder, a run, or the newest run of an experiment. Pass `model` if it is a custom one.

    `engine` is torch, jax or numpy (MLPs only, no framework needed). The default is the engine that wrote the agent if
    it is installed, else the other one, else NumPy.
    """
    path = find_agent_folder(path)
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


def _first_installed(written_by: str, path: str | Path) -> str:
    if written_by not in ENGINES:
        raise UnusableFile(f"{path} was saved by the {written_by!r} engine, which this version cannot load")
    wanted = [written_by, *(name for name in ENGINES if name != written_by)]
    return next((name for name in wanted if importlib.util.find_spec(name) is not None), "numpy")
