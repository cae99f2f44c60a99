"""The trainer of a fused program. It gives one log per learning step, as `Trainer` does, but computes many learning
steps, a chunk, in one call.

A run can be inspected, saved and stopped only between two chunks. While the logs of a chunk are given, the agent is
already at the chunk's end. So chunks end at the `sync_points`: when an evaluation or a checkpoint is due, log and agent
are in sync.
"""

import math
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.algorithms import find_algorithm
from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.core.agent_files import Start
from drl.core.configs import Config
from drl.core.contracts import Agent, Algorithm, EnvChange, ReachableEnvs
from drl.core.errors import BadInput
from drl.core.log import REPORTED, SUCCESS, TERMINATED, Episode, Log
from drl.core.network_parts import resolve
from drl.core.seeding import Seeds
from drl.core.specs import AnyArray
from drl.core.state_files import StateDict
from drl.engines.jax.agents import JaxAgent
from drl.engines.jax.build import build_learner
from drl.engines.jax.envs import make_jax_env
from drl.engines.jax.envs.jax_env import JaxEnv
from drl.engines.jax.fused.fused_stats import (
    Budget,
    Carry,
    FusedProgram,
    FusedRunningStats,
    Report,
    Setup,
    check_traceable,
)
from drl.engines.jax.layers import Tree, transposed, untransposed
from drl.engines.jax.model_state import restore_state, state_arrays
from drl.envs.episode_stats import judge_success, reward_threshold
from drl.trainer.trainer import TrainerConfig, TrainingStats
from drl.trainer.trainer_loop import Stopped, TrainerLoop

CHUNK_SECONDS = 0.1  # minimum duration of a chunk; shorter ones make the return to Python noticeable
# Speed of a fast core, to estimate durations from sizes. Measured durations would make equal runs differ.
FLOPS, ROW_SECONDS = 1e11, 0.5e-6
MOST_STEPS = 256  # learning steps in a chunk
MOST_ROWS = 1 << 19  # rows in the reports of a chunk


def _chunk(program: FusedProgram, room: int, carry: Carry, count: ArrayLike) -> tuple[Carry, Report]:
    """`count` learning steps, at most `room`. The count is an input, so that one program works for every length."""
    shapes = jax.eval_shape(program.learn_step, carry)[1]
    reports = jax.tree.map(lambda leaf: jnp.zeros((room, *leaf.shape), leaf.dtype), shapes)

    def learn(number: ArrayLike, now: tuple[Carry, Report]) -> tuple[Carry, Report]:
        carry, report = program.learn_step(now[0])
        return carry, jax.tree.map(lambda column, new: column.at[number].set(new), now[1], report)

    result: tuple[Carry, Report] = jax.lax.fori_loop(0, count, learn, (carry, reports))
    return result


@partial(jax.jit, static_argnums=0)
def _begin(program: FusedProgram, params: Tree, keys: jax.Array) -> Carry:
    return jax.vmap(program.begin)(params, keys)


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _one(program: FusedProgram, room: int, carry: Carry, count: ArrayLike) -> tuple[Carry, Report]:
    carry, reports = _chunk(program, room, jax.tree.map(lambda leaf: jnp.squeeze(leaf, 0), carry), count)
    return jax.tree.map(lambda leaf: leaf[None], (carry, reports))


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _several(program: FusedProgram, room: int, carry: Carry, count: ArrayLike) -> tuple[Carry, Report]:
    return jax.vmap(lambda one: _chunk(program, room, one, count))(carry)


class FusedLearner:
    """The state of one or more runs of a program, between two chunks."""

    def __init__(self, program: FusedProgram, params: list[Tree], seeds: list[int]):
        self.program: FusedProgram = program
        self.seeds: list[int] = seeds
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(transposed(each) for each in params))
        keys = np.stack([np.asarray(jax.random.PRNGKey(seed)) for seed in seeds])
        self.carry: Carry = _begin(program, stacked, keys)
        size = sum(np.size(array) for array in jax.tree.leaves(params[0]))
        seconds = program.steps * (ROW_SECONDS + (2 + 6 * program.passes) * size / FLOPS)
        self.room: int = max(1, min(MOST_STEPS, MOST_ROWS // (program.rows * program.num_envs)))
        self.preferred: int = min(self.room, math.ceil(CHUNK_SECONDS / seconds))  # learning steps in a chunk
        self.most_steps: int = program.steps  # environment steps of one learning step

    def advance(self, count: int) -> list[Report]:
        """Take `count` learning steps. Returns one report per seed; the first axis is the learning step."""
        run = _one if len(self.seeds) == 1 else _several
        self.carry, reports = run(self.program, self.room, self.carry, np.int32(count))
        host = jax.tree.map(np.asarray, reports)
        return [jax.tree.map(lambda leaf, i=i: leaf[i, :count], host) for i in range(len(self.seeds))]

    def params(self, index: int) -> Tree:
        """The parameters of one seed, as copies: the next chunk reuses the buffers."""
        params = jax.tree.map(lambda value: np.asarray(value)[index], self.carry.learner.params)
        return jax.tree.map(lambda array: np.array(array, order="C"), untransposed(params))

    def running_stats(self, index: int) -> FusedRunningStats | None:
        """The statistics of one seed's observations; None if they are not normalized."""
        stats = self.carry.running_stats
        return None if stats is None else FusedRunningStats(*(np.asarray(leaf)[index] for leaf in stats))

    def state_dict(self, index: int) -> StateDict:
        """Of one seed."""
        return state_arrays(jax.tree.map(lambda leaf: leaf[index], self.carry))

    def load_state_dict(self, index: int, state: StateDict) -> None:
        one = restore_state(jax.tree.map(lambda leaf: leaf[index], self.carry), state)
        self.carry = jax.tree.map(lambda leaf, new: leaf.at[index].set(new), self.carry, one)


class SeedBatch:
    """Runs of several seeds in one program. Each has its own trainer; all advance together."""

    def __init__(
        self,
        learner: FusedLearner,
        agents: Sequence[Agent],
        config: TrainerConfig,
        sync_points: Sequence[float] = (),  # periods in environment steps
        reward_threshold: float | None = None,  # the return of a success, if the environment does not report success
    ):
        self.learner: FusedLearner = learner
        self.reward_threshold: float | None = reward_threshold
        self.sync_points: list[float] = [every for every in sync_points if every]
        self.computed: list[int] = [0] * len(agents)  # environment steps that the program has taken, per seed
        self.trainers: list[FusedTrainer] = [
            FusedTrainer(self, number, agent, config) for number, agent in enumerate(agents)
        ]

    def advance(self) -> None:
        """Compute one chunk and queue its reports at the trainers."""
        count = self._length()
        started = time.perf_counter()
        reports = self.learner.advance(count)
        seconds = (time.perf_counter() - started) / count
        for number, (trainer, report) in enumerate(zip(self.trainers, reports, strict=True)):
            self.computed[number] += int(report.steps.sum())
            trainer.receive(report, seconds)

    def _length(self) -> int:
        """Learning steps up to the next sync point: the step that passes it is the last of its chunk."""
        ahead = [every - done % every for every in self.sync_points for done in self.computed]
        fitting = min((steps // self.learner.most_steps for steps in ahead), default=self.learner.preferred)
        return int(max(1, min(self.learner.preferred, fitting)))


class PendingStep(NamedTuple):
    """One learning step that is computed but not yet logged."""

    learned: dict[str, float]  # {}: in the warm-up, nothing was learned
    steps: int
    reward: float  # sum over the step
    episodes: list[Episode]
    seconds: float


def in_a_program(what: str) -> BadInput:
    """The error to raise for a part of a run that is compiled."""
    return BadInput(f"{what} cannot be reached: this run is a compiled program; use --vectorization sync")


class FusedTrainer(TrainerLoop):
    """Yields one Log per learning step, as `Trainer` does. Iterating resumes; it never resets."""

    vectorization = "jax"

    def __init__(self, seed_batch: SeedBatch, number: int, agent: Agent, config: TrainerConfig):
        self.seed_batch: SeedBatch = seed_batch
        self.number: int = number
        self.agent: Agent = agent
        self.config: TrainerConfig = config
        self.stats: TrainingStats = TrainingStats(config.window, config.total_timesteps, config.num_episodes)
        self.opened: ExitStack[bool | None] = ExitStack()
        self.pending: deque[PendingStep] = deque()
        self._left: StateDict | None = None  # its last state, if it was left before the end

    def set_budget(self, total_timesteps: int) -> None:
        raise BadInput("the budget is compiled into this program; give total_timesteps to make_trainer, or drl.train")

    @property
    def envs(self) -> ReachableEnvs:
        """There is no way into a compiled program."""
        raise in_a_program("envs")

    @property
    def changes(self) -> list[EnvChange]:
        """None: see `envs`."""
        return []

    @property
    def algorithm(self) -> NoReturn:
        """It is a part of the compiled program."""
        raise in_a_program("algorithm")

    @property
    def buffer(self) -> NoReturn:
        """It is a part of the compiled program."""
        raise in_a_program("buffer")

    def leave(self) -> None:
        if len(self.seed_batch.trainers) > 1:
            self._left = self.state_dict()

    def step(self) -> Log:
        learned: dict[str, float] = {}
        seconds = 0.0
        while not learned and not self.over:
            if not self.pending:
                if self.should_stop():
                    raise Stopped
                self.seed_batch.advance()
            taken = self.pending.popleft()
            learned, seconds = dict(taken.learned), seconds + taken.seconds
            self.stats.add(taken.steps, taken.reward, taken.episodes)
        exploration = self.agent.exploration
        settings = {} if exploration is None else exploration.at(self.stats.env_steps)
        return self.stats.log(learned, seconds, settings)

    @property
    def in_sync(self) -> bool:
        return not self.pending

    def receive(self, report: Report, seconds: float) -> None:
        """Queue the learning steps of a chunk, each of which took `seconds`, and update the agent."""
        if self._left is not None:  # the other seeds continue without it
            return
        episodes: list[list[Episode]] = [[] for _ in report.steps]
        step, _, env = place = np.nonzero(report.ends.how)
        columns: tuple[AnyArray, ...] = (step, *(column[place] for column in report.ends), env)
        for number, how, total, length, where in zip(*(column.tolist() for column in columns), strict=True):
            reported = bool(how & SUCCESS) if how & REPORTED else None
            success = judge_success(reported, total, self.seed_batch.reward_threshold)
            episodes[number].append(Episode(total, length, bool(how & TERMINATED), success, where))
        learn, counts = ({name: values.tolist() for name, values in part.items()} for part in report[:2])
        numbers = zip(report.steps.tolist(), report.reward.tolist(), strict=True)
        for i, (steps, reward) in enumerate(numbers):
            if not steps:  # after the end of the budget, while other seeds continue
                continue
            learned = {name: values[i] / counts[name][i] for name, values in learn.items() if counts[name][i]}
            self.pending.append(PendingStep(learned, steps, reward, episodes[i], seconds))
        self._refresh()

    def _refresh(self) -> None:
        learner = self.seed_batch.learner
        self.agent.model_state.params = learner.params(self.number)  # type: ignore[attr-defined]
        running_stats = learner.running_stats(self.number)
        if running_stats is not None and self.agent.normalizer is not None:
            state = {"clip": self.agent.normalizer.clip, "stats": {"": running_stats._asdict()}}
            self.agent.normalizer.load_state_dict(state)

    def state_dict(self) -> StateDict:
        """The state of this seed."""
        if self._left is not None:
            return self._left
        pending = [taken._asdict() | {"episodes": [e.plain() for e in taken.episodes]} for taken in self.pending]
        return {
            "stats": self.stats.state_dict(),
            "pending": pending,
            "computed": self.seed_batch.computed[self.number],
            "learner": self.seed_batch.learner.state_dict(self.number),
            "agent": self.agent.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        self.stats.load_state_dict(state["stats"])
        self._left = None
        self.pending.clear()
        for taken in state["pending"]:
            episodes = [Episode.from_plain(episode) for episode in taken["episodes"]]
            self.pending.append(PendingStep(**taken | {"episodes": episodes}))
        self.seed_batch.computed[self.number] = int(state["computed"])
        self.seed_batch.learner.load_state_dict(self.number, state["learner"])
        self.agent.load_state_dict(state["agent"])


def build_fused(
    algorithm: str,
    env: JaxEnv,
    configs: Sequence[Config],  # of the model, the algorithm, and optionally its buffer and exploration
    seeds: Sequence[int],
    num_envs: int,
    budget: Budget,
    normalize_obs: bool = False,
    normalize_reward: bool = False,
    start: Start | None = None,  # weights to begin with
) -> tuple[FusedLearner, list[JaxAgent]]:
    """One program for all seeds, and one agent per seed."""
    record = find_algorithm(algorithm)
    model, config, *rest = configs
    buffer, exploration = rest or (record.buffer.config(), record.exploration())
    made = [build_learner(algorithm, env, (model, config), Seeds(seed), normalize_obs, start=start) for seed in seeds]
    setup = Setup(env, num_envs, budget, buffer, exploration, normalize_obs, normalize_reward)
    program = _program(made[0][1], setup)
    params = [agent.model_state.params for agent, _ in made]
    keys = [Seeds(seed).integer("fused") for seed in seeds]
    return FusedLearner(program, params, keys), [agent for agent, _ in made]


def compile_trainer(
    env: str | JaxEnv,
    agent: JaxAgent,
    algorithm: Algorithm[Any],
    num_envs: int = 1,
    config: TrainerConfig | None = None,  # with a budget, which is compiled too
    *,
    buffer: Config = None,  # settings of the algorithm's buffer; None: its defaults
    exploration: Config = None,  # None: that of the algorithm's record
    normalize_reward: bool = False,
    seed: int = 0,
) -> FusedTrainer:
    """A `Trainer` whose environments, rollouts and updates are one compiled program."""
    record: AlgorithmRecord = algorithm.record  # type: ignore[attr-defined]
    config = config or TrainerConfig()
    if config.total_timesteps is None and config.num_episodes is None:
        raise BadInput("a compiled program needs a budget; pass config=drl.TrainerConfig(total_timesteps=…)")
    threshold = reward_threshold(env) if isinstance(env, str) else None
    setup = Setup(
        make_jax_env(env) if isinstance(env, str) else env,
        num_envs,
        Budget(config.total_timesteps, config.num_episodes),
        buffer or record.buffer.config(),
        exploration or record.exploration(),
        agent.normalizer is not None,
        normalize_reward,
    )
    learner = FusedLearner(_program(algorithm, setup), [agent.model_state.params], [Seeds(seed).integer("fused")])
    return SeedBatch(learner, [agent], config, reward_threshold=threshold).trainers[0]


def _program(algorithm: Algorithm[Any], setup: Setup) -> FusedProgram:
    """The program of an algorithm's record."""
    record: AlgorithmRecord = algorithm.record  # type: ignore[attr-defined]
    if record.fused is None:
        raise BadInput(f"{record.name} cannot be compiled together with its environment; use --vectorization sync")
    if getattr(setup.buffer, "checkpoint_rows", None) is not None:
        raise BadInput("checkpoint_rows is not for a compiled program, whose whole state is stored; leave it out")
    check_traceable(algorithm.config)  # type: ignore[attr-defined]
    check_traceable(setup.exploration)
    program: FusedProgram = resolve(record.fused).make(algorithm.pure, setup)  # type: ignore[attr-defined]
    return program
