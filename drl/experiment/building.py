"""From an `Experiment` to a trainer: engine, environments, agent, algorithm and memory, by their names."""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from drl.buffers.episode_buffer import EpisodeBuffer
from drl.buffers.replay_buffer import ReplayBuffer
from drl.buffers.rollout_buffer import RolloutBuffer
from drl.core.contracts import VecEnv
from drl.core.errors import BadInput, MissingExtra
from drl.core.normalize import RewardScaler
from drl.core.schedules import epsilon_schedule
from drl.core.seeding import Seeds
from drl.engines.jax.fused.fused_trainer import FusedTrainer, SeedBatch
from drl.envs.episode_stats import reward_threshold
from drl.experiment.config import Experiment
from drl.experiment.open_envs import open_vec_env
from drl.trainer.trainer import Trainer, TrainerConfig

if TYPE_CHECKING:
    from drl.engines.jax.fused.fused_trainer import SeedBatch


@contextlib.contextmanager
def open_trainer(experiment: Experiment, sync_points: tuple[float, ...] = ()) -> Iterator[Trainer | FusedTrainer]:
    """The trainer of a run; its environments are closed at the end. `sync_points`: see `SeedBatch`."""
    run = experiment.run
    if run.num_seeds > 1:
        raise BadInput(f"num_seeds is {run.num_seeds}; `train` is for one seed, `train_seeds` for several")
    if in_one_program(experiment):
        yield build_seed_batch(experiment, sync_points).trainers[0]
        return
    start_engine(experiment)
    options: dict[str, Any] = {"frame_stack": run.frame_stack, "env_kwargs": run.env_arguments}
    with open_vec_env(run.env, run.num_envs, run.seed, vectorization=run.vectorization, **options) as envs:
        if run.engine == "torch":
            _set_threads(run.threads, envs)
        yield build_trainer(experiment, envs)


def in_one_program(experiment: Experiment) -> bool:
    """Whether the environment is compiled together with its learner."""
    run = experiment.run
    if run.engine != "jax":
        if run.vectorization == "jax":
            raise BadInput("vectorization is 'jax', an environment inside a compiled program; that needs --engine jax")
        if run.num_seeds > 1:
            raise BadInput(f"num_seeds is {run.num_seeds}: several seeds in one program need --engine jax")
        return False
    start_engine(experiment)
    from drl.engines.jax.envs import has_jax_env

    if run.vectorization == "jax" or run.num_seeds > 1:
        if run.frame_stack > 1:
            raise BadInput("frame_stack is not for environments inside a compiled program; use --vectorization sync")
        if run.vectorization not in ("auto", "jax"):
            raise BadInput(
                f"num_seeds is {run.num_seeds} with vectorization {run.vectorization!r}; use --vectorization jax"
            )
        return True
    return run.vectorization == "auto" and run.frame_stack == 1 and has_jax_env(run.env)


def start_engine(experiment: Experiment) -> None:
    """Settings that have to be made before an engine is first used, and those it does not have."""
    run = experiment.run
    if run.engine == "torch":
        return
    if run.compile:
        raise BadInput("compile is a switch of the torch engine; the JAX engine always compiles")
    try:
        from drl.engines.jax.start import start_jax
    except ImportError as error:
        raise MissingExtra("--engine jax", "jax", error) from None
    start_jax(run.device, run.threads)


def build_trainer(experiment: Experiment, envs: VecEnv) -> Trainer:
    """The four roles and their memory, from names and configs."""
    run, config = experiment.run, experiment.learner
    build_learner: Any
    if run.engine == "jax":
        from drl.engines.jax.build import build_learner
    else:
        from drl.engines.torch.build import build_learner
    agent, learner = build_learner(
        experiment.algorithm,
        (envs.obs_spec, envs.action_spec),
        (experiment.model, config),
        Seeds(run.seed),
        normalize_obs=run.normalize_obs,
        device=run.device,
        compile_update=run.compile,
    )
    shapes = (envs.num_envs, envs.obs_spec, envs.action_spec)
    columns = envs.num_envs
    if experiment.algorithm == "dqn":
        if run.normalize_reward:
            raise BadInput("normalize_reward is for on-policy algorithms; dqn replays rewards as they were")
        buffer: Any = ReplayBuffer(
            config, *shapes, rng=Seeds(run.seed).generator("replay"), frame_stack=run.frame_stack
        )
    elif experiment.algorithm == "reinforce":
        buffer = EpisodeBuffer(config.episodes_per_step, *shapes)
        columns = 1  # whole episodes come one after another
    else:
        _check_minibatches(config, columns, agent.recurrent)
        buffer = RolloutBuffer(config.rollout_length, *shapes)
    scaler = RewardScaler(columns, config.gamma) if run.normalize_reward else None
    return Trainer(envs, agent, learner, buffer, _trainer_config(experiment), scaler)


def build_seed_batch(experiment: Experiment, sync_points: tuple[float, ...] = ()) -> "SeedBatch":
    """The trainers of all seeds of one compiled program. `sync_points`: see `SeedBatch`."""
    from drl.engines.jax.envs import make_jax_env
    from drl.engines.jax.fused.build_fused import build_fused
    from drl.engines.jax.fused.counters import Budget
    from drl.engines.jax.fused.fused_trainer import SeedBatch

    run, config = experiment.run, experiment.learner
    if hasattr(config, "rollout_length"):
        _check_minibatches(config, run.num_envs)
    envs = make_jax_env(run.env, run.env_arguments)
    budget = Budget(None if run.num_episodes else run.budget, run.num_episodes)
    seeds = [run.seed + i for i in range(run.num_seeds)]
    options = {"normalize_obs": run.normalize_obs, "normalize_reward": run.normalize_reward}
    configs = (experiment.model, config)
    learner, agents = build_fused(experiment.algorithm, envs, configs, seeds, run.num_envs, budget, **options)
    return SeedBatch(learner, agents, _trainer_config(experiment), sync_points, reward_threshold(run.env))


def _trainer_config(experiment: Experiment) -> TrainerConfig:
    run, config, extra = experiment.run, experiment.learner, {}
    if experiment.algorithm == "dqn":
        extra = {
            "updates_per_log": config.updates_per_log,
            "exploration": epsilon_schedule(config, experiment.model.noisy),
        }
    total = None if run.num_episodes else run.budget
    return TrainerConfig(total_timesteps=total, num_episodes=run.num_episodes, window=run.window, **extra)


def _check_minibatches(config: Any, envs: int, recurrent: bool = False) -> None:
    parts, rows = getattr(config, "minibatches", 1), config.rollout_length * envs
    if parts > rows:
        raise BadInput(f"minibatches is {parts}, but a rollout has only {rows} rows")
    if recurrent and parts > envs:
        why = f"a recurrent rollout is split into whole environments and there are {envs}"
        raise BadInput(f"minibatches is {parts}, but {why}; use --minibatches {envs}")


def _set_threads(threads: int | None, envs: VecEnv) -> None:
    """Tiny networks lose time to a second thread; networks for images gain from it."""
    import torch

    images = len(envs.obs_spec.shape) == 3
    torch.set_num_threads(threads or (os.cpu_count() or 1 if images else 1))
