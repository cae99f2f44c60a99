"""Models: a backbone that sees and a head that answers. They neither sample nor learn.

Three variants: policy-value `obs → (policy parameters, value)`, policy-only `obs → policy parameters`, and q-value
`obs → q`. Any `nn.Module` with the same forward will do in their place.
"""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from drl.core.configs import ModelConfig, QModelConfig
from drl.core.errors import BadInput, UnusableFile
from drl.core.specs import ActionSpec, Array, ObsSpec
from drl.engines.torch.backbones import MLP, Conv1d, NatureCNN, Pixels, make_backbone
from drl.engines.torch.heads import GaussianHead, LogitsHead, QHead, ValueHead, make_policy_head
from drl.engines.torch.layers import NoisyLinear
from drl.engines.torch.recurrent import Recurrent, arrange


class Model(nn.Module):
    """Backbone + head.

    >>> from drl.engines.torch.backbones import MLP
    >>> Model(MLP((4,), hidden_sizes=(8,)), ValueHead(8))(torch.zeros(3, 4)).shape
    torch.Size([3])
    """

    def __init__(self, backbone: nn.Module, head: nn.Module):
        super().__init__()
        if backbone.features != head.features:
            raise BadInput(
                f"backbone gives {backbone.features} features but head expects {head.features}; "
                f"build the head with features={backbone.features}"
            )
        self.backbone, self.head = backbone, head

    def forward(self, obs: Tensor) -> Tensor:
        answer: Tensor = self.head(self.backbone(obs))
        return answer


class PolicyValueModel(nn.Module):
    """An actor and a critic. Give both the same backbone object to share it, and with it its memory."""

    def __init__(self, actor: Model, critic: Model):
        super().__init__()
        self.actor, self.critic = actor, critic
        self.shared = actor.backbone is critic.backbone
        arrange(self)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        if self.shared and type(self.actor) is type(self.critic) is Model:  # a subclass may do more than these lines
            features = self.actor.backbone(obs)
            return self.actor.head(features), self.critic.head(features)
        return self.actor(obs), self.critic(obs)


def make_policy_value_model(
    obs_spec: ObsSpec, action_spec: ActionSpec, config: ModelConfig, generator: torch.Generator | None = None
) -> PolicyValueModel:
    actor = make_policy_model(obs_spec, action_spec, config, generator)
    backbone = actor.backbone if config.shared else make_backbone(config, obs_spec, generator)
    return PolicyValueModel(actor, Model(backbone, ValueHead(backbone.features, generator)))  # type: ignore[arg-type]


def make_policy_model(
    obs_spec: ObsSpec, action_spec: ActionSpec, config: ModelConfig, generator: torch.Generator | None = None
) -> Model:
    backbone = make_backbone(config, obs_spec, generator)
    head = make_policy_head(action_spec, backbone.features, config.log_std_init, generator)  # type: ignore[arg-type]
    return Model(backbone, head)


def make_q_value_model(
    obs_spec: ObsSpec, action_spec: ActionSpec, config: QModelConfig, generator: torch.Generator | None = None
) -> Model:
    if action_spec.kind != "categorical":
        raise BadInput(f"a q-value model needs a Discrete action space, got a {action_spec.kind} one; use ppo or a2c")
    backbone = make_backbone(config, obs_spec, generator)
    return Model(backbone, QHead(backbone.features, action_spec.sizes[0], config, generator))  # type: ignore[arg-type]


# The one place where a variant's name becomes a model.
MODEL_VARIANTS: dict[str, Any] = {
    "policy_value": make_policy_value_model,
    "policy_only": make_policy_model,
    "q_value": make_q_value_model,
}


def known_variant(model: Any) -> str | None:
    """Which variant one of our own models is; None for a module of the user's own, which only its answer can tell."""
    if isinstance(model, PolicyValueModel):
        return "policy_value"
    if not isinstance(model, Model):
        return None
    if isinstance(model.head, LogitsHead | GaussianHead):
        return "policy_only"
    return "q_value" if isinstance(model.head, QHead) else None


def parameters_by_name(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and lasting buffer once, also where two parts share a backbone; without the support of a C51
    head, which belongs to the model's config."""
    support = {f"{name}.support" for name, part in model.named_modules() if isinstance(part, QHead)}
    lasting = model.state_dict().keys() - support
    return dict(model.named_parameters()) | {name: b for name, b in model.named_buffers() if name in lasting}


def load_parameters(model: nn.Module, arrays: dict[str, Array], source: str) -> None:
    """Copy `arrays` into the model; every name and shape must match."""
    mine = parameters_by_name(model)
    if differing := sorted(mine.keys() ^ arrays.keys()):
        raise UnusableFile(f"{source} does not fit the model: {', '.join(differing[:4])} in one but not in the other")
    for name, parameter in mine.items():
        if tuple(parameter.shape) != arrays[name].shape:
            shapes = f"{arrays[name].shape} in the file, {tuple(parameter.shape)} in the model"
            raise UnusableFile(f"{source} does not fit the model: {name} is {shapes}")
        parameter.data.copy_(torch.from_numpy(arrays[name].copy()))


def architecture_of(model: nn.Module, obs_spec: ObsSpec, action_spec: ActionSpec) -> dict[str, Any] | None:
    """The `ModelConfig` that rebuilds this model, as plain data; None for a model of the user's own."""
    actor = model.actor if type(model) is PolicyValueModel else model
    if type(actor) is not Model:
        return None
    buffer = actor.backbone if isinstance(actor.backbone, Recurrent) else None
    backbone = actor.backbone if buffer is None else buffer.backbone
    backbone = backbone.backbone if isinstance(backbone, Pixels) else backbone
    kinds = {MLP: "mlp", NatureCNN: "cnn", Conv1d: "conv1d"}
    if type(backbone) not in kinds:
        return None
    widths = [x.out_features for x in backbone.modules() if isinstance(x, nn.Linear | NoisyLinear)]
    kind: type[ModelConfig | QModelConfig]
    shape: dict[str, Any] = {"backbone": kinds[type(backbone)], "activation": getattr(backbone, "activation", "relu")}
    shape |= {"cnn_features": widths[-1]} if isinstance(backbone, NatureCNN) else {"hidden_sizes": tuple(widths)}
    shape |= {} if buffer is None else {"recurrent": buffer.kind, "recurrent_size": buffer.features}
    head = actor.head
    if isinstance(head, QHead):
        variant, kind = "q_value", QModelConfig
        shape |= {"distributional": head.kind, "dueling": head.state_value is not None}
        shape |= {"noisy": True, "noisy_sigma": head.advantage.sigma} if isinstance(head.advantage, NoisyLinear) else {}
        shape |= {"num_atoms": head.atoms} if head.kind != "none" else {}
        shape |= {"v_min": float(head.support[0]), "v_max": float(head.support[-1])} if head.kind == "c51" else {}
    elif isinstance(model, PolicyValueModel):
        variant, kind, shape["shared"] = "policy_value", ModelConfig, model.shared
    else:
        variant, kind = "policy_only", ModelConfig
    config = kind(**shape)
    with torch.random.fork_rng(devices=[]):  # torch's layers draw from the global stream when they are made
        rebuilt = MODEL_VARIANTS[variant](obs_spec, action_spec, config)
    return asdict(config) if str(rebuilt) == str(model) else None
