"""Models of the off-policy actor-critics: a policy, and an ensemble of critics Q(s, a).

The policy acts; the critics are only for learning. Critics of Discrete actions value all actions at once.
"""

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.configs import ActorCriticConfig, backbone_name, changed_config
from drl.core.settings import ActorCriticSettings
from drl.core.specs import ActionSpec, Distribution, ObsSpec, Specs
from drl.engines.jax.backbones import MLP, Backbone, Obs, first_weights, make_backbone
from drl.engines.jax.layers import BatchRenorm, Dense, Params, activation_of, dropped, named, part
from drl.engines.jax.models import Model, PolicyModel, QHead, make_policy_head, make_q_head, new_state
from drl.engines.numpy.layer_parts import Gain

if TYPE_CHECKING:
    from drl.engines.jax.model_state import ModelState

VECTORS = ("mlp", "simba")  # backbones that take observation and action as one vector


@dataclass(frozen=True)
class RenormMLP:
    """Fully connected layers; batch renormalization of the input and after every activation."""

    inputs: int
    hidden_sizes: tuple[int, ...]
    activation: str
    warmup: int
    dropout: float = 0.0  # share of the features behind every activation, in updates
    gain: Gain = field(default=None, compare=False)  # of the initial weights; irrelevant afterwards

    @property
    def features(self) -> int:
        return self.hidden_sizes[-1] if self.hidden_sizes else self.inputs

    @property
    def widths(self) -> list[int]:
        """Of the input and of every layer."""
        return [self.inputs, *self.hidden_sizes]

    def init(self, rng: np.random.Generator) -> Params:
        drawn: Params = {}
        for i, pair in enumerate(itertools.pairwise(self.widths)):
            drawn |= named(f"layers.{i}", Dense(*pair, self.gain).init(rng))
        for i, width in enumerate(self.widths):
            drawn |= named(f"norms.{i}", BatchRenorm(width, self.warmup).init(rng))
        return drawn

    def apply(self, params: Params, x: jax.Array) -> jax.Array:
        return self._forward(params, x, None)

    def apply_batch(self, params: Params, x: jax.Array) -> tuple[jax.Array, Params]:
        """With the batch's own statistics; also returns the new running ones."""
        running: Params = {}
        return self._forward(params, x, running), running

    def _forward(self, params: Params, x: jax.Array, running: Params | None) -> jax.Array:
        for i, width in enumerate(self.widths):
            if i:
                x = Dense(self.widths[i - 1], width, None).apply(part(params, f"layers.{i - 1}"), x)
                x = dropped(params, activation_of(self.activation)(x), self.dropout, i)
            norm, own = BatchRenorm(width, self.warmup), part(params, f"norms.{i}")
            if running is None:
                x = norm.apply(own, x)
            else:
                x, after = norm.apply_batch(own, x)
                running |= named(f"norms.{i}", after)
        return x


@dataclass(frozen=True)
class Critic:
    """Q(s, a): the observation, or an encoder's features of it, joined with the action, through a network of its own.

    `apply` returns what `QHead` does: `[B, A]` values or `[B, A, atoms]` logits or quantiles, with A = 1 for Box.
    """

    encoder: Backbone | None
    backbone: Backbone
    head: QHead

    def init(self, rng: np.random.Generator) -> Params:
        encoder = {} if self.encoder is None else named("encoder", self.encoder.init(rng))
        return encoder | named("backbone", self.backbone.init(rng)) | named("head", self.head.init(rng))

    def apply(self, params: Params, obs: Obs, action: jax.Array | None) -> jax.Array:
        features = self.backbone.apply(part(params, "backbone"), self._joined(params, obs, action))
        return self.head.apply(part(params, "head"), features)

    def apply_batch(self, params: Params, obs: Obs, action: jax.Array | None) -> tuple[jax.Array, Params]:
        """In training, batch renormalization uses the batch's own statistics; also returns the new running ones."""
        if not isinstance(self.backbone, RenormMLP):
            return self.apply(params, obs, action), {}
        joined = self._joined(params, obs, action)
        features, running = self.backbone.apply_batch(part(params, "backbone"), joined)
        return self.head.apply(part(params, "head"), features), named("backbone", running)

    def normed_layers(self) -> list[str]:
        """Names of the layers with a normalization behind them: their scale makes no difference to the values."""
        if isinstance(self.backbone, RenormMLP):
            return [f"backbone.layers.{i}" for i in range(len(self.backbone.hidden_sizes))]
        if isinstance(self.backbone, MLP) and self.backbone.layer_norm:
            return [f"backbone.{name}" for name in self.backbone.layers]
        return []

    def _joined(self, params: Params, obs: Obs, action: jax.Array | None) -> jax.Array:
        if self.encoder is None:
            x = jnp.reshape(obs, (len(obs), -1))
        else:
            x = self.encoder.apply(part(params, "encoder"), obs)
        return x if action is None else jnp.concatenate([x, action], axis=1)


@dataclass(frozen=True)
class ActorCritic:
    """`apply` is the policy: observations → parameters of its distribution."""

    actor: Model
    critic: Critic  # each of them
    num_critics: int
    variant: str
    distribution: str
    config: ActorCriticConfig | None = field(default=None, compare=False)  # what it was built from

    def init(self, rng: np.random.Generator) -> Params:
        drawn = named("actor", self.actor.init(rng))
        for number in range(self.num_critics):
            drawn |= named(f"critics.{number}", self.critic.init(rng))
        return drawn

    def apply(self, params: Params, obs: Obs) -> jax.Array:
        return self.actor.apply(part(params, "actor"), obs)

    @staticmethod
    def build(
        specs: Specs,
        config: ActorCriticConfig | None = None,
        *,
        deterministic: bool = False,  # for TD3 and DDPG
        seed: int | None = None,
        **settings: Unpack[ActorCriticSettings],
    ) -> "ModelState":
        """A new model with its parameters; see `PolicyModel.build`."""
        make = make_deterministic_actor_critic if deterministic else make_actor_critic
        config = changed_config(ActorCriticConfig, config, settings)
        return new_state(make(specs.obs_spec, specs.action_spec, config), specs, seed)

    def weights_normed(self, params: Params) -> Params:
        """`params` of the critics with the weights of every hidden feature scaled to norm 1."""
        layers = [
            f"critics.{number}.{name}" for number in range(self.num_critics) for name in self.critic.normed_layers()
        ]
        normed = dict(params)
        for layer in layers:
            name, axis = (f"{layer}.kernel", 0) if f"{layer}.kernel" in params else (f"{layer}.weight", 1)
            normed[name] = params[name] / jnp.linalg.norm(params[name], axis=axis, keepdims=True)
        return normed

    def q(self, params: Params, obs: Obs, action: jax.Array | None) -> jax.Array:
        """The critics' answers `[N, B, A]` or `[N, B, A, atoms]`; `action` is None for Discrete actions."""
        critics = (part(params, f"critics.{number}") for number in range(self.num_critics))
        return jnp.stack([self.critic.apply(own, obs, action) for own in critics])

    def q_batch(self, params: Params, obs: Obs, action: jax.Array | None) -> tuple[jax.Array, Params]:
        """The same in training; also the new running statistics of batch renormalization, by name."""
        answers: list[jax.Array] = []
        running: Params = {}
        for number in range(self.num_critics):
            answer, after = self.critic.apply_batch(part(params, f"critics.{number}"), obs, action)
            answers.append(answer)
            running |= named(f"critics.{number}", after)
        return jnp.stack(answers), running


def make_actor_critic(obs_spec: ObsSpec, action_spec: ActionSpec, config: ActorCriticConfig) -> ActorCritic:
    """With a squashed Gaussian policy for Box actions and a categorical one for Discrete actions."""
    kind = "tanh_gaussian" if action_spec.kind == "box" else "categorical"
    return _make("actor_critic", kind, obs_spec, action_spec, config)


def make_deterministic_actor_critic(
    obs_spec: ObsSpec, action_spec: ActionSpec, config: ActorCriticConfig
) -> ActorCritic:
    """The networks of DDPG and TD3."""
    return _make("deterministic_actor_critic", "deterministic", obs_spec, action_spec, config)


def _make(
    variant: str, kind: str, obs_spec: ObsSpec, action_spec: ActionSpec, config: ActorCriticConfig
) -> ActorCritic:
    backbone = make_backbone(config, obs_spec)
    head = make_policy_head(Distribution.on(action_spec, kind), backbone.features, config)
    critic = _critic(obs_spec, action_spec, config.critic)
    return ActorCritic(PolicyModel(backbone, head), critic, config.num_critics, variant, kind, config)


def _critic(obs_spec: ObsSpec, action_spec: ActionSpec, config: ActorCriticConfig) -> Critic:
    vector = not obs_spec.is_structured and backbone_name(config, obs_spec) in VECTORS and obs_spec.dtype != "uint8"
    encoder = None if vector else make_backbone(config, obs_spec)
    width = math.prod(obs_spec.shape) if encoder is None else encoder.features
    width += action_spec.entries if action_spec.kind == "box" else 0
    if config.batch_renorm:
        sizes = tuple(config.hidden_sizes)
        gain = first_weights(config)[1]
        backbone: Backbone = RenormMLP(width, sizes, config.activation, config.renorm_warmup, config.dropout, gain)
    else:
        behind = config if vector else replace(config, backbone="mlp", backbone_kwargs=())
        backbone = make_backbone(behind, ObsSpec("box", box_shape=(width,)))
    actions = action_spec.sizes[0] if action_spec.kind == "discrete" else 1
    return Critic(encoder, backbone, make_q_head(backbone.features, actions, config))
