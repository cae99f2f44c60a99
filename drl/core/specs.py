"""Specs of an agent's observations and actions, independent of Gymnasium and saved with the agent.

`ObsSpec.encode` turns any supported observation into one array. `ActionSpec.to_env` turns actions from the policy's
units into the environment's. `Distribution` is the policy's distribution over an action space. All are plain data:
`to_json` and `from_json` write them into the agent's card and read them back.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from drl.core.errors import BadInput, shown

Array = NDArray[Any]
AnyArray = Any  # an array of NumPy, PyTorch or JAX
DType = np.dtype[Any]
RawObs = object  # one observation or a batch, as Gymnasium gives it: an array, a number, or a dict or tuple of these
PlainValue = Any  # what JSON and YAML can represent
PlainDict = dict[str, PlainValue]
EnvValue = Any  # an attribute of an environment, or the result of one of its methods

OBS_KINDS = ("box", "discrete", "multi_discrete", "multi_binary", "dict", "tuple")
ACTION_KINDS = ("discrete", "multi_discrete", "multi_binary", "box")
LOG_STD_RANGE = (-20.0, 2.0)  # of state-dependent log standard deviations
NUMBERS = "fiub"  # kinds of NumPy's dtypes that are numbers
MASK_KEY = "action_mask"  # key of a Dict observation or an info: which actions are legal


class ArrayLibrary(NamedTuple):
    """The functions of an array library that encoding and decoding use, so that an exported agent shares them."""

    xp: AnyArray  # its module, with NumPy's names
    cast: Callable[[AnyArray, str], AnyArray]
    constant: Callable[[Array], AnyArray]


NUMPY = ArrayLibrary(np, lambda array, dtype: array.astype(dtype, copy=False), lambda array: array)


@dataclass(frozen=True)
class ObsSpec:
    """An observation space as a small tree.

    A Box is unchanged. Discrete spaces become one-hot. A Dict or Tuple of vectors becomes one float vector. A Dict
    or Tuple with an image becomes a structured array with a field for each part, so that images stay uint8.

    >>> ObsSpec("discrete", sizes=(3,)).encode(np.array([2, 0]))
    array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)
    """

    kind: str  # of OBS_KINDS
    box_shape: tuple[int, ...] = ()  # of one raw observation, for all but discrete, dict and tuple
    box_dtype: str = "float32"  # of a box
    channels_last: bool = False  # a box of images (height, width, channels); encoded as (channels, height, width)
    sizes: tuple[int, ...] = ()  # values per entry of a (multi_)discrete
    starts: tuple[int, ...] = ()  # smallest value per entry; () means zeros
    keys: tuple[str, ...] = ()  # of a dict, in order
    parts: tuple["ObsSpec", ...] = ()  # of a dict or tuple

    @property
    def is_image(self) -> bool:
        """Whether it is a uint8 box with three axes; encoded as (channels, height, width)."""
        return self.kind == "box" and self.box_dtype == "uint8" and len(self.box_shape) == 3

    @cached_property
    def leaves(self) -> dict[str, "ObsSpec"]:
        """Leaf spaces by path; a space that is neither Dict nor Tuple is its own leaf with the path ""."""
        if not self.parts:
            return {"": self}
        names = self.keys or tuple(str(number) for number in range(len(self.parts)))
        return {
            f"{name}.{path}".rstrip("."): leaf
            for name, part in zip(names, self.parts, strict=True)
            for path, leaf in part.leaves.items()
        }

    @cached_property
    def is_structured(self) -> bool:
        """Whether encoded observations are structured arrays with one field per leaf."""
        return bool(self.parts) and any(leaf.is_image for leaf in self.leaves.values())

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one encoded observation."""
        if self.channels_last:
            return (self.box_shape[2], *self.box_shape[:2])
        if self.kind == "box":
            return self.box_shape or (1,)
        if self.kind == "multi_binary":
            return (int(np.prod(self.box_shape)),)
        if self.kind in ("discrete", "multi_discrete"):
            return (sum(self.sizes),)
        return () if self.is_structured else (sum(int(np.prod(part.shape)) for part in self.parts),)

    @property
    def dtype(self) -> DType:
        """Dtype of encoded observations: uint8 for uint8 boxes (a model divides them by 255), else float32."""
        if self.is_structured:
            return np.dtype([(name, leaf.dtype, leaf.shape) for name, leaf in self.leaves.items()])
        return np.dtype("uint8" if self.kind == "box" and self.box_dtype == "uint8" else "float32")

    def columns(self, key: str) -> slice:
        """Return the columns of a leaf in the encoded vector of a Dict or Tuple of vectors."""
        start = 0
        for name, leaf in self.leaves.items():
            size = int(np.prod(leaf.shape))
            if name == key:
                return slice(start, start + size)
            start += size
        raise KeyError(key)

    def encode(self, obs: RawObs) -> Array:
        """Encode a batch: arrays with a leading batch axis, or a dict or tuple of such arrays."""
        if not self.parts:
            encoded = self._encode_leaf(self._checked(obs), NUMPY)
            return np.ascontiguousarray(encoded) if self.channels_last else encoded
        encoded = self.encode_leaves(self._checked_leaves(obs))
        if not self.is_structured:
            return encoded
        rows = np.empty(len(next(iter(encoded.values()))), self.dtype)
        for name, array in encoded.items():
            rows[name] = array
        return rows

    def encode_leaves(self, leaves: dict[str, AnyArray], arrays: ArrayLibrary = NUMPY) -> AnyArray:
        """Encode raw batches by path, unchecked: to one array or, if structured, to a dict of arrays by path. A value
        outside of a discrete space encodes to zeros."""
        encoded = {path: leaf._encode_leaf(leaves[path], arrays) for path, leaf in self.leaves.items()}
        if not self.parts:
            return encoded[""]
        if self.is_structured:
            return encoded
        vectors = [leaf._as_vectors(encoded[path], arrays) for path, leaf in self.leaves.items()]
        return arrays.xp.concatenate(vectors, axis=1)

    def _encode_leaf(self, array: AnyArray, arrays: ArrayLibrary) -> AnyArray:
        if self.sizes:
            entry, value = map(arrays.constant, self._one_hot_columns)
            values = array.reshape((-1, len(self.sizes)))
            return arrays.cast((values if len(self.sizes) == 1 else values[:, entry]) == value, "float32")
        if self.kind != "box" or self.box_dtype != "uint8":
            array = arrays.cast(array, "float32")
        if self.channels_last:
            return arrays.xp.moveaxis(array, 3, 1)
        return array if self.kind == "box" and self.box_shape else array.reshape((-1, *self.shape))

    @cached_property
    def _one_hot_columns(self) -> tuple[Array, Array]:
        """Entry and value that each column of a (multi_)discrete's one-hot vector stands for."""
        starts = self.starts or (0,) * len(self.sizes)
        values = [np.arange(start, start + size) for start, size in zip(starts, self.sizes, strict=True)]
        return np.repeat(np.arange(len(self.sizes)), self.sizes), np.concatenate(values)

    def _as_vectors(self, encoded: AnyArray, arrays: ArrayLibrary) -> AnyArray:
        """Flatten to float rows `[N, D]`; pixels are scaled to [0, 1], as in models."""
        rows = arrays.cast(encoded.reshape((-1, int(np.prod(self.shape)))), "float32")
        return rows / 255.0 if self.dtype == "uint8" else rows

    def _checked(self, obs: RawObs) -> Array:
        """Convert a batch of a leaf space to an array; raise unless it has the space's shape and discrete values."""
        try:
            array = np.asarray(obs)
        except ValueError:
            raise BadInput(f"observations have different shapes; their space says {self.box_shape}") from None
        if self.kind != "discrete" and array.shape[1:] != self.box_shape:
            raise BadInput(f"an observation has the shape {array.shape[1:]}, its space says {self.box_shape}")
        if array.dtype.kind not in NUMBERS:
            raise BadInput(f"an observation is {shown(obs)}; expected numbers")
        if not self.sizes:
            return array
        values = array.astype(np.int64).reshape(len(array), len(self.sizes))
        first = np.asarray(self.starts or 0)
        outside = (values < first) | (values >= first + np.asarray(self.sizes))
        if outside.any():
            row, entry = np.argwhere(outside)[0]
            raise BadInput(
                f"an observation is {values[row, entry]} in entry {entry}; "
                f"its space has {self.sizes[entry]} values from {self.starts[entry] if self.starts else 0} there"
            )
        return values

    def _checked_leaves(self, obs: RawObs, path: str = "") -> dict[str, Array]:
        if not self.parts:
            try:
                return {path: self._checked(obs)}
            except ValueError as error:
                raise BadInput(f"key {path!r}: {error}") from error
        leaves: dict[str, Array] = {}
        for name, child, part in self._children(obs):
            leaves |= part._checked_leaves(child, f"{path}.{name}".lstrip("."))
        return leaves

    def _children(self, obs: RawObs) -> Iterator[tuple[str, RawObs, "ObsSpec"]]:
        """Yield name, value and spec of the parts of a dict or tuple; raise if one is missing."""
        children = obs if isinstance(obs, Mapping) else dict(enumerate(obs)) if isinstance(obs, tuple | list) else None
        names = self.keys or range(len(self.parts))
        if children is None or (missing := [name for name in names if name not in children]):
            lacks = f"an observation is {shown(obs)}" if children is None else f"an observation lacks {missing}"
            raise BadInput(f"{lacks}; expected a {self.kind} with {', '.join(map(repr, names))}")
        for name, part in zip(names, self.parts, strict=True):
            yield str(name), children[name], part

    def encode_one(self, obs: RawObs) -> Array:
        """Encode one observation of the environment, without a batch axis."""
        return self.encode(self._with_batch_axis(obs))[0]

    def _with_batch_axis(self, obs: RawObs) -> RawObs:
        if self.parts:
            parts = {name: part._with_batch_axis(child) for name, child, part in self._children(obs)}
            return parts if self.kind == "dict" else tuple(parts.values())
        return np.asarray(obs)[None]

    def is_single(self, obs: RawObs) -> bool:
        """Whether `obs` is one observation (True) or a batch of them (False)."""
        if self.parts:
            _, child, part = next(self._children(obs))
            return part.is_single(child)
        shape = np.asarray(obs).shape
        batch_axes = len(shape) - len(self.box_shape)
        if batch_axes not in (0, 1) or shape[batch_axes:] != self.box_shape:
            raise BadInput(f"got an observation of shape {shape}; expected {self.box_shape} or a batch of those")
        return batch_axes == 0

    def to_json(self) -> PlainDict:
        """Convert to plain data for the agent's card."""
        plain = {"kind": self.kind, "box_shape": list(self.box_shape), "box_dtype": self.box_dtype}
        return plain | {
            "channels_last": self.channels_last,
            "sizes": list(self.sizes),
            "starts": list(self.starts),
            "keys": list(self.keys),
            "parts": [part.to_json() for part in self.parts],
        }

    @classmethod
    def from_json(cls, plain: PlainDict) -> "ObsSpec":
        """Read the result of `to_json`; anything else raises a `ValueError`, `TypeError` or `KeyError`."""
        kind, dtype, shape = str(plain["kind"]), str(np.dtype(plain["box_dtype"])), _whole(plain["box_shape"], 0)
        if kind not in OBS_KINDS or (plain["channels_last"] and len(shape) != 3):
            raise ValueError(f"no observation space is a {kind!r} of shape {shape}")
        return cls(
            kind=kind,
            box_shape=shape,
            box_dtype=dtype,
            channels_last=bool(plain["channels_last"]),
            sizes=_whole(plain["sizes"], 1),
            starts=_whole(plain["starts"]),
            keys=tuple(str(key) for key in plain["keys"]),
            parts=tuple(cls.from_json(part) for part in plain["parts"]),
        )


def _whole(values: Sequence[PlainValue], least: int | None = None) -> tuple[int, ...]:
    """Check that values are whole numbers of at least `least`."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
            raise ValueError(
                f"got {value!r}; expected a whole number" + ("" if least is None else f", {least} or more")
            )
    return tuple(values)


@dataclass(frozen=True)
class ActionSpec:
    """An action space.

    A policy uses its own units: class indices from zero, bits, or a vector scaled so that [−1, 1] spans the bounds.
    """

    kind: str  # of ACTION_KINDS
    sizes: tuple[int, ...] = ()  # classes per entry of a (multi_)discrete
    starts: tuple[int, ...] = ()  # smallest value per entry; () means zeros
    shape: tuple[int, ...] = ()  # of one action in the environment's units
    low: tuple[float, ...] = ()  # box: bounds, flattened; ±inf where unbounded
    high: tuple[float, ...] = ()
    dtype: str = "int64"  # of the action in the environment's units
    # box: low, high; whether both are finite; both again, 0 where they are not
    _bounds: tuple[Array, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind == "box":
            low, high = np.asarray(self.low, np.float64), np.asarray(self.high, np.float64)
            bounded = np.isfinite(low) & np.isfinite(high)
            bounds = (low, high, bounded, np.where(bounded, low, 0), np.where(bounded, high, 0))
            object.__setattr__(self, "_bounds", bounds)

    @property
    def entries(self) -> int:
        """Number of entries of one action in the policy's units."""
        return len(self.sizes) if self.sizes else int(np.prod(self.shape, dtype=int))

    @property
    def num_choices(self) -> int:
        """Total number of classes over all entries, which is the width of an action mask; 0 for a box."""
        return sum(self.sizes) if self.sizes else (2 * self.entries if self.kind == "multi_binary" else 0)

    @property
    def policy_shape(self) -> tuple[int, ...]:
        """Shape of one action in the policy's units: () for a discrete space, (entries,) otherwise."""
        return () if self.kind == "discrete" else (self.entries,)

    @property
    def policy_dtype(self) -> DType:
        """Dtype of actions in the policy's units."""
        return np.dtype("float32" if self.kind == "box" else "int64")

    def to_env(self, action: AnyArray, arrays: ArrayLibrary = NUMPY) -> AnyArray:
        """Convert a batch from the policy's units to the environment's. Both bounds of a box can be reached."""
        if self.kind == "box":
            low, high, bounded, lowest, highest = map(arrays.constant, self._bounds)
            inside = arrays.xp.clip(action, -1.0, 1.0)
            scaled = highest * (inside + 1) / 2 + lowest * (1 - inside) / 2
            limited = arrays.xp.clip(arrays.xp.where(bounded, scaled, action), low, high)  # also one-sided bounds
            return arrays.cast(limited, self.dtype).reshape((-1, *self.shape))
        if self.kind == "discrete":
            return action + self.starts[0] if self.starts else action
        moved = action + arrays.constant(np.asarray(self.starts)) if self.starts else action
        return arrays.cast(moved, self.dtype).reshape((-1, *self.shape))

    def to_json(self) -> PlainDict:
        """Convert to plain data for the agent's card."""

        def listed(bounds: tuple[float, ...]) -> list[float | None]:
            return [x if np.isfinite(x) else None for x in bounds]  # JSON has no infinity

        plain = {"kind": self.kind, "sizes": list(self.sizes), "starts": list(self.starts), "shape": list(self.shape)}
        return plain | {"dtype": self.dtype, "low": listed(self.low), "high": listed(self.high)}

    @classmethod
    def from_json(cls, plain: PlainDict) -> "ActionSpec":
        """Read the result of `to_json`; anything else raises a `ValueError`, `TypeError` or `KeyError`."""
        kind, dtype = str(plain["kind"]), str(np.dtype(plain["dtype"]))
        low = tuple(-np.inf if x is None else float(x) for x in plain["low"])
        high = tuple(np.inf if x is None else float(x) for x in plain["high"])
        if kind not in ACTION_KINDS:
            raise ValueError(f"no action space is a {kind!r}")
        sizes, starts, shape = _whole(plain["sizes"], 1), _whole(plain["starts"]), _whole(plain["shape"], 0)
        return cls(kind=kind, sizes=sizes, starts=starts, shape=shape, low=low, high=high, dtype=dtype)


# Distribution → the action space it applies to; the first one of each space is its default.
DISTRIBUTIONS = {
    "categorical": "discrete",
    "multi_categorical": "multi_discrete",
    "bernoulli": "multi_binary",
    "gaussian": "box",  # state-independent std; actions beyond the bounds are clipped
    "tanh_gaussian": "box",  # state-dependent std, squashed into the bounds
    "deterministic": "box",  # tanh of the network's output, no randomness
}


@dataclass(frozen=True)
class Distribution:
    """The distribution family of a policy over an action space. The policy head outputs its parameters."""

    kind: str  # of DISTRIBUTIONS
    sizes: tuple[int, ...] = ()  # classes per entry of a (multi_)categorical
    entries: int = 1  # numbers of one action

    @classmethod
    def on(cls, spec: ActionSpec, kind: str = "auto") -> "Distribution":
        """Make the distribution `kind` on an action space; `auto` is the space's default.

        >>> Distribution.on(ActionSpec("discrete", sizes=(3,))).num_params
        3
        """
        if kind == "auto":
            kind = next(name for name, space in DISTRIBUTIONS.items() if space == spec.kind)
        if DISTRIBUTIONS.get(kind) != spec.kind:
            fitting = [name for name, space in DISTRIBUTIONS.items() if space == spec.kind]
            raise BadInput(f"distribution is {kind!r}, actions are {spec.kind}; expected one of {', '.join(fitting)}")
        return cls(kind, spec.sizes, spec.entries)

    @property
    def num_params(self) -> int:
        """Number of head outputs per observation: logits, or means and log standard deviations."""
        if self.sizes:
            return sum(self.sizes)
        return self.entries * (2 if self.kind.endswith("gaussian") else 1)


class Specs(Protocol):
    """Observation and action spec, for building models, agents, algorithms and buffers. A `VecEnv`, a JAX environment,
    an agent and an `EnvSpecs` have them."""

    @property
    def obs_spec(self) -> ObsSpec:
        """The observation space."""

    @property
    def action_spec(self) -> ActionSpec:
        """The action space."""


class ManySpecs(Specs, Protocol):
    """The specs of N environments, for a buffer."""

    @property
    def num_envs(self) -> int:
        """Number of environments."""


@dataclass(frozen=True)
class EnvSpecs:
    """Specs without environments, such as the specs of a saved agent.

    >>> EnvSpecs(ObsSpec("box", (4,)), ActionSpec("discrete", (2,))).num_envs
    1
    """

    obs_spec: ObsSpec
    action_spec: ActionSpec
    num_envs: int = 1
    seed: int = 0  # root seed for agents, buffers and algorithms built from these specs
