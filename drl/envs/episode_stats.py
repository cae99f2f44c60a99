"""Episode statistics of every VecEnv: running returns and lengths, finished episodes, counters, seeds, failures.

An episode is its seed and its actions: both are known here, so an environment that repeats itself can be brought back
into the middle of an episode.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

import gymnasium as gym
import numpy as np

from drl.core.contracts import EnvChange, VecEnv
from drl.core.errors import BadInput, EnvFailed, NonFinite, plural
from drl.core.log import NO_NUMBERS, Change, Episode, Played, wrong_name
from drl.core.seeding import Seeds
from drl.core.specs import MASK_KEY, ActionSpec, Array, ObsSpec
from drl.core.state_files import StateDict
from drl.envs.env_attributes import Changes
from drl.envs.faults import reason
from drl.envs.spaces import Info, check_legal, of_successors, stack_masks


class EpisodeSeeds:
    """The seed of every episode of one environment, by the episode's number.

    >>> EpisodeSeeds(7, "world", 0)(300) == EpisodeSeeds(7, "world", 0)(300) != EpisodeSeeds(7, "world", 1)(300)
    True
    """

    BLOCK = 256  # seeds that are drawn at once

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


MOST_IDLE = 1000  # ticks whose actions may be kept although their episodes are over
MOST_NUMBERS, MOST_KEYS = 100, 2000  # of one info: numbers that are kept, and keys that are looked at
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
        """Start new episodes in all environments; the seed of each."""
        self.returns = [0.0] * self.num_envs
        self.began[:] = self.tick
        self.actions.clear()
        self.changes.begin()
        self.numbers = [number + 1 for number in self.numbers]
        self.begun = True
        return [self.seed_of(index) for index in range(self.num_envs)]

    def seed_of(self, index: int) -> int:
        """The seed of an environment's running episode."""
        return self.seeds[index](self.numbers[index])

    def check_action(self, action: Array) -> None:
        """Raise unless actions fit the environments, and they have been reset."""
        if not self.begun:
            raise BadInput(f"step() of {self.env_id!r} before its first reset(); call environment.reset() once")
        if len(action) != self.num_envs:
            raise BadInput(
                f"got {plural(len(action), 'action')} for {plural(self.num_envs, 'environment')} of {self.env_id!r}; "
                "give one each"
            )

    def add(self, reward: Array, valid: Array | None = None, action: Array | None = None) -> None:
        """Count one step. `reward` is float64 and zero where not `valid`; None: all rows are valid. `action` is kept,
        if it is given, until the episodes it belongs to are over."""
        rewards = reward.tolist()
        # The sum of plain floats is the cheapest check. It may overflow, so each reward is checked as well.
        if not math.isfinite(sum(rewards)):
            self._check_each(reward)
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
        """Count a finished episode. `reported` is the environment's `is_success`; None: it reports none. `info` are the
        numbers in its last info."""
        length = self.tick - int(self.began[index])
        success = judge_success(reported, self.returns[index], self.reward_threshold)
        played = None  # vectorizations that cannot repeat an episode give no actions
        if self.actions:
            changes = self.running_changes(index) if self.changes.count else ()
            played = Played(self.seeds[index](self.numbers[index]), self.running_actions(index), changes)
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
        """The running episode of an environment."""
        length = self.tick - int(self.began[index])
        played = Played(self.seed_of(index), self.running_actions(index), self.running_changes(index))
        return Episode(self.returns[index], length, False, None, self.first_index + index, played)

    def running_changes(self, index: int) -> tuple[Change, ...]:
        """What was set on an environment, before and in its running episode."""
        return self.changes.of(index, int(self.began[index]))

    def changed(self, name: str, value: object) -> None:
        """Take note of an attribute that was set."""
        self.changes.add(EnvChange(name, value), self.tick)

    def called(self, name: str, answers: Sequence[object], args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Take note of a call of a method: one that returns nothing is called to change something."""
        if all(answer is None for answer in answers):
            self.changes.add(EnvChange(name, None, (args, kwargs)), self.tick)

    def running_actions(self, index: int) -> Array:
        """The actions of an environment's running episode, `[length, …]`."""
        length = self.tick - int(self.began[index])
        return np.array([row[index] for row in self.actions[len(self.actions) - length :]])

    def continued(self, play_again: Callable[[int], Array]) -> str | None:
        """Bring every environment back into its running episode with `play_again(index)`, which returns what the
        environment shows there. Returns why that fails, if it does."""
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
        """The environments' masks as one array, for the observations to act on or for true successors. `successors`
        holds the indices of the environments whose episode ended; these may have no mask."""
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
        """The error to raise: which environment, its index, after how many steps, and why. Ctrl-C is raised again."""
        said = error if isinstance(error, str) else reason(error)
        index = None if index is None else self.first_index + index
        where = f"environment {self.env_id!r}" + ("" if index is None else f", environment {index}")
        failure = EnvFailed(f"{where} failed after {plural(self.env_steps, 'step')}: {said}")
        failure.env_index = index
        return failure

    def state_dict(self) -> StateDict:
        counters = {"seed": self.seeds[0].root, "env_steps": self.env_steps, "episodes": self.episodes}
        obs = None if self.obs is None else self.obs.copy()
        mask = None if self.action_mask is None else self.action_mask.copy()
        running = {"returns": np.array(self.returns), "lengths": self.lengths, "numbers": list(self.numbers)}
        actions = [self.running_actions(index) for index in range(self.num_envs)] if self.actions else None
        changes = self.changes.state_dict(self.tick)
        return counters | running | {"actions": actions, "obs": obs, "action_mask": mask, "changes": changes}

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
        self.begun = False  # until the environments are where they were, or reset

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

    def _check_each(self, reward: Array) -> None:
        bad = np.flatnonzero(~np.isfinite(reward))
        if not len(bad):
            return
        raise NonFinite(
            f"environment {self.env_id!r}, environment {self.first_index + bad[0]}: reward {reward[bad[0]]} at step "
            f"{self.lengths[bad[0]] + 1} of its episode ({self.env_steps} steps in total); rewards must be finite"
        )


class ReplayableVecEnv(VecEnv):
    """A VecEnv whose episodes are their seed and their actions, which its `stats` record."""

    stats: EpisodeStats

    def repeats(self, env_steps: int) -> bool:
        return self.stats.env_steps == env_steps

    def running_episode(self, index: int) -> Episode | None:
        return self.stats.running(index)

    def state_dict(self) -> StateDict:
        return self.stats.state_dict()

    @property
    def changes(self) -> list[EnvChange]:
        return self.stats.changes.changes


def _joined(columns: Sequence[Array]) -> list[Array]:
    """The running actions of all environments as rows `[N, …]`; zeros where an episode had not begun."""
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
    """`is_success` in one environment's info; None if it is absent."""
    reported = (info or {}).get("is_success")
    return None if reported is None else bool(reported)


def success_in_infos(infos: Info, index: int) -> bool | None:
    """`is_success` in a vector environment's infos, which hold an array and a mask `_is_success`."""
    values, mask = infos.get("is_success"), infos.get("_is_success")
    return bool(values[index]) if values is not None and (mask is None or mask[index]) else None


def numbers_in(info: Info | None) -> Mapping[str, float]:
    """The numbers and flags in one environment's info, without Gymnasium's own. Those that are NaN or infinite, and
    names that cannot be printed, are left out; whatever the info does, it raises nothing.

    >>> numbers_in({"coins": 3, "won": True, "TimeLimit.truncated": True, "map": [[0]], "x": float("nan")})
    {'coins': 3.0, 'won': 1.0}
    """
    if not info:
        return NO_NUMBERS
    try:
        return _numbers(itertools.islice(info.items(), MOST_KEYS))
    except Exception:  # the info is the environment's
        return {}


def numbers_in_infos(infos: Info, index: int) -> dict[str, float]:
    """The same in a vector environment's infos, which hold an array for each name and a mask `_name`."""

    def of_one() -> Iterator[tuple[object, object]]:
        for name, values in itertools.islice(infos.items(), MOST_KEYS):
            mask = infos.get(f"_{name}")
            if isinstance(values, np.ndarray) and values.ndim and (mask is None or mask[index]):
                yield name, values[index]

    try:
        return _numbers(of_one())
    except Exception:
        return {}


def _numbers(pairs: Iterable[tuple[object, object]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in pairs:
        if not isinstance(value, (int, float, np.number, np.bool_, np.ndarray)) or wrong_name(name) is not None:
            continue
        if name in NO_RESULTS or str(name).startswith("_") or np.ndim(value) or isinstance(value, np.complexfloating):
            continue
        with contextlib.suppress(OverflowError, TypeError, ValueError):
            if math.isfinite(number := float(value)):
                found[str(name)] = number
        if len(found) == MOST_NUMBERS:
            break
    return found
