"""`drl train`, `drl resume` and `drl fork`: begin and continue runs.

Every field of the run, model and algorithm configs is a flag of `drl train`.
"""

import dataclasses
import itertools
import os
import shlex
from collections.abc import Collection
from pathlib import Path

from drl.algorithms import ALGORITHMS, find_algorithm
from drl.cli.entry import EXIT_CODES
from drl.cli.flags import Parser, list_wrappers, parse_flags
from drl.core.configs import Config, ConfigClass, plain_pairs
from drl.core.errors import BadInput, UnusableFile, shown
from drl.core.network_parts import import_plugins
from drl.core.setting_rules import check_size
from drl.core.specs import PlainDict
from drl.envs.env_specs import check_trusted
from drl.runs.folder.run_folder import find_run, is_own_config, runs_in
from drl.settings.experiment import PARTS, Experiment, RunConfig, read_yaml
from drl.settings.foreign_settings import explain_unknown
from drl.settings.presets import BUDGETS, load_preset, one_budget, one_schedule, preset_path, sources

TRAIN_USAGE = f"""usage: drl train ALGORITHM --env ID [--config FILE.yaml] [--preset NAME] [--no-preset] …

ALGORITHM is one of {", ".join(ALGORITHMS)}. `drl train ALGORITHM --help` shows every flag.
The preset of the algorithm and environment is used if there is one. --preset selects another one, such as rainbow for
dqn or clip for ppo. --config overrides the preset, and flags override both."""

# Values of flags that are given without one: --flag and --no-flag.
SWITCH_WORDS = {
    "--compile": ("on", "off"),
    "--normalize-obs": ("True", "False"),
    "--normalize-reward": ("True", "False"),
}


OTHER_WORDS = {"--network": "--backbone", "--from": "--from-agent"}


def run_train(arguments: list[str]) -> int:
    """Run `drl train`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(TRAIN_USAGE)
        return 0 if arguments else 2
    algorithm, flags = arguments[0], arguments[1:]
    experiment, source = read_experiment(algorithm, flags)

    # Check the input before loading an engine, which is slow.
    from drl.runs.folder.finished import resume_line
    from drl.runs.launch import train, train_seeds
    from drl.runs.session import say

    if source and not experiment.run.quiet:
        say(f"settings: {source}")
    runs = train_seeds(experiment) if len(experiment.run.all_seeds) > 1 else [train(experiment)]
    if not experiment.run.quiet:
        say("\n".join(f"\n{finished.report()}" for finished in runs))
    seeds = experiment.run.all_seeds
    if missing := [str(seed) for seed in seeds[len(runs) :]]:
        say(f"not begun: seed {', '.join(missing)}")
    if line := resume_line(runs):
        say(line)
    statuses = [*(run.status for run in runs), *(["interrupted"] if missing else [])]
    return EXIT_CODES[next((status for status in statuses if status != "finished"), "finished")]


def read_experiment(algorithm: str, flags: list[str]) -> tuple[Experiment, str]:
    """Return the experiment, and a text that names the sources of its settings."""
    flags = full_words(list_wrappers(flags))
    config_file, preset_name = take_flag(flags, "--config"), take_flag(flags, "--preset")
    use_preset, trust = "--no-preset" not in flags, "--trust" in flags
    flags = [flag for flag in flags if flag not in ("--no-preset", "--trust")]
    from_file = read_yaml(config_file) if config_file is not None else {}
    trust = trust or is_own_config(config_file, from_file)
    import_named_plugins(flags, from_file, trust, str(config_file), f"drl train {algorithm} --config {config_file}")
    find_algorithm(algorithm)
    if from_file.get("algorithm", algorithm) != algorithm:
        raise BadInput(
            f"{config_file} is for {from_file['algorithm']}; type: drl train {from_file['algorithm']} --config …"
        )
    env = peek(flags, "--env") or from_file.get("env", RunConfig.env)
    if not isinstance(env, str):
        raise BadInput(f"{config_file}: env is {shown(env)}; expected the name of an environment, such as CartPole-v1")
    check_size("env", env)
    if not trust:
        named = () if peek_list(flags, "--wrappers") else from_file.get("wrappers") or ()
        in_file = "" if peek(flags, "--env") else env
        check_trusted(in_file, named, str(config_file), f"drl train {algorithm} --config {config_file}")
    if peek(flags, "--log-every") not in (None, "0") and "--quiet" in flags:
        raise BadInput("--log-every prints during training and --quiet prints one line at the end; give one of them")
    if preset_name is not None and not use_preset:
        raise BadInput("both --preset and --no-preset are given; give one of them")
    preset = (load_preset(algorithm, env, preset_name) if use_preset else None) or {}
    typed = [name for name in BUDGETS if peek(flags, f"--{name.replace('_', '-')}") is not None]
    one_budget(preset, from_file, typed)
    words = [flag.removeprefix("--").partition("=")[0].replace("-", "_") for flag in flags if flag.startswith("--")]
    schedules = {word: peek(flags, f"--{word.replace('_', '-')}") for word in words if word.endswith("_schedule")}
    one_schedule(preset, from_file, schedules | dict.fromkeys(word for word in words if word.endswith("_end")))
    settings = preset | from_file | {"algorithm": algorithm, "env": env}
    source = config_file or str(preset_path(algorithm, env))
    kinds, values = Experiment.sorted_by_part(settings, source)
    parts = {name: _unchecked(kinds[name], values[name]) for name in PARTS}
    names = {field.name for part in parts.values() for field in dataclasses.fields(part)}
    check_names("drl train", algorithm, flags, names)
    fields = [(name, type(part), dataclasses.field(default=part)) for name, part in parts.items()]
    about = f"Train {algorithm}. The defaults shown are for {env}" + (" (preset)." if preset else ".")
    about += (
        " Also: --config FILE.yaml, settings that override the preset; --preset NAME, a different preset; "
        "--no-preset, no preset; --trust, import the modules that the file names, which runs their code."
    )
    try:
        parsed: object = parse_flags(
            dataclasses.make_dataclass("Flags", fields, frozen=True),
            flags,
            prog=f"drl train {algorithm}",
            description=about,
        )
    except BadInput:
        Experiment.from_flat(settings, source)  # raises with the name of the file if one of its settings is wrong
        raise
    experiment = Experiment(algorithm=algorithm, **{name: getattr(parsed, name) for name in PARTS})
    return experiment, sources(algorithm, env, preset_name or use_preset, config_file)


def _unchecked(kind: ConfigClass, values: PlainDict) -> Config:
    """Return a config that shows defaults only. The config that the flags make of it is checked."""
    config = object.__new__(kind)
    for each in dataclasses.fields(kind):
        default = each.default if each.default_factory is dataclasses.MISSING else each.default_factory()
        object.__setattr__(config, each.name, values.get(each.name, default))
    return config


def check_names(
    command: str, algorithm: str, flags: list[str], names: Collection[str], filed: Collection[str] = ()
) -> None:
    """Raise for flags of other libraries or other algorithms, naming the flag to type. `filed`: settings that the
    command takes only in a file."""
    for flag, following in itertools.pairwise([*flags, "--"]):
        name, equals, given = flag.partition("=")
        word = name.removeprefix("--").replace("-", "_")
        if name.startswith("--") and word not in names and word.removeprefix("no_") not in names:
            value = given if equals else "" if following.startswith("--") else following
            if known := explain_unknown(word, value, algorithm, names, typed=True, filed=filed):
                raise BadInput(f"{known}; see `{command} {algorithm} --help`")


def full_words(flags: list[str]) -> list[str]:
    """Expand short flags: `--compile` means `--compile on`, `--no-compile` means off, and likewise for
    `--normalize-obs` and `--normalize-reward`. `--network` is an alias of `--backbone`, `--from` of `--from-agent`.

    >>> full_words(["--compile", "--seed", "3", "--no-normalize-obs", "--network", "simba"])
    ['--compile', 'on', '--seed', '3', '--normalize-obs', 'False', '--backbone', 'simba']
    """
    words: list[str] = []
    for flag, following in itertools.pairwise([*flags, "--"]):
        name, equals, _ = flag.replace("_", "-").partition("=") if flag.startswith("--") else (flag, "", "")
        positive = f"--{name.removeprefix('--no-')}"
        if name in OTHER_WORDS:
            words.append(OTHER_WORDS[name] + flag[len(name) :])
        elif name in SWITCH_WORDS and not equals and following.startswith("--"):
            words += [name, SWITCH_WORDS[name][0]]
        elif name.startswith("--no-") and positive in SWITCH_WORDS:
            words += [positive, SWITCH_WORDS[positive][1]]
        else:
            words.append(flag)
    return words


def import_named_plugins(flags: list[str], from_file: PlainDict, trust: bool, source: str, command: str) -> None:
    """Import plugins. Plugins named in a file need --trust, because importing them runs their code."""
    typed = peek_list(flags, "--plugins")
    named = from_file.get("plugins") or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise BadInput(f"{source}: plugins is {shown(named)}; expected a list of modules")
    filed = [] if typed else named
    if filed and not trust:
        raise BadInput(
            f"{source} names the plugins {', '.join(filed)}, and importing them runs their code; if you "
            f"trust them, name them yourself: {command} --plugins {' '.join(filed)} (or add --trust)"
        )
    import_plugins([*typed, *filed])


def peek_list(flags: list[str], name: str) -> list[str]:
    """Return the values of `--flag one two` or `--flag=one` (underscores allowed) without changing `flags`.

    >>> peek_list(["--seed=1", "--plugins", "a", "b", "--quiet"], "--plugins"), peek_list(["--plugins=a"], "--plugins")
    (['a', 'b'], ['a'])
    """
    for position, flag in enumerate(flags):
        head, equals, tail = flag.partition("=")
        if head.replace("_", "-") == name:
            following = itertools.takewhile(lambda value: not value.startswith("--"), flags[position + 1 :])
            return [*([tail] if equals else []), *following]
    return []


def peek(flags: list[str], name: str) -> str | None:
    """Return the value of `--flag value` or `--flag=value` (underscores allowed) without changing `flags`."""
    value = None
    for position, flag in enumerate(flags):
        head, equals, tail = flag.partition("=")
        if head.replace("_", "-") == name:
            value = tail if equals else flags[position + 1] if position + 1 < len(flags) else None
    return value


def take_flag(flags: list[str], name: str) -> str | None:
    """Like `peek`, but removes the flag and its value."""
    value = peek(flags, name)
    for position, flag in enumerate(flags):
        if flag.partition("=")[0].replace("_", "-") == name:
            if value is None:
                raise BadInput(f"{name} needs a value")
            del flags[position : position + (1 if "=" in flag else 2)]
            break
    return value


RESUME_ABOUT = """\
Continue runs exactly from their newest checkpoint: metrics and weights equal those of an uninterrupted run.
For an experiment folder, all unfinished runs in it are continued."""


def run_resume(arguments: list[str]) -> int:
    """Run `drl resume`."""
    parser = Parser(prog="drl resume", description=RESUME_ABOUT)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder or an experiment folder")
    parser.add_argument(
        "--trust", action="store_true", help="import the modules that config.yaml names (runs their code)"
    )
    parser.add_argument("--cluster", metavar="local|auto|ADDRESS", help="where it runs this time; default: as before")
    parser.add_argument("--num-learners", type=int, metavar="N", help="learners this time; default: as before")
    options = parser.parse_args(arguments)
    changed = {"cluster": options.cluster, "num_learners": options.num_learners}
    scaling = {name: value for name, value in changed.items() if value is not None}
    folders = [folder for given in options.runs for folder in _runs(given)]

    from drl.runs.launch import is_unfinished, resume
    from drl.runs.session import say

    unusable: list[UnusableFile] = []
    for folder in folders:
        try:
            if not is_unfinished(folder):  # it may have been trained together with an earlier run of the list
                say(f"{folder} is finished, or another process trains it; there is nothing to resume")
                continue
            finished = resume(folder, scaling=scaling, trust=options.trust, hint=False)
        except UnusableFile as error:  # the other runs are continued first
            unusable.append(error)
            continue
        say(f"\n{finished.report()}")
        if code := EXIT_CODES[finished.status]:
            say(f"resume: {shlex.join(['drl', 'resume', *arguments])}")
            return code
    if unusable:
        raise unusable[0]
    return 0


def _runs(given: Path) -> list[Path]:
    return [given] if os.path.lexists(given / "run.json") else runs_in(given) or [find_run(given)]


def run_fork(arguments: list[str]) -> int:
    """Run `drl fork`."""
    parser = Parser(prog="drl fork", description="Start a new run from a checkpoint of another.")
    parser.add_argument("run", metavar="RUN", help="a run folder, or an experiment folder for its newest run")
    parser.add_argument("--at", type=int, metavar="STEP", help="the step of a kept checkpoint; default: the newest")
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="settings to change"
    )
    parser.add_argument("--trust", action="store_true", help="import the modules that config.yaml names")
    options = parser.parse_args(arguments)
    changes = plain_pairs("--set", tuple(options.set))

    from drl.runs.folder.finished import resume_line
    from drl.runs.launch import fork
    from drl.runs.session import say

    finished = fork(options.run, changes, options.at, trust=options.trust, hint=False)
    say("\n".join(filter(None, [f"\n{finished.report()}", resume_line([finished])])))
    return EXIT_CODES[finished.status]
