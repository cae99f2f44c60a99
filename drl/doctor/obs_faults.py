"""Checks of observations against their space (shape, dtype, finite numbers, bounds); observations as digests."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from drl.core.errors import shown
from drl.core.specs import NUMBERS, Array, RawObs
from drl.envs.spaces import GymSpace

MOST_NUMBERS = 2000  # largest observation whose numbers are examined one by one
SLACK = 1e-6  # relative tolerance at bounds, for rounding


class ObsFault(NamedTuple):
    """A fault of one observation."""

    name: str
    seen: str
    change: str
    fatal: bool = False  # the numbers cannot be read


def obs_faults(space: GymSpace, obs: RawObs, path: str = "the observation") -> Iterator[ObsFault]:
    """Yield every violation of the space by an observation.

    >>> [fault.name for fault in obs_faults(spaces.Box(-1, 1, (2,)), np.array([0.0, 3.0]))]
    ['observation-dtype', 'outside-space']
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        yield from _part_faults(space, obs, path)
    elif isinstance(space, spaces.Box):
        yield from _box_faults(space, obs, path)
    elif not isinstance(space, spaces.Text) and not space.contains(obs):
        if isinstance(obs, float | np.floating) or np.asarray(obs).dtype.kind not in NUMBERS:
            yield _dtype(path, obs, space)
        elif np.shape(obs) != (space.shape or ()):
            yield _shape(path, obs, space)
        else:
            yield ObsFault("outside-space", f"{path} is {shown(obs)}, outside {space}", WIDEN)


WIDEN = "clip it, or set `observation_space` to its actual bounds"


def _part_faults(space: spaces.Dict | spaces.Tuple, obs: RawObs, path: str) -> Iterator[ObsFault]:
    parts = _parts(space)
    given = obs if isinstance(obs, Mapping) else dict(enumerate(obs)) if isinstance(obs, tuple) else {}
    if missing := [key for key in parts if key not in given]:
        seen = f"{path} is {shown(obs)}, without {', '.join(map(repr, missing))}"
        yield ObsFault("observation-shape", seen, f"return the parts that {space} names", fatal=True)
        return
    for key, part in parts.items():
        yield from obs_faults(part, given[key], f"{path}[{key!r}]")


def _parts(space: spaces.Dict | spaces.Tuple) -> dict[str | int, GymSpace]:
    if isinstance(space, spaces.Dict):
        return {key: part for key, part in space.spaces.items()}  # noqa: C416 (keys of either type)
    return dict(enumerate(space.spaces))


def _box_faults(space: spaces.Box, obs: RawObs, path: str) -> Iterator[ObsFault]:
    try:
        array = np.asarray(obs)
    except ValueError:
        array = np.array(None)
    if array.dtype.kind not in NUMBERS:
        yield _dtype(path, obs, space)._replace(fatal=True)
        return
    if array.shape != space.shape:
        yield _shape(path, obs, space)._replace(fatal=True)
        return
    if not isinstance(obs, np.ndarray | np.generic) or not np.can_cast(array.dtype, np.dtype(space.dtype)):
        yield _dtype(path, obs, space)
    if not np.isfinite(array).all():
        first = int(np.flatnonzero(~np.isfinite(array.ravel()))[0])
        change = "find the division, logarithm or overflow behind it; networks need finite numbers"
        yield ObsFault("nan-observation", f"{path} has {array.ravel()[first]} in entry {first}", change)
        return
    slack = SLACK * np.maximum(1.0, np.abs(array.astype(float)))
    outside = ((array < space.low - slack) | (array > space.high + slack)).ravel()
    if outside.any():
        first = int(np.flatnonzero(outside)[0])
        low, high = space.low.ravel()[first], space.high.ravel()[first]
        seen = f"{path} has {array.ravel()[first]:.6g} in entry {first}; its space says {low:.6g} to {high:.6g}"
        yield ObsFault("outside-space", seen, WIDEN)


def _dtype(path: str, obs: RawObs, space: GymSpace) -> ObsFault:
    kind = obs.dtype if isinstance(obs, np.ndarray | np.generic) else type(obs).__name__
    change = f"return the dtype of the space, `np.asarray(obs, np.{space.dtype})`, or change `observation_space`"
    return ObsFault("observation-dtype", f"{path} is of {kind}; its space says {space.dtype}", change)


def _shape(path: str, obs: RawObs, space: GymSpace) -> ObsFault:
    change = "return that shape, or change `observation_space`"
    return ObsFault("observation-shape", f"{path} has the shape {np.shape(obs)}; its space says {space.shape}", change)


def box_columns(space: GymSpace, path: str = "") -> list[tuple[str, float, float]]:
    """Return name and bounds of every number in the Boxes of a space, without images; empty if there are too many.

    >>> box_columns(spaces.Dict(speed=spaces.Box(-1, 1, (2,))))
    [('speed[0]', -1.0, 1.0), ('speed[1]', -1.0, 1.0)]
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        found = [each for key, part in _parts(space).items() for each in box_columns(part, f"{path}.{key}".lstrip("."))]
    elif isinstance(space, spaces.Box) and space.dtype != np.uint8 and np.prod(space.shape) <= MOST_NUMBERS:
        bounds = zip(space.low.ravel().tolist(), space.high.ravel().tolist(), strict=True)
        found = [(f"{path}[{i}]", low, high) for i, (low, high) in enumerate(bounds)]
    else:
        found = []
    return found if len(found) <= MOST_NUMBERS else []


def box_row(space: GymSpace, obs: RawObs) -> Array:
    """Return the numbers named by `box_columns`."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        rows = [box_row(part, obs[key]) for key, part in _parts(space).items()]
        row = np.concatenate(rows) if rows else np.zeros(0)
        return row if len(row) <= MOST_NUMBERS else np.zeros(0)
    if isinstance(space, spaces.Box) and space.dtype != np.uint8 and np.prod(space.shape) <= MOST_NUMBERS:
        return np.asarray(obs, np.float64).ravel()
    return np.zeros(0)


def digest_of(value: RawObs) -> bytes:
    """Return a digest that is equal for equal observations or actions."""
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest, value)
    return digest.digest()


def _feed(digest: "hashlib.blake2b", value: RawObs) -> None:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            digest.update(str(key).encode())
            _feed(digest, value[key])
    elif isinstance(value, tuple | list):
        for each in value:
            _feed(digest, each)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(np.ascontiguousarray(value).tobytes())
    else:
        digest.update(repr(value).encode())
