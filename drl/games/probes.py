"""Tiny environments with known values. Importing this registers nothing; see `drl.games.registry`.

- `TwoStepEnv`, `OneStepEnv`, `MatchEnv`, `TargetEnv`: their optimal values fit in one line each
- `LegalMovesEnv`: illegal actions; the best policy takes the highest legal one
- `RecallEnv`, `MoodEnv`, `CartPoleNoVelocityEnv`: only a recurrent agent can solve them
- `BitFlipEnv`: flip bits until they equal a goal, the environment of hindsight experience replay
- `CountingEnv`: its observation shows its position, so that a row that spans a reset is easy to detect
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, SupportsInt, TypeVar, final

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from drl.core.errors import BadInput
from drl.core.specs import MASK_KEY, AnyArray, Array
from drl.games.env_forms import Info, Step

ProbeObs = TypeVar("ProbeObs")
ProbeAction = TypeVar("ProbeAction")


class _Probe(gym.Env[ProbeObs, ProbeAction]):
    """An environment with a start state, `_begin`. The default spaces: one number in [0, 1], and two actions."""

    def __init__(
        self,
        render_mode: str | None = None,
        observation_space: gym.Space[ProbeObs] | None = None,
        action_space: gym.Space[ProbeAction] | None = None,
    ):
        self.render_mode: str | None = render_mode
        self.observation_space: Any = observation_space or spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space: Any = action_space or spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[ProbeObs, Info]:
        super().reset(seed=seed)
        return self._begin()

    def _begin(self) -> tuple[ProbeObs, Info]:
        raise NotImplementedError


class TwoStepEnv(_Probe[Array, np.int64]):
    """obs 0 → obs 1 → end with reward 1, whatever the action.

    Terminated: V(1) = 1 and V(0) = γ. Truncated, the value continues past the end: the successor shows obs 1, so
    V(1) = 1 + γ·V(1) = 1 / (1 − γ) and V(0) = γ·V(1).
    """

    def __init__(self, truncate: bool = False, render_mode: str | None = None):
        super().__init__(render_mode)
        self.truncate: bool = truncate
        self._step = 0

    def _begin(self) -> tuple[Array, Info]:
        self._step = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: object) -> Step:
        self._step += 1
        ends = self._step == 2
        return np.ones(1, np.float32), float(ends), ends and not self.truncate, ends and self.truncate, {}


class OneStepEnv(_Probe[Array, np.int64]):
    """One observation, one step, one reward. Terminated: V = reward. Truncated: V = reward / (1 − γ)."""

    def __init__(self, reward: float = 1.0, truncate: bool = False, render_mode: str | None = None):
        super().__init__(render_mode)
        self.reward: float = reward
        self.truncate: bool = truncate

    def _begin(self) -> tuple[Array, Info]:
        return np.zeros(1, np.float32), {}

    def step(self, action: object) -> Step:
        return np.zeros(1, np.float32), self.reward, not self.truncate, self.truncate, {}


class MatchEnv(_Probe[np.int64, np.int64]):
    """One step: reward 1 if the action equals the observation, else −1. Best return 1; a blind policy gets 2/n − 1."""

    def __init__(self, choices: int = 2, render_mode: str | None = None):
        super().__init__(render_mode, spaces.Discrete(choices), spaces.Discrete(choices))
        self._choices = choices
        self._wanted = np.int64(0)

    def _begin(self) -> tuple[np.int64, Info]:
        self._wanted = self.np_random.integers(self._choices)
        return self._wanted, {}

    def step(self, action: SupportsInt) -> tuple[np.int64, float, bool, bool, Info]:
        return self._wanted, 1.0 if int(action) == self._wanted else -1.0, True, False, {}


class TargetEnv(_Probe[Array, Array]):
    """One step: the observation is a target in [−1, 1], the reward −Σ(action / 2 − target)². Best return 0.

    Actions range over [−2, 2], so a policy that is not rescaled misses the optimum.
    """

    def __init__(self, size: int = 1, render_mode: str | None = None):
        box = partial(spaces.Box, shape=(size,), dtype=np.float32)
        super().__init__(render_mode, box(-1.0, 1.0), box(-2.0, 2.0))
        self._target = np.zeros(size, np.float32)

    def _begin(self) -> tuple[Array, Info]:
        self._target = self.np_random.uniform(-1.0, 1.0, self._target.shape).astype(np.float32)
        return self._target, {}

    def step(self, action: Array) -> Step:
        error = np.asarray(action) / 2 - self._target
        return self._target, -float(np.square(error).sum()), True, False, {}


LEGAL_MOVES, LENGTH = 4, 5


@final
class LegalMovesEnv(_Probe[Array, np.int64]):
    """Each step allows a random choice of four actions, at least one, and pays the action's number over 3. An illegal
    action raises. The mask is in the info, Gymnasium's convention; the observation is always 1."""

    def __init__(self, render_mode: str | None = None):
        super().__init__(render_mode, action_space=spaces.Discrete(LEGAL_MOVES))
        self.legal: Array = np.ones(LEGAL_MOVES, bool)
        self.steps: int = 0

    def _begin(self) -> tuple[Array, Info]:
        self.steps = 0
        return self._observed()

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, Info]:
        if not self.legal[action]:
            raise ValueError(f"action {action} is illegal; the mask was {self.legal.astype(int).tolist()}")
        self.steps += 1
        obs, info = self._observed()
        return obs, float(action) / 3.0, self.steps == LENGTH, False, info

    def _observed(self) -> tuple[Array, Info]:
        drawn = self.np_random.random(LEGAL_MOVES) < 0.5
        drawn[self.np_random.integers(LEGAL_MOVES)] = True
        self.legal = drawn
        return np.ones(1, np.float32), {MASK_KEY: drawn.astype(np.int8)}


GoalObs = dict[str, Array]  # observation, achieved_goal, desired_goal


@final
class BitFlipEnv(_Probe[GoalObs, np.int64]):
    """Action i flips bit i. Each step costs 1; the one that reaches the goal costs nothing and terminates. Episodes are
    truncated after as many steps as there are bits, enough for any goal: the best return is 1 minus the number of bits
    that differ at the start. At random, an agent hardly ever reaches a goal of 15 bits."""

    def __init__(self, bits: int = 15, render_mode: str | None = None):
        check_bits(bits)
        names = ("achieved_goal", "desired_goal", "observation")
        goal_space = spaces.Dict({name: spaces.MultiBinary(bits) for name in names})
        super().__init__(render_mode, goal_space, spaces.Discrete(bits))
        self.bits: int = bits
        self.state: Array = np.zeros(bits, bool)
        self.goal: Array = self.state
        self.steps: int = 0

    def _begin(self) -> tuple[GoalObs, Info]:
        self.state, self.goal = start_and_goal(self.np_random.random(draws_per_episode(self.bits)))
        self.steps = 0
        return self._observe(), {}

    def step(self, action: SupportsInt) -> tuple[GoalObs, float, bool, bool, Info]:
        self.state = self.state ^ (np.arange(self.bits) == int(action))
        self.steps += 1
        reached = bool(is_reached(self.state, self.goal))
        reward = float(self.compute_reward(self.state, self.goal, {}))
        return self._observe(), reward, reached, not reached and self.steps == self.bits, {"is_success": reached}

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Info) -> Array:
        """Of one goal or a batch of them; `info` is not used."""
        return goal_reward(achieved_goal, desired_goal)

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Info) -> Array:
        """Whether a goal is reached, for hindsight."""
        return is_reached(achieved_goal, desired_goal)

    def _observe(self) -> GoalObs:
        state, goal = self.state.astype(np.int8), self.goal.astype(np.int8)
        return {"achieved_goal": state, "desired_goal": goal, "observation": state.copy()}


def check_bits(bits: int) -> None:
    """Raise unless it is a whole number of at least 1."""
    if isinstance(bits, bool) or not isinstance(bits, int) or bits < 1:
        raise BadInput(f"bits = {bits!r}; expected a whole number, 1 or more")


# The rules, for arrays of NumPy and of JAX; the last axis holds the bits.


def draws_per_episode(bits: int) -> int:
    """Uniform numbers for `start_and_goal`."""
    return 2 * bits + 1


def start_and_goal(uniform: AnyArray) -> tuple[AnyArray, AnyArray]:
    """A coin for each bit of the start and of the goal. Where they are equal, one bit of the goal is flipped."""
    bits = uniform.shape[-1] // 2
    start, goal = uniform[..., :bits] < 0.5, uniform[..., bits:-1] < 0.5
    chosen = np.arange(bits) == (uniform[..., -1:] * bits).astype(np.int32)
    return start, goal ^ (chosen & is_reached(start, goal)[..., None])


def is_reached(achieved_goal: AnyArray, desired_goal: AnyArray) -> AnyArray:
    """Where all bits agree."""
    return (achieved_goal == desired_goal).all(axis=-1)


def goal_reward(achieved_goal: AnyArray, desired_goal: AnyArray) -> AnyArray:
    """0 where a goal is reached, −1 elsewhere."""
    return is_reached(achieved_goal, desired_goal).astype(np.float32) - 1.0


COUNTING_ACTIONS = 4


def _observation_space() -> spaces.Box:
    return spaces.Box(-1.0, np.inf, (3,), np.float32)


class CountingEnv(_Probe[Array, np.int64]):
    """A single counting environment. It reuses its observation array on purpose.

    Observation: (episode index, step in the episode, last action). Reward: 100·episode + step after the move.
    An episode lasts 1 + (2·episode + its first action) mod 5 steps. It ends terminated, truncated, or with both flags
    set, in turn (episode index mod 3). Every third episode reports `is_success` = False.
    Nothing is random and seeds are ignored: all vectorizations must give the same rows for the same actions.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own convention)

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode, _observation_space(), spaces.Discrete(COUNTING_ACTIONS))
        self._obs = np.zeros(3, np.float32)
        self._episode = -1
        self._length = 0

    def _begin(self) -> tuple[Array, Info]:
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
        self.single_action_space: spaces.Discrete[np.int64] = spaces.Discrete(COUNTING_ACTIONS)
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
        # Environments that only reset in this step; all False in the other autoreset modes.
        phantom = self._ended.copy()
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


class _CueEnv(_Probe[Array, np.int64]):
    """The first observation shows a cue, −1 or 1; later ones hide it. Entries: cue or 0, whether to answer now."""

    def __init__(self, length: int = 4, render_mode: str | None = None):
        super().__init__(render_mode, spaces.Box(-1.0, 1.0, (2,), np.float32))
        self.length: int = length
        self._cue, self._step = 0, 0

    def _begin(self) -> tuple[Array, Info]:
        self._cue, self._step = 2 * int(self.np_random.integers(2)) - 1, 0
        return np.array([self._cue, 0], np.float32), {}

    def _observe(self) -> Array:
        return np.array([0, self._step == self.length - 1], np.float32)


class RecallEnv(_CueEnv):
    """`length` steps; only the last action counts: reward 1 if it names the cue (0 for −1, 1 for 1), else −1.

    Best return 1; an agent without rnn_state gets 0 on average.
    """

    def step(self, action: SupportsInt) -> Step:
        self._step += 1
        ends = self._step == self.length
        right = 2 * int(action) - 1 == self._cue
        info: Info = {"is_success": right} if ends else {}
        return self._observe(), (1.0 if right else -1.0) if ends else 0.0, ends, False, info


class MoodEnv(_CueEnv):
    """Every one of `length` steps pays the cue, whatever the action.

    Terminated: V = cue · (1 − γ^k) / (1 − γ), k steps before the end. Truncated, the value continues past the end:
    V = cue / (1 − γ) at every step, also at the final observation, which does not show the cue.
    """

    def __init__(self, length: int = 3, truncate: bool = False, render_mode: str | None = None):
        super().__init__(length, render_mode)
        self.truncate = truncate

    def step(self, action: object) -> Step:
        self._step += 1
        ends = self._step == self.length
        obs = np.zeros(2, np.float32) if self.truncate else self._observe()  # truncation must not be predictable
        return obs, float(self._cue), ends and not self.truncate, ends and self.truncate, {}


class CartPoleNoVelocityEnv(CartPoleEnv):
    """Gymnasium's CartPole without the two velocities: the agent must infer motion from earlier observations."""

    def __init__(self, render_mode: str | None = None, **options: bool):
        super().__init__(render_mode=render_mode, **options)
        full = self.observation_space
        assert isinstance(full, spaces.Box)
        self.observation_space: spaces.Box = spaces.Box(full.low[[0, 2]], full.high[[0, 2]], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Array, Info]:
        obs, info = super().reset(seed=seed, options=options)
        return obs[[0, 2]], info

    def step(self, action: int | Array) -> Step:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs[[0, 2]], float(reward), terminated, truncated, info
