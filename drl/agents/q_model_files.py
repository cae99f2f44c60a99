"""Loads a plain `.pth` of a q-value model as an agent. The shapes in the file show its switches."""

import dataclasses
import io
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from drl.core.agent_files import check_finite
from drl.core.configs import NoSettings, QModelConfig
from drl.core.errors import BadInput, UnusableFile
from drl.core.pth_files import check_pth
from drl.core.safe_files import MOST_WEIGHTS, read_plain
from drl.core.specs import Array, EnvSpecs
from drl.envs.make_vec_env import make_env
from drl.envs.spaces import action_spec, obs_spec
from drl.settings.experiment import Experiment

if TYPE_CHECKING:
    import torch

    from drl.engines.torch.agents import QAgent

FLAGS = {"dueling": "--use_dueling", "noisy": "--use_noisy", "distributional": "--use_distributional"}


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
    content = _read(path)
    check_pth(content, path)
    try:
        state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        arrays = {name: _array(name, tensor) for name, tensor in state.items()}
    except Exception as error:  # torch raises many kinds of errors for foreign files
        message = " ".join(str(error).split())[:200]
        raise UnusableFile(f"{path} is not a file of plain tensors ({type(error).__name__}: {message})") from None
    check_finite(arrays, str(path))
    return arrays


def _read(path: Path) -> bytes:
    try:
        return read_plain(path, MOST_WEIGHTS)
    except OSError as error:
        raise UnusableFile(f"{path} cannot be read: {error.strerror or error}") from None


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
    found = {
        "dueling": "head.state_value.weight" in arrays,
        "noisy": "head.advantage.weight_sigma" in arrays,
        "distributional": atoms > 1,
    }
    asked = dataclasses.asdict(wanted) | {"distributional": wanted.distributional != "none"}
    if any(found[name] != asked[name] for name in found):
        switches = " ".join(FLAGS[name] for name in found if found[name]) or "none of the architecture switches"
        raise BadInput(f"{path} was trained with {switches}; evaluate it with the same")
    if found["distributional"] and atoms != wanted.num_atoms:
        expected = f"{num_actions} actions of {wanted.num_atoms} atoms"
        raise BadInput(f"{path} gives {outputs} numbers, not {expected}; check --num_atoms and --env_name")
