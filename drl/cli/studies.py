"""`drl search`, `drl ablate`, `drl compare` and `drl reproduce`: commands about many runs."""

import shlex
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

import tyro

from drl.algorithms import ALGORITHMS, find_algorithm
from drl.cli.entry import EXIT_CODES
from drl.cli.flags import parse_flags
from drl.cli.train import check_names, import_named_plugins, peek, read_experiment, take_flag
from drl.core.errors import BadInput, shown
from drl.core.specs import PlainDict
from drl.envs.env_config import check_trusted
from drl.runs.folder.run_folder import is_own_config
from drl.settings.experiment import RunConfig, read_yaml
from drl.settings.foreign_settings import settings_of
from drl.settings.preset_records import FAIL, PASS, UNDECIDED

SEARCH_USAGE = f"""\
usage: drl search ALGORITHM --env ID --n-trials N [--storage URL|FILE] [--n-jobs N] [--mode base|all] …

ALGORITHM is one of {", ".join(ALGORITHMS)}. `drl search ALGORITHM --help` shows every flag.
The search starts from the preset of the pair, if there is one; --config overrides it. The search writes best.yaml for
`drl train ALGORITHM --config`. The same command continues the search."""


def run_search(arguments: list[str]) -> int:
    """Run `drl search`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(SEARCH_USAGE)
        return 0 if arguments else 2
    algorithm, typed = arguments[0], arguments[1:]
    file, trust = peek(typed, "--config"), "--trust" in typed
    settings: PlainDict = {} if file is None else read_yaml(file)
    trust = trust or is_own_config(file, settings)
    again = f"drl search {algorithm} --config {file}"
    import_named_plugins(typed, settings, trust, str(file), again)
    find_algorithm(algorithm)
    from drl.search.run_search import search
    from drl.search.search_plan import SearchConfig
    from drl.search.search_report import Commands

    @dataclass(frozen=True, kw_only=True)
    class SearchFlags:
        search: SearchConfig = field(default_factory=SearchConfig)
        config: str | None = None  # YAML settings that override the preset: fixed values, or where the search starts
        plugins: tuple[str, ...] = ()  # your own modules to import first
        preset: bool = True  # start from the preset of the pair, if there is one
        trust: bool = False  # import the modules that the file names; this runs their code

    names = {each.name for kind in (SearchFlags, SearchConfig) for each in fields(kind)}
    of_runs = settings_of(algorithm) | {each.name for each in fields(RunConfig)}
    check_names("drl search", algorithm, typed, names, filed=of_runs)
    flags = parse_flags(
        SearchFlags,
        typed,
        prog=f"drl search {algorithm}",
        description=f"Search for settings of {algorithm}. The same command continues the search.",
    )
    if settings.pop("algorithm", algorithm) != algorithm:
        raise BadInput(f"{file} is for another algorithm than {algorithm}")
    config, env = flags.search, settings.pop("env", None)
    if env is not None and peek(typed, "--env") is None:
        if not isinstance(env, str):
            raise BadInput(f"{file}: env is {shown(env)}; expected the name of an environment, such as CartPole-v1")
        if not trust:
            check_trusted(env, (), str(file), again)
        config = replace(config, env=env)
    if not trust:
        check_trusted("", settings.get("wrappers") or (), str(file))
    settings |= {"plugins": list(flags.plugins)} if flags.plugins else {}
    command = shlex.join(["drl", "search", *arguments])
    result = search(algorithm, config, settings, use_preset=flags.preset, commands=Commands(command))
    if result.status != "finished":
        print(f"resume: {command}", flush=True)
    return EXIT_CODES[result.status]


ABLATE_USAGE = "usage: drl ablate ALGORITHM --env ID [--seeds 5] [--workers 2] [--episodes 50] [any flag of drl train]"


def run_ablate(arguments: list[str]) -> int:
    """Run `drl ablate`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(ABLATE_USAGE)
        print(f"algorithms: {', '.join(name for name, record in ALGORITHMS.items() if record.switches)}")
        return 0 if arguments else 2
    algorithm, flags = arguments[0], list(arguments[1:])
    numbers: dict[str, Any] = {
        name: number for name in ("seeds", "workers", "episodes") if (number := _whole(flags, f"--{name}")) is not None
    }
    experiment, _ = read_experiment(algorithm, flags)

    from drl.analysis.ablation import ablate

    ablate(experiment, **numbers, console=True)
    return 0


def _whole(flags: list[str], name: str) -> int | None:
    value = take_flag(flags, name)
    try:
        return None if value is None else int(value)
    except ValueError:
        raise BadInput(f"{name} is {value!r:.80}; expected a whole number of at least 1") from None


@dataclass(frozen=True)
class CompareFlags:
    """Flags of `drl compare`."""

    folders: Annotated[tuple[str, ...], tyro.conf.Positional]  # a folder of runs for each algorithm
    labels: tuple[str, ...] = ()  # a name for each folder; folders with the same name are one algorithm
    # auto: none for one environment, else reference · reference: 0 is a random policy, 1 the target (docs/comparing.md)
    # · minmax: over the compared runs · none · FILE.yaml with lines ENV: [LOW, HIGH]
    normalize: str = "auto"
    score: str = "auto"  # evaluation: the final agent's · training: the last episodes' · auto: whichever is available
    mixed_budgets: bool = False  # also compare runs with different budgets and runs that ended early
    out: tuple[str, ...] = ()  # files to write: .png, .pdf or .svg for a picture, .json for all numbers
    overwrite: bool = False  # replace existing files


def run_compare(arguments: list[str]) -> int:
    """Run `drl compare`."""
    flags = parse_flags(CompareFlags, arguments, prog="drl compare", description="Compare algorithms by their runs.")
    from drl.analysis.comparison import compare

    compare(
        flags.folders,
        labels=flags.labels,
        normalize=flags.normalize,
        score=flags.score,
        mixed_budgets=flags.mixed_budgets,
        out=flags.out,
        overwrite=flags.overwrite,
        console=True,
    )
    return 0


ANSWER_CODES = {PASS: 0, FAIL: 1, UNDECIDED: 7}


@dataclass(frozen=True)
class ReproduceFlags:
    """Flags of `drl reproduce`."""

    preset: Annotated[str | None, tyro.conf.Positional] = None  # ALGORITHM/ENVIRONMENT: drl list presets
    seeds: int = 5  # fresh seeds to train; seeds of an earlier undecided answer count as well
    all: bool = False  # every preset, as many as fit into --minutes
    minutes: float | None = None  # limit of wall time; the next call continues a run that was stopped by it
    engine: str | None = None  # torch · jax; default: the engine of the stored result
    results_dir: str = "results"  # runs go to its folder reproduce/, answers to reproductions.yaml
    record: bool = False  # also store the result with the presets, for `make zoo`; only in a clone of the repository


DESCRIPTION = (
    "Train a preset as its stored result was measured, with fresh seeds, and answer PASS (exit code 0), FAIL (1) or "
    "UNDECIDED (7). See docs/comparing.md for the test."
)


def run_reproduce(arguments: list[str]) -> int:
    """Run `drl reproduce`."""
    flags = parse_flags(ReproduceFlags, arguments, prog="drl reproduce", description=DESCRIPTION)
    from drl.analysis.reproduction_queue import reproduce

    return ANSWER_CODES[reproduce(**vars(flags), console=True).verdict]
