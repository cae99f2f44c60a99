"""DDPG (Lillicrap et al., 2016) and TD3 (Fujimoto et al., 2018): a deterministic policy climbs a learned Q(s, a).

TD3 adds twin critics, whose smaller value makes the target, noise on the target's actions, and a delayed policy. Each
is a setting, so DDPG is TD3 with one critic, no noise and no delay.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.algorithms.algorithm_record import AlgorithmRecord
from drl.core.algorithms.td3_record import TD3_RECORD, DDPGConfig, TD3Config
from drl.core.contracts import ActorOutputs, CriticOutputs, Loss
from drl.core.seeding import stream_of
from drl.core.specs import AnyArray, Specs
from drl.engines.jax.model_state import ModelState
from drl.engines.jax.off_policy import Actions, OffPolicyLearner, critic_target, reduced
from drl.engines.jax.optimizer import MakeTransformation
from drl.engines.jax.replay_rows import ReplayRows


class TD3(OffPolicyLearner):
    """Needs a model state with a deterministic actor-critic model, and Box actions."""

    record: ClassVar[AlgorithmRecord] = TD3_RECORD
    config: DDPGConfig
    TARGET_ACTOR = True

    def __init__(
        self,
        model_state: ModelState,
        specs: Specs,
        config: DDPGConfig | None = None,
        rng: np.random.Generator | None = None,
        optax: MakeTransformation | None = None,  # replaces our optimizer; see `OptaxOptimizer`
    ):
        self.config = config or TD3Config()
        needs, rng = TD3_RECORD.variant(self.config), rng or stream_of(specs, "learner")
        super().__init__(model_state, specs.action_spec, needs, rng, optax)

    def action(self, dist_params: jax.Array, noise: jax.Array, mask: AnyArray | None) -> Actions:
        """The action of the policy."""
        return jnp.tanh(dist_params), None

    def next_action(self, dist_params: jax.Array, noise: jax.Array, mask: AnyArray | None) -> Actions:
        """The action of the target policy, with clipped noise."""
        config, action = self.config, jnp.tanh(dist_params)
        if config.target_noise:
            limit = config.target_noise_clip
            action = jnp.clip(action + jnp.clip(config.target_noise * noise, -limit, limit), -1.0, 1.0)
        return action, None

    def target(self, outputs: CriticOutputs, rows: ReplayRows, rates: Any) -> jax.Array:
        """The smaller of the next values."""
        no_bonus = jnp.zeros_like(rows.reward)
        return critic_target(self.model.critic.head, outputs.next_q, no_bonus, rows, self.config)

    def actor_loss(self, outputs: ActorOutputs, rows: ReplayRows, rates: Any) -> Loss:
        """−Q of the policy's action."""
        loss = -reduced(outputs.q, self.config.actor_q).mean()
        return Loss(loss, {"actor_loss": loss})
