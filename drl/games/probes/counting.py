"""An environment whose observation says where it is, so that a row that bridges a reset gives itself away.

Observation: (episode index, step in the episode, last action). Reward: 100·episode + step after the move.
An episode lasts 1 + (2·episode + its first action) mod 5 steps. It ends terminated, truncated, or with both flags
set, in turn (episode index mod 3). Every third episode reports `is_success` itself, and says False.
Nothing is random and seeds are ignored: all engines must give the same rows to the same actions.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from drl.core.specs import Array

ACTIONS = 4


def _observation_space() -> spaces.Box:
    return spaces.Box(-1.0, np.inf, (3,), np.float32)


class CountingEnv(gym.Env[Any, Any]):
    """The counting environment in Gymnasium's single form. It reuses its observation buffer on purpose."""

    metadata = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own convention)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = _observation_space()
        self.action_space = spaces.Discrete(ACTIONS)
        self._obs = np.zeros(3, np.float32)
        self._episode = -1
        self._length = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode += 1
        self._obs[:] = (self._episode, 0, -1)
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._obs[1] == 0:
            self._length = 1 + (2 * self._episode + int(action)) % 5
        self._obs[1] += 1
        self._obs[2] = action
        step = int(self._obs[1])
        ends = step == self._length
        turn = self._episode % 3
        info: dict[str, Any] = {"is_success": False} if ends and turn == 0 else {}
        return self._obs, 100.0 * self._episode + step, ends and turn != 1, ends and turn != 0, info


class CountingVectorEnv(VectorEnv[Any, Any, Any]):
    """The same environment for N environments at once, in any autoreset mode; written for arrays, not as a loop over
    the above."""

    def __init__(
        self,
        num_envs: int = 1,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
    ):
        self.num_envs, self.mode, self.render_mode = num_envs, autoreset_mode, render_mode
        self.metadata = {"autoreset_mode": autoreset_mode, "render_modes": []}
        self.single_observation_space = _observation_space()
        self.single_action_space = spaces.Discrete(ACTIONS)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._episode = np.full(num_envs, -1)
        self._step = np.zeros(num_envs, int)
        self._action = np.full(num_envs, -1)
        self._length = np.zeros(num_envs, int)
        self._ended = np.zeros(num_envs, bool)

    def _observe(self) -> Array:
        return np.stack([self._episode, self._step, self._action], axis=1).astype(np.float32)

    def _begin(self, mask: Array) -> None:
        self._episode[mask] += 1
        self._step[mask], self._action[mask], self._ended[mask] = 0, -1, False

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._begin((options or {}).get("reset_mask", np.ones(self.num_envs, bool)))
        return self._observe(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        phantom = self._ended.copy()  # stays all False where ends are dealt with at once
        if self.mode is AutoresetMode.DISABLED:
            assert not phantom.any(), "an environment that has ended was stepped without a reset"
        first = (self._step == 0) & ~phantom
        self._length = np.where(first, 1 + (2 * self._episode + actions) % 5, self._length)
        self._step, self._action = self._step + 1, np.where(phantom, self._action, actions)
        turn = self._episode % 3
        reward = np.where(phantom, 0.0, 100.0 * self._episode + self._step)
        ended = (self._step == self._length) & ~phantom
        terminated, truncated = ended & (turn != 1), ended & (turn != 0)
        infos: dict[str, Any] = {}
        final_obs = self._observe()
        for i in np.flatnonzero(ended):
            info: dict[str, Any] = {"is_success": False} if turn[i] == 0 else {}
            if self.mode is AutoresetMode.SAME_STEP:
                info = {"final_obs": final_obs[i], "final_info": info}
            infos = self._add_info(infos, info, int(i))
        if self.mode is AutoresetMode.SAME_STEP:
            self._begin(ended)
        else:
            self._ended = ended
            self._begin(phantom)
        return self._observe(), reward, terminated, truncated, infos
