"""Networks in NumPy, from parameters by name: views of an engine's parameters, or arrays from an agent file.

For small networks and few observations this is about four times faster than PyTorch. It also runs trained agents
without a framework."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from drl.core.configs import QModelConfig
from drl.core.specs import LOG_STD_RANGE, AnyArray, Array
from drl.engines.numpy.layer_parts import activation_of, sigmoid

NORM_EPS = 1e-5  # of layer normalization
RENORM_KEEP, RENORM_EPS = 0.99, 1e-3  # batch renormalization: share of its running statistics kept at an update
RENORM_SCALE, RENORM_SHIFT = 3.0, 5.0  # and the limits of its corrections

IDENTITY = "identity"  # no activation
Layer = tuple[Array, Array, str]  # weight [in, out], bias [out], activation


class Norm(NamedTuple):
    """Layer normalization, then an activation."""

    scale: Array  # [width]
    bias: Array  # [width]
    activation: str = IDENTITY

    def __call__(self, x: Array) -> Array:
        centered = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt(np.square(centered).mean(axis=-1, keepdims=True) + NORM_EPS)
        x = centered / deviation * self.scale + self.bias
        return x if self.activation == IDENTITY else activation_of(self.activation)(x)


class Residual(NamedTuple):
    """x plus the output of these layers for x."""

    layers: "Sequence[AnyLayer]"

    def __call__(self, x: Array) -> Array:
        return x + mlp_forward(self.layers, x)


AnyLayer = Layer | Norm | Residual


def mlp_forward(layers: "Sequence[AnyLayer]", x: Array) -> Array:
    """Apply `layers` to `x` [N, in]. Weights may be views of an engine's parameters, which change in training."""
    for layer in layers:
        if isinstance(layer, Norm | Residual):
            x = layer(x)
        else:
            weight, bias, activation = layer
            x = x @ weight + bias
            x = x if activation == IDENTITY else activation_of(activation)(x)
    return x


class Cell(NamedTuple):
    """Weights of one recurrent cell; views of an engine's parameters, or arrays from a file."""

    kind: str  # gru · lstm
    weight_ih: Array  # [features, gates · size]
    weight_hh: Array  # [size, gates · size]
    bias_ih: Array
    bias_hh: Array


def recurrent_step(cell: Cell, features: AnyArray, rnn_state: AnyArray, xp: AnyArray = np) -> tuple[AnyArray, AnyArray]:
    """The output of the cell and its new state, from `features` [N, F] and `rnn_state` [N, S]. `xp` is NumPy, or a
    module with its names for other arrays."""
    return STEPS[cell.kind](cell, features, rnn_state, xp)


def _gru(cell: Cell, features: AnyArray, rnn_state: AnyArray, xp: AnyArray) -> tuple[AnyArray, AnyArray]:
    size = rnn_state.shape[1]
    from_in = features @ cell.weight_ih + cell.bias_ih
    from_hidden = rnn_state @ cell.weight_hh + cell.bias_hh
    gates = sigmoid(from_in[:, : 2 * size] + from_hidden[:, : 2 * size], xp)
    reset, update = gates[:, :size], gates[:, size:]
    new = xp.tanh(from_in[:, 2 * size :] + reset * from_hidden[:, 2 * size :])
    after = new + update * (rnn_state - new)
    return after, after


def _lstm(cell: Cell, features: AnyArray, rnn_state: AnyArray, xp: AnyArray) -> tuple[AnyArray, AnyArray]:
    size = rnn_state.shape[1] // 2
    out, content = rnn_state[:, :size], rnn_state[:, size:]
    gates = features @ cell.weight_ih + cell.bias_ih + out @ cell.weight_hh + cell.bias_hh
    write, keep = sigmoid(gates[:, :size], xp), sigmoid(gates[:, size : 2 * size], xp)
    content = keep * content + write * xp.tanh(gates[:, 2 * size : 3 * size])
    out = sigmoid(gates[:, 3 * size :], xp) * xp.tanh(content)
    return out, xp.concatenate([out, content], axis=1)


CARRIED = {"gru": 1, "lstm": 2}  # vectors of its width in the rnn_state of a cell
STEPS: dict[str, Callable[..., tuple[AnyArray, AnyArray]]] = {"gru": _gru, "lstm": _lstm}


Params = Mapping[str, Array]  # weights are [out, in]


class PolicyNet(NamedTuple):
    """Observations → parameters of the policy's distribution."""

    layers: Sequence[AnyLayer]
    head: Layer
    # Log standard deviations of a Gaussian: one array for all states, or a layer.
    log_std: "Array | Layer | None"

    def __call__(self, obs: Array) -> Array:
        features = mlp_forward(self.layers, as_rows(obs))
        answer = mlp_forward([self.head], features)
        return answer if self.log_std is None else self._with_deviations(answer, features)

    def of_features(self, features: Array) -> Array:
        """Parameters of the distribution from features."""
        answer = mlp_forward([self.head], features)
        return answer if self.log_std is None else self._with_deviations(answer, features)

    def _with_deviations(self, mean: Array, features: Array) -> Array:
        if isinstance(self.log_std, tuple):
            return np.concatenate([mean, np.clip(mlp_forward([self.log_std], features), *LOG_STD_RANGE)], axis=1)
        assert self.log_std is not None
        return np.concatenate([mean, np.broadcast_to(self.log_std, mean.shape)], axis=1)


class QNet(NamedTuple):
    """Observations → action values `[N, A]`."""

    layers: Sequence[AnyLayer]
    advantage: Layer
    value: Layer | None  # of a dueling head
    kind: str  # none · c51 · qr
    support: Array

    def __call__(self, obs: Array) -> Array:
        features = mlp_forward(self.layers, as_rows(obs))
        answer = mlp_forward([self.advantage], features)
        if self.kind != "none":
            answer = answer.reshape(len(obs), -1, len(self.support))
        if self.value is not None:
            state = mlp_forward([self.value], features)
            answer = answer - answer.mean(axis=1, keepdims=True) + (state if self.kind == "none" else state[:, None])
        if self.kind == "c51":
            weights = np.exp(answer - answer.max(axis=-1, keepdims=True))
            return (weights * self.support).sum(axis=-1) / weights.sum(axis=-1)
        return answer.mean(axis=-1) if self.kind == "qr" else answer


def as_rows(obs: Array) -> Array:
    """Flat rows `[N, D]`; pixels scaled to [0, 1]."""
    rows = obs if obs.ndim == 2 else obs.reshape(len(obs), -1)
    return rows.astype(np.float32) / np.float32(255.0) if rows.dtype == np.uint8 else rows


def policy_net(params: Params, activation: str) -> PolicyNet:
    """The acting part of a policy-value or policy-only model."""
    actor = "actor." if "actor.head.bias" in params or "actor.head.mean.bias" in params else ""
    layers = backbone_layers(params, f"{actor}backbone", activation)
    if f"{actor}head.mean.bias" not in params:
        return PolicyNet(layers, linear(params, f"{actor}head"), None)
    by_state = f"{actor}head.log_std.bias" in params
    log_std = linear(params, f"{actor}head.log_std") if by_state else params[f"{actor}head.log_std"]
    return PolicyNet(layers, linear(params, f"{actor}head.mean"), log_std)


def value_layers(params: Params, activation: str) -> list[AnyLayer]:
    """The critic of a policy-value model; it uses the actor's backbone if it has none."""
    own = any(name.startswith("critic.backbone.") for name in params)
    layers = backbone_layers(params, "critic.backbone" if own else "actor.backbone", activation)
    return [*layers, linear(params, "critic.head")]


def q_net(params: Params, config: QModelConfig) -> QNet:
    """A network of action values from its parameters by name."""
    atoms = 1 if config.distributional == "none" else config.num_atoms
    return QNet(
        backbone_layers(params, "backbone", config.activation),
        linear(params, "head.advantage"),
        linear(params, "head.state_value") if config.dueling else None,
        config.distributional,
        _support(config.v_min, config.v_max, atoms),
    )


@cache
def _support(v_min: float, v_max: float, atoms: int) -> Array:
    return np.linspace(v_min, v_max, atoms, dtype=np.float32)


def backbone_layers(params: Params, prefix: str, activation: str) -> list[AnyLayer]:
    """The layers of an MLP or of simba with this prefix, in order."""
    if f"{prefix}.embed.weight" in params:
        return _simba_layers(params, prefix)
    names = _layer_names(tuple(params), prefix)
    if not any(params[f"{name}.weight"].ndim == 1 for name in names):
        return [linear(params, name, activation) for name in names]
    layers: list[AnyLayer] = []
    for layer, norm in zip(names[::2], names[1::2], strict=True):  # of an MLP with layer normalization
        layers += [linear(params, layer), _norm(params, norm, activation)]
    return layers


def _simba_layers(params: Params, prefix: str) -> list[AnyLayer]:
    layers: list[AnyLayer] = [linear(params, f"{prefix}.embed")]
    while (block := f"{prefix}.blocks.{len(layers) - 1}") + ".up.weight" in params:
        inside = [linear(params, f"{block}.up", "relu"), linear(params, f"{block}.down")]
        layers.append(Residual([_norm(params, f"{block}.norm"), *inside]))
    return [*layers, _norm(params, f"{prefix}.norm")]


def _norm(params: Params, name: str, activation: str = IDENTITY) -> Norm:
    return Norm(params[f"{name}.weight"], params[f"{name}.bias"], activation)


@cache  # called after every update
def _layer_names(names: tuple[str, ...], prefix: str) -> list[str]:
    """Layers are numbered; those of a backbone for pixels are one level deeper."""
    found = (re.fullmatch(rf"({re.escape(prefix)}\.(?:backbone\.)?(\d+))\.weight", name) for name in names)
    return [match[1] for match in sorted((match for match in found if match), key=lambda match: int(match[2]))]


def linear(params: Params, name: str, activation: str = IDENTITY) -> Layer:
    """Weight `[in, out]`, bias and activation. A noisy layer uses its means unless `params` has its noise."""
    weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
    if f"{name}.noise_in" in params:
        noise_out = params[f"{name}.noise_out"]
        weight = weight + params[f"{name}.weight_sigma"] * np.outer(noise_out, params[f"{name}.noise_in"])
        bias = bias + params[f"{name}.bias_sigma"] * noise_out
    return weight.T, bias, activation


def noise_of(params: Mapping[str, AnyArray], draw: Callable[[int], AnyArray]) -> dict[str, AnyArray]:
    """New noise for every noisy layer in `params`, by name: f(ε) = sgn(ε) √|ε| of normal numbers ε from `draw(size)`,
    which may return NumPy or JAX arrays."""
    layers = sorted(name.removesuffix(".weight_sigma") for name in params if name.endswith(".weight_sigma"))
    sizes = {f"{layer}.noise_in": params[f"{layer}.weight_sigma"].shape[1] for layer in layers}
    sizes |= {f"{layer}.noise_out": params[f"{layer}.weight_sigma"].shape[0] for layer in layers}
    if not sizes:
        return {}
    normal, ends = draw(sum(sizes.values())), np.cumsum(list(sizes.values()))
    noise = normal * (abs(normal) + 1e-30) ** -0.5  # 0 stays 0
    return {name: noise[end - size : end] for (name, size), end in zip(sizes.items(), ends, strict=True)}
