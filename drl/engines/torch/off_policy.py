"""What the actor-critics with a replay buffer share: the loss of their critics, optimizers, target networks.

An update moves the critics, then (every `policy_delay` updates) the actor, then the target networks. Critics are plain,
or have a distribution over returns: c51 (logits of a fixed support) or qr (quantiles).
"""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drl.core.algorithms.off_policy_config import OffPolicyConfig, check_critics
from drl.core.contracts import Learned
from drl.core.errors import BadInput
from drl.core.schedules import Schedule, schedule_of
from drl.core.seeding import generator_state, restore_generator
from drl.core.specs import ActionSpec, Distribution
from drl.core.state_files import StateDict
from drl.core.transition import ReplayBatch
from drl.engines.numpy.update_draws import UpdateDraws, draw_update
from drl.engines.torch import ops
from drl.engines.torch.actor_critics import ActorCritic, Critics
from drl.engines.torch.flat_optimizer import FlatOptimizer
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
    """An actor and critics, each with an optimizer. A subclass has the two losses.

    `critic_loss` logs the loss, the value and the error of every row, and what batch renormalization has seen;
    `actor_loss` logs the numbers that `ACTOR_LOGS` names.
    """

    config: OffPolicyConfig
    ACTOR_LOGS: Sequence[str]
    TARGET_ACTOR = False  # whether the target's actions are those of a target policy

    def __init__(
        self,
        model: nn.Module,
        action_spec: ActionSpec,
        needs: str,
        rng: np.random.Generator | None = None,
        compile_update: bool = False,
    ):
        super().__init__(model, needs)
        if not isinstance(model, ActorCritic):
            raise BadInput(f"{type(self).__name__} needs an ActorCritic model; build it with make_actor_critic(…)")
        config, critics = self.config, model.critics
        head, normed = critics.head, bool(critics.normed_weights())
        check_critics(config, len(critics), head.kind, head.atoms, normed, action_spec)
        self._norm_weights(critics)
        # Draws the noise of actions and the subset of critics.
        self.rng: np.random.Generator = rng or np.random.default_rng(0)
        self.action_spec: ActionSpec = action_spec
        self.compiled: bool = compile_update
        self.distribution: Distribution = distribution_of(model, action_spec)
        self.device: torch.device = next(model.parameters()).device
        self.learning_rate: Schedule = schedule_of(config, "learning_rate")
        self.actor_factor: float = (config.actor_learning_rate or config.learning_rate) / config.learning_rate
        self.critics: Critics = critics
        self.actor: Model = model.actor
        # Two more sets of critics: one in the same memory, but without gradients, and the target network.
        self.still: Critics = copy.deepcopy(critics).requires_grad_(False)
        self.target: Critics | None = copy.deepcopy(critics).requires_grad_(False) if config.target_network else None
        delayed = config.target_network and self.TARGET_ACTOR
        self.target_actor: Model | None = copy.deepcopy(model.actor).requires_grad_(False) if delayed else None
        self.critic_optimizer: FlatOptimizer = self._optimizer(critics, self.critic_loss)
        self.actor_optimizer: FlatOptimizer = self._optimizer(model.actor, self.actor_loss)
        self.critic_optimizer.bind_copy(self.still, self.critic_optimizer.values)
        for mine, theirs in zip(self.still.buffers(), critics.buffers(), strict=True):
            mine.data = theirs.data
        self.target_values: list[Tensor] = [
            optimizer.bind_copy(network, optimizer.values.clone())
            for network, optimizer in (
                (self.target, self.critic_optimizer),
                (self.target_actor, self.actor_optimizer),
            )
            if network is not None
        ]

    def _optimizer(self, module: nn.Module, loss: Any) -> FlatOptimizer:
        config = self.config
        return FlatOptimizer(
            module,
            partial(loss),
            kind=config.optimizer,
            eps=config.adam_eps,
            beta1=config.adam_beta1,
            max_grad_norm=config.max_grad_norm,
            weight_decay=config.weight_decay,
            compiled=self.compiled,
        )

    def critic_loss(
        self, critics: Critics, rows: ReplayRows, draws: UpdateDraws, *state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The critics' loss, and what to log with the error of each row."""
        raise NotImplementedError

    def actor_loss(self, actor: nn.Module, rows: ReplayRows, noise: Tensor, *state: Tensor) -> tuple[Tensor, Tensor]:
        """The actor's loss, and what to log."""
        raise NotImplementedError

    def learn(self, batch: ReplayBatch, progress: float = 0.0) -> Learned:
        """One update. A row's priority is its mean error over the critics."""
        rate, config = self.learning_rate(progress), self.config
        rows = ops.replay_rows(batch, self.device, config.reward_scale)
        entries, subset = self.distribution.entries, config.critic_subset or len(self.critics)
        drawn = draw_update(self.rng, len(batch.reward), entries, len(self.critics), subset)
        draws = UpdateDraws(*(torch.from_numpy(array).to(self.device) for array in drawn))
        logged = self.critic_optimizer.descend(rate, rows, draws, *self._state()).cpu().numpy()
        self._norm_weights(self.critics)
        count = len(batch.reward)
        q, priority = logged[1 : 1 + count], logged[1 + count : 1 + 2 * count]
        self._renormalize(logged[1 + 2 * count : -1])
        log = {
            "critic_loss": logged[0],
            "mean_q": q.mean(),
            "mean_error": priority.mean(),
            "critic_grad_norm": logged[-1],
        }
        if self.critic_optimizer.count % config.policy_delay == 0:
            log |= self._improve(rate, rows, draws)
        if self.critic_optimizer.count % config.target_every == 0:
            self._move_targets(config.tau)
        return Learned({name: float(number) for name, number in log.items()} | {"learning_rate": rate}, priority)

    def _state(self) -> tuple[Tensor, ...]:
        """What else the losses read, such as a temperature."""
        return ()

    def _improve(self, rate: float, rows: ReplayRows, draws: UpdateDraws) -> dict[str, float]:
        """One step of the actor."""
        rate = rate * self.actor_factor
        logged = self.actor_optimizer.descend(rate, rows, draws.noise, *self._state()).cpu().numpy()
        return dict(zip((*self.ACTOR_LOGS, "actor_grad_norm"), logged, strict=True))

    def _answers(
        self, critics: Critics, rows: ReplayRows, action: Tensor | None, next_action: Tensor | None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The critics' answers here and at the next state `[N, B, A, …]`, and what batch renormalization has seen."""
        seen: list[Tensor] = []
        collect = seen if self.critics.norms() else None
        if self.target is not None:
            with torch.no_grad():
                next_answers = self.target(rows.next_obs, next_action)
            return critics(rows.obs, action, collect), next_answers, seen
        both = ops.join_rows(rows.obs, rows.next_obs)
        actions = None if action is None or next_action is None else torch.cat([action, next_action])
        here, there = critics(both, actions, collect).chunk(2, dim=1)
        return here, there.detach(), seen

    @torch.no_grad()
    def _norm_weights(self, critics: Critics) -> None:
        """Scale the weights of every hidden feature to norm 1, if that is wanted."""
        for weight in critics.normed_weights() if self.config.weight_norm else ():
            weight.div_(weight.norm(dim=1, keepdim=True))

    def _renormalize(self, seen: Any) -> None:
        """Update the running statistics of batch renormalization from what the last batch has shown."""
        for norm in self.critics.norms():
            width = len(norm.weight)
            mean, variance, seen = seen[:width], seen[width : 2 * width], seen[2 * width :]
            norm.update(*(torch.from_numpy(part.copy()).to(self.device) for part in (mean, variance)))

    def _move_targets(self, share: float) -> None:
        for values, optimizer in zip(self.target_values, (self.critic_optimizer, self.actor_optimizer), strict=False):
            values.lerp_(optimizer.values, share)
        for mine, theirs in zip(self._target_buffers(), self.critics.buffers(), strict=False):
            mine.copy_(theirs)

    def _target_buffers(self) -> list[Tensor]:
        """The running statistics of the target critics."""
        return [] if self.target is None else list(self.target.buffers())

    def share(self, group: LearnerGroup) -> None:
        """Share every update with other learners."""
        if self.critics.norms():
            raise BadInput("batch renormalization needs whole batches in one learner; use --num-learners 1")
        self.critic_optimizer.share(SharedGradient(group, part_of_replay, means=1, columns=2))
        self.actor_optimizer.share(SharedGradient(group, part_of_replay, means=len(self.ACTOR_LOGS)))

    def sync_target(self) -> None:
        self._move_targets(1.0)

    def state_dict(self) -> StateDict:
        return {
            "critics": self.critic_optimizer.state_dict(),
            "actor": self.actor_optimizer.state_dict(),
            "targets": [values.cpu().numpy().copy() for values in self.target_values],
            "target_statistics": [buffer.cpu().numpy().copy() for buffer in self._target_buffers()],
            "rng": generator_state(self.rng),
        }

    def load_state_dict(self, state: StateDict) -> None:
        self.critic_optimizer.load_state_dict(state["critics"])
        self.actor_optimizer.load_state_dict(state["actor"])
        for values, stored in zip(self.target_values, state["targets"], strict=True):
            values.copy_(torch.from_numpy(np.array(stored)))
        for buffer, stored in zip(self._target_buffers(), state["target_statistics"], strict=True):
            buffer.copy_(torch.from_numpy(np.array(stored)))
        restore_generator(self.rng, state["rng"])
