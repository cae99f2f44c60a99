"""Compile environment, rollout and update into one program: from names and configs, or from parts made by hand."""

from collections.abc import Sequence
from typing import Any

from drl.algorithms import find_algorithm
from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.core.agent_files import Start
from drl.core.configs import Config
from drl.core.contracts import Algorithm
from drl.core.errors import BadInput
from drl.core.network_parts import resolve
from drl.core.seeding import Seeds
from drl.engines.jax.agents import JaxAgent
from drl.engines.jax.build import build_learner
from drl.engines.jax.envs import make_jax_env
from drl.engines.jax.envs.jax_env import JaxEnv
from drl.engines.jax.fused.counters import Budget, Setup, check_traceable
from drl.engines.jax.fused.fused_learner import FusedLearner
from drl.engines.jax.fused.fused_trainer import FusedTrainer, SeedBatch
from drl.envs.episode_stats import reward_threshold
from drl.trainer.trainer import TrainerConfig


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


def _program(algorithm: Algorithm[Any], setup: Setup) -> Any:
    """The program of an algorithm's record."""
    record: AlgorithmRecord = algorithm.record  # type: ignore[attr-defined]
    if record.fused is None:
        raise BadInput(f"{record.name} cannot be compiled together with its environment; use --vectorization sync")
    if getattr(setup.buffer, "checkpoint_rows", None) is not None:
        raise BadInput("checkpoint_rows is not for a compiled program, whose whole state is stored; leave it out")
    check_traceable(algorithm.config)  # type: ignore[attr-defined]
    check_traceable(setup.exploration)
    return resolve(record.fused).make(algorithm.pure, setup)  # type: ignore[attr-defined]
