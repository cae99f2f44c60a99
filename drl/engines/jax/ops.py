"""The math, as pure functions of arrays. They return per-sample values; the caller weights and reduces.

`drl.testing.oracles` has a slow float64 version of each. The PyTorch engine has the same functions.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.core.contracts import ReplayBatch
from drl.core.errors import BadInput
from drl.core.specs import AnyArray, Distribution
from drl.engines.jax.backbones import Obs, fields
from drl.engines.numpy.distributions import ILLEGAL, INSIDE, QUADRATURE


class ReplayRows(NamedTuple):
    """A replay batch `[B, …]`."""

    obs: Obs
    action: AnyArray
    reward: AnyArray  # discounted sum over k steps
    discount: AnyArray  # γ^k, or 0 if the episode terminated
    next_obs: Obs
    weight: AnyArray | None  # importance weights; None: all 1
    next_action_mask: AnyArray | None = None  # [B, choices] bool: legal actions in `next_obs`; None: all
    action_mask: AnyArray | None = None  # the same for `obs`


def replay_rows(batch: ReplayBatch) -> ReplayRows:
    """A batch of the replay buffer as rows of a loss."""
    discount = np.asarray(batch.discount * (1.0 - batch.terminated))
    obs, next_obs = fields(batch.obs), fields(batch.next_obs)
    masks = (batch.next_action_mask, batch.action_mask)
    return ReplayRows(obs, batch.action, batch.reward, discount, next_obs, batch.weight, *masks)


# ── rollout math, time-major [T, N] ───────────────────────────────────────────────────────────────────────────────


def gae(
    reward: AnyArray,
    value: AnyArray,
    next_value: AnyArray,
    terminated: AnyArray,
    truncated: AnyArray,
    gamma: float,
    lam: float,
) -> jax.Array:
    """Generalized advantage estimate A_t = Σ_k (γλ)^k δ_{t+k},  δ_t = r_t + γ V(s_{t+1}) (1 − terminated_t) − V(s_t).

    The sum stops at every episode end. The successor's value is 0 at a termination, and `next_value` at a truncation.
    """
    delta = reward + gamma * next_value * (1.0 - terminated) - value  # [T, N]
    carry = gamma * lam * (1.0 - (terminated | truncated))  # [T, N]

    def back(running: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        running = row[0] + row[1] * running
        return running, running

    _, advantage = jax.lax.scan(back, jnp.zeros_like(delta[0]), (delta, carry), reverse=True)
    return advantage


def lambda_returns(
    reward: AnyArray,
    value: AnyArray,
    next_value: AnyArray,
    terminated: AnyArray,
    truncated: AnyArray,
    gamma: float,
    lam: float,
) -> jax.Array:
    """TD(λ) targets: GAE + V. λ = 0 is the one-step target, λ = 1 the (bootstrapped) Monte Carlo return."""
    return gae(reward, value, next_value, terminated, truncated, gamma, lam) + value


def discounted_returns(
    reward: AnyArray, next_value: AnyArray, terminated: AnyArray, truncated: AnyArray, gamma: float
) -> jax.Array:
    """G_t = r_t + γ G_{t+1}, with G = V(successor) at a truncation and at the window's last row, 0 at a termination."""
    cut = jnp.asarray(truncated).at[-1].set(True)
    zeros = jnp.zeros_like(reward)
    return gae(reward, zeros, jnp.where(cut, next_value, 0.0), terminated, truncated, gamma, 1.0)


def n_step_returns(
    reward: AnyArray, next_value: AnyArray, terminated: AnyArray, truncated: AnyArray, gamma: float, n: int
) -> jax.Array:
    """Sum of n discounted rewards plus the bootstrapped value; stops early at an episode end or the window's end."""
    length, ended = len(reward), terminated | truncated
    tail = jnp.where(terminated, 0.0, next_value)
    target = jnp.asarray(reward + gamma * tail)  # one step
    for _ in range(min(n, length) - 1):
        # k + 1 steps from t are one step from t, then k steps from t + 1, unless the episode ends at t.
        further = reward[:-1] + gamma * target[1:]
        target = jnp.concatenate([jnp.where(ended[:-1], target[:-1], further), target[-1:]])
    return target


def mean(values: jax.Array, weight: jax.Array | None = None) -> jax.Array:
    """The mean over rows; rows of weight 0 do not count."""
    if weight is None:
        return values.mean()
    return (values * weight).sum() / jnp.maximum(weight.sum(), 1.0)


def normalize(values: jax.Array, weight: jax.Array | None = None) -> jax.Array:
    """To mean 0 and (unbiased) standard deviation 1 over the rows that count; unchanged if there is only one."""
    count = jnp.float32(values.size) if weight is None else weight.sum()
    centered = values - mean(values, weight)
    squares = jnp.square(centered) if weight is None else jnp.square(centered) * weight
    deviation = jnp.sqrt(squares.sum() / jnp.maximum(count - 1.0, 1.0))
    return jnp.where(count > 1.0, centered / (deviation + 1e-8), values)


def explained_variance(prediction: jax.Array, target: jax.Array, weight: jax.Array | None = None) -> jax.Array:
    """1 − Var[target − prediction] / Var[target]: 1 is perfect, 0 no better than a constant; NaN for a flat target."""

    def variance(values: jax.Array) -> jax.Array:
        return mean(jnp.square(values - mean(values, weight)), weight)

    counts = True if weight is None else weight > 0
    flat = jnp.max(target, initial=-jnp.inf, where=counts) <= jnp.min(target, initial=jnp.inf, where=counts)
    whole = jnp.where(flat, 1.0, variance(target))
    return jnp.where(flat, jnp.nan, 1.0 - variance(target - prediction) / whole)


# ── policies ──────────────────────────────────────────────────────────────────────────────────────────────────────


def log_prob_and_entropy(
    dist: Distribution, dist_params: jax.Array, action: jax.Array, action_mask: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """log π(a|s) and H[π(·|s)] per sample, from a policy head's outputs `[B, P]`."""
    dist_params = masked(dist, dist_params, action_mask)
    if dist.kind == "categorical":
        return _categorical(dist_params, action)
    if dist.kind == "multi_categorical":
        parts = [_categorical(piece, action[:, i]) for i, piece in enumerate(split(dist, dist_params))]
        return sum(part[0] for part in parts), sum(part[1] for part in parts)  # type: ignore[return-value]
    if dist.kind == "bernoulli":
        log_prob = -_binary_cross_entropy(dist_params, action.astype(dist_params.dtype))
        return log_prob.sum(-1), _binary_cross_entropy(dist_params, jax.nn.sigmoid(dist_params)).sum(-1)
    if dist.kind == "deterministic":
        raise BadInput("a deterministic policy has no log-probabilities; use distribution gaussian or tanh_gaussian")
    mean, log_std = jnp.split(dist_params, 2, axis=-1)
    squashed = dist.kind == "tanh_gaussian"
    value = jnp.arctanh(jnp.clip(action, -INSIDE, INSIDE)) if squashed else action
    standard = (value - mean) * jnp.exp(-log_std)
    log_prob = -0.5 * jnp.square(standard) - log_std - 0.5 * math.log(2 * math.pi)
    entropy = log_std + 0.5 * math.log(2 * math.pi * math.e)
    if squashed:
        log_prob, entropy = log_prob - log_slope_of_tanh(value), entropy + _mean_log_slope(mean, log_std)
    return log_prob.sum(-1), entropy.sum(-1)


def split(dist: Distribution, dist_params: jax.Array) -> list[jax.Array]:
    """Logits of each entry of a multi-categorical."""
    ends = [sum(dist.sizes[: i + 1]) for i in range(len(dist.sizes) - 1)]
    return jnp.split(dist_params, ends, axis=-1)


def masked(dist: Distribution, dist_params: jax.Array, action_mask: jax.Array | None) -> jax.Array:
    """Logits with a large negative value for illegal actions; `action_mask` `[B, choices]` is True for legal ones."""
    if action_mask is None:
        return dist_params
    if dist.kind == "bernoulli":
        pairs = action_mask.reshape(-1, dist.entries, 2)
        return jnp.where(pairs[..., 1], jnp.where(pairs[..., 0], dist_params, -ILLEGAL), ILLEGAL)
    if not dist.sizes:
        raise BadInput(f"there is an action mask, but a {dist.kind} distribution has no choices to mask")
    return jnp.where(action_mask, dist_params, ILLEGAL)


def sample_with_log_prob(dist: Distribution, dist_params: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A reparametrized sample from a Gaussian or squashed Gaussian, and its log-probability.

    `noise` `[B, entries]` is standard normal; zeros give the mode.
    """
    mean, log_std = jnp.split(dist_params, 2, axis=-1)
    value = mean + jnp.exp(log_std) * noise
    log_prob = -0.5 * jnp.square(noise) - log_std - 0.5 * math.log(2 * math.pi)
    if dist.kind == "tanh_gaussian":
        return jnp.tanh(value), (log_prob - log_slope_of_tanh(value)).sum(-1)
    return value, log_prob.sum(-1)


def random_draws(dist: Distribution, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Random numbers for `shape` decisions, `[*shape, entries]`: normal for a Gaussian policy, else uniform. A rollout
    draws all of them at once."""
    draw = jax.random.normal if dist.kind.endswith("gaussian") else jax.random.uniform
    return draw(key, (*shape, max(dist.entries, 1)))


def sample(
    dist: Distribution, dist_params: jax.Array, draws: jax.Array, action_mask: jax.Array | None = None
) -> jax.Array:
    """Actions in the policy's units, from distribution parameters `[N, P]` and random draws `[N, entries]`."""
    if dist.kind.endswith("gaussian"):
        return sample_with_log_prob(dist, dist_params, draws)[0]
    if dist.kind == "deterministic":
        return jnp.tanh(dist_params)
    logits, some = masked(dist, dist_params, action_mask), action_mask is not None
    if dist.kind == "bernoulli":
        return (draws < jax.nn.sigmoid(logits)).astype(jnp.int32)
    if dist.kind == "categorical":
        return _category(logits, draws[:, 0], some)
    return jnp.stack([_category(piece, draws[:, i], some) for i, piece in enumerate(split(dist, logits))], axis=1)


def mode(dist: Distribution, dist_params: jax.Array, action_mask: jax.Array | None = None) -> jax.Array:
    """The most likely action; for a squashed Gaussian the squashed mean."""
    logits = masked(dist, dist_params, action_mask)
    if dist.kind == "categorical":
        return logits.argmax(axis=-1)
    if dist.kind == "multi_categorical":
        return jnp.stack([piece.argmax(axis=-1) for piece in split(dist, logits)], axis=-1)
    if dist.kind == "bernoulli":
        return (logits > 0).astype(jnp.int32)
    mean = dist_params[:, : dist.entries]
    return mean if dist.kind == "gaussian" else jnp.tanh(mean)


def log_slope_of_tanh(value: jax.Array) -> jax.Array:
    """log(1 − tanh(x)²), without the cancellation near ±1."""
    return 2.0 * (math.log(2.0) - value - jax.nn.softplus(-2.0 * value))


def _mean_log_slope(mean: jax.Array, log_std: jax.Array) -> jax.Array:
    """E[log(1 − tanh(X)²)] of a Gaussian X, by quadrature: the change of its entropy by squashing."""
    nodes, weights = QUADRATURE
    values = mean[..., None] + jnp.exp(log_std)[..., None] * nodes
    return (log_slope_of_tanh(values) * weights).sum(axis=-1)


def _category(logits: jax.Array, uniform: jax.Array, some_illegal: bool) -> jax.Array:
    """The index at which the cumulative probability passes `uniform`: one random number per decision."""
    probability = jax.nn.softmax(logits, axis=-1)
    passed = jnp.cumsum(probability, axis=-1)
    if some_illegal:  # a blockwise sum may round up at an entry of probability 0, and end below 1
        likely = probability > 0
        first = jnp.argmax(likely & (uniform[:, None] < passed), axis=-1)
        last = logits.shape[-1] - 1 - jnp.argmax(likely[:, ::-1], axis=-1)
        reached = jnp.take_along_axis(likely & (uniform[:, None] < passed), first[:, None], axis=-1)[:, 0]
        return jnp.where(reached, first, last).astype(jnp.int32)
    return (uniform[:, None] >= passed[:, :-1]).sum(axis=-1, dtype=jnp.int32)


def _categorical(logits: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    # A sum over a one-hot: its gradient is a product; the gradient of a gather is a slower scatter.
    chosen = jax.nn.one_hot(action, logits.shape[-1], dtype=logits.dtype)
    return (log_probs * chosen).sum(-1), -(jnp.exp(log_probs) * log_probs).sum(-1)


def _binary_cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    return jax.nn.softplus(-jnp.abs(logits)) + jnp.maximum(logits, 0.0) - logits * label


def clipped_surrogate(ratio: jax.Array, advantage: jax.Array, clip_range: ArrayLike) -> jax.Array:
    """PPO's pessimistic objective per sample: min(ρ A, clip(ρ, 1 − ε, 1 + ε) A), ρ the probability ratio."""
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip_range, 1 + clip_range) * advantage)


def clipped_value_error(value: jax.Array, old_value: jax.Array, target: jax.Array, clip_range: float) -> jax.Array:
    """The larger of the squared errors of the value and of the value clipped to `clip_range` around the old one."""
    clipped = old_value + jnp.clip(value - old_value, -clip_range, clip_range)
    return jnp.maximum(jnp.square(value - target), jnp.square(clipped - target))


# ── action values ─────────────────────────────────────────────────────────────────────────────────────────────────


def huber(error: jax.Array) -> jax.Array:
    """½ x² near zero, |x| − ½ beyond 1."""
    size = jnp.abs(error)
    return jnp.where(size < 1.0, 0.5 * jnp.square(error), size - 0.5)


def half_square(error: jax.Array) -> jax.Array:
    """½ x²: the same as Huber near zero."""
    return 0.5 * jnp.square(error)


def of_action(answer: jax.Array, action: jax.Array) -> jax.Array:
    """The entries of `answer` for the actions: `[B, A]` → `[B]`, `[B, A, atoms]` → `[B, atoms]`."""
    chosen = jax.nn.one_hot(action, answer.shape[1], dtype=answer.dtype)
    return (answer * chosen.reshape(*chosen.shape, *(1,) * (answer.ndim - 2))).sum(axis=1)


def q_target(reward: jax.Array, discount: jax.Array, next_q: jax.Array) -> jax.Array:
    """r + γ^k Q(s', a'), where `discount` is γ^k, or 0 if the episode terminated."""
    return reward + discount * next_q


def project_distribution(probs: jax.Array, reward: jax.Array, discount: jax.Array, support: AnyArray) -> jax.Array:
    """C51's target: the distribution of r + γ^k Z, projected onto the support `[B, atoms]`.

    Each moved atom splits its mass between its two neighbors by distance: a triangular kernel of width Δz.
    """
    last = len(support) - 1
    step = (support[-1] - support[0]) / last
    moved = reward[:, None] + discount[:, None] * support  # [B, atoms]
    position = jnp.clip((moved - support[0]) / step, 0, last)
    distance = jnp.abs(position[:, :, None] - jnp.arange(last + 1))  # [B, from, to]
    return jnp.einsum("bi,bij->bj", probs, jnp.maximum(1.0 - distance, 0.0))  # half the time of a product and a sum


def quantile_loss(quantiles: jax.Array, target: jax.Array, penalty: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """QR-DQN's loss `[B]`: asymmetric `penalty` of every quantile `[B, n]` against every target sample `[B, m]`."""
    count = quantiles.shape[-1]
    levels = (jnp.arange(count) + 0.5) / count  # τ̂, [n]
    error = target[:, None, :] - quantiles[:, :, None]  # [B, n, m]
    weight = jnp.abs(levels[None, :, None] - (error < 0))
    return (weight * penalty(error)).mean(axis=2).sum(axis=1)
