"""Environments with goals: their reward for any goal.

Such an environment follows Gymnasium-Robotics: a Dict observation with the keys below, and a method
`compute_reward(achieved_goal, desired_goal, info)`. It may also have `compute_terminated` with the same arguments.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from drl.core.errors import BadInput
from drl.core.specs import Array, ObsSpec
from drl.envs.env_config import EnvLike, as_config
from drl.envs.make_vec_env import make_env
from drl.envs.spaces import EnvKwargs, GymEnv, Info, obs_spec

GOAL_KEYS = ("achieved_goal", "desired_goal", "observation")
GoalFunction = Callable[[Array, Array, Info], ArrayLike]


def goal_functions(config: EnvLike, env_kwargs: EnvKwargs | None = None) -> "GoalFunctions":
    """Make one environment for its goal functions.

    >>> goals = goal_functions("drl/BitFlip-v0", {"bits": 2})
    >>> goals.reward(np.array([[0.0, 1.0], [1.0, 1.0]]), np.array([[0.0, 1.0], [0.0, 1.0]]))
    array([ 0., -1.], dtype=float32)
    """
    env = make_env(config, env_kwargs=env_kwargs)
    lacks, env_id = _lacks(env), as_config(config).env
    if lacks is not None:
        env.close()
        raise BadInput(
            f"hindsight replay on {env_id!r}, which has {lacks}; expected a Dict observation with the keys "
            f"{', '.join(GOAL_KEYS)}, both goals Boxes of the same shape (not uint8) or MultiBinary, and a method "
            "compute_reward(achieved_goal, desired_goal, info); use --her none, or an environment with goals"
        )
    return GoalFunctions(env)


def _lacks(env: GymEnv) -> str | None:
    """Return what an environment with goals needs and this one lacks; None: nothing."""
    spec = obs_spec(env.observation_space)
    if missing := [key for key in GOAL_KEYS if key not in spec.keys]:
        return f"a {spec.kind} observation without the key {missing[0]!r}"
    achieved, desired = (spec.leaves.get(key) for key in GOAL_KEYS[:2])
    if achieved is None or achieved != desired or not _is_plain(achieved):
        goals = [str(env.observation_space[key]) for key in GOAL_KEYS[:2]]  # type: ignore[index]
        return f"achieved goals {goals[0]} and desired goals {goals[1]}"
    return None if env.has_wrapper_attr("compute_reward") else "no method compute_reward"


def _is_plain(goal: ObsSpec) -> bool:
    """Whether encoding changes nothing but the dtype and the number of axes."""
    return goal.kind == "multi_binary" or (goal.kind == "box" and goal.box_dtype != "uint8")


class GoalFunctions:
    """The goal functions of one environment, for a batch of encoded goals. Infos are not stored: it gets an empty one.

    The first call of each function compares a batch with its rows one by one. A function that cannot take a batch is
    called for each row.
    """

    def __init__(self, env: GymEnv):
        self.env = env
        self.goal: ObsSpec = obs_spec(env.observation_space).leaves["desired_goal"]
        self._takes_batches: dict[str, bool] = {}

    def reward(self, achieved: Array, desired: Array) -> Array:
        """[B] float32."""
        return self._ask("compute_reward", achieved, desired).astype(np.float32)

    def terminated(self, achieved: Array, desired: Array) -> Array | None:
        """[B] bool; None: the environment does not say when a goal ends an episode."""
        if not self.env.has_wrapper_attr("compute_terminated"):
            return None
        return self._ask("compute_terminated", achieved, desired).astype(bool)

    def _ask(self, name: str, *encoded: Array) -> Array:
        function: GoalFunction = self.env.get_wrapper_attr(name)
        dtype = "int8" if self.goal.kind == "multi_binary" else self.goal.box_dtype
        shape = self.goal.box_shape
        achieved, desired = (goals.reshape(len(goals), *shape).astype(dtype) for goals in encoded)  # as the env's own
        if name not in self._takes_batches:
            self._takes_batches[name] = _same_as_rows(function, achieved, desired)
        if self._takes_batches[name]:
            return np.asarray(function(achieved, desired, {}))
        return _rows(function, achieved, desired)


def _rows(function: GoalFunction, achieved: Array, desired: Array) -> Array:
    return np.array([function(*goals, {}) for goals in zip(achieved, desired, strict=True)])


def _same_as_rows(function: GoalFunction, achieved: Array, desired: Array) -> bool:
    expected = _rows(function, achieved, desired)
    try:
        batch = np.asarray(function(achieved, desired, {}))
    except Exception:  # written for one goal, it may raise anything
        return False
    return batch.shape == expected.shape and np.allclose(batch, expected)
