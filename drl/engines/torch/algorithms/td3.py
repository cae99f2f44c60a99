"""DDPG (Lillicrap et al., 2016) and TD3 (Fujimoto et al., 2018): a deterministic policy climbs a learned Q(s, a).

TD3 adds twin critics, whose smaller value makes the target, noise on the target's actions, and a delayed policy. Each
is a setting, so that DDPG is TD3 with one critic, no noise and no delay.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.algorithms.td3 import TD3_RECORD, DDPGConfig
from drl.core.contracts import ActorOutputs, CriticOutputs, Learned, Loss, Rates, ReplayBatch
from drl.engines.numpy.distributions import UpdateDraws, draw_update
from drl.engines.torch import ops
from drl.engines.torch.actor_critics import Critics, critic_errors, critic_target, norm_weights, reduced, update_norms
from drl.engines.torch.off_policy import OffPolicyLearner
from drl.engines.torch.ops import ReplayRows


class TD3(OffPolicyLearner):
    """Needs a deterministic actor-critic model and Box actions."""

    config: DDPGConfig
    record: ClassVar[AlgorithmRecord] = TD3_RECORD
    TARGET_ACTOR: ClassVar[bool] = True

    def learn(self, batch: ReplayBatch, progress: float = 0.0) -> Learned:
        """One update: the critics, then, with a delay, the actor and the target networks."""
        config, rate, rates = self.config, self.learning_rate(progress), self.rates_at(progress)
        rows = ops.replay_rows(batch, self.device, config.reward_scale)
        drawn = draw_update(self.rng, len(batch.reward), self.distribution.entries, len(self.critics), self.subset)
        draws = UpdateDraws(*(torch.from_numpy(array).to(self.device) for array in drawn))

        step = self.critic_optimizer.step(rate, rows, draws, rates)
        if config.weight_norm:
            norm_weights(self.critics)
        if self.norms:
            update_norms(self.norms, step.statistics)
        log = step.log("critic_")

        if self.critic_optimizer.count % config.policy_delay == 0:
            log |= self.actor_optimizer.step(rate * self.actor_factor, rows, draws, rates).log("actor_")

        if self.critic_optimizer.count % config.target_every == 0:
            for target in self.targets:
                target.move(config.tau)
        return Learned(log | {"learning_rate": rate}, step.priority)

    def _critic_batch_loss(self, critics: Critics, rows: ReplayRows, draws: UpdateDraws, rates: Rates) -> Loss:
        config, target_actor = self.config, self.actor if self.target_actor is None else self.target_actor.module
        with torch.no_grad():
            next_action = torch.tanh(target_actor(rows.next_obs))
            if config.target_noise:
                limit = config.target_noise_clip
                noise = (config.target_noise * draws.next_noise).clamp(-limit, limit)
                next_action = (next_action + noise).clamp(-1.0, 1.0)
        statistics: list[Tensor] = []  # of batch renormalization
        if self.target_critics is not None:
            with torch.no_grad():
                next_q = self.target_critics.module(rows.next_obs, next_action)
            q = critics(rows.obs, rows.action, statistics)
        else:  # the critics see both states in one batch
            q, next_q = critics(*ops.both_states(rows, rows.action, next_action), statistics).chunk(2, dim=1)
        # Of one action: [N, B, 1, …] → [N, B, …].
        outputs = CriticOutputs(q.squeeze(2), next_q.detach().squeeze(2)[draws.subset])
        with torch.no_grad():
            target = self.target(outputs, rows, rates)
        return self.critic_loss(outputs._replace(target=target), rows, rates)._replace(statistics=statistics)

    def target(self, outputs: CriticOutputs, rows: ReplayRows, rates: Rates) -> Tensor:
        """The smaller of the next values."""
        return critic_target(self.critics.head, outputs.next_q, torch.zeros_like(rows.reward), rows, self.config)

    def critic_loss(self, outputs: CriticOutputs, rows: ReplayRows, rates: Rates) -> Loss:
        """The importance-weighted error of all critics. A row's priority is its mean error over the critics."""
        losses, errors = critic_errors(self.critics.head, outputs.q, outputs.target, self.config.loss)  # [N, B]
        loss = (rows.weight * losses.sum(dim=0)).mean()
        with torch.no_grad():
            mean_q = self.critics.head.q_values(outputs.q).mean(dim=0)
            return Loss(loss, {"critic_loss": loss, "mean_q": mean_q}, priority=errors.mean(dim=0))

    def _actor_batch_loss(self, actor: nn.Module, rows: ReplayRows, draws: UpdateDraws, rates: Rates) -> Loss:
        dist_params = actor(rows.obs)
        action = torch.tanh(dist_params)
        q = self.critics.head.q_values(self.frozen_critics(rows.obs, action).squeeze(2))
        return self.actor_loss(ActorOutputs(dist_params, action, None, q), rows, rates)

    def actor_loss(self, outputs: ActorOutputs, rows: ReplayRows, rates: Rates) -> Loss:
        """−Q of the policy's action."""
        loss = -reduced(outputs.q, self.config.actor_q).mean()
        return Loss(loss, {"actor_loss": loss})
