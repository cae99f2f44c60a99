"""Load an agent that any engine trained."""

import importlib.util
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drl.core.agent_files import check_finite, open_agent, read_agent
from drl.core.configs import plain_setting
from drl.core.contracts import Agent
from drl.core.errors import BadInput, MissingExtra, UnusableFile, did_you_mean, one_line, printable
from drl.core.golden_pairs import difference, pairs_from_json
from drl.core.safe_files import versions
from drl.core.specs import PlainDict
from drl.core.variants import agent_in, find_variant
from drl.runs.checkpoints import Checkpoints
from drl.runs.finished import RunLike, folder_of
from drl.runs.run_folder import KEPT, find_agent_folder, find_run

if TYPE_CHECKING:
    import torch

ENGINES = ("torch", "jax")  # each loads the agents of both


def load_agent(
    path: RunLike,
    model: object = None,
    device: "str | torch.device" = "cpu",
    engine: str | None = None,
    which: str | int | None = None,
    strict: bool = False,
) -> Agent:
    """Load an agent from its folder, a run, an experiment (its newest run), or a `.pth` file in a run's `models/`. Pass
    `model` if the model is a custom one.

    `which` selects an agent of a run: final, best (by mean return in training), best-evaluated, or the step of a
    checkpoint.
    `engine` is torch, jax or numpy (MLPs only, no framework needed). The default is the engine that saved the agent if
    it is installed, else the other one, else NumPy.
    If the agent does not reproduce its golden pairs, this warns, or raises with `strict`.
    """
    device_name: str = plain_setting(device)
    path = folder_of(path)
    if path.suffix == ".pth":
        if which is not None:
            raise BadInput(f"{path} is one model; leave out which, or name its run")
        return _from_pth(path, model, device_name, engine, strict)
    if which is not None and str(which) not in KEPT:
        final = load_agent(find_agent_folder(path, which), model, device_name, engine, strict=strict)
        return _at_step(path, str(which), final)
    path = find_agent_folder(path, which)
    card, _ = read_agent(path)
    if engine is None:
        engine = _first_installed(card["engine"], path)
    if engine == "numpy":
        if model is not None:
            raise BadInput("engine='numpy' runs only our own MLPs; a model of your own needs its engine")
        from drl.engines.numpy.agents import load_numpy_agent

        return _proven(load_numpy_agent(path), path, card, engine, strict)
    if engine not in ENGINES:
        raise BadInput(f"unknown engine {engine!r}; {did_you_mean(engine, [*ENGINES, 'numpy'])}")
    if importlib.util.find_spec(engine) is None:
        raise MissingExtra(f"engine {engine!r}", engine, engine)
    agent = agent_in(find_variant(card["variant"], path), engine).load(path, model, device_name)
    return _proven(agent, path, card, engine, strict)


def sample_actions(agent: Any, folder: Path, temperature: float = 1.0) -> None:
    """Prepare an agent for sampled actions; raise if it is deterministic."""
    if not hasattr(agent, "temperature"):
        if temperature != 1.0:
            raise BadInput("--temperature is for agents with a policy; this one acts by action values")
        if not getattr(open_agent(folder).config, "noisy", False):
            raise BadInput("--sampled is for agents with a policy; this one takes the action of the highest value")
    elif getattr(agent, "distribution", None) is not None and agent.distribution.kind == "deterministic":
        raise BadInput("--sampled is for random policies; the policy of this agent is deterministic")
    else:
        agent.temperature = temperature


def _proven(agent: Any, path: Path, card: PlainDict, engine: str, strict: bool) -> Any:
    """Return the agent with its notes after checking its golden pairs."""
    agent.notes = card["notes"]
    if "golden_pairs" not in card:  # an agent of an earlier version
        if strict:
            raise UnusableFile(f"{path} has no golden pairs: nothing shows that it acts as it did; leave out --strict")
        return agent
    try:
        pairs = pairs_from_json(card["golden_pairs"], agent.obs_spec, agent.action_spec)
    except Exception as error:  # the card is untrusted: parsing it can raise anything
        said = one_line(error)
        raise UnusableFile(f"the golden pairs of {path} do not fit its spaces ({said})") from None
    agent.golden_inputs = pairs.inputs
    if (differs := difference(agent, pairs)) is not None:
        said = f"{path} acts differently from its golden pairs: {differs} ({_then_and_now(card, engine)})"
        if strict:
            raise UnusableFile(said)
        warnings.warn(said, stacklevel=3)
    return agent


def _then_and_now(card: PlainDict, engine: str) -> str:
    """Return the versions that have changed since the agent was saved."""
    stored = card.get("versions")
    then = {"engine": card["engine"], **(stored if isinstance(stored, dict) else {})}
    now = {"engine": engine, **versions()}
    names = [name for name in now if then.get(name) != now[name]]
    listed = [", ".join(f"{name} {printable(str(side.get(name)))[:80]}" for name in names) for side in (then, now)]
    return f"saved with {listed[0]}; here {listed[1]}" if names else "saved with the same versions on the same platform"


def _from_pth(path: Path, model: object, device: str, engine: str | None, strict: bool) -> Any:
    """Load the newest agent of a run with the policy of a `.pth` file."""
    from drl.agents.q_model_files import read_pth

    run = path.absolute().parent.parent
    if not (run / "run.json").exists():
        raise BadInput(f"{path} has no card; expected a file in the folder models/ of a run, or an agent folder")
    policy = read_pth(path)
    agent = load_agent(run, model, device, engine, strict=strict)
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
    """Load the final agent of a run with the state of a checkpoint."""
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
