"""Adam, AdamW (amsgrad) and RMSprop, exactly by PyTorch's formulas, on any tree of parameters; or Optax.

Optax differs in four ways, which break parity with the PyTorch engine to 1e-5 or cost time: its amsgrad keeps the
maximum of the corrected moments, its clipping omits the 1e-6, its bias corrections are float32 powers, and its `init`
runs compiled code.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.core.specs import AnyArray
from drl.engines.jax.layers import Tree

BETA2 = 0.999  # of Adam: decay of the running mean of squared gradients
RMS_DECAY = 0.99  # of RMSprop
OptState = Tree  # `AdamState`, or the state of an Optax transformation


class AdamState(NamedTuple):
    """State of Adam or RMSProp."""

    count: AnyArray  # int32: steps taken
    exp_avg: Tree  # running mean of gradients (Adam); () if it is not used
    exp_avg_sq: Tree  # running mean of squared gradients
    max_exp_avg_sq: Tree  # the maximum of these so far (amsgrad); () if it is not used


class AnyOptimizer(Protocol):
    """`descend` is pure; the learning rate is an input, so that a schedule does not recompile it."""

    def init(self, params: Tree) -> OptState:
        """State before the first step."""

    def descend(
        self, params: Tree, state: OptState, gradient: Tree, rate: ArrayLike
    ) -> tuple[Tree, OptState, jax.Array]:
        """One step: new parameters, new state, and the gradient's norm before clipping."""
        ...


@dataclass(frozen=True)
class Optimizer:
    """Our own optimizers. Configuration only."""

    kind: str = "adam"  # adam · adamw · rmsprop
    eps: float = 1e-5
    max_grad_norm: float | None = None  # global norm
    max_grad_value: float | None = None  # of each entry
    amsgrad: bool = False  # divide by the largest second moment so far
    weight_decay: float = 0.0  # of adamw, per unit of learning rate
    beta1: float = 0.9  # of Adam: decay of the running mean of gradients
    factors: tuple[tuple[str, float], ...] = ()  # (prefix of parameter names, factor on their learning rate)

    def init(self, params: Tree) -> AdamState:
        def zeros() -> Tree:
            return jax.tree.map(lambda value: np.zeros(value.shape, np.float32), params)

        exp_avg, largest = self.kind != "rmsprop", self.amsgrad and self.kind != "rmsprop"
        return AdamState(np.int32(0), zeros() if exp_avg else (), zeros(), zeros() if largest else ())

    def descend(
        self, params: Tree, state: AdamState, gradient: Tree, rate: ArrayLike
    ) -> tuple[Tree, AdamState, jax.Array]:
        gradient, norm = clipped(gradient, self.max_grad_norm, self.max_grad_value)
        direction, state = self._direction(state, gradient)
        decay = 1.0 - rate * self.weight_decay if self.kind == "adamw" else 1.0

        def moved(path: tuple[object, ...], value: jax.Array, towards: jax.Array) -> jax.Array:
            return value * decay - rate * self._factor(jax.tree_util.keystr(path, simple=True)) * towards

        return jax.tree_util.tree_map_with_path(moved, params, direction), state, norm

    def _direction(self, state: AdamState, gradient: Tree) -> tuple[Tree, AdamState]:
        count, squared = state.count + 1, jax.tree.map(jnp.square, gradient)
        if self.kind == "rmsprop":
            exp_avg_sq = _blend(state.exp_avg_sq, squared, RMS_DECAY)
            direction = jax.tree.map(lambda g, square: g / (jnp.sqrt(square) + self.eps), gradient, exp_avg_sq)
            return direction, AdamState(count, (), exp_avg_sq, ())
        exp_avg = _blend(state.exp_avg, gradient, self.beta1)
        exp_avg_sq = _blend(state.exp_avg_sq, squared, BETA2)
        largest = jax.tree.map(jnp.maximum, state.max_exp_avg_sq, exp_avg_sq) if self.amsgrad else ()
        # 1 − β^count, without the rounding error of a float32 power near 1.
        corrections = [-jnp.expm1(count * math.log(beta)) if beta else 1.0 for beta in (self.beta1, BETA2)]
        root = jax.lax.rsqrt(corrections[1])
        direction = jax.tree.map(
            lambda mean, square: mean / corrections[0] / (jnp.sqrt(square) * root + self.eps),
            exp_avg,
            largest if self.amsgrad else exp_avg_sq,
        )
        return direction, AdamState(count, exp_avg, exp_avg_sq, largest)

    def _factor(self, name: str) -> float:
        return next((factor for beginning, factor in self.factors if name.startswith(beginning)), 1.0)


class GradientTransformation(Protocol):
    """What we use of `optax.GradientTransformation`."""

    def init(self, params: Tree, /) -> OptState:
        """State before the first step."""

    def update(self, updates: Tree, state: OptState, params: Tree, /) -> tuple[Tree, OptState]:
        """Changes of the parameters, and the next state."""


MakeTransformation = Callable[[ArrayLike], GradientTransformation]  # from a learning rate


@dataclass(frozen=True)
class OptaxOptimizer:
    """An Optax transformation in place of our optimizers, made from the learning rate at every step: `optax.adabelief`,
    or `lambda rate: optax.chain(…)`. The config's schedule and gradient clipping apply to it; the other optimizer
    settings do not."""

    make: MakeTransformation
    max_grad_norm: float | None = None
    max_grad_value: float | None = None

    def init(self, params: Tree) -> OptState:
        return self.make(0.0).init(params)

    def descend(
        self, params: Tree, state: OptState, gradient: Tree, rate: ArrayLike
    ) -> tuple[Tree, OptState, jax.Array]:
        gradient, norm = clipped(gradient, self.max_grad_norm, self.max_grad_value)
        updates, state = self.make(rate).update(gradient, state, params)
        return jax.tree.map(lambda value, update: value + update, params, updates), state, norm


def optimizer_of(
    config: Any, optax: MakeTransformation | None = None, factors: tuple[tuple[str, float], ...] = ()
) -> AnyOptimizer:
    """The optimizer of a config's settings, or an Optax transformation in its place."""
    limits = (config.max_grad_norm, getattr(config, "max_grad_value", None))
    if optax is not None:
        return OptaxOptimizer(optax, *limits)
    kind, eps = getattr(config, "optimizer", "adam"), getattr(config, "adam_eps", None)
    eps = config.optimizer_eps if eps is None else eps
    decay, beta1 = getattr(config, "weight_decay", 0.0), getattr(config, "adam_beta1", 0.9)
    return Optimizer(kind, eps, *limits, getattr(config, "amsgrad", False), decay, beta1, factors)


def clipped(gradient: Tree, max_norm: float | None, max_value: float | None) -> tuple[Tree, jax.Array]:
    """The clipped gradient, and its norm before clipping."""
    norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(gradient)))
    if max_norm is not None:
        shrink = jnp.minimum(max_norm / (norm + 1e-6), 1.0)
        gradient = jax.tree.map(lambda g: g * shrink, gradient)
    if max_value is not None:
        gradient = jax.tree.map(lambda g: jnp.clip(g, -max_value, max_value), gradient)
    return gradient, norm


def _blend(old: Tree, new: Tree, keep: float) -> Tree:
    return jax.tree.map(lambda before, now: keep * before + (1.0 - keep) * now, old, new)
