"""The flat command line of `main.py`: DQN with one switch per part, flags with underscores.

It turns its flags into the same experiment as `drl train dqn`.
"""

import importlib.util
import shlex
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

from drl.cli.entry import EXIT_CODES, errors_reported
from drl.cli.flags import Parser
from drl.core.configs import ConfigClass
from drl.core.errors import BadInput
from drl.core.setting_rules import check_size
from drl.core.specs import PlainDict
from drl.runs.folder.run_folder import Run
from drl.settings.experiment import Experiment
from drl.settings.layering import layered

ATARI_EPS_DECAY = 1_000_000  # environment steps; elsewhere 1000
SETTINGS = {  # flag → setting with the same value
    "env_name": "env", "num_episodes": "num_episodes", "seed": "seed", "quiet": "quiet", "results_dir": "results_dir",
    "reward_window": "window", "best_after": "best_after", "lr": "learning_rate", "gamma": "gamma",
    "batch_size": "batch_size", "tau": "tau", "n_steps": "n_step", "capacity": "capacity",
    "grad_clip": "max_grad_value", "cnn_features": "cnn_features", "eps_end": "epsilon_end", "use_double": "double",
    "use_dueling": "dueling", "use_per": "prioritized", "use_noisy": "noisy", "num_atoms": "num_atoms",
    "v_min": "v_min", "v_max": "v_max", "per_alpha": "priority_alpha", "per_beta": "priority_beta",
    "per_beta_increment": "priority_beta_step", "per_eps": "priority_eps",
}  # fmt: skip
ONLY_SEARCHES = {"search", "n_trials", "num_episodes_per_trial", "search_mode"}


@dataclass(frozen=True)
class GeneralFlags:
    """Environment, budget and output."""

    env_name: str = "CartPole-v1"  # Gymnasium environment
    num_episodes: int = 2000  # training episodes
    seed: int = 42  # root seed
    quiet: bool = False  # less printing
    results_dir: str = "results"  # folder of runs, models and studies


@dataclass(frozen=True)
class HyperParameters:
    """Network, replay and optimizer."""

    lr: float = 1e-4  # learning rate (AdamW, amsgrad on)
    gamma: float = 0.99  # discount
    batch_size: int = 128  # replay batch
    tau: float = 0.005  # soft target update
    n_steps: int = 1  # n-step returns
    capacity: int = 100_000  # transitions in the replay buffer
    grad_clip: float = 100.0  # largest absolute gradient
    hidden: int = 128  # width of the two MLP layers
    cnn_features: int = 512  # width of the CNN's last layer
    reward_window: int = 100  # episodes in the running mean
    best_after: int = 100  # a best model is saved after more episodes than this


@dataclass(frozen=True)
class ExplorationFlags:
    """ε = end + (start − end)·exp(−step / decay)"""

    eps_start: float = 0.9  # share of random actions at the start
    eps_end: float = 0.05  # share of random actions at the end
    eps_decay: float | None = None  # environment steps; 0: eps_end from the start; None: 1000, for Atari 1000000


@dataclass(frozen=True)
class SwitchFlags:
    """Alone and in any combination."""

    use_double: bool = False  # double DQN
    use_dueling: bool = False  # dueling network
    use_per: bool = False  # prioritized replay
    use_noisy: bool = False  # noisy layers in place of ε
    use_distributional: bool = False  # C51
    num_atoms: int = 51  # C51: atoms of the support
    v_min: float = -10.0  # C51: smallest return of the support
    v_max: float = 10.0  # C51: largest return of the support
    per_alpha: float = 0.6  # priorities: 0 uniform, 1 proportional to the error
    per_beta: float = 0.4  # priorities: initial strength of the importance weights
    per_beta_increment: float = 0.001  # added to per_beta at every sample, up to 1
    per_eps: float = 0.01  # priorities: added to every error


@dataclass(frozen=True)
class AtariFlags:
    """Frames and rewards."""

    screen_size: int = 84  # height and width of a frame
    noop_max: int = 30  # most no-op steps at the start of an episode
    frame_skip: int = 1  # 1, because …-v5 already skips
    stack_size: int = 4  # frames per observation
    # Train with the sign of each reward, the default for Atari and refused elsewhere, or with the game's own rewards.
    # Printed returns are raw.
    clip_rewards: bool | None = None


@dataclass(frozen=True)
class EvaluationFlags:
    """Watch a trained agent step by step, without exploration."""

    evaluate: bool = False  # evaluate instead of training
    load_model_path: str | None = None  # a .pth file that training saved
    eval_episodes: int = 10  # episodes to watch


@dataclass(frozen=True)
class StudyFlags:
    """Optuna."""

    search: bool = False  # search for better settings instead of training
    n_trials: int = 100  # trials in total; the same command continues
    num_episodes_per_trial: int = 300  # training episodes of each trial
    search_mode: Literal["base", "all"] = "base"  # base: lr, gamma, tau; all: architecture too


@dataclass(frozen=True)
class WandbFlags:
    """Weights & Biases."""

    wandb_project: str = "drl-pbl-lecture"  # project to track under
    wandb_disable: bool = False  # no tracking with W&B


GROUPS: dict[str, ConfigClass] = {
    "": GeneralFlags,
    "hyper-parameters": HyperParameters,
    "exploration": ExplorationFlags,
    "switches": SwitchFlags,
    "Atari": AtariFlags,
    "evaluation": EvaluationFlags,
    "search": StudyFlags,
    "tracking": WandbFlags,
}


@dataclass(frozen=True)
class Flags(
    WandbFlags, StudyFlags, EvaluationFlags, AtariFlags, SwitchFlags, ExplorationFlags, HyperParameters, GeneralFlags
):
    """All flags of `main.py`, in the order of its help."""


def make_parser() -> Parser:
    """The flags of `main.py`."""
    return Parser("python main.py", __doc__ or "", GROUPS, separator="_")


def main(words: list[str]) -> int:
    """Run `python main.py`."""
    words = list(words)
    with errors_reported("main.py", words) as ended:
        flags = Flags(**make_parser().parse(words))
        if flags.evaluate and flags.search:
            raise BadInput("--evaluate and --search are both given; give one of them")
        if flags.load_model_path and not flags.evaluate:
            raise BadInput("--load_model_path is for --evaluate; training starts from scratch")
        if flags.eval_episodes < 1:
            raise BadInput(f"--eval_episodes is {flags.eval_episodes}; expected a whole number of at least 1")
        check_size("eval_episodes", flags.eval_episodes)
        if flags.evaluate:
            ended.code = _evaluate(flags, {word.partition("=")[0].removeprefix("--") for word in words})
        elif flags.search:
            ended.code = _search(flags, words)
        else:
            ended.code = _train(flags)
    return ended.code


def experiment_of(flags: Flags) -> Experiment:
    """Return the experiment that these flags describe."""
    atari = flags.env_name.startswith("ALE/")
    if flags.clip_rewards is not None and not atari:
        given = "--clip_rewards" if flags.clip_rewards else "--no_clip_rewards"
        raise BadInput(f"{given} is for Atari (ALE/…) and --env_name is {flags.env_name}; leave it out")
    start, decay = flags.eps_start, flags.eps_decay
    if decay is None:
        decay = ATARI_EPS_DECAY if atari else 1000.0
    elif decay == 0:  # constant
        start, decay = flags.eps_end, 1.0
    settings: PlainDict = {setting: getattr(flags, flag) for flag, setting in SETTINGS.items()}
    settings |= {
        "num_envs": 1,
        "warmup": 0,
        "max_grad_norm": None,
        "hidden_sizes": [flags.hidden, flags.hidden],
        "epsilon_start": start,
        "epsilon_decay": decay,
        "distributional": "c51" if flags.use_distributional else "none",
    }
    if atari:
        settings |= {"frame_stack": flags.stack_size}
        pairs = [f"{name}={getattr(flags, name)}" for name in ("screen_size", "noop_max", "frame_skip")]
        settings |= {"env_kwargs": pairs if flags.clip_rewards is not False else [*pairs, "clip_reward=false"]}
    if not flags.wandb_disable and not flags.evaluate and not flags.search:
        settings["wandb_project"] = flags.wandb_project
    return layered("dqn", settings, preset=False)[0]


def train_command(flags: Flags, found: PlainDict) -> str:
    """Return the command that trains with these flags and the settings that a search found.

    >>> flags = Flags(search=True, n_trials=5, use_per=True, seed=7)
    >>> train_command(flags, {"learning_rate": 0.001, "double": True, "prioritized": False})
    'python main.py --seed 7 --lr 0.001 --use_double'
    """
    chosen = vars(flags) | {flag: found[setting] for flag, setting in SETTINGS.items() if setting in found}
    if "hidden_sizes" in found:
        chosen["hidden"] = found["hidden_sizes"][0]
    if "distributional" in found:
        chosen["use_distributional"] = found["distributional"] != "none"
    words = ["python", "main.py"]
    for flag in fields(Flags):
        value = chosen[flag.name]
        if flag.name not in ONLY_SEARCHES and value != flag.default:
            words += (
                [f"--{'no_' * (value is False)}{flag.name}"]
                if isinstance(value, bool)
                else [f"--{flag.name}", str(value)]
            )
    return shlex.join(words)


def _train(flags: Flags) -> int:
    from drl.runs.extras import Extras
    from drl.runs.folder.finished import resume_line
    from drl.runs.folder.run_writer import BestModelCopy
    from drl.runs.launch import train
    from drl.runs.session import say

    if not flags.wandb_disable and importlib.util.find_spec("wandb") is None:
        flags = replace(flags, wandb_disable=True)
        say("W&B is not installed (pip install 'drl-workshop[wandb]'); continuing without it")
    copies: list[BestModelCopy] = []

    def copy_best(run: Run) -> list[BestModelCopy]:
        copies.append(BestModelCopy(run))
        return copies

    finished = train(experiment_of(flags), Extras(trackers=copy_best))
    text = f"best model: {copies[0].path}"
    if not copies[0].path.exists():
        text = f"no best model: one is saved after more than {flags.best_after} episodes (--best_after)"
    say(text if flags.quiet else f"\n{finished.report()}\n{text}")
    if line := resume_line([finished]):
        say(line)
    return EXIT_CODES[finished.status]


def _evaluate(flags: Flags, typed: set[str]) -> int:
    if not flags.load_model_path:
        raise BadInput("--evaluate needs --load_model_path results/models/best_model_….pth")
    from drl.agents.evaluation import Evaluation
    from drl.agents.load_agent import load_q_agent
    from drl.agents.watch import watch

    experiment = experiment_of(flags)
    agent = load_q_agent(Path(flags.load_model_path), experiment, typed)
    mode = "quiet" if flags.quiet else "ansi"
    episodes = watch(agent, experiment.run.env_config, mode, flags.eval_episodes, flags.seed)
    print(f"{flags.env_name}: {Evaluation(episodes).sentence()}")
    return 0


def _search(flags: Flags, words: list[str]) -> int:
    from drl.search.run_search import run_search
    from drl.search.search_plan import SearchConfig
    from drl.search.search_report import Commands

    name = flags.env_name.replace("/", "_").replace(":", "_") + "_flat_search"
    options = {"distributional": ("none", "c51")}  # all that these flags can express
    config = SearchConfig(
        env=flags.env_name,
        n_trials=flags.n_trials,
        num_episodes_per_trial=flags.num_episodes_per_trial,
        mode=flags.search_mode,
        seed=flags.seed,
        quiet=flags.quiet,
        results_dir=flags.results_dir,
        name=name + ("_all" if flags.search_mode == "all" else ""),
    )
    settings = experiment_of(flags).to_flat()
    typed = shlex.join(["python", "main.py", *words])
    commands = Commands(typed, lambda found: train_command(flags, found))
    result = run_search("dqn", config, settings, use_preset=False, options=options, own_study=True, commands=commands)
    return EXIT_CODES[result.status]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
