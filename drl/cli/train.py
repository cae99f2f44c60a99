"""`drl train`, `drl resume` and `drl fork`: begin and continue runs.

Every field of the run, model and algorithm configs is a flag of `drl train`.
"""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from drl.algorithms import ALGORITHMS, find_algorithm
from drl.cli.entry import EXIT_CODES
from drl.cli.flags import Parser, Positional
from drl.core.configs import ConfigClass, plain_pairs
from drl.core.errors import BadInput, UnusableFile
from drl.core.specs import PlainDict
from drl.runs.folder.run_folder import find_run, is_own_config, runs_in
from drl.settings.experiment import Experiment, RunConfig
from drl.settings.foreign_settings import explain_unknown
from drl.settings.layering import ConfigFile, layered, merge_layers, read_config
from drl.settings.scaling import ScalingConfig

TRAIN_USAGE = f"""usage: drl train ALGORITHM --env ID [--config FILE.yaml] [--preset NAME] [--no-preset] …

ALGORITHM is one of {", ".join(ALGORITHMS)}. `drl train ALGORITHM --help` shows every flag.
The preset of the algorithm and environment is used if there is one. --preset selects another one, such as rainbow for
dqn or clip for ppo. --config overrides the preset, and flags override both."""


@dataclass(frozen=True)
class SourceFlags:
    """Flags of `drl train` that are not settings."""

    config: str | None = None  # YAML file with settings that override the preset
    preset: str | None = None  # name of another preset
    no_preset: bool = False  # no preset
    trust: bool = False  # import the modules that the file names; this runs their code


@dataclass(frozen=True)
class FileFlags:
    """Flags that are read first."""

    config: str | None = None
    plugins: tuple[str, ...] = ()
    trust: bool = False


def run_train(words: list[str]) -> int:
    """Run `drl train`."""
    if not words or words[0] in ("-h", "--help"):
        print(TRAIN_USAGE)
        return 0 if words else 2
    experiment, source = read_experiment(words[0], words[1:])

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


def read_experiment(algorithm: str, words: Sequence[str]) -> tuple[Experiment, str]:
    """Return the experiment of a command line, and a text that names its preset and file."""
    experiment, sources, _ = read_words("drl train", algorithm, words)
    return experiment, sources


def read_words(
    command: str, algorithm: str, words: Sequence[str], own: ConfigClass = SourceFlags
) -> tuple[Experiment, str, PlainDict]:
    """Return the experiment of a command line, a text that names its preset and file, and the command's `own` flags."""
    file = read_named_file(f"{command} {algorithm}", words)
    parser = train_parser(command, algorithm, own)
    wants_help = not {"-h", "--help"}.isdisjoint(words)
    given = parser.parse(words, known_only=wants_help)
    others = {name: given.pop(name) for name in own.__dataclass_fields__ if name in given}
    if "preset" in others and "no_preset" in others:
        raise BadInput("both --preset and --no-preset are given; give one of them")
    preset = others.get("preset") or "no_preset" not in others
    if wants_help:
        parser.defaults, sources = merge_layers(algorithm, given, file, preset)
        parser.description = f"The defaults shown are for {parser.defaults['env']}{sources and f' ({sources})'}."
        parser.print_help()
        raise SystemExit(0)
    return *layered(algorithm, given, file, preset), others


def read_named_file(command: str, words: Sequence[str]) -> ConfigFile:
    """Read the file of a command line and import the plugins, which may define the algorithm and its flags."""
    first = Parser(command, "", {"": FileFlags}).parse(words, known_only=True)
    trust = first.get("trust", False) or is_own_config
    return read_config(first.get("config"), first.get("plugins", ()), trust, command)


def train_parser(command: str, algorithm: str, own: ConfigClass = SourceFlags) -> Parser:
    """Return the flags of `drl train` with an algorithm, and the command's `own`."""
    parts = {"run": RunConfig} | find_algorithm(algorithm).parts | {"scaling": ScalingConfig}
    names = {name for kind in parts.values() for name in kind.__dataclass_fields__}
    groups = {"": own} | {f"{part} options": kind for part, kind in parts.items() if kind.__dataclass_fields__}
    explain = partial(explain_unknown, algorithm=algorithm, names=names, typed=True)
    return Parser(f"{command} {algorithm}", "", groups, explain=explain)


@dataclass(frozen=True)
class ResumeCommand:
    """Continue runs exactly from their newest checkpoint: metrics and weights equal those of an uninterrupted run.
    For an experiment folder, all unfinished runs in it are continued."""

    runs: Positional[tuple[str, ...]]  # run folders or experiment folders
    trust: bool = False  # import the modules that config.yaml names; this runs their code
    cluster: str | None = None  # where it runs this time: local, auto or an ADDRESS; default: as before
    num_learners: int | None = None  # learners this time; default: as before

    def __call__(self) -> int:
        scaling: dict[str, str | int] = {} if self.cluster is None else {"cluster": self.cluster}
        scaling |= {} if self.num_learners is None else {"num_learners": self.num_learners}
        folders = [folder for name in self.runs for folder in _runs(Path(name))]

        from drl.runs.launch import is_unfinished, resume
        from drl.runs.session import say

        unusable: list[UnusableFile] = []
        for folder in folders:
            try:
                if not is_unfinished(folder):  # it may have been trained together with an earlier run of the list
                    say(f"{folder} is finished, or another process trains it; there is nothing to resume")
                    continue
                finished = resume(folder, scaling=scaling, trust=self.trust, hint=False)
            except UnusableFile as error:  # the other runs are continued first
                unusable.append(error)
                continue
            say(f"\n{finished.report()}")
            if code := EXIT_CODES[finished.status]:
                flags = [
                    word for name, value in scaling.items() for word in (f"--{name.replace('_', '-')}", str(value))
                ]
                say(f"resume: {shlex.join(['drl', 'resume', *self.runs, *flags, *(['--trust'] * self.trust)])}")
                return code
        if unusable:
            raise unusable[0]
        return 0


def _runs(folder: Path) -> list[Path]:
    return [folder] if os.path.lexists(folder / "run.json") else runs_in(folder) or [find_run(folder)]


@dataclass(frozen=True)
class ForkCommand:
    """Start a new run from a checkpoint of another."""

    run: Positional[str]  # a run folder, or an experiment folder for its newest run
    at: int | None = None  # step of a stored checkpoint; default: the newest
    set: tuple[str, ...] = ()  # settings to change: NAME=VALUE pairs
    trust: bool = False  # import the modules that config.yaml names; this runs their code

    def __call__(self) -> int:
        changes = plain_pairs("--set", self.set)

        from drl.runs.folder.finished import resume_line
        from drl.runs.launch import fork
        from drl.runs.session import say

        finished = fork(self.run, changes, self.at, trust=self.trust, hint=False)
        say("\n".join(filter(None, [f"\n{finished.report()}", resume_line([finished])])))
        return EXIT_CODES[finished.status]
