"""Convert Gymnasium's spaces to the plain specs that are saved with an agent. Type aliases for Gymnasium's classes."""

import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import ArrayLike

from drl.core.errors import BadInput, plural
from drl.core.specs import MASK_KEY, ActionSpec, Array, ObsSpec, RawObs

GymEnv = gym.Env[Any, Any]
GymSpace = gym.Space[Any]
GymVectorEnv = VectorEnv[Any, Any, Any]
GymWrapper = gym.Wrapper[Any, Any, Any, Any]
Info = dict[str, Any]  # of a reset or step
VectorBatch = Any  # seeds, actions, observations or rewards of a `GymVectorEnv`
EnvKwargs = dict[str, Any]  # for an environment's constructor


def obs_spec(space: GymSpace) -> ObsSpec:
    """Describe an observation space.

    >>> obs_spec(spaces.Discrete(3, start=1)).shape
    (3,)
    >>> obs_spec(spaces.Dict(a=spaces.Box(-1, 1, (2, 2)), b=spaces.MultiBinary(3))).shape
    (7,)
    """
    if isinstance(space, spaces.Box):
        dtype = np.dtype(space.dtype).name
        return ObsSpec("box", box_shape=space.shape, box_dtype=dtype, channels_last=_channels_last(space.shape, dtype))
    if isinstance(space, spaces.Discrete):
        return ObsSpec("discrete", sizes=(int(space.n),), starts=_starts(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = _ints(space.nvec), _starts(space.start)
        return ObsSpec("multi_discrete", box_shape=space.shape, sizes=sizes, starts=starts)
    if isinstance(space, spaces.MultiBinary):
        return ObsSpec("multi_binary", box_shape=space.shape)
    if isinstance(space, spaces.Dict):
        used = {key: part for key, part in space.spaces.items() if key != MASK_KEY and not _is_text(part)}
        if not used:
            raise _unusable(space)
        for key in space.spaces.keys() - used.keys() - {MASK_KEY}:
            warnings.warn(
                f"the part {key!r} of the observation is text and is left out; to use it, wrap the environment with "
                "gymnasium.wrappers.TransformObservation and give it as numbers",
                stacklevel=2,
            )
        return ObsSpec("dict", keys=tuple(used), parts=tuple(obs_spec(part) for part in used.values()))
    if isinstance(space, spaces.Tuple):
        return ObsSpec("tuple", parts=tuple(obs_spec(part) for part in space.spaces))
    raise _unusable(space)


def _unusable(space: GymSpace) -> BadInput:
    return BadInput(
        f"cannot use observation space {space}; expected Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or "
        "Tuple of these; wrap the environment with gymnasium.wrappers.TransformObservation to give one of them"
    )


def _is_text(space: GymSpace) -> bool:
    """Whether a part of a Dict is text; `MissionSpace` is MiniGrid's."""
    return isinstance(space, spaces.Text) or any(each.__name__ == "MissionSpace" for each in type(space).__mro__)


def action_spec(space: GymSpace) -> ActionSpec:
    """Describe an action space.

    >>> action_spec(spaces.Box(-2.0, 2.0, (3,))).entries
    3
    """
    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", sizes=(int(space.n),), starts=_starts(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        dtype = np.dtype(space.dtype).name
        return ActionSpec(
            "multi_discrete", sizes=_ints(space.nvec), starts=_starts(space.start), shape=space.shape, dtype=dtype
        )
    if isinstance(space, spaces.MultiBinary):
        return ActionSpec("multi_binary", shape=space.shape, dtype=np.dtype(space.dtype).name)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return ActionSpec(
            "box",
            shape=space.shape,
            low=tuple(space.low.ravel().tolist()),
            high=tuple(space.high.ravel().tolist()),
            dtype=np.dtype(space.dtype).name,
        )
    raise BadInput(
        f"cannot use action space {space}; expected Discrete, MultiDiscrete, MultiBinary or a Box of floats; "
        "wrap the environment with gymnasium.wrappers.TransformAction to take one of them"
    )


def collate(spec: ObsSpec, observations: Sequence[RawObs]) -> RawObs:
    """Combine single observations, as environments return them, into the batch that `spec.encode` takes.

    >>> collate(ObsSpec("discrete", sizes=(3,)), [2, 0])
    array([2, 0])
    """
    if spec.kind == "dict":
        pairs = zip(spec.keys, spec.parts, strict=True)
        return {key: collate(part, [obs[key] for obs in observations]) for key, part in pairs}
    if spec.kind == "tuple":
        return tuple(collate(part, [obs[i] for obs in observations]) for i, part in enumerate(spec.parts))
    return np.array(observations)


def encode_fresh(spec: ObsSpec, batch: RawObs, num_envs: int) -> Array:
    """Encode a batch of `num_envs` rows into an array that shares no memory with it: vector environments reuse their
    buffers."""
    encoded = spec.encode(batch)
    rows = np.array(encoded) if spec.kind == "box" else encoded  # only for a Box can it be the argument itself
    if len(rows) != num_envs:
        raise BadInput(f"got {plural(len(rows), 'observation')} from {plural(num_envs, 'environment')}")
    return rows


def _channels_last(shape: tuple[int, ...], dtype: str) -> bool:
    """uint8 images (height, width, channels): the last axis is the smallest."""
    return dtype == "uint8" and len(shape) == 3 and shape[2] < min(shape[:2])


def _ints(values: Array) -> tuple[int, ...]:
    return tuple(int(value) for value in np.ravel(values))


def _starts(start: ArrayLike) -> tuple[int, ...]:
    starts = _ints(np.asarray(start))
    return starts if any(starts) else ()
