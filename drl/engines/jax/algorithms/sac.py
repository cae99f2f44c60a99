"""SAC (Haarnoja et al., 2018), and three algorithms that are settings of it: TQC, CrossQ and normalized SAC.

The actor maximizes the expected Q(s, a) − α log π(a | s): the action value plus α times the policy's entropy. The
temperature α is constant, or learned so that the entropy stays near `target_entropy`. With Discrete actions,
expectations over actions are exact sums (Christodoulou, 2019). TQC (Kuznetsov et al., 2020) has critics of quantiles
and drops the largest from the target. CrossQ (Bhatt et al., 2024) has batch renormalization in its critics and no
target network. Normalized SAC is CrossQ with C51 critics whose hidden weights are scaled to norm 1 after every update.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.core.algorithms.algorithm_record import AlgorithmRecord
from drl.core.algorithms.sac_record import LIKELY, SAC_RECORD, SACConfig
from drl.core.seeding import stream_of
from drl.core.specs import Specs
from drl.engines.jax import ops
from drl.engines.jax.layers import Params, Tree
from drl.engines.jax.model_state import ModelState
from drl.engines.jax.off_policy import OffPolicyLearner, OffPolicyState, PureOffPolicy, critic_target, reduced
from drl.engines.jax.optimizer import MakeTransformation, Optimizer
from drl.engines.jax.replay_rows import ReplayRows
from drl.engines.numpy.update_draws import UpdateDraws


@dataclass(frozen=True)
class PureSAC(PureOffPolicy):
    """SAC as pure functions of a state."""

    config: SACConfig

    @property
    def discrete(self) -> bool:
        """Whether actions are Discrete."""
        return self.action_spec.kind == "discrete"

    @property
    def temperature_optimizer(self) -> Optimizer:
        """Adam with its usual decay rates."""
        return Optimizer("adam", self.config.adam_eps)

    def begin(self, params: Tree) -> OffPolicyState:
        temperature = {"log_alpha": np.full(1, math.log(self.config.temperature), np.float32)}
        state = super().begin(params)
        return state._replace(
            temperature=temperature, temperature_optimizer=self.temperature_optimizer.init(temperature)
        )

    def critic_loss(
        self, trained: Params, state: OffPolicyState, rows: ReplayRows, draws: UpdateDraws
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array, Params]]:
        config, params, target = self.config, state.params | trained, state.target
        alpha = jnp.exp(state.temperature["log_alpha"])
        next_params = self.model.apply(state.params, rows.next_obs)
        if self.discrete:
            answers, next_answers, running = self.answers(params, target, rows, None, None)
            answers = jnp.stack([ops.of_action(answer, rows.action) for answer in answers])
            log_probs = self._log_probs(next_params, rows.next_action_mask)
            next_q = reduced(next_answers[draws.subset], config.target_q)
            value = (jnp.exp(log_probs) * (next_q - alpha * log_probs)).sum(axis=-1)
            goal = ops.q_target(rows.reward, rows.continues, value)
        else:
            next_action, log_prob = ops.sample_with_log_prob(self.distribution, next_params, draws.next_noise)
            answers, next_answers, running = self.answers(params, target, rows, rows.action, next_action)
            answers, next_answers = answers.squeeze(2), next_answers.squeeze(2)  # one action: [N, B] or [N, B, atoms]
            chosen, drop = next_answers[draws.subset], config.quantiles_to_drop
            goal = critic_target(self.model.critic.head, chosen, -alpha * log_prob, rows, config, drop)
        return self.summary(answers, goal, rows, running)

    def actor_loss(
        self, actor: Params, state: OffPolicyState, rows: ReplayRows, noise: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        alpha, how = jnp.exp(state.temperature["log_alpha"]), self.config.actor_q
        dist_params = self.model.actor.apply(actor, rows.obs)
        if self.discrete:
            log_probs = self._log_probs(dist_params, rows.action_mask)
            q = reduced(self.model.q(state.params, rows.obs, None), how)
            log_prob = (jnp.exp(log_probs) * log_probs).sum(axis=-1)
            loss = alpha * log_prob - (jnp.exp(log_probs) * q).sum(axis=-1)
        else:
            action, log_prob = ops.sample_with_log_prob(self.distribution, dist_params, noise)
            answers = self.model.q(state.params, rows.obs, action).squeeze(2)
            loss = alpha * log_prob - reduced(self.model.critic.head.q_values(answers), how)
        return loss.mean(), {"actor_loss": loss.mean(), "entropy": -log_prob.mean()}

    def improve(
        self, state: OffPolicyState, rows: ReplayRows, noise: jax.Array, rate: ArrayLike
    ) -> tuple[OffPolicyState, dict[str, jax.Array]]:
        """One step of the actor, then one of the temperature, which falls where there is more entropy than wanted."""
        config = self.config
        state, logs = super().improve(state, rows, noise, rate)
        if config.learn_temperature:
            gradient = {"log_alpha": (logs["entropy"] - self._entropy_goal(rows))[None]}
            rate = rate * np.float32((config.temperature_learning_rate or config.learning_rate) / config.learning_rate)
            now = (state.temperature, state.temperature_optimizer)
            temperature, optimizer, _ = self.temperature_optimizer.descend(*now, gradient, rate)
            state = state._replace(temperature=temperature, temperature_optimizer=optimizer)
        return state, logs | {"temperature": jnp.exp(state.temperature["log_alpha"][0])}

    def _entropy_goal(self, rows: ReplayRows) -> ArrayLike:
        if rows.action_mask is None or self.config.target_entropy is not None:
            return self.config.entropy_goal(self.action_spec)
        return LIKELY * jnp.log(rows.action_mask.sum(axis=1)).mean()

    def _log_probs(self, logits: jax.Array, action_mask: jax.Array | None) -> jax.Array:
        """Of all Discrete actions `[B, A]`."""
        return jax.nn.log_softmax(ops.masked(self.distribution, logits, action_mask), axis=-1)


class SAC(OffPolicyLearner):
    """Needs a model state with an actor-critic model, and Box or Discrete actions."""

    record: ClassVar[AlgorithmRecord] = SAC_RECORD

    def __init__(
        self,
        model_state: ModelState,
        specs: Specs,
        config: SACConfig | None = None,
        rng: np.random.Generator | None = None,
        optax: MakeTransformation | None = None,  # replaces our optimizer; see `OptaxOptimizer`
    ):
        config = config or SACConfig()
        pure = PureSAC(model_state.model, config, specs.action_spec, optax)  # type: ignore[arg-type]
        super().__init__(model_state, pure, SAC_RECORD.variant(config), rng or stream_of(specs, "learner"))
