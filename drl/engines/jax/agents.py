"""Agents: observation → action. They share a model state with their algorithm."""

from functools import partial
from pathlib import Path

import jax
import numpy as np

from drl.core.configs import QModelConfig
from drl.core.errors import BadInput
from drl.core.network_parts import ACTIVATIONS
from drl.core.specs import Array, PlainDict
from drl.core.state_files import write_pth
from drl.core.variants import PROBES
from drl.engines.jax import models
from drl.engines.jax.actor_critics import ActorCritic
from drl.engines.jax.backbones import MLP, Obs, Pixels, Simba, fields
from drl.engines.jax.layers import Tree, noise_for, part
from drl.engines.jax.model_state import ModelState, by_name, from_names
from drl.engines.jax.models import AnyModel, Model, Output, PolicyValueModel, QHead, architecture_of, is_plain
from drl.engines.numpy.acting import ModelAgent, PolicyActor, QActor
from drl.engines.numpy.exploration import AnyExploration, ExplorationConfig
from drl.engines.numpy.model_kinds import check_parameters
from drl.engines.numpy.networks import AnyLayer, PolicyNet, as_rows, mlp_forward, policy_net, q_net, value_layers


class JaxAgent(ModelAgent[ModelState]):
    """The base class of both agents: a model state, and files."""

    engine = "jax"
    model_state: ModelState

    def probe(self) -> Output:
        """The shapes of the model's output for `PROBES` observations, which show its variant."""
        zeros = fields(np.zeros((PROBES, *self.obs_spec.shape), self.obs_spec.dtype))
        return jax.eval_shape(self.model.apply, self.model_state.params, zeros)

    @property
    def model(self) -> AnyModel:
        """The network without its parameters."""
        return self.model_state.model

    def parameters(self) -> dict[str, Array]:
        return self.model_state.host

    def load_parameters(self, params: dict[str, Array], source: str) -> None:
        self.model_state.load(params, source)

    def architecture(self) -> PlainDict | None:
        return architecture_of(self.model, self.variant, self.obs_spec, self.action_spec)

    @classmethod
    def filled(cls, model: AnyModel, params: dict[str, Array], source: str, device: str) -> ModelState:
        fresh = model.init(np.random.default_rng(0))
        check_parameters(by_name(fresh), params, source)
        return ModelState(model, from_names(fresh, params), device)

    def save_policy_net(self, path: str | Path) -> None:
        """Write the policy as a plain state dict for PyTorch; read it with `torch.load(path, weights_only=True)`."""
        arrays = self.model_state.host
        if type(self.model) in (PolicyValueModel, ActorCritic):
            arrays = part(arrays, "actor")
        head = getattr(self.model, "head", None)
        if isinstance(head, QHead) and head.kind == "c51":
            arrays = arrays | {"head.support": np.asarray(head.support)}
        write_pth(path, arrays)


class PolicyAgent(PolicyActor, JaxAgent):
    """Acts by a policy: a sample from its distribution when it explores, else the mode."""

    def take(self, model: ModelState, exploration: ExplorationConfig | None) -> None:
        self.model_state = model
        self.exploration: AnyExploration | None = self.explore_by(exploration, model.model, self.probe)
        self._policy = model.derived(_numpy_policy)
        self._critic = model.derived(_numpy_critic)

    def dist_params(self, obs: Array) -> Array:
        net, seen = self._policy(), self.normalize(obs)
        return net(seen) if net else np.asarray(_policy(self.model, self.model_state.params, fields(seen)))

    def critic(self, obs: Array) -> Array:
        layers, seen = self._critic(), self.normalize(obs)
        if layers:
            return mlp_forward(layers, as_rows(seen))[:, 0]
        return np.asarray(_value(self.model, self.model_state.params, fields(seen)))

    def save_value_net(self, path: str | Path) -> None:
        """Write the critic as a plain state dict."""
        if not self.has_value:
            raise BadInput("this agent has a policy-only model; there is no value net to save")
        model, arrays = self.model, self.model_state.host
        write_pth(path, models.critic_params(model, arrays) if isinstance(model, PolicyValueModel) else arrays)


class QAgent(QActor, JaxAgent):
    """Acts by action values: the legal action of the highest value, modified by its exploration."""

    def take(self, model: ModelState, exploration: ExplorationConfig | None) -> None:
        self.model_state = model
        noisy = bool(noise_for(model.params, np.zeros))
        self.exploration: AnyExploration | None = self.explore_by(exploration, model.model, self.probe, noisy)
        self._config = _numpy_config(model.model)
        self._mean = model.derived(lambda state: q_net(state.host, self._config) if self._config else None)

    def q_values(self, obs: Array, noisy: bool = False) -> Array:
        params = self.model_state.params
        noise = noise_for(params, partial(self.rng.standard_normal, dtype=np.float32)) if noisy else {}
        seen, net = self.normalize(obs), self._mean()
        if self._config is None or net is None:
            return np.asarray(_q_values(self.model, params | noise if noise else params, fields(seen)))
        return q_net(self.model_state.host | noise, self._config)(seen) if noise else net(seen)


def _is_mlp(model: object) -> bool:
    """Whether `drl.engines.numpy` can run this part of a model; never true for custom code."""
    if not is_plain(model) or type(_bare(model.backbone)) not in (MLP, Simba):
        return False
    return ACTIVATIONS[_activation(model)].numpy is not None


def _bare(backbone: object) -> object:
    return backbone.backbone if type(backbone) is Pixels else backbone


def _activation(model: Model) -> str:
    backbone = _bare(model.backbone)
    assert isinstance(backbone, MLP | Simba)
    return backbone.activation if isinstance(backbone, MLP) else "relu"


def _numpy_policy(state: ModelState) -> PolicyNet | None:
    model = state.model
    actor = model.actor if isinstance(model, PolicyValueModel | ActorCritic) else model
    heads = (models.LogitsHead, models.GaussianHead, models.SquashedGaussianHead)
    if not isinstance(actor, Model) or not _is_mlp(actor) or type(actor.head) not in heads:
        return None
    return policy_net(state.host, _activation(actor))


def _numpy_critic(state: ModelState) -> list[AnyLayer] | None:
    if type(state.model) is not PolicyValueModel:
        return None
    critic = state.model.critic
    known = _is_mlp(critic) and type(critic.head) is models.ValueHead
    return value_layers(state.host, _activation(critic)) if known else None


def _numpy_config(model: object) -> QModelConfig | None:
    """The settings of an MLP's head for `q_net`; None for other models."""
    if not isinstance(model, Model) or not _is_mlp(model) or not isinstance(model.head, QHead):
        return None
    return QModelConfig(activation=_activation(model), **model.head.shape) if type(model.head) is QHead else None


# One program per model and number of observations.
_policy = jax.jit(models.policy_of, static_argnums=0)
_value = jax.jit(models.value_of, static_argnums=0)


@partial(jax.jit, static_argnums=0)
def _q_values(model: AnyModel, params: Tree, obs: Obs) -> jax.Array:
    answer: jax.Array = model.apply(params, obs)
    head = getattr(model, "head", None)
    return head.q_values(answer) if isinstance(head, QHead) else answer
