"""The layers of backbones and heads. A layer is configuration; its parameters are kept separately.

Parameters are a flat dict of arrays with the names and layouts of the PyTorch engine, so that agent files do not depend
on the engine. They are initialized in NumPy: a compiled initialization costs seconds at start.
"""

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.errors import BadInput, one_line
from drl.core.network_parts import ACTIVATIONS, part_maker
from drl.core.specs import AnyArray
from drl.engines.numpy.layer_parts import HIDDEN_GAIN, Gain, Init, orthogonal
from drl.engines.numpy.networks import NORM_EPS, RENORM_EPS, RENORM_KEEP, RENORM_SCALE, RENORM_SHIFT, noise_of

Function = Callable[[jax.Array], jax.Array]

tanh: Function = jnp.tanh
relu: Function = jax.nn.relu
gelu: Function = partial(jax.nn.gelu, approximate=True)
silu: Function = jax.nn.silu
elu: Function = jax.nn.elu
leaky_relu: Function = jax.nn.leaky_relu
selu: Function = jax.nn.selu
mish: Function = jax.nn.mish
softplus: Function = jax.nn.softplus
sigmoid: Function = jax.nn.sigmoid


@cache
def activation_of(name: str) -> Function:
    """The function of an activation by name, checked for its shape."""
    function = part_maker(ACTIVATIONS, name, "jax")
    seen = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    try:
        answer = jax.eval_shape(function, seen)
    except Exception as error:  # it may be a user's
        said = one_line(error, 160)
        raise BadInput(f"activation {name!r} is not a function that JAX can compile: {said}") from error
    if getattr(answer, "shape", None) != seen.shape:
        raise BadInput(f"activation {name!r} turns an array {seen.shape} into {answer}; expected one of the same shape")
    return function


Tree = Any  # a pytree of arrays, such as the parameters of any model
DROPOUT = "dropout"  # passed with the parameters in an update: a key, with which dropout is on
Params = dict[str, AnyArray]  # of our own models, by name: NumPy when they are new, JAX after the first step


def part(params: Params, name: str) -> Params:
    """The parameters whose names begin with `name.`, without this prefix."""
    inside = {key.removeprefix(f"{name}."): value for key, value in params.items() if key.startswith(f"{name}.")}
    if DROPOUT in params:  # other parts drop other features
        inside[DROPOUT] = jax.random.fold_in(params[DROPOUT], zlib.crc32(name.encode()))
    return inside


def named(name: str, params: Mapping[str, AnyArray]) -> Params:
    """The same parameters with the prefix `name.`."""
    return {f"{name}.{key}": value for key, value in params.items()}


def initial(rng: np.random.Generator, shape: tuple[int, ...], gain: Gain) -> Params:
    """Orthogonal weights and zero bias or, for `gain=None`, uniform weights and bias, or those of an `Init`.

    Policies and critics use the first, action values the second, as is usual for DQN (both are measured in
    benchmarks/RESULTS.md).
    """
    if gain is not None:
        weight = gain.weights(rng, shape) if isinstance(gain, Init) else orthogonal(rng, shape, gain)
        return {"weight": weight, "bias": np.zeros(shape[0], np.float32)}
    bound = math.prod(shape[1:]) ** -0.5  # as PyTorch does
    sizes = {"weight": shape, "bias": shape[:1]}
    return {name: rng.uniform(-bound, bound, size).astype(np.float32) for name, size in sizes.items()}


def transposed(params: Tree) -> Tree:
    """Weights `[out, in]` of our plain linear layers as `kernel` `[in, out]`, with which learning is a tenth faster.
    Other trees are returned unchanged."""
    if not is_flat(params):
        return params

    def plain(name: str) -> bool:
        return name.endswith("weight") and np.ndim(params[name]) == 2 and f"{name}_sigma" not in params

    kept = {name: array for name, array in params.items() if not plain(name)}
    return kept | {name.removesuffix("weight") + "kernel": np.asarray(params[name]).T for name in params if plain(name)}


def untransposed(params: Tree) -> Tree:
    """The inverse of `transposed`."""
    if not is_flat(params):
        return params
    kept = {name: array for name, array in params.items() if not name.endswith("kernel")}
    return kept | {
        name.removesuffix("kernel") + "weight": array.T for name, array in params.items() if name not in kept
    }


def is_flat(params: Tree) -> bool:
    """Whether parameters are those of our own models: one dict of arrays by name."""
    return isinstance(params, dict) and not any(isinstance(value, dict) for value in params.values())


def noise_for(params: Tree, draw: Callable[[int], AnyArray]) -> Params:
    """New noise for every noisy layer of one of our own models, by name."""
    return noise_of(params, draw) if is_flat(params) else {}


@dataclass(frozen=True)
class Dense:
    """x Wᵀ + b, or a noisy layer (Fortunato et al., 2018).

    Noisy: y = (μ_w + σ_w ⊙ ε_w) x + μ_b + σ_b ⊙ ε_b with factorized noise ε_w = f(ε_out) f(ε_in)ᵀ, f(x) = sgn(x) √|x|.
    The noise is passed with the parameters, as `noise_in` and `noise_out`; without it the layer uses its means.
    """

    in_features: int
    out_features: int
    gain: Gain = 1.0  # see `initial`
    sigma: float = 0.0  # initial scale of the noise, relative to that of the weights; 0: not a noisy layer

    def init(self, rng: np.random.Generator) -> Params:
        shape = (self.out_features, self.in_features)
        if not self.sigma:
            return initial(rng, shape, self.gain)
        noise = self.sigma / math.sqrt(self.in_features)
        return initial(rng, shape, None) | {
            "weight_sigma": np.full(shape, noise, np.float32),
            "bias_sigma": np.full(self.out_features, noise, np.float32),
        }

    def apply(self, params: Params, x: jax.Array) -> jax.Array:
        bias = params["bias"]
        if "kernel" in params:
            return x @ params["kernel"] + bias
        weight = params["weight"]
        if "noise_in" in params:
            weight = weight + params["weight_sigma"] * jnp.outer(params["noise_out"], params["noise_in"])
            bias = bias + params["bias_sigma"] * params["noise_out"]
        return x @ weight.T + bias


@dataclass(frozen=True)
class Convolution:
    """A convolution without padding along one or two axes of `[B, channels, …]`; weights `[out, in, …]`."""

    in_features: int  # channels in
    out_features: int  # channels out
    kernel: tuple[int, ...]
    stride: int = 1
    gain: Gain = HIDDEN_GAIN  # see `initial`

    def init(self, rng: np.random.Generator) -> Params:
        return initial(rng, (self.out_features, self.in_features, *self.kernel), self.gain)

    def apply(self, params: Params, x: jax.Array) -> jax.Array:
        strides = (self.stride,) * len(self.kernel)
        result = jax.lax.conv_general_dilated(x, params["weight"], strides, "VALID")
        return result + params["bias"].reshape(-1, *(1,) * len(self.kernel))


@dataclass(frozen=True)
class LayerNorm:
    """Layer normalization over the last axis."""

    width: int

    def init(self, rng: np.random.Generator) -> Params:
        return {"weight": np.ones(self.width, np.float32), "bias": np.zeros(self.width, np.float32)}

    def apply(self, params: Params, x: jax.Array) -> jax.Array:
        centered = x - x.mean(axis=-1, keepdims=True)
        scale = jax.lax.rsqrt(jnp.square(centered).mean(axis=-1, keepdims=True) + NORM_EPS)
        return centered * scale * params["weight"] + params["bias"]


RUNNING = ("running_mean", "running_var", "count")  # names of parameters that are not trained


@dataclass(frozen=True)
class BatchRenorm:
    """Batch renormalization (Ioffe, 2017). Training uses the batch's mean and deviation, corrected towards the running
    ones within limits; during the warm-up there is no correction, which is batch normalization.

    `apply` uses the running statistics. `apply_batch` uses the batch's and also returns the new running statistics.
    """

    width: int
    warmup: int

    def init(self, rng: np.random.Generator) -> Params:
        zeros, ones = np.zeros(self.width, np.float32), np.ones(self.width, np.float32)
        running = {"running_mean": zeros.copy(), "running_var": ones.copy(), "count": np.zeros(1, np.float32)}
        return {"weight": ones, "bias": zeros} | running

    def apply(self, params: Params, x: jax.Array) -> jax.Array:
        deviation = jnp.sqrt(params["running_var"] + RENORM_EPS)
        return (x - params["running_mean"]) / deviation * params["weight"] + params["bias"]

    def apply_batch(self, params: Params, x: jax.Array) -> tuple[jax.Array, Params]:
        """Normalize by the batch, corrected towards the running averages; also the moments of the batch."""
        mean, variance = x.mean(axis=0), x.var(axis=0)
        batch_deviation, deviation = (jnp.sqrt(v + RENORM_EPS) for v in (variance, params["running_var"]))
        warm = params["count"] >= self.warmup
        scale = jnp.clip(batch_deviation / deviation, 1 / RENORM_SCALE, RENORM_SCALE)
        shift = jnp.clip((mean - params["running_mean"]) / deviation, -RENORM_SHIFT, RENORM_SHIFT)
        scale, shift = jax.lax.stop_gradient((jnp.where(warm, scale, 1.0), jnp.where(warm, shift, 0.0)))
        answer = ((x - mean) / batch_deviation * scale + shift) * params["weight"] + params["bias"]
        running = {
            "running_mean": RENORM_KEEP * params["running_mean"] + (1 - RENORM_KEEP) * mean,
            "running_var": RENORM_KEEP * params["running_var"] + (1 - RENORM_KEEP) * variance,
            "count": params["count"] + 1,
        }
        return answer, jax.lax.stop_gradient(running)


def with_dropout(params: Tree, key: AnyArray | None) -> Tree:
    """Parameters of one of our own models with dropout on; None: off."""
    return params if key is None else params | {DROPOUT: key}


def dropped(params: Params, x: jax.Array, share: float, number: int = 0) -> jax.Array:
    """Features of which a random share is 0 and the rest is larger, if dropout is on. `number` counts layers."""
    if not share or DROPOUT not in params:
        return x
    kept = jax.random.bernoulli(jax.random.fold_in(params[DROPOUT], number), 1.0 - share, x.shape)
    return jnp.where(kept, x / (1.0 - share), 0.0)


def has_dropout(part: object) -> bool:
    """Whether a model, or a part of it, has dropout."""
    if isinstance(part, tuple):
        return any(has_dropout(each) for each in part)
    if hasattr(part, "module"):  # of Flax
        return False
    return is_dataclass(part) and (bool(getattr(part, "dropout", 0.0)) or has_dropout(tuple(vars(part).values())))


def random_noise(key: jax.Array, size: int) -> jax.Array:
    """Normal numbers for `drl.engines.numpy.networks.noise_of`."""
    return jax.random.normal(key, (size,))
