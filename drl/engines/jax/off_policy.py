"""The parts shared by TD3 and SAC: the loss of the critics, the update, target networks.

An update moves the critics, then (every `policy_delay` updates) the actor, then the target networks. Critics are plain,
or have a distribution over returns: c51 (logits of a fixed support) or qr (quantiles).
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.algorithms.off_policy import OffPolicyConfig, check_critics
from drl.core.contracts import ActorOutputs, CriticOutputs, Learned, Loss, Rates, ReplayBatch
from drl.core.errors import BadInput
from drl.core.specs import AnyArray, Specs
from drl.engines.jax import ops
from drl.engines.jax.actor_critics import ActorCritic
from drl.engines.jax.backbones import Obs
from drl.engines.jax.devices import split_rows
from drl.engines.jax.layers import RUNNING, Params, Tree, named, part, with_dropout
from drl.engines.jax.learner import Learner, Pure, scalars
from drl.engines.jax.model_state import ModelState
from drl.engines.jax.models import QHead
from drl.engines.jax.ops import ReplayRows, replay_rows
from drl.engines.jax.optimizer import OptState
from drl.engines.numpy.distributions import draw_update

Actions = tuple[jax.Array | None, jax.Array | None]  # `action` and `log_prob` of `ActorOutputs`


class OffPolicyState(NamedTuple):
    """State of an actor-critic between two updates."""

    params: Tree  # of actor and critics
    target: Params  # of the target networks; {} without them
    critic_optimizer: OptState
    actor_optimizer: OptState
    temperature: Tree  # {"log_alpha": [1]} of SAC; () otherwise
    temperature_optimizer: OptState
    count: AnyArray  # int32: updates so far


class Draws(NamedTuple):
    """The random numbers of one update: `UpdateDraws`, and the key of dropout."""

    next_noise: AnyArray  # [B, entries] standard normal: of the target's actions
    noise: AnyArray  # [B, entries] standard normal: of the actor's actions
    subset: AnyArray  # [M] int: critics whose values make up the target
    dropout: AnyArray | None  # None: no dropout


class Sometimes(NamedTuple):
    """A number that only some updates report, such as the loss of a delayed policy."""

    value: jax.Array  # float32; 0 if it is not reported
    reported: jax.Array  # bool


def critic_target(
    head: QHead, answers: jax.Array, bonus: jax.Array, rows: ReplayRows, config: OffPolicyConfig, to_drop: int = 0
) -> jax.Array:
    """Targets of the critics, from their outputs `[M, B]` or `[M, B, atoms]` at the next state and action.

    `bonus` `[B]` is added to the next value: the entropy of a soft policy. Plain critics: `[B]` values; c51:
    `[B, atoms]` probabilities; qr: `[B, m]` samples of the return, without the `to_drop` largest of each critic.
    """
    if head.kind == "qr":
        samples = jnp.swapaxes(answers, 0, 1).reshape(answers.shape[1], -1)  # [B, M · atoms]
        if to_drop:
            samples = jnp.sort(samples, axis=1)[:, : samples.shape[1] - to_drop * len(answers)]
        return ops.q_target(rows.reward[:, None], rows.discount[:, None], samples + bonus[:, None])
    if head.kind == "c51":
        probs = jax.nn.softmax(answers, axis=-1)
        if config.target_q == "mean":
            chosen = probs.mean(axis=0)
        else:  # of the critic that expects the smallest return
            lowest = (probs * head.support).sum(axis=-1).argmin(axis=0)
            chosen = jnp.take_along_axis(probs, lowest[None, :, None], axis=0)[0]
        return ops.project_distribution(chosen, rows.reward + rows.discount * bonus, rows.discount, head.support)
    values = answers.mean(axis=0) if config.target_q == "mean" else answers.min(axis=0)
    return ops.q_target(rows.reward, rows.discount, values + bonus)


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
class PureOffPolicy(Pure):
    """An actor-critic as pure functions of a state."""

    algorithm: "type[OffPolicyLearner]"
    model: ActorCritic

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

    @property
    def target_actor(self) -> bool:
        """Whether there is a target network of the actor."""
        return self.algorithm.TARGET_ACTOR and self.config.target_network

    def targets(self, params: Params) -> Params:
        """Copies of the parameters that have a target network."""
        if not self.config.target_network:
            return {}
        return {name: jnp.array(a) for name, a in params.items() if self.target_actor or name.startswith("critics.")}

    def policy(self, params: Tree, obs: Obs) -> jax.Array:
        """Distribution parameters, for acting."""
        return self.model.apply(params, obs)

    def draw(self, key: jax.Array, rows: int) -> Draws:
        noise_key, subset_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, (2, rows, self.dist.entries))
        count = self.model.num_critics
        chosen = jnp.arange(count)
        if self.subset < count:
            chosen = jax.random.permutation(subset_key, count)[: self.subset]
        return Draws(noise[0], noise[1], chosen, jax.random.fold_in(key, 2) if self.drops else None)

    def step(
        self, state: OffPolicyState, rows: ReplayRows, key: jax.Array, rate: ArrayLike, *rates: ArrayLike
    ) -> tuple[OffPolicyState, dict[str, jax.Array], jax.Array]:
        """One update with random numbers from `key`: the new state, numbers to log, and the error of each row."""
        return self.update(state, rows, self.draw(key, len(rows.reward)), rate, *rates)

    def update(
        self, state: OffPolicyState, rows: ReplayRows, draws: Draws, rate: ArrayLike, *rates: ArrayLike
    ) -> tuple[OffPolicyState, dict[str, jax.Array], jax.Array]:
        """The same with given random numbers."""
        config, rows = self.config, split_rows(rows)
        if config.reward_scale != 1.0:
            rows = rows._replace(reward=rows.reward * np.float32(config.reward_scale))
        named_rates = self.rates_at(state, rates)
        state, logs, priority = self.update_critics(state, rows, draws, rate, named_rates)

        def update_policy(state: OffPolicyState) -> tuple[OffPolicyState, dict[str, jax.Array]]:
            state, logs = self.update_actor(state, rows, draws, rate, named_rates)
            return self.update_temperature(state, rows, rate, logs)

        if config.policy_delay == 1:
            state, values = update_policy(state)
            logs |= values
        else:
            due = state.count % config.policy_delay == 0
            shapes = jax.eval_shape(update_policy, state)[1]
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            state, values = jax.lax.cond(due, update_policy, lambda state: (state, nothing), state)
            logs |= {name: Sometimes(value, due) for name, value in values.items()}
        return self.update_targets(state), logs, priority

    def rates_at(self, state: OffPolicyState, rates: tuple[ArrayLike, ...]) -> Rates:
        """The `rates` of the losses."""
        temperature = {"temperature": jnp.exp(state.temperature["log_alpha"])} if state.temperature else {}
        return self.rates(rates, **temperature)

    def update_critics(
        self, state: OffPolicyState, rows: ReplayRows, draws: Draws, rate: ArrayLike, rates: Rates
    ) -> tuple[OffPolicyState, dict[str, jax.Array], jax.Array]:
        """One step of the critics."""
        hooks = self.hooks

        def loss(trained: Params) -> Loss:
            dist_params = self.model.apply(state.target if self.target_actor else state.params, rows.next_obs)
            next_action, log_prob = hooks.next_action(dist_params, draws.next_noise, rows.next_action_mask)
            action = None if next_action is None else rows.action
            params = with_dropout(state.params | trained, draws.dropout)
            q, next_q, running = self.answers(params, state.target, rows, action, next_action)
            if action is None:
                q = jnp.stack([ops.of_action(answer, rows.action) for answer in q])
            else:
                q, next_q = q.squeeze(2), next_q.squeeze(2)  # one action: [N, B] or [N, B, atoms]
            outputs = CriticOutputs(q, next_q[draws.subset], log_prob)
            target = jax.lax.stop_gradient(hooks.target(outputs, rows, rates))
            result: Loss = hooks.critic_loss(outputs._replace(target=target), rows, rates)
            return result._replace(statistics=running)

        trained = trained_critics(state.params)
        trained, critic_optimizer, result, norm = self.descend(loss, trained, state.critic_optimizer, rate)
        if self.config.weight_norm:
            trained = self.model.weights_normed(trained)
        params, count = state.params | trained | result.statistics, state.count + 1
        state = state._replace(params=params, critic_optimizer=critic_optimizer, count=count)
        return state, scalars(result.metrics) | {"critic_grad_norm": norm}, result.priority

    def update_actor(
        self, state: OffPolicyState, rows: ReplayRows, draws: Draws, rate: ArrayLike, rates: Rates
    ) -> tuple[OffPolicyState, dict[str, jax.Array]]:
        """One step of the actor."""
        config, hooks = self.config, self.hooks

        def loss(actor: Params) -> Loss:
            dist_params = self.model.actor.apply(with_dropout(actor, draws.dropout), rows.obs)
            action, log_prob = hooks.action(dist_params, draws.noise, rows.action_mask)
            q = self.model.q(state.params, rows.obs, action)
            q = self.model.critic.head.q_values(q if action is None else q.squeeze(2))
            return hooks.actor_loss(ActorOutputs(dist_params, action, log_prob, q), rows, rates)

        rate = rate * np.float32((config.actor_learning_rate or config.learning_rate) / config.learning_rate)
        actor, actor_optimizer, result, norm = self.descend(
            loss, part(state.params, "actor"), state.actor_optimizer, rate, "actor."
        )
        state = state._replace(params=state.params | named("actor", actor), actor_optimizer=actor_optimizer)
        return state, scalars(result.metrics) | {"actor_grad_norm": norm}

    def update_temperature(
        self, state: OffPolicyState, rows: ReplayRows, rate: ArrayLike, logs: dict[str, jax.Array]
    ) -> tuple[OffPolicyState, dict[str, jax.Array]]:
        """One step of the temperature, if there is one. `logs` are those of the actor's step."""
        return state, logs

    def answers(
        self,
        params: Params,
        target: Params,
        rows: ReplayRows,
        action: jax.Array | None,
        next_action: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array, Params]:
        """The critics' outputs here and at the next state `[N, B, A, …]`, and the new running statistics."""
        if self.config.target_network:
            here, running = self.model.q_batch(params, rows.obs, action)
            return here, jax.lax.stop_gradient(self.model.q(target, rows.next_obs, next_action)), running
        both = jax.tree.map(lambda now, then: jnp.concatenate([now, then]), rows.obs, rows.next_obs)
        actions = None if action is None or next_action is None else jnp.concatenate([action, next_action])
        answers, running = self.model.q_batch(params, both, actions)
        here, there = jnp.split(answers, 2, axis=1)
        return here, jax.lax.stop_gradient(there), running

    def update_targets(self, state: OffPolicyState) -> OffPolicyState:
        """Move the target networks towards the online ones, every `target_every` updates."""
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
    """An actor and critics. A subclass has `action`, `target` and `actor_loss`. Needs an actor-critic model."""

    config: OffPolicyConfig
    model: ActorCritic
    PURE: ClassVar[type[Pure]] = PureOffPolicy
    TARGET_ACTOR: ClassVar[bool] = False  # whether the target's actions are those of a target policy

    def __init__(
        self,
        model_state: ModelState,
        specs: Specs,
        config: OffPolicyConfig | None = None,
        rng: np.random.Generator | None = None,  # draws the noise of actions and the subset of critics
    ):
        super().__init__(model_state, specs, config, rng)
        model = model_state.model
        if not isinstance(model, ActorCritic):
            raise BadInput(f"{type(self).__name__} needs an ActorCritic model; build it with make_actor_critic(…)")
        head, normed = model.critic.head, bool(model.critic.normed_layers())
        check_critics(self.config, model.num_critics, head.kind, head.atoms, normed, specs.action_spec)
        state = self.pure.begin(model_state.params)
        model_state.params = state.params
        self.state: OffPolicyState = state._replace(params=())  # the agent has the parameters

    def action(self, dist_params: jax.Array, noise: jax.Array, mask: AnyArray | None) -> Actions:
        """Actions of the policy, and the logarithm of their probabilities."""
        raise NotImplementedError

    def next_action(self, dist_params: jax.Array, noise: jax.Array, mask: AnyArray | None) -> Actions:
        """The same for the next state, in the target of the critics."""
        return self.action(dist_params, noise, mask)

    def target(self, outputs: CriticOutputs, rows: ReplayRows, rates: Rates) -> jax.Array:
        """Targets of the critics; see `critic_target`."""
        raise NotImplementedError

    def critic_loss(self, outputs: CriticOutputs, rows: ReplayRows, rates: Rates) -> Loss:
        """The error of all critics, importance-weighted. A row's priority is its mean error over the critics."""
        head = self.model.critic.head
        losses, errors = critic_errors(head, outputs.q, outputs.target, self.config.loss)
        losses = losses.sum(axis=0)
        loss = (losses if rows.weight is None else rows.weight * losses).mean()
        priority = errors.mean(axis=0)
        q = head.q_values(outputs.q).mean()
        return Loss(loss, {"critic_loss": loss, "mean_q": q, "mean_error": priority.mean()}, priority)

    def actor_loss(self, outputs: ActorOutputs, rows: ReplayRows, rates: Rates) -> Loss:
        """The loss of the actor."""
        raise NotImplementedError

    def learn(self, batch: ReplayBatch, progress: float = 0.0) -> Learned:
        """One update. A row's priority is its mean error over the critics."""
        settings, pure = self.settings_at(progress), self.pure
        drawn = draw_update(self.rng, len(batch.reward), self.dist.entries, self.model.num_critics, pure.subset)
        draws = Draws(*drawn, dropout=self.dropout_key())
        state = self.state._replace(params=self.model_state.params)
        inputs = (replay_rows(batch), draws, *map(np.float32, settings.values()))
        state, logs, priority = _update(pure, state, *inputs)
        self.model_state.params, self.state = state.params, state._replace(params=())
        log: dict[str, float] = {}
        for name, value in logs.items():
            if not isinstance(value, Sometimes):
                log[name] = float(value)
            elif value.reported:
                log[name] = float(value.value)
        return Learned(log | settings, np.asarray(priority))

    def sync_target(self) -> None:
        self.state = self.state._replace(target=self.pure.targets(self.model_state.params))
