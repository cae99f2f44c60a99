"""DDPG (Lillicrap et al., 2016) and TD3 (Fujimoto et al., 2018): a deterministic policy climbs a learned Q(s, a).

TD3 adds twin critics, whose smaller value makes the target, noise on the target's actions, and a delayed policy. Each
is a setting, so DDPG is TD3 with one critic, no noise and no delay.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp

from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.algorithms.td3 import TD3_RECORD, DDPGConfig
from drl.core.contracts import ActorOutputs, CriticOutputs, Loss, Rates
from drl.core.specs import AnyArray
from drl.engines.jax.off_policy import Actions, OffPolicyLearner, critic_target, reduced
from drl.engines.jax.ops import ReplayRows


class TD3(OffPolicyLearner):
    """Needs a model state with a deterministic actor-critic model, and Box actions."""

    record: ClassVar[AlgorithmRecord] = TD3_RECORD
    config: DDPGConfig
    TARGET_ACTOR: ClassVar[bool] = True

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

    def target(self, outputs: CriticOutputs, rows: ReplayRows, rates: Rates) -> jax.Array:
        """The smaller of the next values."""
        no_bonus = jnp.zeros_like(rows.reward)
        return critic_target(self.model.critic.head, outputs.next_q, no_bonus, rows, self.config)

    def actor_loss(self, outputs: ActorOutputs, rows: ReplayRows, rates: Rates) -> Loss:
        """−Q of the policy's action."""
        loss = -reduced(outputs.q, self.config.actor_q).mean()
        return Loss(loss, {"actor_loss": loss})
