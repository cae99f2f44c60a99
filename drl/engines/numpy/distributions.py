"""Drawing actions from a policy's parameters, in NumPy, for every engine.

`params` is what a policy head gives: `[N, num_params]` logits, or means followed by log standard deviations.
The differentiable log-probability and entropy live in each engine's `ops`.
"""

import numpy as np

from drl.core.specs import ActionSpec, Array


def _split(spec: ActionSpec, params: Array) -> list[Array]:
    return np.split(params, np.cumsum(spec.sizes)[:-1], axis=-1)


def sample(spec: ActionSpec, params: Array, rng: np.random.Generator, temperature: float = 1.0) -> Array:
    """Draw one action per row, in the policy's units. `temperature` divides logits and multiplies deviations."""
    if spec.kind == "gaussian":
        mean, log_std = params[:, : spec.entries], params[:, spec.entries :]
        noise = rng.standard_normal(mean.shape, np.float32)
        return mean + temperature * np.exp(log_std) * noise
    scaled = params if temperature == 1.0 else params / temperature
    if spec.kind == "bernoulli":
        odds = 1.0 + np.exp(np.minimum(-scaled, 80.0))  # 1 / probability; float32 ends at exp(88)
        return (rng.random(scaled.shape, np.float32) * odds < 1.0).astype(np.int64)
    # argmax(logit − log E) with E ~ Exp(1) is an exact draw from softmax(logits): the Gumbel trick.
    exponential = np.maximum(rng.standard_exponential(scaled.shape, np.float32), 1e-30)  # float32 may draw a plain 0
    noisy = scaled - np.log(exponential)
    return mode(spec, noisy)


def mode(spec: ActionSpec, params: Array) -> Array:
    """The most likely action per row, in the policy's units."""
    if spec.kind == "categorical":
        return params.argmax(axis=-1)
    if spec.kind == "multi_categorical":
        return np.stack([part.argmax(axis=-1) for part in _split(spec, params)], axis=-1)
    if spec.kind == "bernoulli":
        return (params > 0).astype(np.int64)
    return params[:, : spec.entries]


def probabilities(spec: ActionSpec, params: Array) -> list[Array]:
    """Per entry of the action, what a viewer wants to see: class probabilities, or (mean, std) of a Gaussian."""
    if spec.kind == "gaussian":
        return [np.stack([params[:, : spec.entries], np.exp(params[:, spec.entries :])], axis=-1)]
    if spec.kind == "bernoulli":
        return [1.0 / (1.0 + np.exp(np.minimum(-params, 80.0)))]
    shifted = [part - part.max(axis=-1, keepdims=True) for part in _split(spec, params)]
    return [np.exp(part) / np.exp(part).sum(axis=-1, keepdims=True) for part in shifted]
