"""`drl search ALGORITHM --env ID --n-trials N …`: look for better numbers; the same command continues a search."""

from dataclasses import dataclass, field
from typing import Any

from drl.cli.entry import EXIT_CODES
from drl.cli.flags import parse_flags
from drl.cli.train import peek_list
from drl.core.algorithms import ALGORITHMS, find_algorithm
from drl.core.errors import BadInput
from drl.core.plugins import import_plugins

USAGE = f"""usage: drl search ALGORITHM --env ID --n-trials N [--storage URL|FILE] [--n-jobs N] [--mode base|all] …

ALGORITHM is one of {", ".join(ALGORITHMS)}. `drl search ALGORITHM --help` shows every flag.
The search begins at the preset of the pair, where there is one; --config goes on top of it. It leaves best.yaml, which
`drl train ALGORITHM --config` takes. The same command again continues the search."""


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    algorithm = arguments[0]
    import_plugins(peek_list(arguments, "--plugins"))
    find_algorithm(algorithm)
    from drl.experiment.config import read_yaml
    from drl.search.run_search import SearchConfig, search

    @dataclass(frozen=True, kw_only=True)
    class Flags:
        search: SearchConfig = field(default_factory=SearchConfig)
        config: str | None = None  # settings as YAML, on top of the preset: fixed, or where the search begins
        plugins: tuple[str, ...] = ()  # modules of your own to import first
        preset: bool = True  # begin at the preset of the pair, where there is one

    flags = parse_flags(
        Flags,
        arguments[1:],
        prog=f"drl search {algorithm}",
        description=f"Search for settings of {algorithm}. The same command again continues the search.",
    )
    settings: dict[str, Any] = read_yaml(flags.config) if flags.config else {}
    if settings.pop("algorithm", algorithm) != algorithm:
        raise BadInput(f"{flags.config} is for another algorithm than {algorithm}")
    settings.pop("env", None)
    settings |= {"plugins": list(flags.plugins)} if flags.plugins else {}
    result = search(algorithm, flags.search, settings, use_preset=flags.preset)
    return EXIT_CODES[result.status]
