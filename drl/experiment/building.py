"""From an `Experiment` to a trainer: engine, worlds, agent, algorithm and memory, by their names."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from drl.core.contracts import World
from drl.core.errors import BadInput, MissingExtra
from drl.core.normalise import RewardScaler
from drl.core.schedules import epsilon_schedule
from drl.core.seeding import Seeds
from drl.envs.episode_book import reward_threshold
from drl.experiment.config import Experiment
from drl.experiment.worlds import open_world
from drl.memory.episodes import Episodes
from drl.memory.replay import Replay
from drl.memory.rollout import Rollout
from drl.trainer.fused_trainer import Cohort, FusedTrainer
from drl.trainer.trainer import Trainer, TrainerConfig


@contextlib.contextmanager
def open_trainer(experiment: Experiment, landmarks: tuple[float, ...] = ()) -> Iterator[Trainer | FusedTrainer]:
    """The trainer of a run; its worlds are closed at the end. `landmarks`: see `Cohort`."""
    run = experiment.run
    if run.num_seeds > 1:
        raise BadInput(f"num_seeds is {run.num_seeds}; `train` is for one seed, `train_seeds` for several")
    if in_one_program(experiment):
        yield build_cohort(experiment, landmarks).trainers[0]
        return
    start_engine(experiment)
    options: dict[str, Any] = {"frame_stack": run.frame_stack, "env_kwargs": run.world_kwargs}
    with open_world(run.env, run.num_envs, run.seed, engine=run.world_engine, **options) as world:
        if run.engine == "torch":
            _set_threads(run.threads, world)
        yield build_trainer(experiment, world)


def in_one_program(experiment: Experiment) -> bool:
    """Whether the world is compiled together with its learner."""
    run = experiment.run
    if run.engine != "jax":
        if run.world_engine == "jax":
            raise BadInput("world_engine is 'jax', a world inside a compiled program; that needs --engine jax")
        if run.num_seeds > 1:
            raise BadInput(f"num_seeds is {run.num_seeds}: several seeds in one program need --engine jax")
        return False
    start_engine(experiment)
    from drl.engines.jax.worlds import has_jax_world

    if run.world_engine == "jax" or run.num_seeds > 1:
        if run.frame_stack > 1:
            raise BadInput("frame_stack is not for worlds inside a compiled program; use --world-engine sync")
        if run.world_engine not in ("auto", "jax"):
            raise BadInput(
                f"num_seeds is {run.num_seeds} with world_engine {run.world_engine!r}; use --world-engine jax"
            )
        return True
    return run.world_engine == "auto" and run.frame_stack == 1 and has_jax_world(run.env)


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


def build_trainer(experiment: Experiment, world: World) -> Trainer:
    """The four roles and their memory, from names and configs."""
    run, config = experiment.run, experiment.learner
    build_learner: Any
    if run.engine == "jax":
        from drl.engines.jax.build import build_learner
    else:
        from drl.engines.torch.build import build_learner
    agent, learner = build_learner(
        experiment.algorithm,
        (world.obs_spec, world.action_spec),
        (experiment.model, config),
        Seeds(run.seed),
        normalise_obs=run.normalise_obs,
        device=run.device,
        compile_update=run.compile,
    )
    shapes = (world.num_envs, world.obs_spec, world.action_spec)
    columns = world.num_envs
    if experiment.algorithm == "dqn":
        if run.normalise_reward:
            raise BadInput("normalise_reward is for on-policy algorithms; dqn replays rewards as they were")
        memory: Any = Replay(config, *shapes, rng=Seeds(run.seed).generator("replay"), frame_stack=run.frame_stack)
    elif experiment.algorithm == "reinforce":
        memory = Episodes(config.episodes_per_step, *shapes)
        columns = 1  # whole episodes come one after another
    else:
        _check_minibatches(config, columns, agent.recurrent)
        memory = Rollout(config.rollout_length, *shapes)
    scaler = RewardScaler(columns, config.gamma) if run.normalise_reward else None
    return Trainer(world, agent, learner, memory, _trainer_config(experiment), scaler)


def build_cohort(experiment: Experiment, landmarks: tuple[float, ...] = ()) -> Cohort:
    """The trainers of all seeds of one compiled program. `landmarks`: see `Cohort`."""
    from drl.engines.jax.fused.build import build_fused
    from drl.engines.jax.fused.clock import Budget
    from drl.engines.jax.worlds import make_jax_world

    run, config = experiment.run, experiment.learner
    if hasattr(config, "rollout_length"):
        _check_minibatches(config, run.num_envs)
    world = make_jax_world(run.env, run.world_kwargs)
    budget = Budget(None if run.num_episodes else run.budget, run.num_episodes)
    seeds = [run.seed + i for i in range(run.num_seeds)]
    options = {"normalise_obs": run.normalise_obs, "normalise_reward": run.normalise_reward}
    configs = (experiment.model, config)
    learner, agents = build_fused(experiment.algorithm, world, configs, seeds, run.num_envs, budget, **options)
    return Cohort(learner, agents, _trainer_config(experiment), landmarks, reward_threshold(run.env))


def _trainer_config(experiment: Experiment) -> TrainerConfig:
    run, config, extra = experiment.run, experiment.learner, {}
    if experiment.algorithm == "dqn":
        extra = {
            "updates_per_log": config.updates_per_log,
            "exploration": epsilon_schedule(config, experiment.model.noisy),
        }
    total = None if run.num_episodes else run.budget
    return TrainerConfig(total_timesteps=total, num_episodes=run.num_episodes, window=run.window, **extra)


def _check_minibatches(config: Any, worlds: int, recurrent: bool = False) -> None:
    parts, rows = getattr(config, "minibatches", 1), config.rollout_length * worlds
    if parts > rows:
        raise BadInput(f"minibatches is {parts}, but a rollout has only {rows} rows")
    if recurrent and parts > worlds:
        why = f"a recurrent rollout is split into whole worlds and there are {worlds}"
        raise BadInput(f"minibatches is {parts}, but {why}; use --minibatches {worlds}")


def _set_threads(threads: int | None, world: World) -> None:
    """Tiny networks lose time to a second thread; networks for images gain from it."""
    import torch

    images = len(world.obs_spec.shape) == 3
    torch.set_num_threads(threads or (os.cpu_count() or 1 if images else 1))
