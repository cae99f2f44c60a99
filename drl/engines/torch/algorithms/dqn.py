"""DQN (Mnih et al., 2015) and what grew from it: double, n-step, distributional (C51, quantiles), prioritized, noisy.

The parts are independent switches. Dueling, noisy and distributional are the model's; n-step and priorities are the
buffer's and reach the loss as `discount` and `weight`; double is here.
"""

import copy
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from drl.core.algorithms.algorithm_record import AlgorithmRecord
from drl.core.algorithms.dqn_record import RECORD, DQNConfig
from drl.core.contracts import Learned
from drl.core.schedules import Schedule, schedule_of
from drl.core.seeding import generator_state, restore_generator, stream_of
from drl.core.specs import Array, Specs
from drl.core.state_files import StateDict
from drl.core.transition import ReplayBatch
from drl.engines.torch import ops
from drl.engines.torch.flat_optimizer import FlatOptimizer
from drl.engines.torch.layers import NoisyLinear, noisy_layers, resample
from drl.engines.torch.learner import Learner
from drl.engines.torch.learner_group import LearnerGroup, SharedGradient, part_of_replay
from drl.engines.torch.models import QHead
from drl.engines.torch.ops import ReplayRows


def dqn_loss(
    model: nn.Module, rows: ReplayRows, target: nn.Module, head: QHead | None, config: DQNConfig
) -> tuple[Tensor, Tensor]:
    """Importance-weighted error of the chosen actions' values. Pure: reads parameters, changes nothing.

    The second result holds the loss, every row's value and every row's error: its priority. Their means are taken
    outside, where they cost less.
    """
    with torch.no_grad():
        next_answer = target(rows.next_obs)
        selector = model(rows.next_obs) if config.double else next_answer
        next_q = _q_values(head, selector)
        if rows.next_action_mask is not None:
            next_q = next_q.masked_fill(~rows.next_action_mask, -torch.inf)
        next_chosen = _of_action(next_answer, next_q.argmax(dim=-1))  # [B] or [B, atoms]
    chosen = _of_action(model(rows.obs), rows.action)
    penalty = ops.huber if config.loss == "huber" else ops.half_square
    if head is not None and head.kind == "c51":
        goal = ops.project_distribution(next_chosen.softmax(dim=-1), rows.reward, rows.continues, head.support)
        per_sample = -(goal * chosen.log_softmax(dim=-1)).sum(dim=-1)  # cross-entropy
        error = per_sample
    elif head is not None and head.kind == "qr":
        goal = ops.q_target(rows.reward.unsqueeze(-1), rows.continues.unsqueeze(-1), next_chosen)
        per_sample = ops.quantile_loss(chosen, goal, penalty)
        error = per_sample
    else:
        error = ops.q_target(rows.reward, rows.continues, next_chosen) - chosen
        per_sample = penalty(error)
    loss = (rows.weight * per_sample).mean()
    with torch.no_grad():
        logged = torch.cat([loss[None], _q_values(head, chosen), error.abs()])
    return loss, logged


def _of_action(answer: Tensor, action: Tensor) -> Tensor:
    """The rows of `answer` that belong to the actions: `[B, A]` → `[B]`, `[B, A, atoms]` → `[B, atoms]`."""
    if answer.dim() == 2:
        return answer.gather(1, action.unsqueeze(1)).squeeze(1)
    return answer[torch.arange(len(action), device=action.device), action]


def _q_values(head: QHead | None, answer: Tensor) -> Tensor:
    return answer if head is None else head.q_values(answer)


class DQN(Learner):
    """Learns action values from replayed transitions. Needs a q-value model and Discrete actions."""

    record: ClassVar[AlgorithmRecord] = RECORD

    def __init__(
        self,
        model: nn.Module,
        specs: Specs,
        config: DQNConfig | None = None,
        rng: np.random.Generator | None = None,
        compile_update: bool = False,
    ):
        self.config: DQNConfig = config or DQNConfig()
        super().__init__(model, RECORD.variant(self.config))
        self.rng: np.random.Generator = rng or stream_of(specs, "learner")  # seeds the noise of noisy layers
        self.learning_rate: Schedule = schedule_of(self.config, "learning_rate")
        self.target: nn.Module = copy.deepcopy(model).requires_grad_(False)
        self.device: torch.device = next(model.parameters()).device
        head = getattr(model, "head", None)
        self.head: QHead | None = head if isinstance(head, QHead) else None
        self.optimizer: FlatOptimizer = FlatOptimizer(
            model,
            partial(dqn_loss, target=self.target, head=self.head, config=self.config),
            kind=self.config.optimizer,
            eps=self.config.adam_eps,
            max_grad_norm=self.config.max_grad_norm,
            max_grad_value=self.config.max_grad_value,
            amsgrad=self.config.amsgrad,
            weight_decay=self.config.weight_decay,
            compiled=compile_update,
        )
        # The target's copies of what is trained lie in one flat tensor too; frozen parameters are equal for good.
        self.target_values: Tensor = self.optimizer.bind_copy(self.target, self.optimizer.values.clone())
        self.noisy: list[NoisyLinear] = noisy_layers(model) + noisy_layers(self.target)  # independent noise for both
        self._resample()

    def learn(self, batch: ReplayBatch, progress: float = 0.0) -> Learned:
        """One update. A row's priority is its error."""
        rate = self.learning_rate(progress)
        rows = ops.replay_rows(batch, self.device)
        if self.noisy:
            self._resample()
        logged = self.optimizer.descend(rate, rows).cpu().numpy()
        if self.optimizer.count % self.config.target_every == 0:
            self.target_values.lerp_(self.optimizer.values, self.config.tau)
        q, priority = logged[1:-1].reshape(2, -1)  # between the loss and the gradient norm
        numbers = {"loss": logged[0], "mean_q": q.mean(), "mean_error": priority.mean(), "grad_norm": logged[-1]}
        log = {name: float(number) for name, number in numbers.items()}
        return Learned(log | {"learning_rate": rate}, priority)

    def predict(self, obs: Array) -> Array:
        for layer in self.noisy:
            layer.quiet = True
        with torch.no_grad():
            answer = self._forward(obs)
            assert isinstance(answer, Tensor)
            q_values: Array = _q_values(self.head, answer).cpu().numpy()
        for layer in self.noisy:
            layer.quiet = False
        return q_values

    def share(self, group: LearnerGroup) -> None:
        """Share every update with other learners."""
        self.optimizer.share(SharedGradient(group, part_of_replay, means=1, columns=2))

    def sync_target(self) -> None:
        self.target_values.copy_(self.optimizer.values)

    def _resample(self) -> None:
        resample(self.noisy, self.rng)

    def state_dict(self) -> dict[str, Any]:
        target = self.target_values.cpu().numpy().copy()
        return {"optimizer": self.optimizer.state_dict(), "target": target, "rng": generator_state(self.rng)}

    def load_state_dict(self, state: StateDict) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.target_values.copy_(torch.from_numpy(np.array(state["target"])))
        restore_generator(self.rng, state["rng"])
