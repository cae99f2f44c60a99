"""Gymnasium's spaces as specs that are saved with an agent; action masks; aliases of Gymnasium's types.

A mask is in `info["action_mask"]` (Gymnasium's convention), a method `action_masks()` (SB3-contrib's), or the key
`action_mask` of a Dict observation.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
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


def collate(spec: ObsSpec, observations: Sequence[Any]) -> RawObs:
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


Reader = Callable[[object, Info], object]  # (observation, info) → a mask, or None


def mask_reader(env: GymEnv) -> Reader:
    """Return a function that reads an environment's mask. A method `action_masks` takes precedence."""
    if env.has_wrapper_attr("action_masks"):
        method = env.get_wrapper_attr("action_masks")
        return lambda obs, info: method()
    return read_mask


def flat_mask(mask: RawObs) -> Array:
    """Return one environment's mask as a vector. With several entries it may be a list of parts of any length."""
    parts = mask if isinstance(mask, tuple | list) else [mask]
    return np.concatenate([np.asarray(part).ravel() for part in parts]).astype(bool)


def masks_in_infos(infos: Info, num_envs: int) -> list[object]:
    """Return the masks in a vector environment's infos, one per environment; None: it has none."""
    masks, given = infos.get(MASK_KEY), infos.get(f"_{MASK_KEY}", np.ones(num_envs, bool))
    return [None] * num_envs if masks is None else [m if g else None for m, g in zip(masks, given, strict=True)]


def read_mask(obs: object, info: Info) -> object:
    """Return the mask in an info or a Dict observation, of one environment or a vector of them; None: none there."""
    mask = info.get(MASK_KEY)
    return obs.get(MASK_KEY) if mask is None and isinstance(obs, Mapping) else mask


def stack_masks(masks: Sequence[object], spec: ActionSpec) -> Array | None:
    """Stack one mask per environment to `[N, choices]` bool; None if there are none."""
    if all(mask is None for mask in masks):
        return None
    missing = [number for number, mask in enumerate(masks) if mask is None]
    if missing:
        raise ValueError(f"environment {missing[0]} gives no action mask, others do")
    if not spec.num_choices:
        raise ValueError("it gives an action mask, but its actions are a Box, which has no choices to mask")
    flat = np.array([flat_mask(mask) for mask in masks])
    if flat.shape[1] != spec.num_choices:
        raise ValueError(f"its action mask has {flat.shape[1]} entries; expected {spec.num_choices}, one per choice")
    return flat


def _has_legal(mask: Array, sizes: tuple[int, ...]) -> Array:
    """Whether each entry of an action has a legal choice: [N, entries]."""
    return np.logical_or.reduceat(mask, np.cumsum([0, *sizes[:-1]]), axis=1)


def check_legal(mask: Array, spec: ActionSpec) -> None:
    """Raise unless every environment has a legal action, in every entry of the action."""
    stuck = np.flatnonzero(~_has_legal(mask, spec.sizes or (2,) * spec.entries).all(axis=1))
    if len(stuck):
        raise ValueError(f"its action mask leaves environment {stuck[0]} no legal action")


def of_successors(mask: Array, spec: ActionSpec) -> Array:
    """Return masks of true successors: where an episode ended with no legal action, all actions count as legal."""
    sizes = spec.sizes or (2,) * spec.entries
    return mask | ~np.repeat(_has_legal(mask, sizes), sizes, axis=1)
