"""SAC (Haarnoja et al., 2018), and three algorithms that are settings of it: TQC, CrossQ and normalized SAC.

The actor maximizes the expected Q(s, a) − α log π(a | s): the action value plus α times the policy's entropy. The
temperature α is constant, or learned so that the entropy stays near `target_entropy`. With Discrete actions,
expectations over actions are exact sums (Christodoulou, 2019). TQC (Kuznetsov et al., 2020) has critics of quantiles
and drops the largest from the target. CrossQ (Bhatt et al., 2024) has batch renormalization in its critics and no
target network. Normalized SAC is CrossQ with C51 critics whose hidden weights are scaled to norm 1 after every update.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.algorithms.sac import LIKELY, SAC_RECORD, SACConfig
from drl.core.contracts import ActorOutputs, CriticOutputs, Learned, Loss, Rates, ReplayBatch
from drl.core.schedules import rates_type
from drl.core.specs import Specs
from drl.engines.numpy.distributions import UpdateDraws, draw_update
from drl.engines.torch import ops
from drl.engines.torch.actor_critics import Critics, critic_errors, critic_target, norm_weights, reduced, update_norms
from drl.engines.torch.flat_optimizer import FlatOptimizer
from drl.engines.torch.off_policy import OffPolicyLearner
from drl.engines.torch.ops import ReplayRows


class Temperature(nn.Module):
    """The logarithm of α, the weight of the entropy."""

    def __init__(self, initial: float):
        super().__init__()
        self.log_alpha: nn.Parameter = nn.Parameter(torch.tensor([math.log(initial)]))

    def forward(self) -> Tensor:
        return self.log_alpha


class SAC(OffPolicyLearner):
    """Needs an actor-critic model, and Box or Discrete actions. Losses get the temperature α as `rates.temperature`."""

    config: SACConfig
    record: ClassVar[AlgorithmRecord] = SAC_RECORD
    KEYS: ClassVar[Mapping[str, str | None]] = {**OffPolicyLearner.KEYS, "temperature_optimizer": "temperature"}

    def __init__(
        self,
        model: nn.Module,
        specs: Specs,
        config: SACConfig | None = None,
        rng: np.random.Generator | None = None,
        compile_update: bool = False,
    ):
        super().__init__(model, specs, config, rng, compile_update)
        self.discrete: bool = self.action_spec.kind == "discrete"
        self.entropy_goal: float = self.config.entropy_goal(self.action_spec)
        self.temperature: Temperature = Temperature(self.config.temperature).to(self.device)
        self.temperature_optimizer: FlatOptimizer = FlatOptimizer(
            self.temperature, lambda temperature: Loss(temperature().sum(), {}), eps=self.config.adam_eps
        )
        rates = (self.config.temperature_learning_rate, self.config.learning_rate)
        self.temperature_factor: float = (rates[0] or rates[1]) / rates[1]

    def learn(self, batch: ReplayBatch, progress: float = 0.0) -> Learned:
        """One update: the critics, the actor, the temperature, the target networks."""
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
            if config.learn_temperature:  # it falls where the policy has more entropy than it should
                excess = torch.tensor([np.float32(log["entropy"]) - self._entropy_goal(rows)], device=self.device)
                self.temperature_optimizer.step_along(rate * self.temperature_factor, excess)
            log["temperature"] = float(self.temperature.log_alpha.detach().exp())

        if self.critic_optimizer.count % config.target_every == 0:
            for target in self.targets:
                target.move(config.tau)
        return Learned(log | {"learning_rate": rate}, step.priority)

    # ── critics ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _critic_batch_loss(self, critics: Critics, rows: ReplayRows, draws: UpdateDraws, rates: Rates) -> Loss:
        action, next_action = None if self.discrete else rows.action, None
        with torch.no_grad():
            next_params = self.actor(rows.next_obs)
            if self.discrete:
                next_log_prob = self._log_probs(next_params, rows.next_action_mask)
            else:
                next_action, next_log_prob = ops.sample_with_log_prob(self.distribution, next_params, draws.next_noise)
        statistics: list[Tensor] = []  # of batch renormalization
        if self.target_critics is not None:
            with torch.no_grad():
                next_q = self.target_critics.module(rows.next_obs, next_action)
            q = critics(rows.obs, action, statistics)
        else:  # the critics see both states in one batch
            q, next_q = critics(*ops.both_states(rows, action, next_action), statistics).chunk(2, dim=1)
        # Of one action, or of the chosen one: [N, B, A, …] → [N, B, …].
        if self.discrete:
            q = q.gather(2, rows.action.view(1, -1, 1).expand(len(q), -1, 1)).squeeze(2)
        else:
            q, next_q = q.squeeze(2), next_q.squeeze(2)
        outputs = CriticOutputs(q, next_q.detach()[draws.subset], next_log_prob)
        with torch.no_grad():
            target = self.target(outputs, rows, rates)
        return self.critic_loss(outputs._replace(target=target), rows, rates)._replace(statistics=statistics)

    def target(self, outputs: CriticOutputs, rows: ReplayRows, rates: Rates) -> Tensor:
        """The next values and −α · log π; with Discrete actions their expectation under the policy."""
        config, log_prob = self.config, outputs.next_log_prob
        if self.discrete:
            next_q = reduced(outputs.next_q, config.target_q)
            value = (log_prob.exp() * (next_q - rates.temperature * log_prob)).sum(dim=-1)
            return ops.q_target(rows.reward, rows.discount, value)
        bonus = -rates.temperature * log_prob
        return critic_target(self.critics.head, outputs.next_q, bonus, rows, config, config.quantiles_to_drop)

    def critic_loss(self, outputs: CriticOutputs, rows: ReplayRows, rates: Rates) -> Loss:
        """The importance-weighted error of all critics. A row's priority is its mean error over the critics."""
        losses, errors = critic_errors(self.critics.head, outputs.q, outputs.target, self.config.loss)  # [N, B]
        loss = (rows.weight * losses.sum(dim=0)).mean()
        with torch.no_grad():
            mean_q = self.critics.head.q_values(outputs.q).mean(dim=0)
            return Loss(loss, {"critic_loss": loss, "mean_q": mean_q}, priority=errors.mean(dim=0))

    # ── actor and temperature ─────────────────────────────────────────────────────────────────────────────────────

    def _actor_batch_loss(self, actor: nn.Module, rows: ReplayRows, draws: UpdateDraws, rates: Rates) -> Loss:
        dist_params, action = actor(rows.obs), None
        if self.discrete:
            log_prob, q = self._log_probs(dist_params, rows.action_mask), self.frozen_critics(rows.obs)
        else:
            action, log_prob = ops.sample_with_log_prob(self.distribution, dist_params, draws.noise)
            q = self.critics.head.q_values(self.frozen_critics(rows.obs, action).squeeze(2))
        return self.actor_loss(ActorOutputs(dist_params, action, log_prob, q), rows, rates)

    def actor_loss(self, outputs: ActorOutputs, rows: ReplayRows, rates: Rates) -> Loss:
        """α · log π − Q; with Discrete actions its expectation."""
        q, log_prob = reduced(outputs.q, self.config.actor_q), outputs.log_prob
        if self.discrete:  # exact expectations over all actions
            log_prob, q = (log_prob.exp() * log_prob).sum(dim=-1), (log_prob.exp() * q).sum(dim=-1)
        loss = (rates.temperature * log_prob - q).mean()
        return Loss(loss, {"actor_loss": loss, "entropy": -log_prob.mean()})

    def rates_at(self, progress: float) -> Rates:
        """The rates of the losses, and α without its gradient."""
        rates = super().rates_at(progress)
        alpha = self.temperature.log_alpha.detach().exp()
        named: Rates = rates_type((*rates._fields, "temperature"))(*rates, alpha)
        return named

    def _log_probs(self, logits: Tensor, action_mask: Tensor | None) -> Tensor:
        """Of all Discrete actions `[B, A]`."""
        if action_mask is not None:
            logits = ops.masked(self.distribution, logits, action_mask)
        return logits.log_softmax(dim=-1)

    def _entropy_goal(self, rows: ReplayRows) -> float:
        if rows.action_mask is None or self.config.target_entropy is not None:
            return self.entropy_goal
        return LIKELY * float(rows.action_mask.sum(dim=1).log().mean())
