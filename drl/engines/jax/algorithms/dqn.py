"""DQN (Mnih et al., 2015) and what grew from it: double, n-step, distributional (C51, quantiles), prioritized, noisy.

The parts are independent switches. Dueling, noisy and distributional are the model's; n-step and priorities are the
memory's and reach the loss as `continues` and `weight`; double is here.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.configs import DQNConfig, variant_of
from drl.core.schedules import schedule
from drl.core.seeding import generator_state, restore_generator
from drl.core.specs import ActionSpec, Array
from drl.core.transition import ReplayBatch
from drl.engines.jax import ops
from drl.engines.jax.heads import QHead
from drl.engines.jax.layers import Params, random_noise
from drl.engines.jax.learner import Learner
from drl.engines.jax.model_state import ModelState, restore_state, state_arrays
from drl.engines.jax.optimizer import Optimizer, OptimizerState
from drl.engines.numpy.networks import noise_of


class QRows(NamedTuple):
    """A replay batch `[B, …]`."""

    obs: Any
    action: Any
    reward: Any  # discounted sum over the steps looked ahead
    continues: Any  # γ^k, or 0 where the episode terminated
    next_obs: Any
    weight: Any  # importance weights; None: all 1


class DQNState(NamedTuple):
    params: Params
    target: Params
    optimizer: OptimizerState


LOGGED = ("loss", "mean_q", "mean_error")


def dqn_loss(
    params: Params, target: Params, noise: tuple[Params, Params], model: Any, rows: QRows, config: DQNConfig
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Importance-weighted error of the chosen actions' values, `noise` being that of the online and the target network.

    The second result holds the numbers of `LOGGED`, and every row's error: its priority.
    """
    head: Any = getattr(model, "head", None)
    kind = head.kind if isinstance(head, QHead) else "none"
    online, other = params | noise[0], target | noise[1]
    next_answer = model.apply(other, rows.next_obs)
    selector = jax.lax.stop_gradient(model.apply(online, rows.next_obs)) if config.double else next_answer
    next_chosen = ops.of_action(next_answer, _q_values(head, selector).argmax(axis=-1))  # [B] or [B, atoms]
    chosen = ops.of_action(model.apply(online, rows.obs), rows.action)
    penalty = ops.huber if config.loss == "huber" else ops.half_square
    if kind == "c51":
        goal = ops.project_distribution(jax.nn.softmax(next_chosen), rows.reward, rows.continues, head.support)
        per_sample = -(goal * jax.nn.log_softmax(chosen)).sum(axis=-1)  # cross-entropy
        error = per_sample
    elif kind == "qr":
        goal = ops.q_target(rows.reward[:, None], rows.continues[:, None], next_chosen)
        per_sample = ops.quantile_loss(chosen, goal, penalty)
        error = per_sample
    else:
        error = ops.q_target(rows.reward, rows.continues, next_chosen) - chosen
        per_sample = penalty(error)
    loss = (per_sample if rows.weight is None else rows.weight * per_sample).mean()
    size = jnp.abs(error)
    numbers = jnp.stack([loss, _q_values(head, chosen).mean(), size.mean()])
    return loss, jax.lax.stop_gradient((numbers, size))


def _q_values(head: Any, answer: jax.Array) -> jax.Array:
    return head.q_values(answer) if isinstance(head, QHead) else answer


@dataclass(frozen=True)
class PureDQN:
    """DQN without state: a constant to the compiler, its methods pure functions of arrays."""

    model: Any  # q-value
    config: DQNConfig

    @property
    def optimizer(self) -> Optimizer:
        config = self.config
        limits = (config.max_grad_norm, config.max_grad_value)
        return Optimizer(config.optimizer, config.adam_eps, *limits, config.amsgrad, config.weight_decay)

    def begin(self, params: Params) -> DQNState:
        return DQNState(params, dict(params), self.optimizer.init(params))

    def step(self, state: DQNState, rows: QRows, key: Any, rate: Any) -> tuple[DQNState, dict[str, jax.Array]]:
        """One update, its noise drawn from `key`. Besides numbers to log it gives `priority`, the error of each row."""
        online, target = (noise_of(state.params, partial(random_noise, key)) for key in jax.random.split(key))
        return self.update(state, rows, (online, target), rate)

    def update(
        self, state: DQNState, rows: QRows, noise: tuple[Params, Params], rate: Any
    ) -> tuple[DQNState, dict[str, jax.Array]]:
        """The same with a given noise of the online and the target network."""
        options = (state.target, noise, self.model, rows, self.config)
        gradient, (numbers, priority) = jax.grad(dqn_loss, has_aux=True)(state.params, *options)
        params, opt_state, norm = self.optimizer.descend(state.params, state.optimizer, gradient, rate)
        # 0 between two moves of the target network.
        share = self.config.tau * (opt_state.count % self.config.target_every == 0)
        target = {name: old + share * (params[name] - old) for name, old in state.target.items()}
        logs = dict(zip(LOGGED, numbers, strict=True)) | {"grad_norm": norm, "priority": priority}
        return DQNState(params, target, opt_state), logs


_update = jax.jit(PureDQN.update, static_argnums=0)


class DQN(Learner):
    """Learns action values from replayed transitions. Needs a model state with a q-value model, and Discrete
    actions."""

    def __init__(
        self,
        model_state: ModelState,
        action_spec: ActionSpec,
        config: DQNConfig | None = None,
        rng: np.random.Generator | None = None,
    ):
        self.spec, self.config = action_spec, config or DQNConfig()
        super().__init__(model_state, variant_of("dqn", self.config))
        self.rng = rng or np.random.default_rng(0)  # draws the noise of noisy layers
        self.pure = PureDQN(model_state.model, self.config)
        _, self.target, self.opt_state = self.pure.begin(model_state.params)
        self.learning_rate = schedule(self.config.learning_rate, self.config.learning_rate_end)

    def learn(self, batch: ReplayBatch, progress: float = 0.0) -> dict[str, Any]:
        """One update. Besides numbers to log it gives `priority`, the error of each row."""
        rate = self.learning_rate(progress)
        continues = batch.discount * (1.0 - batch.terminated)
        rows = QRows(batch.obs, batch.action, batch.reward, continues, batch.next_obs, batch.weight)
        state = DQNState(self.model_state.params, self.target, self.opt_state)
        draw = partial(self.rng.standard_normal, dtype=np.float32)
        noise = (noise_of(state.params, draw), noise_of(state.params, draw))  # independent for both networks
        state, logs = _update(self.pure, state, rows, noise, np.float32(rate))
        self.model_state.params, self.target, self.opt_state = state
        priority = np.asarray(logs.pop("priority"))
        return {name: float(value) for name, value in logs.items()} | {"learning_rate": rate, "priority": priority}

    def predict(self, obs: Array) -> Array:
        answer = self.model_state.model.apply(self.model_state.params, obs)
        return np.asarray(_q_values(getattr(self.model_state.model, "head", None), answer))

    def sync_target(self) -> None:
        self.target = dict(self.model_state.params)

    def state_dict(self) -> dict[str, Any]:
        target = state_arrays(self.target)
        return {"optimizer": state_arrays(self.opt_state), "target": target, "rng": generator_state(self.rng)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.opt_state = restore_state(self.opt_state, state["optimizer"])
        self.target = restore_state(self.target, state["target"])
        restore_generator(self.rng, state["rng"])
