"""What the actor-critics with a replay buffer share: the loss of their critics, the update, target networks.

An update moves the critics, then (every `policy_delay` updates) the actor, then the target networks. Critics are plain,
or have a distribution over returns: c51 (logits of a fixed support) or qr (quantiles).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.core.algorithms.off_policy_config import OffPolicyConfig, check_critics
from drl.core.contracts import Learned
from drl.core.errors import BadInput
from drl.core.schedules import Schedule, schedule_of
from drl.core.seeding import generator_state, restore_generator
from drl.core.specs import ActionSpec, AnyArray, Distribution
from drl.core.state_files import StateDict
from drl.core.transition import ReplayBatch
from drl.engines.jax import ops
from drl.engines.jax.actor_critics import ActorCritic
from drl.engines.jax.backbones import Obs
from drl.engines.jax.devices import split_rows
from drl.engines.jax.layers import RUNNING, Params, Tree, named, part
from drl.engines.jax.learner import Learner
from drl.engines.jax.model_state import ModelState, restore_state, state_arrays
from drl.engines.jax.models import QHead, distribution_of
from drl.engines.jax.optimizer import AnyOptimizer, MakeTransformation, OptaxOptimizer, Optimizer, OptState
from drl.engines.jax.replay_rows import ReplayRows, replay_rows
from drl.engines.numpy.update_draws import UpdateDraws, draw_update


class OffPolicyState(NamedTuple):
    """What the updates of an actor-critic carry along."""

    params: Tree  # of actor and critics
    target: Params  # of the target networks; {} without them
    critic_optimizer: OptState
    actor_optimizer: OptState
    temperature: Tree  # {"log_alpha": [1]} of SAC; () otherwise
    temperature_optimizer: OptState
    count: AnyArray  # int32: updates so far


class Sometimes(NamedTuple):
    """A number that only some updates report, such as the loss of a delayed policy."""

    value: jax.Array  # float32; 0 if it is not reported
    reported: jax.Array  # bool


def critic_target(
    head: QHead, answers: jax.Array, bonus: jax.Array, rows: ReplayRows, config: OffPolicyConfig, to_drop: int = 0
) -> jax.Array:
    """What the critics should answer, from their answers `[M, B]` or `[M, B, atoms]` at the next state and action.

    `bonus` `[B]` is added to the next value: the entropy of a soft policy. Plain critics: `[B]` values; c51:
    `[B, atoms]` probabilities; qr: `[B, m]` samples of the return, without the `to_drop` largest of each critic.
    """
    if head.kind == "qr":
        samples = jnp.swapaxes(answers, 0, 1).reshape(answers.shape[1], -1)  # [B, M · atoms]
        if to_drop:
            samples = jnp.sort(samples, axis=1)[:, : samples.shape[1] - to_drop * len(answers)]
        return ops.q_target(rows.reward[:, None], rows.continues[:, None], samples + bonus[:, None])
    if head.kind == "c51":
        probs = jax.nn.softmax(answers, axis=-1)
        if config.target_q == "mean":
            chosen = probs.mean(axis=0)
        else:  # of the critic that expects the smallest return
            lowest = (probs * head.support).sum(axis=-1).argmin(axis=0)
            chosen = jnp.take_along_axis(probs, lowest[None, :, None], axis=0)[0]
        return ops.project_distribution(chosen, rows.reward + rows.continues * bonus, rows.continues, head.support)
    values = answers.mean(axis=0) if config.target_q == "mean" else answers.min(axis=0)
    return ops.q_target(rows.reward, rows.continues, values + bonus)


def critic_errors(head: QHead, answers: jax.Array, goal: jax.Array, loss: str) -> tuple[jax.Array, jax.Array]:
    """The loss of every critic and row `[N, B]`, and the size of its error, which makes the row's priority."""
    penalty = ops.huber if loss == "huber" else ops.half_square
    if head.kind == "c51":
        cross_entropy = -(goal * jax.nn.log_softmax(answers, axis=-1)).sum(axis=-1)
        return cross_entropy, cross_entropy
    if head.kind == "qr":
        losses = jnp.stack([ops.quantile_loss(answer, goal, penalty) for answer in answers])
        return losses, losses
    error = goal - answers
    return penalty(error), jnp.abs(error)


def reduced(values: jax.Array, how: str) -> jax.Array:
    """One value per row from the critics' `[N, B, …]`."""
    if how == "first":
        return values[0]
    return values.mean(axis=0) if how == "mean" else values.min(axis=0)


@dataclass(frozen=True)
class PureOffPolicy:
    """An actor-critic without state: a static argument of compiled functions; its methods are pure. A subclass has the
    two losses."""

    model: ActorCritic
    config: Any  # a subclass of OffPolicyConfig
    action_spec: ActionSpec
    optax: MakeTransformation | None = None  # replaces our optimizer; see `OptaxOptimizer`
    TARGET_ACTOR: ClassVar[bool] = False  # whether the target's actions are those of a target policy

    @property
    def distribution(self) -> Distribution:
        """Of the policy."""
        return distribution_of(self.model, self.action_spec)

    @property
    def optimizer(self) -> AnyOptimizer:
        """Adam, or the user's Optax transformation."""
        config = self.config
        if self.optax is not None:
            return OptaxOptimizer(self.optax, config.max_grad_norm)
        clipping, decay = (config.max_grad_norm, None), config.weight_decay
        return Optimizer(config.optimizer, config.adam_eps, *clipping, False, decay, config.adam_beta1)

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The last argument of `step`, as a function of the share of the budget used."""
        return {"learning_rate": schedule_of(self.config, "learning_rate")}

    @property
    def subset(self) -> int:
        """Critics that make up a target."""
        return self.config.critic_subset or self.model.num_critics

    def begin(self, params: Tree) -> OffPolicyState:
        if self.config.weight_norm:
            params = self.model.weights_normed(params)
        actor, critics = part(params, "actor"), trained_critics(params)
        states = (self.optimizer.init(critics), self.optimizer.init(actor))
        return OffPolicyState(params, self.targets(params), *states, (), (), np.int32(0))

    def targets(self, params: Params) -> Params:
        """Copies of the parameters that have a target network."""
        if not self.config.target_network:
            return {}
        return {name: jnp.array(a) for name, a in params.items() if self.TARGET_ACTOR or name.startswith("critics.")}

    def policy(self, params: Tree, obs: Obs) -> jax.Array:
        """Distribution parameters, for acting."""
        return self.model.apply(params, obs)

    def draw(self, key: jax.Array, rows: int) -> UpdateDraws:
        noise_key, subset_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, (2, rows, self.distribution.entries))
        count = self.model.num_critics
        chosen = jnp.arange(count)
        if self.subset < count:
            chosen = jax.random.permutation(subset_key, count)[: self.subset]
        return UpdateDraws(noise[0], noise[1], chosen)

    def step(
        self, state: OffPolicyState, rows: ReplayRows, key: jax.Array, rate: ArrayLike
    ) -> tuple[OffPolicyState, dict[str, Any], jax.Array]:
        """One update with random numbers from `key`: the new state, numbers to log, and the error of each row."""
        return self.update(state, rows, self.draw(key, len(rows.reward)), rate)

    def update(
        self, state: OffPolicyState, rows: ReplayRows, draws: UpdateDraws, rate: ArrayLike
    ) -> tuple[OffPolicyState, dict[str, Any], jax.Array]:
        """The same with given random numbers."""
        config, optimizer, rows = self.config, self.optimizer, split_rows(rows)
        if config.reward_scale != 1.0:
            rows = rows._replace(reward=rows.reward * np.float32(config.reward_scale))
        trained = trained_critics(state.params)
        gradient, (numbers, priority, running) = jax.grad(self.critic_loss, has_aux=True)(trained, state, rows, draws)
        trained, critic_optimizer, norm = optimizer.descend(trained, state.critic_optimizer, gradient, rate)
        if config.weight_norm:
            trained = self.model.weights_normed(trained)
        count = state.count + 1
        state = state._replace(params=state.params | trained | running, critic_optimizer=critic_optimizer, count=count)
        logs: dict[str, Any] = dict(zip(("critic_loss", "mean_q", "mean_error"), numbers, strict=True))
        logs["critic_grad_norm"] = norm
        if config.policy_delay == 1:
            state, values = self.improve(state, rows, draws.noise, rate)
            logs |= values
        else:
            due = count % config.policy_delay == 0
            same = jax.eval_shape(lambda: self.improve(state, rows, draws.noise, rate)[1])
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), same)
            state, values = jax.lax.cond(
                due,
                lambda now: self.improve(now, rows, draws.noise, rate),
                lambda now: (now, nothing),
                state,
            )
            logs |= {name: Sometimes(value, due) for name, value in values.items()}
        return self._moved(state), logs, priority

    def critic_loss(
        self, trained: Params, state: OffPolicyState, rows: ReplayRows, draws: UpdateDraws
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array, Params]]:
        """Also the numbers to log, the error of each row, and the new running statistics of batch renormalization."""
        raise NotImplementedError

    def actor_loss(
        self, actor: Params, state: OffPolicyState, rows: ReplayRows, noise: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The actor's loss and what it logs."""
        raise NotImplementedError

    def improve(
        self, state: OffPolicyState, rows: ReplayRows, noise: jax.Array, rate: ArrayLike
    ) -> tuple[OffPolicyState, dict[str, jax.Array]]:
        """One step of the actor."""
        config = self.config
        actor = part(state.params, "actor")
        gradient, logs = jax.grad(self.actor_loss, has_aux=True)(actor, state, rows, noise)
        rate = rate * np.float32((config.actor_learning_rate or config.learning_rate) / config.learning_rate)
        actor, actor_optimizer, norm = self.optimizer.descend(actor, state.actor_optimizer, gradient, rate)
        state = state._replace(params=state.params | named("actor", actor), actor_optimizer=actor_optimizer)
        return state, logs | {"actor_grad_norm": norm}

    def answers(
        self,
        params: Params,
        target: Params,
        rows: ReplayRows,
        action: jax.Array | None,
        next_action: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array, Params]:
        """The critics' answers here and at the next state `[N, B, A, …]`, and the new running statistics."""
        if self.config.target_network:
            here, running = self.model.q_batch(params, rows.obs, action)
            return here, jax.lax.stop_gradient(self.model.q(target, rows.next_obs, next_action)), running
        both = jax.tree.map(lambda now, then: jnp.concatenate([now, then]), rows.obs, rows.next_obs)
        actions = None if action is None or next_action is None else jnp.concatenate([action, next_action])
        answers, running = self.model.q_batch(params, both, actions)
        here, there = jnp.split(answers, 2, axis=1)
        return here, jax.lax.stop_gradient(there), running

    def summary(
        self, answers: jax.Array, goal: jax.Array, rows: ReplayRows, running: Params
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array, Params]]:
        """The critics' loss and what `critic_loss` returns beside it, from answers `[N, B]` or `[N, B, atoms]`."""
        head = self.model.critic.head
        losses, errors = critic_errors(head, answers, jax.lax.stop_gradient(goal), self.config.loss)
        losses = losses.sum(axis=0)
        loss = (losses if rows.weight is None else rows.weight * losses).mean()
        priority = errors.mean(axis=0)
        numbers = jnp.stack([loss, head.q_values(answers).mean(), priority.mean()])
        return loss, jax.lax.stop_gradient((numbers, priority, running))

    def _moved(self, state: OffPolicyState) -> OffPolicyState:
        """The target networks, moved towards the online ones if it is time."""
        if not self.config.target_network:
            return state
        share = self.config.tau * (state.count % self.config.target_every == 0)

        def moved(name: str, old: jax.Array) -> jax.Array:
            new = state.params[name]
            if name.endswith(RUNNING):
                return jnp.where(share > 0, new, old)
            return old + share * (new - old)

        return state._replace(target={name: moved(name, old) for name, old in state.target.items()})


def trained_critics(params: Params) -> Params:
    """The critics' parameters, without running statistics."""
    return {name: value for name, value in params.items() if name.startswith("critics.") and not name.endswith(RUNNING)}


_update = jax.jit(lambda pure, *arguments: pure.update(*arguments), static_argnums=0)


class OffPolicyLearner(Learner):
    """The state of a `PureOffPolicy`. Needs a model state with an actor-critic model."""

    def __init__(
        self, model_state: ModelState, pure: PureOffPolicy, needs: str, rng: np.random.Generator | None = None
    ):
        super().__init__(model_state, needs)
        model = model_state.model
        if not isinstance(model, ActorCritic):
            raise BadInput(f"{type(self).__name__} needs an ActorCritic model; build it with make_actor_critic(…)")
        head = model.critic.head
        normed = bool(model.critic.normed_layers())
        check_critics(pure.config, model.num_critics, head.kind, head.atoms, normed, pure.action_spec)
        self.pure: PureOffPolicy = pure
        self.config: Any = pure.config
        # Draws the noise of actions and the subset of critics.
        self.rng: np.random.Generator = rng or np.random.default_rng(0)
        self.state: OffPolicyState = pure.begin(model_state.params)
        model_state.params = self.state.params
        self.learning_rate: Schedule = pure.schedules["learning_rate"]

    def learn(self, batch: ReplayBatch, progress: float = 0.0) -> Learned:
        """One update. A row's priority is its mean error over the critics."""
        rate, pure = self.learning_rate(progress), self.pure
        count, entries = len(batch.reward), pure.distribution.entries
        draws = draw_update(self.rng, count, entries, pure.model.num_critics, pure.subset)
        state = self.state._replace(params=self.model_state.params)
        self.state, logs, priority = _update(pure, state, replay_rows(batch), draws, np.float32(rate))
        self.model_state.params = self.state.params
        log: dict[str, float] = {}
        for name, value in logs.items():
            if not isinstance(value, Sometimes):
                log[name] = float(value)
            elif value.reported:
                log[name] = float(value.value)
        return Learned(log | {"learning_rate": rate}, np.asarray(priority))

    def sync_target(self) -> None:
        self.state = self.state._replace(target=self.pure.targets(self.model_state.params))

    def state_dict(self) -> StateDict:
        kept = self.state._replace(params=())  # the agent has them
        return {"state": state_arrays(kept), "rng": generator_state(self.rng)}

    def load_state_dict(self, state: StateDict) -> None:
        self.state = restore_state(self.state._replace(params=()), state["state"])
        restore_generator(self.rng, state["rng"])
