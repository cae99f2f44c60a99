"""A2C (Mnih et al., 2016, without the threads): one gradient step on each short rollout."""

from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from drl.core.algorithms.a2c_record import RECORD, A2CConfig
from drl.core.algorithms.algorithm_record import AlgorithmRecord
from drl.core.contracts import Learned
from drl.core.schedules import Schedule, changing_rates, schedule_of, values_at
from drl.core.specs import Distribution, Specs
from drl.core.state_files import StateDict
from drl.core.transition import RolloutBatch
from drl.engines.torch import ops
from drl.engines.torch.flat_optimizer import FlatOptimizer
from drl.engines.torch.learner import Learner
from drl.engines.torch.learner_group import LearnerGroup, SharedGradient, part_of_rollout
from drl.engines.torch.models import distribution_of
from drl.engines.torch.on_policy import Rows, evaluate_rollout

LOGGED = ("policy_loss", "value_loss", "entropy", "grad_norm")


def a2c_loss(
    model: nn.Module, rows: Rows, entropy_coef: Tensor | None = None, *, dist: Distribution, config: A2CConfig
) -> tuple[Tensor, Tensor]:
    """Policy gradient with a critic, on the whole rollout. Pure: reads parameters, changes nothing.

    `entropy_coef` is one that changes; None: the config's."""
    dist_params, value = model(rows.obs)
    log_prob, entropy = ops.log_prob_and_entropy(dist, dist_params, rows.action, rows.action_mask)
    advantage = rows.advantage
    if config.normalize_advantage and len(advantage) > 1:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy_loss, mean_entropy = -(advantage * log_prob).mean(), entropy.mean()
    value_loss = (value - rows.target).square().mean()
    bonus = config.entropy_coef if entropy_coef is None else entropy_coef
    loss = policy_loss + config.value_coef * value_loss - bonus * mean_entropy
    return loss, torch.stack([policy_loss, value_loss, mean_entropy]).detach()


class A2C(Learner):
    """Learns from rollouts of its own policy. Needs a policy-value model."""

    record: ClassVar[AlgorithmRecord] = RECORD

    def __init__(
        self,
        model: nn.Module,
        specs: Specs,
        config: A2CConfig | None = None,
        rng: np.random.Generator | None = None,  # as the other algorithms take it; nothing is drawn here
        compile_update: bool = False,
    ):
        self.config: A2CConfig = config or A2CConfig()
        super().__init__(model, RECORD.variant(self.config))
        self.dist: Distribution = distribution_of(model, specs.action_spec)
        self.learning_rate: Schedule = schedule_of(self.config, "learning_rate")
        self.changing: dict[str, Schedule] = changing_rates(self.config, "entropy_coef")
        self.optimizer: FlatOptimizer = FlatOptimizer(
            model,
            partial(a2c_loss, dist=self.dist, config=self.config),
            kind=self.config.optimizer,
            eps=self.config.optimizer_eps,
            max_grad_norm=self.config.max_grad_norm,
            compiled=compile_update,
        )

    def learn(self, batch: RolloutBatch, progress: float = 0.0) -> Learned:
        rate, settings = self.learning_rate(progress), values_at(self.changing, progress)
        rows = evaluate_rollout(self.model, self.dist, batch, self.config.gamma, self.config.gae_lambda)
        inputs = [torch.tensor(value, device=rows.value.device) for value in settings.values()]
        logged = self.optimizer.descend(rate, rows, *inputs)
        numbers = dict(zip(LOGGED, logged.tolist(), strict=True)) | settings
        fit = ops.explained_variance(rows.value.cpu().numpy(), rows.target.cpu().numpy())
        return Learned(numbers | {"explained_variance": fit, "learning_rate": rate, "gradient_steps": 1})

    def share(self, group: LearnerGroup) -> None:
        """Share every update with other learners."""
        part_of = partial(part_of_rollout, normalize=self.config.normalize_advantage)
        loss = partial(a2c_loss, dist=self.dist, config=replace(self.config, normalize_advantage=False))
        self.optimizer.share(SharedGradient(group, part_of, len(LOGGED) - 1), loss)

    def state_dict(self) -> StateDict:
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: StateDict) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
