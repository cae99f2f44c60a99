"""DDPG (Lillicrap et al., 2016) and TD3 (Fujimoto et al., 2018): a deterministic policy climbs a learned Q(s, a).

TD3 adds twin critics, whose smaller value makes the target, noise on the target's actions, and a delayed policy. Each
is a setting, so that DDPG is TD3 with one critic, no noise and no delay.
"""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from drl.core.algorithms.algorithm_record import AlgorithmRecord
from drl.core.algorithms.td3_record import TD3_RECORD, DDPGConfig, TD3Config
from drl.core.seeding import stream_of
from drl.core.specs import Specs
from drl.engines.numpy.update_draws import UpdateDraws
from drl.engines.torch.actor_critics import Critics
from drl.engines.torch.off_policy import OffPolicyLearner, critic_errors, critic_target, reduced
from drl.engines.torch.ops import ReplayRows


class TD3(OffPolicyLearner):
    """Needs a deterministic actor-critic model and Box actions."""

    config: DDPGConfig
    ACTOR_LOGS: tuple[str] = ("actor_loss",)
    TARGET_ACTOR = True

    record: ClassVar[AlgorithmRecord] = TD3_RECORD

    def __init__(
        self,
        model: nn.Module,
        specs: Specs,
        config: DDPGConfig | None = None,
        rng: np.random.Generator | None = None,
        compile_update: bool = False,
    ):
        self.config = config or TD3Config()
        super().__init__(
            model,
            specs.action_spec,
            TD3_RECORD.variant(self.config),
            rng or stream_of(specs, "learner"),
            compile_update,
        )

    def critic_loss(
        self, critics: Critics, rows: ReplayRows, draws: UpdateDraws, *state: Tensor
    ) -> tuple[Tensor, Tensor]:
        config, head = self.config, self.critics.head
        with torch.no_grad():
            next_action = torch.tanh((self.target_actor or self.actor)(rows.next_obs))
            if config.target_noise:
                noise = (config.target_noise * draws.next_noise).clamp(
                    -config.target_noise_clip, config.target_noise_clip
                )
                next_action = (next_action + noise).clamp(-1.0, 1.0)
        answers, next_answers, seen = self._answers(critics, rows, rows.action, next_action)
        answers, next_answers = answers.squeeze(2), next_answers.squeeze(2)  # one action: [N, B] or [N, B, atoms]
        with torch.no_grad():
            goal = critic_target(head, next_answers[draws.subset], torch.zeros_like(rows.reward), rows, config)
        losses, errors = critic_errors(head, answers, goal, config.loss)
        loss = (rows.weight * losses.sum(dim=0)).mean()
        with torch.no_grad():
            q = head.q_values(answers).mean(dim=0)
            return loss, torch.cat([loss[None], q, errors.mean(dim=0), *seen])

    def actor_loss(self, actor: nn.Module, rows: ReplayRows, noise: Tensor, *state: Tensor) -> tuple[Tensor, Tensor]:
        answers = self.still(rows.obs, torch.tanh(actor(rows.obs))).squeeze(2)
        loss = -reduced(self.critics.head.q_values(answers), self.config.actor_q).mean()
        return loss, loss.detach()[None]
