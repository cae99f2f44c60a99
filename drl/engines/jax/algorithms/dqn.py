"""DQN (Mnih et al., 2015) and its extensions: double, n-step, distributional (C51, quantiles), prioritized, noisy.

The parts are independent switches. Dueling, noisy and distributional belong to the model. N-step and priorities belong
to the buffer and enter the loss as `discount` and `weight`. Double belongs to the loss.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.algorithms.dqn import RECORD, DQNConfig
from drl.core.contracts import Learned, Loss, QOutputs, Rates, ReplayBatch
from drl.core.specs import AnyArray, Array, Specs
from drl.engines.jax import ops
from drl.engines.jax.backbones import fields
from drl.engines.jax.devices import split_rows
from drl.engines.jax.layers import Params, Tree, noise_for, random_noise, with_dropout
from drl.engines.jax.learner import Learner, Pure, scalars
from drl.engines.jax.model_state import ModelState
from drl.engines.jax.models import AnyModel, QHead
from drl.engines.jax.ops import ReplayRows, replay_rows
from drl.engines.jax.optimizer import OptState


class DQNState(NamedTuple):
    """State of DQN between two updates."""

    params: Tree
    target: Tree
    optimizer: OptState
    count: AnyArray  # int32: updates so far


def q_head(model: AnyModel) -> QHead | None:
    """The head of one of our own models; None for custom ones."""
    head = getattr(model, "head", None)
    return head if isinstance(head, QHead) else None


def q_values_of(head: QHead | None, answer: jax.Array) -> jax.Array:
    """Action values from the network's output."""
    return answer if head is None else head.q_values(answer)


def with_noise(params: Tree, noise: Params) -> Tree:
    """Parameters with the noise of noisy layers, if there is any."""
    return params | noise if noise else params


@dataclass(frozen=True)
class PureDQN(Pure):
    """DQN as pure functions of a state."""

    config: DQNConfig

    def begin(self, params: Tree) -> DQNState:
        copied = jax.tree.map(lambda value: value, params)
        return DQNState(params, copied, self.optimizer.init(params), np.int32(0))

    def step(
        self, state: DQNState, rows: ReplayRows, key: jax.Array, rate: ArrayLike, *rates: ArrayLike
    ) -> tuple[DQNState, dict[str, jax.Array], jax.Array]:
        """One update with noise drawn from `key`: the new state, numbers to log, and the error of each row."""
        online, target = (noise_for(state.params, partial(random_noise, key)) for key in jax.random.split(key))
        online = with_dropout(online, jax.random.fold_in(key, 1) if self.drops else None)
        return self.update(state, rows, (online, target), rate, *rates)

    def update(
        self, state: DQNState, rows: ReplayRows, noise: tuple[Tree, Tree], rate: ArrayLike, *rates: ArrayLike
    ) -> tuple[DQNState, dict[str, jax.Array], jax.Array]:
        """The same with a given noise of the online and the target network."""
        hooks, named_rates, rows = self.hooks, self.rates(rates), split_rows(rows)

        def loss(params: Tree) -> Loss:
            online, other = with_noise(params, noise[0]), with_noise(state.target, noise[1])
            next_q = self.model.apply(other, rows.next_obs)
            selector = jax.lax.stop_gradient(self.model.apply(online, rows.next_obs)) if self.config.double else next_q
            outputs = QOutputs(self.model.apply(online, rows.obs), next_q, selector)
            target = jax.lax.stop_gradient(hooks.target(outputs, rows, named_rates))
            return hooks.loss(outputs._replace(target=target), rows, named_rates)

        params, opt_state, result, norm = self.descend(loss, state.params, state.optimizer, rate)
        # 0 between two updates of the target network.
        count = state.count + 1
        share = self.config.tau * (count % self.config.target_every == 0)
        target = jax.tree.map(lambda old, new: old + share * (new - old), state.target, params)
        logs = scalars(result.metrics) | {"grad_norm": norm}
        return DQNState(params, target, opt_state, count), logs, result.priority


_update = jax.jit(PureDQN.update, static_argnums=0)


class DQN(Learner):
    """Learns action values from replay. Needs a model state with a q-value model, and Discrete actions."""

    opt_state: OptState
    target_params: Tree
    count: AnyArray
    record: ClassVar[AlgorithmRecord] = RECORD
    config: DQNConfig
    PURE: ClassVar[type[Pure]] = PureDQN
    KEYS: ClassVar[Mapping[str, str | None]] = {"opt_state": "optimizer", "target_params": "target"}

    def __init__(
        self,
        model_state: ModelState,
        specs: Specs,
        config: DQNConfig | None = None,
        rng: np.random.Generator | None = None,  # draws the noise of noisy layers
    ):
        super().__init__(model_state, specs, config, rng)
        _, self.target_params, self.opt_state, self.count = self.pure.begin(model_state.params)

    def target(self, outputs: QOutputs, rows: ReplayRows, rates: Rates) -> jax.Array:
        """The value that the chosen actions should have: `[B]`, or a distribution or quantiles of it `[B, atoms]`."""
        head = q_head(self.model)
        next_q = q_values_of(head, outputs.selector)
        if rows.next_action_mask is not None:
            next_q = jnp.where(rows.next_action_mask, next_q, -jnp.inf)
        next_chosen = ops.of_action(outputs.next_q, next_q.argmax(axis=-1))  # [B] or [B, atoms]
        if head is not None and head.kind == "c51":
            probs = jax.nn.softmax(next_chosen)
            return ops.project_distribution(probs, rows.reward, rows.discount, head.support)
        if head is not None and head.kind == "qr":
            return ops.q_target(rows.reward[:, None], rows.discount[:, None], next_chosen)
        return ops.q_target(rows.reward, rows.discount, next_chosen)

    def loss(self, outputs: QOutputs, rows: ReplayRows, rates: Rates) -> Loss:
        """Importance-weighted error of the chosen actions' values. A row's priority is its error."""
        head, chosen = q_head(self.model), ops.of_action(outputs.q, rows.action)  # [B] or [B, atoms]
        penalty = ops.huber if self.config.loss == "huber" else ops.half_square
        if head is not None and head.kind == "c51":
            per_sample = error = -(outputs.target * jax.nn.log_softmax(chosen)).sum(axis=-1)  # cross-entropy
        elif head is not None and head.kind == "qr":
            per_sample = error = ops.quantile_loss(chosen, outputs.target, penalty)
        else:
            error = outputs.target - chosen
            per_sample = penalty(error)
        loss = (per_sample if rows.weight is None else rows.weight * per_sample).mean()
        size = jnp.abs(error)
        metrics = {"loss": loss, "mean_q": q_values_of(head, chosen).mean(), "mean_error": size.mean()}
        return Loss(loss, metrics, priority=size)

    def learn(self, batch: ReplayBatch, progress: float = 0.0) -> Learned:
        """One update. A row's priority is its error."""
        settings, rows = self.settings_at(progress), replay_rows(batch)
        state = DQNState(self.model_state.params, self.target_params, self.opt_state, self.count)
        draw = partial(self.rng.standard_normal, dtype=np.float32)
        online, target = noise_for(state.params, draw), noise_for(state.params, draw)
        noise = (with_dropout(online, self.dropout_key()), target)
        state, logs, priority = _update(self.pure, state, rows, noise, *map(np.float32, settings.values()))
        self.model_state.params, self.target_params, self.opt_state, self.count = state
        return Learned({name: float(value) for name, value in logs.items()} | settings, np.asarray(priority))

    def predict(self, obs: Array) -> Array:
        answer = self.model_state.model.apply(self.model_state.params, fields(obs))
        return np.asarray(q_values_of(q_head(self.model_state.model), answer))

    def sync_target(self) -> None:
        self.target_params = jax.tree.map(lambda value: value, self.model_state.params)
