"""`drl.train("ppo", env=…)`: the command `drl train` as one call, which takes objects as well as names."""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Unpack, cast

from drl.agents.evaluation import evaluate
from drl.agents.watch import film
from drl.algorithms import find_algorithm
from drl.core.configs import AnyPath
from drl.core.contracts import Agent
from drl.core.errors import BadInput
from drl.core.log import Log
from drl.core.settings import AlgorithmName, SeedsSettings, Settings, TrainerSettings
from drl.core.specs import PlainDict
from drl.envs.env_config import AnyEnv, EnvConfig
from drl.envs.env_names import WrapperLike
from drl.envs.spaces import EnvKwargs
from drl.runs import launch
from drl.runs.building import AnyTrainer, open_trainer
from drl.runs.extras import Extras, MakeTrackers, OnLog, Stage
from drl.runs.folder.finished import Finished
from drl.runs.folder.run_folder import Run, is_own_config
from drl.runs.session import say
from drl.settings.experiment import OF_A_RUN, Experiment, RunConfig
from drl.settings.layering import env_settings, layered, read_config
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
        trust=trust, console=console, **settings,
    )  # fmt: skip
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
        trust=trust, console=console, **settings,
    )  # fmt: skip
    return launch.hinted(launch.train_seeds(experiment, Extras.of(experiment, model), console), console)


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
    console: bool = False,
    **settings: Unpack[SeedsSettings],
) -> Experiment:
    """Make the settings of a run from the arguments of `train`. `console` prints where they come from."""
    if env is None and isinstance(config, Mapping):
        env = cast("AnyEnv | None", config.get("env"))
    given: PlainDict = dict(settings)
    described = env_settings(RunConfig.env if env is None else env, env_kwargs, wrappers)
    given |= {name: value for name, value in described.items() if name != "env" or env is not None}
    file = read_config(config, settings.get("plugins", ()), trust or is_own_config)
    experiment, sources = layered(algorithm, given, file, preset)
    if sources and console and not experiment.run.quiet:
        say(f"settings: {sources}")
    if model is None:
        return experiment
    model_config = find_algorithm(algorithm).model_config
    if named := [field.name for field in dataclasses.fields(model_config) if field.name in settings]:
        raise BadInput(f"{', '.join(named)} is given beside model; leave it out, or put it into the model")
    return dataclasses.replace(experiment, model=model) if isinstance(model, model_config) else experiment


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
