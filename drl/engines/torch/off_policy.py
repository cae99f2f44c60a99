"""What the actor-critics with a replay buffer share: the loss of their critics, optimizers, target networks.

An update moves the critics, then (every `policy_delay` updates) the actor, then the target networks. Critics are plain,
or have a distribution over returns: c51 (logits of a fixed support) or qr (quantiles).
"""

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from drl.algorithms.off_policy import OffPolicyConfig, check_critics
from drl.core.contracts import ActorOutputs, CriticOutputs, Learned, Loss, Rates
from drl.core.errors import BadInput
from drl.core.specs import Distribution, Specs
from drl.core.transition import ReplayBatch
from drl.engines.numpy.update_draws import UpdateDraws, draw_update
from drl.engines.torch import ops
from drl.engines.torch.actor_critics import ActorCritic, Critics
from drl.engines.torch.flat_optimizer import FlatOptimizer, Target
from drl.engines.torch.learner import Learner
from drl.engines.torch.learner_group import LearnerGroup, SharedGradient, part_of_replay
from drl.engines.torch.models import Model, QHead, distribution_of
from drl.engines.torch.ops import ReplayRows


def critic_target(
    head: QHead, answers: Tensor, bonus: Tensor, rows: ReplayRows, config: OffPolicyConfig, to_drop: int = 0
) -> Tensor:
    """What the critics should answer, from their answers `[M, B]` or `[M, B, atoms]` at the next state and action.

    `bonus` `[B]` is added to the next value: the entropy of a soft policy. Plain critics: `[B]` values; c51:
    `[B, atoms]` probabilities; qr: `[B, m]` samples of the return, without the `to_drop` largest of each critic.
    """
    if head.kind == "qr":
        samples = answers.transpose(0, 1).flatten(1)  # [B, M · atoms]
        if to_drop:
            samples = samples.sort(dim=1).values[:, : samples.shape[1] - to_drop * len(answers)]
        return ops.q_target(rows.reward[:, None], rows.continues[:, None], samples + bonus[:, None])
    if head.kind == "c51":
        probs = answers.softmax(dim=-1)
        if config.target_q == "mean":
            chosen = probs.mean(dim=0)
        else:  # of the critic that expects the smallest return
            lowest = (probs * head.support).sum(dim=-1).argmin(dim=0)
            chosen = probs[lowest, torch.arange(len(lowest), device=lowest.device)]
        return ops.project_distribution(chosen, rows.reward + rows.continues * bonus, rows.continues, head.support)
    values = answers.mean(dim=0) if config.target_q == "mean" else answers.amin(dim=0)
    return ops.q_target(rows.reward, rows.continues, values + bonus)


def critic_errors(head: QHead, answers: Tensor, goal: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    """The loss of every critic and row `[N, B]`, and the size of its error, which makes the row's priority."""
    penalty = ops.huber if loss == "huber" else ops.half_square
    if head.kind == "c51":
        cross_entropy = -(goal * answers.log_softmax(dim=-1)).sum(dim=-1)
        return cross_entropy, cross_entropy
    if head.kind == "qr":
        losses = torch.stack([ops.quantile_loss(answer, goal, penalty) for answer in answers])
        return losses, losses
    error = goal - answers
    return penalty(error), error.abs()


def reduced(values: Tensor, how: str) -> Tensor:
    """One value per row from the critics' `[N, B, …]`."""
    if how == "first":
        return values[0]
    return values.mean(dim=0) if how == "mean" else values.amin(dim=0)


class OffPolicyLearner(Learner):
    """An actor and critics, each with an optimizer. A subclass has `target` and `actor_loss`, and the outputs of its
    networks that these read."""

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
        head, normed = self.critics.head, bool(self.critics.normed_weights())
        check_critics(self.config, len(self.critics), head.kind, head.atoms, normed, self.action_spec)
        self._norm_weights(self.critics)
        self.distribution: Distribution = distribution_of(model, self.action_spec)
        rate = self.config.learning_rate
        self.actor_factor: float = (self.config.actor_learning_rate or rate) / rate
        # Two more sets of critics: one in the same memory, but without gradients, and the target network.
        self.still: Critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.critic_optimizer: FlatOptimizer = self.make_optimizer(self.critics, self._critic_batch_loss, rows=True)
        self.actor_optimizer: FlatOptimizer = self.make_optimizer(self.actor, self._actor_batch_loss)
        self.critic_optimizer.bind_copy(self.still, self.critic_optimizer.values)
        for mine, theirs in zip(self.still.buffers(), self.critics.buffers(), strict=True):
            mine.data = theirs.data
        delayed = self.config.target_network and self.TARGET_ACTOR
        self.target_critics: Target | None = Target(self.critic_optimizer) if self.config.target_network else None
        self.target_actor: Target | None = Target(self.actor_optimizer) if delayed else None
        self.targets: list[Target] = [
            target for target in (self.target_critics, self.target_actor) if target is not None
        ]
        buffers = [] if self.target_critics is None else list(self.target_critics.module.buffers())
        self.target_statistics: list[Tensor] = buffers

    def target(self, outputs: CriticOutputs, rows: ReplayRows, rates: Rates) -> Tensor:
        """What the critics should answer: `[B]` values; c51: `[B, atoms]` probabilities; qr: `[B, m]` samples."""
        raise NotImplementedError

    def critic_loss(self, outputs: CriticOutputs, rows: ReplayRows, rates: Rates) -> Loss:
        """The critics' loss. A row's priority is its mean error over the critics."""
        losses, errors = critic_errors(self.critics.head, outputs.q, outputs.target, self.config.loss)
        loss = (rows.weight * losses.sum(dim=0)).mean()
        with torch.no_grad():
            q = self.critics.head.q_values(outputs.q).mean(dim=0)
            return Loss(loss, {"critic_loss": loss, "mean_q": q}, priority=errors.mean(dim=0))

    def actor_loss(self, outputs: ActorOutputs, rows: ReplayRows, rates: Rates) -> Loss:
        """The actor's loss."""
        raise NotImplementedError

    def critic_outputs(
        self, critics: Critics, rows: ReplayRows, draws: UpdateDraws, statistics: list[Tensor]
    ) -> CriticOutputs:
        """What the networks give for `critic_loss`; `statistics` collects those of batch renormalization."""
        raise NotImplementedError

    def actor_outputs(self, actor: nn.Module, rows: ReplayRows, draws: UpdateDraws) -> ActorOutputs:
        """What the networks give for `actor_loss`."""
        raise NotImplementedError

    def _critic_batch_loss(self, critics: Critics, rows: ReplayRows, draws: UpdateDraws, rates: Rates) -> Loss:
        statistics: list[Tensor] = []
        outputs = self.critic_outputs(critics, rows, draws, statistics)
        with torch.no_grad():
            target = self.target(outputs, rows, rates)
        return self.critic_loss(outputs._replace(target=target), rows, rates)._replace(statistics=statistics)

    def _actor_batch_loss(self, actor: nn.Module, rows: ReplayRows, draws: UpdateDraws, rates: Rates) -> Loss:
        return self.actor_loss(self.actor_outputs(actor, rows, draws), rows, rates)

    def learn(self, batch: ReplayBatch, progress: float = 0.0) -> Learned:
        """One update."""
        rate, config, rates = self.learning_rate(progress), self.config, self.rates_at(progress)
        rows = ops.replay_rows(batch, self.device, config.reward_scale)
        entries, subset = self.distribution.entries, config.critic_subset or len(self.critics)
        drawn = draw_update(self.rng, len(batch.reward), entries, len(self.critics), subset)
        draws = UpdateDraws(*(torch.from_numpy(array).to(self.device) for array in drawn))
        logged = self.critic_optimizer.descend(rate, rows, draws, rates)
        step = self.critic_optimizer.read(logged, len(batch.reward))
        self._norm_weights(self.critics)
        self._renormalize(step.statistics)
        log = step.log("critic_")
        if self.critic_optimizer.count % config.policy_delay == 0:
            log |= self._improve(rate, rows, draws, rates)
        if self.critic_optimizer.count % config.target_every == 0:
            self._move_targets(config.tau)
        return Learned(log | {"learning_rate": rate}, step.priority)

    def _improve(self, rate: float, rows: ReplayRows, draws: UpdateDraws, rates: Rates) -> dict[str, float]:
        """One step of the actor."""
        logged = self.actor_optimizer.descend(rate * self.actor_factor, rows, draws, rates)
        return self.actor_optimizer.read(logged).log("actor_")

    def _q(
        self,
        critics: Critics,
        rows: ReplayRows,
        action: Tensor | None,
        next_action: Tensor | None,
        statistics: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """What the critics answer here and at the next state `[N, B, A, …]`."""
        collect = statistics if self.critics.norms() else None
        if self.target_critics is not None:
            with torch.no_grad():
                next_q = self.target_critics(rows.next_obs, next_action)
            return critics(rows.obs, action, collect), next_q
        both = ops.join_rows(rows.obs, rows.next_obs)
        actions = None if action is None or next_action is None else torch.cat([action, next_action])
        here, there = critics(both, actions, collect).chunk(2, dim=1)
        return here, there.detach()

    @torch.no_grad()
    def _norm_weights(self, critics: Critics) -> None:
        """Scale the weights of every hidden feature to norm 1, if that is wanted."""
        for weight in critics.normed_weights() if self.config.weight_norm else ():
            weight.div_(weight.norm(dim=1, keepdim=True))

    def _renormalize(self, statistics: Any) -> None:
        """Update the running statistics of batch renormalization from the last batch."""
        for norm in self.critics.norms():
            width = len(norm.weight)
            mean, variance, statistics = statistics[:width], statistics[width : 2 * width], statistics[2 * width :]
            norm.update(*(torch.from_numpy(part.copy()).to(self.device) for part in (mean, variance)))

    def _move_targets(self, share: float) -> None:
        for target in self.targets:
            target.move(share)
        for mine, theirs in zip(self.target_statistics, self.critics.buffers(), strict=False):
            mine.copy_(theirs)

    def share(self, group: LearnerGroup) -> None:
        """Share every update with other learners."""
        if self.critics.norms():
            raise BadInput("batch renormalization needs whole batches in one learner; use --num-learners 1")
        self.critic_optimizer.share(SharedGradient(group, part_of_replay))
        self.actor_optimizer.share(SharedGradient(group, part_of_replay))

    def sync_target(self) -> None:
        self._move_targets(1.0)
