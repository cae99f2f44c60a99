"""The flat command line of `main.py`: DQN with one switch per part, flags with underscores.

It turns its flags into the same experiment as `drl train dqn`.
"""

import argparse
import importlib.util
import shlex
import sys
from pathlib import Path

from drl.cli.entry import EXIT_CODES, report_errors
from drl.cli.flags import Parser
from drl.core.errors import BadInput
from drl.core.setting_rules import check_size
from drl.core.specs import PlainDict
from drl.runs.folder.run_folder import Run
from drl.settings.experiment import Experiment

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


def make_parser() -> Parser:
    """The flags of `main.py`."""
    parser = Parser(
        prog="python main.py",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--env_name", default="CartPole-v1", help="Gymnasium environment")
    add("--num_episodes", type=int, default=2000, help="training episodes")
    add("--seed", type=int, default=42, help="root seed")
    add("--quiet", action="store_true", help="less printing")
    add("--results_dir", default="results", help="folder of runs, models and studies")

    group = parser.add_argument_group("hyper-parameters")
    add = group.add_argument
    add("--lr", type=float, default=1e-4, help="learning rate (AdamW, amsgrad on)")
    add("--gamma", type=float, default=0.99, help="discount")
    add("--batch_size", type=int, default=128, help="replay batch")
    add("--tau", type=float, default=0.005, help="soft target update")
    add("--n_steps", type=int, default=1, help="n-step returns")
    add("--capacity", type=int, default=100_000, help="transitions in the replay buffer")
    add("--grad_clip", type=float, default=100.0, help="largest absolute gradient")
    add("--hidden", type=int, default=128, help="width of the two MLP layers")
    add("--cnn_features", type=int, default=512, help="width of the CNN's last layer")
    add("--reward_window", type=int, default=100, help="episodes in the running mean")
    add("--best_after", type=int, default=100, help="a best model is saved after more episodes than this")

    group = parser.add_argument_group("exploration: ε = end + (start − end)·exp(−step / decay)")
    add = group.add_argument
    add("--eps_start", type=float, default=0.9, help="share of random actions at the start")
    add("--eps_end", type=float, default=0.05, help="share of random actions at the end")
    add(
        "--eps_decay",
        type=float,
        default=None,
        help=f"environment steps; 0: eps_end from the start; None: 1000, for Atari {ATARI_EPS_DECAY}",
    )

    group = parser.add_argument_group("switches, alone and in any combination")
    add = group.add_argument
    add("--use_double", action="store_true", help="double DQN")
    add("--use_dueling", action="store_true", help="dueling network")
    add("--use_per", action="store_true", help="prioritized replay")
    add("--use_noisy", action="store_true", help="noisy layers in place of ε")
    add("--use_distributional", action="store_true", help="C51")
    add("--num_atoms", type=int, default=51, help="C51: atoms of the support")
    add("--v_min", type=float, default=-10.0, help="C51: smallest return of the support")
    add("--v_max", type=float, default=10.0, help="C51: largest return of the support")
    add("--per_alpha", type=float, default=0.6, help="priorities: 0 uniform, 1 proportional to the error")
    add("--per_beta", type=float, default=0.4, help="priorities: initial strength of the importance weights")
    add("--per_beta_increment", type=float, default=0.001, help="added to per_beta at every sample, up to 1")
    add("--per_eps", type=float, default=0.01, help="priorities: added to every error")

    group = parser.add_argument_group("Atari")
    add = group.add_argument
    add("--screen_size", type=int, default=84, help="height and width of a frame")
    add("--noop_max", type=int, default=30, help="most no-op steps at the start of an episode")
    add("--frame_skip", type=int, default=1, help="1, because …-v5 already skips")
    add("--stack_size", type=int, default=4, help="frames per observation")
    add(
        "--clip_rewards",
        action="store_true",
        default=None,
        help="train with the sign of each reward; the default for Atari, refused elsewhere; printed returns are raw",
    )
    keep = "train with the game's own rewards"
    add("--no_clip_rewards", dest="clip_rewards", action="store_false", default=argparse.SUPPRESS, help=keep)

    group = parser.add_argument_group("evaluation: watch a trained agent step by step, no exploration")
    add = group.add_argument
    add("--evaluate", action="store_true", help="evaluate instead of training")
    add("--load_model_path", default=None, help="a .pth file that training saved")
    add("--eval_episodes", type=int, default=10, help="episodes to watch")

    group = parser.add_argument_group("search (Optuna)")
    add = group.add_argument
    add("--search", action="store_true", help="search for better settings instead of training")
    add("--n_trials", type=int, default=100, help="trials in total; the same command continues")
    add("--num_episodes_per_trial", type=int, default=300, help="training episodes of each trial")
    add("--search_mode", choices=("base", "all"), default="base", help="base: lr, gamma, tau; all: architecture too")

    group = parser.add_argument_group("Weights & Biases")
    add = group.add_argument
    add("--wandb_project", default="drl-pbl-lecture", help="project to track under")
    add("--wandb_disable", action="store_true", help="no tracking with W&B")
    return parser


def main(arguments: list[str]) -> int:
    """Run `python main.py`."""
    return report_errors(_run, arguments, name="main.py")


def _run(arguments: list[str]) -> int:
    flags = make_parser().parse_args(arguments)
    if flags.evaluate and flags.search:
        raise BadInput("--evaluate and --search are both given; give one of them")
    if flags.load_model_path and not flags.evaluate:
        raise BadInput("--load_model_path is for --evaluate; training starts from scratch")
    if flags.eval_episodes < 1:
        raise BadInput(f"--eval_episodes is {flags.eval_episodes}; expected a whole number of at least 1")
    check_size("eval_episodes", flags.eval_episodes)
    if flags.evaluate:
        return _evaluate(flags, {word.partition("=")[0].removeprefix("--") for word in arguments})
    if flags.search:
        return _search(flags, arguments)
    return _train(flags)


def experiment_of(flags: argparse.Namespace) -> Experiment:
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
        "algorithm": "dqn",
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
    return Experiment.from_flat(settings, "main.py")


def train_command(flags: argparse.Namespace, found: PlainDict) -> str:
    """Return the command that trains with these flags and the settings that a search found.

    >>> flags = make_parser().parse_args(["--search", "--n_trials", "5", "--use_per", "--seed", "7"])
    >>> train_command(flags, {"learning_rate": 0.001, "double": True, "prioritized": False})
    'python main.py --seed 7 --lr 0.001 --use_double'
    """
    chosen = vars(flags) | {flag: found[setting] for flag, setting in SETTINGS.items() if setting in found}
    if "hidden_sizes" in found:
        chosen["hidden"] = found["hidden_sizes"][0]
    if "distributional" in found:
        chosen["use_distributional"] = found["distributional"] != "none"
    words = ["python", "main.py"]
    for action in make_parser()._actions:  # in the order of `--help`
        if action.dest not in chosen.keys() - ONLY_SEARCHES or chosen[action.dest] == action.default:
            continue
        if action.nargs != 0:
            words += [action.option_strings[0], str(chosen[action.dest])]
        elif chosen[action.dest] == action.const:
            words.append(action.option_strings[0])
    return shlex.join(words)


def _train(flags: argparse.Namespace) -> int:
    from drl.runs.extras import Extras
    from drl.runs.folder.finished import resume_line
    from drl.runs.folder.run_writer import BestModelCopy
    from drl.runs.launch import train
    from drl.runs.session import say

    if not flags.wandb_disable and importlib.util.find_spec("wandb") is None:
        flags.wandb_disable = True
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


def _evaluate(flags: argparse.Namespace, typed: set[str]) -> int:
    if not flags.load_model_path:
        raise BadInput("--evaluate needs --load_model_path results/models/best_model_….pth")
    from drl.agents.evaluation import Evaluation
    from drl.agents.load_agent import load_q_agent
    from drl.agents.watch import watch

    experiment = experiment_of(flags)
    agent = load_q_agent(Path(flags.load_model_path), experiment, typed)
    mode = "quiet" if flags.quiet else "ansi"
    episodes = watch(
        agent,
        experiment.run.env_config,
        mode,
        flags.eval_episodes,
        flags.seed,
    )
    print(f"{flags.env_name}: {Evaluation(episodes).sentence()}")
    return 0


def _search(flags: argparse.Namespace, arguments: list[str]) -> int:
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
    typed = shlex.join(["python", "main.py", *arguments])
    commands = Commands(typed, lambda found: train_command(flags, found))
    result = run_search("dqn", config, settings, use_preset=False, options=options, own_study=True, commands=commands)
    return EXIT_CODES[result.status]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
