"""Models: a backbone (features) and a head (outputs). They neither sample nor learn.

Three variants: policy-value `obs → (distribution parameters, value)`, policy-only `obs → distribution parameters`, and
q-value `obs → q`. Any `nn.Module` with the same forward will do in their place.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeGuard, Unpack

import torch
from torch import Tensor, nn

from drl.core.configs import ActorCriticConfig, AnyModelConfig, ConfigT, ModelConfig, QModelConfig, changed_config
from drl.core.errors import BadInput
from drl.core.network_parts import HEADS, part_maker
from drl.core.seeding import seeds_of
from drl.core.settings import ModelSettings, QModelSettings
from drl.core.specs import LOG_STD_RANGE, ActionSpec, Array, Distribution, ObsSpec, PlainDict, Specs
from drl.core.variants import VARIANTS, maker_in
from drl.engines.numpy.layer_parts import POLICY_GAIN, Gain, gain_of
from drl.engines.numpy.model_kinds import (
    AnyHeadModel,
    AnyLogitsHead,
    AnyPolicyHead,
    AnyPolicyValueModel,
    AnyQHead,
    AnySquashedHead,
    check_parameters,
)
from drl.engines.torch.backbones import make_backbone
from drl.engines.torch.layers import initialize, make_linear
from drl.engines.torch.recurrent import arrange

# ── heads: features → distribution parameters, or values ──────────────────────────────────────────────────────────


class LogitsHead(AnyLogitsHead, nn.Linear):
    """Logits for categorical, multi-categorical (concatenated) and Bernoulli policies."""

    def __init__(
        self, features: int, num_params: int, generator: torch.Generator | None = None, gain: Gain = POLICY_GAIN
    ):
        super().__init__(features, num_params)
        initialize(self, gain, generator)
        self.features = features


class GaussianHead(AnyPolicyHead, nn.Module):
    """Means from the features, log standard deviations that do not depend on the state; concatenated."""

    def __init__(
        self,
        features: int,
        entries: int,
        log_std_init: float = 0.0,
        generator: torch.Generator | None = None,
        gain: Gain = POLICY_GAIN,
    ):
        super().__init__()
        self.mean: nn.Linear = nn.Linear(features, entries)
        initialize(self.mean, gain, generator)
        self.log_std: nn.Parameter = nn.Parameter(torch.full((entries,), log_std_init))
        self.features = features

    def forward(self, features: Tensor) -> Tensor:
        mean = self.mean(features)
        return torch.cat([mean, self.log_std.expand_as(mean)], dim=-1)


class SquashedGaussianHead(AnySquashedHead, nn.Module):
    """Means and log standard deviations, both from the features; concatenated. For actions squashed by tanh."""

    def __init__(self, features: int, entries: int, generator: torch.Generator | None = None, gain: Gain = POLICY_GAIN):
        super().__init__()
        self.mean: nn.Linear = nn.Linear(features, entries)
        self.log_std: nn.Linear = nn.Linear(features, entries)
        initialize(self.mean, gain, generator)
        initialize(self.log_std, gain, generator)
        self.features = features

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([self.mean(features), self.log_std(features).clamp(*LOG_STD_RANGE)], dim=-1)


class ValueHead(nn.Linear):
    """One number per state."""

    def __init__(self, features: int, generator: torch.Generator | None = None, gain: Gain = 1.0):
        super().__init__(features, 1)
        initialize(self, gain, generator)
        self.features = features

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features).squeeze(-1)


class QHead(AnyQHead, nn.Module):
    """Action values, optionally with dueling streams, a distribution over returns, and noisy layers.

    The output is `[B, A]` action values, or `[B, A, atoms]` logits (c51) or quantiles (qr); `q_values` turns it into
    expected returns. Dueling: V and A have a layer each, and Q = V + A − mean A, atom by atom.
    """

    def __init__(
        self,
        features: int,
        num_actions: int,
        config: QModelConfig | ActorCriticConfig,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        self.features: int = features
        self.num_actions: int = num_actions
        self.kind: str = config.distributional
        self.atoms: int = 1 if self.kind == "none" else config.num_atoms
        gain = gain_of(config.init, None, 1.0)
        self.advantage: nn.Module = make_linear(features, num_actions * self.atoms, gain, config.sigma, generator)
        self.state_value: nn.Module | None = (
            make_linear(features, self.atoms, gain, config.sigma, generator) if config.dueling else None
        )
        self.support: Tensor
        # Part of a plain state dict, so that a file of weights contains the returns of its atoms.
        support = torch.linspace(config.v_min, config.v_max, self.atoms)
        self.register_buffer("support", support, persistent=self.kind == "c51")

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = self.advantage(features)
        if self.kind != "none":
            output = output.view(-1, self.num_actions, self.atoms)
        if self.state_value is not None:
            value = self.state_value(features).view(-1, 1, *output.shape[2:])
            output = output - output.mean(dim=1, keepdim=True) + value
        return output

    def q_values(self, output: Tensor) -> Tensor:
        """Expected returns from outputs, of all actions `[B, A]` or of one each `[B]`."""
        if self.kind == "c51":
            return (output.softmax(dim=-1) * self.support).sum(dim=-1)
        return output.mean(dim=-1) if self.kind == "qr" else output


def make_policy_head(
    distribution: Distribution,
    features: int,
    config: ModelConfig | ActorCriticConfig,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """The head that parameterizes a distribution."""
    if config.head != "auto":
        head: nn.Module = part_maker(HEADS, config.head, "torch")(features, distribution, config, generator)
        head.distribution = distribution.kind  # type: ignore[assignment]
        return head
    gain = gain_of(config.init, POLICY_GAIN, POLICY_GAIN)
    if distribution.kind == "gaussian":
        assert isinstance(config, ModelConfig)
        return GaussianHead(features, distribution.entries, config.log_std_init, generator, gain)
    if distribution.kind == "tanh_gaussian":
        return SquashedGaussianHead(features, distribution.entries, generator, gain)
    return LogitsHead(features, distribution.num_params, generator, gain)


# ── models ────────────────────────────────────────────────────────────────────────────────────────────────────────


def prepared(
    kind: type[ConfigT], config: ConfigT | None, settings: Mapping[str, Any], specs: Specs, seed: int | None
) -> tuple[ConfigT, torch.Generator]:
    """The config with the settings, and the generator of the initial weights."""
    set_threads(specs.obs_spec)
    generator = torch.Generator().manual_seed(seeds_of(specs, seed).integer("init"))
    return changed_config(kind, config, settings), generator


class Model(AnyHeadModel, nn.Module):
    """Backbone + head.

    >>> from drl.engines.torch.backbones import MLP
    >>> Model(MLP((4,), hidden_sizes=(8,)), ValueHead(8))(torch.zeros(3, 4)).shape
    torch.Size([3])
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, config: AnyModelConfig | None = None):
        super().__init__()
        if backbone.features != head.features:
            raise BadInput(
                f"backbone gives {backbone.features} features but head expects {head.features}; "
                f"build the head with features={backbone.features}"
            )
        self.backbone: nn.Module = backbone  # what it was built from
        self.head: nn.Module = head
        self.config: AnyModelConfig | None = config

    def forward(self, obs: Tensor) -> Tensor:
        output: Tensor = self.head(self.backbone(obs))
        return output


class PolicyModel(Model):
    """A policy alone."""

    @staticmethod
    def build(
        specs: Specs, config: ModelConfig | None = None, *, seed: int | None = None, **settings: Unpack[ModelSettings]
    ) -> "PolicyModel":
        """A new model for environments or their specs. `settings` are fields of the config; `seed` draws the weights,
        by default the environments' own."""
        chosen, generator = prepared(ModelConfig, config, settings, specs, seed)
        return make_policy_model(specs.obs_spec, specs.action_spec, chosen, generator)


class QModel(Model):
    """A value for every action of a Discrete action space."""

    @staticmethod
    def build(
        specs: Specs, config: QModelConfig | None = None, *, seed: int | None = None, **settings: Unpack[QModelSettings]
    ) -> "QModel":
        """A new model for environments or their specs; see `PolicyModel.build`."""
        chosen, generator = prepared(QModelConfig, config, settings, specs, seed)
        return make_q_value_model(specs.obs_spec, specs.action_spec, chosen, generator)


def is_plain(model: object) -> TypeGuard[Model]:
    """Whether a model is only a backbone and a head; a user's subclass may do more."""
    return type(model) in (Model, PolicyModel, QModel)


class PolicyValueModel(AnyPolicyValueModel, nn.Module):
    """An actor and a critic. Pass both the same backbone object to share it, hidden state included."""

    def __init__(self, actor: Model, critic: Model, config: ModelConfig | None = None):
        super().__init__()
        self.actor: Model = actor  # what it was built from
        self.critic: Model = critic
        self.config: ModelConfig | None = config
        self.shared: bool = actor.backbone is critic.backbone
        arrange(self)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        if not (is_plain(self.actor) and is_plain(self.critic)):
            return self.actor(obs), self.critic(obs)
        features = self.actor.backbone(obs)
        return self.actor.head(features), self.critic.head(features if self.shared else self.critic.backbone(obs))

    @staticmethod
    def build(
        specs: Specs, config: ModelConfig | None = None, *, seed: int | None = None, **settings: Unpack[ModelSettings]
    ) -> "PolicyValueModel":
        """A new model for environments or their specs; see `PolicyModel.build`."""
        chosen, generator = prepared(ModelConfig, config, settings, specs, seed)
        return make_policy_value_model(specs.obs_spec, specs.action_spec, chosen, generator)


def make_policy_value_model(
    obs_spec: ObsSpec, action_spec: ActionSpec, config: ModelConfig, generator: torch.Generator | None = None
) -> PolicyValueModel:
    """Actor and critic, with one backbone or two."""
    actor = make_policy_model(obs_spec, action_spec, config, generator)
    backbone = actor.backbone if config.shared else make_backbone(config, obs_spec, generator)
    head = ValueHead(backbone.features, generator, gain_of(config.init, 1.0, 1.0))  # type: ignore[arg-type]
    critic = Model(backbone, head)
    return PolicyValueModel(actor, critic, config)


def make_policy_model(
    obs_spec: ObsSpec, action_spec: ActionSpec, config: ModelConfig, generator: torch.Generator | None = None
) -> PolicyModel:
    """A policy alone."""
    backbone = make_backbone(config, obs_spec, generator)
    distribution = Distribution.on(action_spec, config.distribution)
    head = make_policy_head(distribution, backbone.features, config, generator)  # type: ignore[arg-type]
    return PolicyModel(backbone, head, config)


def make_q_value_model(
    obs_spec: ObsSpec, action_spec: ActionSpec, config: QModelConfig, generator: torch.Generator | None = None
) -> QModel:
    """A value for every Discrete action."""
    if action_spec.kind != "discrete":
        raise BadInput(f"a q-value model needs a Discrete action space, got a {action_spec.kind} one; use ppo or a2c")
    backbone, actions = make_backbone(config, obs_spec, generator), action_spec.sizes[0]
    make: Callable[..., nn.Module] = QHead if config.head == "auto" else part_maker(HEADS, config.head, "torch")
    return QModel(backbone, make(backbone.features, actions, config, generator), config)


def architecture_of(model: nn.Module, variant: str, obs_spec: ObsSpec, action_spec: ActionSpec) -> PlainDict | None:
    """The config of a model as plain data; None for a model of your own, including built-in models with a replaced
    part."""
    config: AnyModelConfig | None = getattr(model, "config", None)
    if config is None or not isinstance(config, VARIANTS[variant].config):
        return None
    description = _description(model)
    if getattr(model, "checked", None) != description:
        with torch.random.fork_rng(devices=[]):  # torch's layers draw from the global stream when they are made
            rebuilt = maker_in(VARIANTS[variant], "torch")(obs_spec, action_spec, config)
        if _description(rebuilt) != description:
            return None
        model.checked = description  # type: ignore[assignment]
    return asdict(config)


def _description(model: nn.Module) -> str:
    """The parts of a model. A `PolicyModel` or `QModel` is the same network as a `Model` of its parts."""
    return str(model).replace("PolicyModel(", "Model(").replace("QModel(", "Model(")


def parameters_by_name(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and persistent buffer once, also if two parts share a backbone; without the support of a C51
    head, which belongs to the model's config."""
    support = {f"{name}.support" for name, part in model.named_modules() if isinstance(part, QHead)}
    persistent = model.state_dict().keys() - support
    return dict(model.named_parameters()) | {name: b for name, b in model.named_buffers() if name in persistent}


def load_parameters(model: nn.Module, arrays: dict[str, Array], source: str) -> None:
    """Copy `arrays` into the model; every name and shape must match."""
    mine = parameters_by_name(model)
    check_parameters(mine, arrays, source)
    for name, parameter in mine.items():
        parameter.data.copy_(torch.from_numpy(arrays[name].copy()))


# ── threads of PyTorch: with more than one, small networks spend their time on synchronization ────────────────────

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # set by users
_set_here = 0


def set_threads(obs_spec: ObsSpec, threads: int | None = None) -> None:
    """Set the number of threads. None: one for vectors and all cores for images, unless an environment variable or the
    user's own `torch.set_num_threads` has set it."""
    global _set_here
    cores = os.cpu_count() or 1
    if threads is None:
        by_itself = (cores, cores // 2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores)
        if any(os.environ.get(name) for name in VARIABLES) or torch.get_num_threads() not in (*by_itself, _set_here):
            return
        images = any(len(leaf.shape) == 3 and min(leaf.shape[1:]) >= 36 for leaf in obs_spec.leaves.values())
        threads = cores if images else 1
    _set_here = threads
    torch.set_num_threads(threads)
