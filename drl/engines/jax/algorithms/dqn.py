"""DQN (Mnih et al., 2015) and its extensions: double, n-step, distributional (C51, quantiles), prioritized, noisy.

The parts are independent switches. Dueling, noisy and distributional belong to the model. N-step and priorities belong
to the buffer and enter the loss as `continues` and `weight`. Double belongs to the loss.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.core.algorithms.algorithm_record import AlgorithmRecord
from drl.core.algorithms.dqn_record import RECORD, DQNConfig
from drl.core.contracts import Learned
from drl.core.schedules import Schedule, schedule_of
from drl.core.seeding import generator_state, restore_generator, stream_of
from drl.core.specs import AnyArray, Array, Specs
from drl.core.state_files import StateDict
from drl.core.transition import ReplayBatch
from drl.engines.jax import ops
from drl.engines.jax.devices import split_rows
from drl.engines.jax.layers import Params, Tree, noise_for, random_noise
from drl.engines.jax.learner import Learner
from drl.engines.jax.model_state import ModelState, restore_state, state_arrays
from drl.engines.jax.models import AnyModel, QHead
from drl.engines.jax.on_policy import fields
from drl.engines.jax.optimizer import AnyOptimizer, MakeTransformation, OptaxOptimizer, Optimizer, OptState
from drl.engines.jax.replay_rows import ReplayRows, replay_rows


class DQNState(NamedTuple):
    """What DQN's updates carry along."""

    params: Tree
    target: Tree
    optimizer: OptState
    count: AnyArray  # int32: updates so far


LOGGED = ("loss", "mean_q", "mean_error")


def dqn_loss(
    params: Tree, target: Tree, noise: tuple[Tree, Tree], model: AnyModel, rows: ReplayRows, config: DQNConfig
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Importance-weighted error of the chosen actions' values. `noise` is that of the online and the target network.

    The second result holds the numbers of `LOGGED` and the error of every row, which is its priority.
    """
    head, rows = q_head(model), split_rows(rows)
    online, other = with_noise(params, noise[0]), with_noise(target, noise[1])
    next_answer = model.apply(other, rows.next_obs)
    selector = jax.lax.stop_gradient(model.apply(online, rows.next_obs)) if config.double else next_answer
    next_q = q_values_of(head, selector)
    if rows.next_action_mask is not None:
        next_q = jnp.where(rows.next_action_mask, next_q, -jnp.inf)
    next_chosen = ops.of_action(next_answer, next_q.argmax(axis=-1))  # [B] or [B, atoms]
    chosen = ops.of_action(model.apply(online, rows.obs), rows.action)
    penalty = ops.huber if config.loss == "huber" else ops.half_square
    if head is not None and head.kind == "c51":
        goal = ops.project_distribution(jax.nn.softmax(next_chosen), rows.reward, rows.continues, head.support)
        per_sample = -(goal * jax.nn.log_softmax(chosen)).sum(axis=-1)  # cross-entropy
        error = per_sample
    elif head is not None and head.kind == "qr":
        goal = ops.q_target(rows.reward[:, None], rows.continues[:, None], next_chosen)
        per_sample = ops.quantile_loss(chosen, goal, penalty)
        error = per_sample
    else:
        error = ops.q_target(rows.reward, rows.continues, next_chosen) - chosen
        per_sample = penalty(error)
    loss = (per_sample if rows.weight is None else rows.weight * per_sample).mean()
    size = jnp.abs(error)
    numbers = jnp.stack([loss, q_values_of(head, chosen).mean(), size.mean()])
    return loss, jax.lax.stop_gradient((numbers, size))


def q_head(model: AnyModel) -> QHead | None:
    """The head of one of our own models; None for custom ones."""
    head = getattr(model, "head", None)
    return head if isinstance(head, QHead) else None


def q_values_of(head: QHead | None, answer: jax.Array) -> jax.Array:
    """Action values from what the network answers."""
    return answer if head is None else head.q_values(answer)


def with_noise(params: Tree, noise: Params) -> Tree:
    """Parameters with the noise of noisy layers, if there is any."""
    return params | noise if noise else params


@dataclass(frozen=True)
class PureDQN:
    """DQN without state: a static argument of compiled functions; its methods are pure."""

    model: AnyModel  # q-value
    config: DQNConfig
    optax: MakeTransformation | None = None  # replaces our optimizer; see `OptaxOptimizer`

    @property
    def optimizer(self) -> AnyOptimizer:
        """Adam or AdamW, or the user's Optax transformation."""
        if self.optax is not None:
            return OptaxOptimizer(self.optax, self.config.max_grad_norm, self.config.max_grad_value)
        config = self.config
        limits = (config.max_grad_norm, config.max_grad_value)
        return Optimizer(config.optimizer, config.adam_eps, *limits, config.amsgrad, config.weight_decay)

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The last argument of `step`, as a function of the share of the budget used."""
        return {"learning_rate": schedule_of(self.config, "learning_rate")}

    def begin(self, params: Tree) -> DQNState:
        copied = jax.tree.map(lambda value: value, params)
        return DQNState(params, copied, self.optimizer.init(params), np.int32(0))

    def step(
        self, state: DQNState, rows: ReplayRows, key: jax.Array, rate: ArrayLike
    ) -> tuple[DQNState, dict[str, jax.Array], jax.Array]:
        """One update with noise drawn from `key`: the new state, numbers to log, and the error of each row."""
        online, target = (noise_for(state.params, partial(random_noise, key)) for key in jax.random.split(key))
        return self.update(state, rows, (online, target), rate)

    def update(
        self, state: DQNState, rows: ReplayRows, noise: tuple[Tree, Tree], rate: ArrayLike
    ) -> tuple[DQNState, dict[str, jax.Array], jax.Array]:
        """The same with a given noise of the online and the target network."""
        options = (state.target, noise, self.model, rows, self.config)
        gradient, (numbers, priority) = jax.grad(dqn_loss, has_aux=True)(state.params, *options)
        params, opt_state, norm = self.optimizer.descend(state.params, state.optimizer, gradient, rate)
        # 0 between two updates of the target network.
        count = state.count + 1
        share = self.config.tau * (count % self.config.target_every == 0)
        target = jax.tree.map(lambda old, new: old + share * (new - old), state.target, params)
        logs = dict(zip(LOGGED, numbers, strict=True)) | {"grad_norm": norm}
        return DQNState(params, target, opt_state, count), logs, priority


_update = jax.jit(PureDQN.update, static_argnums=0)


class DQN(Learner):
    """Learns action values from replay. Needs a model state with a q-value model, and Discrete actions."""

    opt_state: OptState
    target: Tree
    count: AnyArray
    record: ClassVar[AlgorithmRecord] = RECORD

    def __init__(
        self,
        model_state: ModelState,
        specs: Specs,
        config: DQNConfig | None = None,
        rng: np.random.Generator | None = None,
        optax: MakeTransformation | None = None,  # replaces our optimizer; see `OptaxOptimizer`
    ):
        self.config: DQNConfig = config or DQNConfig()
        super().__init__(model_state, RECORD.variant(self.config))
        self.rng: np.random.Generator = rng or stream_of(specs, "learner")  # draws the noise of noisy layers
        self.pure: PureDQN = PureDQN(model_state.model, self.config, optax)
        _, self.target, self.opt_state, self.count = self.pure.begin(model_state.params)
        self.learning_rate: Schedule = self.pure.schedules["learning_rate"]

    def learn(self, batch: ReplayBatch, progress: float = 0.0) -> Learned:
        """One update. A row's priority is its error."""
        rate = self.learning_rate(progress)
        rows = replay_rows(batch)
        state = DQNState(self.model_state.params, self.target, self.opt_state, self.count)
        draw = partial(self.rng.standard_normal, dtype=np.float32)
        noise = (noise_for(state.params, draw), noise_for(state.params, draw))  # independent for both networks
        state, logs, priority = _update(self.pure, state, rows, noise, np.float32(rate))
        self.model_state.params, self.target, self.opt_state, self.count = state
        log = {name: float(value) for name, value in logs.items()} | {"learning_rate": rate}
        return Learned(log, np.asarray(priority))

    def predict(self, obs: Array) -> Array:
        answer = self.model_state.model.apply(self.model_state.params, fields(obs))
        return np.asarray(q_values_of(q_head(self.model_state.model), answer))

    def sync_target(self) -> None:
        self.target = jax.tree.map(lambda value: value, self.model_state.params)

    def state_dict(self) -> StateDict:
        target = state_arrays(self.target)
        counted = {"count": int(self.count), "rng": generator_state(self.rng)}
        return {"optimizer": state_arrays(self.opt_state), "target": target} | counted

    def load_state_dict(self, state: StateDict) -> None:
        self.opt_state = restore_state(self.opt_state, state["optimizer"])
        self.target = restore_state(self.target, state["target"])
        self.count = np.int32(state["count"])
        restore_generator(self.rng, state["rng"])
