"""`drl search ALGORITHM --env ID --n-trials N …`: search for better settings. The same command continues a search."""

from dataclasses import dataclass, field

from drl.cli.entry import EXIT_CODES
from drl.cli.flags import parse_flags
from drl.cli.train import peek_list
from drl.core.algorithms import ALGORITHMS, find_algorithm
from drl.core.errors import BadInput
from drl.core.network_parts import import_plugins
from drl.core.state_files import PlainDict

USAGE = f"""usage: drl search ALGORITHM --env ID --n-trials N [--storage URL|FILE] [--n-jobs N] [--mode base|all] …

ALGORITHM is one of {", ".join(ALGORITHMS)}. `drl search ALGORITHM --help` shows every flag.
The search starts from the preset of the pair, if there is one; --config overrides it. The search writes best.yaml for
`drl train ALGORITHM --config`. The same command continues the search."""


def main(arguments: list[str]) -> int:
    """Run `drl search`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    algorithm = arguments[0]
    import_plugins(peek_list(arguments, "--plugins"))
    find_algorithm(algorithm)
    from drl.experiment.config import read_yaml
    from drl.search.run_search import search
    from drl.search.search_plan import SearchConfig

    @dataclass(frozen=True, kw_only=True)
    class Flags:
        search: SearchConfig = field(default_factory=SearchConfig)
        config: str | None = None  # settings as YAML that override the preset: fixed, or where the search starts
        plugins: tuple[str, ...] = ()  # your own modules to import first
        preset: bool = True  # start from the preset of the pair, if there is one

    flags = parse_flags(
        Flags,
        arguments[1:],
        prog=f"drl search {algorithm}",
        description=f"Search for settings of {algorithm}. The same command continues the search.",
    )
    settings: PlainDict = read_yaml(flags.config) if flags.config is not None else {}
    if settings.pop("algorithm", algorithm) != algorithm:
        raise BadInput(f"{flags.config} is for another algorithm than {algorithm}")
    settings.pop("env", None)
    settings |= {"plugins": list(flags.plugins)} if flags.plugins else {}
    result = search(algorithm, flags.search, settings, use_preset=flags.preset)
    return EXIT_CODES[result.status]
