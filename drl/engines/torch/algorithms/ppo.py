"""PPO-clip (Schulman et al., 2017): several epochs of minibatches on one rollout, the ratio clipped."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from drl.core.algorithms.algorithm_record import AlgorithmRecord
from drl.core.algorithms.ppo_record import RECORD, PPOConfig
from drl.core.contracts import Learned
from drl.core.errors import BadInput
from drl.core.schedules import Schedule, changing_rates, schedule_of, values_at
from drl.core.seeding import generator_state, restore_generator, stream_of
from drl.core.specs import Distribution, Specs
from drl.core.state_files import StateDict
from drl.core.transition import RolloutBatch
from drl.engines.torch import ops
from drl.engines.torch.flat_optimizer import FlatOptimizer
from drl.engines.torch.learner import Learner
from drl.engines.torch.learner_group import LearnerGroup, SharedGradient, part_of_rollout
from drl.engines.torch.models import PolicyValueModel, distribution_of
from drl.engines.torch.on_policy import Rows, evaluate_rollout, minibatches_of_envs
from drl.engines.torch.packing import Sequences

LOGGED = (
    "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "mean_clipped_ratio", "grad_norm",
)  # fmt: skip


def ppo_loss(
    model: nn.Module,
    rows: Rows,
    clip_range: Tensor,
    entropy_coef: Tensor | None = None,  # one that changes; None: the config's
    *,
    dist: Distribution,
    config: PPOConfig,
) -> tuple[Tensor, Tensor]:
    """The loss of one minibatch and, stacked, what to log of it. Pure: reads parameters, changes nothing."""
    dist_params, value = model(rows.obs)
    log_prob, entropy = ops.log_prob_and_entropy(dist, dist_params, rows.action, rows.action_mask)
    advantage = rows.advantage
    if config.normalize_advantage and len(advantage) > 1:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

    log_ratio = log_prob - rows.log_prob  # [B]
    ratio = log_ratio.exp()
    surrogate = ops.clipped_surrogate(ratio, advantage, clip_range)
    if config.value_clip is None:
        value_error = (value - rows.target).square()
    else:
        value_error = ops.clipped_value_error(value, rows.value, rows.target, config.value_clip)

    policy_loss, value_loss, mean_entropy = -surrogate.mean(), value_error.mean(), entropy.mean()
    bonus = config.entropy_coef if entropy_coef is None else entropy_coef
    loss = policy_loss + config.value_coef * value_loss - bonus * mean_entropy

    with torch.no_grad():
        clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
        approx_kl = ((ratio - 1) - log_ratio).mean()  # the low-variance estimate of KL(old ‖ new)
        clip_fraction = (ratio != clipped).float().mean()
        logged = torch.stack([policy_loss, value_loss, mean_entropy, approx_kl, clip_fraction, clipped.mean()])
    return loss, logged


class PPO(Learner):
    """Learns from rollouts of its own policy. Needs a policy-value model."""

    record: ClassVar[AlgorithmRecord] = RECORD

    def __init__(
        self,
        model: nn.Module,
        specs: Specs,
        config: PPOConfig | None = None,
        rng: np.random.Generator | None = None,
        compile_update: bool = False,
    ):
        self.config: PPOConfig = config or PPOConfig()
        super().__init__(model, RECORD.variant(self.config))
        self.rng: np.random.Generator = rng or stream_of(specs, "learner")  # shuffles the rollout
        self.dist: Distribution = distribution_of(model, specs.action_spec)
        self.learning_rate: Schedule = schedule_of(self.config, "learning_rate")
        self.changing: dict[str, Schedule] = changing_rates(self.config, "entropy_coef")
        self.clip_range: Schedule = schedule_of(self.config, "clip_range")
        groups: list[tuple[Iterator[nn.Parameter], float]] = []
        if self.config.critic_learning_rate is not None:
            if not isinstance(model, PolicyValueModel) or model.shared:
                raise BadInput("critic_learning_rate needs a critic of its own: a PolicyValueModel with shared off")
            factor = self.config.critic_learning_rate / self.config.learning_rate
            groups = [(model.critic.parameters(), factor)]
        self.optimizer: FlatOptimizer = FlatOptimizer(
            model,
            partial(ppo_loss, dist=self.dist, config=self.config),
            eps=self.config.adam_eps,
            max_grad_norm=self.config.max_grad_norm,
            groups=groups,
            compiled=compile_update,
        )

    def learn(self, batch: RolloutBatch, progress: float = 0.0) -> Learned:
        rate, clip_range = self.learning_rate(progress), self.clip_range(progress)
        settings = values_at(self.changing, progress)
        rows = evaluate_rollout(self.model, self.dist, batch, self.config.gamma, self.config.gae_lambda)
        device = rows.value.device
        inputs = [torch.tensor(value, device=device) for value in (clip_range, *settings.values())]
        total, updates = torch.zeros(len(LOGGED), device=device), 0
        for _ in range(self.config.epochs):
            for minibatch in self._minibatches(rows):
                logged = self.optimizer.descend(rate, minibatch, *inputs)
                total += logged  # numbers to log stay on the device until the end
                updates += 1
            if self._too_far(logged):
                break
        log = dict(zip(LOGGED, (total / updates).tolist(), strict=True)) | {"gradient_steps": updates} | settings
        fit = ops.explained_variance(rows.value.cpu().numpy(), rows.target.cpu().numpy())
        return Learned(log | {"explained_variance": fit, "learning_rate": rate, "clip_range": clip_range})

    def _minibatches(self, rows: Rows) -> Iterator[Rows]:
        """The rows in a new random order, in nearly equal parts; of a recurrent rollout whole environments in their
        order."""
        if isinstance(rows.obs, Sequences):
            return minibatches_of_envs(rows, self.rng, self.config.minibatches)
        order = torch.from_numpy(self.rng.permutation(len(rows.value))).to(rows.value.device)
        return rows.take(order).split(self.config.minibatches)

    def _too_far(self, logged: Tensor) -> bool:
        limit = self.config.target_kl
        return limit is not None and float(logged[LOGGED.index("approx_kl")]) > 1.5 * limit

    def share(self, group: LearnerGroup) -> None:
        """Share every update with other learners."""
        part_of = partial(part_of_rollout, normalize=self.config.normalize_advantage)
        loss = partial(ppo_loss, dist=self.dist, config=replace(self.config, normalize_advantage=False))
        self.optimizer.share(SharedGradient(group, part_of, len(LOGGED) - 1), loss)

    def state_dict(self) -> StateDict:
        return {"optimizer": self.optimizer.state_dict(), "rng": generator_state(self.rng)}

    def load_state_dict(self, state: StateDict) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        restore_generator(self.rng, state["rng"])
