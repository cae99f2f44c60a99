"""A2C (Mnih et al., 2016, synchronous): one gradient step on each short rollout."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.core.algorithms.a2c_record import RECORD, A2CConfig
from drl.core.algorithms.algorithm_record import AlgorithmRecord
from drl.core.contracts import Learned
from drl.core.schedules import Schedule, changing_rates, schedule_of, values_at
from drl.core.specs import Distribution, Specs
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

LOGGED = ("policy_loss", "value_loss", "entropy")


def a2c_loss(
    params: Tree,
    model: AnyModel,
    rows: Rows,
    weight: jax.Array | None,
    entropy_coef: ArrayLike | None,  # one that changes; None: the config's
    dist: Distribution,
    config: A2CConfig,
) -> tuple[jax.Array, jax.Array]:
    """Policy gradient with a critic, on the whole rollout. Rows of weight 0 do not count (None: all count)."""
    dist_params, value = model.apply(params, rows.obs)
    log_prob, entropy = ops.log_prob_and_entropy(dist, dist_params, rows.action, rows.action_mask)
    advantage = ops.normalize(rows.advantage, weight) if config.normalize_advantage else rows.advantage
    policy_loss, mean_entropy = -ops.mean(advantage * log_prob, weight), ops.mean(entropy, weight)
    value_loss = ops.mean(jnp.square(value - rows.target), weight)
    bonus = config.entropy_coef if entropy_coef is None else entropy_coef
    loss = policy_loss + config.value_coef * value_loss - bonus * mean_entropy
    return loss, jax.lax.stop_gradient(jnp.stack([policy_loss, value_loss, mean_entropy]))


@dataclass(frozen=True)
class PureA2C:
    """A2C without state: a static argument of compiled functions; its methods are pure."""

    model: AnyModel  # policy-value
    dist: Distribution
    config: A2CConfig
    optax: MakeTransformation | None = None  # replaces our optimizer; see `OptaxOptimizer`

    @property
    def optimizer(self) -> AnyOptimizer:
        """RMSProp or Adam, or the user's Optax transformation."""
        if self.optax is not None:
            return OptaxOptimizer(self.optax, self.config.max_grad_norm)
        return Optimizer(self.config.optimizer, self.config.optimizer_eps, self.config.max_grad_norm)

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The further arguments of `step`, as functions of the share of the budget used."""
        changing = changing_rates(self.config, "entropy_coef")
        return {"learning_rate": schedule_of(self.config, "learning_rate")} | changing

    def begin(self, params: Tree) -> LearnerState:
        return LearnerState(params, self.optimizer.init(params))

    def step(
        self,
        state: LearnerState,
        window: Window,
        key: jax.Array | None,
        rate: ArrayLike,
        entropy_coef: ArrayLike | None = None,
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """One learning step on one rollout. `key` is unused; every algorithm takes one."""
        config, weight = self.config, weight_of(window)
        rows = evaluate_rollout(self.model, state.params, self.dist, window, config.gamma, config.gae_lambda)
        options = (self.model, split_rows(rows), weight, entropy_coef, self.dist, config)
        gradient, numbers = jax.grad(a2c_loss, has_aux=True)(state.params, *options)
        params, opt_state, norm = self.optimizer.descend(state.params, state.optimizer, gradient, rate)
        fit = ops.explained_variance(rows.value, rows.target, weight)
        logs = dict(zip(LOGGED, numbers, strict=True)) | {"grad_norm": norm, "explained_variance": fit}
        return LearnerState(params, opt_state), logs | {"gradient_steps": jnp.int32(1)}


_step = jax.jit(PureA2C.step, static_argnums=0)


class A2C(Learner):
    """Learns from rollouts of its own policy. Needs a model state with a policy-value model."""

    record: ClassVar[AlgorithmRecord] = RECORD

    def __init__(
        self,
        model_state: ModelState,
        specs: Specs,
        config: A2CConfig | None = None,
        rng: np.random.Generator | None = None,  # unused; every algorithm takes one
        optax: MakeTransformation | None = None,  # replaces our optimizer; see `OptaxOptimizer`
    ):
        self.config: A2CConfig = config or A2CConfig()
        super().__init__(model_state, RECORD.variant(self.config))
        dist = distribution_of(model_state.model, specs.action_spec)
        self.pure: PureA2C = PureA2C(model_state.model, dist, self.config, optax)
        self.opt_state: OptState = self.pure.optimizer.init(model_state.params)

    def learn(self, batch: RolloutBatch, progress: float = 0.0) -> Learned:
        settings = self.scaled(values_at(self.pure.schedules, progress))
        inputs = (window_of(batch), None, *map(np.float32, settings.values()))
        state, logs = _step(self.pure, LearnerState(self.model_state.params, self.opt_state), *inputs)
        self.model_state.params, self.opt_state = state
        return Learned({name: float(value) for name, value in logs.items()} | settings)

    def state_dict(self) -> StateDict:
        return {"optimizer": state_arrays(self.opt_state)}

    def load_state_dict(self, state: StateDict) -> None:
        self.opt_state = restore_state(self.opt_state, state["optimizer"])
