"""An agent as one pure function of named arrays: raw observations in, actions in the environment's units out.

Encoding, normalizer, masking and the choice of the action are written once, for the arrays of NumPy, PyTorch and JAX.
An engine adds the network between them. The action is the mode of the policy, as in evaluation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from drl.core.errors import BadInput
from drl.core.normalize import ObsNormalizer
from drl.core.specs import MASK_KEY, ActionSpec, AnyArray, Array, Distribution, ObsSpec
from drl.engines.numpy.acting import Actor, PolicyActor, QActor
from drl.engines.numpy.distributions import ILLEGAL

Named = dict[str, AnyArray]
# (encoded observations, rnn_state or None) → (distribution parameters or action values, the new rnn_state or None)
Answer = Callable[[AnyArray, AnyArray | None], tuple[AnyArray, AnyArray | None]]
RAW = {"discrete": "int64", "multi_discrete": "int64", "multi_binary": "int8"}  # as Gymnasium samples them
TENSORS = ("float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool")


class Arrays(NamedTuple):
    """What the functions below need to know about a library of arrays."""

    xp: AnyArray  # its module, with NumPy's names
    cast: Callable[[AnyArray, str], AnyArray]
    constant: Callable[[Array], AnyArray]


NUMPY = Arrays(np, lambda array, dtype: array.astype(dtype), lambda array: array)


class Port(NamedTuple):
    """An input or output; its arrays have one more axis in front, the batch."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} [{', '.join(map(str, ('batch', *self.shape)))}]"


@dataclass(frozen=True)
class PolicyGraph:
    """Everything of an agent but its network."""

    obs_spec: ObsSpec
    action_spec: ActionSpec
    normalizer: ObsNormalizer | None
    distribution: Distribution | None  # of its policy; None: it acts by action values
    masked: bool = False  # whether `action_mask` is an input
    rnn_state_size: int = 0  # of a recurrent agent: numbers that it carries from step to step

    @classmethod
    def of(cls, agent: Actor, masked: bool = False, rnn_state_size: int = 0) -> "PolicyGraph":
        """The graph of a loaded agent."""
        if not isinstance(agent, PolicyActor | QActor):
            raise BadInput(f"{type(agent).__name__} acts neither by a policy nor by action values; it has no export")
        if masked and not agent.action_spec.num_choices:
            raise BadInput("--action-mask on is for actions with choices; this agent's actions are a Box")
        distribution = agent.distribution if isinstance(agent, PolicyActor) else None
        return cls(agent.obs_spec, agent.action_spec, agent.normalizer, distribution, masked, rnn_state_size)

    @property
    def inputs(self) -> list[Port]:
        """What the graph takes."""
        ports = [Port(port_name(path), raw_dtype(leaf), leaf.box_shape) for path, leaf in self.obs_spec.leaves.items()]
        if self.masked:
            ports.append(Port(MASK_KEY, "bool", (self.action_spec.num_choices,)))
        if self.rnn_state_size:
            ports += [Port("rnn_state", "float32", (self.rnn_state_size,)), Port("reset", "bool", ())]
        return ports

    @property
    def outputs(self) -> list[Port]:
        """What the graph gives."""
        spec, params = (
            self.action_spec,
            self.distribution.num_params if self.distribution else self.action_spec.sizes[0],
        )
        ports = [Port("action", "int64" if spec.kind == "discrete" else spec.dtype, spec.shape)]
        ports.append(Port(self.answer_name, "float32", (params,)))
        return ports + ([Port("new_rnn_state", "float32", (self.rnn_state_size,))] if self.rnn_state_size else [])

    @property
    def answer_name(self) -> str:
        """What the network's outputs are called."""
        return "dist_params" if self.distribution else "q_values"

    def act(self, arrays: Arrays, inputs: Named, answer: Answer) -> Named:
        """The outputs by name. Where `reset` is True an episode begins: its rnn_state is forgotten."""
        leaves = {path: inputs[port_name(path)] for path in self.obs_spec.leaves}
        rnn_state = None
        if self.rnn_state_size:
            rnn_state = arrays.xp.where(inputs["reset"][:, None], 0.0, inputs["rnn_state"])
        seen = _normalized(arrays, self.normalizer, encode(arrays, self.obs_spec, leaves))
        answered, after = answer(seen, rnn_state)
        best = _best(arrays, self.distribution, answered, inputs[MASK_KEY] if self.masked else None)
        outputs = {"action": _to_env(arrays, self.action_spec, best), self.answer_name: answered}
        return outputs | ({} if after is None else {"new_rnn_state": after})


def port_name(path: str) -> str:
    """The input for a part of the observation: `obs`, or `obs.camera.left` in a Dict."""
    return f"obs.{path}" if path else "obs"


def raw_dtype(leaf: ObsSpec) -> str:
    """The type of a part of the observation as the environment gives it; unsigned types beyond uint8 are int64."""
    return RAW.get(leaf.kind, leaf.box_dtype if leaf.box_dtype in TENSORS else "int64")


def encode(arrays: Arrays, spec: ObsSpec, leaves: Named) -> AnyArray:
    """`ObsSpec.encode` for raw parts by path. A value outside of a discrete space encodes to zeros."""
    encoded = {path: _encode_leaf(arrays, leaf, leaves[path]) for path, leaf in spec.leaves.items()}
    if not spec.parts:
        return encoded[""]
    if not spec.is_structured:
        rows = [_as_numbers(arrays, leaf, encoded[path]) for path, leaf in spec.leaves.items()]
        return arrays.xp.concatenate(rows, axis=1)
    return {
        path: encoded[path] if leaf.is_image else arrays.cast(encoded[path], "float32")
        for path, leaf in spec.leaves.items()
    }


def _encode_leaf(arrays: Arrays, leaf: ObsSpec, raw: AnyArray) -> AnyArray:
    if leaf.kind == "box":
        array = raw if leaf.dtype == "uint8" else arrays.cast(raw, "float32")
        return arrays.xp.moveaxis(array, 3, 1) if leaf.channels_last else array.reshape((-1, *leaf.shape))
    if leaf.kind == "multi_binary":
        return arrays.cast(raw, "float32").reshape((-1, *leaf.shape))
    values = raw.reshape((-1, len(leaf.sizes)))
    owner = np.repeat(np.arange(len(leaf.sizes)), leaf.sizes)  # of each column of the one-hot vector
    starts = leaf.starts or (0,) * len(leaf.sizes)
    meant = np.concatenate([np.arange(size) + start for size, start in zip(leaf.sizes, starts, strict=True)])
    return arrays.cast(values[:, arrays.constant(owner)] == arrays.constant(meant), "float32")


def _as_numbers(arrays: Arrays, leaf: ObsSpec, encoded: AnyArray) -> AnyArray:
    rows = arrays.cast(encoded.reshape((-1, int(np.prod(leaf.shape)))), "float32")
    return rows / 255.0 if leaf.dtype == "uint8" else rows


def _normalized(arrays: Arrays, normalizer: ObsNormalizer | None, encoded: AnyArray) -> AnyArray:
    if normalizer is None:
        return encoded

    def scaled(part: AnyArray, name: str) -> AnyArray:
        shift, scale = map(arrays.constant, normalizer.scales[name])
        return arrays.xp.clip((part - shift) * scale, -normalizer.clip, normalizer.clip)

    if "" in normalizer.scales:
        return scaled(encoded, "")
    return {name: scaled(part, name) if name in normalizer.scales else part for name, part in encoded.items()}


def _best(arrays: Arrays, dist: Distribution | None, answered: AnyArray, mask: AnyArray | None) -> AnyArray:
    """The mode of the policy or the action of the highest value, in the policy's units."""
    xp = arrays.xp
    if dist is None or dist.sizes:
        illegal = -np.inf if dist is None else float(ILLEGAL)
        values = answered if mask is None else xp.where(mask, answered, illegal)
        if dist is None or dist.kind == "categorical":
            return xp.argmax(values, axis=-1)
        ends = np.cumsum(dist.sizes)
        parts = [values[:, end - size : end] for size, end in zip(dist.sizes, ends.tolist(), strict=True)]
        return xp.stack([xp.argmax(part, axis=-1) for part in parts], axis=-1)
    if dist.kind == "bernoulli":
        if mask is None:
            return answered > 0
        legal = mask.reshape((-1, dist.entries, 2))  # off, on
        return legal[:, :, 1] & ((answered > 0) | ~legal[:, :, 0])
    mean = answered[:, : dist.entries]
    return mean if dist.kind == "gaussian" else xp.tanh(mean)


def _to_env(arrays: Arrays, spec: ActionSpec, action: AnyArray) -> AnyArray:
    """`ActionSpec.to_env`."""
    if spec.kind != "box":
        dtype = "int64" if spec.kind == "discrete" else spec.dtype
        moved = arrays.cast(action, "int64").reshape((-1, *spec.policy_shape))
        moved = moved + arrays.constant(np.array(spec.starts).reshape(spec.policy_shape)) if spec.starts else moved
        return arrays.cast(moved, dtype).reshape((-1, *spec.shape))
    low, high = np.array(spec.low, np.float64), np.array(spec.high, np.float64)
    bounded = np.isfinite(low) & np.isfinite(high)
    span = [arrays.constant(np.where(bounded, bound, 0.0)) for bound in (low, high)]
    inside = arrays.xp.clip(action, -1.0, 1.0)
    scaled = span[1] * (inside + 1) / 2 + span[0] * (1 - inside) / 2
    scaled = arrays.xp.where(arrays.constant(bounded), scaled, action)
    limited = arrays.xp.clip(scaled, arrays.constant(low), arrays.constant(high))
    return arrays.cast(limited, spec.dtype).reshape((-1, *spec.shape))
