"""Play an environment with random actions and record the results."""

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from drl.core.specs import Array
from drl.doctor.checked_env import CheckedEnv, Outcome
from drl.doctor.complaints import Broken, Complaints
from drl.doctor.obs_faults import box_row
from drl.envs.spaces import GymEnv, flat_mask


@dataclass
class Trace:
    """Record of random play."""

    step_seconds: list[float]  # of every step
    reset_seconds: list[float]  # of every reset
    outcomes: list[Outcome] = field(default_factory=list)  # of every step
    firsts: list[bytes] = field(default_factory=list)  # digests of the first observations of episodes
    rows: list[Array] = field(default_factory=list)  # numbers of Boxes in every observation, see `box_row`
    lengths: list[int] = field(default_factory=list)  # of finished episodes
    returns: list[float] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)
    running: int = 0  # steps of the episode that has not ended

    @property
    def rewards(self) -> Array:
        """Rewards of all steps."""
        return np.array([outcome.reward for outcome in self.outcomes])

    @property
    def seconds(self) -> tuple[float, float]:
        """Mean seconds of a step, and of the resets per step. The first step and reset may load something and do not
        count."""
        steps, resets = self.step_seconds[1:] or self.step_seconds, self.reset_seconds[1:]
        count = max(len(steps), 1)
        return (sum(steps) + sum(resets)) / count, sum(resets) / count


class RandomPlay:
    """Random steps over several episodes, each with its own seed. Ends early if the environment breaks."""

    def __init__(self, env: GymEnv, complaints: Complaints):
        self.checked: CheckedEnv = CheckedEnv(env, complaints)
        self.trace: Trace = Trace(self.checked.step_seconds, self.checked.reset_seconds)
        self.space: spaces.Space[Any] = copy.deepcopy(env.action_space)  # instances may share one space
        self._return = 0.0  # of the running episode

    def play(self, steps: int, seed: int) -> Trace:
        """Take up to `steps` steps; the first episode starts with `seed`."""
        for _ in self.walk(steps, seed):
            pass
        return self.trace

    def walk(self, steps: int, seed: int) -> Iterator[None]:
        """Like `play`, as a generator of single steps."""
        trace = self.trace
        self.space.seed(seed)
        try:
            self._reset(seed)
            while len(trace.outcomes) < steps:
                outcome = self._step()
                trace.outcomes.append(outcome)
                trace.rows.append(box_row(self.checked.env.observation_space, self.checked.obs))
                if outcome.over:
                    self._reset(seed + len(trace.lengths))
                yield
        except Broken:
            pass

    def go_on(self, longest: int, seconds: float) -> None:
        """Continue the current episode to its end, for up to `longest` steps or `seconds`. Only its end is recorded."""
        until = time.monotonic() + seconds
        try:
            while self.trace.running < longest and time.monotonic() < until and not self._step().over:
                pass
        except Broken:
            pass

    def _reset(self, seed: int) -> None:
        self.trace.firsts.append(self.checked.reset(seed))
        self.trace.rows.append(box_row(self.checked.env.observation_space, self.checked.obs))

    def _step(self) -> Outcome:
        trace, outcome = self.trace, self.checked.step(self._action())
        trace.running, self._return = trace.running + 1, self._return + outcome.reward
        if outcome.over:
            trace.lengths.append(trace.running)
            trace.returns.append(self._return)
            trace.terminated.append(outcome.terminated)
            trace.running, self._return = 0, 0.0
        return outcome

    def _action(self) -> object:
        """Sample a random legal action."""
        space, mask = self.space, self.checked.mask
        if mask is None:
            return space.sample()
        flat = flat_mask(mask).astype(np.int8)
        if isinstance(space, spaces.Discrete):
            return space.sample(mask=flat)
        if isinstance(space, spaces.MultiDiscrete):
            return space.sample(mask=tuple(np.split(flat, np.cumsum(space.nvec.ravel())[:-1])))
        action = space.sample()  # of a MultiBinary: the mask has two entries for each
        legal = np.take_along_axis(flat.reshape(-1, 2), action.reshape(-1, 1), axis=1).reshape(action.shape)
        return np.where(legal, action, 1 - action).astype(action.dtype)
