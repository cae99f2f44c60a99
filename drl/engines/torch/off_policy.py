"""Targets and losses of critics, and the networks of an actor-critic with a replay buffer.

Critics are plain, or have a distribution over returns: c51 (logits of a fixed support) or qr (quantiles).
"""

import copy
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from drl.algorithms.off_policy import OffPolicyConfig, check_critics
from drl.core.contracts import CriticOutputs, Loss, Rates
from drl.core.errors import BadInput
from drl.core.specs import Distribution, Specs
from drl.engines.numpy.distributions import UpdateDraws
from drl.engines.numpy.model_kinds import distribution_of
from drl.engines.torch import ops
from drl.engines.torch.actor_critics import ActorCritic, Critics
from drl.engines.torch.flat_optimizer import FlatOptimizer
from drl.engines.torch.flat_parameters import Target
from drl.engines.torch.layers import BatchRenorm
from drl.engines.torch.learner import Learner
from drl.engines.torch.learner_group import LearnerGroup, SharedGradient, part_of_replay
from drl.engines.torch.models import Model, QHead
from drl.engines.torch.ops import ReplayRows


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


def critic_loss(head: QHead, outputs: CriticOutputs, rows: ReplayRows, config: OffPolicyConfig) -> Loss:
    """The importance-weighted error of all critics. A row's priority is its mean error over the critics."""
    losses, errors = critic_errors(head, outputs.q, outputs.target, config.loss)
    loss = (rows.weight * losses.sum(dim=0)).mean()
    with torch.no_grad():
        q = head.q_values(outputs.q).mean(dim=0)
        return Loss(loss, {"critic_loss": loss, "mean_q": q}, priority=errors.mean(dim=0))


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


class OffPolicyLearner(Learner):
    """Actor, critics and target networks, and an optimizer each for actor and critics. The algorithms have the losses
    and the update."""

    config: OffPolicyConfig
    model: ActorCritic
    TARGET_ACTOR: ClassVar[bool] = False  # whether the target's actions are those of a target policy
    KEYS: ClassVar[Mapping[str, str | None]] = {
        "critic_optimizer": "critics",
        "actor_optimizer": "actor",
        "target_critics": None,  # in `targets`
        "target_actor": None,
        "targets": "targets",
        "target_statistics": "target_statistics",
    }

    def __init__(
        self,
        model: nn.Module,
        specs: Specs,
        config: OffPolicyConfig | None = None,
        rng: np.random.Generator | None = None,  # draws the noise of actions and the subset of critics
        compile_update: bool = False,
    ):
        super().__init__(model, specs, config, rng, compile_update)
        if not isinstance(model, ActorCritic):
            raise BadInput(f"{type(self).__name__} needs an ActorCritic model; build it with make_actor_critic(…)")
        self.critics: Critics = model.critics
        self.actor: Model = model.actor
        self.norms: list[BatchRenorm] = self.critics.norms()
        head, normed = self.critics.head, bool(self.critics.normed_weights())
        check_critics(self.config, len(self.critics), head.kind, head.atoms, normed, self.action_spec)
        if self.config.weight_norm:
            norm_weights(self.critics)
        self.distribution: Distribution = distribution_of(model, self.action_spec)
        rate = self.config.learning_rate
        self.actor_factor: float = (self.config.actor_learning_rate or rate) / rate
        # Two more sets of critics: one in the same memory, but without gradients, and the target network.
        self.frozen_critics: Critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.critic_optimizer: FlatOptimizer = self.make_optimizer(self.critics, self._critic_batch_loss)
        self.actor_optimizer: FlatOptimizer = self.make_optimizer(self.actor, self._actor_batch_loss)
        self.critic_optimizer.bind_copy(self.frozen_critics, self.critic_optimizer.values)
        for mine, theirs in zip(self.frozen_critics.buffers(), self.critics.buffers(), strict=True):
            mine.data = theirs.data
        delayed = self.config.target_network and self.TARGET_ACTOR
        self.target_critics: Target | None = Target(self.critic_optimizer) if self.config.target_network else None
        self.target_actor: Target | None = Target(self.actor_optimizer) if delayed else None
        self.targets: list[Target] = [
            target for target in (self.target_critics, self.target_actor) if target is not None
        ]
        buffers = [] if self.target_critics is None else list(self.target_critics.module.buffers())
        self.target_statistics: list[Tensor] = buffers

    def _critic_batch_loss(self, critics: Critics, rows: ReplayRows, draws: UpdateDraws, rates: Rates) -> Loss:
        raise NotImplementedError

    def _actor_batch_loss(self, actor: nn.Module, rows: ReplayRows, draws: UpdateDraws, rates: Rates) -> Loss:
        raise NotImplementedError

    def q_here_and_next(
        self,
        critics: Critics,
        rows: ReplayRows,
        action: Tensor | None,
        next_action: Tensor | None,
        statistics: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """The critics' outputs here, and those of the target critics at the next state `[N, B, A, …]`. Without target
        critics, the critics see both in one batch."""
        collect = statistics if self.norms else None
        if self.target_critics is not None:
            with torch.no_grad():
                next_q = self.target_critics(rows.next_obs, next_action)
            return critics(rows.obs, action, collect), next_q
        both = ops.join_rows(rows.obs, rows.next_obs)
        actions = None if action is None or next_action is None else torch.cat([action, next_action])
        q, next_q = critics(both, actions, collect).chunk(2, dim=1)
        return q, next_q.detach()

    def sync_target(self) -> None:
        for target in self.targets:
            target.move(1.0)
        for mine, theirs in zip(self.target_statistics, self.critics.buffers(), strict=False):
            mine.copy_(theirs)

    def share(self, group: LearnerGroup) -> None:
        """Share every update with other learners."""
        if self.norms:
            raise BadInput("batch renormalization needs whole batches in one learner; use --num-learners 1")
        self.critic_optimizer.share(SharedGradient(group, part_of_replay))
        self.actor_optimizer.share(SharedGradient(group, part_of_replay))
