"""`drl compare A/ B/ …`: which algorithm is better, with intervals, or how many seeds would tell."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags
from drl.core.errors import BadInput
from drl.core.safe_files import check_out, unwritable


@dataclass(frozen=True)
class Flags:
    """Flags of `drl compare`."""

    folders: Annotated[tuple[str, ...], tyro.conf.Positional]  # a folder of runs for each algorithm
    labels: tuple[str, ...] = ()  # a name for each folder; folders with the same name are one algorithm
    # auto: none for one environment, else reference · reference: 0 is a random policy, 1 the target (docs/comparing.md)
    # · minmax: over the runs that are compared · none · FILE.yaml with lines ENV: [LOW, HIGH]
    normalize: str = "auto"
    score: str = "auto"  # evaluation: of the final agent · training: of the last episodes · auto: what there is
    mixed_budgets: bool = False  # also compare runs with different budgets, or that ended early
    out: tuple[str, ...] = ()  # files to write: .png, .pdf or .svg for a picture, .json for all numbers
    overwrite: bool = False  # replace existing files


def main(arguments: list[str]) -> int:
    """Run `drl compare`."""
    flags = parse_flags(Flags, arguments, prog="drl compare", description="Compare algorithms by their runs.")
    from drl.analysis.comparison import compare
    from drl.analysis.comparison_picture import draw_comparison
    from drl.analysis.comparison_text import comparison_lines
    from drl.analysis.run_scores import read_scores
    from drl.core.state_files import write_json

    folders = list({Path(given).resolve(): Path(given) for given in flags.folders}.values())
    if not folders:
        raise BadInput("give a folder of runs for each algorithm: drl compare results/A results/B")
    outs = _checked([Path(out) for out in flags.out], flags.overwrite)
    table = read_scores(folders, flags.labels, flags.score, flags.mixed_budgets)
    result = compare(table, flags.normalize)
    print("\n".join(comparison_lines(result)))
    for out in outs:
        try:
            if out.suffix == ".json":
                write_json(out, result.to_json())
            else:
                draw_comparison(result, out)
        except OSError as error:
            raise unwritable(out, error) from None
        print(out)
    return 0


def _checked(outs: list[Path], overwrite: bool) -> list[Path]:
    from drl.tracking.figures import picture_format

    for out in outs:
        if out.suffix != ".json":
            picture_format(out)
        check_out(out, overwrite)
    return outs
