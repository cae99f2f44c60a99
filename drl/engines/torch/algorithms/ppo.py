"""PPO-clip (Schulman et al., 2017): several epochs of minibatches on one rollout, the ratio clipped."""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.algorithms.ppo import RECORD, PPOConfig
from drl.core.contracts import Learned, Loss, PolicyOutputs, Rates, RolloutBatch
from drl.core.errors import BadInput
from drl.core.schedules import Schedule, changing_rates, values_at
from drl.core.specs import Distribution, Specs
from drl.engines.numpy.model_kinds import distribution_of
from drl.engines.torch import ops
from drl.engines.torch.flat_optimizer import FlatOptimizer, GradientStep, mean_log
from drl.engines.torch.learner import Learner
from drl.engines.torch.learner_group import LearnerGroup, SharedGradient, part_of_rollout
from drl.engines.torch.models import PolicyValueModel
from drl.engines.torch.on_policy import Rows, evaluate_rollout, minibatches_of_envs, normalized
from drl.engines.torch.recurrent import Sequences


class PPO(Learner):
    """Learns from rollouts of its own policy. Needs a policy-value model."""

    config: PPOConfig
    record: ClassVar[AlgorithmRecord] = RECORD
    RATES: ClassVar[tuple[str, ...]] = ("clip_range", "entropy_coef")

    def __init__(
        self,
        model: nn.Module,
        specs: Specs,
        config: PPOConfig | None = None,
        rng: np.random.Generator | None = None,  # shuffles the rollout
        compile_update: bool = False,
    ):
        super().__init__(model, specs, config, rng, compile_update)
        self.dist: Distribution = distribution_of(model, self.action_spec)
        self.changing: dict[str, Schedule] = changing_rates(self.config, "entropy_coef")
        self.normalize: bool = self.config.normalize_advantage
        groups: list[tuple[Iterator[nn.Parameter], float]] = []
        if self.config.critic_learning_rate is not None:
            if not isinstance(model, PolicyValueModel) or model.shared:
                raise BadInput("critic_learning_rate needs a critic of its own: a PolicyValueModel with shared off")
            factor = self.config.critic_learning_rate / self.config.learning_rate
            groups = [(model.critic.parameters(), factor)]
        self.optimizer: FlatOptimizer = self.make_optimizer(model, self._minibatch_loss, groups)

    def loss(self, outputs: PolicyOutputs, rows: Rows, rates: Rates) -> Loss:
        """The loss of one minibatch and what to log of it. `rates` has `clip_range` and `entropy_coef`."""
        log_ratio = outputs.log_prob - rows.log_prob  # [B]
        ratio = log_ratio.exp()
        surrogate = ops.clipped_surrogate(ratio, rows.advantage, rates.clip_range)
        if self.config.value_clip is None:
            value_error = (outputs.value - rows.target).square()
        else:
            value_error = ops.clipped_value_error(outputs.value, rows.value, rows.target, self.config.value_clip)

        policy_loss, value_loss, entropy = -surrogate.mean(), value_error.mean(), outputs.entropy.mean()
        loss = policy_loss + self.config.value_coef * value_loss - rates.entropy_coef * entropy

        with torch.no_grad():
            clipped = ratio.clamp(1 - rates.clip_range, 1 + rates.clip_range)
            metrics = {
                "policy_loss": policy_loss,
                "value_loss": value_loss,
                "entropy": entropy,
                "approx_kl": ((ratio - 1) - log_ratio).mean(),  # the low-variance estimate of KL(old ‖ new)
                "clip_fraction": (ratio != clipped).float().mean(),
                "mean_clipped_ratio": clipped.mean(),
            }
        return Loss(loss, metrics)

    def _minibatch_loss(self, model: nn.Module, rows: Rows, rates: Rates) -> Loss:
        rows = normalized(rows) if self.normalize else rows
        dist_params, value = model(rows.obs)
        log_prob, entropy = ops.log_prob_and_entropy(self.dist, dist_params, rows.action, rows.action_mask)
        return self.loss(PolicyOutputs(dist_params, value, log_prob, entropy), rows, rates)

    def learn(self, batch: RolloutBatch, progress: float = 0.0) -> Learned:
        rate, rates = self.learning_rate(progress), self.rates_at(progress)
        rows = evaluate_rollout(self.model, self.dist, batch, self.config.gamma, self.config.gae_lambda)
        steps: list[GradientStep] = []  # numbers to log stay on the device until the end
        for _ in range(self.config.epochs):
            for minibatch in self._minibatches(rows):
                steps.append(self.optimizer.step(rate, minibatch, rates))
            if self.config.target_kl and float(steps[-1].metrics["approx_kl"]) > 1.5 * self.config.target_kl:
                break
        fit = ops.explained_variance(rows.value.cpu().numpy(), rows.target.cpu().numpy())
        log = mean_log(steps) | {"gradient_steps": len(steps)}
        log |= values_at(self.changing, progress) | {"explained_variance": fit, "learning_rate": rate}
        return Learned(log | {"clip_range": self.schedules["clip_range"](progress)})

    def _minibatches(self, rows: Rows) -> Iterator[Rows]:
        """The rows in a new random order, in nearly equal parts; recurrent rollouts are split by environment."""
        if isinstance(rows.obs, Sequences):
            return minibatches_of_envs(rows, self.rng, self.config.minibatches)
        order = torch.from_numpy(self.rng.permutation(len(rows.value))).to(rows.value.device)
        return rows.take(order).split(self.config.minibatches)

    def share(self, group: LearnerGroup) -> None:
        """Share every update with other learners."""
        self.optimizer.share(SharedGradient(group, partial(part_of_rollout, normalize=self.normalize)))
        self.normalize = False  # advantages are normalized over all rows, before they are divided
