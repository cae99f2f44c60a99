"""Models: a backbone and a head. They neither sample nor learn.

A model is configuration: `init(rng)` gives parameters, `apply(params, obs)` is pure. Three variants: policy-value
`obs → (distribution parameters, value)`, policy-only `obs → distribution parameters`, and q-value `obs → q`. Every
hashable object with these two methods is a model; its parameters may be any pytree; see `FlaxModel`.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.configs import ActorCriticConfig, AnyModelConfig, ModelConfig, QModelConfig, changed_config
from drl.core.errors import BadInput
from drl.core.network_parts import HEADS, part_maker
from drl.core.seeding import seeds_of
from drl.core.settings import ModelSettings, QModelSettings
from drl.core.specs import LOG_STD_RANGE, ActionSpec, Array, Distribution, ObsSpec, PlainDict, Specs
from drl.core.variants import VARIANTS, maker_in
from drl.engines.jax.backbones import Backbone, Obs, make_backbone
from drl.engines.jax.layers import Dense, Params, Tree, named, part
from drl.engines.numpy import model_kinds
from drl.engines.numpy.layer_parts import POLICY_GAIN, Gain, gain_of

if TYPE_CHECKING:
    from drl.engines.jax.model_state import ModelState

# ── heads: features → distribution parameters, or values. Configuration only, as backbones are ────────────────────


class Head(Protocol):
    """From features to outputs: a configuration; its parameters are an argument."""

    @property
    def features(self) -> int:
        """Width of its input."""

    def init(self, rng: np.random.Generator) -> Params:
        """First parameters."""

    def apply(self, params: Params, features: jax.Array) -> jax.Array:
        """Outputs of a batch of features."""


@dataclass(frozen=True)
class LogitsHead(model_kinds.AnyLogitsHead):
    """Logits for categorical, multi-categorical (concatenated) and Bernoulli policies."""

    features: int
    num_params: int
    gain: Gain = field(default=POLICY_GAIN, compare=False)  # of the initial weights; irrelevant afterwards

    def init(self, rng: np.random.Generator) -> Params:
        return Dense(self.features, self.num_params, self.gain).init(rng)

    def apply(self, params: Params, features: jax.Array) -> jax.Array:
        return Dense(self.features, self.num_params).apply(params, features)


@dataclass(frozen=True)
class GaussianHead(model_kinds.AnyPolicyHead):
    """Means from the features, and state-independent log standard deviations; concatenated."""

    features: int
    entries: int
    log_std_init: float = 0.0
    gain: Gain = field(default=POLICY_GAIN, compare=False)  # of the initial weights; irrelevant afterwards

    def init(self, rng: np.random.Generator) -> Params:
        log_std = np.full(self.entries, self.log_std_init, np.float32)
        return named("mean", Dense(self.features, self.entries, self.gain).init(rng)) | {"log_std": log_std}

    def apply(self, params: Params, features: jax.Array) -> jax.Array:
        mean = Dense(self.features, self.entries).apply(part(params, "mean"), features)
        return jnp.concatenate([mean, jnp.broadcast_to(params["log_std"], mean.shape)], axis=-1)


@dataclass(frozen=True)
class SquashedGaussianHead(model_kinds.AnySquashedHead):
    """Means and log standard deviations, both from the features; concatenated. For actions squashed by tanh."""

    features: int
    entries: int
    gain: Gain = field(default=POLICY_GAIN, compare=False)  # of the initial weights; irrelevant afterwards

    def init(self, rng: np.random.Generator) -> Params:
        layer = Dense(self.features, self.entries, self.gain)
        return named("mean", layer.init(rng)) | named("log_std", layer.init(rng))

    def apply(self, params: Params, features: jax.Array) -> jax.Array:
        layer = Dense(self.features, self.entries)
        mean, log_std = (layer.apply(part(params, name), features) for name in ("mean", "log_std"))
        return jnp.concatenate([mean, jnp.clip(log_std, *LOG_STD_RANGE)], axis=-1)


@dataclass(frozen=True)
class ValueHead:
    """One number per state."""

    features: int
    gain: Gain = field(default=1.0, compare=False)  # of the initial weights; irrelevant afterwards

    def init(self, rng: np.random.Generator) -> Params:
        return Dense(self.features, 1, self.gain).init(rng)

    def apply(self, params: Params, features: jax.Array) -> jax.Array:
        return Dense(self.features, 1).apply(params, features).squeeze(-1)


@dataclass(frozen=True)
class QHead(model_kinds.AnyQHead):
    """Action values, plain or with any of: dueling streams, a distribution over returns, noisy layers.

    `apply` gives `[B, A]` action values, or `[B, A, atoms]` logits (c51) or quantiles (qr); `q_values` turns
    either into expected returns. Dueling: V and A have one layer each, and Q = V + A − mean A per atom.
    """

    features: int
    num_actions: int
    dueling: bool = False
    sigma: float = 0.0  # of noisy layers; 0: plain ones
    kind: str = "none"  # none · c51 · qr
    num_atoms: int = 51
    v_min: float = -10.0
    v_max: float = 10.0
    gain: Gain = field(default=None, compare=False)  # of the initial weights; irrelevant afterwards

    @property
    def atoms(self) -> int:
        """Numbers per action."""
        return 1 if self.kind == "none" else self.num_atoms

    @property
    def shape(self) -> PlainDict:
        """Its settings in a QModelConfig."""
        noise = {"noisy": True, "noisy_sigma": self.sigma} if self.sigma else {}
        same = {name: getattr(self, name) for name in ("dueling", "num_atoms", "v_min", "v_max")}
        return same | noise | {"distributional": self.kind}

    @property
    def support(self) -> Array:
        """Returns that the atoms of C51 stand for."""
        return np.linspace(self.v_min, self.v_max, self.atoms, dtype=np.float32)

    @property
    def layers(self) -> dict[str, Dense]:
        """Its linear layers by name."""
        layers = {"advantage": Dense(self.features, self.num_actions * self.atoms, self.gain, self.sigma)}
        value = Dense(self.features, self.atoms, self.gain, self.sigma)
        return layers | ({"state_value": value} if self.dueling else {})

    def init(self, rng: np.random.Generator) -> Params:
        drawn: Params = {}
        for name, layer in self.layers.items():
            drawn |= named(name, layer.init(rng))
        return drawn

    def apply(self, params: Params, features: jax.Array) -> jax.Array:
        answers = {name: layer.apply(part(params, name), features) for name, layer in self.layers.items()}
        answer = answers["advantage"]
        if self.kind != "none":
            answer = answer.reshape(-1, self.num_actions, self.atoms)
        if self.dueling:
            value = answers["state_value"].reshape(-1, 1, *answer.shape[2:])
            answer = answer - answer.mean(axis=1, keepdims=True) + value
        return answer

    def q_values(self, answer: jax.Array) -> jax.Array:
        """Expected returns from the output of `apply`, for all actions `[B, A]` or for one each `[B]`."""
        if self.kind == "c51":
            return (jax.nn.softmax(answer, axis=-1) * self.support).sum(axis=-1)
        return answer.mean(axis=-1) if self.kind == "qr" else answer


def make_policy_head(distribution: Distribution, features: int, config: ModelConfig | ActorCriticConfig) -> Head:
    """The head that outputs the parameters of a distribution."""
    if config.head != "auto":
        head: Head = part_maker(HEADS, config.head, "jax")(features, distribution, config)
        return head
    gain = gain_of(config.init, POLICY_GAIN, POLICY_GAIN)
    if distribution.kind == "gaussian":
        assert isinstance(config, ModelConfig)
        return GaussianHead(features, distribution.entries, config.log_std_init, gain)
    if distribution.kind == "tanh_gaussian":
        return SquashedGaussianHead(features, distribution.entries, gain)
    return LogitsHead(features, distribution.num_params, gain)


def make_q_head(features: int, num_actions: int, config: QModelConfig | ActorCriticConfig) -> QHead:
    """A head of action values, dueling or distributional as the config says."""
    switches = (config.dueling, config.sigma, config.distributional)
    support, gain = (config.num_atoms, config.v_min, config.v_max), gain_of(config.init, None, 1.0)
    return QHead(features, num_actions, *switches, *support, gain)


# ── models ────────────────────────────────────────────────────────────────────────────────────────────────────────


Output = Any  # of a model: an array, or (distribution parameters, values)


class AnyModel(Protocol):
    """A model of ours or a custom one. It must be hashable: it is a static argument of compiled functions."""

    def init(self, rng: np.random.Generator) -> Tree:
        """First parameters."""

    def apply(self, params: Tree, obs: Obs) -> Output:
        """Outputs of a batch of observations."""


@dataclass(frozen=True)
class Model(model_kinds.AnyHeadModel):
    """Backbone + head.

    >>> from drl.engines.jax.backbones import MLP
    >>> model = Model(MLP((4,), hidden_sizes=(8,)), ValueHead(8))
    >>> params = model.init(np.random.default_rng(0))
    >>> sorted(params)
    ['backbone.0.bias', 'backbone.0.weight', 'head.bias', 'head.weight']
    >>> model.apply(params, np.zeros((3, 4), np.float32)).shape
    (3,)
    """

    backbone: Backbone
    head: Head
    config: AnyModelConfig | None = field(default=None, compare=False)  # what it was built from

    def __post_init__(self) -> None:
        if self.backbone.features != self.head.features:
            raise BadInput(
                f"backbone gives {self.backbone.features} features but head expects {self.head.features}; "
                f"build the head with features={self.backbone.features}"
            )

    def init(self, rng: np.random.Generator) -> Params:
        return named("backbone", self.backbone.init(rng)) | named("head", self.head.init(rng))

    def apply(self, params: Params, obs: Obs) -> jax.Array:
        features = self.backbone.apply(part(params, "backbone"), obs)
        answer: jax.Array = self.head.apply(part(params, "head"), features)
        return answer

    def policy(self, params: Params, obs: Obs) -> jax.Array:
        """The distribution parameters of a policy-only model."""
        return self.apply(params, obs)


@dataclass(frozen=True)
class PolicyModel(Model):
    """A policy alone."""

    @staticmethod
    def build(
        specs: Specs, config: ModelConfig | None = None, *, seed: int | None = None, **settings: Unpack[ModelSettings]
    ) -> "ModelState":
        """A new model with its parameters, for environments or their specs. `settings` are fields of the config;
        `seed` draws the parameters, by default the environments' own."""
        config = changed_config(ModelConfig, config, settings)
        return new_state(make_policy_model(specs.obs_spec, specs.action_spec, config), specs, seed)


@dataclass(frozen=True)
class QModel(Model):
    """A value for every action of a Discrete action space."""

    @staticmethod
    def build(
        specs: Specs, config: QModelConfig | None = None, *, seed: int | None = None, **settings: Unpack[QModelSettings]
    ) -> "ModelState":
        """A new model with its parameters; see `PolicyModel.build`."""
        config = changed_config(QModelConfig, config, settings)
        return new_state(make_q_value_model(specs.obs_spec, specs.action_spec, config), specs, seed)


def is_plain(model: object) -> TypeGuard[Model]:
    """Whether a model is backbone and head and nothing more; a user's subclass may do more."""
    return type(model) in (Model, PolicyModel, QModel)


def new_state(model: "AnyModel", specs: Specs, seed: int | None, device: str = "auto") -> "ModelState":
    """A model with its first parameters."""
    from drl.engines.jax.model_state import ModelState

    return ModelState(model, model.init(seeds_of(specs, seed).generator("init")), device)


@dataclass(frozen=True)
class PolicyValueModel(model_kinds.AnyPolicyValueModel):
    """An actor and a critic. With `shared` the critic uses the actor's backbone."""

    actor: Model
    critic: Model
    shared: bool = False
    config: ModelConfig | None = field(default=None, compare=False)  # what it was built from

    def __post_init__(self) -> None:
        if self.shared and self.actor.backbone != self.critic.backbone:
            raise BadInput("actor and critic share a backbone, so both must be built with the same one")

    def init(self, rng: np.random.Generator) -> Params:
        actor = named("actor", self.actor.init(rng))
        critic = named("head", self.critic.head.init(rng)) if self.shared else self.critic.init(rng)
        return actor | named("critic", critic)

    def apply(self, params: Params, obs: Obs) -> tuple[jax.Array, jax.Array]:
        if not self.shared:
            return self.policy(params, obs), self.value(params, obs)
        features = self.actor.backbone.apply(part(params, "actor.backbone"), obs)
        policy = self.actor.head.apply(part(params, "actor.head"), features)
        return policy, self.critic.head.apply(part(params, "critic.head"), features)

    def policy(self, params: Params, obs: Obs) -> jax.Array:
        """The distribution parameters alone, for acting."""
        return self.actor.apply(part(params, "actor"), obs)

    def value(self, params: Params, obs: Obs) -> jax.Array:
        """The value alone, for bootstrapping."""
        return self.critic.apply(critic_params(self, params), obs)

    @staticmethod
    def build(
        specs: Specs, config: ModelConfig | None = None, *, seed: int | None = None, **settings: Unpack[ModelSettings]
    ) -> "ModelState":
        """A new model with its parameters; see `PolicyModel.build`."""
        config = changed_config(ModelConfig, config, settings)
        return new_state(make_policy_value_model(specs.obs_spec, specs.action_spec, config), specs, seed)


def critic_params(model: PolicyValueModel, params: Params) -> Params:
    """The critic's parameters, with the actor's backbone if it is shared."""
    own = part(params, "critic")
    return own | named("backbone", part(params, "actor.backbone")) if model.shared else own


class FlaxModule(Protocol):
    """The methods of `flax.linen.Module` that `FlaxModel` calls."""

    def init(self, key: jax.Array, obs: Obs, /) -> Tree:
        """Variables for observations of this shape."""

    def apply(self, variables: Tree, obs: Obs, /) -> Output:
        """Outputs of a batch of observations."""


@dataclass(frozen=True)
class FlaxModel:
    """A Flax module as a model: `module.apply(variables, obs)` returns the output of a variant. Its parameters are
    Flax's own tree."""

    module: FlaxModule
    obs_spec: ObsSpec
    distribution: str = "auto"  # of a policy model; see `Distribution.on`

    def init(self, rng: np.random.Generator) -> Tree:
        seen = jnp.zeros((1, *self.obs_spec.shape), self.obs_spec.dtype)
        return self.module.init(jax.random.key(int(rng.integers(2**31))), seen)

    def apply(self, params: Tree, obs: Obs) -> Output:
        return self.module.apply(params, obs)


def policy_of(model: AnyModel, params: Tree, obs: Obs) -> jax.Array:
    """Distribution parameters alone, for acting."""
    if isinstance(model, Model | PolicyValueModel):
        return model.policy(params, obs)
    answer = model.apply(params, obs)
    policy: jax.Array = answer[0] if isinstance(answer, tuple) else answer
    return policy


def value_of(model: AnyModel, params: Tree, obs: Obs) -> jax.Array:
    """Values alone, for bootstrapping."""
    if isinstance(model, PolicyValueModel):
        return model.value(params, obs)
    value: jax.Array = model.apply(params, obs)[1]
    return value


def make_policy_value_model(obs_spec: ObsSpec, action_spec: ActionSpec, config: ModelConfig) -> PolicyValueModel:
    """Actor and critic, with one backbone or two."""
    actor = make_policy_model(obs_spec, action_spec, config)
    critic = Model(actor.backbone, ValueHead(actor.backbone.features, gain_of(config.init, 1.0, 1.0)))
    return PolicyValueModel(actor, critic, config.shared, config)


def make_policy_model(obs_spec: ObsSpec, action_spec: ActionSpec, config: ModelConfig) -> PolicyModel:
    """A policy alone."""
    if config.recurrent != "none":
        raise BadInput(f"recurrent is {config.recurrent!r}, which the JAX engine does not have; use --engine torch")
    backbone = make_backbone(config, obs_spec)
    distribution = Distribution.on(action_spec, config.distribution)
    return PolicyModel(backbone, make_policy_head(distribution, backbone.features, config), config)


def make_q_value_model(obs_spec: ObsSpec, action_spec: ActionSpec, config: QModelConfig) -> QModel:
    """A value for every Discrete action."""
    if action_spec.kind != "discrete":
        raise BadInput(f"a q-value model needs a Discrete action space, got a {action_spec.kind} one; use ppo or a2c")
    backbone = make_backbone(config, obs_spec)
    make: Callable[..., Head] = make_q_head if config.head == "auto" else part_maker(HEADS, config.head, "jax")
    return QModel(backbone, make(backbone.features, action_spec.sizes[0], config), config)


def architecture_of(model: object, variant: str, obs_spec: ObsSpec, action_spec: ActionSpec) -> PlainDict | None:
    """The config that this model was built from, as plain data; None for a custom model, such as one of ours with a
    replaced part."""
    config = getattr(model, "config", None)
    if config is None or not isinstance(config, VARIANTS[variant].config):
        return None
    rebuilt = maker_in(VARIANTS[variant], "jax")(obs_spec, action_spec, config)
    return asdict(config) if _plain_form(rebuilt) == _plain_form(model) else None


def _plain_form(model: Any) -> Any:
    """The same network with `Model` in place of `PolicyModel` and `QModel`."""
    if is_plain(model):
        return Model(model.backbone, model.head, model.config)
    if is_dataclass(model) and not isinstance(model, type) and hasattr(model, "actor"):
        return replace(model, actor=_plain_form(model.actor))
    return model
