"""Environment wrapper that checks every result against Gymnasium's contract."""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from drl.core.errors import shown
from drl.core.specs import NUMBERS, RawObs
from drl.doctor.complaints import Broken, Complaints
from drl.doctor.mask_faults import EVERYWHERE, mask_fault
from drl.doctor.obs_faults import digest_of, obs_faults
from drl.envs.faults import reason
from drl.envs.spaces import GymEnv, Info, action_spec, mask_reader

KEPT = 3  # returned observations that are checked again for changes


class Outcome(NamedTuple):
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
        self._kept: deque[tuple[RawObs, bytes]] = deque(maxlen=KEPT)  # the last observations and their digests

    def reset(self, seed: int) -> bytes:
        """Start an episode and return the digest of its first observation."""
        where, started = f"reset {len(self.reset_seconds) + 1:,}{self.about}", time.perf_counter()
        try:
            answer = self.env.reset(seed=seed)
        except BaseException as error:
            if isinstance(error, TypeError) and "seed" in str(error):
                change = "write `def reset(self, *, seed=None, options=None)` and begin with `super().reset(seed=seed)`"
                raise self._fatal("reset-takes-no-seed", f"{where} raised {reason(error)}", change) from error
            raise self._raised(where, error) from error
        self.reset_seconds.append(time.perf_counter() - started)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise self._fatal("reset-result", f"{where} returned {shown(answer)}", "return a pair: `return obs, {}`")
        self.obs, info = answer
        self._check_kept(where, range(len(self._kept)))
        self._check_info(info, where)
        first = self._look(where)
        self._take_mask(info, where, ended=False)
        return first

    def step(self, action: object) -> Outcome:
        """Take a step and check its results."""
        given, where = digest_of(action), f"step {len(self.step_seconds) + 1:,}{self.about}"
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
        self._check_kept(where, {0, len(self._kept) - 1})  # the oldest reveals alternating buffers
        if digest_of(action) != given:
            seen = f"{where} changed its action argument"
            self.complaints.add("changed-action", seen, "copy the action first: `action = np.array(action)`")
        self._check_info(info, where)
        flags = [self._flag(*each, where) for each in (("terminated", terminated), ("truncated", truncated))]
        outcome = Outcome(self._look(where), self._reward(reward, where), *flags)
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
        self._kept.append((self.obs, digest))
        return digest

    def _check_kept(self, where: str, places: Iterable[int]) -> None:
        """Check observations that were returned before for changes."""
        if any(digest_of(obs) != digest for obs, digest in (self._kept[place] for place in places)):
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
