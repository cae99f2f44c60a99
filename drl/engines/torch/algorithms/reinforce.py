"""REINFORCE (Williams, 1992): whole episodes, true returns, and a choice of baseline."""

from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from drl.core.algorithms.algorithm_record import AlgorithmRecord
from drl.core.algorithms.reinforce_record import RECORD, ReinforceConfig
from drl.core.contracts import Learned
from drl.core.errors import BadInput
from drl.core.schedules import Schedule, changing_rates, schedule_of, values_at
from drl.core.specs import Array, Distribution, Specs
from drl.core.state_files import StateDict
from drl.core.transition import RolloutBatch
from drl.engines.torch import ops
from drl.engines.torch.flat_optimizer import FlatOptimizer
from drl.engines.torch.learner import Learner
from drl.engines.torch.learner_group import LearnerGroup, SharedGradient, part_of_columns
from drl.engines.torch.models import distribution_of
from drl.engines.torch.on_policy import cut_obs, forward_in_chunks, successor_values
from drl.engines.torch.recurrent import recurrent_parts

LOGGED = ("policy_loss", "entropy", "value_loss", "grad_norm")


def reinforce_loss(
    model: nn.Module,
    obs: ops.Obs,
    action: Tensor,
    advantage: Tensor,
    returns: Tensor,
    action_mask: Tensor | None,
    entropy_coef: Tensor | None = None,  # one that changes; None: the config's
    *,
    dist: Distribution,
    config: ReinforceConfig,
) -> tuple[Tensor, Tensor]:
    """−A · log π(a|s), an entropy bonus and, with a critic, its error. Pure: reads parameters, changes nothing."""
    answer = model(obs)
    dist_params, value = answer if config.baseline == "value" else (answer, returns)
    log_prob, entropy = ops.log_prob_and_entropy(dist, dist_params, action, action_mask)
    policy_loss, mean_entropy = -(advantage * log_prob).mean(), entropy.mean()
    value_loss = (value - returns).square().mean()
    bonus = config.entropy_coef if entropy_coef is None else entropy_coef
    loss = policy_loss + config.value_coef * value_loss - bonus * mean_entropy
    return loss, torch.stack([policy_loss, mean_entropy, value_loss]).detach()


class Reinforce(Learner):
    """Learns from whole episodes of its own policy: a policy-only model, or policy-value with baseline `value`.

    A truncated episode is not over: its tail is worth V(final observation) with baseline `value`, the running mean
    with baseline `mean`; baseline `none` has no estimate of it and counts nothing.
    """

    record: ClassVar[AlgorithmRecord] = RECORD

    def __init__(
        self,
        model: nn.Module,
        specs: Specs,
        config: ReinforceConfig | None = None,
        rng: np.random.Generator | None = None,  # as the other algorithms take it; nothing is drawn here
        compile_update: bool = False,
    ):
        if recurrent_parts(model):
            raise BadInput("reinforce takes no recurrent model; use ppo or a2c, or recurrent none")
        self.config: ReinforceConfig = config or ReinforceConfig()
        super().__init__(model, RECORD.variant(self.config))
        self.dist: Distribution = distribution_of(model, specs.action_spec)
        self.learning_rate: Schedule = schedule_of(self.config, "learning_rate")
        self.changing: dict[str, Schedule] = changing_rates(self.config, "entropy_coef")
        self.running_mean: float | None = None  # of the returns, for baseline `mean`
        self.optimizer: FlatOptimizer = FlatOptimizer(
            model,
            partial(reinforce_loss, dist=self.dist, config=self.config),
            eps=self.config.adam_eps,
            max_grad_norm=self.config.max_grad_norm,
            compiled=compile_update,
        )

    def learn(self, batch: RolloutBatch, progress: float = 0.0) -> Learned:
        device = next(self.model.parameters()).device
        rate, settings = self.learning_rate(progress), values_at(self.changing, progress)
        returns, baseline = self._returns_and_baseline(batch)
        advantage = torch.from_numpy((returns - baseline).reshape(-1).astype(np.float32)).to(device)
        if self.config.normalize_advantage and len(advantage) > 1:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        # Whole episodes come as one column.
        action, target = (torch.from_numpy(column[:, 0]).to(device) for column in (batch.action, returns))
        mask = None if batch.action_mask is None else torch.from_numpy(batch.action_mask[:, 0]).to(device)
        obs = ops.to_tensors(batch.obs[:, 0], device)

        inputs = [torch.tensor(value, device=device) for value in settings.values()]
        logged = self.optimizer.descend(rate, obs, action, advantage, target, mask, *inputs)
        numbers = dict(zip(LOGGED, logged.tolist(), strict=True)) | settings
        if self.config.baseline == "value":
            numbers["explained_variance"] = ops.explained_variance(baseline, returns)
        else:
            del numbers["value_loss"]
        return Learned(numbers | {"learning_rate": rate, "gradient_steps": 1})

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
        part_of = partial(part_of_columns, columns=5)  # all but the entropy coefficient
        self.optimizer.share(SharedGradient(group, part_of, len(LOGGED) - 1))

    def state_dict(self) -> StateDict:
        return {"optimizer": self.optimizer.state_dict(), "running_mean": self.running_mean}

    def load_state_dict(self, state: StateDict) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.running_mean = state["running_mean"]
