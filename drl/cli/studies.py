"""`drl search`, `drl ablate`, `drl compare` and `drl reproduce`: commands about many runs."""

import shlex
from dataclasses import dataclass
from functools import partial

from drl.algorithms import ALGORITHMS
from drl.cli.entry import EXIT_CODES
from drl.cli.flags import Parser, Positional
from drl.cli.train import SourceFlags, read_named_file, read_words
from drl.core.specs import PlainDict
from drl.envs.env_config import check_trusted
from drl.settings.experiment import RunConfig
from drl.settings.foreign_settings import explain_unknown, settings_of
from drl.settings.layering import merge_layers
from drl.settings.preset_records import FAIL, PASS, UNDECIDED

SEARCH_USAGE = f"""\
usage: drl search ALGORITHM --env ID --n-trials N [--storage URL|FILE] [--n-jobs N] [--mode base|all] …

ALGORITHM is one of {", ".join(ALGORITHMS)}. `drl search ALGORITHM --help` shows every flag.
The search starts from the preset of the pair, if there is one; --config overrides it. The search writes best.yaml for
`drl train ALGORITHM --config`. The same command continues the search."""


@dataclass(frozen=True)
class SearchFlags:
    """Flags of `drl search` that are not settings of the search."""

    config: str | None = None  # YAML settings that override the preset: fixed values, or where the search starts
    plugins: tuple[str, ...] = ()  # your own modules to import first
    preset: bool = True  # start from the preset of the pair, if there is one
    trust: bool = False  # import the modules that the file names; this runs their code


def run_search(words: list[str]) -> int:
    """Run `drl search`."""
    if not words or words[0] in ("-h", "--help"):
        print(SEARCH_USAGE)
        return 0 if words else 2
    algorithm = words[0]
    file = read_named_file(f"drl search {algorithm}", words[1:])
    typed = search_parser(algorithm).parse(words[1:])
    own = {name: typed.pop(name) for name in SearchFlags.__dataclass_fields__ if name in typed}
    given: PlainDict = {"env": typed.pop("env")} if "env" in typed else {}
    given |= {"plugins": own["plugins"]} if "plugins" in own else {}
    if not file.trusted:  # there is no flag for wrappers
        check_trusted("", file.settings.get("wrappers") or (), file.source)
    settings, _ = merge_layers(algorithm, given, file, preset=False)
    del settings["algorithm"]
    from drl.search.run_search import run_search as search
    from drl.search.search_plan import SearchConfig
    from drl.search.search_report import Commands

    config = SearchConfig(env=settings.pop("env"), **typed)
    command = shlex.join(["drl", "search", *words])
    result = search(algorithm, config, settings, use_preset=own.get("preset", True), commands=Commands(command))
    if result.status != "finished":
        print(f"resume: {command}", flush=True)
    return EXIT_CODES[result.status]


def search_parser(algorithm: str) -> Parser:
    """Return the flags of `drl search`."""
    filed = settings_of(algorithm) | RunConfig.__dataclass_fields__.keys()
    from drl.search.search_plan import SearchConfig

    names = {*SearchFlags.__dataclass_fields__, *SearchConfig.__dataclass_fields__}
    explain = partial(explain_unknown, algorithm=algorithm, names=names, typed=True, filed=filed)
    about = f"Search for settings of {algorithm}. The same command continues the search."
    groups = {"": SearchFlags, "search options": SearchConfig}
    return Parser(f"drl search {algorithm}", about, groups, explain=explain)


ABLATE_USAGE = "usage: drl ablate ALGORITHM --env ID [--seeds 5] [--workers 2] [--episodes 50] [any flag of drl train]"


@dataclass(frozen=True)
class AblateFlags(SourceFlags):
    """Flags of `drl ablate` that are not settings of a run."""

    seeds: int = 5  # runs of each variant
    workers: int | None = None  # parallel runs; default: 2, or all on a cluster
    episodes: int = 50  # episodes per evaluation


def run_ablate(words: list[str]) -> int:
    """Run `drl ablate`."""
    if not words or words[0] in ("-h", "--help"):
        print(ABLATE_USAGE)
        print(f"algorithms: {', '.join(name for name, record in ALGORITHMS.items() if record.switches)}")
        return 0 if words else 2
    experiment, _, own = read_words("drl ablate", words[0], words[1:], AblateFlags)

    from drl.analysis.ablation import ablate

    numbers = {name: value for name, value in own.items() if name not in SourceFlags.__dataclass_fields__}
    ablate(experiment, **numbers, console=True)
    return 0


@dataclass(frozen=True)
class CompareCommand:
    """Compare algorithms by their runs."""

    runs: Positional[tuple[str, ...]] = ()  # a folder of runs for each algorithm
    labels: tuple[str, ...] = ()  # a name for each folder; folders with the same name are one algorithm
    # auto: none for one environment, else reference · reference: 0 is a random policy, 1 the target (docs/comparing.md)
    # · minmax: over the compared runs · none · FILE.yaml with lines ENV: [LOW, HIGH]
    normalize: str = "auto"
    score: str = "auto"  # evaluation: the final agent's · training: the last episodes' · auto: whichever is available
    mixed_budgets: bool = False  # also compare runs with different budgets and runs that ended early
    out: tuple[str, ...] = ()  # files to write: .png, .pdf or .svg for a picture, .json for all numbers
    overwrite: bool = False  # replace existing files

    def __call__(self) -> None:
        from drl.analysis.comparison import compare

        compare(**vars(self), console=True)


ANSWER_CODES = {PASS: 0, FAIL: 1, UNDECIDED: 7}


@dataclass(frozen=True)
class ReproduceCommand:
    """Train a preset as its stored result was measured, with fresh seeds, and answer PASS (exit code 0), FAIL (1) or
    UNDECIDED (7). See docs/comparing.md for the test."""

    preset: Positional[str | None] = None  # ALGORITHM/ENVIRONMENT: drl list presets
    seeds: int = 5  # fresh seeds to train; seeds of an earlier undecided answer count as well
    all: bool = False  # every preset, as many as fit into --minutes
    minutes: float | None = None  # limit of wall time; the next call continues a run that was stopped by it
    engine: str | None = None  # torch · jax; default: the engine of the stored result
    results_dir: str = "results"  # runs go to its folder reproduce/, answers to reproductions.yaml
    record: bool = False  # also store the result with the presets, for `make zoo`; only in a clone of the repository

    def __call__(self) -> int:
        from drl.analysis.reproduction import reproduce

        return ANSWER_CODES[reproduce(**vars(self), console=True).verdict]
