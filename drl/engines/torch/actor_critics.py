"""Models of the off-policy actor-critics: a policy and an ensemble of critics Q(s, a). Targets and errors of critics.

The policy acts; the critics are for learning only. Critics of Discrete actions value all actions at once. Critics are
plain, or have a distribution over returns: c51 (logits of a fixed support) or qr (quantiles).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor, nn

from drl.algorithms.off_policy import OffPolicyConfig
from drl.core.configs import ActorCriticConfig, backbone_name
from drl.core.settings import ActorCriticSettings
from drl.core.specs import ActionSpec, Distribution, ObsSpec, Specs
from drl.engines.torch import ops
from drl.engines.torch.backbones import dropped, first_weights, make_backbone
from drl.engines.torch.layers import BatchRenorm, make_activation, make_linear
from drl.engines.torch.models import Model, PolicyModel, QHead, make_policy_head, prepared
from drl.engines.torch.ops import Obs, ReplayRows

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

    def forward(self, x: Tensor, statistics: list[Tensor] | None = None) -> Tensor:
        x = self.norms[0](x, statistics)
        for layer, norm in zip(self.layers, list(self.norms)[1:], strict=True):
            x = norm(dropped(self, self.activation(layer(x))), statistics)
        return x


class Critic(nn.Module):
    """Q(s, a): a network of the observation, or of an encoder's features of it, joined with the action.

    The output is that of `QHead`: `[B, A]` values or `[B, A, atoms]` logits or quantiles, with A = 1 for Box actions.
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

    def forward(self, obs: Obs, action: Tensor | None = None, statistics: list[Tensor] | None = None) -> Tensor:
        x = obs.flatten(1) if self.encoder is None else self.encoder(obs)  # type: ignore[union-attr]
        if action is not None:
            x = torch.cat([x, action], dim=1)
        features = self.backbone(x, statistics) if isinstance(self.backbone, RenormMLP) else self.backbone(x)
        q: Tensor = self.head(features)
        return q


class Critics(nn.ModuleList):
    """N critics, with stacked outputs `[N, B, A]` or `[N, B, A, atoms]`. `action` is None for Discrete actions;
    `statistics` collects those of batch renormalization, in training."""

    def forward(self, obs: Obs, action: Tensor | None = None, statistics: list[Tensor] | None = None) -> Tensor:
        return torch.stack([critic(obs, action, statistics) for critic in self])

    @property
    def head(self) -> QHead:
        """The first critic's head; all heads turn outputs into expected returns in the same way."""
        head = self[0].head
        assert isinstance(head, QHead)
        return head

    def normed_weights(self) -> list[Tensor]:
        """Weights of the layers with a normalization behind them, whose scale does not change the values."""
        return [layer.weight for critic in self for layer in _normed_layers(critic.backbone)]  # type: ignore[arg-type]

    def norms(self) -> list[BatchRenorm]:
        """Batch renormalizations, in the order of `statistics`."""
        return [norm for critic in self for norm in getattr(critic.backbone, "norms", [])]


def _normed_layers(backbone: nn.Module) -> list[nn.Linear]:
    if isinstance(backbone, RenormMLP):
        return [layer for layer in backbone.layers if isinstance(layer, nn.Linear)]
    pairs = itertools.pairwise(backbone) if isinstance(backbone, nn.Sequential) else []
    return [layer for layer, norm in pairs if isinstance(layer, nn.Linear) and isinstance(norm, nn.LayerNorm)]


class ActorCritic(nn.Module):
    """A policy and critics. `forward` is the policy's: observations → distribution parameters."""

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


# ── what critics learn from ───────────────────────────────────────────────────────────────────────────────────────


def critic_target(
    head: QHead, next_q: Tensor, bonus: Tensor, rows: ReplayRows, config: OffPolicyConfig, to_drop: int = 0
) -> Tensor:
    """The critics' target, from their outputs `[M, B]` or `[M, B, atoms]` at the next state and action.

    `bonus` `[B]` is added to the next value: the entropy of a soft policy. Plain critics: `[B]` values; c51:
    `[B, atoms]` probabilities; qr: `[B, m]` samples of the return, without the `to_drop` largest of each critic.
    """
    if head.kind == "qr":
        samples = next_q.transpose(0, 1).flatten(1)  # [B, M · atoms]
        if to_drop:
            samples = samples.sort(dim=1).values[:, : samples.shape[1] - to_drop * len(next_q)]
        return ops.q_target(rows.reward[:, None], rows.discount[:, None], samples + bonus[:, None])
    if head.kind == "c51":
        probs = next_q.softmax(dim=-1)
        if config.target_q == "mean":
            chosen = probs.mean(dim=0)
        else:  # of the critic that expects the smallest return
            lowest = (probs * head.support).sum(dim=-1).argmin(dim=0)
            chosen = probs[lowest, torch.arange(len(lowest), device=lowest.device)]
        return ops.project_distribution(chosen, rows.reward + rows.discount * bonus, rows.discount, head.support)
    values = next_q.mean(dim=0) if config.target_q == "mean" else next_q.amin(dim=0)
    return ops.q_target(rows.reward, rows.discount, values + bonus)


def critic_errors(head: QHead, q: Tensor, td_target: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    """The loss of every critic and row `[N, B]`, and the size of its error, which makes the row's priority."""
    penalty = ops.huber if loss == "huber" else ops.half_square
    if head.kind == "c51":
        cross_entropy = -(td_target * q.log_softmax(dim=-1)).sum(dim=-1)
        return cross_entropy, cross_entropy
    if head.kind == "qr":
        losses = torch.stack([ops.quantile_loss(quantiles, td_target, penalty) for quantiles in q])
        return losses, losses
    error = td_target - q
    return penalty(error), error.abs()


def reduced(values: Tensor, how: str) -> Tensor:
    """One value per row from the critics' `[N, B, …]`."""
    if how == "first":
        return values[0]
    return values.mean(dim=0) if how == "mean" else values.amin(dim=0)


@torch.no_grad()
def norm_weights(critics: Critics) -> None:
    """Scale the weights of every hidden feature to norm 1."""
    for weight in critics.normed_weights():
        weight.div_(weight.norm(dim=1, keepdim=True))


def update_norms(norms: Sequence[BatchRenorm], statistics: Sequence[Tensor]) -> None:
    """Update running statistics of batch renormalization from those of the last batch: a mean and a variance each."""
    for norm, mean, variance in zip(norms, statistics[::2], statistics[1::2], strict=True):
        norm.update(mean, variance)
