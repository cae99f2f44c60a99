"""Distributions over actions in NumPy, for acting with the outputs of any engine.

`dist_params` is the output of a policy head: `[N, num_params]` logits, or means followed by log standard deviations.
Actions are in the policy's units. An `action_mask` `[N, choices]` is True for legal actions; illegal ones have
probability 0. The differentiable versions are in each engine's `ops`.
"""

from typing import NamedTuple, Protocol

import numpy as np

from drl.core.errors import BadInput
from drl.core.specs import AnyArray, Array, Distribution

ILLEGAL = np.float32(-1e8)  # logit of an illegal action: its exp is 0, and 0 times it is finite
INSIDE = 1.0 - 1e-6  # limit of a squashed action before its arctanh is taken
LOG_TWO_PI = float(np.log(2 * np.pi))


class Chooser(Protocol):
    """The attributes of an agent that `choose` reads."""

    distribution: Distribution
    temperature: float
    rng: np.random.Generator


def choose(agent: Chooser, dist_params: Array, explore: bool, action_mask: Array | None = None) -> Array:
    """The agent's action: a sample when it explores, else the mode."""
    if explore:
        return sample(agent.distribution, dist_params, agent.rng, agent.temperature, action_mask)
    return mode(agent.distribution, dist_params, action_mask)


def masked(dist: Distribution, dist_params: Array, action_mask: Array | None) -> Array:
    """Logits with a large negative value for illegal actions."""
    if action_mask is None:
        return dist_params
    if dist.kind == "bernoulli":
        off, on = np.moveaxis(action_mask.reshape(len(action_mask), -1, 2), -1, 0)
        return np.where(on, np.where(off, dist_params, -ILLEGAL), ILLEGAL).astype(dist_params.dtype)
    if not dist.sizes:
        raise BadInput(f"there is an action mask, but a {dist.kind} distribution has no choices to mask")
    return np.where(action_mask, dist_params, ILLEGAL)


def sample(
    dist: Distribution,
    dist_params: Array,
    rng: np.random.Generator,
    temperature: float = 1.0,
    action_mask: Array | None = None,
) -> Array:
    """Sample one action per row. `temperature` divides logits and multiplies standard deviations."""
    if not dist.sizes and dist.kind != "bernoulli":
        if dist.kind == "deterministic":
            return np.tanh(dist_params)
        mean, log_std = dist_params[:, : dist.entries], dist_params[:, dist.entries :]
        noise = rng.standard_normal(mean.shape, np.float32)
        drawn: Array = mean + temperature * np.exp(log_std) * noise
        return np.tanh(drawn) if dist.kind == "tanh_gaussian" else drawn
    scaled = dist_params if temperature == 1.0 else dist_params / temperature
    if action_mask is not None:
        scaled = masked(dist, scaled, action_mask)
    if dist.kind == "bernoulli":
        return (rng.random(scaled.shape, np.float32) < _sigmoid(scaled)).astype(np.int64)
    # argmax(logit − log E) with E ~ Exp(1) is an exact sample from softmax(logits): the Gumbel trick.
    exponential = np.maximum(rng.standard_exponential(scaled.shape, np.float32), 1e-30)  # float32 may draw a plain 0
    return mode(dist, scaled - np.log(exponential))


def mode(dist: Distribution, dist_params: Array, action_mask: Array | None = None) -> Array:
    """The most likely action per row; for a squashed Gaussian the squashed mean."""
    if action_mask is not None:
        dist_params = masked(dist, dist_params, action_mask)
    if dist.kind == "categorical":
        return dist_params.argmax(axis=-1)
    if dist.kind == "multi_categorical":
        return np.stack([part.argmax(axis=-1) for part in _split(dist, dist_params)], axis=-1)
    if dist.kind == "bernoulli":
        return (dist_params > 0).astype(np.int64)
    mean = dist_params[:, : dist.entries]
    return mean if dist.kind == "gaussian" else np.tanh(mean)


def masked_argmax(values: AnyArray, action_mask: AnyArray | None, xp: AnyArray = np) -> AnyArray:
    """The legal action of the highest value, per row; `xp` is the library of the arrays."""
    return (values if action_mask is None else xp.where(action_mask, values, -np.inf)).argmax(-1)


def probabilities(dist: Distribution, dist_params: Array, action_mask: Array | None = None) -> list[Array]:
    """For display, per entry of the action: class probabilities, or (mean, standard deviation) of a Gaussian before it
    is squashed, or the action of a deterministic policy."""
    if dist.kind.endswith("gaussian"):
        return [np.stack([dist_params[:, : dist.entries], np.exp(dist_params[:, dist.entries :])], axis=-1)]
    if dist.kind == "deterministic":
        return [np.tanh(dist_params)]
    logits = masked(dist, dist_params, action_mask)
    if dist.kind == "bernoulli":
        return [_sigmoid(logits)]
    return [np.exp(part) for part in _log_softmax(dist, logits)]


def log_prob(dist: Distribution, dist_params: Array, action: Array, action_mask: Array | None = None) -> Array:
    """log π(a|s) per row."""
    if dist.kind == "deterministic":
        raise BadInput("a deterministic policy has no log-probabilities; use distribution gaussian or tanh_gaussian")
    if dist.kind.endswith("gaussian"):
        mean, log_std = dist_params[:, : dist.entries], dist_params[:, dist.entries :]
        value = np.arctanh(np.clip(action, -INSIDE, INSIDE)) if dist.kind == "tanh_gaussian" else action
        parts = -0.5 * np.square((value - mean) * np.exp(-log_std)) - log_std - 0.5 * LOG_TWO_PI
        if dist.kind == "tanh_gaussian":
            parts = parts - log_slope_of_tanh(value)
        return parts.sum(axis=-1)
    logits = masked(dist, dist_params, action_mask)
    if dist.kind == "bernoulli":
        return -np.logaddexp(0.0, np.where(action == 1, -logits, logits)).sum(axis=-1)
    chosen = action[:, None] if dist.kind == "categorical" else action
    parts = [np.take_along_axis(p, chosen[:, i : i + 1], 1) for i, p in enumerate(_log_softmax(dist, logits))]
    return np.concatenate(parts, axis=1).sum(axis=1)


def entropy(dist: Distribution, dist_params: Array, action_mask: Array | None = None) -> Array:
    """H[π(·|s)] per row. That of a squashed Gaussian has no closed form: see `QUADRATURE`."""
    if dist.kind == "deterministic":
        raise BadInput("a deterministic policy has no entropy; use distribution gaussian or tanh_gaussian")
    if dist.kind.endswith("gaussian"):
        mean, log_std = dist_params[:, : dist.entries], dist_params[:, dist.entries :]
        total = log_std + 0.5 * (LOG_TWO_PI + 1.0)
        if dist.kind == "tanh_gaussian":
            nodes, weights = QUADRATURE
            values = mean[..., None] + np.exp(log_std)[..., None] * nodes
            total = total + (log_slope_of_tanh(values) * weights).sum(axis=-1)
        return total.sum(axis=-1)
    logits = masked(dist, dist_params, action_mask)
    if dist.kind == "bernoulli":
        return (np.logaddexp(0.0, logits) - _sigmoid(logits) * logits).sum(axis=-1)
    return -sum((np.exp(part) * part).sum(axis=-1) for part in _log_softmax(dist, logits))


def log_slope_of_tanh(value: Array) -> Array:
    """log(1 − tanh(x)²), without the cancellation near ±1."""
    slope: Array = 2.0 * (np.log(2.0) - value - np.logaddexp(0.0, -2.0 * value))
    return slope


def _quadrature(count: int) -> tuple[Array, Array]:
    nodes = np.linspace(-5.0, 5.0, count)
    weights = np.exp(-0.5 * np.square(nodes))
    return nodes.astype(np.float32), (weights / weights.sum()).astype(np.float32)


# Nodes and weights of the trapezoidal rule: E[f(Z)] ≈ Σ w f(z) for a standard normal Z. For the entropy of a squashed
# Gaussian its error is below 3e-6 at a log deviation of 0 and below 1e-3 at 2; Gauss-Hermite with as many nodes is 100
# times worse there.
QUADRATURE = _quadrature(48)


def _sigmoid(logits: Array) -> Array:
    """Exactly 0 and 1 at the logits of illegal actions."""
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-logits))


def _split(dist: Distribution, dist_params: Array) -> list[Array]:
    return np.split(dist_params, np.cumsum(dist.sizes)[:-1], axis=-1)


def _log_softmax(dist: Distribution, logits: Array) -> list[Array]:
    shifted = [part - part.max(axis=-1, keepdims=True) for part in _split(dist, logits)]
    return [part - np.log(np.exp(part).sum(axis=-1, keepdims=True)) for part in shifted]


class UpdateDraws(NamedTuple):
    """As arrays of NumPy, PyTorch or JAX."""

    next_noise: AnyArray  # [B, entries] standard normal: of the target's actions
    noise: AnyArray  # [B, entries] standard normal: of the actor's actions
    subset: AnyArray  # [M] int: critics whose values make up the target


def draw_update(rng: np.random.Generator, rows: int, entries: int, critics: int, subset: int) -> UpdateDraws:
    """Noise and critics for one update."""
    noise = rng.standard_normal((2, rows, entries), np.float32)
    chosen = np.arange(critics) if subset == critics else np.sort(rng.permutation(critics)[:subset])
    return UpdateDraws(noise[0], noise[1], chosen)
