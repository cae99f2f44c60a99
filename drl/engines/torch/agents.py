"""The agent: an observation in, an action out. It owns its model and its normaliser, no optimizer, no algorithm."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from drl.core import distributions
from drl.core.agent_files import read_agent, write_agent
from drl.core.configs import ModelConfig
from drl.core.errors import BadInput
from drl.core.mlp_forward import Layer, mlp_forward
from drl.core.normalise import ObsNormaliser
from drl.core.seeding import generator_state, restore_generator
from drl.core.specs import ActionSpec, Array, ObsSpec
from drl.engines.torch.backbones import MLP
from drl.engines.torch.heads import GaussianHead, LogitsHead
from drl.engines.torch.models import (
    MODEL_VARIANTS,
    Model,
    PolicyValueModel,
    architecture_of,
    load_parameters,
    parameters_by_name,
)


class PolicyAgent:
    """Acts by a policy: a policy-value or a policy-only model.

    `act` takes what the environment hands out, one observation or a batch, and returns what it accepts.
    `decide` is its inner half, for training: encoded observations in, actions in the policy's own units out.
    """

    def __init__(
        self,
        model: nn.Module,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        normaliser: ObsNormaliser | None = None,
        rng: np.random.Generator | None = None,
    ):
        self.model, self.normaliser = model, normaliser
        self.obs_spec, self.action_spec = obs_spec, action_spec
        self.rng = rng or np.random.default_rng()
        self.temperature = 1.0  # of exploring actions: below 1 bolder, above 1 more random
        self.has_value = isinstance(model, PolicyValueModel) or hasattr(model, "critic")
        self._first_parameter = next(model.parameters())
        self._numpy_net: tuple[int, list[Layer], Array | None] | None = None

    def act(self, obs: Any, explore: bool = False) -> Array:
        """`explore=False` is evaluation and deployment: the most likely action."""
        single = self.obs_spec.is_single(obs)
        encoded = self.obs_spec.encode_one(obs)[None] if single else self.obs_spec.encode(obs)
        action = self.action_spec.to_env(self.decide(encoded, explore))
        return action[0] if single else action

    def decide(self, obs: Array, explore: bool = False) -> Array:
        params = self.policy_params(obs)
        if explore:
            return distributions.sample(self.action_spec, params, self.rng, self.temperature)
        return distributions.mode(self.action_spec, params)

    def policy_params(self, obs: Array) -> Array:
        """Logits, or means and log deviations `[N, P]`, of encoded observations."""
        obs = self.normalise(obs)
        net = self._numpy_policy()
        if net is not None:
            answer = mlp_forward(net[1], obs)
            return answer if net[2] is None else np.concatenate([answer, np.broadcast_to(net[2], answer.shape)], 1)
        with torch.no_grad():
            params: Array = self._policy(torch.from_numpy(np.ascontiguousarray(obs)).to(self.device)).cpu().numpy()
        return params

    def probabilities(self, obs: Array) -> list[Array]:
        """What the policy thinks of encoded observations, for people: see `distributions.probabilities`."""
        return distributions.probabilities(self.action_spec, self.policy_params(obs))

    def value(self, obs: Array) -> Array:
        """The critic's estimate for encoded observations `[N]`."""
        if not self.has_value:
            raise BadInput("this agent has a policy-only model; value() needs a policy-value model")
        with torch.no_grad():
            answer: Array = self.model(torch.from_numpy(self.normalise(obs)).to(self.device))[1].cpu().numpy()
        return answer

    def normalise(self, obs: Array) -> Array:
        return obs if self.normaliser is None else self.normaliser(obs)

    @property
    def device(self) -> torch.device:
        return self._first_parameter.device

    def save(self, folder: str | Path, **notes: Any) -> None:
        """Write the deployable agent: safetensors weights and a JSON card. `notes` (plain data) go on the card."""
        arrays = {f"model.{name}": t.detach().cpu().numpy() for name, t in parameters_by_name(self.model).items()}
        card: dict[str, Any] = {
            "engine": "torch",
            "variant": "policy_value" if self.has_value else "policy_only",
            "architecture": architecture_of(self.model, self.obs_spec, self.action_spec),
            "obs_spec": self.obs_spec.to_json(),
            "action_spec": self.action_spec.to_json(),
            "normaliser": None,
        }
        if self.normaliser is not None:
            state = self.normaliser.state_dict()
            arrays |= {f"normaliser.{name}": np.asarray(state.pop(name)) for name in ("mean", "squares")}
            card["normaliser"] = state
        write_agent(Path(folder), card | {"notes": notes}, arrays)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module | None = None, device: str = "cpu") -> "PolicyAgent":
        """Read what `save` wrote: an agent folder or the run folder around it. A custom model has to be given."""
        card, arrays = read_agent(path)
        obs_spec, action_spec = ObsSpec.from_json(card["obs_spec"]), ActionSpec.from_json(card["action_spec"])
        if model is None:
            if card["architecture"] is None:
                raise BadInput(f"{path} was saved with a model of your own; pass it: load(path, model=MyModel(...))")
            config = ModelConfig(**card["architecture"] | {"hidden": tuple(card["architecture"]["hidden"])})
            model = MODEL_VARIANTS[card["variant"]](obs_spec, action_spec, config)
        weights = {name.removeprefix("model."): arrays[name] for name in arrays if name.startswith("model.")}
        load_parameters(model, weights, str(path))
        normaliser = None
        if card["normaliser"] is not None:
            normaliser = ObsNormaliser(obs_spec.shape)
            moments = {name: arrays[f"normaliser.{name}"] for name in ("mean", "squares")}
            normaliser.load_state_dict(card["normaliser"] | moments)
        return cls(model.to(device), obs_spec, action_spec, normaliser)

    def state_dict(self) -> dict[str, Any]:
        """Everything that training changes about the agent, as plain data."""
        return {
            "model": {name: t.detach().cpu().numpy().copy() for name, t in parameters_by_name(self.model).items()},
            "normaliser": None if self.normaliser is None else self.normaliser.state_dict(),
            "rng": generator_state(self.rng),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_parameters(self.model, state["model"], "the checkpoint")
        if self.normaliser is not None:
            self.normaliser.load_state_dict(state["normaliser"])
        restore_generator(self.rng, state["rng"])

    def save_policy_net(self, path: Any) -> None:
        """The policy as a plain state dict, for PyTorch users; read it with `torch.load(path, weights_only=True)`."""
        torch.save(_plain(getattr(self.model, "actor", self.model)), path)

    def save_value_net(self, path: Any) -> None:
        """The critic as a plain state dict."""
        if not self.has_value:
            raise BadInput("this agent has a policy-only model; there is no value net to save")
        torch.save(_plain(getattr(self.model, "critic", self.model)), path)

    def _policy(self, obs: torch.Tensor) -> torch.Tensor:
        if isinstance(self.model, PolicyValueModel):
            return self.model.actor(obs)
        answer = self.model(obs)
        return answer[0] if isinstance(answer, tuple) else answer

    def _numpy_policy(self) -> tuple[int, list[Layer], Array | None] | None:
        """The policy as NumPy views of the torch parameters, found again whenever these have moved."""
        where = self._first_parameter.data_ptr()
        if self._numpy_net is None or self._numpy_net[0] != where:
            self._numpy_net = (where, *(numpy_views(self.model) or ([], None)))
        return self._numpy_net if self._numpy_net[1] else None


def numpy_views(model: nn.Module) -> tuple[list[Layer], Array | None] | None:
    """An MLP policy's layers (and log deviations) as NumPy arrays that share memory with torch; None for others."""
    actor = model.actor if isinstance(model, PolicyValueModel) else model
    if not isinstance(actor, Model) or not isinstance(actor.backbone, MLP) or _device_of(actor).type != "cpu":
        return None
    layers = list(actor.backbone)
    if not isinstance(actor.head, LogitsHead | GaussianHead) or any(isinstance(x, nn.Flatten) for x in layers):
        return None
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    log_std = actor.head.log_std.detach().numpy() if isinstance(actor.head, GaussianHead) else None
    last = actor.head.mean if isinstance(actor.head, GaussianHead) else actor.head
    names = [actor.backbone.activation] * len(linears) + ["identity"]
    pairs = zip([*linears, last], names, strict=True)
    return [(lin.weight.detach().numpy().T, lin.bias.detach().numpy(), name) for lin, name in pairs], log_std


def _device_of(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


def _plain(module: nn.Module) -> dict[str, torch.Tensor]:
    """A state dict of tensors that own their memory: views of one flat tensor would drag all of it into the file."""
    return {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}
