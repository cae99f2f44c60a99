"""Build the trainer of an `Experiment`."""

import contextlib
import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from drl.agents.agent_env import EnvOptions, open_vec_env
from drl.algorithms import find_algorithm
from drl.core.agent_files import Start
from drl.core.configs import Config, ReplayConfig
from drl.core.contracts import AnyCollector, Batch, VecEnv
from drl.core.errors import BadInput, MissingExtra, plural
from drl.core.network_parts import resolve
from drl.core.normalize import RewardScaler, return_bound
from drl.core.seeding import Seeds
from drl.core.setting_rules import check_memory
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec, PlainDict, Specs
from drl.engines.numpy.exploration import make_exploration
from drl.envs.env_config import given_vector
from drl.envs.episode_stats import reward_threshold
from drl.envs.goals import goal_functions
from drl.runs.folder.run_folder import find_agent_folder
from drl.settings.experiment import AS_SET, Experiment
from drl.trainer.trainer import Trainer, TrainerConfig

if TYPE_CHECKING:
    from torch import nn

    from drl.cluster.learners import Recipe
    from drl.engines.jax.agents import JaxAgent
    from drl.engines.jax.fused.fused_trainer import FusedTrainer, SeedBatch
    from drl.engines.torch.agents import TorchAgent
    from drl.engines.torch.compiled_update import CompileChoice

AnyTrainer: TypeAlias = "Trainer[Batch] | FusedTrainer"
COPIES = 4  # of every weight: itself, its gradient, two moments of the optimizer


@contextlib.contextmanager
def open_trainer(
    experiment: Experiment, sync_points: tuple[float, ...] = (), model: object = None
) -> Iterator[AnyTrainer]:
    """The trainer of a run; its environments are closed afterwards, unless the user gave them. `sync_points`: see
    `SeedBatch`. `model` is one of the user's own."""
    check_learners(experiment)
    if in_one_program(experiment, model):
        yield build_seed_batch(experiment, sync_points).trainers[0]
        return
    start_engine(experiment)
    with open_envs(experiment, model) as envs:
        if experiment.scaling.num_learners == 1:
            yield build_trainer(experiment, envs, model)
            return
        start = starting_weights(experiment, envs.obs_spec, {})
        # Before the learner of this process takes over the user's model.
        recipe = learner_recipe(experiment, learner_maker(experiment, _specs_of(experiment, envs), model, start))
        trainer = build_trainer(experiment, envs, model)
        with share_updates(experiment, trainer, recipe):
            yield trainer


@contextlib.contextmanager
def open_envs(experiment: Experiment, model: object = None) -> Iterator[VecEnv | AnyCollector]:
    """The environments of a run, in this process or in its collectors."""
    run = experiment.run
    if experiment.scaling.num_collectors:
        from drl.runs.collector_blocks import open_collectors

        with open_collectors(experiment, model) as collectors:
            yield collectors
        return
    options: EnvOptions = {"vectorization": run.vectorization, "timeout": run.worker_timeout}
    envs = open_vec_env(run.env_config, run.num_envs, run.seed, **options)
    with envs if given_vector(run.env) is None else contextlib.nullcontext():
        yield envs


def in_one_program(experiment: Experiment, model: object = None) -> bool:
    """Whether environment and learner are compiled into one program."""
    run = experiment.run
    if run.engine != "jax":
        if run.vectorization == "jax":
            raise BadInput("vectorization is 'jax', an environment inside a compiled program; that needs --engine jax")
        return False
    start_engine(experiment)
    from drl.engines.jax.envs import has_jax_env

    # What a compiled program cannot have.
    hindrances = {
        "frame_stack": run.frame_stack > 1,
        "wrappers": bool(run.wrappers),
        "num_collectors": experiment.scaling.num_collectors > 0,
        "a model of your own": model is not None,
        "num_learners": experiment.scaling.num_learners > 1,
        "info_keys": bool(run.info_keys),
        "from_agent with normalized observations": bool(run.from_agent and run.normalize_obs),
    }
    hindrance = next((name for name, hinders in hindrances.items() if hinders), None)
    if run.vectorization == "jax":
        if hindrance:
            raise BadInput(f"{hindrance} is not for environments inside a compiled program; use --vectorization sync")
        return True
    fused = find_algorithm(experiment.algorithm).fused is not None
    return run.vectorization == "auto" and not hindrance and fused and has_jax_env(run.env)


def start_engine(experiment: Experiment) -> None:
    """Configure an engine before its first use; raise for settings that it does not have."""
    run = experiment.run
    if run.engine == "torch":
        return
    if run.compile == "on":
        raise BadInput("compile is a switch of the torch engine; the JAX engine always compiles: use --compile off")
    try:
        from drl.engines.jax.devices import start_jax
    except ImportError as error:
        raise MissingExtra("--engine jax", "jax", error) from None
    start_jax(run.device, run.threads)


def build_trainer(experiment: Experiment, envs: VecEnv | AnyCollector, model: object = None) -> Trainer[Batch]:
    """Environments, agent, algorithm and buffer of a run, from names and configs; `model` is one of the user's own."""
    run, config, record = experiment.run, experiment.learner, find_algorithm(experiment.algorithm)
    specs, seeds = _specs_of(experiment, envs), Seeds(run.seed)
    check_run_fits(experiment, specs)
    notes: PlainDict = {}
    start = starting_weights(experiment, envs.obs_spec, notes)

    def compile_update(model: "nn.Module") -> bool:
        choice = compile_choice(experiment, envs, model)
        notes["compile"] = choice._asdict()
        return choice.on

    agent, learner = learner_maker(experiment, specs, model, start)(compile_update=compile_update)
    if start is not None and start.stored.normalizer is not None:
        agent.normalizer.load_state_dict(start.stored.normalizer.state_dict())
    set_exploration(experiment, agent)
    if agent.recurrent and not record.recurrent:
        raise BadInput(f"{record.name} takes no recurrent model; use recurrent none, or ppo or a2c")
    _check_minibatches(config, envs.num_envs, agent.recurrent)
    make_buffer = resolve(record.buffer.make)
    options: dict[str, object] = {"rng": seeds.generator("replay"), "frame_stack": run.frame_stack}
    if getattr(experiment.buffer, "her", "none") != "none":
        options["goals"] = goal_functions(run.env_config)
    buffer = make_buffer(config, experiment.buffer, specs, **options)
    scaler = None
    if run.normalize_reward:
        columns = 1 if record.buffer.whole_episodes else envs.num_envs
        scaler = RewardScaler(columns, config.gamma)
        if record.buffer.replays:  # sums over n steps are not clipped
            scaler = RewardScaler(columns, config.gamma, None, reward_bound(experiment.model))
    trainer = Trainer(envs, agent, learner, buffer, _trainer_config(experiment), scaler)
    trainer.notes = notes
    return trainer


def _specs_of(experiment: Experiment, envs: VecEnv | AnyCollector) -> EnvSpecs:
    """The specs of a run's environments, without the environments: other processes get them too."""
    return EnvSpecs(envs.obs_spec, envs.action_spec, envs.num_envs, experiment.run.seed)


def learner_maker(
    experiment: Experiment, specs: Specs, model: object = None, start: Start | None = None
) -> "partial[tuple[Any, Any]]":
    """A function of `compile_update` that makes the agent and the algorithm of a run."""
    run = experiment.run
    return partial(
        resolve(f"drl.engines.{run.engine}.build:build_learner"),
        experiment.algorithm,
        specs,
        (experiment.model, experiment.learner),
        Seeds(run.seed),
        normalize_obs=bool(run.normalize_obs),
        device=run.device,
        own_model=model,
        start=start,
        threads=run.threads,
    )


def starting_weights(experiment: Experiment, obs_spec: ObsSpec, notes: PlainDict) -> Start | None:
    """The initial weights of a run with `from_agent`; lists in `notes` what did not fit."""
    run = experiment.run
    if run.from_agent is None:
        return None
    start = Start(find_agent_folder(run.from_agent))
    start.check_obs(obs_spec, bool(run.normalize_obs))
    notes["from_agent"] = {"agent": start.source, "left_out": start.left_out}
    return start


def compile_choice(experiment: Experiment, envs: VecEnv | AnyCollector, model: "nn.Module") -> "CompileChoice":
    """Whether the update is compiled (PyTorch engine): as the configuration says, or by the rule."""
    from drl.engines.torch.compiled_update import CompileChoice, choose, planned_work

    run, record = experiment.run, find_algorithm(experiment.algorithm)
    if run.compile != "auto":
        return CompileChoice(run.compile, AS_SET)
    if not str(record.engines["torch"]).startswith("drl."):
        return CompileChoice("off", f"not measured for an algorithm of your own ({record.name})")
    # Steps that only reset an environment, or of agents who are out of a game, are no rows of a rollout.
    resets = envs.vectorization in ("native", "envpool", "parallel")
    steps = None if run.num_episodes else run.budget
    return choose(planned_work(experiment.learner, experiment.buffer, envs.num_envs, steps, even=not resets), model)


def reward_bound(model: Config) -> float | None:
    """The largest return that critics with a fixed support can represent."""
    return return_bound(model.v_min, model.v_max) if getattr(model, "distributional", "none") == "c51" else None


def set_exploration(experiment: Experiment, agent: "JaxAgent | TorchAgent") -> None:
    """Set an agent's exploration from its experiment."""
    replay = experiment.buffer
    first_update = max(getattr(replay, "warmup", 0), getattr(replay, "batch_size", 1))
    noisy = getattr(experiment.model, "noisy", False)
    agent.exploration = make_exploration(experiment.exploration, agent.action_spec, noisy)
    if agent.exploration is not None:
        agent.exploration.begin_training(first_update)


def build_seed_batch(experiment: Experiment, sync_points: tuple[float, ...] = ()) -> "SeedBatch":
    """The trainers of all seeds of one compiled program. `sync_points`: see `SeedBatch`."""
    from drl.engines.jax.envs import make_jax_env
    from drl.engines.jax.fused.fused_stats import Budget
    from drl.engines.jax.fused.fused_trainer import SeedBatch, build_fused

    run, config, seeds, notes = experiment.run, experiment.learner, experiment.run.all_seeds, PlainDict()
    _check_minibatches(config, run.num_envs)
    env = make_jax_env(run.env, run.env_config.env_kwargs)
    check_run_fits(experiment, env, len(seeds))
    start = starting_weights(experiment, env.obs_spec, notes)
    budget = Budget(None if run.num_episodes else run.budget, run.num_episodes)
    configs = (experiment.model, config, experiment.buffer, experiment.exploration)
    options = {"normalize_obs": bool(run.normalize_obs), "normalize_reward": bool(run.normalize_reward)}
    learner, agents = build_fused(
        experiment.algorithm, env, configs, seeds, run.num_envs, budget, start=start, **options
    )
    for agent in agents:
        set_exploration(experiment, agent)
    batch = SeedBatch(learner, agents, _trainer_config(experiment), sync_points, reward_threshold(run.env))
    for trainer in batch.trainers:
        trainer.notes = notes
    return batch


def _trainer_config(experiment: Experiment) -> TrainerConfig:
    run = experiment.run
    return TrainerConfig(
        total_timesteps=None if run.num_episodes else run.budget,
        num_episodes=run.num_episodes,
        window=run.window,
        info_keys=run.info_keys or None,
    )


def check_budget(experiment: Experiment) -> None:
    """Raise if the budget of a new run ends before the first update of a replay: it would learn nothing."""
    run, replay = experiment.run, experiment.buffer
    if run.num_episodes or not isinstance(replay, ReplayConfig):
        return  # the number of steps is not known, or every rollout is learned from
    steps = math.ceil(run.budget / run.num_envs) * run.num_envs
    first = max(replay.warmup + replay.train_every, replay.batch_size)
    if steps < first:
        why = f"warmup {replay.warmup:,}, batch_size {replay.batch_size:,}"
        smaller = [f"--warmup {run.budget // 10}"] if replay.warmup >= run.budget // 10 else []
        smaller += [f"--batch-size {max(run.budget // 10, 1)}"] if replay.batch_size > run.budget else []
        smaller += ["--train-every 1"] if replay.train_every > run.budget // 2 else []
        raise BadInput(
            f"total_timesteps is {run.budget:,}, but {experiment.algorithm} makes its first update at step {first:,} "
            f"({why}), so it would learn nothing; use --total-timesteps {10 * first}, or {' '.join(smaller)}"
        )


def _check_minibatches(config: Config, envs: int, recurrent: bool = False) -> None:
    parts = getattr(config, "minibatches", 1)
    rows = getattr(config, "rollout_length", parts) * envs
    if parts > rows:
        raise BadInput(f"minibatches is {parts}, but a rollout has only {plural(rows, 'row')}")
    if recurrent and parts > envs:
        why = f"a recurrent rollout is split by environment and there are {envs}"
        raise BadInput(f"minibatches is {parts}, but {why}; use --minibatches {envs}")


def check_run_fits(experiment: Experiment, specs: Specs, programs: int = 1) -> None:
    """Raise if the buffer and the networks of a run need more memory than there is. `programs`: seeds trained together.

    The estimate counts only the largest arrays, so it is never more than what a run really takes.
    """
    needs = _buffer_needs(experiment, specs.obs_spec, specs.action_spec) | _network_needs(experiment, specs.obs_spec)
    check_memory({what: programs * size for what, size in needs.items()})


def _buffer_needs(experiment: Experiment, obs_spec: ObsSpec, action_spec: ActionSpec) -> dict[str, float]:
    run, buffer, learner = experiment.run, experiment.buffer, experiment.learner
    obs = math.prod(obs_spec.shape) * obs_spec.dtype.itemsize  # bytes
    action = 4 * max(action_spec.entries, 1)
    needs: dict[str, float] = {f"num_envs {run.num_envs:,}": run.num_envs * obs}
    if (capacity := getattr(buffer, "capacity", None)) is not None:  # images of a stack are stored once
        row = (obs / run.frame_stack if obs_spec.is_image else 2 * obs) + action + 12
        needs[f"capacity {capacity:,}"] = capacity * row
    if (batch := getattr(buffer, "batch_size", None)) is not None:
        needs[f"batch_size {batch:,}"] = batch * (2 * obs + action + 12)
    if (length := getattr(learner, "rollout_length", None)) is not None:
        steps = f"rollout_length {length:,} with {plural(run.num_envs, 'environment')}"
        needs[steps] = length * run.num_envs * (obs + action + 7)
    return needs


def _network_needs(experiment: Experiment, obs_spec: ObsSpec) -> dict[str, float]:
    model, entries = experiment.model, 1 if obs_spec.is_structured or obs_spec.is_image else math.prod(obs_spec.shape)

    def size(*widths: int) -> float:
        """Bytes of the weights between layers of these widths, in training."""
        return 4.0 * COPIES * sum(above * below for above, below in itertools.pairwise(widths))

    actor = getattr(model, "hidden_sizes", ())
    needs = {f"hidden_sizes {list(actor)}": size(entries, *actor)}
    if critics := getattr(model, "num_critics", 0):
        critic = model.critic_hidden_sizes or actor
        needs[f"num_critics {critics} with hidden sizes {list(critic)}"] = critics * size(entries, *critic)
    if getattr(model, "recurrent", "none") != "none":
        needs[f"recurrent_size {model.recurrent_size:,}"] = 3 * size(model.recurrent_size, model.recurrent_size)
    return needs


def check_learners(experiment: Experiment) -> None:
    """Raise where the updates of a run cannot be shared."""
    run, scaling, count = experiment.run, experiment.scaling, experiment.scaling.num_learners
    if count == 1:
        return
    record, (rows, what) = find_algorithm(experiment.algorithm), _rows_of_update(experiment)
    if rows is not None and rows < count:
        raise BadInput(f"num_learners is {count}, but {what} has {rows}; use at most --num-learners {max(rows, 1)}")
    if run.engine == "torch" and getattr(experiment.model, "batch_renorm", False):
        what = f"num_learners is {count} with batch_renorm, which needs whole batches in one learner"
        raise BadInput(f"{what}; use --num-learners 1, --no-batch-renorm or --engine jax")
    if run.engine == "jax":
        if scaling.cluster != "local":
            where = f"cluster is {scaling.cluster!r}"
            raise BadInput(f"{where}, but the learners of the JAX engine are devices of one process; use local")
        if not str(record.engines["jax"]).startswith("drl."):
            raise BadInput(f"{experiment.algorithm} with the JAX engine has one learner; use --num-learners 1")
        if rows is not None and rows % count:
            what = f"num_learners is {count}, and {what} has {rows}"
            raise BadInput(f"{what}; the JAX engine gives every device as many: choose numbers that divide")
        if record.buffer.whole_episodes and count & (count - 1):
            raise BadInput(f"num_learners is {count}; with {experiment.algorithm} and JAX it must be a power of two")


def _rows_of_update(experiment: Experiment) -> tuple[int | None, str]:
    """The number of rows that learners divide in one gradient step, None if it varies; and their name."""
    run, learner, batch_size = experiment.run, experiment.learner, getattr(experiment.buffer, "batch_size", None)
    if batch_size is not None:
        return batch_size, "a batch of rows"
    length, parts = getattr(learner, "rollout_length", None), getattr(learner, "minibatches", 1)
    if length is None:
        return None, ""
    if getattr(experiment.model, "recurrent", "none") != "none":
        return run.num_envs // parts, "a minibatch of whole environments"
    rows = length * run.num_envs
    return (-(-rows // parts) if run.engine == "jax" else rows // parts), "a minibatch of rows"


def learner_recipe(experiment: Experiment, make: "partial[tuple[Any, Any]]") -> "Recipe | None":
    """The recipe of the additional learners; None: the JAX engine has devices instead."""
    run, scaling = experiment.run, experiment.scaling
    if run.engine == "jax":
        return None
    from drl.cluster.learners import recipe_of
    from drl.engines.torch.build import pick_device

    device = pick_device(run.device).type  # of this process; the others see only their own GPU
    if device not in ("cpu", "cuda"):
        raise BadInput(f"num_learners is {scaling.num_learners} on {device}; expected --device cpu or cuda")
    assert scaling.cluster is not None
    return recipe_of(partial(make, device=device), run.plugins, scaling.cluster)


@contextlib.contextmanager
def share_updates(experiment: Experiment, trainer: Trainer[Batch], recipe: "Recipe | None") -> Iterator[None]:
    """Let additional learners compute a part of every update of `trainer`."""
    run, scaling = experiment.run, experiment.scaling
    count, algorithm, agent = scaling.num_learners, trainer.algorithm, trainer.agent
    trainer.notes = {**trainer.notes, "learners": f"experimental: {count} learners"}
    if recipe is None:
        from drl.engines.jax.devices import ManyDevices

        trainer.algorithm = ManyDevices(algorithm, count, run.device)
        yield
        return
    from drl.cluster.learners import open_learners

    assert scaling.cluster is not None
    on_gpu = next(agent.model.parameters()).device.type == "cuda"  # type: ignore[attr-defined]
    # A cluster for this command is on this machine, which no other command reserves.
    cpus = 0 if scaling.cluster == "local" else run.threads or 1
    resources = {"num_cpus": float(cpus), "num_gpus": float(on_gpu)}
    compiled = dict(trainer.notes.get("compile") or {}).get("choice") == "on"  # type: ignore[call-overload]
    with open_learners(scaling.cluster, count, recipe, compiled, trainer, resources) as shared:
        trainer.algorithm = shared
        yield
