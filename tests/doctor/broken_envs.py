"""Environments that are broken in one way each. `WORLD` is the one that is not: a walk to either end of a line."""

import random
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces

END = 3.0


class Walk(gym.Env):
    """Left or right by about 1; the reward is the way to the right. Ends beyond ±3, or after 50 steps."""

    observation_space = spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.place, self.speed, self.time = 0.0, 0.0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.speed, self.time = float(self.np_random.uniform(-1, 1)), 0.0, 0
        return self.obs(), {}

    def step(self, action):
        self.speed = float(self.push(action) + self.np_random.normal(0, 0.3))
        self.place += self.speed
        self.time += 1
        return self.obs(), self.reward(), self.terminated(), self.time >= 50, {}

    def push(self, action):
        return 1.0 if action else -1.0

    def obs(self):
        return np.array([self.place, self.speed], np.float32)

    def reward(self):
        return self.speed

    def terminated(self):
        return abs(self.place) > END


class Push(Walk):
    """The same with a Box action of two entries, which both push."""

    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def push(self, action):
        return float(action[0] + action[1])


class NanObsLater(Walk):
    def obs(self):
        return np.array([self.place, np.nan if self.time == 14 else self.speed], np.float32)


class InfiniteRewardLater(Walk):
    def reward(self):
        return float("inf") if self.time == 14 else self.speed


class RewardArray(Walk):
    def reward(self):
        return np.array([self.speed])


class RewardNone(Walk):
    def reward(self):
        return None


class ReusedBuffer(Walk):
    def __init__(self):
        super().__init__()
        self.buffer = np.zeros(2, np.float32)

    def obs(self):
        self.buffer[:] = self.place, self.speed
        return self.buffer


class DoubleObs(Walk):
    def obs(self):
        return super().obs().astype(np.float64)


class ShapeLater(Walk):
    def obs(self):
        return super().obs() if self.time < 3 else np.zeros((2, 1), np.float32)


class OutsideSpace(Walk):
    observation_space = spaces.Box(-1.5, 1.5, (2,), np.float32)


class Endless(Walk):
    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return np.clip(obs, -10, 10), reward, False, False, info


class Unseeded(Walk):
    def reset(self, *, seed=None, options=None):
        _, info = super().reset(seed=seed)
        self.place = random.uniform(-1, 1)
        return self.obs(), info


class RemembersEpisodes(Walk):
    episodes = 0

    def reset(self, *, seed=None, options=None):
        _, info = super().reset(seed=seed)
        self.episodes += 1
        self.place += 0.001 * self.episodes
        return self.obs(), info


class ResetWithoutEffect(Walk):
    def reset(self, *, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        return self.obs(), {}

    def terminated(self):
        if abs(self.place) > END:
            self.place = float(np.clip(self.place, -2, 2))
            return True
        return False


class InfoNone(Walk):
    def step(self, action):
        return (*super().step(action)[:4], None)


class NumberAsFlag(Walk):
    def terminated(self):
        return float(super().terminated())


class OldGym(Walk):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info


class ResetTakesNoSeed(Walk):
    def reset(self):
        return super().reset()


class BareReset(Walk):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class RaisesLater(Walk):
    total = 0

    def reward(self):
        self.total += 1
        if self.total == 900:
            raise ZeroDivisionError("the wheel came off")
        return self.speed


class Slow(Walk):
    def reward(self):
        time.sleep(0.012)
        return self.speed


class HugeReward(Walk):
    def reward(self):
        return 1e4 * self.speed


class HugeObs(Walk):
    observation_space = spaces.Box(-1e4, 1e4, (2,), np.float32)

    def obs(self):
        return super().obs() * 500


class ConstantObs(Walk):
    def obs(self):
        return np.zeros(2, np.float32)


class EmptyEntry(Walk):
    observation_space = spaces.Box(-10.0, 10.0, (3,), np.float32)

    def obs(self):
        return np.append(super().obs(), np.float32(0))


class IgnoresActions(Walk):
    def push(self, action):
        return 0.0


class IgnoresOneEntry(Push):
    def push(self, action):
        return float(action[0])


class ZeroReward(Walk):
    def reward(self):
        return 0.0

    def terminated(self):
        return False

    def obs(self):
        return np.clip(super().obs(), -10, 10)


class FarBounds(Walk):
    observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)


class UnboundedActions(Push):
    action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class HugeActions(Push):
    action_space = spaces.Box(-1e5, 1e5, (2,), np.float32)

    def push(self, action):
        return super().push(action) / 1e5


class ChangesActions(Push):
    def push(self, action):
        action *= 0.5
        return super().push(action)


class TimeLimitAsTerminated(Walk):
    def obs(self):
        return np.clip(super().obs(), -10, 10)

    def terminated(self):
        return self.time >= 50


class GraphObs(Walk):
    observation_space = spaces.Graph(spaces.Discrete(2), None)


# Environment → the finding that names it.
BROKEN = {
    NanObsLater: "nan-observation",
    InfiniteRewardLater: "nan-reward",
    RewardArray: "reward-type",
    RewardNone: "reward-type",
    ReusedBuffer: "reused-buffer",
    DoubleObs: "observation-dtype",
    ShapeLater: "observation-shape",
    OutsideSpace: "outside-space",
    Endless: "endless-episodes",
    Unseeded: "not-deterministic",
    RemembersEpisodes: "depends-on-earlier-episodes",
    ResetWithoutEffect: "reset-without-effect",
    InfoNone: "info-type",
    NumberAsFlag: "flag-type",
    OldGym: "step-result",
    ResetTakesNoSeed: "reset-takes-no-seed",
    BareReset: "reset-result",
    RaisesLater: "raises",
    ConstantObs: "constant-observation",
    IgnoresActions: "actions-without-effect",
    ChangesActions: "changed-action",
    GraphObs: "unusable-space",
}
# The same for what is legal but hard to learn.
HARD = {
    Slow: "slow-steps",
    HugeReward: "reward-scale",
    HugeObs: "observation-scale",
    EmptyEntry: "constant-entries",
    IgnoresOneEntry: "action-entry-without-effect",
    ZeroReward: "constant-reward",
    FarBounds: "bounds-never-approached",
    UnboundedActions: "unbounded-actions",
    HugeActions: "action-bounds",
    TimeLimitAsTerminated: "time-limit-as-terminated",
}
