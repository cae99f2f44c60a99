"""The settings of a search, checked and planned before the first trial.

>>> SearchConfig(n_trials=20, num_timesteps_per_trial=10_000).name_for("dqn")
'CartPole-v1_dqn_search'
"""

import json
import os
import statistics
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from drl.agents.agent_env import open_vec_env
from drl.algorithms import find_algorithm
from drl.algorithms.search_dimensions import Choice, Space
from drl.core.errors import BadInput, did_you_mean, shown
from drl.core.setting_rules import WHOLE_FROM_0, WHOLE_FROM_1, Rule, Rules, check_fields, one_of
from drl.core.specs import PlainDict
from drl.runs.building import build_trainer, start_engine
from drl.runs.launch import check_boards, check_server
from drl.search.search_worker import Job
from drl.settings.experiment import FOLDER_NAME, Experiment, RunConfig
from drl.settings.foreign_settings import explain_unknown
from drl.settings.presets import BUDGETS, load_preset, one_budget
from drl.settings.scaling import ScalingConfig

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.trial import FrozenTrial

MODES = ("base", "all")
PRUNERS = ("median", "hyperband", "none")
BOARDS = {"wandb_project", "mlflow_experiment", "group"}
NOT_IN_PRESETS = {"seed", "name", "results_dir", "quiet", "threads", "plots", "video", "tensorboard", "worker_timeout"}
NOT_IN_PRESETS |= {"log_every"} | BOARDS | set(BUDGETS)


def space_for(algorithm: str, mode: str, num_envs: int = 1, budget: int | None = None) -> Space:
    """The dimensions of a search. `budget` (environment steps) excludes rollouts that would fill most of a trial.

    >>> list(space_for("dqn", "base"))
    ['learning_rate', 'gamma', 'tau']
    >>> space_for("ppo", "all", num_envs=8, budget=10_000)["rollout_length"].options
    (32, 64, 128)
    """
    record = find_algorithm(algorithm)
    if not record.search_base:
        raise BadInput(f"the record of {algorithm!r} has no search space; give it search_base")
    if mode not in MODES:
        raise BadInput(f"mode is {mode!r}; expected 'base' or 'all'")
    space = dict(record.search_base) | (dict(record.search_all) if mode == "all" else {})
    rollouts = space.get("rollout_length")
    if isinstance(rollouts, Choice):
        longest = max((budget or 40_960) // (8 * num_envs), rollouts.options[0])  # at least eight rollouts in a trial
        space["rollout_length"] = Choice(tuple(length for length in rollouts.options if length <= longest))
    return space


def starting_point(space: Space, flat: PlainDict) -> PlainDict:
    """The point of the space nearest to these settings: the first trial of a search.

    >>> from drl.algorithms.search_dimensions import GAMMA, WIDTH, Real
    >>> space: Space = {"gamma": GAMMA, "tau": Real(0.01, 0.1), "width": WIDTH}
    >>> starting_point(space, {"gamma": 0.97, "tau": 1, "hidden_sizes": [99]})
    {'gamma': 0.98, 'tau': 0.1, 'width': 128}
    """
    values = {"width": (flat.get("hidden_sizes") or [64])[-1]} | dict(flat)
    return {name: one.nearest(values[name]) for name, one in space.items() if values.get(name) is not None}


def as_settings(values: PlainDict, layers: int = 2, images: bool = False) -> PlainDict:
    """Flat settings from a trial's values. `width` becomes `hidden_sizes` or `cnn_features`.

    >>> as_settings({"gamma": 0.9, "width": 64}, layers=3)
    {'gamma': 0.9, 'hidden_sizes': [64, 64, 64]}
    >>> as_settings({"width": 128}, images=True)
    {'cnn_features': 512}
    """
    settings = {  # four significant digits, so that presets are readable
        name: float(f"{value:.4g}") if isinstance(value, float) else value
        for name, value in values.items()
        if name != "width"
    }
    if "width" in values:  # a network for images has one hidden layer, four times as wide
        settings |= {"cnn_features": 4 * values["width"]} if images else {"hidden_sizes": [values["width"]] * layers}
    return settings


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Settings of a search."""

    env: str = "CartPole-v1"  # any Gymnasium id, also module:Id
    n_trials: int = 100  # finished trials in total; the same command runs only the missing ones
    num_timesteps_per_trial: int | None = None  # environment steps; default: the preset's budget, else 50 000
    num_episodes_per_trial: int | None = None  # or episodes
    mode: str = "base"  # base: a few settings · all: also switches, batch sizes and network width
    pruner: str = "median"  # stops weak trials early: median · hyperband · none
    storage: str | None = None  # URL, or a file ending in .db or .log; default: results/<name>/study.db
    n_jobs: int = 1  # trials in parallel, each in its own process; 0: one after another in this process
    # Where they run: local (Ray, started for this command) · auto (the Ray cluster that this machine is in) · ADDRESS
    # of a Ray cluster; None: on this machine without Ray.
    cluster: str | None = None
    cpus_per_run: float = 1.0  # cores that a cluster reserves for each trial
    gpus_per_run: float = 0.0  # the same for GPUs
    trial_timeout: float = 60.0  # minutes without a sign of life after which a trial is ended and counts as failed
    seed: int = 0  # of the sampler and of the trials; trial i trains with seed + i
    name: str | None = None  # study and folder; default: <env>_<algorithm>_search
    results_dir: str = "results"  # where the folders of runs go
    reports: int = 10  # evaluations in a trial; the last one is of the final agent
    evaluation_episodes: int = 20  # per evaluation
    rerun_best: int = 3  # how many of the best trials are re-run
    rerun_seeds: int = 2  # fresh seeds per re-run trial; 0: no re-runs
    wandb_project: str | None = None  # Weights & Biases project, a run for each trial; None: off
    mlflow_experiment: str | None = None  # MLflow experiment, a run for each trial; None: off
    plots: bool = True  # plots of the study at the end
    quiet: bool = False  # print one line at the end

    RULES: ClassVar[Rules] = {
        WHOLE_FROM_1: "n_trials num_timesteps_per_trial num_episodes_per_trial reports evaluation_episodes",
        WHOLE_FROM_0: "seed rerun_best rerun_seeds n_jobs",
        Rule("a number of minutes above 0", lambda x: x > 0): "trial_timeout",
        one_of(*MODES): "mode",
        one_of(*PRUNERS): "pruner",
        FOLDER_NAME: "name",
        Rule("a name, a folder or a URL", lambda x: x.strip() != ""): (
            "env results_dir storage wandb_project mlflow_experiment"
        ),
    }

    def __post_init__(self) -> None:
        check_fields(self)
        ScalingConfig(cluster=self.cluster, cpus_per_run=self.cpus_per_run, gpus_per_run=self.gpus_per_run)
        if self.cluster is not None and self.n_jobs == 0:
            raise BadInput("n_jobs is 0, trials in this process, and cluster is given; give --n-jobs 2 or leave it out")
        if self.num_timesteps_per_trial and self.num_episodes_per_trial:
            raise BadInput("both num_timesteps_per_trial and num_episodes_per_trial are given; give one budget")

    def name_for(self, algorithm: str) -> str:
        """One study for each environment, algorithm and mode."""
        plain = self.env.replace("/", "_").replace(":", "_")
        return self.name or f"{plain}_{algorithm}_search{'_all' if self.mode == 'all' else ''}"


@dataclass(frozen=True)
class Found:
    """A finished trial and its scores when trained again."""

    number: int
    score: float  # in the search; biased upward, because the best are selected by it
    settings: PlainDict  # chosen by the search, as flat names
    on_the_way: float = 0.0  # mean of the evaluations in the trial; breaks ties in favor of faster learning
    fresh: dict[int, float | None] = field(default_factory=dict)  # seed → score of a re-run; None if it failed

    @property
    def honest(self) -> float | None:
        """Mean score over fresh seeds, which did not influence the selection."""
        scores = [score for score in self.fresh.values() if score is not None]
        return statistics.fmean(scores) if scores else None


def merged(preset: PlainDict, settings: PlainDict) -> PlainDict:
    """Settings on top of a preset. A budget in `settings` replaces the preset's, also one of the other kind.

    >>> merged({"total_timesteps": 100, "gamma": 0.9}, {"num_episodes": 5})
    {'gamma': 0.9, 'num_episodes': 5}
    """
    if all(settings.get(name) for name in BUDGETS):
        raise BadInput("the settings have both total_timesteps and num_episodes; give one budget")
    one_budget(preset, settings, ())
    return preset | settings


class SearchPlan:
    """The plan of a search, fixed before the first trial. Bad input raises here, before anything is written."""

    def __init__(
        self,
        algorithm: str,
        config: SearchConfig,
        given: PlainDict,
        narrowed: Mapping[str, tuple[object, ...]],
        own_study: bool,
        space: Space | None,
    ):
        self.own_space = space
        self.algorithm: str = algorithm
        self.config: SearchConfig = config
        pair = {"algorithm": algorithm, "env": config.env}
        boards = {name: getattr(config, name) for name in ("wandb_project", "mlflow_experiment")}
        pair |= {name: where for name, where in boards.items() if where is not None}
        self.given: PlainDict = pair | given | pair
        steps, episodes = config.num_timesteps_per_trial, config.num_episodes_per_trial
        if not steps and not episodes:
            steps, episodes = given.get("total_timesteps"), given.get("num_episodes")
        self.budget: dict[str, int] = (
            {"num_episodes": int(episodes)} if episodes else {"total_timesteps": int(float(steps or 50_000))}
        )
        start = Experiment.from_flat(self.fixed() | self.budget, "the search's settings")
        run = start.run
        flat = start.to_flat()  # with the names of functions and classes
        many = [each for each in fields(RunConfig) if each.name in ("num_seeds", "seeds", "workers", "fallback_dir")]
        for setting in (*many, *fields(ScalingConfig)):  # a trial is one run in one process that keeps no files
            if (value := flat[setting.name]) not in (setting.default, []):
                raise BadInput(
                    f"{setting.name} is {shown(value)} in the settings; a trial cannot have it: leave it out"
                )
        self.given |= {name: flat[name] for name in self.given if name in flat and name not in BUDGETS}
        self.name: str = config.name_for(algorithm)
        if own_study:
            self.name += f"_{zlib.crc32(json.dumps(self.belongs(), sort_keys=True).encode()):08x}"
        self.folder: Path = Path(config.results_dir) / self.name
        start_engine(start)
        check_boards(run)
        if config.cluster is not None:
            check_server(run.mlflow_experiment)
        with open_vec_env(
            run.env_config, run.num_envs, run.seed, vectorization=run.vectorization, timeout=run.worker_timeout
        ) as envs:
            self.images: bool = len(envs.obs_spec.shape) == 3
            build_trainer(start, envs)
        self.start_flat: PlainDict = flat
        if self.images:
            self.start_flat["width"] = start.model.cnn_features // 4
        self.layers: int = max(len(start.model.hidden_sizes), 1)
        self.space: Space = space or space_for(algorithm, config.mode, run.num_envs, self.budget.get("total_timesteps"))
        if unknown := [name for name in self.space if name != "width" and name not in self.start_flat]:
            known = ["width", *self.start_flat]
            theirs = explain_unknown(unknown[0], None, algorithm, self.start_flat, typed=False)
            advice = theirs or f"no setting of {algorithm}; {did_you_mean(unknown[0], known)}"
            raise BadInput(f"search_space has {unknown[0]!r}: {advice}")
        self.space |= {name: Choice(some) for name, some in narrowed.items() if name in self.space}
        cores = (os.cpu_count() or 1) if self.images else 1  # a second thread slows tiny networks
        share = cores // max(config.n_jobs, 1) if config.cluster is None else min(int(config.cpus_per_run), cores)
        self.threads: int = run.threads or max(share, 1)

    def fixed(self) -> PlainDict:
        """The settings that all trials share, without their budget."""
        return {name: value for name, value in self.given.items() if name not in BUDGETS}

    def job(self, number: int, chosen: PlainDict, seed: int, reports: int) -> Job:
        """One run with chosen settings, for a worker."""
        own: PlainDict = {"seed": seed, "threads": self.threads, "evaluation_episodes": self.config.evaluation_episodes}
        if any(self.given.get(name) for name in BOARDS):
            own |= {"group": self.given.get("group") or self.name, "results_dir": str(self.folder)}
        return Job(number, self.fixed() | self.budget | chosen | own, reports)

    def chosen(self, trial: "Trial | FrozenTrial") -> PlainDict:
        """A trial's values as flat settings."""
        return as_settings(trial.params, self.layers, self.images)

    def belongs(self) -> PlainDict:
        """Settings that must stay the same so that scores are comparable."""
        names = ("mode", "reports", "evaluation_episodes")
        fixed = {name: value for name, value in self.fixed().items() if name not in NOT_IN_PRESETS}
        same = {"budget": self.budget, "settings": fixed} | {name: getattr(self.config, name) for name in names}
        return same if self.own_space is None else same | {"search_space": str(self.own_space)}

    def preset(self, found: Found) -> PlainDict:
        """Settings that train like this trial, with or without a shipped preset for the pair."""
        budget = {name: self.given[name] for name in sorted(BUDGETS) if self.given.get(name)}
        kept = {name: value for name, value in self.fixed().items() if name not in NOT_IN_PRESETS}
        whole = kept | (budget or self.budget) | found.settings
        # `drl train --config` overrides the shipped preset, so every setting of that preset must be in the file.
        under = set(load_preset(self.algorithm, self.config.env) or {}) - NOT_IN_PRESETS
        default = Experiment(algorithm=self.algorithm).to_flat()
        always = {"algorithm", "env", *found.settings, *under}
        whole = {name: value for name, value in whole.items() if name in always or value != default[name]}
        return whole | {name: self.start_flat[name] for name in sorted(under - set(whole))}
