"""DQN (Mnih et al., 2015) and its extensions: double, dueling, n-step, distributional, prioritized, noisy.

The parts are independent switches. Dueling, noisy and distributional (C51, quantiles) belong to the model; n-step and
priorities belong to the buffer and reach the loss as `discount` and `weight`; double is here.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.algorithms.dqn import RECORD, DQNConfig
from drl.core.contracts import Learned, Loss, QOutputs, Rates, ReplayBatch
from drl.core.specs import Array, Specs
from drl.engines.torch import ops
from drl.engines.torch.flat_optimizer import FlatOptimizer, Target
from drl.engines.torch.layers import NoisyLinear, noisy_layers, resample
from drl.engines.torch.learner import Learner
from drl.engines.torch.learner_group import LearnerGroup, SharedGradient, part_of_replay
from drl.engines.torch.models import QHead
from drl.engines.torch.ops import ReplayRows


def _of_action(outputs: Tensor, action: Tensor) -> Tensor:
    """The outputs for the actions: `[B, A]` → `[B]`, `[B, A, atoms]` → `[B, atoms]`."""
    if outputs.dim() == 2:
        return outputs.gather(1, action.unsqueeze(1)).squeeze(1)
    return outputs[torch.arange(len(action), device=action.device), action]


class DQN(Learner):
    """Learns action values from replayed transitions. Needs a q-value model and Discrete actions."""

    config: DQNConfig
    record: ClassVar[AlgorithmRecord] = RECORD
    KEYS: ClassVar[Mapping[str, str | None]] = {"target_network": "target"}

    def __init__(
        self,
        model: nn.Module,
        specs: Specs,
        config: DQNConfig | None = None,
        rng: np.random.Generator | None = None,  # seeds the noise of noisy layers
        compile_update: bool = False,
    ):
        super().__init__(model, specs, config, rng, compile_update)
        head = getattr(model, "head", None)
        self.head: QHead | None = head if isinstance(head, QHead) else None
        self.optimizer: FlatOptimizer = self.make_optimizer(model, self._batch_loss)
        self.target_network: Target = Target(self.optimizer)
        # Independent noise for both.
        self.noisy: list[NoisyLinear] = noisy_layers(model) + noisy_layers(self.target_network.module)
        self._resample()

    def target(self, outputs: QOutputs, rows: ReplayRows, rates: Rates) -> Tensor:
        """The TD target of the actions taken: `[B]` values; c51: `[B, atoms]` probabilities; qr: `[B, atoms]` samples
        of the return."""
        next_values = outputs.selector if self.head is None else self.head.q_values(outputs.selector)
        if rows.next_action_mask is not None:
            next_values = next_values.masked_fill(~rows.next_action_mask, -torch.inf)
        next_chosen = _of_action(outputs.next_q, next_values.argmax(dim=-1))  # [B] or [B, atoms]
        if self.head is not None and self.head.kind == "c51":
            probs = next_chosen.softmax(dim=-1)
            return ops.project_distribution(probs, rows.reward, rows.discount, self.head.support)
        if self.head is not None and self.head.kind == "qr":
            return ops.q_target(rows.reward.unsqueeze(-1), rows.discount.unsqueeze(-1), next_chosen)
        return ops.q_target(rows.reward, rows.discount, next_chosen)

    def loss(self, outputs: QOutputs, rows: ReplayRows, rates: Rates) -> Loss:
        """Importance-weighted error of the chosen actions' values. A row's priority is its error."""
        chosen = _of_action(outputs.q, rows.action)
        penalty = ops.huber if self.config.loss == "huber" else ops.half_square
        if self.head is not None and self.head.kind == "c51":
            per_sample = error = -(outputs.target * chosen.log_softmax(dim=-1)).sum(dim=-1)  # cross-entropy
        elif self.head is not None and self.head.kind == "qr":
            per_sample = error = ops.quantile_loss(chosen, outputs.target, penalty)
        else:
            error = outputs.target - chosen
            per_sample = penalty(error)
        loss = (rows.weight * per_sample).mean()
        with torch.no_grad():
            mean_q = chosen if self.head is None else self.head.q_values(chosen)
            return Loss(loss, {"loss": loss, "mean_q": mean_q}, priority=error.abs())

    def _batch_loss(self, model: nn.Module, rows: ReplayRows, rates: Rates) -> Loss:
        with torch.no_grad():
            next_q = self.target_network.module(rows.next_obs)
            outputs = QOutputs(None, next_q, model(rows.next_obs) if self.config.double else next_q)
            target = self.target(outputs, rows, rates)
        return self.loss(outputs._replace(q=model(rows.obs), target=target), rows, rates)

    def learn(self, batch: ReplayBatch, progress: float = 0.0) -> Learned:
        """One update."""
        rate, rows = self.learning_rate(progress), ops.replay_rows(batch, self.device)
        if self.noisy:
            self._resample()
        step = self.optimizer.step(rate, rows, self.rates_at(progress))
        if self.optimizer.count % self.config.target_every == 0:
            self.target_network.move(self.config.tau)
        return Learned(step.log() | {"learning_rate": rate}, step.priority)

    def predict(self, obs: Array) -> Array:
        for layer in self.noisy:
            layer.quiet = True
        with torch.no_grad():
            answer = self._forward(obs)
            assert isinstance(answer, Tensor)
            q_values: Array = (answer if self.head is None else self.head.q_values(answer)).cpu().numpy()
        for layer in self.noisy:
            layer.quiet = False
        return q_values

    def share(self, group: LearnerGroup) -> None:
        """Share every update with other learners."""
        self.optimizer.share(SharedGradient(group, part_of_replay))

    def _resample(self) -> None:
        resample(self.noisy, self.rng)
