"""Models of the off-policy actor-critics: a policy, and an ensemble of critics Q(s, a).

The policy acts; the critics are for learning only. Critics of Discrete actions value all actions at once.
"""

import itertools
import math
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor, nn

from drl.core.configs import ActorCriticConfig, backbone_name
from drl.core.settings import ActorCriticSettings
from drl.core.specs import ActionSpec, Distribution, ObsSpec, Specs
from drl.engines.torch.backbones import dropped, first_weights, make_backbone
from drl.engines.torch.layers import BatchRenorm, make_activation, make_linear
from drl.engines.torch.models import Model, PolicyModel, QHead, make_policy_head, prepared
from drl.engines.torch.ops import Obs

VECTORS = ("mlp", "simba")  # backbones that take observation and action as one vector


class RenormMLP(nn.Module):
    """Fully connected layers; batch renormalization of the input and behind every activation."""

    def __init__(self, inputs: int, config: ActorCriticConfig, generator: torch.Generator | None = None):
        super().__init__()
        widths = [inputs, *config.hidden_sizes]
        gain = first_weights(config)[1]
        self.layers: nn.ModuleList = nn.ModuleList(
            make_linear(a, b, gain, 0.0, generator) for a, b in itertools.pairwise(widths)
        )
        self.norms: nn.ModuleList = nn.ModuleList(BatchRenorm(width, config.renorm_warmup) for width in widths)
        self.activation: nn.Module = make_activation(config.activation)
        self.features: int = widths[-1]
        self.dropout: float = config.dropout

    def forward(self, x: Tensor, seen: list[Tensor] | None = None) -> Tensor:
        x = self.norms[0](x, seen)
        for layer, norm in zip(self.layers, list(self.norms)[1:], strict=True):
            x = norm(dropped(self, self.activation(layer(x))), seen)
        return x


class Critic(nn.Module):
    """Q(s, a): the observation, or an encoder's features of it, joined with the action, through a network of its own.

    `forward` gives what `QHead` does: `[B, A]` values or `[B, A, atoms]` logits or quantiles, with A = 1 for Box.
    """

    def __init__(
        self,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        config: ActorCriticConfig,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        vector = not obs_spec.is_structured and backbone_name(config, obs_spec) in VECTORS and obs_spec.dtype != "uint8"
        self.encoder: nn.Module | None = None if vector else make_backbone(config, obs_spec, generator)
        width = math.prod(obs_spec.shape) if self.encoder is None else int(self.encoder.features)  # type: ignore[arg-type]
        width += action_spec.entries if action_spec.kind == "box" else 0
        if config.batch_renorm:
            self.backbone: nn.Module = RenormMLP(width, config, generator)
        else:
            self.backbone = make_backbone(joined_config(config, vector), ObsSpec("box", box_shape=(width,)), generator)
        actions = action_spec.sizes[0] if action_spec.kind == "discrete" else 1
        self.head: QHead = QHead(int(self.backbone.features), actions, config, generator)  # type: ignore[arg-type]

    def forward(self, obs: Obs, action: Tensor | None = None, seen: list[Tensor] | None = None) -> Tensor:
        x = obs.flatten(1) if self.encoder is None else self.encoder(obs)  # type: ignore[union-attr]
        if action is not None:
            x = torch.cat([x, action], dim=1)
        features = self.backbone(x, seen) if isinstance(self.backbone, RenormMLP) else self.backbone(x)
        answer: Tensor = self.head(features)
        return answer


class Critics(nn.ModuleList):
    """N critics: what each answers, `[N, B, A]` or `[N, B, A, atoms]`.

    `action` is None for Discrete actions. `seen` collects the statistics of batch renormalization, in training.
    """

    def forward(self, obs: Obs, action: Tensor | None = None, seen: list[Tensor] | None = None) -> Tensor:
        return torch.stack([critic(obs, action, seen) for critic in self])

    @property
    def head(self) -> QHead:
        """Turns answers into expected returns; the heads of all critics do the same."""
        head = self[0].head
        assert isinstance(head, QHead)
        return head

    def normed_weights(self) -> list[Tensor]:
        """Of the layers with a normalization behind them: their scale makes no difference to the values."""
        return [layer.weight for critic in self for layer in _normed_layers(critic.backbone)]  # type: ignore[arg-type]

    def norms(self) -> list[BatchRenorm]:
        """In the order in which a forward pass with `seen` meets them."""
        return [norm for critic in self for norm in getattr(critic.backbone, "norms", [])]


def _normed_layers(backbone: nn.Module) -> list[nn.Linear]:
    if isinstance(backbone, RenormMLP):
        return [layer for layer in backbone.layers if isinstance(layer, nn.Linear)]
    pairs = itertools.pairwise(backbone) if isinstance(backbone, nn.Sequential) else []
    return [layer for layer, norm in pairs if isinstance(layer, nn.Linear) and isinstance(norm, nn.LayerNorm)]


class ActorCritic(nn.Module):
    """`forward` is the policy's: observations → parameters of its distribution."""

    def __init__(self, actor: Model, critics: Critics, variant: str, config: ActorCriticConfig | None = None):
        super().__init__()
        self.actor: Model = actor
        self.critics: Critics = critics
        self.variant: str = variant
        self.config: ActorCriticConfig | None = config

    def forward(self, obs: Obs) -> Tensor:
        dist_params: Tensor = self.actor(obs)
        return dist_params

    @staticmethod
    def build(
        specs: Specs,
        config: ActorCriticConfig | None = None,
        *,
        deterministic: bool = False,  # for TD3 and DDPG
        seed: int | None = None,
        **settings: Unpack[ActorCriticSettings],
    ) -> "ActorCritic":
        """A new model for environments or their specs; see `PolicyModel.build`."""
        make = make_deterministic_actor_critic if deterministic else make_actor_critic
        return make(specs.obs_spec, specs.action_spec, *prepared(ActorCriticConfig, config, settings, specs, seed))


def make_actor_critic(
    obs_spec: ObsSpec, action_spec: ActionSpec, config: ActorCriticConfig, generator: torch.Generator | None = None
) -> ActorCritic:
    """With a squashed Gaussian policy for Box actions and a categorical one for Discrete actions."""
    kind = "tanh_gaussian" if action_spec.kind == "box" else "categorical"
    return _make("actor_critic", kind, obs_spec, action_spec, config, generator)


def make_deterministic_actor_critic(
    obs_spec: ObsSpec, action_spec: ActionSpec, config: ActorCriticConfig, generator: torch.Generator | None = None
) -> ActorCritic:
    """The networks of DDPG and TD3."""
    return _make("deterministic_actor_critic", "deterministic", obs_spec, action_spec, config, generator)


def _make(
    variant: str,
    kind: str,
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    config: ActorCriticConfig,
    generator: torch.Generator | None,
) -> ActorCritic:
    backbone = make_backbone(config, obs_spec, generator)
    head = make_policy_head(Distribution.on(action_spec, kind), int(backbone.features), config, generator)  # type: ignore[arg-type]
    critics = Critics(Critic(obs_spec, action_spec, config.critic, generator) for _ in range(config.num_critics))
    return ActorCritic(PolicyModel(backbone, head), critics, variant, config)


def joined_config(config: ActorCriticConfig, vector: bool) -> ActorCriticConfig:
    """The settings of the network behind the join: the same backbone, or an MLP behind an encoder."""
    return config if vector else replace(config, backbone="mlp", backbone_kwargs=())
