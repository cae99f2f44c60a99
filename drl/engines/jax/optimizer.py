"""SGD, Adam, AdamW (amsgrad) and RMSprop, exactly by PyTorch's formulas, on any tree of parameters; or Optax.

Optax differs in four ways, which break parity with the PyTorch engine to 1e-5 or cost time: its amsgrad keeps the
maximum of the corrected moments, its clipping omits the 1e-6, its bias corrections are float32 powers, and its `init`
runs compiled code.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.core.configs import Config, plain_pairs
from drl.core.errors import BadInput, MissingExtra, did_you_mean
from drl.core.network_parts import OPTIMIZERS
from drl.core.specs import AnyArray, PlainDict
from drl.engines.jax.layers import Tree

# Arguments of our optimizers, with the names of `torch.optim`.
KWARGS: dict[str, tuple[str, ...]] = {
    "sgd": ("momentum", "nesterov", "weight_decay"),
    "adam": ("betas", "eps", "amsgrad", "weight_decay"),
    "adamw": ("betas", "eps", "amsgrad", "weight_decay"),
    "rmsprop": ("alpha", "eps", "momentum", "weight_decay"),
}
# Settings of an algorithm → fields of `Optimizer`.
SETTINGS = {name: name for name in ("max_grad_norm", "max_grad_value", "amsgrad", "weight_decay")} | {
    "adam_eps": "eps",
    "optimizer_eps": "eps",
    "adam_beta1": "beta1",
}
MUON = {"momentum": "beta", "ns_coefficients": "ns_coeffs"}  # arguments of `torch.optim.Muon` → of Optax
OptState = Tree  # `AdamState`, or the state of an Optax transformation


class AdamState(NamedTuple):
    """State of our optimizers."""

    count: AnyArray  # int32: steps taken
    exp_avg: Tree  # running mean of gradients (Adam), or their running sum with momentum; () if it is not used
    exp_avg_sq: Tree  # running mean of squared gradients; () for SGD
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

    kind: str = "adam"  # sgd · adam · adamw · rmsprop
    eps: float = 1e-5
    max_grad_norm: float | None = None  # global norm
    max_grad_value: float | None = None  # of each entry
    amsgrad: bool = False  # divide by the largest second moment so far
    weight_decay: float = 0.0  # of adamw per unit of learning rate; otherwise added to the gradient (L2)
    beta1: float = 0.9  # of Adam: decay of the running mean of gradients
    factors: tuple[tuple[str, float], ...] = ()  # (prefix of parameter names, factor on their learning rate)
    beta2: float = 0.999  # of Adam: decay of the running mean of squared gradients
    decay: float = 0.99  # the same of RMSprop
    momentum: float = 0.0  # of SGD and RMSprop
    nesterov: bool = False  # of SGD

    def init(self, params: Tree) -> AdamState:
        def zeros() -> Tree:
            return jax.tree.map(lambda value: np.zeros(value.shape, np.float32), params)

        adam = self.kind in ("adam", "adamw")
        exp_avg, squares = zeros() if adam or self.momentum else (), () if self.kind == "sgd" else zeros()
        return AdamState(np.int32(0), exp_avg, squares, zeros() if adam and self.amsgrad else ())

    def descend(
        self, params: Tree, state: AdamState, gradient: Tree, rate: ArrayLike
    ) -> tuple[Tree, AdamState, jax.Array]:
        gradient, norm = clipped(gradient, self.max_grad_norm, self.max_grad_value)
        if self.weight_decay and self.kind != "adamw":
            gradient = jax.tree.map(lambda g, value: g + self.weight_decay * value, gradient, params)
        direction, state = (self._adam if self.kind in ("adam", "adamw") else self._plain)(state, gradient)
        decay = 1.0 - rate * self.weight_decay if self.kind == "adamw" else 1.0

        def moved(path: tuple[object, ...], value: jax.Array, towards: jax.Array) -> jax.Array:
            return value * decay - rate * _factor(self.factors, path) * towards

        return jax.tree_util.tree_map_with_path(moved, params, direction), state, norm

    def _plain(self, state: AdamState, gradient: Tree) -> tuple[Tree, AdamState]:
        """RMSprop and SGD."""
        direction, exp_avg_sq, total = gradient, (), ()
        if self.kind == "rmsprop":
            exp_avg_sq = _blend(state.exp_avg_sq, jax.tree.map(jnp.square, gradient), self.decay)
            direction = jax.tree.map(lambda g, square: g / (jnp.sqrt(square) + self.eps), gradient, exp_avg_sq)
        if self.momentum:
            total = jax.tree.map(lambda before, now: self.momentum * before + now, state.exp_avg, direction)
            ahead = jax.tree.map(lambda now, total: now + self.momentum * total, direction, total)
            direction = ahead if self.nesterov else total
        return direction, AdamState(state.count + 1, total, exp_avg_sq, ())

    def _adam(self, state: AdamState, gradient: Tree) -> tuple[Tree, AdamState]:
        count, squared = state.count + 1, jax.tree.map(jnp.square, gradient)
        exp_avg = _blend(state.exp_avg, gradient, self.beta1)
        exp_avg_sq = _blend(state.exp_avg_sq, squared, self.beta2)
        largest = jax.tree.map(jnp.maximum, state.max_exp_avg_sq, exp_avg_sq) if self.amsgrad else ()
        # 1 − β^count, without the rounding error of a float32 power near 1.
        corrections = [-jnp.expm1(count * math.log(beta)) if beta else 1.0 for beta in (self.beta1, self.beta2)]
        root = jax.lax.rsqrt(corrections[1])
        direction = jax.tree.map(
            lambda mean, square: mean / corrections[0] / (jnp.sqrt(square) * root + self.eps),
            exp_avg,
            largest if self.amsgrad else exp_avg_sq,
        )
        return direction, AdamState(count, exp_avg, exp_avg_sq, largest)


def _factor(factors: tuple[tuple[str, float], ...], path: tuple[object, ...]) -> float:
    name = jax.tree_util.keystr(path, simple=True)
    return next((factor for beginning, factor in factors if name.startswith(beginning)), 1.0)


class GradientTransformation(Protocol):
    """What we use of `optax.GradientTransformation`."""

    def init(self, params: Tree, /) -> OptState:
        """State before the first step."""

    def update(self, updates: Tree, state: OptState, params: Tree, /) -> tuple[Tree, OptState]:
        """Changes of the parameters, and the next state."""


MakeTransformation = Callable[[ArrayLike], GradientTransformation]  # from a learning rate


@dataclass(frozen=True)
class OptaxOptimizer:
    """An Optax transformation, made from the learning rate at every step. The config's schedule and gradient clipping
    apply to it."""

    make: MakeTransformation
    max_grad_norm: float | None = None
    max_grad_value: float | None = None
    factors: tuple[tuple[str, float], ...] = ()  # (prefix of parameter names, factor on their learning rate)

    def init(self, params: Tree) -> OptState:
        return self.make(0.0).init(params)

    def descend(
        self, params: Tree, state: OptState, gradient: Tree, rate: ArrayLike
    ) -> tuple[Tree, OptState, jax.Array]:
        gradient, norm = clipped(gradient, self.max_grad_norm, self.max_grad_value)
        updates, state = self.make(rate).update(gradient, state, params)

        def moved(path: tuple[object, ...], value: jax.Array, update: jax.Array) -> jax.Array:
            return value + _factor(self.factors, path) * update

        return jax.tree_util.tree_map_with_path(moved, params, updates), state, norm


def optimizer_of(config: Config, factors: tuple[tuple[str, float], ...] = ()) -> AnyOptimizer:
    """The optimizer of a config's settings. `factors` are as in `Optimizer`."""
    name, kwargs = config.optimizer, plain_pairs("optimizer_kwargs", config.optimizer_kwargs)
    fields = {SETTINGS[setting]: value for setting, value in vars(config).items() if setting in SETTINGS}
    if name in KWARGS:
        decay = {} if name == "adamw" else {"weight_decay": 0.0}
        return Optimizer(name, factors=factors, **(fields | decay | _own_kwargs(name, kwargs)))
    make = partial(_transformation, name, fields.get("weight_decay", 0.0), tuple(kwargs.items()))
    return OptaxOptimizer(make, fields.get("max_grad_norm"), fields.get("max_grad_value"), factors)


def _own_kwargs(name: str, kwargs: PlainDict) -> PlainDict:
    """The fields of `Optimizer` for arguments with the names of `torch.optim`."""
    if unknown := sorted(kwargs.keys() - set(KWARGS[name])):
        known = ", ".join(KWARGS[name])
        raise BadInput(f"optimizer_kwargs has {unknown[0]!r}, which {name} does not take; expected {known}")
    if "betas" in kwargs:
        beta1, beta2 = kwargs.pop("betas")
        kwargs |= {"beta1": beta1, "beta2": beta2}
    if "alpha" in kwargs:
        kwargs["decay"] = kwargs.pop("alpha")
    return kwargs


def _transformation(name: str, decay: float, kwargs: tuple[tuple[str, Any], ...], rate: ArrayLike) -> Any:
    """An Optax transformation by its name in Optax, or by that of a function of the user."""
    try:
        import optax  # type: ignore[import-untyped]  # here, because it takes a quarter of a second
    except ImportError as error:
        raise MissingExtra(f"optimizer {name}", "jax", error) from None

    options = dict(kwargs)
    make: Any
    if name in OPTIMIZERS:
        make = OPTIMIZERS[name]
    elif name == "muon":
        # Steps are as large as Adam's, so that one learning rate serves both.
        make = partial(optax.contrib.muon, weight_decay=decay, adam_weight_decay=decay, consistent_rms=0.2)
        options = {MUON.get(key, key): value for key, value in options.items()}
    elif name.startswith("optax."):
        make = getattr(optax, name.removeprefix("optax."), None) or getattr(optax.contrib, name[6:], None)
        if not callable(make):
            known = [each for each in dir(optax) if callable(getattr(optax, each))]
            raise BadInput(f"optimizer is {name!r}, which Optax does not have; {did_you_mean(name[6:], known)}")
    else:
        raise BadInput(f"optimizer is {name!r}, which is for the PyTorch engine; use --engine torch, or optax.NAME")
    try:
        made = make(rate, **options)
    except (TypeError, ValueError) as error:
        raise BadInput(f"optimizer_kwargs does not fit {name}: {error}") from None
    if not hasattr(made, "init") or not hasattr(made, "update"):
        raise BadInput(f"optimizer is {name!r}, which made {made!r:.80}; expected an Optax transformation")
    return made


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
