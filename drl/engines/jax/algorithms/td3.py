"""DDPG (Lillicrap et al., 2016) and TD3 (Fujimoto et al., 2018): a deterministic policy climbs a learned Q(s, a).

TD3 adds twin critics, whose smaller value makes the target, noise on the target's actions, and a delayed policy. Each
is a setting, so DDPG is TD3 with one critic, no noise and no delay.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.algorithms.algorithm_record import AlgorithmRecord
from drl.core.algorithms.td3_record import TD3_RECORD, DDPGConfig, TD3Config
from drl.core.seeding import stream_of
from drl.core.specs import Specs
from drl.engines.jax.layers import Params
from drl.engines.jax.model_state import ModelState
from drl.engines.jax.off_policy import OffPolicyLearner, OffPolicyState, PureOffPolicy, critic_target, reduced
from drl.engines.jax.optimizer import MakeTransformation
from drl.engines.jax.replay_rows import ReplayRows
from drl.engines.numpy.update_draws import UpdateDraws


@dataclass(frozen=True)
class PureTD3(PureOffPolicy):
    """DDPG and TD3 as pure functions of a state."""

    config: DDPGConfig
    TARGET_ACTOR: ClassVar[bool] = True

    def critic_loss(
        self, trained: Params, state: OffPolicyState, rows: ReplayRows, draws: UpdateDraws
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array, Params]]:
        config, head = self.config, self.model.critic.head
        acting = state.target if config.target_network else state.params
        next_action = jnp.tanh(self.model.apply(acting, rows.next_obs))
        if config.target_noise:
            limit = config.target_noise_clip
            next_action = next_action + jnp.clip(config.target_noise * draws.next_noise, -limit, limit)
            next_action = jnp.clip(next_action, -1.0, 1.0)
        params = state.params | trained
        answers, next_answers, running = self.answers(params, state.target, rows, rows.action, next_action)
        answers, next_answers = answers.squeeze(2), next_answers.squeeze(2)  # one action: [N, B] or [N, B, atoms]
        goal = critic_target(head, next_answers[draws.subset], jnp.zeros_like(rows.reward), rows, config)
        return self.summary(answers, goal, rows, running)

    def actor_loss(
        self, actor: Params, state: OffPolicyState, rows: ReplayRows, noise: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        action = jnp.tanh(self.model.actor.apply(actor, rows.obs))
        answers = self.model.q(state.params, rows.obs, action).squeeze(2)
        loss = -reduced(self.model.critic.head.q_values(answers), self.config.actor_q).mean()
        return loss, {"actor_loss": loss}


class TD3(OffPolicyLearner):
    """Needs a model state with a deterministic actor-critic model, and Box actions."""

    record: ClassVar[AlgorithmRecord] = TD3_RECORD

    def __init__(
        self,
        model_state: ModelState,
        specs: Specs,
        config: DDPGConfig | None = None,
        rng: np.random.Generator | None = None,
        optax: MakeTransformation | None = None,  # replaces our optimizer; see `OptaxOptimizer`
    ):
        config = config or TD3Config()
        pure = PureTD3(model_state.model, config, specs.action_spec, optax)  # type: ignore[arg-type]
        super().__init__(model_state, pure, TD3_RECORD.variant(config), rng or stream_of(specs, "learner"))
