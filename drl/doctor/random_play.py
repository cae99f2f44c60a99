"""Play an environment with random actions, write down what it does, and check it against Gymnasium's contract."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from drl.core.errors import shown
from drl.core.specs import NUMBERS, Array, RawObs
from drl.doctor.findings import PROBLEM, Finding
from drl.doctor.obs_faults import box_row, digest_of, obs_faults
from drl.envs.action_masks import flat_mask, mask_reader
from drl.envs.faults import reason
from drl.envs.spaces import GymEnv


class Broken(Exception):
    """The environment cannot be played any further."""


class Outcome(NamedTuple):
    """What one step did, to compare with another one."""

    obs: bytes  # a digest
    reward: float
    terminated: bool
    truncated: bool


@dataclass
class Complaints:
    """Faults by name: the first of each kind, and how often it was seen."""

    first: dict[str, tuple[str, str]] = field(default_factory=dict)  # name → (what was seen, what to change)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, seen: str, change: str) -> None:
        self.first.setdefault(name, (seen, change))
        self.counts[name] = self.counts.get(name, 0) + 1

    def findings(self) -> list[Finding]:
        """One finding for each kind, with how often it was seen."""
        often = {name: f" (and {count - 1:,} more times)" if count > 1 else "" for name, count in self.counts.items()}
        return [Finding(name, PROBLEM, seen + often[name], change) for name, (seen, change) in self.first.items()]


@dataclass
class Trace:
    """What was seen in random play."""

    outcomes: list[Outcome] = field(default_factory=list)  # of every step
    firsts: list[bytes] = field(default_factory=list)  # digests of the first observations of episodes
    rows: list[Array] = field(default_factory=list)  # numbers of Boxes in every observation, see `box_row`
    lengths: list[int] = field(default_factory=list)  # of finished episodes
    returns: list[float] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of every step

    @property
    def rewards(self) -> Array:
        """Of all steps."""
        return np.array([outcome.reward for outcome in self.outcomes])


class RandomPlay:
    """Random steps over several episodes, each begun with its own seed. Ends early where the environment breaks."""

    def __init__(self, env: GymEnv, complaints: Complaints):
        self.env, self.complaints, self.trace = env, complaints, Trace()
        self.read_mask = mask_reader(env)
        self.obs: RawObs = None
        self.mask: object = None

    def play(self, steps: int, seed: int) -> Trace:
        """Take up to `steps` steps; the first episode begins with `seed`."""
        trace, length, total = self.trace, 0, 0.0
        self.env.action_space.seed(seed)
        try:
            self._reset(seed)
            while len(trace.outcomes) < steps:
                outcome = self._step(self._action())
                length, total = length + 1, total + outcome.reward
                if outcome.terminated or outcome.truncated:
                    trace.lengths.append(length)
                    trace.returns.append(total)
                    trace.terminated.append(outcome.terminated)
                    self._reset(seed + len(trace.lengths))
                    length, total = 0, 0.0
        except Broken:
            pass
        return trace

    def _action(self) -> object:
        """A random legal one."""
        space = self.env.action_space
        if self.mask is None or not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            return space.sample()
        flat = flat_mask(self.mask).astype(np.int8)
        if isinstance(space, spaces.Discrete):
            return space.sample(mask=flat)
        return space.sample(mask=tuple(np.split(flat, np.cumsum(space.nvec.ravel())[:-1])))

    def _reset(self, seed: int) -> None:
        where = f"reset {len(self.trace.firsts) + 1:,}"
        try:
            answer = self.env.reset(seed=seed)
        except BaseException as error:
            if isinstance(error, TypeError) and "seed" in str(error):
                change = "write `def reset(self, *, seed=None, options=None)` and begin with `super().reset(seed=seed)`"
                raise self._fatal("reset-takes-no-seed", f"{where} raised {reason(error)}", change) from error
            raise self._raised(where, error) from error
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise self._fatal("reset-result", f"{where} returned {shown(answer)}", "return a pair: `return obs, {}`")
        self.obs, info = answer
        self._check_info(info, where)
        self.trace.firsts.append(self._look(where))
        self.mask = self.read_mask(self.obs, info)

    def _step(self, action: object) -> Outcome:
        before, seen_before, given = self.obs, digest_of(self.obs), digest_of(action)
        where, started = f"step {len(self.trace.outcomes) + 1:,}", time.perf_counter()
        try:
            answer = self.env.step(action)
        except BaseException as error:
            raise self._raised(where, error) from error
        self.trace.seconds.append(time.perf_counter() - started)
        if not isinstance(answer, tuple) or len(answer) != 5:
            count = f"{len(answer)} values" if isinstance(answer, tuple) else shown(answer)
            change = "return `obs, reward, terminated, truncated, info`; four values are the interface of the old Gym"
            raise self._fatal("step-result", f"{where} returned {count}; expected 5", change)
        self.obs, reward, terminated, truncated, info = answer
        if digest_of(before) != seen_before:
            seen = f"{where} changed the observation that was returned before it: the environment reuses its array"
            self.complaints.add("reused-buffer", seen, "return a copy: `self._obs.copy()`")
        if digest_of(action) != given:
            seen = f"{where} changed the action array that it was given"
            self.complaints.add("changed-action", seen, "copy the action first: `action = np.array(action)`")
        self._check_info(info, where)
        flags = [self._flag(*each, where) for each in (("terminated", terminated), ("truncated", truncated))]
        outcome = Outcome(self._look(where), self._reward(reward, where), *flags)
        self.trace.outcomes.append(outcome)
        self.mask = self.read_mask(self.obs, info)
        return outcome

    def _look(self, where: str) -> bytes:
        """Check an observation and keep its numbers; returns its digest."""
        space, fatal = self.env.observation_space, False
        for fault in obs_faults(space, self.obs):
            self.complaints.add(fault.name, f"at {where} {fault.seen}", fault.change)
            fatal |= fault.fatal
        if fatal:
            raise Broken
        self.trace.rows.append(box_row(space, self.obs))
        return digest_of(self.obs)

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
            change = "return a dict: `{}` if there is nothing to say"
            raise self._fatal("info-type", f"the info of {where} is {shown(info)}", change)

    def _raised(self, where: str, error: BaseException) -> Broken:
        change = "play the same again in Python: `env.reset(seed=…)`, then random actions, and read the traceback"
        return self._fatal("raises", f"{where} raised {reason(error)}", change)

    def _fatal(self, name: str, seen: str, change: str) -> Broken:
        self.complaints.add(name, seen, change)
        return Broken()
