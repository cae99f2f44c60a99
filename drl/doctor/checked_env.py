"""Environment wrapper that checks every result against Gymnasium's contract.

Observations are checked against their space (shape, dtype, finite numbers, bounds), action masks for length, dtype and
at least one legal action.
"""

import hashlib
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from drl.core.errors import shown
from drl.core.specs import NUMBERS, ActionSpec, Array, RawObs
from drl.doctor.findings import PROBLEM, Finding
from drl.envs.faults import reason
from drl.envs.spaces import GymEnv, GymSpace, Info, action_spec, check_legal, mask_reader, stack_masks

REMEMBERED = 3  # returned observations that are checked again for changes
MOST_NUMBERS = 2000  # largest observation whose numbers are examined one by one
SLACK = 1e-6  # relative tolerance at bounds, for rounding
WIDEN = "clip it, or set `observation_space` to its actual bounds"
EVERYWHERE = "return a mask from every reset and step, or from none"


class Broken(Exception):
    """The environment cannot be played any further."""


@dataclass
class Complaints:
    """Faults by name: the first of each kind, and how often it was seen."""

    first: dict[str, tuple[str, str]] = field(default_factory=dict)  # name → (evidence, advice)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, seen: str, change: str) -> None:
        self.first.setdefault(name, (seen, change))
        self.counts[name] = self.counts.get(name, 0) + 1

    def findings(self) -> list[Finding]:
        """Return one finding for each kind, with its count."""
        often = {name: f" (and {count - 1:,} more times)" if count > 1 else "" for name, count in self.counts.items()}
        return [Finding(name, PROBLEM, seen + often[name], change) for name, (seen, change) in self.first.items()]


class StepOutcome(NamedTuple):
    """Result of one step, to compare with another one."""

    obs: bytes  # a digest
    reward: float
    terminated: bool
    truncated: bool

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated


class CheckedEnv:
    """Checked resets and steps. Faults go to `complaints`; `Broken` is raised if the environment cannot continue."""

    def __init__(self, env: GymEnv, complaints: Complaints, about: str = ""):
        self.env: GymEnv = env  # `about`: how it is played
        self.complaints: Complaints = complaints
        self.about: str = about
        self.obs: RawObs = None
        self.mask: RawObs = None
        self.masked: bool | None = None  # whether it provides action masks; None: it was never reset
        self.reset_seconds: list[float] = []
        self.step_seconds: list[float] = []
        self._read_mask, self._spec = mask_reader(env), action_spec(env.action_space)
        self._returned: deque[tuple[RawObs, bytes]] = deque(maxlen=REMEMBERED)  # with digests

    def reset(self, seed: int) -> bytes:
        """Start an episode and return the digest of its first observation."""
        where, started = f"reset {len(self.reset_seconds) + 1:,}{self.about}", time.perf_counter()
        try:
            answer = self.env.reset(seed=seed)
        except BaseException as error:
            if not isinstance(error, TypeError) or "seed" not in str(error):
                raise self._raised(where, error) from error
            change = "write `def reset(self, *, seed=None, options=None)` and begin with `super().reset(seed=seed)`"
            raise self._fatal("reset-takes-no-seed", f"{where} raised {reason(error)}", change) from error
        self.reset_seconds.append(time.perf_counter() - started)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise self._fatal("reset-result", f"{where} returned {shown(answer)}", "return a pair: `return obs, {}`")
        self.obs, info = answer
        self._check_returned(where, range(len(self._returned)))
        self._check_info(info, where)
        first = self._look(where)
        self._take_mask(info, where, ended=False)
        return first

    def step(self, action: object) -> StepOutcome:
        """Take a step and check its results."""
        before, where = digest_of(action), f"step {len(self.step_seconds) + 1:,}{self.about}"
        started = time.perf_counter()
        try:
            answer = self.env.step(action)
        except BaseException as error:
            raise self._raised(where, error) from error
        self.step_seconds.append(time.perf_counter() - started)
        if not isinstance(answer, tuple) or len(answer) != 5:
            count = f"{len(answer)} values" if isinstance(answer, tuple) else shown(answer)
            change = "return `obs, reward, terminated, truncated, info`; four values are the interface of the old Gym"
            raise self._fatal("step-result", f"{where} returned {count}; expected 5", change)
        self.obs, reward, terminated, truncated, info = answer
        self._check_returned(where, {0, len(self._returned) - 1})  # the oldest reveals alternating buffers
        if digest_of(action) != before:
            seen = f"{where} changed its action argument"
            self.complaints.add("changed-action", seen, "copy the action first: `action = np.array(action)`")
        self._check_info(info, where)
        flags = [self._flag(*each, where) for each in (("terminated", terminated), ("truncated", truncated))]
        outcome = StepOutcome(self._look(where), self._reward(reward, where), *flags)
        self._take_mask(info, where, outcome.over)
        return outcome

    def _look(self, where: str) -> bytes:
        """Check an observation and return its digest."""
        fatal = False
        for fault in obs_faults(self.env.observation_space, self.obs):
            self.complaints.add(fault.name, f"at {where} {fault.seen}", fault.change)
            fatal |= fault.fatal
        if fatal:
            raise Broken
        digest = digest_of(self.obs)
        self._returned.append((self.obs, digest))
        return digest

    def _check_returned(self, where: str, places: Iterable[int]) -> None:
        """Check observations that were returned before for changes."""
        if any(digest_of(obs) != digest for obs, digest in (self._returned[place] for place in places)):
            seen = f"{where} changed an observation that was returned earlier: the environment reuses its arrays"
            self.complaints.add("reused-buffer", seen, "return a copy: `self._obs.copy()`")

    def _take_mask(self, info: Info, where: str, ended: bool) -> None:
        try:
            self.mask = self._read_mask(self.obs, info)
        except BaseException as error:
            raise self._raised(f"the action mask of {where}", error) from error
        if self.masked is None:
            self.masked = self.mask is not None
        if self.mask is None and self.masked and not ended:
            raise self._fatal("action-mask", f"{where} gave no action mask, but the first reset did", EVERYWHERE)
        if self.mask is not None and not self.masked:
            raise self._fatal("action-mask", f"{where} gave an action mask, but the first reset did not", EVERYWHERE)
        if self.mask is not None and (fault := mask_fault(self.mask, self._spec, ended)) is not None:
            raise self._fatal("action-mask", f"the action mask of {where} {fault[0]}", fault[1])

    def _reward(self, reward: object, where: str) -> float:
        array = np.asarray(reward)
        if array.shape or array.dtype.kind not in NUMBERS:
            seen = f"the reward of {where} is {shown(reward)} ({type(reward).__name__})"
            raise self._fatal("reward-type", seen, "return one number: `float(reward)`")
        number = float(array)
        if not np.isfinite(number):
            change = "find the division, logarithm or overflow behind it; training ends there, with exit code 6"
            self.complaints.add("nan-reward", f"the reward of {where} is {number}", change)
        return number

    def _flag(self, name: str, flag: object, where: str) -> bool:
        if isinstance(flag, bool | np.bool_):
            return bool(flag)
        seen, change = f"{name} is {shown(flag)} ({type(flag).__name__}) at {where}", "return True or False"
        if not isinstance(flag, int | float):
            raise self._fatal("flag-type", seen, change)
        self.complaints.add("flag-type", seen, f"{change}: `bool({name})`")
        return bool(flag)

    def _check_info(self, info: object, where: str) -> None:
        if not isinstance(info, Mapping):
            change = "return a dict, `{}` if there is no information"
            raise self._fatal("info-type", f"the info of {where} is {shown(info)}", change)

    def _raised(self, where: str, error: BaseException) -> Broken:
        change = "repeat it in Python with `env.reset(seed=…)` and the same actions, and read the traceback"
        return self._fatal("raises", f"{where} raised {reason(error)}", change)

    def _fatal(self, name: str, seen: str, change: str) -> Broken:
        self.complaints.add(name, seen, change)
        return Broken()


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
        parts = parts_of(space)
        values = obs if isinstance(obs, Mapping) else dict(enumerate(obs)) if isinstance(obs, tuple) else {}
        if missing := [repr(key) for key in parts if key not in values]:
            seen = f"{path} is {shown(obs)}, without {', '.join(missing)}"
            yield ObsFault("observation-shape", seen, f"return the parts that {space} names", fatal=True)
            return
        for key, part in parts.items():
            yield from obs_faults(part, values[key], f"{path}[{key!r}]")
    elif isinstance(space, spaces.Box):
        yield from _box_faults(space, obs, path)
    elif not isinstance(space, spaces.Text) and not space.contains(obs):
        if isinstance(obs, float | np.floating) or np.asarray(obs).dtype.kind not in NUMBERS:
            yield _dtype(path, obs, space)
        elif np.asarray(obs).shape != (space.shape or ()):
            yield _shape(path, obs, space)
        else:
            yield ObsFault("outside-space", f"{path} is {shown(obs)}, outside {space}", WIDEN)


def parts_of(space: spaces.Dict | spaces.Tuple) -> dict[str | int, GymSpace]:
    """Return the parts of a Dict or Tuple space by key or place."""
    if isinstance(space, spaces.Dict):
        return {key: part for key, part in space.spaces.items()}  # noqa: C416 (keys of either type)
    return dict(enumerate(space.spaces))


def _box_faults(space: spaces.Box, obs: RawObs, path: str) -> Iterator[ObsFault]:
    try:
        array = np.asarray(obs)
    except ValueError:
        array = np.array(None)
    if array.dtype.kind not in NUMBERS:
        yield _dtype(path, obs, space, fatal=True)
        return
    if array.shape != space.shape:
        yield _shape(path, obs, space, fatal=True)
        return
    if not isinstance(obs, np.ndarray | np.generic) or not np.can_cast(array.dtype, np.dtype(space.dtype)):
        yield _dtype(path, obs, space)
    if not np.isfinite(array).all():
        first = int(np.flatnonzero(~np.isfinite(array))[0])
        change = "find the division, logarithm or overflow behind it; networks need finite numbers"
        yield ObsFault("nan-observation", f"{path} has {array.ravel()[first]} in entry {first}", change)
        return
    slack = SLACK * np.maximum(1.0, np.abs(array.astype(float)))
    outside = (array < space.low - slack) | (array > space.high + slack)
    if outside.any():
        first = int(np.flatnonzero(outside)[0])
        number, low, high = (each.ravel()[first] for each in (array, space.low, space.high))
        seen = f"{path} has {number:.6g} in entry {first}; its space says {low:.6g} to {high:.6g}"
        yield ObsFault("outside-space", seen, WIDEN)


def _dtype(path: str, obs: RawObs, space: GymSpace, fatal: bool = False) -> ObsFault:
    kind = obs.dtype if isinstance(obs, np.ndarray | np.generic) else type(obs).__name__
    change = f"return the dtype of the space, `np.asarray(obs, np.{space.dtype})`, or change `observation_space`"
    return ObsFault("observation-dtype", f"{path} is of {kind}; its space says {space.dtype}", change, fatal)


def _shape(path: str, obs: RawObs, space: GymSpace, fatal: bool = False) -> ObsFault:
    seen = f"{path} has the shape {np.asarray(obs).shape}; its space says {space.shape}"
    return ObsFault("observation-shape", seen, "return that shape, or change `observation_space`", fatal)


def mask_fault(mask: RawObs, spec: ActionSpec, ended: bool = False) -> tuple[str, str] | None:
    """Return a mask's fault and what to change; None if there is none. After an episode's end no action needs to be
    legal.

    >>> spec = ActionSpec("discrete", (3,))
    >>> mask_fault([1, 0, 1], spec)
    >>> mask_fault([1, 0], spec)[0]
    'has 2 entries; expected 3, one per choice'
    >>> mask_fault([0, 0, 0], spec)[0]
    'leaves no legal action'
    """
    change = f"return {spec.num_choices} numbers of 0 or 1, one per choice, as np.int8"
    parts = mask if isinstance(mask, tuple | list) else [mask]
    try:
        flat = np.concatenate([np.asarray(part).ravel() for part in parts])
    except ValueError:  # an empty list, or parts that are not arrays
        return f"is {shown(mask)}", change
    if flat.dtype.kind not in NUMBERS or not np.isin(flat, (0, 1)).all():
        return f"is {shown(mask)}, of {flat.dtype}", change
    try:
        stacked = stack_masks([mask], spec)
    except ValueError as error:
        return str(error).removeprefix("its action mask "), change if spec.num_choices else "leave the mask out"
    try:
        if stacked is not None and not ended:
            check_legal(stacked, spec)
    except ValueError:
        return "leaves no legal action", "allow at least one action, or end the episode earlier with terminated=True"
    return None


def _boxes(space: GymSpace, *path: str | int) -> Iterator[tuple[tuple[str | int, ...], spaces.Box]]:
    """Yield the small Boxes of a space with their paths, without images."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in parts_of(space).items():
            yield from _boxes(part, *path, key)
    elif isinstance(space, spaces.Box) and space.dtype != np.uint8 and np.prod(space.shape) <= MOST_NUMBERS:
        yield path, space


def box_columns(space: GymSpace) -> list[tuple[str, float, float]]:
    """Return name and bounds of every number in the Boxes of a space, without images; empty if there are too many.

    >>> box_columns(spaces.Dict(speed=spaces.Box(-1, 1, (2,))))
    [('speed[0]', -1.0, 1.0), ('speed[1]', -1.0, 1.0)]
    """
    columns: list[tuple[str, float, float]] = []
    for path, box in _boxes(space):
        bounds = zip(box.low.ravel().tolist(), box.high.ravel().tolist(), strict=True)
        columns += [(f"{'.'.join(map(str, path))}[{i}]", low, high) for i, (low, high) in enumerate(bounds)]
    return columns if len(columns) <= MOST_NUMBERS else []


def box_row(space: GymSpace, obs: Any) -> Array:
    """Return the numbers named by `box_columns`."""
    rows = [np.asarray(reduce(getitem, path, obs), np.float64).ravel() for path, _ in _boxes(space)]
    row = np.concatenate(rows) if rows else np.zeros(0)
    return row if len(row) <= MOST_NUMBERS else np.zeros(0)


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
