"""The teacher. Each `next()` is one learning step: collect, then learn, then one `Log`."""

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from drl.core.contracts import Agent, Algorithm, Memory, World
from drl.core.errors import BadInput, NonFinite
from drl.core.log import Episode, Log
from drl.core.normalise import RewardScaler
from drl.core.schedules import Schedule
from drl.core.specs import Array


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    total_timesteps: int | None = None  # the budget in environment steps that schedules run over
    num_episodes: int | None = None  # or the budget in episodes
    window: int = 100  # how many recent episodes the running statistics cover
    updates_per_log: int = 1  # rounds of collecting and learning that make up one learning step
    exploration: Schedule | None = None  # of the agent's epsilon, over environment steps

    def __post_init__(self) -> None:
        for name in ("total_timesteps", "num_episodes", "window", "updates_per_log"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise BadInput(f"{name} is {value}; expected at least 1")


class Trainer:
    """Yields one Log per learning step. Iterating resumes; it never resets.

    All state is on this object and its collaborators, none in the generator: break out of the loop, look around,
    save, and iterate again.
    """

    def __init__(
        self,
        world: World,
        agent: Agent,
        algorithm: Algorithm,
        memory: Memory,
        config: TrainerConfig | None = None,
        reward_scaler: RewardScaler | None = None,
    ):
        if memory.num_envs != world.num_envs:
            raise BadInput(f"the memory is for {memory.num_envs} worlds, but there are {world.num_envs}")
        self.world, self.agent, self.algorithm, self.memory = world, agent, algorithm, memory
        self.config = config or TrainerConfig()
        self.reward_scaler = reward_scaler
        self.obs: Array | None = None  # what the worlds show now; None before the first step
        self.env_steps = 0
        self.learning_steps = 0
        self.episodes = 0
        self.recent: deque[Episode] = deque(maxlen=self.config.window)
        self.finished: list[Episode] = []  # since the last learning step
        self.seen: list[Array] = []  # observations since then, for the normaliser
        self.reward_sum = 0.0  # of all worlds since then
        self.seconds = 0.0  # spent in `step`

    def __call__(self) -> Iterator[Log]:
        while True:
            yield self.step()

    def step(self) -> Log:
        started, steps_before, progress = time.perf_counter(), self.env_steps, self.progress
        rounds = [self._round(progress) for _ in range(self.config.updates_per_log)]
        if self.agent.normaliser is not None:
            self.agent.normaliser.update(np.concatenate(self.seen))
        self.learning_steps += 1
        elapsed = time.perf_counter() - started
        self.seconds += elapsed
        log = self._log(_means(rounds), elapsed, self.env_steps - steps_before)
        self.finished, self.seen, self.reward_sum = [], [], 0.0
        _check_finite(log)
        return log

    def _round(self, progress: float) -> dict[str, float]:
        """Collect until the memory is ready, learn once, and give what the algorithm reports."""
        while not self.memory.ready:
            self._collect()
        batch = self.memory.take()
        logged = self.algorithm.learn(self._prepared(batch), progress)
        priority: Any = logged.pop("priority", None)
        if priority is not None and hasattr(self.memory, "reprioritise"):
            self.memory.reprioritise(batch.index, priority)
        return logged

    def _collect(self) -> None:
        """One step of every world."""
        if self.obs is None:
            self.obs = self.world.reset()
        if self.config.exploration is not None:
            self.agent.epsilon = self.config.exploration(self.env_steps)  # type: ignore[attr-defined]
        action = self.agent.decide(self.obs, explore=True)
        step = self.world.step(self.agent.action_spec.to_env(action))
        self.memory.add(self.obs, action, step)
        if self.agent.normaliser is not None:
            self.seen.append(self.obs[step.valid])
        self.obs = step.obs
        self.reward_sum += float(step.reward.sum())
        self.env_steps += int(np.count_nonzero(step.valid))
        if step.episodes:
            self.episodes += len(step.episodes)
            self.recent.extend(step.episodes)
            self.finished.extend(step.episodes)

    @property
    def progress(self) -> float:
        """Share of the budget used so far, in [0, 1]. A learning step is scheduled by where it began."""
        if self.config.total_timesteps:
            return min(self.env_steps / self.config.total_timesteps, 1.0)
        return min(self.episodes / self.config.num_episodes, 1.0) if self.config.num_episodes else 0.0

    def _prepared(self, batch: Any) -> Any:
        """The batch as the learner sees it: observations normalised as they were when acting, rewards scaled."""
        if self.agent.normaliser is not None:
            names = {"obs", "next_obs", "last_obs", "final_obs"} & {field.name for field in fields(batch)}
            batch = replace(batch, **{name: self.agent.normaliser(getattr(batch, name)) for name in names})
        if self.reward_scaler is not None:
            self.reward_scaler.update(batch.reward, batch.terminated | batch.truncated, batch.valid)
            batch = replace(batch, reward=self.reward_scaler(batch.reward))
        return batch

    def _log(self, logged: dict[str, float], elapsed: float, new_steps: int) -> Log:
        rollout = {"rollout_len": float(new_steps), "mean_reward": self.reward_sum / new_steps if new_steps else 0.0}
        counters: dict[str, float] = {
            "episodes_count": self.episodes,
            "timesteps_count": self.env_steps,
            "rollouts_count": self.learning_steps,
        }
        if self.config.total_timesteps:
            counters["total_timesteps"] = self.config.total_timesteps
        if self.config.exploration is not None:
            counters["epsilon"] = self.config.exploration(self.env_steps)
        shown = {name: logged.pop(name) for name in SETTINGS if name in logged}
        return Log(
            env_steps=self.env_steps,
            episodes=self.episodes,
            learning_steps=self.learning_steps,
            rollout=_episode_means(self.finished) | rollout,
            recent=_recent_means(self.recent),
            trainer=counters | shown,
            learn={name: value for name, value in logged.items() if not math.isnan(value) or name not in MAY_BE_NAN},
            time={"time_elapsed": elapsed, "steps_per_second": self.env_steps / self.seconds},
            finished=self.finished,
        )

    def state_dict(self) -> dict[str, Any]:
        scaler = self.reward_scaler
        return {
            "obs": None if self.obs is None else self.obs.copy(),
            "counters": [self.env_steps, self.learning_steps, self.episodes],
            "seconds": self.seconds,
            "recent": [list(episode) for episode in self.recent],
            "finished": [list(episode) for episode in self.finished],
            "seen": [array.copy() for array in self.seen],
            "reward_sum": self.reward_sum,
            "world": self.world.state_dict(),
            "memory": self.memory.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "agent": self.agent.state_dict(),
            "reward_scaler": None if scaler is None else scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.obs = None if state["obs"] is None else np.array(state["obs"])
        self.env_steps, self.learning_steps, self.episodes = (int(count) for count in state["counters"])
        self.seconds = float(state["seconds"])
        self.recent = deque((Episode(*e) for e in state["recent"]), maxlen=self.config.window)
        self.finished = [Episode(*e) for e in state["finished"]]
        self.seen, self.reward_sum = [np.array(array) for array in state["seen"]], float(state["reward_sum"])
        self.world.load_state_dict(state["world"])
        self.memory.load_state_dict(state["memory"])
        self.algorithm.load_state_dict(state["algorithm"])
        self.agent.load_state_dict(state["agent"])
        if self.reward_scaler is not None:
            self.reward_scaler.load_state_dict(state["reward_scaler"])


SETTINGS = ("learning_rate", "clip_range", "gradient_steps")  # logged beside the counters, not as results
MAY_BE_NAN = ("explained_variance",)  # of a rollout whose returns are all equal: nothing to explain


def _means(rounds: list[dict[str, float]]) -> dict[str, float]:
    if len(rounds) == 1:
        return rounds[0]
    return {name: float(np.mean([numbers[name] for numbers in rounds])) for name in rounds[0]}


def _episode_means(episodes: list[Episode]) -> dict[str, float]:
    if not episodes:
        return {}
    return {
        "mean_ep_len": float(np.mean([e.length for e in episodes])),
        "mean_ep_return": float(np.mean([e.episode_return for e in episodes])),
    }


def _recent_means(episodes: deque[Episode]) -> dict[str, float]:
    if not episodes:
        return {}
    success = float(np.mean([e.success for e in episodes]))
    return _episode_means(list(episodes)) | {"success_rate": success, "window": len(episodes)}


def _check_finite(log: Log) -> None:
    bad = [name for name, value in log.flat().items() if not math.isfinite(value)]
    if bad:
        raise NonFinite(
            f"{', '.join(bad)} became non-finite at environment step {log.env_steps}; "
            f"try a smaller learning rate, gradient clipping (--max-grad-norm) or reward normalisation"
        )
