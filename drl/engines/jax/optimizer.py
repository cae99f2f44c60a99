"""Adam, AdamW (amsgrad) and RMSprop, by PyTorch's formulas to the last term.

Optax differs where it counts here: its amsgrad keeps the largest of the corrected moments, its clipping leaves out the
1e-6, its bias corrections are float32 powers, and its `init` runs compiled code. These few lines do not.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from drl.engines.jax.layers import Params

BETAS = (0.9, 0.999)  # of Adam
RMS_DECAY = 0.99  # of RMSprop


class OptimizerState(NamedTuple):
    count: Any  # int32: steps taken
    exp_avg: Params  # running mean of gradients (Adam); {} where it is not used
    exp_avg_sq: Params  # running mean of squared gradients
    max_exp_avg_sq: Params  # the largest of these so far (amsgrad); {} where it is not used


@dataclass(frozen=True)
class Optimizer:
    """Configuration only. `descend` is pure; the learning rate is an input, so a schedule compiles nothing anew."""

    kind: str = "adam"  # adam · adamw · rmsprop
    eps: float = 1e-5
    max_grad_norm: float | None = None  # of all gradients together
    max_grad_value: float | None = None  # of each gradient
    amsgrad: bool = False  # divide by the largest second moment so far
    weight_decay: float = 0.0  # of adamw: share of each parameter that fades per unit of learning rate
    factors: tuple[tuple[str, float], ...] = ()  # (beginning of a parameter's name, factor on its learning rate)

    def init(self, params: Params) -> OptimizerState:
        def zeros() -> Params:
            return {name: np.zeros(value.shape, np.float32) for name, value in params.items()}

        exp_avg, max_exp_avg_sq = self.kind != "rmsprop", self.amsgrad and self.kind != "rmsprop"
        return OptimizerState(np.int32(0), zeros() if exp_avg else {}, zeros(), zeros() if max_exp_avg_sq else {})

    def descend(
        self, params: Params, state: OptimizerState, gradient: Params, rate: Any
    ) -> tuple[Params, OptimizerState, jax.Array]:
        """One step. The third result is the gradient's norm before clipping."""
        gradient, norm = self._clip(gradient)
        direction, state = self._direction(state, gradient)
        decay = 1.0 - rate * self.weight_decay if self.kind == "adamw" else 1.0
        moved = {name: params[name] * decay - rate * self._factor(name) * direction[name] for name in params}
        return moved, state, norm

    def _clip(self, gradient: Params) -> tuple[Params, jax.Array]:
        norm = jnp.sqrt(sum(jnp.square(g).sum() for g in gradient.values()))
        if self.max_grad_norm is not None:
            shrink = jnp.minimum(self.max_grad_norm / (norm + 1e-6), 1.0)
            gradient = {name: g * shrink for name, g in gradient.items()}
        if self.max_grad_value is not None:
            limit = self.max_grad_value
            gradient = {name: jnp.clip(g, -limit, limit) for name, g in gradient.items()}
        return gradient, norm

    def _direction(self, state: OptimizerState, gradient: Params) -> tuple[Params, OptimizerState]:
        count = state.count + 1
        if self.kind == "rmsprop":
            exp_avg_sq = _blend(state.exp_avg_sq, {n: jnp.square(g) for n, g in gradient.items()}, RMS_DECAY)
            direction = {name: g / (jnp.sqrt(exp_avg_sq[name]) + self.eps) for name, g in gradient.items()}
            return direction, OptimizerState(count, {}, exp_avg_sq, {})
        exp_avg = _blend(state.exp_avg, gradient, BETAS[0])
        exp_avg_sq = _blend(state.exp_avg_sq, {n: jnp.square(g) for n, g in gradient.items()}, BETAS[1])
        max_exp_avg_sq = (
            {name: jnp.maximum(state.max_exp_avg_sq[name], exp_avg_sq[name]) for name in exp_avg_sq}
            if self.amsgrad
            else {}
        )
        # 1 − β^count, without the rounding of a float32 power near 1.
        corrections = [-jnp.expm1(count * math.log(beta)) for beta in BETAS]
        root = jax.lax.rsqrt(corrections[1])
        direction = {
            name: exp_avg[name] / corrections[0] / (jnp.sqrt((max_exp_avg_sq or exp_avg_sq)[name]) * root + self.eps)
            for name in exp_avg
        }
        return direction, OptimizerState(count, exp_avg, exp_avg_sq, max_exp_avg_sq)

    def _factor(self, name: str) -> float:
        return next((factor for beginning, factor in self.factors if name.startswith(beginning)), 1.0)


def _blend(old: Params, new: Params, keep: float) -> Params:
    return {name: keep * old[name] + (1.0 - keep) * new[name] for name in new}
