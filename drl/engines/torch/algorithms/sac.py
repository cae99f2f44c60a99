"""SAC (Haarnoja et al., 2018), and three algorithms that are settings of it: TQC, CrossQ and normalized SAC.

The actor maximizes the expected Q(s, a) − α log π(a | s): the action value plus α times the policy's entropy. The
temperature α is constant, or learned so that the entropy stays near `target_entropy`. With Discrete actions,
expectations over actions are exact sums (Christodoulou, 2019). TQC (Kuznetsov et al., 2020) has critics of quantiles
and drops the largest from the target. CrossQ (Bhatt et al., 2024) has batch renormalization in its critics and no
target network. Normalized SAC is CrossQ with C51 critics whose hidden weights are scaled to norm 1 after every update.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from drl.core.algorithms.algorithm_record import AlgorithmRecord
from drl.core.algorithms.sac_record import LIKELY, SAC_RECORD, SACConfig
from drl.core.seeding import stream_of
from drl.core.specs import Specs
from drl.core.state_files import StateDict
from drl.engines.numpy.update_draws import UpdateDraws
from drl.engines.torch import ops
from drl.engines.torch.actor_critics import Critics
from drl.engines.torch.flat_optimizer import FlatOptimizer
from drl.engines.torch.off_policy import OffPolicyLearner, critic_errors, critic_target, reduced
from drl.engines.torch.ops import ReplayRows


class Temperature(nn.Module):
    """The logarithm of α, the weight of the entropy."""

    def __init__(self, initial: float):
        super().__init__()
        self.log_alpha: nn.Parameter = nn.Parameter(torch.tensor([math.log(initial)]))

    def forward(self) -> Tensor:
        return self.log_alpha


def temperature_loss(temperature: Temperature, excess: Tensor) -> tuple[Tensor, Tensor]:
    """`excess` is how much more entropy the policy has than it should; α falls where that is positive."""
    loss = (temperature() * excess).sum()
    return loss, loss.detach()[None]


class SAC(OffPolicyLearner):
    """Needs an actor-critic model, and Box or Discrete actions."""

    config: SACConfig
    ACTOR_LOGS: Sequence[str] = ("actor_loss", "entropy")

    record: ClassVar[AlgorithmRecord] = SAC_RECORD

    def __init__(
        self,
        model: nn.Module,
        specs: Specs,
        config: SACConfig | None = None,
        rng: np.random.Generator | None = None,
        compile_update: bool = False,
    ):
        self.config = config or SACConfig()
        self.discrete: bool = specs.action_spec.kind == "discrete"
        super().__init__(
            model,
            specs.action_spec,
            SAC_RECORD.variant(self.config),
            rng or stream_of(specs, "learner"),
            compile_update,
        )
        self.entropy_goal: float = self.config.entropy_goal(specs.action_spec)
        self.temperature: Temperature = Temperature(self.config.temperature).to(self.device)
        self.temperature_optimizer: FlatOptimizer = FlatOptimizer(
            self.temperature, temperature_loss, eps=self.config.adam_eps
        )
        rates = (self.config.temperature_learning_rate, self.config.learning_rate)
        self.temperature_factor: float = (rates[0] or rates[1]) / rates[1]

    def _state(self) -> tuple[Tensor, ...]:
        return (self.temperature.log_alpha.detach().exp(),)

    def critic_loss(
        self, critics: Critics, rows: ReplayRows, draws: UpdateDraws, *state: Tensor
    ) -> tuple[Tensor, Tensor]:
        config, head, (alpha,) = self.config, self.critics.head, state
        with torch.no_grad():
            next_params = self.actor(rows.next_obs)
        if self.discrete:
            answers, next_answers, seen = self._answers(critics, rows, None, None)
            index = rows.action.view(1, -1, 1).expand(len(answers), -1, 1)
            answers = answers.gather(2, index).squeeze(2)
            with torch.no_grad():
                log_probs = self._log_probs(next_params, rows.next_action_mask)
                next_q = reduced(next_answers[draws.subset], config.target_q)
                value = (log_probs.exp() * (next_q - alpha * log_probs)).sum(dim=-1)
                goal = ops.q_target(rows.reward, rows.continues, value)
        else:
            next_action, log_prob = ops.sample_with_log_prob(self.distribution, next_params, draws.next_noise)
            answers, next_answers, seen = self._answers(critics, rows, rows.action, next_action)
            answers, next_answers = answers.squeeze(2), next_answers.squeeze(2)  # one action: [N, B] or [N, B, atoms]
            with torch.no_grad():
                chosen, drop = next_answers[draws.subset], config.quantiles_to_drop
                goal = critic_target(head, chosen, -alpha * log_prob, rows, config, drop)
        losses, errors = critic_errors(head, answers, goal, config.loss)
        loss = (rows.weight * losses.sum(dim=0)).mean()
        with torch.no_grad():
            q = head.q_values(answers).mean(dim=0)
            return loss, torch.cat([loss[None], q, errors.mean(dim=0), *seen])

    def actor_loss(self, actor: nn.Module, rows: ReplayRows, noise: Tensor, *state: Tensor) -> tuple[Tensor, Tensor]:
        dist_params, how, (alpha,) = actor(rows.obs), self.config.actor_q, state
        if self.discrete:
            log_probs = self._log_probs(dist_params, rows.action_mask)
            q = reduced(self.still(rows.obs), how)
            log_prob = (log_probs.exp() * log_probs).sum(dim=-1)
            loss = alpha * log_prob - (log_probs.exp() * q).sum(dim=-1)
        else:
            action, log_prob = ops.sample_with_log_prob(self.distribution, dist_params, noise)
            answers = self.still(rows.obs, action).squeeze(2)
            loss = alpha * log_prob - reduced(self.critics.head.q_values(answers), how)
        mean = loss.mean()
        return mean, torch.stack([mean, -log_prob.mean()]).detach()

    def _log_probs(self, logits: Tensor, action_mask: Tensor | None) -> Tensor:
        """Of all Discrete actions `[B, A]`."""
        if action_mask is not None:
            logits = ops.masked(self.distribution, logits, action_mask)
        return logits.log_softmax(dim=-1)

    def _improve(self, rate: float, rows: ReplayRows, draws: UpdateDraws) -> dict[str, float]:
        log = super()._improve(rate, rows, draws)
        if self.config.learn_temperature:
            excess = torch.tensor([log["entropy"] - self._entropy_goal(rows)], device=self.device)
            self.temperature_optimizer.descend(rate * self.temperature_factor, excess)
        return log | {"temperature": float(self._state()[0])}

    def _entropy_goal(self, rows: ReplayRows) -> float:
        if rows.action_mask is None or self.config.target_entropy is not None:
            return self.entropy_goal
        return LIKELY * float(rows.action_mask.sum(dim=1).log().mean())

    def state_dict(self) -> StateDict:
        return super().state_dict() | {"temperature": self.temperature_optimizer.state_dict()}

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self.temperature_optimizer.load_state_dict(state["temperature"])
