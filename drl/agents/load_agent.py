"""Load an agent that any engine trained, from its folder or from a plain `.pth` of a q-value model."""

import dataclasses
import importlib.util
import io
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drl.core.agent_files import check_finite, open_agent, read_agent
from drl.core.configs import NoSettings, QModelConfig
from drl.core.contracts import Agent
from drl.core.errors import BadInput, MissingExtra, UnusableFile, did_you_mean, one_line, printable
from drl.core.golden_pairs import difference, pairs_from_json
from drl.core.safe_files import MOST_WEIGHTS, read_plain, versions
from drl.core.setting_rules import plain_setting
from drl.core.specs import Array, EnvSpecs, PlainDict
from drl.core.state_files import check_pth
from drl.core.variants import agent_in, find_variant
from drl.envs.make_vec_env import make_env
from drl.envs.spaces import action_spec, obs_spec
from drl.runs.folder.checkpoints import Checkpoints
from drl.runs.folder.finished import RunLike, folder_of
from drl.runs.folder.run_folder import KEPT, find_agent_folder, find_run
from drl.settings.experiment import Experiment

if TYPE_CHECKING:
    import torch

    from drl.engines.torch.agents import QAgent

ENGINES = ("torch", "jax")  # each loads the agents of both
FLAGS = {"dueling": "--use_dueling", "noisy": "--use_noisy", "distributional": "--use_distributional"}


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
        from drl.engines.numpy.acting import load_numpy_agent

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
    elif agent.distribution is not None and agent.distribution.kind == "deterministic":
        raise BadInput("--sampled is for random policies; the policy of this agent is deterministic")
    else:
        agent.temperature = temperature


def _proven(agent: Any, path: Path, card: PlainDict, engine: str, strict: bool) -> Any:
    """Return the agent with its notes after checking its golden pairs."""
    agent.notes = card["notes"]
    if "golden_pairs" not in card:  # it could not act on them when it was saved
        if strict:
            raise UnusableFile(f"{path} has no golden pairs: nothing shows that it acts as it did; leave out --strict")
        return agent
    try:
        pairs = pairs_from_json(card["golden_pairs"], agent.obs_spec, agent.action_spec)
    except Exception as error:  # the card is untrusted: parsing it can raise anything
        raise UnusableFile(f"the golden pairs of {path} do not fit its spaces ({one_line(error)})") from None
    agent.golden_inputs = pairs.inputs
    if (differs := difference(agent, pairs)) is not None:
        warning = f"{path} acts differently from its golden pairs: {differs} ({_then_and_now(card, engine)})"
        if strict:
            raise UnusableFile(warning)
        warnings.warn(warning, stacklevel=3)
    return agent


def _then_and_now(card: PlainDict, engine: str) -> str:
    """Return the versions that have changed since the agent was saved."""
    stored = card.get("versions")
    then = {"engine": card["engine"], **(stored if isinstance(stored, dict) else {})}
    now = {"engine": engine, **versions()}
    names = [name for name in now if then.get(name) != now[name]]
    if not names:
        return "saved with the same versions on the same platform"
    listed = [", ".join(f"{name} {printable(str(side.get(name)))[:80]}" for name in names) for side in (then, now)]
    return f"saved with {listed[0]}; here {listed[1]}"


def _from_pth(path: Path, model: object, device: str, engine: str | None, strict: bool) -> Any:
    """Load the newest agent of a run with the policy of a `.pth` file."""
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


def load_q_agent(path: Path, experiment: Experiment, asked: Collection[str] = ()) -> "QAgent":
    """The agent in `path`, for the environment and with the switches of `experiment`. Raises if they do not fit.

    A C51 file contains its support. Settings named in `asked` (`num_atoms`, `v_min`, `v_max`) must match it.
    """
    from drl.engines.torch.agents import QAgent
    from drl.engines.torch.models import load_parameters, make_q_value_model

    arrays = read_pth(path)
    run = experiment.run
    with make_env(run.env_config) as env:
        specs = EnvSpecs(obs_spec(env.observation_space), action_spec(env.action_space))
    config, support = experiment.model, arrays.pop("head.support", None)
    if support is not None and config.distributional == "c51" and support.ndim == 1 and len(support) >= 2:
        own = {"num_atoms": len(support), "v_min": float(support[0]), "v_max": float(support[-1])}
        for name, value in own.items():
            if name in asked and getattr(config, name) != value:
                raise BadInput(f"{path} was trained with --{name} {value:g}; leave out --{name}")
        config = dataclasses.replace(config, **own)
    _check_switches(arrays, specs.action_spec.sizes[0] if specs.action_spec.sizes else 0, config, path)
    model = make_q_value_model(specs.obs_spec, specs.action_spec, config)
    load_parameters(model, arrays, str(path))
    return QAgent(model, specs, exploration=NoSettings())


def read_pth(path: Path) -> dict[str, Array]:
    """The arrays in a plain `.pth` file, after checking it. Needs torch."""
    import torch

    if not path.exists():
        raise BadInput(f"{path} does not exist; training prints where the best model was saved")
    try:
        content = read_plain(path, MOST_WEIGHTS)
    except OSError as error:
        raise UnusableFile(f"{path} cannot be read: {error.strerror or error}") from None
    check_pth(content, path)
    try:
        state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        arrays = {name: _array(name, tensor) for name, tensor in state.items()}
    except Exception as error:  # torch raises many kinds of errors for foreign files
        raise UnusableFile(f"{path} is not a file of plain tensors ({one_line(error)})") from None
    check_finite(arrays, str(path))
    return arrays


def _array(name: object, tensor: "torch.Tensor") -> Array:
    """A tensor as an array. Refuses one larger than its storage: a few repeated bytes could claim any size."""
    if not isinstance(name, str) or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError(f"{name!r} is not a plain tensor")
    return tensor.numpy()


def _check_switches(arrays: dict[str, Array], num_actions: int, wanted: QModelConfig, path: Path) -> None:
    if "head.advantage.weight" not in arrays or arrays["head.advantage.weight"].ndim != 2:
        raise BadInput(f"{path} is not a q-value model: it has no head.advantage.weight")
    outputs = arrays["head.advantage.weight"].shape[0]
    if not num_actions or outputs % num_actions:
        raise BadInput(f"{path} outputs {outputs} numbers, which does not fit {num_actions} actions; check --env_name")
    atoms = outputs // num_actions
    stored = {
        "dueling": "head.state_value.weight" in arrays,
        "noisy": "head.advantage.weight_sigma" in arrays,
        "distributional": atoms > 1,
    }
    asked = dataclasses.asdict(wanted) | {"distributional": wanted.distributional != "none"}
    if any(stored[name] != asked[name] for name in stored):
        switches = " ".join(FLAGS[name] for name in stored if stored[name]) or "none of the architecture switches"
        raise BadInput(f"{path} was trained with {switches}; evaluate it with the same")
    if stored["distributional"] and atoms != wanted.num_atoms:
        expected = f"{num_actions} actions of {wanted.num_atoms} atoms"
        raise BadInput(f"{path} gives {outputs} numbers, not {expected}; check --num_atoms and --env_name")
