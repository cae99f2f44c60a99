"""A2C (Mnih et al., 2016, without the threads): one gradient step on each short rollout."""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import numpy as np
from torch import nn

from drl.algorithms.a2c import RECORD, A2CConfig
from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.core.contracts import Learned, Loss, PolicyOutputs, Rates, RolloutBatch
from drl.core.schedules import Schedule, changing_rates, values_at
from drl.core.specs import Distribution, Specs
from drl.engines.numpy.model_kinds import distribution_of
from drl.engines.torch import ops
from drl.engines.torch.flat_optimizer import FlatOptimizer
from drl.engines.torch.learner import Learner
from drl.engines.torch.learner_group import LearnerGroup, SharedGradient, part_of_rollout
from drl.engines.torch.on_policy import Rows, evaluate_rollout, normalized


class A2C(Learner):
    """Learns from rollouts of its own policy. Needs a policy-value model."""

    config: A2CConfig
    record: ClassVar[AlgorithmRecord] = RECORD
    RATES: ClassVar[tuple[str, ...]] = ("entropy_coef",)
    KEYS: ClassVar[Mapping[str, str | None]] = {"rng": None}  # nothing is drawn

    def __init__(
        self,
        model: nn.Module,
        specs: Specs,
        config: A2CConfig | None = None,
        rng: np.random.Generator | None = None,
        compile_update: bool = False,
    ):
        super().__init__(model, specs, config, rng, compile_update)
        self.dist: Distribution = distribution_of(model, self.action_spec)
        self.changing: dict[str, Schedule] = changing_rates(self.config, "entropy_coef")
        self.normalize: bool = self.config.normalize_advantage
        self.optimizer: FlatOptimizer = self.make_optimizer(model, self._rollout_loss)

    def loss(self, outputs: PolicyOutputs, rows: Rows, rates: Rates) -> Loss:
        """Policy gradient with a critic, on the whole rollout. `rates` has `entropy_coef`."""
        policy_loss, entropy = -(rows.advantage * outputs.log_prob).mean(), outputs.entropy.mean()
        value_loss = (outputs.value - rows.target).square().mean()
        loss = policy_loss + self.config.value_coef * value_loss - rates.entropy_coef * entropy
        return Loss(loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy})

    def _rollout_loss(self, model: nn.Module, rows: Rows, rates: Rates) -> Loss:
        rows = normalized(rows) if self.normalize else rows
        dist_params, value = model(rows.obs)
        log_prob, entropy = ops.log_prob_and_entropy(self.dist, dist_params, rows.action, rows.action_mask)
        return self.loss(PolicyOutputs(dist_params, value, log_prob, entropy), rows, rates)

    def learn(self, batch: RolloutBatch, progress: float = 0.0) -> Learned:
        rate = self.learning_rate(progress)
        rows = evaluate_rollout(self.model, self.dist, batch, self.config.gamma, self.config.gae_lambda)
        step = self.optimizer.step(rate, rows, self.rates_at(progress))
        log = step.log() | values_at(self.changing, progress)
        fit = ops.explained_variance(rows.value.cpu().numpy(), rows.target.cpu().numpy())
        return Learned(log | {"explained_variance": fit, "learning_rate": rate, "gradient_steps": 1})

    def share(self, group: LearnerGroup) -> None:
        """Share every update with other learners."""
        self.optimizer.share(SharedGradient(group, partial(part_of_rollout, normalize=self.normalize)))
        self.normalize = False  # advantages are normalized over all rows, before they are divided
