"""The networks and optimizers of an actor-critic with a replay buffer: what SAC and TD3 share."""

import copy
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from torch import Tensor, nn

from drl.algorithms.off_policy import OffPolicyConfig, check_critics
from drl.core.contracts import Loss, Rates
from drl.core.errors import BadInput
from drl.core.specs import Distribution, Specs
from drl.engines.numpy.distributions import UpdateDraws
from drl.engines.numpy.model_kinds import distribution_of
from drl.engines.torch.actor_critics import ActorCritic, Critics, norm_weights
from drl.engines.torch.flat_optimizer import FlatOptimizer, Target
from drl.engines.torch.layers import BatchRenorm
from drl.engines.torch.learner import Learner
from drl.engines.torch.learner_group import LearnerGroup, SharedGradient, part_of_replay
from drl.engines.torch.models import Model
from drl.engines.torch.ops import ReplayRows


class OffPolicyLearner(Learner):
    """Actor, critics, target networks and the optimizers. A subclass has the update and its losses."""

    config: OffPolicyConfig
    model: ActorCritic
    TARGET_ACTOR: ClassVar[bool] = False  # whether the target's actions are those of a target policy
    KEYS: ClassVar[Mapping[str, str | None]] = {
        "critic_optimizer": "critics",
        "actor_optimizer": "actor",
        "target_critics": None,  # in `targets`
        "target_actor": None,
        "targets": "targets",
        "target_statistics": "target_statistics",
    }

    def __init__(
        self,
        model: nn.Module,
        specs: Specs,
        config: OffPolicyConfig | None = None,
        rng: np.random.Generator | None = None,  # draws the noise of actions and the subset of critics
        compile_update: bool = False,
    ):
        super().__init__(model, specs, config, rng, compile_update)
        if not isinstance(model, ActorCritic):
            raise BadInput(f"{type(self).__name__} needs an ActorCritic model; build it with make_actor_critic(…)")
        self.critics: Critics = model.critics
        self.actor: Model = model.actor
        self.norms: list[BatchRenorm] = self.critics.norms()
        self.subset: int = self.config.critic_subset or len(self.critics)  # number of critics that make the target
        head, normed = self.critics.head, bool(self.critics.normed_weights())
        check_critics(self.config, len(self.critics), head.kind, head.atoms, normed, self.action_spec)
        if self.config.weight_norm:
            norm_weights(self.critics)
        self.distribution: Distribution = distribution_of(model, self.action_spec)
        rate = self.config.learning_rate
        self.actor_factor: float = (self.config.actor_learning_rate or rate) / rate
        # Two more sets of critics: one in the same memory, but without gradients, and the target network.
        self.frozen_critics: Critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.critic_optimizer: FlatOptimizer = self.make_optimizer(self.critics, self._critic_batch_loss)
        self.actor_optimizer: FlatOptimizer = self.make_optimizer(self.actor, self._actor_batch_loss)
        self.critic_optimizer.bind_copy(self.frozen_critics, self.critic_optimizer.values)
        for mine, theirs in zip(self.frozen_critics.buffers(), self.critics.buffers(), strict=True):
            mine.data = theirs.data
        self.target_critics: Target | None = None
        self.target_actor: Target | None = None
        if self.config.target_network:
            self.target_critics = Target(self.critic_optimizer, with_buffers=True)
            self.target_actor = Target(self.actor_optimizer) if self.TARGET_ACTOR else None
        self.targets: list[Target] = [each for each in (self.target_critics, self.target_actor) if each is not None]
        self.target_statistics: list[Tensor] = [own for target in self.targets for own, _ in target.buffers]

    def _critic_batch_loss(self, critics: Critics, rows: ReplayRows, draws: UpdateDraws, rates: Rates) -> Loss:
        raise NotImplementedError

    def _actor_batch_loss(self, actor: nn.Module, rows: ReplayRows, draws: UpdateDraws, rates: Rates) -> Loss:
        raise NotImplementedError

    def share(self, group: LearnerGroup) -> None:
        """Share every update with other learners."""
        if self.norms:
            raise BadInput("batch renormalization needs whole batches in one learner; use --num-learners 1")
        self.critic_optimizer.share(SharedGradient(group, part_of_replay))
        self.actor_optimizer.share(SharedGradient(group, part_of_replay))
