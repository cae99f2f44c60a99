"""REINFORCE (Williams, 1992): whole episodes, true returns, and a choice of baseline."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.core.algorithms.algorithm_record import AlgorithmRecord
from drl.core.algorithms.reinforce_record import RECORD, ReinforceConfig
from drl.core.contracts import Learned
from drl.core.schedules import Schedule, changing_rates, schedule_of, values_at
from drl.core.specs import AnyArray, Array, Distribution, Specs
from drl.core.state_files import StateDict
from drl.core.transition import RolloutBatch
from drl.engines.jax import ops
from drl.engines.jax.devices import split_rows
from drl.engines.jax.layers import Tree
from drl.engines.jax.learner import Learner
from drl.engines.jax.model_state import ModelState, restore_state, state_arrays
from drl.engines.jax.models import AnyModel, distribution_of, value_of
from drl.engines.jax.on_policy import Window, flat, in_chunks, successor_values, weight_of, window_of
from drl.engines.jax.optimizer import AnyOptimizer, MakeTransformation, OptaxOptimizer, Optimizer, OptState

LOGGED = ("policy_loss", "entropy", "value_loss")
SHORTEST = 256  # smallest number of rows after padding


class ReinforceState(NamedTuple):
    """What REINFORCE's updates carry along."""

    params: Tree
    optimizer: OptState
    running_mean: AnyArray  # float32: of the returns, for baseline `mean`; NaN before the first


def reinforce_loss(
    params: Tree,
    model: AnyModel,
    window: Window,
    advantage: jax.Array,
    returns: jax.Array,
    entropy_coef: ArrayLike | None,  # one that changes; None: the config's
    dist: Distribution,
    config: ReinforceConfig,
) -> tuple[jax.Array, jax.Array]:
    """−A · log π(a|s), an entropy bonus and, with a critic, its error; `advantage` and `returns` are rows `[B]`."""
    answer, weight = model.apply(params, split_rows(flat(window.obs))), weight_of(window)
    dist_params, value = answer if config.baseline == "value" else (answer, returns)
    mask = flat(window.action_mask)
    log_prob, entropy = ops.log_prob_and_entropy(dist, dist_params, flat(window.action), mask)
    policy_loss, mean_entropy = -ops.mean(advantage * log_prob, weight), ops.mean(entropy, weight)
    value_loss = ops.mean(jnp.square(value - returns), weight)
    bonus = config.entropy_coef if entropy_coef is None else entropy_coef
    loss = policy_loss + config.value_coef * value_loss - bonus * mean_entropy
    return loss, jax.lax.stop_gradient(jnp.stack([policy_loss, mean_entropy, value_loss]))


@dataclass(frozen=True)
class PureReinforce:
    """REINFORCE without state: a static argument of compiled functions; its methods are pure.

    The rest of a truncated episode has a value: V(final observation) with baseline `value`, the running mean with
    baseline `mean`, and 0 with baseline `none`.
    """

    model: AnyModel  # policy-only, or policy-value with baseline `value`
    dist: Distribution
    config: ReinforceConfig
    optax: MakeTransformation | None = None  # replaces our optimizer; see `OptaxOptimizer`

    @property
    def optimizer(self) -> AnyOptimizer:
        """Adam, or the user's Optax transformation."""
        if self.optax is not None:
            return OptaxOptimizer(self.optax, self.config.max_grad_norm)
        return Optimizer("adam", self.config.adam_eps, self.config.max_grad_norm)

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The further arguments of `step`, as functions of the share of the budget used."""
        changing = changing_rates(self.config, "entropy_coef")
        return {"learning_rate": schedule_of(self.config, "learning_rate")} | changing

    def begin(self, params: Tree) -> ReinforceState:
        return ReinforceState(params, self.optimizer.init(params), np.float32(np.nan))

    def step(
        self,
        state: ReinforceState,
        window: Window,
        key: jax.Array | None,
        rate: ArrayLike,
        entropy_coef: ArrayLike | None = None,
    ) -> tuple[ReinforceState, dict[str, jax.Array]]:
        """One learning step. Rows that count must belong to whole episodes; `key` is unused."""
        config, weight = self.config, weight_of(window)
        returns, baseline, running_mean = self.returns_and_baseline(state, window)
        target = returns.reshape(-1)
        advantage = (returns - baseline).reshape(-1)
        if config.normalize_advantage:
            advantage = ops.normalize(advantage, weight)
        options = (self.model, window, advantage, target, entropy_coef, self.dist, config)
        gradient, numbers = jax.grad(reinforce_loss, has_aux=True)(state.params, *options)
        params, opt_state, norm = self.optimizer.descend(state.params, state.optimizer, gradient, rate)
        logs = dict(zip(LOGGED, numbers, strict=True)) | {"grad_norm": norm, "gradient_steps": jnp.int32(1)}
        if config.baseline == "value":
            logs["explained_variance"] = ops.explained_variance(baseline.reshape(-1), target, weight)
        else:
            del logs["value_loss"]
        return ReinforceState(params, opt_state, running_mean), logs

    def returns_and_baseline(self, state: ReinforceState, window: Window) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns `[T, N]` with an estimate for the rest of truncated episodes, the baseline, the running mean."""
        config, ends = self.config, (window.terminated, window.truncated, self.config.gamma)
        old = jnp.asarray(state.running_mean)
        if config.baseline == "value":
            value = in_chunks(lambda rows: value_of(self.model, state.params, rows), flat(window.obs))
            values = value.reshape(window.reward.shape)
            tails = successor_values(self.model, state.params, window, values)
            return ops.discounted_returns(window.reward, tails, *ends), values, old
        first = jnp.isnan(old)
        tail = jnp.where(first, 0.0, old) if config.baseline == "mean" else jnp.float32(0.0)
        returns = ops.discounted_returns(window.reward, tail, *ends)
        if config.baseline == "none":
            return returns, jnp.zeros_like(returns), old
        keep, fresh = config.mean_momentum, ops.mean(returns.reshape(-1), weight_of(window))
        running_mean = jnp.where(first, fresh, keep * old + (1 - keep) * fresh)
        return returns, jnp.broadcast_to(running_mean, returns.shape), running_mean


_step = jax.jit(PureReinforce.step, static_argnums=0)


class Reinforce(Learner):
    """Learns from whole episodes of its own policy: a policy-only model, or policy-value with baseline `value`."""

    opt_state: OptState
    running_mean: AnyArray

    record: ClassVar[AlgorithmRecord] = RECORD

    def __init__(
        self,
        model_state: ModelState,
        specs: Specs,
        config: ReinforceConfig | None = None,
        rng: np.random.Generator | None = None,  # unused; every algorithm takes one
        optax: MakeTransformation | None = None,  # replaces our optimizer; see `OptaxOptimizer`
    ):
        self.config: ReinforceConfig = config or ReinforceConfig()
        super().__init__(model_state, RECORD.variant(self.config))
        self.pure: PureReinforce = PureReinforce(
            model_state.model, distribution_of(model_state.model, specs.action_spec), self.config, optax
        )
        _, self.opt_state, self.running_mean = self.pure.begin(model_state.params)

    def learn(self, batch: RolloutBatch, progress: float = 0.0) -> Learned:
        settings = self.scaled(values_at(self.pure.schedules, progress))
        state = ReinforceState(self.model_state.params, self.opt_state, self.running_mean)
        state, logs = _step(self.pure, state, padded(window_of(batch)), None, *map(np.float32, settings.values()))
        self.model_state.params, self.opt_state, self.running_mean = state
        return Learned({name: float(value) for name, value in logs.items()} | settings)

    def state_dict(self) -> StateDict:
        return {"optimizer": state_arrays(self.opt_state), "running_mean": state_arrays(self.running_mean)}

    def load_state_dict(self, state: StateDict) -> None:
        self.opt_state = restore_state(self.opt_state, state["optimizer"])
        self.running_mean = restore_state(self.running_mean, state["running_mean"])


def padded(window: Window) -> Window:
    """Pad a window to a power of two with rows that do not count: every new length would compile a new program."""
    length = len(window.reward)
    missing = max(SHORTEST, 1 << (length - 1).bit_length()) - length

    def stretch(array: Array, value: bool | int = 0) -> Array:
        return np.concatenate([array, np.full((missing, *array.shape[1:]), value, array.dtype)])

    rows = {
        n: jax.tree.map(stretch, getattr(window, n)) for n in window._fields if n not in ("last_obs", "action_mask")
    }
    # Padding rows are terminated, so that they do not affect the returns, and have all actions legal.
    mask = None if window.action_mask is None else stretch(window.action_mask, True)
    return window._replace(**rows | {"terminated": stretch(window.terminated, True), "action_mask": mask})
