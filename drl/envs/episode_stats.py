"""Episode statistics of every VecEnv: running returns and lengths, finished episodes, counters, seeds, failures.

An episode is its seed and its actions. Both are recorded here, so a deterministic environment can be restored in the
middle of an episode. `CountedVecEnv` is the base of our vectorizations.
"""

import contextlib
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial

import gymnasium as gym
import numpy as np

from drl.core.contracts import EnvChange, VecEnv
from drl.core.errors import BadInput, EnvFailed, NonFinite, plural
from drl.core.log import NO_NUMBERS, Change, Episode, Played, wrong_name
from drl.core.seeding import Seeds
from drl.core.specs import MASK_KEY, ActionSpec, Array, ObsSpec
from drl.core.state_files import StateDict
from drl.envs.env_attributes import Changes, access, own_copy, set_on
from drl.envs.faults import reason
from drl.envs.spaces import Info, check_legal, of_successors, stack_masks


class EpisodeSeeds:
    """The seed of every episode of one environment, by the episode's number.

    >>> EpisodeSeeds(7, "world", 0)(300) == EpisodeSeeds(7, "world", 0)(300) != EpisodeSeeds(7, "world", 1)(300)
    True
    """

    BLOCK = 256  # seeds drawn at once

    def __init__(self, root: int, stream: str, index: int):
        self.root: int = root
        self.stream: str = stream
        self.index: int = index
        self._block, self._seeds = -1, [0]

    def __call__(self, number: int) -> int:
        block, place = divmod(number, self.BLOCK)
        if block != self._block:
            self._block, self._seeds = block, Seeds(self.root).integers(self.BLOCK, self.stream, self.index, block)
        return self._seeds[place]


MOST_IDLE = 1000  # ticks whose actions are stored after their episodes ended
MOST_NUMBERS, MOST_KEYS = 100, 2000  # of one info: numbers recorded, and keys examined
NO_RESULTS = {"TimeLimit.truncated", "final_info", "final_obs", "final_observation", "episode", "env_id", MASK_KEY}


class EpisodeStats:
    """Counts steps, returns and episodes. Reset rows (`valid` False) do not count.

    >>> stats = EpisodeStats("Toy-v0", num_envs=2, seed=0)
    >>> stats.add(np.array([1.0, 2.0]))
    >>> stats.finish(1, terminated=True, reported=True)
    Episode(episode_return=2.0, length=1, terminated=True, success=True, env_index=1, played=None, info={})
    """

    def __init__(self, env_id: str, num_envs: int, seed: int, stream: str = "world", first_index: int = 0):
        self.env_id: str = env_id
        self.num_envs: int = num_envs
        self.first_index = first_index  # of these environments, where they are some of many
        self.seeds: list[EpisodeSeeds] = [EpisodeSeeds(seed, stream, first_index + index) for index in range(num_envs)]
        self.numbers: list[int] = [-1] * num_envs  # of each environment's running episode, from 0
        self.actions: list[Array] = []  # [N, …] of the last ticks, at least those of the running episodes
        self.reward_threshold: float | None = reward_threshold(env_id)
        # Plain floats (float64): for a few environments they add up faster than an array.
        self.returns: list[float] = [0.0] * num_envs  # of raw rewards
        # An episode's length is the number of ticks since it began: cheaper than N counters.
        self.tick: int = 0
        self.began: Array = np.zeros(num_envs, np.int64)
        self.env_steps: int = 0
        self.episodes: int = 0
        self.obs: Array | None = None  # what to act on next; None before the first reset
        self.action_mask: Array | None = None  # legal actions there; None: all
        self.begun: bool = False  # whether the environments can be stepped
        self.changes: Changes = Changes(num_envs)  # of their attributes
        self._shares = np.ones(0, np.float32)  # weights of a mean over all numbers of an observation batch

    @property
    def lengths(self) -> Array:
        """[N] steps of the running episodes."""
        return self.tick - self.began

    def begin(self) -> list[int]:
        """Start new episodes in all environments and return their seeds."""
        self.returns = [0.0] * self.num_envs
        self.began[:] = self.tick
        self.actions.clear()
        self.changes.begin()
        self.numbers = [number + 1 for number in self.numbers]
        self.begun = True
        return [self.seed_of(index) for index in range(self.num_envs)]

    def seed_of(self, index: int) -> int:
        """Return the seed of an environment's running episode."""
        return self.seeds[index](self.numbers[index])

    def check_action(self, action: Array) -> None:
        """Raise unless the environments were reset and there is one action for each."""
        if not self.begun:
            raise BadInput(f"step() of {self.env_id!r} before its first reset(); call environment.reset() once")
        if len(action) != self.num_envs:
            raise BadInput(
                f"got {plural(len(action), 'action')} for {plural(self.num_envs, 'environment')} of {self.env_id!r}; "
                "give one each"
            )

    def add(self, reward: Array, valid: Array | None = None, action: Array | None = None) -> None:
        """Count one step. `reward` is float64 and zero where not `valid`; None: all rows are valid. `action` is stored,
        if it is not None, until its episodes end."""
        rewards = reward.tolist()
        # The sum of plain floats is the cheapest check. It may overflow, so each reward is checked as well.
        if not math.isfinite(sum(rewards)) and len(bad := np.flatnonzero(~np.isfinite(reward))):
            raise NonFinite(
                f"environment {self.env_id!r}, environment {self.first_index + bad[0]}: reward {reward[bad[0]]} at "
                f"step {self.lengths[bad[0]] + 1} of its episode ({self.env_steps} steps in total); rewards must be "
                "finite"
            )
        self.returns = [total + new for total, new in zip(self.returns, rewards, strict=True)]
        self.tick += 1
        if action is not None:
            self.actions.append(np.array(action))
        if valid is None:
            self.env_steps += self.num_envs
        else:
            self.began += ~valid
            self.env_steps += int(np.count_nonzero(valid))

    def check_obs(self, obs: Array, spec: ObsSpec) -> None:
        """Raise if a number of these observations is NaN or infinite. `obs` is encoded, one row per environment."""
        if obs.dtype != np.float32:
            if obs.dtype.names:
                self._check_each_obs(obs, spec)
            return  # integers are always finite
        flat = obs.ravel()
        if len(flat) != len(self._shares):
            self._shares = np.full(len(flat), 1 / len(flat), np.float32)
        if not math.isfinite(flat.dot(self._shares)):  # the cheapest mean; finite numbers do not overflow in it
            self._check_each_obs(obs, spec)

    def finish(
        self, index: int, terminated: bool, reported: bool | None = None, info: Mapping[str, float] | None = None
    ) -> Episode:
        """Count a finished episode. `reported` is the environment's `is_success`, `info` the numbers in its last info;
        see `results_in`."""
        length = self.tick - int(self.began[index])
        success = judge_success(reported, self.returns[index], self.reward_threshold)
        played = None  # vectorizations that cannot repeat an episode give no actions
        if self.actions:
            seed = self.seeds[index](self.numbers[index])
            played = Played(seed, self.running_actions(index), self.running_changes(index))
        result = (self.returns[index], length, terminated, success, self.first_index + index)
        episode = Episode(*result, played, info or NO_NUMBERS)
        if self.changes.count:
            self.changes.begin(index)
        self.returns[index] = 0.0
        self.began[index] = self.tick
        self.numbers[index] += 1
        self.episodes += 1
        if len(self.actions) >= MOST_IDLE + 2 * (longest := int(self.lengths.max())):
            del self.actions[: len(self.actions) - longest]
        return episode

    def running(self, index: int) -> Episode:
        """Return the running episode of an environment."""
        length = self.tick - int(self.began[index])
        played = Played(self.seed_of(index), self.running_actions(index), self.running_changes(index))
        return Episode(self.returns[index], length, False, None, self.first_index + index, played)

    def running_changes(self, index: int) -> tuple[Change, ...]:
        """Return the changes of an environment's attributes before and in its running episode."""
        return self.changes.of(index, int(self.began[index])) if self.changes.count else ()

    def running_actions(self, index: int) -> Array:
        """Return the actions of an environment's running episode, `[length, …]`."""
        length = self.tick - int(self.began[index])
        return np.array([row[index] for row in self.actions[len(self.actions) - length :]])

    def continued(self, play_again: Callable[[int], Array]) -> str | None:
        """Restore every environment in its running episode with `play_again(index)`, which returns its last
        observation. Returns why that fails, if it does."""
        if (lost := self.changes.lost) is not None:
            return f"the environments {self.env_id!r} cannot be changed again as they were: {lost}"
        if self.obs is None:
            return None
        if len(self.actions) < self.lengths.max():
            return f"the actions of the running episodes of {self.env_id!r} were not recorded"
        for index, seen in enumerate(self.obs):
            where = f"environment {self.first_index + index} of {self.env_id!r}"
            where += f", played again with {plural(self.lengths[index], 'action')}"
            try:
                shown = np.asarray(play_again(index), self.obs.dtype)
            except BaseException as error:
                return f"{where}, fails: {reason(error)}"
            if shown.tobytes() != seen.tobytes():
                return f"{where}, shows another observation than before"
        self.begun = True
        return None

    def masks(
        self, masks: Sequence[object], spec: ActionSpec, successors: Container[int] | None = None
    ) -> Array | None:
        """Stack the environments' masks, of the observations to act on or of true successors. `successors` are the
        indices of the environments whose episode ended; these may have no mask."""
        try:
            if successors is not None:
                anything = np.ones(spec.num_choices, bool)
                masks = [anything if m is None and i in successors else m for i, m in enumerate(masks)]
            stacked = stack_masks(masks, spec)
            if stacked is None or successors is not None:
                return None if stacked is None else of_successors(stacked, spec)
            check_legal(stacked, spec)
        except ValueError as error:
            raise self.failed(str(error)) from error
        return stacked

    def failed(self, error: BaseException | str, index: int | None = None) -> EnvFailed:
        """Return the error to raise. Ctrl-C is raised again."""
        said = error if isinstance(error, str) else reason(error)
        index = None if index is None else self.first_index + index
        where = f"environment {self.env_id!r}" + ("" if index is None else f", environment {index}")
        failure = EnvFailed(f"{where} failed after {plural(self.env_steps, 'step')}: {said}")
        failure.env_index = index
        return failure

    def state_dict(self) -> StateDict:
        return {
            "seed": self.seeds[0].root,
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "returns": np.array(self.returns),
            "lengths": self.lengths,
            "numbers": list(self.numbers),
            "actions": [self.running_actions(index) for index in range(self.num_envs)] if self.actions else None,
            "obs": None if self.obs is None else self.obs.copy(),
            "action_mask": None if self.action_mask is None else self.action_mask.copy(),
            "changes": self.changes.state_dict(self.tick),
        }

    def load_state_dict(self, state: StateDict) -> None:
        if len(state["returns"]) != self.num_envs:
            raise BadInput(
                f"this state is of {plural(len(state['returns']), 'environment')}, not {self.num_envs}; use as many"
            )
        self.seeds = [EpisodeSeeds(int(state["seed"]), seeds.stream, seeds.index) for seeds in self.seeds]
        self.env_steps, self.episodes = int(state["env_steps"]), int(state["episodes"])
        self.returns = np.asarray(state["returns"], np.float64).tolist()
        self.numbers = [int(number) for number in state["numbers"]]
        self.tick, self.began = 0, -np.array(state["lengths"], np.int64)
        self.obs = None if state["obs"] is None else np.array(state["obs"])
        self.action_mask = None if state["action_mask"] is None else np.array(state["action_mask"], bool)
        self.actions = _joined(state["actions"] or [])
        self.changes.load_state_dict(state["changes"])
        self.begun = False  # until the environments are restored or reset

    def _check_each_obs(self, obs: Array, spec: ObsSpec) -> None:
        for key in spec.leaves:
            part = obs[key] if obs.dtype.names else obs[:, spec.columns(key)] if spec.parts else obs
            rows = part.reshape(self.num_envs, -1)
            for index, place in np.argwhere(~np.isfinite(rows)):
                what = f"key {key!r} of the observation" if key else "the observation"
                raise NonFinite(
                    f"environment {self.env_id!r}, environment {self.first_index + index}: {what} is "
                    f"{rows[index, place]} at step {self.lengths[index]} of its episode ({self.env_steps} steps in "
                    "total); observations must be finite"
                )


class CountedVecEnv(VecEnv):
    """A VecEnv that counts episodes in `stats` and accesses the attributes of its `targets`.

    `targets` are environments, or copies of a game. The index of a target is that of its `recorded` changes.
    """

    stats: EpisodeStats
    targets: Sequence[object] = ()
    target_name = "environment"  # in messages
    _closed = False

    @property
    def recorded(self) -> Changes:
        """Changes of the targets' attributes."""
        return self.stats.changes

    @property
    def changes(self) -> list[EnvChange]:
        return self.recorded.changes

    def get(self, name: str) -> list[object]:
        return self._access("get", name)

    def set(self, name: str, value: object) -> None:
        self._access("check_set", name, value)
        self.recorded.add(EnvChange(name, value), self.stats.tick)
        self._access("set", name, value)

    def call(self, name: str, /, *args: object, **kwargs: object) -> list[object]:
        answers = self._access("call", name, (args, kwargs))
        if all(answer is None for answer in answers):  # a method that returns nothing is called to change something
            self.recorded.add(EnvChange(name, None, (args, kwargs)), self.stats.tick)
        return answers

    def _access(self, what: str, name: str, content: object = None) -> list[object]:
        """Do `access` on every target."""
        answers: list[object] = []
        for index, target in enumerate(self.targets):
            try:
                if what == "set":
                    self._set(index, name, own_copy(content))
                else:
                    answers.append(access(target, what, name, content, self._where(index)))
            except BadInput:
                raise
            except BaseException as error:
                raise self.stats.failed(error, index) from error
        return answers

    def _set(self, index: int, name: str, value: object) -> None:
        set_on(self.targets[index], name, value, self._where(index))

    def _where(self, index: int) -> str:
        return f"{self.target_name} {self.stats.first_index + index} of {self.env_id!r}"

    def state_dict(self) -> StateDict:
        return self.stats.state_dict()

    def load_state_dict(self, state: StateDict) -> str | None:
        self.stats.load_state_dict(state)
        self.action_mask: Array | None = self.stats.action_mask
        why = self._restore(state)
        if why is not None or self.stats.obs is None:  # new episodes begin, with the same changes
            self.recorded.set_all(partial(self._access, "set"))
        return why

    @abstractmethod
    def _restore(self, state: StateDict) -> str | None:
        """Restore the environments in their running episodes. Returns why that fails, if it does."""

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._close()

    @abstractmethod
    def _close(self) -> None:
        """Close the environments; called once."""


class ReplayableVecEnv(CountedVecEnv):
    """A VecEnv whose episodes are their seed and their actions, which `stats` records."""

    def repeats(self, env_steps: int) -> bool:
        return self.stats.env_steps == env_steps

    def running_episode(self, index: int) -> Episode | None:
        return self.stats.running(index)


def _joined(columns: Sequence[Array]) -> list[Array]:
    """Join the running actions of all environments into rows `[N, …]`; zeros where an episode had not begun."""
    longest = np.asarray(max(columns, key=len, default=()))
    rows = np.zeros((len(longest), len(columns), *longest.shape[1:]), longest.dtype)
    for index, column in enumerate(columns):
        if len(column):
            rows[len(longest) - len(column) :, index] = column
    return list(rows)


def judge_success(reported: bool | None, episode_return: float, reward_threshold: float | None) -> bool | None:
    """Whether an episode succeeded: the environment's own `is_success`, else a return of at least its registered
    `reward_threshold`; None if there is neither.

    >>> judge_success(None, 500.0, 475.0), judge_success(False, 500.0, 475.0), judge_success(None, 500.0, None)
    (True, False, None)
    """
    if reported is not None:
        return reported
    return None if reward_threshold is None else episode_return >= reward_threshold


def reward_threshold(env_id: str) -> float | None:
    """The return at which an environment counts as solved, from Gymnasium's registry."""
    spec = gym.registry.get(env_id.rpartition(":")[2])
    return None if spec is None or spec.reward_threshold is None else float(spec.reward_threshold)


def success_in(info: Info | None) -> bool | None:
    """Return `is_success` of one environment's info; None if it is absent."""
    reported = (info or {}).get("is_success")
    return None if reported is None else bool(reported)


def numbers_in(info: Info | None) -> Mapping[str, float]:
    """Return the numbers and flags in one environment's info, without Gymnasium's own. Those that are NaN or infinite,
    and names that cannot be printed, are left out. Never raises.

    >>> numbers_in({"coins": 3, "won": True, "TimeLimit.truncated": True, "map": [[0]], "x": float("nan")})
    {'coins': 3.0, 'won': 1.0}
    """
    if not info:
        return NO_NUMBERS
    numbers: dict[str, float] = {}
    try:
        for name, value in itertools.islice(info.items(), MOST_KEYS):
            if not isinstance(value, (int, float, np.number, np.bool_, np.ndarray)) or np.ndim(value):
                continue
            if wrong_name(name) is not None or name in NO_RESULTS or str(name).startswith("_"):
                continue
            if isinstance(value, np.complexfloating):
                continue
            with contextlib.suppress(OverflowError, TypeError, ValueError):
                if math.isfinite(number := float(value)):
                    numbers[str(name)] = number
            if len(numbers) == MOST_NUMBERS:
                break
    except Exception:  # the info is the environment's
        return {}
    return numbers


def results_in(info: Info | None) -> tuple[bool | None, Mapping[str, float]]:
    """`success_in` and `numbers_in`, for `EpisodeStats.finish`."""
    return success_in(info), numbers_in(info)


def info_of(infos: Info | Array, index: int) -> Info:
    """Return one environment's part of a vector environment's infos: an array of one dict each, or a dict with an array
    for each name and a mask `_name`. Of a dict, only `is_success` and numbers are returned."""
    if not isinstance(infos, dict):
        info: Info = infos[index]
        return info
    info = {}
    with contextlib.suppress(Exception):  # the infos are the environment's
        for name, values in itertools.islice(infos.items(), MOST_KEYS):
            mask = infos.get(f"_{name}")
            known = (isinstance(values, np.ndarray) and values.ndim) or (name == "is_success" and values is not None)
            if known and (mask is None or mask[index]):
                info[name] = values[index]
    return info
