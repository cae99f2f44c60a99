"""PPO-clip (Schulman et al., 2017): several epochs of minibatches on each rollout, with a clipped ratio."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.core.algorithms.algorithm_record import AlgorithmRecord
from drl.core.algorithms.ppo_record import RECORD, PPOConfig
from drl.core.contracts import Learned
from drl.core.errors import BadInput
from drl.core.schedules import Schedule, changing_rates, schedule_of, values_at
from drl.core.seeding import generator_state, restore_generator, stream_of
from drl.core.specs import Array, Distribution, Specs
from drl.core.state_files import StateDict
from drl.core.transition import RolloutBatch
from drl.engines.jax import ops
from drl.engines.jax.devices import split_rows
from drl.engines.jax.layers import Tree
from drl.engines.jax.learner import Learner
from drl.engines.jax.model_state import ModelState, restore_state, state_arrays
from drl.engines.jax.models import AnyModel, distribution_of
from drl.engines.jax.on_policy import LearnerState, Rows, Window, evaluate_rollout, weight_of, window_of
from drl.engines.jax.optimizer import AnyOptimizer, MakeTransformation, OptaxOptimizer, Optimizer, OptState
from drl.engines.jax.shuffle import minibatch_rows, random_orders

LOGGED = (
    "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "mean_clipped_ratio", "grad_norm",
)  # fmt: skip
KLCarry = tuple[LearnerState, jax.Array, jax.Array, jax.Array]  # state, sums of LOGGED, epochs, whether to stop


def ppo_loss(
    params: Tree,
    model: AnyModel,
    rows: Rows,
    weight: jax.Array | None,
    clip_range: ArrayLike,
    entropy_coef: ArrayLike | None,  # one that changes; None: the config's
    dist: Distribution,
    config: PPOConfig,
) -> tuple[jax.Array, jax.Array]:
    """The loss of one minibatch, and the numbers to log. Rows of weight 0 do not count (None: all count)."""
    dist_params, value = model.apply(params, rows.obs)
    log_prob, entropy = ops.log_prob_and_entropy(dist, dist_params, rows.action, rows.action_mask)
    advantage = ops.normalize(rows.advantage, weight) if config.normalize_advantage else rows.advantage

    log_ratio = log_prob - rows.log_prob  # [B]
    ratio = jnp.exp(log_ratio)
    surrogate = ops.clipped_surrogate(ratio, advantage, clip_range)
    if config.value_clip is None:
        value_error = jnp.square(value - rows.target)
    else:
        value_error = ops.clipped_value_error(value, rows.value, rows.target, config.value_clip)

    policy_loss, value_loss = -ops.mean(surrogate, weight), ops.mean(value_error, weight)
    mean_entropy = ops.mean(entropy, weight)
    bonus = config.entropy_coef if entropy_coef is None else entropy_coef
    loss = policy_loss + config.value_coef * value_loss - bonus * mean_entropy

    clipped = jnp.clip(ratio, 1 - clip_range, 1 + clip_range)
    approx_kl = ops.mean((ratio - 1) - log_ratio, weight)  # the low-variance estimate of KL(old ‖ new)
    clip_fraction = ops.mean((ratio != clipped).astype(jnp.float32), weight)
    numbers = [policy_loss, value_loss, mean_entropy, approx_kl, clip_fraction, ops.mean(clipped, weight)]
    return loss, jax.lax.stop_gradient(jnp.stack(numbers))


@dataclass(frozen=True)
class PurePPO:
    """PPO without state: a static argument of compiled functions; its methods are pure."""

    model: AnyModel  # policy-value
    dist: Distribution
    config: PPOConfig
    optax: MakeTransformation | None = None  # replaces our optimizer; see `OptaxOptimizer`

    @property
    def optimizer(self) -> AnyOptimizer:
        """Adam, or the user's Optax transformation."""
        if self.optax is not None:
            return OptaxOptimizer(self.optax, self.config.max_grad_norm)
        config = self.config
        factors: tuple[tuple[str, float], ...] = ()
        if config.critic_learning_rate is not None:
            factors = (("critic.", config.critic_learning_rate / config.learning_rate),)
        return Optimizer("adam", config.adam_eps, config.max_grad_norm, factors=factors)

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The further arguments of `step`, as functions of the share of the budget used."""
        always = {rate: schedule_of(self.config, rate) for rate in ("learning_rate", "clip_range")}
        return always | changing_rates(self.config, "entropy_coef")

    def begin(self, params: Tree) -> LearnerState:
        return LearnerState(params, self.optimizer.init(params))

    def step(
        self, state: LearnerState, window: Window, key: jax.Array, rate: ArrayLike, *limits: ArrayLike
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """One learning step on one rollout, shuffled by `key`. `limits` are the clip range and, if it changes, the
        entropy coefficient."""
        count = window.reward.shape[0] * window.reward.shape[1]
        order = random_orders(key, self.config.epochs, window.valid, count)
        return self.update(state, window, order, rate, *limits)

    def update(
        self, state: LearnerState, window: Window, order: ArrayLike, rate: ArrayLike, *limits: ArrayLike
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """The same with a given order of rows `[epochs, T · N]`, invalid rows at the end of each."""
        config = self.config
        rows = evaluate_rollout(self.model, state.params, self.dist, window, config.gamma, config.gae_lambda)
        index, weight = minibatch_rows(jnp.asarray(order), config.minibatches, window.valid)

        def descend(state: LearnerState, part: tuple[jax.Array, jax.Array | None]) -> tuple[LearnerState, jax.Array]:
            return self._descend(state, rows.take(part[0]), part[1], rate, *limits)

        def epoch(state: LearnerState, index: jax.Array) -> tuple[LearnerState, jax.Array]:
            return jax.lax.scan(descend, state, (index, weight))  # logged: [minibatches, numbers]

        if config.target_kl is None:
            state, logged = jax.lax.scan(epoch, state, index)
            total, epochs = logged.sum(axis=(0, 1)), jnp.int32(config.epochs)
        else:
            state, total, epochs = _until_too_far(epoch, state, index, 1.5 * config.target_kl)
        updates = epochs * config.minibatches
        logs = dict(zip(LOGGED, total / updates, strict=True)) | {"gradient_steps": updates}
        fit = ops.explained_variance(rows.value, rows.target, weight_of(window))
        return state, logs | {"explained_variance": fit}

    def _descend(
        self,
        state: LearnerState,
        rows: Rows,
        weight: jax.Array | None,
        rate: ArrayLike,
        clip_range: ArrayLike,
        entropy_coef: ArrayLike | None = None,
    ) -> tuple[LearnerState, jax.Array]:
        options = (self.model, split_rows(rows), weight, clip_range, entropy_coef, self.dist, self.config)
        gradient, logged = jax.grad(ppo_loss, has_aux=True)(state.params, *options)
        params, opt_state, norm = self.optimizer.descend(state.params, state.optimizer, gradient, rate)
        return LearnerState(params, opt_state), jnp.append(logged, norm)


def _until_too_far(
    epoch: Callable[[LearnerState, jax.Array], tuple[LearnerState, jax.Array]],
    state: LearnerState,
    index: jax.Array,
    limit: float,
) -> tuple[LearnerState, jax.Array, jax.Array]:
    """Run epochs until `approx_kl` of the last minibatch of one exceeds `limit`; the remaining epochs do nothing."""

    def run(carry: KLCarry, rows: jax.Array) -> KLCarry:
        state, total, epochs, _ = carry
        state, logged = epoch(state, rows)
        too_far = logged[-1, LOGGED.index("approx_kl")] > limit
        return state, total + logged.sum(axis=0), epochs + 1, too_far

    def maybe(carry: KLCarry, rows: jax.Array) -> tuple[KLCarry, None]:
        return jax.lax.cond(carry[-1], lambda carry, _: carry, run, carry, rows), None

    start = (state, jnp.zeros(len(LOGGED)), jnp.int32(0), jnp.bool_(False))
    (state, total, epochs, _), _ = jax.lax.scan(maybe, start, index)
    return state, total, epochs


_update = jax.jit(PurePPO.update, static_argnums=0)


class PPO(Learner):
    """Learns from rollouts of its own policy. Needs a model state with a policy-value model."""

    record: ClassVar[AlgorithmRecord] = RECORD

    def __init__(
        self,
        model_state: ModelState,
        specs: Specs,
        config: PPOConfig | None = None,
        rng: np.random.Generator | None = None,
        optax: MakeTransformation | None = None,  # replaces our optimizer; see `OptaxOptimizer`
    ):
        self.config: PPOConfig = config or PPOConfig()
        super().__init__(model_state, RECORD.variant(self.config))
        self.rng: np.random.Generator = rng or stream_of(specs, "learner")  # shuffles the rollout
        if self.config.critic_learning_rate is not None and getattr(model_state.model, "shared", True):
            raise BadInput("critic_learning_rate needs a critic of its own: a PolicyValueModel with shared off")
        dist = distribution_of(model_state.model, specs.action_spec)
        self.pure: PurePPO = PurePPO(model_state.model, dist, self.config, optax)
        self.opt_state: OptState = self.pure.optimizer.init(model_state.params)

    def learn(self, batch: RolloutBatch, progress: float = 0.0) -> Learned:
        settings = self.scaled(values_at(self.pure.schedules, progress))
        state = LearnerState(self.model_state.params, self.opt_state)
        inputs = (window_of(batch), self._orders(batch.valid), *map(np.float32, settings.values()))
        state, logs = _update(self.pure, state, *inputs)
        self.model_state.params, self.opt_state = state
        return Learned({name: float(value) for name, value in logs.items()} | settings)

    def _orders(self, valid: Array) -> Array:
        """A new random order of the valid rows for every epoch, followed by the invalid ones."""
        keep, others = np.flatnonzero(valid), np.flatnonzero(~valid)
        orders = [keep[self.rng.permutation(len(keep))] for _ in range(self.config.epochs)]
        return np.array([np.concatenate([order, others]) for order in orders], np.int32)

    def state_dict(self) -> StateDict:
        return {"optimizer": state_arrays(self.opt_state), "rng": generator_state(self.rng)}

    def load_state_dict(self, state: StateDict) -> None:
        self.opt_state = restore_state(self.opt_state, state["optimizer"])
        restore_generator(self.rng, state["rng"])
