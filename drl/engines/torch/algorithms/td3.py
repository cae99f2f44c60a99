"""DDPG (Lillicrap et al., 2016) and TD3 (Fujimoto et al., 2018): a deterministic policy climbs a learned Q(s, a).

TD3 adds twin critics, whose smaller value makes the target, noise on the target's actions, and a delayed policy. Each
is a setting, so that DDPG is TD3 with one critic, no noise and no delay.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.algorithms.td3 import TD3_RECORD, DDPGConfig
from drl.core.contracts import ActorOutputs, CriticOutputs, Loss, Rates
from drl.engines.numpy.update_draws import UpdateDraws
from drl.engines.torch.actor_critics import Critics
from drl.engines.torch.off_policy import OffPolicyLearner, critic_target, reduced
from drl.engines.torch.ops import ReplayRows


class TD3(OffPolicyLearner):
    """Needs a deterministic actor-critic model and Box actions."""

    config: DDPGConfig
    record: ClassVar[AlgorithmRecord] = TD3_RECORD
    TARGET_ACTOR: ClassVar[bool] = True

    def critic_outputs(
        self, critics: Critics, rows: ReplayRows, draws: UpdateDraws, statistics: list[Tensor]
    ) -> CriticOutputs:
        with torch.no_grad():
            next_action = torch.tanh((self.target_actor or self.actor)(rows.next_obs))
            if self.config.target_noise:
                limit = self.config.target_noise_clip
                noise = (self.config.target_noise * draws.next_noise).clamp(-limit, limit)
                next_action = (next_action + noise).clamp(-1.0, 1.0)
        q, next_q = self._q(critics, rows, rows.action, next_action, statistics)
        return CriticOutputs(q.squeeze(2), next_q.squeeze(2)[draws.subset])  # one action: [N, B] or [N, B, atoms]

    def target(self, outputs: CriticOutputs, rows: ReplayRows, rates: Rates) -> Tensor:
        return critic_target(self.critics.head, outputs.next_q, torch.zeros_like(rows.reward), rows, self.config)

    def actor_outputs(self, actor: nn.Module, rows: ReplayRows, draws: UpdateDraws) -> ActorOutputs:
        dist_params = actor(rows.obs)
        action = torch.tanh(dist_params)
        return ActorOutputs(
            dist_params, action, None, self.critics.head.q_values(self.still(rows.obs, action).squeeze(2))
        )

    def actor_loss(self, outputs: ActorOutputs, rows: ReplayRows, rates: Rates) -> Loss:
        """Climb the critics' value of the policy's action."""
        loss = -reduced(outputs.q, self.config.actor_q).mean()
        return Loss(loss, {"actor_loss": loss})
