"""Heads answer: features → policy parameters, or a value. Configuration only, as backbones are."""

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.configs import QModelConfig
from drl.core.specs import ActionSpec, Array
from drl.engines.jax.layers import Linear, Params, named, part


class Head(Protocol):
    @property
    def features(self) -> int: ...
    def init(self, rng: np.random.Generator) -> Params: ...
    def apply(self, params: Params, features: jax.Array) -> jax.Array: ...


@dataclass(frozen=True)
class LogitsHead:
    """Logits for categorical, multi-categorical (concatenated) and Bernoulli policies."""

    features: int
    num_params: int

    def init(self, rng: np.random.Generator) -> Params:
        return self._layer.init(rng)

    def apply(self, params: Params, features: jax.Array) -> jax.Array:
        return self._layer.apply(params, features)

    @property
    def _layer(self) -> Linear:
        return Linear(self.features, self.num_params, 0.01)  # nearly uniform at first: every action gets its chance


@dataclass(frozen=True)
class GaussianHead:
    """Means from the features, log standard deviations that do not depend on the state; concatenated."""

    features: int
    entries: int
    log_std_init: float = 0.0

    def init(self, rng: np.random.Generator) -> Params:
        log_std = np.full(self.entries, self.log_std_init, np.float32)
        return named("mean", self._layer.init(rng)) | {"log_std": log_std}

    def apply(self, params: Params, features: jax.Array) -> jax.Array:
        mean = self._layer.apply(part(params, "mean"), features)
        return jnp.concatenate([mean, jnp.broadcast_to(params["log_std"], mean.shape)], axis=-1)

    @property
    def _layer(self) -> Linear:
        return Linear(self.features, self.entries, 0.01)


@dataclass(frozen=True)
class ValueHead:
    """One number per state."""

    features: int

    def init(self, rng: np.random.Generator) -> Params:
        return Linear(self.features, 1).init(rng)

    def apply(self, params: Params, features: jax.Array) -> jax.Array:
        return Linear(self.features, 1).apply(params, features).squeeze(-1)


@dataclass(frozen=True)
class QHead:
    """Action values, plain or with any of: dueling streams, a distribution over returns, noisy layers.

    `apply` gives `[B, A]` action values, or `[B, A, atoms]` logits (c51) or quantiles (qr); `q_values` turns
    either into expected returns. Dueling: V and A have a layer each, and Q = V + A − mean A, atom by atom.
    """

    features: int
    num_actions: int
    dueling: bool = False
    sigma: float = 0.0  # of noisy layers; 0: plain ones
    kind: str = "none"  # none · c51 · qr
    num_atoms: int = 51
    v_min: float = -10.0
    v_max: float = 10.0

    @property
    def atoms(self) -> int:
        return 1 if self.kind == "none" else self.num_atoms

    @property
    def shape(self) -> dict[str, Any]:
        """What a QModelConfig says of it."""
        noise = {"noisy": True, "noisy_sigma": self.sigma} if self.sigma else {}
        same = {name: getattr(self, name) for name in ("dueling", "num_atoms", "v_min", "v_max")}
        return same | noise | {"distributional": self.kind}

    @property
    def support(self) -> Array:
        return np.linspace(self.v_min, self.v_max, self.atoms, dtype=np.float32)

    @property
    def layers(self) -> dict[str, Linear]:
        layers = {"advantage": Linear(self.features, self.num_actions * self.atoms, None, self.sigma)}
        return layers | ({"state_value": Linear(self.features, self.atoms, None, self.sigma)} if self.dueling else {})

    def init(self, rng: np.random.Generator) -> Params:
        drawn: Params = {}
        for name, layer in self.layers.items():
            drawn |= named(name, layer.init(rng))
        return drawn

    def apply(self, params: Params, features: jax.Array) -> jax.Array:
        answers = {name: layer.apply(part(params, name), features) for name, layer in self.layers.items()}
        answer = answers["advantage"]
        if self.kind != "none":
            answer = answer.reshape(-1, self.num_actions, self.atoms)
        if self.dueling:
            value = answers["state_value"].reshape(-1, 1, *answer.shape[2:])
            answer = answer - answer.mean(axis=1, keepdims=True) + value
        return answer

    def q_values(self, answer: jax.Array) -> jax.Array:
        """Expected returns from what `apply` gave, of all actions `[B, A]` or of one each `[B]`."""
        if self.kind == "c51":
            return (jax.nn.softmax(answer, axis=-1) * self.support).sum(axis=-1)
        return answer.mean(axis=-1) if self.kind == "qr" else answer


def make_policy_head(spec: ActionSpec, features: int, log_std_init: float = 0.0) -> Any:
    """The head whose parameters describe a distribution over `spec`'s actions."""
    if spec.kind == "gaussian":
        return GaussianHead(features, spec.entries, log_std_init)
    return LogitsHead(features, spec.num_params)


def make_q_head(features: int, num_actions: int, config: QModelConfig) -> QHead:
    switches = (config.dueling, config.sigma, config.distributional)
    return QHead(features, num_actions, *switches, config.num_atoms, config.v_min, config.v_max)
