"""The trainer. Each `next()` is one learning step: collect, then learn, then one `Log`."""

import time
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from drl.core.contracts import Agent, Algorithm, Buffer, VecEnv
from drl.core.errors import BadInput
from drl.core.log import Log
from drl.core.normalize import RewardScaler
from drl.core.schedules import Schedule
from drl.core.specs import Array
from drl.core.variants import require_variant
from drl.trainer.training_stats import TrainerLoop, TrainingStats


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    total_timesteps: int | None = None  # the budget in environment steps: schedules run over it, iterating ends at it
    num_episodes: int | None = None  # or the budget in episodes; neither: iterating goes on for ever
    window: int = 100  # how many recent episodes the running statistics cover
    updates_per_log: int = 1  # rounds of collecting and learning that make up one learning step
    exploration: Schedule | None = None  # of the agent's epsilon, over environment steps

    def __post_init__(self) -> None:
        for name in ("total_timesteps", "num_episodes", "window", "updates_per_log"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise BadInput(f"{name} is {value}; expected at least 1")


class Trainer(TrainerLoop):
    """Yields one Log per learning step. Iterating resumes; it never resets.

    A buffer that can stop anywhere (a replay) ends the run at the very step that uses up the budget; one that hands
    out whole rollouts or episodes fills the last of them first. All state is on this object and its collaborators,
    none in the generator: break out of the loop, look around, save, and iterate again.
    """

    def __init__(
        self,
        envs: VecEnv,
        agent: Agent,
        algorithm: Algorithm,
        buffer: Buffer,
        config: TrainerConfig | None = None,
        reward_scaler: RewardScaler | None = None,
    ):
        if buffer.num_envs != envs.num_envs:
            raise BadInput(f"the buffer is for {buffer.num_envs} environments, but there are {envs.num_envs}")
        if agent.recurrent and not hasattr(buffer, "remember"):
            raise BadInput(f"a recurrent agent learns from sequences: use a RolloutBuffer, not {type(buffer).__name__}")
        if needs := getattr(algorithm, "needs", None):  # an algorithm of the user's own may not say
            require_variant(type(algorithm).__name__, needs, getattr(agent, "variant", None))
        self.envs, self.agent, self.algorithm, self.buffer = envs, agent, algorithm, buffer
        self.config = config or TrainerConfig()
        self.reward_scaler = reward_scaler
        self.obs: Array | None = None  # what the environments show now; None before the first step
        self.seen: list[Array] = []  # observations since the last learning step, for the normalizer
        self.stats = TrainingStats(self.config.window, self.config.total_timesteps, self.config.num_episodes)

    def step(self) -> Log:
        started, progress = time.perf_counter(), self.stats.progress  # scheduled by where the learning step begins
        rounds: list[dict[str, float]] = []
        while len(rounds) < self.config.updates_per_log and (learned := self._round(progress)) is not None:
            rounds.append(learned)
        if self.agent.normalizer is not None and self.seen:
            self.agent.normalizer.update(np.concatenate(self.seen))
        self.seen = []
        counters = {}
        if self.config.exploration is not None:
            counters["epsilon"] = self.config.exploration(self.env_steps)
        return self.stats.log(_means(rounds), time.perf_counter() - started, counters)

    def _round(self, progress: float) -> dict[str, float] | None:
        """Collect until the buffer is ready, learn once, and give what the algorithm reports; None where the budget
        was used up before."""
        while not self.buffer.ready:
            if self.buffer.stops_anywhere and self.over:
                return None
            self._collect()
        batch = self.buffer.take()
        logged = self.algorithm.learn(self._prepared(batch), progress)
        priority: Any = logged.pop("priority", None)
        if priority is not None and hasattr(self.buffer, "update_priorities"):
            self.buffer.update_priorities(batch.index, priority)
        return logged

    def _collect(self) -> None:
        """One step of every environment."""
        if self.obs is None:
            self.obs = self.envs.reset()
            self.agent.begin()
        if self.config.exploration is not None:
            self.agent.epsilon = self.config.exploration(self.env_steps)  # type: ignore[attr-defined]
        if self.agent.recurrent:
            self.buffer.remember(self.agent.recall(self.envs.num_envs))  # type: ignore[attr-defined]
        action = self.agent.decide(self.obs, explore=True)
        step = self.envs.step(self.agent.action_spec.to_env(action))
        self.buffer.add(self.obs, action, step)
        if self.agent.normalizer is not None:
            self.seen.append(self.obs[step.valid])
        if self.agent.recurrent:
            self.agent.begin(step.over)
        self.obs = step.obs
        self.stats.note(int(np.count_nonzero(step.valid)), float(step.reward.sum()), step.episodes)

    @property
    def vectorization(self) -> str:
        return self.envs.vectorization

    @property
    def over(self) -> bool:
        """Whether the budget is used up, and every update made that a replay owes for it."""
        return super().over and not (self.buffer.stops_anywhere and self.buffer.ready)

    def _prepared(self, batch: Any) -> Any:
        """The batch as the learner sees it: observations normalized as they were when acting, rewards scaled."""
        if self.agent.normalizer is not None:
            names = {"obs", "next_obs", "last_obs", "final_obs"} & {field.name for field in fields(batch)}
            batch = replace(batch, **{name: self.agent.normalizer(getattr(batch, name)) for name in names})
        if self.reward_scaler is not None:
            self.reward_scaler.update(batch.reward, batch.terminated | batch.truncated, batch.valid)
            batch = replace(batch, reward=self.reward_scaler(batch.reward))
        return batch

    def state_dict(self) -> dict[str, Any]:
        scaler = self.reward_scaler
        return {
            "obs": None if self.obs is None else self.obs.copy(),
            "stats": self.stats.state_dict(),
            "seen": [array.copy() for array in self.seen],
            "envs": self.envs.state_dict(),
            "buffer": self.buffer.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "agent": self.agent.state_dict(),
            "reward_scaler": None if scaler is None else scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.obs = None if state["obs"] is None else np.array(state["obs"])
        self.stats.load_state_dict(state["stats"])
        self.seen = [np.array(array) for array in state["seen"]]
        self.envs.load_state_dict(state["envs"])
        self.buffer.load_state_dict(state["buffer"])
        self.algorithm.load_state_dict(state["algorithm"])
        self.agent.load_state_dict(state["agent"])
        if self.reward_scaler is not None:
            self.reward_scaler.load_state_dict(state["reward_scaler"])


def _means(rounds: list[dict[str, float]]) -> dict[str, float]:
    if len(rounds) == 1:
        return rounds[0]
    return {name: float(np.mean([numbers[name] for numbers in rounds])) for name in (rounds[0] if rounds else ())}
