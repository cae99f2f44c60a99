"""The trainer: a generator of learning steps. Each `next()` collects experience, learns and yields one `Log`."""

import contextlib
import math
import time
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Generic, TypeVar

import numpy as np

from drl.core.contracts import (
    Agent,
    Algorithm,
    AnyCollector,
    Batch,
    Buffer,
    CollectedStep,
    EnvChange,
    RolloutBatch,
    VecEnv,
)
from drl.core.errors import BadInput, NonFinite, plural
from drl.core.log import GROUPS, NO_NUMBERS, Episode, Log
from drl.core.network_parts import resolve
from drl.core.normalize import RewardScaler
from drl.core.seeding import stream_of
from drl.core.specs import ActionSpec, Array, EnvValue, ObsSpec
from drl.core.state_files import StateDict
from drl.core.variants import require_variant
from drl.trainer.trainer_loop import Stopped, TrainerLoop

# Logged beside the counters, not as results.
SETTINGS = ("learning_rate", "clip_range", "entropy_coef", "gradient_steps")
MAY_BE_NAN = ("explained_variance",)  # NaN if all returns of a rollout are equal


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Training budget and logging window."""

    total_timesteps: int | None = None  # budget in environment steps; schedules span it, and training ends there
    num_episodes: int | None = None  # budget in episodes; if both are None, training never stops
    window: int = 100  # number of recent episodes in logged statistics
    updates_per_log: int | None = None  # updates per learning step; None: the buffer's default
    info_keys: tuple[str, ...] | None = None  # keys of each episode's last info to log; None: all numbers

    def __post_init__(self) -> None:
        for name in ("total_timesteps", "num_episodes", "window", "updates_per_log"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise BadInput(f"{name} is {value}; expected at least 1")


class TrainingStats:
    """Counters and episode statistics shared by all trainers."""

    def __init__(
        self,
        window: int,
        total_timesteps: int | None = None,
        num_episodes: int | None = None,
        info_keys: tuple[str, ...] | None = None,
    ):
        self.total_timesteps: int | None = total_timesteps  # budget: one of these two, or none
        self.num_episodes: int | None = num_episodes
        self.info_keys: tuple[str, ...] | None = info_keys
        self.env_steps: int = 0
        self.learning_steps: int = 0
        self.episodes: int = 0
        self.recent: deque[Episode] = deque(maxlen=window)
        self.finished: list[Episode] = []  # since the last learning step
        self.new_steps: int = 0  # environment steps since then
        self.reward_sum: float = 0.0  # of all environments since then
        self.seconds: float = 0.0  # of work so far

    @property
    def progress(self) -> float:
        """Fraction of the budget used so far, in [0, 1]; 0 without a budget."""
        if self.total_timesteps:
            return min(self.env_steps / self.total_timesteps, 1.0)
        return min(self.episodes / self.num_episodes, 1.0) if self.num_episodes else 0.0

    def add(self, steps: int, reward: float, episodes: Iterable[Episode]) -> None:
        """Count environment steps, rewards and finished episodes."""
        self.env_steps += steps
        self.new_steps += steps
        self.reward_sum += reward
        for episode in episodes:
            self.episodes += 1
            if self.info_keys is not None and episode.info:
                info = {name: number for name, number in episode.info.items() if name in self.info_keys}
                episode = episode._replace(info=info)
            self.recent.append(episode._replace(played=None, info=NO_NUMBERS))
            self.finished.append(episode)

    def log(self, learned: dict[str, float], elapsed: float, counters: dict[str, float] | None = None) -> Log:
        """Make the log of a learning step that took `elapsed` seconds; `learned` holds the algorithm's metrics."""
        self.learning_steps += 1
        self.seconds += elapsed
        steps, recent = self.new_steps, self.recent
        rollout = {"rollout_len": float(steps), "mean_reward": self.reward_sum / steps if steps else 0.0}
        trainer: dict[str, float] = {
            "episodes_count": self.episodes,
            "timesteps_count": self.env_steps,
            "rollouts_count": self.learning_steps,
        }
        if self.total_timesteps:
            trainer["total_timesteps"] = self.total_timesteps
        trainer |= counters or {}
        trainer |= {name: learned.pop(name) for name in SETTINGS if name in learned}
        log = Log(
            env_steps=self.env_steps,
            episodes=self.episodes,
            learning_steps=self.learning_steps,
            rollout=_episode_means(self.finished) | rollout,
            recent=_episode_means(recent) | rates(recent) | {"window": len(recent)} if recent else {},
            trainer=trainer,
            learn={name: value for name, value in learned.items() if not math.isnan(value) or name not in MAY_BE_NAN},
            info=info_means(self.finished),
            time={"time_elapsed": elapsed, "steps_per_second": self.env_steps / max(self.seconds, 1e-9)},
            finished=self.finished,
        )
        self.finished, self.new_steps, self.reward_sum = [], 0, 0.0
        numbers = {f"{group}/{name}": value for group in GROUPS for name, value in getattr(log, group).items()}
        if bad := [name for name, value in numbers.items() if not math.isfinite(value)]:
            raise NonFinite(
                f"{', '.join(bad)} became non-finite at environment step {log.env_steps}; "
                f"try a smaller learning rate, gradient clipping (--max-grad-norm) or reward normalization"
            )
        return log

    def state_dict(self) -> StateDict:
        return {
            "counters": [self.env_steps, self.learning_steps, self.episodes, self.new_steps],
            "numbers": [self.reward_sum, self.seconds],
            "recent": [episode.plain() for episode in self.recent],
            "finished": [episode.plain() for episode in self.finished],
        }

    def load_state_dict(self, state: StateDict) -> None:
        self.env_steps, self.learning_steps, self.episodes, self.new_steps = (int(n) for n in state["counters"])
        self.reward_sum, self.seconds = (float(number) for number in state["numbers"])
        self.recent = deque((Episode.from_plain(e) for e in state["recent"]), maxlen=self.recent.maxlen)
        self.finished = [Episode.from_plain(e) for e in state["finished"]]


class Collector:
    """Steps environments of this process."""

    may_stop = True
    lost: str | None = None

    def __init__(self, envs: VecEnv, agent: Agent):
        self.envs: VecEnv = envs
        self.agent: Agent = agent
        self.num_envs: int = envs.num_envs
        self.vectorization: str = envs.vectorization
        self.obs_spec: ObsSpec = envs.obs_spec
        self.action_spec: ActionSpec = envs.action_spec
        self.obs: Array | None = None
        self.action: Array | None = None  # decided, but not yet taken
        self.rnn_state: Array | None = None  # of a recurrent agent, before it decided
        self.in_env_step: bool = False

    def step(self, env_steps: int) -> CollectedStep:
        """Step every environment once."""
        envs, agent = self.envs, self.agent
        if self.obs is None:
            self.obs = envs.reset()
            agent.begin()
        obs, mask, exploration = self.obs, envs.action_mask, agent.exploration
        if self.action is None:
            if exploration is not None:
                exploration.at(env_steps)
            if agent.recurrent:
                self.rnn_state = agent.recall(envs.num_envs)
            self.action = agent.decide(obs, True, mask)
        self.in_env_step = True
        step = envs.step(agent.action_spec.to_env(self.action))
        self.in_env_step = False
        collected = CollectedStep(obs, self.action, step, mask, self.rnn_state)
        self.obs, self.action = step.obs, None
        if agent.recurrent or (exploration is not None and exploration.carries):
            agent.begin(step.over)
        return collected

    def attach(self, agent: Agent) -> None:
        self.agent = agent

    def learned(self) -> None:
        """Do nothing: the agent shares the learner's weights."""

    def get(self, name: str) -> list[EnvValue]:
        return self.envs.get(name)

    def set(self, name: str, value: object) -> None:
        self.envs.set(name, value)

    def call(self, name: str, /, *args: object, **kwargs: object) -> list[EnvValue]:
        return self.envs.call(name, *args, **kwargs)

    @property
    def changes(self) -> list[EnvChange]:
        return self.envs.changes

    def repeats(self, env_steps: int) -> bool:
        return self.in_env_step and self.envs.repeats(env_steps)

    def crashed_episode(self, index: int) -> Episode | None:
        if self.action is None or (episode := self.envs.running_episode(index)) is None or episode.played is None:
            return None
        return episode.then(self.agent.action_spec.to_env(self.action)[index])

    def numbers(self) -> dict[str, float]:
        return {}

    def begin_anew(self) -> None:
        self.obs, self.action = None, None

    def state_dict(self) -> StateDict:
        arrays = {"obs": self.obs, "action": self.action, "rnn_state": self.rnn_state}
        copies = {name: None if array is None else array.copy() for name, array in arrays.items()}
        return copies | {"envs": self.envs.state_dict()}

    def load_state_dict(self, state: StateDict) -> str | None:
        self.obs, self.action, self.rnn_state = (
            None if state[name] is None else np.array(state[name]) for name in ("obs", "action", "rnn_state")
        )
        return self.envs.load_state_dict(state["envs"])


BatchT = TypeVar("BatchT", bound=Batch)


class Trainer(TrainerLoop, Generic[BatchT]):
    """Yields one `Log` per learning step. You can break out of the loop, inspect, save, and iterate again: training
    continues and never resets.

    With a replay buffer, training ends exactly at the budget; otherwise it finishes the last rollout or batch of
    episodes.
    """

    def __init__(
        self,
        envs: VecEnv | AnyCollector,
        agent: Agent,
        algorithm: Algorithm[BatchT],
        buffer: Buffer[BatchT] | None = None,  # None: the algorithm's default
        config: TrainerConfig | None = None,
        reward_scaler: RewardScaler | None = None,
    ):
        if buffer is None:
            buffer = _buffer_for(algorithm, envs)
        buffer.attach(getattr(algorithm, "config", None))
        if buffer.num_envs != envs.num_envs:
            raise BadInput(f"the buffer is for {plural(buffer.num_envs, 'environment')}, but there are {envs.num_envs}")
        if agent.recurrent and not buffer.takes_sequences:
            raise BadInput(f"a recurrent agent learns from sequences: use a RolloutBuffer, not {type(buffer).__name__}")
        if needs := getattr(algorithm, "needs", None):  # a user's own algorithm may not have it
            require_variant(type(algorithm).__name__, needs, getattr(agent, "variant", None))
        if agent.exploration is not None:
            agent.exploration.begin_training(buffer.first_update)
        elif agent.variant == "q_value" or getattr(getattr(agent, "distribution", None), "kind", "") == "deterministic":
            raise BadInput(
                f"this {type(agent).__name__} always takes its best action and would never explore; make it with "
                f"{type(agent).__name__}(model, envs), or set its exploration"
            )
        self.envs: VecEnv | AnyCollector = envs
        self.agent: Agent = agent
        self.algorithm: Algorithm[BatchT] = algorithm
        self.buffer: Buffer[BatchT] = buffer
        self.opened: contextlib.ExitStack = contextlib.ExitStack()
        self.collector: AnyCollector = Collector(envs, agent) if isinstance(envs, VecEnv) else envs
        self.collector.attach(agent)
        self.config: TrainerConfig = config or TrainerConfig()
        self.updates_per_log: int = self.config.updates_per_log or buffer.updates_per_log
        self.reward_scaler = reward_scaler
        self.seen: list[Array] = []  # observations since the last learning step, for the normalizer
        self.rewards: list[Array] = []  # [3, N] rewards, ends and valid rows of replayed steps since then
        # Of the current learning step: fraction of the budget used before it, for schedules; metrics of its updates;
        # seconds so far.
        self.progress: float | None = None
        self.learned: list[dict[str, float]] = []
        self.seconds: float = 0.0
        limits = (self.config.total_timesteps, self.config.num_episodes)
        self.stats: TrainingStats = TrainingStats(self.config.window, *limits, self.config.info_keys)

    def step(self) -> Log:
        started = time.perf_counter()
        if self.progress is None:
            self.progress = self.stats.progress
        learned, ends_anywhere = self.learned, self.buffer.stops_anywhere
        while len(learned) < self.updates_per_log and (self.buffer.ready or not (ends_anywhere and self.over)):
            if self.should_stop() and self.collector.may_stop:
                self.seconds += time.perf_counter() - started
                raise Stopped
            if not self.buffer.ready:
                self._add(self.collector.step(self.stats.env_steps))
                continue
            if ends_anywhere and not self.stats.learning_steps and not learned:
                self._update_statistics()  # of the warm-up, before the first update
            batch = self.buffer.take()
            update = self.algorithm.learn(self._prepared(batch), self.progress)
            self.collector.learned()
            if update.priority is not None:
                self.buffer.update_priorities(batch.index, update.priority)  # type: ignore[attr-defined]
            learned.append(update.log)
        self._update_statistics()
        exploration = self.agent.exploration
        settings = {} if exploration is None else exploration.at(self.stats.env_steps)
        settings |= self.collector.numbers()
        log = self.stats.log(_means(learned), self.seconds + time.perf_counter() - started, settings)
        self.progress, self.learned, self.seconds = None, [], 0.0
        return log

    def _add(self, collected: CollectedStep) -> None:
        """Store and count one step of the environments."""
        obs, action, step, mask, rnn_state = collected
        if self.collector.lost is not None:
            self.inexact, self.collector.lost = self.collector.lost, None
            self.buffer.cut()
        if rnn_state is not None:
            self.buffer.remember(rnn_state)
        self.buffer.add(obs, action, step, mask)
        if self.agent.normalizer is not None:
            self.seen.append(obs[step.valid])
        if self.reward_scaler is not None and self.buffer.stops_anywhere:
            self.rewards.append(np.stack([step.reward, step.terminated | step.truncated, step.valid]))
        self.stats.add(int(np.count_nonzero(step.valid)), float(step.reward.sum()), step.episodes)

    @property
    def vectorization(self) -> str:
        """Vectorization of the environments."""
        return self.collector.vectorization

    @property
    def changes(self) -> list[EnvChange]:
        """Changes made to the environments; see `VecEnv.changes`."""
        return self.collector.changes

    @property
    def obs(self) -> Array | None:
        """Current observations; None before the first step."""
        return self.collector.obs

    @property
    def may_be_left(self) -> bool:
        return self.collector.in_env_step or super().may_be_left

    @property
    def whole(self) -> bool:
        """Also True if an interrupted environment step can be replayed."""
        return super().whole or self.collector.repeats(self.stats.env_steps)

    @property
    def over(self) -> bool:
        """Whether the budget is used up and no update of a replay buffer is due."""
        if self.stats.progress < 1.0:
            return False
        return not (self.buffer.stops_anywhere and self.buffer.ready)

    def _prepared(self, batch: BatchT) -> BatchT:
        """Return the batch with observations normalized as they were when acting, and rewards scaled."""
        if self.agent.normalizer is not None:
            batch = batch.normalized(self.agent.normalizer)
        if self.reward_scaler is not None:
            if isinstance(batch, RolloutBatch):
                self.reward_scaler.update(batch.reward, batch.terminated | batch.truncated, batch.valid)
            batch = replace(batch, reward=self.reward_scaler(batch.reward))
        return batch

    def _update_statistics(self) -> None:
        """Update running statistics from data collected since the last call. Reward statistics of rollouts are updated
        before learning, in `_prepared`."""
        if self.agent.normalizer is not None and self.seen:
            self.agent.normalizer.update(np.concatenate(self.seen))
        if self.reward_scaler is not None and self.rewards:
            reward, ended, valid = np.stack(self.rewards, axis=1)
            self.reward_scaler.update(reward, ended > 0, valid > 0)
        self.seen, self.rewards = [], []

    def state_dict(self) -> StateDict:
        scaler = self.reward_scaler
        return {
            "stats": self.stats.state_dict(),
            "seen": [array.copy() for array in self.seen],
            "rewards": [array.copy() for array in self.rewards],
            "progress": self.progress,
            "learned": [dict(log) for log in self.learned],
            "seconds": self.seconds,
            "buffer": self.buffer.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "learning_rate_factor": getattr(self.algorithm, "learning_rate_factor", 1.0),
            "agent": self.agent.state_dict(),
            "reward_scaler": None if scaler is None else scaler.state_dict(),
        } | self.collector.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        self.stats.load_state_dict(state["stats"])
        self.seen = [np.array(array) for array in state["seen"]]
        self.rewards = [np.array(array) for array in state["rewards"]]
        self.progress, self.learned, self.seconds = state["progress"], state["learned"], state["seconds"]
        missing = (self.buffer.load_state_dict(state["buffer"]), self.collector.load_state_dict(state))
        self.inexact = "; ".join(filter(None, missing)) or None
        self.algorithm.load_state_dict(state["algorithm"])
        if (factor := state["learning_rate_factor"]) != getattr(self.algorithm, "learning_rate_factor", 1.0):
            self.algorithm.learning_rate_factor = factor  # type: ignore[attr-defined]
        self.agent.load_state_dict(state["agent"])
        if self.reward_scaler is not None:
            self.reward_scaler.load_state_dict(state["reward_scaler"])
        if self.inexact is not None:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Drop the running episodes; the next step starts new ones."""
        self.collector.begin_anew()
        self.buffer.cut()
        if self.reward_scaler is not None:
            self.reward_scaler.returns[:] = 0.0


def _buffer_for(algorithm: Algorithm[BatchT], envs: VecEnv | AnyCollector) -> Buffer[BatchT]:
    """Make the buffer of an algorithm's record with its default settings."""
    record = getattr(algorithm, "record", None)
    if record is None:
        raise BadInput(f"{type(algorithm).__name__} has no record that names its buffer; pass one: buffer=…")
    options = {"rng": stream_of(envs, "replay"), "frame_stack": getattr(envs, "frame_stack", 1)}
    make = resolve(record.buffer.make)
    return make(algorithm.config, record.buffer.config(), envs, **options)  # type: ignore[attr-defined]


def _means(logs: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the updates that report it."""
    if len(logs) == 1:
        return logs[0]
    values: dict[str, list[float]] = {}
    for log in logs:
        for name, value in log.items():
            values.setdefault(name, []).append(value)
    return {name: float(np.mean(reported)) for name, reported in values.items()}


def rates(episodes: Iterable[Episode]) -> dict[str, float]:
    """Return the fraction of episodes that terminated, and the success rate if episodes report success."""
    ended = [(episode.terminated, episode.success) for episode in episodes]
    judged = [success for _, success in ended if success is not None]
    success_rate = {"success_rate": fmean(judged)} if judged else {}
    return {"terminated_rate": fmean([terminated for terminated, _ in ended])} | success_rate


def _episode_means(episodes: Collection[Episode]) -> dict[str, float]:
    if not episodes:
        return {}
    return {
        "mean_ep_len": fmean([e.length for e in episodes]),
        "mean_ep_return": fmean([e.episode_return for e in episodes]),
    }


def info_means(episodes: Iterable[Episode]) -> dict[str, float]:
    """Return the mean of each number over the episodes whose last info has it.

    >>> episodes = [Episode(0.0, 1, True, None, 0, info=info) for info in ({"x": 1.0}, {"x": 2.0, "y": 5.0}, {})]
    >>> info_means(episodes)
    {'x': 1.5, 'y': 5.0}
    """
    values: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.info.items():
            values.setdefault(name, []).append(value)
    means = {name: math.fsum(numbers) / len(numbers) for name, numbers in values.items()}
    return {name: mean for name, mean in means.items() if math.isfinite(mean)}
