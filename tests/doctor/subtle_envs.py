"""Environments whose one fault shows late, rarely, at the bounds of actions, or only beside another instance."""

import os
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.doctor.broken_envs import Push, Walk


class InfiniteAtBound(Push):
    def push(self, action):
        self.margin = float(1.0 - np.abs(action).max())
        return super().push(action)

    def reward(self):
        return self.speed if self.margin > 0 else -np.inf


class RaisesAtBound(Push):
    def push(self, action):
        if (np.abs(action) >= 1.0).any():
            raise ValueError("joint limit")
        return super().push(action)


class RaisesInCorners(Push):
    """Where all entries are at a bound at once."""

    def push(self, action):
        if (np.abs(action) >= 1.0).all():
            raise ValueError("joint limit")
        return super().push(action)


class TakesSmallSeeds(Walk):
    """Training draws large ones."""

    def reset(self, *, seed=None, options=None):
        if seed is not None and seed >= 10_000:
            raise ValueError("the seed is too large")
        return super().reset(seed=seed)


class Masked(Walk):
    """Healthy: both actions are legal."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], self.info()

    def step(self, action):
        return (*super().step(action)[:4], self.info())

    def info(self):
        return {"action_mask": self.mask()}

    def mask(self):
        return np.ones(2, np.int8)


class MaskOfThree(Masked):
    def mask(self):
        return np.ones(3, np.int8)


class TextAsMask(Masked):
    def mask(self):
        return "all"


class HalvesAsMask(Masked):
    def mask(self):
        return [0.5, 0.5]


class NoLegalAction(Masked):
    def mask(self):
        return np.zeros(2, np.int8) if self.time == 5 else np.ones(2, np.int8)


class NoMaskLater(Masked):
    def info(self):
        return {} if self.time == 5 else super().info()


class NoMaskAtFirst(Masked):
    def info(self):
        return super().info() if self.time else {}


class MaskOfBox(Push):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"action_mask": np.ones(2, np.int8)}


class MaskRaises(Walk):
    def action_masks(self):
        return np.ones(2, bool) if self.time < 5 else [][0]


class TwoBuffers(Walk):
    def __init__(self):
        super().__init__()
        self.buffers, self.turn = np.zeros((2, 2), np.float32), 0

    def obs(self):
        self.turn = 1 - self.turn
        self.buffers[self.turn] = self.place, self.speed
        return self.buffers[self.turn]


class ResetOverwritesFinal(Walk):
    last = None

    def obs(self):
        self.last = super().obs()
        return self.last

    def reset(self, *, seed=None, options=None):
        before, (obs, info) = self.last, super().reset(seed=seed)
        if before is not None:
            before[:] = obs
        return obs, info


class SharedState(Walk):
    """Its place is a number of the class."""

    shared = {"place": 0.0}  # noqa: RUF012 (that is the fault)

    @property
    def place(self):
        return self.shared["place"]

    @place.setter
    def place(self, value):
        self.shared["place"] = value


class OneAtATime(Walk):
    """As with a simulator that knows one environment only."""

    owner = None

    def reset(self, *, seed=None, options=None):
        type(self).owner = self
        return super().reset(seed=seed)

    def reward(self):
        if self.owner is not self:
            raise ConnectionError("the simulator belongs to another environment")
        return self.speed


class KeepsWind(Walk):
    """The wind is not seen in the first observation."""

    wind = 0.0

    def push(self, action):
        self.wind = 0.9 * self.wind + 0.1 * super().push(action)
        return super().push(action) + self.wind


class KeepsTotal(Walk):
    total = 0.0

    def reward(self):
        self.total += 0.1 * abs(self.speed)
        return self.speed + self.total % 1.0


class KeepsCounter(Walk):
    """Observations are numbers of states, which no rounding changes."""

    observation_space = spaces.Discrete(40)
    played = 0

    def obs(self):
        return int(np.clip(self.place * 3 + 20 + (self.time > 0) * (self.played % 3), 0, 39))

    def reward(self):
        self.played += self.time == 1
        return self.speed


class SlowSometimes(Walk):
    def reward(self):
        time.sleep(0.04 if self.time % 4 == 3 else 0.0)
        return self.speed


class SlowReset(Walk):
    def reset(self, *, seed=None, options=None):
        time.sleep(0.04)
        return super().reset(seed=seed)

    def terminated(self):
        return self.time >= 4


class OneSeed(Walk):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=7)


class PaysAtTheEnd(Walk):
    """Healthy: what actions earn is paid after 120 steps; no observation depends on them."""

    def step(self, action):
        earned, self.speed = float(self.seen[int(action)]), 0.0
        self.total, self.time = self.total + earned, self.time + 1
        over = self.time >= 120
        return self.obs(), self.total if over else 0.0, False, over, {}

    def reset(self, *, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        self.total, self.time = 0.0, 0
        return self.obs(), {}

    def obs(self):
        self.seen = np.clip(self.np_random.normal(size=2), -10, 10).astype(np.float32)
        return self.seen.copy()


class CountsToSixty(PaysAtTheEnd):
    """Healthy: only 60 of 120 actions of one kind are paid, so that no constant action is."""

    def step(self, action):
        obs, _, terminated, over, info = super().step(action)
        self.count = int(action) + (self.count if self.time > 1 else 0)
        return obs, float(self.count == 60) if over else 0.0, terminated, over, info


class RareLight(PaysAtTheEnd):
    """Healthy: the action matters in 0.5 % of the steps."""

    def step(self, action):
        lit = self.seen[0] > 2.576
        return self.obs(), (1.0 if action else -1.0) * lit, False, bool(self.np_random.random() < 0.01), {}


class LongEpisodes(Walk):
    """Healthy: it ends by itself, after 3000 steps."""

    def obs(self):
        return np.clip(super().obs(), -10, 10)

    def terminated(self):
        return False

    def step(self, action):
        obs, reward, *_ = super().step(action)
        self.place = float(np.clip(self.place, -5, 5))
        return obs, reward, False, self.time >= 3000, {}


class SeedsGlobally(Walk):
    """Healthy, if old: the global random numbers are seeded in reset."""

    def reset(self, *, seed=None, options=None):
        np.random.seed(seed % 2**32)  # noqa: NPY002
        return super().reset(seed=seed)

    def push(self, action):
        return super().push(action) + 0.1 * np.random.normal()  # noqa: NPY002


class Prints(Walk):
    """Healthy, in Python and beside it."""

    def step(self, action):
        print("a step")
        os.write(1, b"another step\n")
        return super().step(action)


# As in broken_envs.py: environment → the finding that names it.
SUBTLE = {
    InfiniteAtBound: "nan-reward",
    RaisesAtBound: "raises",
    RaisesInCorners: "raises",
    TakesSmallSeeds: "raises",
    MaskOfThree: "action-mask",
    TextAsMask: "action-mask",
    HalvesAsMask: "action-mask",
    NoLegalAction: "action-mask",
    NoMaskLater: "action-mask",
    NoMaskAtFirst: "action-mask",
    MaskOfBox: "action-mask",
    MaskRaises: "raises",
    TwoBuffers: "reused-buffer",
    ResetOverwritesFinal: "reused-buffer",
    SharedState: "shared-state",
    OneAtATime: "raises",
    KeepsWind: "depends-on-earlier-episodes",
    KeepsTotal: "depends-on-earlier-episodes",
    KeepsCounter: "depends-on-earlier-episodes",
}
SUBTLY_HARD = {SlowSometimes: "slow-steps", OneSeed: "seed-without-effect"}
HARMLESS = [Masked, PaysAtTheEnd, CountsToSixty, RareLight, LongEpisodes, SeedsGlobally]
