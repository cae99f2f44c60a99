"""`drl compare A/ B/ …`: say which algorithm is better, with intervals, or how many seeds are needed to decide."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags


@dataclass(frozen=True)
class Flags:
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


def main(arguments: list[str]) -> int:
    """Run `drl compare`."""
    flags = parse_flags(Flags, arguments, prog="drl compare", description="Compare algorithms by their runs.")
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
