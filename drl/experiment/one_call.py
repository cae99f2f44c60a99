"""`drl.train("ppo", env=…)`: the command `drl train` as one call, which takes objects as well as names."""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Unpack

from drl.agents.evaluation import evaluate
from drl.agents.watch import film
from drl.algorithms import find_algorithm
from drl.core.configs import AnyPath, as_pairs
from drl.core.contracts import Agent
from drl.core.errors import BadInput
from drl.core.log import Log
from drl.core.network_parts import import_plugins
from drl.core.settings import AlgorithmName, SeedsSettings, Settings, TrainerSettings
from drl.core.specs import PlainDict
from drl.envs.env_config import AnyEnv, EnvConfig, as_config, check_trusted, given_vector
from drl.envs.env_names import WrapperLike
from drl.envs.spaces import EnvKwargs
from drl.runs import launch
from drl.runs.building import AnyTrainer, open_trainer
from drl.runs.extras import Extras, MakeTrackers, OnLog, Stage
from drl.runs.folder.finished import Finished
from drl.runs.folder.run_folder import Run, is_own_config
from drl.runs.session import say
from drl.settings.experiment import OF_A_RUN, Experiment, RunConfig, read_yaml
from drl.settings.presets import load_preset, one_budget, one_schedule, sources
from drl.tracking.plots import plot_run


def train(
    algorithm: AlgorithmName = "ppo",
    env: AnyEnv | None = None,
    *,
    env_kwargs: EnvKwargs | None = None,
    wrappers: Iterable[WrapperLike] | None = None,
    model: object = None,
    trackers: MakeTrackers = (),
    stages: Iterable[Stage] = (),
    on_log: OnLog | None = None,
    config: AnyPath | Mapping[str, object] | None = None,
    preset: bool | str = True,
    trust: bool = False,
    console: bool = True,
    **settings: Unpack[Settings],
) -> Finished:
    """Train an agent in a new run folder. Your settings override `config`, which overrides the preset.

    `env` is an id, a class or function that makes a Gymnasium environment, an environment to copy, an `EnvSpec`, an
    `EnvConfig`, or a vector environment, which is used directly. `wrappers` are names or classes. `model` is a config,
    a module, or a function from (obs_spec, action_spec) to a module. `trackers` are objects with `write` and `close`,
    or a function that takes the run and returns them. `stages` take logs and yield logs; `on_log` is called with every
    log. Both receive the run as a `drl.Context` if they have a second parameter. `config` is a YAML file or a dict;
    `trust` allows importing modules named in a file. `preset` is True, False, or a name such as rainbow.
    `console=False` prints nothing.
    """
    experiment = make_experiment(
        algorithm, env, env_kwargs=env_kwargs, wrappers=wrappers, model=model, config=config, preset=preset,
        trust=trust, **settings,
    )  # fmt: skip
    _say_sources(experiment, preset, config, console)
    if len(experiment.run.all_seeds) > 1:
        raise BadInput("train is one run; for several seeds use drl.train_seeds(…), which returns a list of runs")
    finished = launch.train(experiment, Extras.of(experiment, model, trackers, stages, on_log), console)
    return launch.hinted([finished], console)[0]


def make_trainer(
    algorithm: AlgorithmName = "ppo",
    env: AnyEnv | None = None,
    *,
    env_kwargs: EnvKwargs | None = None,
    wrappers: Iterable[WrapperLike] | None = None,
    model: object = None,
    config: AnyPath | Mapping[str, object] | None = None,
    preset: bool | str = True,
    trust: bool = False,
    **settings: Unpack[TrainerSettings],
) -> AnyTrainer:
    """Make the trainer that `train` uses, without printing, evaluating or writing anything. Call it to get logs.

    It takes the same arguments as `train`. `close` it, or use a `with` block, to close its environments.

    >>> with make_trainer("dqn", env="CartPole-v1", total_timesteps=2_000, seed=1) as trainer:
    ...     steps = [log.env_steps for log in trainer()]
    >>> steps[-1]
    2000
    """
    for name in settings:
        if name in OF_A_RUN.split():
            raise BadInput(
                f"{name} is a setting of a run, and make_trainer starts none; leave it out, or use drl.train"
            )
    experiment = make_experiment(
        algorithm, env, env_kwargs=env_kwargs, wrappers=wrappers, model=model, config=config, preset=preset,
        trust=trust, **settings,
    )  # fmt: skip
    own_model = Extras.of(experiment, model).model
    with contextlib.ExitStack() as stack:
        trainer = stack.enter_context(open_trainer(experiment, model=own_model))
        trainer.opened = stack.pop_all()
    return trainer


def train_seeds(
    algorithm: AlgorithmName = "ppo",
    env: AnyEnv | None = None,
    *,
    env_kwargs: EnvKwargs | None = None,
    wrappers: Iterable[WrapperLike] | None = None,
    model: object = None,
    config: AnyPath | Mapping[str, object] | None = None,
    preset: bool | str = True,
    trust: bool = False,
    console: bool = True,
    **settings: Unpack[SeedsSettings],
) -> list[Finished]:
    """Train one run for each of `num_seeds` seeds from `seed` on, or for each of `seeds`; see `train`."""
    experiment = make_experiment(
        algorithm, env, env_kwargs=env_kwargs, wrappers=wrappers, model=model, config=config, preset=preset,
        trust=trust, **settings,
    )  # fmt: skip
    _say_sources(experiment, preset, config, console)
    return launch.hinted(launch.train_seeds(experiment, Extras.of(experiment, model), console), console)


def _say_sources(experiment: Experiment, preset: bool | str, config: object, console: bool) -> None:
    """Print where the settings come from, as the command does."""
    file = config if isinstance(config, str | Path) else None
    named = sources(experiment.algorithm, experiment.run.env, preset, file)
    if named and console and not experiment.run.quiet:
        say(f"settings: {named}")


def make_experiment(
    algorithm: str,
    env: AnyEnv | None = None,
    *,
    env_kwargs: EnvKwargs | None = None,
    wrappers: Iterable[WrapperLike] | None = None,
    model: object = None,
    config: AnyPath | Mapping[str, object] | None = None,
    preset: bool | str = True,
    trust: bool = False,
    **settings: Unpack[SeedsSettings],
) -> Experiment:
    """Make the settings of a run from the arguments of `train`."""
    from_file, source = _read(config, algorithm, trust)
    import_plugins(settings.get("plugins", ()))
    if settings.get("log_every") and settings.get("quiet"):
        raise BadInput("log_every prints blocks on the way and quiet one line at the end; give one of them")
    record = find_algorithm(algorithm)
    described = as_settings(from_file.get("env", RunConfig.env) if env is None else env, env_kwargs, wrappers)
    name = preset if isinstance(preset, str) else None
    shipped = (load_preset(algorithm, described["env"], name) if preset else None) or {}
    one_budget(shipped, from_file, settings)
    one_schedule(shipped, from_file, settings)
    flat = shipped | from_file | described | settings | {"algorithm": algorithm}
    if modules := record.plugins:  # so that another process can resume the run
        flat["plugins"] = tuple(dict.fromkeys([*from_file.get("plugins", ()), *settings.get("plugins", ()), *modules]))
    experiment = Experiment.from_flat(flat, source)
    if model is None:
        return experiment
    model_config = record.parts["model"]
    if named := [field.name for field in dataclasses.fields(model_config) if field.name in settings]:
        raise BadInput(f"{', '.join(named)} is given beside model; leave it out, or put it into the model")
    return dataclasses.replace(experiment, model=model) if isinstance(model, model_config) else experiment


def _read(config: AnyPath | Mapping[str, object] | None, algorithm: str, trust: bool) -> tuple[PlainDict, str]:
    """Return the settings in a file or dict, and its name. Modules named in a file are imported with `trust` only."""
    if config is None:
        return {}, "train"
    given = isinstance(config, Mapping)
    settings: PlainDict = dict(config) if isinstance(config, Mapping) else read_yaml(config)
    source = "config" if given else str(config)
    if settings.get("algorithm", algorithm) != algorithm:
        raise BadInput(f"{source} is for {settings['algorithm']}; expected {algorithm}")
    if not trust and not given and not is_own_config(config, settings):
        if plugins := settings.get("plugins"):
            raise BadInput(f"{source} names the plugins {plugins}, and importing runs their code; add trust=True")
        check_trusted(str(settings.get("env", "")), settings.get("wrappers") or (), source)
    import_plugins(settings.get("plugins") or ())
    return settings, source


def as_settings(
    env: AnyEnv, env_kwargs: EnvKwargs | None = None, wrappers: Iterable[WrapperLike] | None = None
) -> PlainDict:
    """Return the settings of a run that an environment determines."""
    config = as_config(env, env_kwargs, wrappers)
    settings: PlainDict = {"env": config.env}
    if config.env_kwargs or env_kwargs is not None:
        settings["env_kwargs"] = _pairs(config.env_kwargs)
    if config.wrappers or wrappers is not None:
        settings["wrappers"] = list(config.wrappers)
    if config.frame_stack > 1:
        settings["frame_stack"] = config.frame_stack
    if (vector := given_vector(config.env)) is not None:
        settings["num_envs"] = vector.num_envs
    return settings


def _pairs(env_kwargs: EnvKwargs) -> list[str]:
    try:
        return list(as_pairs("env_kwargs", env_kwargs))
    except BadInput as error:
        raise BadInput(f"{error}; for other objects pass a function: env=lambda: MyEnv(…)") from None


def finish_run(
    run: Run,
    agent: Agent,
    env: str,
    env_kwargs: EnvKwargs | None = None,
    *,
    episodes: int = 20,
    log: Log | None = None,  # the last one
) -> Finished:
    """Finish a run of your own script: save the agent, draw plots, film one episode and evaluate the agent."""
    config = EnvConfig(env=env, env_kwargs=env_kwargs or {})
    agent.save(run.folder / "agent", env=env, env_kwargs=config.env_kwargs)
    plot_run(run.folder)
    seed = 10_000 + int(run.record["seed"])  # other episodes than those of training
    film(agent, config, run.folder / "videos" / "final_agent.mp4", seed)
    summary = evaluate(agent, config, episodes, seed).summary()
    run.note(status="finished", final_evaluation=summary)
    return Finished(run.folder, agent, log, "finished", summary)
