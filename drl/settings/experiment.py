"""Settings of a run. They have the same flat names in YAML files, on the command line and in presets."""

import copy
import dataclasses
import functools
import os
import re
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from drl.algorithms import find_algorithm
from drl.core.configs import Config, as_pairs, plain_pairs, stated_type
from drl.core.errors import BadInput, UnusableFile, did_you_mean, shown
from drl.core.network_parts import BACKBONES
from drl.core.safe_files import read_yaml_file
from drl.core.setting_rules import (
    ABOVE_0,
    WHOLE_FROM_0,
    WHOLE_FROM_1,
    Rule,
    Rules,
    check_fields,
    check_size,
    one_of,
    plain_setting,
)
from drl.core.specs import PlainDict, PlainValue
from drl.envs.atari import usual_frame_stack
from drl.envs.env_config import EnvConfig
from drl.envs.env_names import split_wrapper
from drl.envs.env_wrappers import usual_wrappers
from drl.settings.foreign_settings import explain_unknown
from drl.settings.scaling import ScalingConfig

MOST_PROCESSES = 1024  # most environments with one process each
AUTO = ("auto",)  # the default wrappers of an environment
AS_SET = "as the settings say"  # reason for compiling an update or not, if `compile` is on or off
# Settings that `make_trainer` does not take: evaluation, checkpoints, files and several runs.
OF_A_RUN = """
    stop_at_return max_minutes num_seeds seeds workers name license results_dir fallback_dir record_episodes best_after
    wandb_project mlflow_experiment group evaluate_every evaluation_episodes eval_max_steps checkpoint_every
    checkpoint_minutes keep_checkpoints num_checkpoints tensorboard plots video quiet log_every results_url
    cpus_per_run gpus_per_run
"""

# Settings that connect, write or read outside of the run's folder. A file that is not trusted may not set them.
REACHES_OUT = {
    "cluster": "connects to a Ray cluster, whose answers run code",
    "results_url": "copies the run to another place",
    "results_dir": "writes to another folder",
    "fallback_dir": "writes to another folder",
    "from_agent": "reads another folder",
    "wandb_project": "sends the run to Weights & Biases",
    "mlflow_experiment": "sends the run to MLflow",
}

_FOLDER = re.compile(r"[^/\\\0]*[^/\\\0\s.][^/\\\0]*")
FOLDER_NAME = Rule(
    "a plain folder name of at most 200 bytes",
    lambda x: _FOLDER.fullmatch(x) is not None and len(x.encode()) <= 200,
)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of a run that do not belong to its algorithm."""

    env: str = "CartPole-v1"  # Gymnasium id or module:Id; your own module:Class or file.py:Class; pettingzoo:NAME
    env_kwargs: tuple[str, ...] = ()  # arguments of the environment: NAME=VALUE pairs with YAML values
    # Wrappers of each environment, innermost first: NAME of gymnasium.wrappers or minigrid.wrappers, module:NAME or
    # file.py:NAME, followed by arguments as :k=v,k=v. The command line also takes one --wrapper for each. auto:
    # OneHotCells for MiniGrid, otherwise none.
    wrappers: tuple[str, ...] = AUTO
    num_envs: int = 8  # environments stepped together
    engine: str = "torch"  # torch · jax
    vectorization: str = "auto"  # auto · sync · async · native · envpool · jax (compiles the environment, too)
    worker_timeout: float = 60.0  # seconds that a worker process (async, video) may take to start, reset or step
    frame_stack: int = 0  # stacked observations; 0: 4 for Atari games as in the DQN papers, else 1
    # Normalize by running mean and standard deviation, saved with the agent; None: only if the backbone expects it.
    normalize_obs: bool | None = None
    # Divide by the standard deviation of the running discounted return; None: only if the algorithm expects it.
    normalize_reward: bool | None = None
    # Training budget in environment steps; default: 100 000. Off-policy algorithms stop exactly there; ppo and a2c
    # finish the current rollout, and reinforce finishes its batch of episodes.
    total_timesteps: int | None = None
    num_episodes: int | None = None  # training budget in episodes, instead of total_timesteps
    stop_at_return: float | None = None  # stop early when the mean return over `window` episodes reaches this
    max_minutes: float | None = None  # stop early after this wall time
    seed: int = 0  # seed of all random streams
    # Number of runs, with seeds from `seed` on. They are trained in one program if the environment is compiled (engine
    # jax), else in separate processes.
    num_seeds: int = 1
    seeds: tuple[int, ...] = ()  # list of seeds, instead of num_seeds
    workers: int | None = None  # parallel processes for several seeds; default: one per core
    from_agent: str | None = None  # start from the weights of this agent or run, where they fit; also --from
    plugins: tuple[str, ...] = ()  # your modules to import first; they register algorithms and network parts
    name: str | None = None  # experiment folder; default <env>_<algorithm>
    license: str | None = None  # license on the agent's card, such as mit; default: none
    results_dir: str = "results"  # parent folder of all experiments
    fallback_dir: str | None = None  # used while the run's folder cannot be written; default: memory
    record_episodes: bool = True  # record the actions of finished episodes for `drl replay`
    window: int = 100  # number of recent episodes in logged statistics
    # Keys of each episode's last info to log as means; default: all numbers.
    info_keys: tuple[str, ...] = ()
    best_after: int = 0  # save best models only after this many episodes
    wandb_project: str | None = None  # Weights & Biases project; None: off
    # MLflow experiment; None: off. Runs go to MLFLOW_TRACKING_URI, or else to mlflow.db in results_dir.
    mlflow_experiment: str | None = None
    group: str | None = None  # group of this run in W&B and MLflow; default: set for num_seeds and ablate only
    # Environment steps between evaluations; 0: never. Default: a tenth of the budget (a fifth for checkpoints), or
    # 10 000 if the budget is in episodes. By default, evaluations that would take more than a tenth of the training
    # steps in total are skipped; the final evaluation is always made.
    evaluate_every: int | None = None
    evaluation_episodes: int = 10  # episodes per evaluation
    # Maximum environment steps of one evaluation, over all environments; default: 100 000 per episode. A longer
    # evaluation is aborted and has no result.
    eval_max_steps: int | None = None
    checkpoint_every: int | None = None  # environment steps between checkpoints; see evaluate_every
    checkpoint_minutes: float = 5.0  # also save a checkpoint after this many minutes
    keep_checkpoints: int = 2  # number of newest checkpoints to keep; 0: none
    num_checkpoints: int = 3  # policies saved as models/pi_ckpt1.pth … at equal fractions of the budget
    device: str = "auto"  # auto · cpu · cuda · mps
    compile: str = "auto"  # auto · on · off: torch.compile the update; auto: if it saves time overall
    threads: int | None = None  # CPU threads; default: 1 for vector observations, all cores for images
    tensorboard: bool = True  # write events for TensorBoard
    plots: bool = True  # draw plots at the end
    video: bool = True  # film one evaluation episode at the end if the environment can be rendered
    quiet: bool = False  # print only one line at the end
    # If the output is a file or pipe: learning steps between full logs; 0: one line every five seconds.
    log_every: int = 0

    RULES: ClassVar[Rules] = {
        WHOLE_FROM_1: (
            "num_envs total_timesteps num_episodes window evaluation_episodes eval_max_steps threads num_seeds workers"
        ),
        one_of("torch", "jax"): "engine",
        one_of("auto", "on", "off"): "compile",
        ABOVE_0: "max_minutes checkpoint_minutes",
        Rule("a number of seconds above 0", lambda x: x > 0): "worker_timeout",
        WHOLE_FROM_0: (
            "evaluate_every checkpoint_every keep_checkpoints num_checkpoints seed best_after frame_stack log_every"
        ),
        FOLDER_NAME: "name",
        Rule("a folder", lambda x: x != ""): "results_dir",
        Rule("a name", lambda x: x.strip() != ""): (
            "env device wandb_project mlflow_experiment group from_agent license"
        ),
        Rule("different whole numbers of at least 0", lambda x: min(x, default=0) >= 0 and len(set(x)) == len(x)): (
            "seeds"
        ),
    }

    def __post_init__(self) -> None:
        check_fields(self)
        if self.seeds and self.num_seeds > 1:
            raise BadInput(f"both seeds {list(self.seeds)} and num_seeds {self.num_seeds} are given; give one of them")
        if self.workers is not None and len(self.all_seeds) == 1:
            raise BadInput(f"workers is {self.workers}, processes for several seeds; add --num-seeds, or leave it out")
        if self.vectorization == "async" and self.num_envs > MOST_PROCESSES:
            raise BadInput(
                f"num_envs is {self.num_envs:,} with vectorization 'async', a process for each; expected at most "
                f"{MOST_PROCESSES:,}, or --vectorization sync"
            )
        if self.total_timesteps and self.num_episodes:
            raise BadInput(
                f"both total_timesteps ({self.total_timesteps}) and num_episodes ({self.num_episodes}) are given; "
                "give one budget"
            )
        if self.group is not None and self.wandb_project is None and self.mlflow_experiment is None:
            raise BadInput(
                f"group is {self.group!r} without W&B and MLflow; add --wandb-project or --mlflow-experiment"
            )
        self.env_config  # noqa: B018 (checks every value)
        for wrapper in self.wrappers:
            split_wrapper(wrapper)

    @functools.cached_property
    def env_config(self) -> EnvConfig:
        """Config of the environment as the agent sees it."""
        arguments = plain_pairs("env_kwargs", self.env_kwargs)
        frames = self.frame_stack or usual_frame_stack(self.env, arguments)
        wrappers = usual_wrappers(self.env) if self.wrappers == AUTO else self.wrappers
        return EnvConfig(env=self.env, env_kwargs=arguments, wrappers=wrappers, frame_stack=frames)

    def resolved(self, chosen: PlainDict) -> "RunConfig":
        """Return a copy with values for settings that were left open; all others are checked already."""
        run = copy.copy(self)
        vars(run).update(chosen)
        vars(run).pop("env_config", None)
        return run

    @property
    def all_seeds(self) -> list[int]:
        """Seeds of all runs that these settings describe."""
        return list(self.seeds) or [self.seed + number for number in range(self.num_seeds)]

    def with_seed(self, seed: int) -> "RunConfig":
        """Return the settings of the run with this seed."""
        return dataclasses.replace(self, seed=seed, num_seeds=1, seeds=(), workers=None)

    @property
    def budget(self) -> int:
        """Budget in environment steps, or in episodes if `num_episodes` is given."""
        return self.num_episodes or self.total_timesteps or 100_000


PARTS = ("run", "model", "learner", "buffer", "exploration", "scaling")  # in the order of config.yaml


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All settings of a run. The algorithm's record lists its config classes."""

    algorithm: str = "ppo"
    run: RunConfig = field(default_factory=RunConfig)
    model: Config = None  # of the algorithm's model
    learner: Config = None  # of the algorithm itself
    buffer: Config = None
    exploration: Config = None
    scaling: ScalingConfig = field(default_factory=ScalingConfig)

    def __post_init__(self) -> None:
        record = find_algorithm(self.algorithm)
        if self.scaling.num_learners > 1 and len(self.run.all_seeds) > 1:
            learners, seeds = self.scaling.num_learners, len(self.run.all_seeds)
            raise BadInput(f"num_learners is {learners} with {seeds} seeds; several learners are for one run")
        for part, kind in record.parts.items():
            if getattr(self, part) is None:
                object.__setattr__(self, part, kind())
        backbone = BACKBONES.get(getattr(self.model, "backbone", "auto"))
        expected: PlainDict = {
            "normalize_obs": backbone is not None and backbone.normalize_obs,
            "normalize_reward": record.normalize_reward,
        }
        chosen = {name: value for name, value in expected.items() if getattr(self.run, name) is None}
        if self.run.frame_stack == 0:
            chosen["frame_stack"] = self.run.env_config.frame_stack
        if self.run.wrappers == AUTO:
            chosen["wrappers"] = () if self.run.vectorization == "envpool" else self.run.env_config.wrappers
        if chosen:
            object.__setattr__(self, "run", self.run.resolved(chosen))

    @classmethod
    def from_flat(cls, flat: Mapping[str, PlainValue], source: str = "") -> "Experiment":
        """Make configs from flat names. Errors begin with `source`."""
        settings = dict(flat)
        algorithm = settings.pop("algorithm", "ppo")
        try:
            record = find_algorithm(algorithm if isinstance(algorithm, str) else shown(algorithm))
            kinds = {"run": RunConfig, "scaling": ScalingConfig} | record.parts
            part_of = {field.name: part for part, kind in kinds.items() for field in dataclasses.fields(kind)}
            values: dict[str, PlainDict] = {part: {} for part in kinds}
            for name, value in settings.items():
                if name not in part_of:
                    known = explain_unknown(name, value, record.name, part_of, typed=False)
                    raise BadInput(known or f"unknown setting {name!r} for {algorithm}; {did_you_mean(name, part_of)}")
                values[part_of[name]][name] = _coerced(kinds[part_of[name]], name, value)
            return cls(algorithm=algorithm, **{part: kind(**values[part]) for part, kind in kinds.items()})
        except BadInput as error:
            if not source:
                raise
            raise BadInput(f"{source}: {error}") from None

    def to_flat(self) -> PlainDict:
        """Return plain data for YAML; `from_flat` reads it back."""
        flat: PlainDict = {"algorithm": self.algorithm}
        for part in PARTS:
            settings = dataclasses.asdict(getattr(self, part))
            flat |= {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
        return flat


def _coerced(kind: type, name: str, given: PlainValue) -> PlainValue:
    """Convert a value to the type of its field; YAML reads 1e-3 as text and has no tuples."""
    value = plain_setting(given)
    if name == "compile" and isinstance(value, bool):  # YAML reads on and off as booleans
        return "on" if value else "off"
    check_size(name, value)
    wanted, optional = stated_type(kind, name)
    if value is None and optional:
        return None
    if callable(value) and _takes_functions(kind, name):
        return value  # its config replaces it by its name
    if isinstance(value, Mapping) and name.endswith("_kwargs"):
        return as_pairs(name, value)
    try:
        if wanted is float and not isinstance(value, bool):
            return float(value)
        if wanted is int and not isinstance(value, bool):
            if isinstance(value, int):
                return value
            if float(value).is_integer():
                return int(float(value))
        if wanted in (bool, str) and isinstance(value, wanted):
            return value
        if typing.get_origin(wanted) is tuple and isinstance(value, tuple):
            item_type = typing.get_args(wanted)[0]
            if all(type(item) is item_type for item in value):
                return value
    except (TypeError, ValueError, OverflowError):
        pass
    expected = getattr(wanted, "__name__", str(wanted)) if typing.get_origin(wanted) is None else "list"
    raise BadInput(f"{name} is {shown(given)}; expected a value of type {expected}")


def _takes_functions(kind: type, name: str) -> bool:
    """Whether a setting accepts a user's function: activation, initialization, optimizer, rate or schedule."""
    rate = f"{name.removesuffix('_start')}_schedule"
    return name in ("activation", "init", "optimizer") or name.endswith("_schedule") or hasattr(kind, rate)


def check_reach(settings: PlainDict, given: Collection[str], source: str, command: str | None = None) -> None:
    """Raise if a file that is not trusted has a setting of `REACHES_OUT` that is not among the `given` ones. `command`
    is what to type in front of the flag; None: only `--trust` helps."""
    for name, effect in REACHES_OUT.items():
        default = RunConfig.results_dir if name == "results_dir" else None
        value = settings.get(name, default)
        if value != default and name not in given:
            typed = f"type: {command} --{name.replace('_', '-')} {shown(value)}, or " if command else ""
            raise BadInput(
                f"{source} sets {name} to {shown(value)}, which {effect}; if you want that, {typed}add --trust"
            )


def changed_settings(before: PlainDict, now: PlainDict) -> str:
    """Describe how settings changed, for a message; empty if they did not.

    >>> changed_settings({"seed": 1, "env": "A"}, {"seed": 2, "env": "A"})
    'seed was 1 and is now 2'
    """
    other = [name for name in sorted(before | now) if before.get(name) != now.get(name)]
    return "; ".join(f"{name} was {before.get(name)!r} and is now {now.get(name)!r}" for name in other)


def read_yaml(path: str | os.PathLike[str]) -> PlainDict:
    """Read a flat YAML mapping."""
    if str(path) == "":
        raise BadInput("config is ''; expected a YAML file such as a run's config.yaml")
    try:
        content = read_yaml_file(Path(path))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}; give a YAML file such as a run's config.yaml") from None
    except UnusableFile as error:
        raise BadInput(str(error)) from None
    except ValueError as error:
        raise BadInput(f"{path} is not valid YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise BadInput(f"{path} must hold settings as NAME: VALUE, one per line")
    return content
