"""Models: a backbone that sees and a head that answers. They neither sample nor learn.

A model is configuration: a frozen dataclass with `init(rng) -> params` and the pure `apply(params, obs)`, hashable and
so a constant to the compiler. Three variants: policy-value `obs → (policy parameters, value)`, policy-only
`obs → policy parameters`, and q-value `obs → q`. Any hashable object with the same methods will do in their place.
"""

from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np

from drl.core.configs import ModelConfig, QModelConfig
from drl.core.errors import BadInput, UnusableFile
from drl.core.specs import ActionSpec, ObsSpec
from drl.engines.jax.backbones import MLP, Conv1d, NatureCNN, Pixels, make_backbone
from drl.engines.jax.heads import GaussianHead, LogitsHead, QHead, ValueHead, make_policy_head, make_q_head
from drl.engines.jax.layers import Params, named, part


@dataclass(frozen=True)
class Model:
    """Backbone + head.

    >>> model = Model(MLP((4,), hidden_sizes=(8,)), ValueHead(8))
    >>> params = model.init(np.random.default_rng(0))
    >>> sorted(params)
    ['backbone.0.bias', 'backbone.0.weight', 'head.bias', 'head.weight']
    >>> model.apply(params, np.zeros((3, 4), np.float32)).shape
    (3,)
    """

    backbone: Any  # a Backbone
    head: Any  # a Head

    def __post_init__(self) -> None:
        if self.backbone.features != self.head.features:
            raise BadInput(
                f"backbone gives {self.backbone.features} features but head expects {self.head.features}; "
                f"build the head with features={self.backbone.features}"
            )

    def init(self, rng: np.random.Generator) -> Params:
        return named("backbone", self.backbone.init(rng)) | named("head", self.head.init(rng))

    def apply(self, params: Params, obs: Any) -> jax.Array:
        features = self.backbone.apply(part(params, "backbone"), obs)
        answer: jax.Array = self.head.apply(part(params, "head"), features)
        return answer

    def policy(self, params: Params, obs: Any) -> jax.Array:
        """Of a policy-only model: the parameters of the policy."""
        return self.apply(params, obs)


@dataclass(frozen=True)
class PolicyValueModel:
    """An actor and a critic. With `shared` the critic has no backbone of its own and sees through the actor's."""

    actor: Model
    critic: Model
    shared: bool = False

    def __post_init__(self) -> None:
        if self.shared and self.actor.backbone != self.critic.backbone:
            raise BadInput("actor and critic share a backbone, so both must be built with the same one")

    def init(self, rng: np.random.Generator) -> Params:
        actor = named("actor", self.actor.init(rng))
        critic = named("head", self.critic.head.init(rng)) if self.shared else self.critic.init(rng)
        return actor | named("critic", critic)

    def apply(self, params: Params, obs: Any) -> tuple[jax.Array, jax.Array]:
        if not self.shared:
            return self.policy(params, obs), self.value(params, obs)
        features = self.actor.backbone.apply(part(params, "actor.backbone"), obs)
        policy = self.actor.head.apply(part(params, "actor.head"), features)
        return policy, self.critic.head.apply(part(params, "critic.head"), features)

    def policy(self, params: Params, obs: Any) -> jax.Array:
        """The parameters of the policy alone, as acting needs them."""
        return self.actor.apply(part(params, "actor"), obs)

    def value(self, params: Params, obs: Any) -> jax.Array:
        """The critic's word alone, as a bootstrap needs it."""
        return self.critic.apply(critic_params(self, params), obs)


def critic_params(model: PolicyValueModel, params: Params) -> Params:
    """The critic's parameters with a backbone, be it the actor's."""
    own = part(params, "critic")
    return own | named("backbone", part(params, "actor.backbone")) if model.shared else own


def make_policy_value_model(obs_spec: ObsSpec, action_spec: ActionSpec, config: ModelConfig) -> PolicyValueModel:
    actor = make_policy_model(obs_spec, action_spec, config)
    return PolicyValueModel(actor, Model(actor.backbone, ValueHead(actor.backbone.features)), config.shared)


def make_policy_model(obs_spec: ObsSpec, action_spec: ActionSpec, config: ModelConfig) -> Model:
    _refuse_recurrence(config)
    backbone = make_backbone(config, obs_spec)
    return Model(backbone, make_policy_head(action_spec, backbone.features, config.log_std_init))


def make_q_value_model(obs_spec: ObsSpec, action_spec: ActionSpec, config: QModelConfig) -> Model:
    if action_spec.kind != "categorical":
        raise BadInput(f"a q-value model needs a Discrete action space, got a {action_spec.kind} one; use ppo or a2c")
    backbone = make_backbone(config, obs_spec)
    return Model(backbone, make_q_head(backbone.features, action_spec.sizes[0], config))


# The one place where a variant's name becomes a model.
MODEL_VARIANTS: dict[str, Any] = {
    "policy_value": make_policy_value_model,
    "policy_only": make_policy_model,
    "q_value": make_q_value_model,
}


def known_variant(model: Any) -> str | None:
    """Which variant one of our own models is; None for a model of the user's own, which only its answer can tell."""
    if isinstance(model, PolicyValueModel):
        return "policy_value"
    if not isinstance(model, Model):
        return None
    if isinstance(model.head, LogitsHead | GaussianHead):
        return "policy_only"
    return "q_value" if isinstance(model.head, QHead) else None


def _refuse_recurrence(config: ModelConfig) -> None:
    recurrent = getattr(config, "recurrent", "none")
    if recurrent != "none":
        raise BadInput(f"recurrent is {recurrent!r}, which the JAX engine does not have; use --engine torch")


def check_parameters(expected: Params, given: Params, source: str) -> None:
    """Every name and shape must match."""
    if differing := sorted(expected.keys() ^ given.keys()):
        raise UnusableFile(f"{source} does not fit the model: {', '.join(differing[:4])} in one but not in the other")
    for name, array in expected.items():
        if array.shape != given[name].shape:
            shapes = f"{given[name].shape} in the file, {array.shape} in the model"
            raise UnusableFile(f"{source} does not fit the model: {name} is {shapes}")


def architecture_of(model: Any, obs_spec: ObsSpec, action_spec: ActionSpec) -> dict[str, Any] | None:
    """The `ModelConfig` that rebuilds this model, as plain data; None for a model of the user's own."""
    actor = model.actor if type(model) is PolicyValueModel else model
    if type(actor) is not Model:
        return None
    backbone = actor.backbone.backbone if type(actor.backbone) is Pixels else actor.backbone
    shape: dict[str, Any]
    if type(backbone) is MLP:
        shape = {"backbone": "mlp", "hidden_sizes": backbone.hidden_sizes, "activation": backbone.activation}
    elif type(backbone) is NatureCNN:
        shape = {"backbone": "cnn", "cnn_features": backbone.features}
    elif type(backbone) is Conv1d:
        shape = {"backbone": "conv1d", "hidden_sizes": (backbone.features,)}
    else:
        return None
    kind: type[ModelConfig | QModelConfig] = ModelConfig
    variant, head = "policy_only", actor.head
    if type(head) is QHead:
        variant, kind = "q_value", QModelConfig
        shape |= head.shape
    elif type(model) is PolicyValueModel:
        variant, shape["shared"] = "policy_value", model.shared
    if type(head) is GaussianHead:
        shape["log_std_init"] = head.log_std_init
    config = kind(**shape)
    return asdict(config) if MODEL_VARIANTS[variant](obs_spec, action_spec, config) == model else None
