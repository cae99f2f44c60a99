"""An environment whose observation shows its position, so that a row that spans a reset is easy to detect.

Observation: (episode index, step in the episode, last action). Reward: 100·episode + step after the move.
An episode lasts 1 + (2·episode + its first action) mod 5 steps. It ends terminated, truncated, or with both flags
set, in turn (episode index mod 3). Every third episode reports `is_success` = False.
Nothing is random and seeds are ignored: all vectorizations must give the same rows for the same actions.
"""

from collections.abc import Sequence
from typing import Any, SupportsInt

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from drl.core.specs import Array
from drl.games.random_streams import Info

ACTIONS = 4


def _observation_space() -> spaces.Box:
    return spaces.Box(-1.0, np.inf, (3,), np.float32)


class CountingEnv(gym.Env[Array, np.int64]):
    """A single counting environment. It reuses its observation array on purpose."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own convention)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space: spaces.Box = _observation_space()
        self.action_space: spaces.Discrete[np.int64] = spaces.Discrete(ACTIONS)
        self._obs = np.zeros(3, np.float32)
        self._episode = -1
        self._length = 0

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self._episode += 1
        self._obs[:] = (self._episode, 0, -1)
        return self._obs, {}

    def step(self, action: SupportsInt) -> tuple[Array, float, bool, bool, Info]:
        if self._obs[1] == 0:
            self._length = 1 + (2 * self._episode + int(action)) % 5
        self._obs[1] += 1
        self._obs[2] = int(action)
        step = int(self._obs[1])
        ends = step == self._length
        turn = self._episode % 3
        info: Info = {"is_success": False} if ends and turn == 0 else {}
        return self._obs, 100.0 * self._episode + step, ends and turn != 1, ends and turn != 0, info


class CountingVectorEnv(VectorEnv[Array, Array, Array]):
    """N counting environments at once, in any autoreset mode; implemented with arrays, not as a loop over the above."""

    def __init__(
        self,
        num_envs: int = 1,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
    ):
        self.num_envs: int = num_envs
        self.mode: AutoresetMode = autoreset_mode
        self.render_mode: str | None = render_mode
        self.metadata: dict[str, Any] = {"autoreset_mode": autoreset_mode, "render_modes": []}
        self.single_observation_space: spaces.Box = _observation_space()
        self.single_action_space: spaces.Discrete[np.int64] = spaces.Discrete(ACTIONS)
        self.observation_space: gym.Space[Array] = batch_space(self.single_observation_space, num_envs)
        self.action_space: gym.Space[Array] = batch_space(self.single_action_space, num_envs)
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

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, object] | None = None
    ) -> tuple[Array, Info]:
        self._begin(np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, bool))))
        return self._observe(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, Info]:
        phantom = (
            self._ended.copy()
        )  # environments that only reset in this step; all False in the other autoreset modes
        if self.mode is AutoresetMode.DISABLED:
            assert not phantom.any(), "an environment that has ended was stepped without a reset"
        first = (self._step == 0) & ~phantom
        self._length = np.where(first, 1 + (2 * self._episode + actions) % 5, self._length)
        self._step, self._action = self._step + 1, np.where(phantom, self._action, actions)
        turn = self._episode % 3
        reward = np.where(phantom, 0.0, 100.0 * self._episode + self._step)
        ended = (self._step == self._length) & ~phantom
        terminated, truncated = ended & (turn != 1), ended & (turn != 0)
        infos: Info = {}
        final_obs = self._observe()
        for i in np.flatnonzero(ended):
            info: Info = {"is_success": False} if turn[i] == 0 else {}
            if self.mode is AutoresetMode.SAME_STEP:
                info = {"final_obs": final_obs[i], "final_info": info}
            infos = self._add_info(infos, info, int(i))
        if self.mode is AutoresetMode.SAME_STEP:
            self._begin(ended)
        else:
            self._ended = ended
            self._begin(phantom)
        return self._observe(), reward, terminated, truncated, infos
