"""The agent: an observation in, an action out. It acts with the model state it shares with its algorithm."""

from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from drl.core.agent_files import StoredAgent, open_agent, save_agent
from drl.core.errors import BadInput, UnusableFile
from drl.core.normalize import ObsNormalizer
from drl.core.pth_files import write_pth
from drl.core.seeding import generator_state, restore_generator
from drl.core.specs import ActionSpec, ObsSpec
from drl.core.variants import PROBES
from drl.engines.jax.backbones import MLP, Pixels
from drl.engines.jax.heads import QHead
from drl.engines.jax.layers import Params, part
from drl.engines.jax.model_state import ModelState
from drl.engines.jax.models import MODEL_VARIANTS, Model, PolicyValueModel, architecture_of, check_parameters
from drl.engines.numpy.acting import Actor


class JaxAgent(Actor):
    """What all agents of this engine share: a model state, and files."""

    variant: str  # of the model it acts with

    def __init__(
        self,
        model_state: ModelState,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        normalizer: ObsNormalizer | None = None,
        rng: np.random.Generator | None = None,
    ):
        super().__init__(obs_spec, action_spec, normalizer, rng)
        self.model_state = model_state

    def probe(self) -> Any:
        """What the model's answer to a few observations looks like: what kind of model is it?"""
        probe = jax.ShapeDtypeStruct((PROBES, *self.obs_spec.shape), self.obs_spec.dtype)
        return jax.eval_shape(self.model_state.model.apply, self.model_state.params, probe)

    @property
    def model(self) -> Any:
        return self.model_state.model

    def save(self, folder: str | Path, **notes: Any) -> None:
        """Write the deployable agent: safetensors weights and a JSON card. `notes` (plain data) go on the card."""
        architecture = architecture_of(self.model, self.obs_spec, self.action_spec)
        save_agent(folder, "jax", self.variant, architecture, self, self.model_state.host, notes)

    @classmethod
    def load(cls, path: str | Path, model: Any = None, device: str = "cpu") -> Self:
        """Read what any engine's `save` wrote: an agent folder or the run folder around it. A custom model has to be
        given."""
        stored = open_agent(path)
        specs = (stored.obs_spec, stored.action_spec)
        if model is None:
            if stored.config is None:
                raise BadInput(f"{path} was saved with a model of your own; pass it: load(path, model=MyModel(...))")
            if stored.variant not in MODEL_VARIANTS:
                raise UnusableFile(f"{path} is an agent of an unknown kind, {stored.variant!r}")
            model = _rebuild(stored, path)
        check_parameters(model.init(np.random.default_rng(0)), stored.params, str(path))
        return cls(ModelState(model, stored.params, device), *specs, stored.normalizer)

    def state_dict(self) -> dict[str, Any]:
        """Everything that training changes about the agent, as plain data."""
        return {
            "model": {name: array.copy() for name, array in self.model_state.host.items()},
            "normalizer": None if self.normalizer is None else self.normalizer.state_dict(),
            "rng": generator_state(self.rng),
            "hidden_sizes": None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model_state.load(state["model"], "the checkpoint")
        if self.normalizer is not None:
            self.normalizer.load_state_dict(state["normalizer"])
        restore_generator(self.rng, state["rng"])

    def save_policy_net(self, path: str | Path) -> None:
        """What acts, as a plain state dict for PyTorch users; read it with `torch.load(path, weights_only=True)`."""
        arrays = part(self.model_state.host, "actor") if type(self.model) is PolicyValueModel else self.model_state.host
        head = getattr(self.model, "head", None)
        if isinstance(head, QHead) and head.kind == "c51":
            arrays = arrays | {"head.support": np.asarray(head.support)}
        write_pth(path, arrays)


def _rebuild(stored: StoredAgent, path: str | Path) -> Any:
    """The model that a card describes, without its weights."""
    try:
        return MODEL_VARIANTS[stored.variant](stored.obs_spec, stored.action_spec, stored.config)
    except Exception as error:  # the card may come from anybody
        raise UnusableFile(f"{path} describes a model that this drl cannot build ({error!r:.200})") from None


def is_mlp(model: Any) -> bool:
    """Whether `drl.engines.numpy.networks` can run this part of a model; never one with code of the user's own."""
    if type(model) is not Model:
        return False
    backbone = model.backbone.backbone if type(model.backbone) is Pixels else model.backbone
    return type(backbone) is MLP


def activation_of(model: Model) -> str:
    backbone = model.backbone.backbone if type(model.backbone) is Pixels else model.backbone
    return str(backbone.activation)


def _answer(model: Any, method: str, params: Params, obs: Any) -> Any:
    return getattr(model, method)(params, obs)


forward = jax.jit(_answer, static_argnums=(0, 1))  # one program per model, method and number of observations
