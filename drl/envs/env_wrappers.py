"""Our wrappers: frame stacking and signs of rewards for every vectorization, MiniGrid's cells as categories.

Layout of stacked frames, oldest first, newest last:
    vectors (n,)          (k·n,)
    gray images (H, W)    (k, H, W)
    images                (k·C, H, W)     also if the environment returns (H, W, C)
    anything else         encoded to a float vector first, then as vectors
The first frame of an episode is repeated k times. `next_obs` at an episode's end is the stack of the old episode.
"""

import re
from typing import SupportsFloat, final

import numpy as np
from gymnasium import spaces

from drl.core.contracts import EnvChange, VecEnv, VecStep
from drl.core.errors import BadInput
from drl.core.log import Episode
from drl.core.specs import ActionSpec, Array, EnvValue, ObsSpec
from drl.core.state_files import StateDict
from drl.envs.spaces import GymEnv, GymWrapper, Info, obs_spec


class FrameStacker:
    """The layout of k frames of one encoded observation."""

    def __init__(self, spec: ObsSpec, frames: int):
        self.frames = frames
        self.frame_shape: tuple[int, ...] = (1, *spec.shape) if len(spec.shape) == 2 else spec.shape
        shape = (self.frame_shape[0] * frames, *self.frame_shape[1:])
        self.spec: ObsSpec = ObsSpec("box", box_shape=shape, box_dtype=spec.dtype.name)

    def first(self, obs: Array) -> Array:
        """[N, …] first observations → stacks of k equal frames."""
        frame = obs.reshape(len(obs), *self.frame_shape)
        return np.concatenate([frame] * self.frames, axis=1)

    def push(self, stack: Array, obs: Array) -> Array:
        """A new array without the oldest frame and with `obs` as the newest."""
        frame = obs.reshape(len(obs), *self.frame_shape)
        return np.concatenate([stack[:, self.frame_shape[0] :], frame], axis=1)


class VecEnvWrapper(VecEnv):
    """A VecEnv around another one, which does everything except steps and resets."""

    def __init__(self, envs: VecEnv, obs_spec: ObsSpec | None = None):
        self.envs: VecEnv = envs
        self.vectorization: str = envs.vectorization
        self.env_id: str = envs.env_id
        self.num_envs: int = envs.num_envs
        self.obs_spec: ObsSpec = obs_spec or envs.obs_spec
        self.action_spec: ActionSpec = envs.action_spec

    def state_dict(self) -> StateDict:
        return self.envs.state_dict()

    def load_state_dict(self, state: StateDict) -> str | None:
        return self.envs.load_state_dict(state)

    def repeats(self, env_steps: int) -> bool:
        return self.envs.repeats(env_steps)

    def running_episode(self, index: int) -> Episode | None:
        return self.envs.running_episode(index)

    def get(self, name: str) -> list[EnvValue]:
        return self.envs.get(name)

    def set(self, name: str, value: object) -> None:
        self.envs.set(name, value)

    def call(self, name: str, /, *args: object, **kwargs: object) -> list[EnvValue]:
        return self.envs.call(name, *args, **kwargs)

    @property
    def changes(self) -> list[EnvChange]:
        return self.envs.changes

    def close(self) -> None:
        self.envs.close()


@final
class StackedVecEnv(VecEnvWrapper):
    """A VecEnv whose observations are its last `frames` frames."""

    def __init__(self, envs: VecEnv, frames: int):
        self.stacker: FrameStacker = FrameStacker(envs.obs_spec, frames)
        super().__init__(envs, self.stacker.spec)
        self.frame_stack = frames
        self._stack: Array = np.zeros(0)

    def reset(self) -> Array:
        self._stack = self.stacker.first(self.envs.reset())
        self.action_mask = self.envs.action_mask
        return self._stack

    def step(self, action: Array) -> VecStep:
        step = self.envs.step(action)
        next_obs = self.stacker.push(self._stack, step.next_obs)
        begins = step.terminated | step.truncated | ~step.valid
        obs = next_obs
        if begins.any():
            phantom = ~step.valid
            next_obs[phantom] = self.stacker.first(step.next_obs[phantom])
            obs = next_obs.copy()
            obs[begins] = self.stacker.first(step.obs[begins])
        self._stack, self.action_mask = obs, step.action_mask
        return step._replace(next_obs=next_obs, obs=obs)

    def state_dict(self) -> StateDict:
        return {"envs": self.envs.state_dict(), "stack": self._stack.copy()}

    def load_state_dict(self, state: StateDict) -> str | None:
        inexact = self.envs.load_state_dict(state["envs"])
        self.action_mask = self.envs.action_mask
        self._stack = np.array(state["stack"])
        return inexact


@final
class SignRewards(VecEnvWrapper):
    """Replaces each reward by its sign. Episodes keep their raw returns."""

    def reset(self) -> Array:
        return self.envs.reset()

    def step(self, action: Array) -> VecStep:
        step = self.envs.step(action)
        return step._replace(reward=np.sign(step.reward))


@final
class StackedEnv(GymWrapper):
    """The same for one plain Gymnasium environment, for agents trained on a `StackedVecEnv`."""

    def __init__(self, env: GymEnv, frames: int):
        super().__init__(env)
        self._spec = obs_spec(env.observation_space)
        self._stacker = FrameStacker(self._spec, frames)
        image = self._stacker.spec.dtype == np.uint8
        low, high = (0, 255) if image else (-np.inf, np.inf)
        dtype: type[np.uint8] | type[np.float32] = np.uint8 if image else np.float32
        self.observation_space = spaces.Box(low, high, self._stacker.spec.box_shape, dtype)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._stack = self._stacker.first(self._spec.encode_one(obs)[None])
        return self._stack[0], info

    def step(self, action: object) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._stack = self._stacker.push(self._stack, self._spec.encode_one(obs)[None])
        return self._stack[0], reward, terminated, truncated, info


DIRECTIONS = 4  # of the agent, which are its state where all of the grid is seen


def usual_wrappers(env_id: str) -> tuple[str, ...]:
    """Return the default wrappers of an environment.

    >>> usual_wrappers("MiniGrid-Empty-5x5-v0"), usual_wrappers("CartPole-v1")
    (('OneHotCells',), ())
    """
    return (OneHotCells.__name__,) if re.match(r"(minigrid:)?(MiniGrid|BabyAI)-", env_id) else ()


class OneHotCells(GymWrapper):
    """Give the image of a MiniGrid environment its true space: an object, a color and a state for each cell. MiniGrid
    declares pixels from 0 to 255. Observations do not change."""

    def __init__(self, env: GymEnv):
        super().__init__(env)
        space = env.observation_space
        parts = space.spaces if isinstance(space, spaces.Dict) else {"image": space}
        image = parts.get("image")
        if not isinstance(image, spaces.Box) or len(image.shape) != 3 or image.shape[2] != 3:
            raise BadInput(f"its observations are {space}; expected MiniGrid's image of cells (width, height, 3)")
        from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

        categories = (len(OBJECT_TO_IDX), len(COLOR_TO_IDX), max(len(STATE_TO_IDX), DIRECTIONS))
        cells = spaces.MultiDiscrete(np.broadcast_to(categories, image.shape), dtype=np.uint8)
        self.observation_space = cells if image is space else spaces.Dict({**parts, "image": cells})
