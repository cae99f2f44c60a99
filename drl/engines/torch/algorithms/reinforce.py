"""REINFORCE (Williams, 1992): whole episodes, true returns, and a choice of baseline."""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.algorithms.reinforce import RECORD, ReinforceConfig
from drl.core.contracts import Learned, Loss, PolicyOutputs, Rates, RolloutBatch
from drl.core.errors import BadInput
from drl.core.schedules import Schedule, changing_rates, values_at
from drl.core.specs import Array, Distribution, Specs
from drl.engines.numpy.model_kinds import distribution_of
from drl.engines.torch import ops
from drl.engines.torch.flat_optimizer import FlatOptimizer
from drl.engines.torch.learner import Learner
from drl.engines.torch.learner_group import LearnerGroup, SharedGradient, part_of_rollout
from drl.engines.torch.on_policy import Rows, cut_obs, forward_in_chunks, normalized, successor_values
from drl.engines.torch.recurrent import recurrent_parts


class Reinforce(Learner):
    """Learns from whole episodes of its own policy: a policy-only model, or policy-value with baseline `value`.

    A truncated episode is not over: its tail is worth V(final observation) with baseline `value`, the running mean
    with baseline `mean`; baseline `none` has no estimate of it and counts nothing.
    """

    config: ReinforceConfig
    record: ClassVar[AlgorithmRecord] = RECORD
    RATES: ClassVar[tuple[str, ...]] = ("entropy_coef",)
    STATE: ClassVar[tuple[str, ...]] = ("running_mean",)
    KEYS: ClassVar[Mapping[str, str | None]] = {"rng": None}  # nothing is drawn

    def __init__(
        self,
        model: nn.Module,
        specs: Specs,
        config: ReinforceConfig | None = None,
        rng: np.random.Generator | None = None,
        compile_update: bool = False,
    ):
        if recurrent_parts(model):
            raise BadInput("reinforce takes no recurrent model; use ppo or a2c, or recurrent none")
        super().__init__(model, specs, config, rng, compile_update)
        self.dist: Distribution = distribution_of(model, self.action_spec)
        self.changing: dict[str, Schedule] = changing_rates(self.config, "entropy_coef")
        self.running_mean: float | None = None  # of the returns, for baseline `mean`
        self.optimizer: FlatOptimizer = self.make_optimizer(model, self._episodes_loss)

    def loss(self, outputs: PolicyOutputs, rows: Rows, rates: Rates) -> Loss:
        """−A · log π(a|s), an entropy bonus and, with a critic, its error. `rates` has `entropy_coef`."""
        policy_loss, entropy = -(rows.advantage * outputs.log_prob).mean(), outputs.entropy.mean()
        loss = policy_loss - rates.entropy_coef * entropy
        metrics = {"policy_loss": policy_loss, "entropy": entropy}
        if outputs.value is None:
            return Loss(loss, metrics)
        value_loss = (outputs.value - rows.target).square().mean()
        return Loss(loss, metrics).plus(self.config.value_coef * value_loss, value_loss=value_loss)

    def _episodes_loss(self, model: nn.Module, rows: Rows, rates: Rates) -> Loss:
        dist_params, value = model(rows.obs) if self.config.baseline == "value" else (model(rows.obs), None)
        log_prob, entropy = ops.log_prob_and_entropy(self.dist, dist_params, rows.action, rows.action_mask)
        return self.loss(PolicyOutputs(dist_params, value, log_prob, entropy), rows, rates)

    def learn(self, batch: RolloutBatch, progress: float = 0.0) -> Learned:
        device, rate = self.device, self.learning_rate(progress)
        returns, baseline = self._returns_and_baseline(batch)
        advantage = torch.from_numpy((returns - baseline).reshape(-1).astype(np.float32)).to(device)
        # Whole episodes come as one column.
        action, target, value = (
            torch.from_numpy(column[:, 0]).to(device) for column in (batch.action, returns, baseline)
        )
        mask = None if batch.action_mask is None else torch.from_numpy(batch.action_mask[:, 0]).to(device)
        obs = ops.to_tensors(batch.obs[:, 0], device)
        rows = Rows(obs, action, None, value, advantage, target, mask)
        rows = normalized(rows) if self.config.normalize_advantage else rows
        step = self.optimizer.step(rate, rows, self.rates_at(progress))
        log = step.log() | values_at(self.changing, progress)
        if self.config.baseline == "value":
            log["explained_variance"] = ops.explained_variance(baseline, returns)
        return Learned(log | {"learning_rate": rate, "gradient_steps": 1})

    def _returns_and_baseline(self, batch: RolloutBatch) -> tuple[Array, Array]:
        """Returns `[T, 1]` with truncated tails valued as far as the baseline can, and the baseline itself."""
        ends = (batch.terminated, batch.truncated, self.config.gamma)
        if self.config.baseline == "value":
            with torch.no_grad():
                device = next(self.model.parameters()).device
                _, value = forward_in_chunks(self.model, ops.to_tensors(batch.obs[:, 0], device))
                _, bootstrap = forward_in_chunks(self.model, cut_obs(batch, device))
            values = value.cpu().numpy()[:, None]
            tails = successor_values(batch, values, bootstrap.cpu().numpy())
            return ops.discounted_returns(batch.reward, tails, *ends), values
        tail = self.running_mean or 0.0 if self.config.baseline == "mean" else 0.0
        returns = ops.discounted_returns(batch.reward, np.full_like(batch.reward, tail), *ends)
        if self.config.baseline == "none":
            return returns, np.zeros_like(returns)
        keep, fresh = self.config.mean_momentum, float(returns.mean())
        self.running_mean = fresh if self.running_mean is None else keep * self.running_mean + (1 - keep) * fresh
        return returns, np.full_like(returns, self.running_mean)

    def share(self, group: LearnerGroup) -> None:
        """Share every update with other learners."""
        self.optimizer.share(SharedGradient(group, partial(part_of_rollout, normalize=False)))
