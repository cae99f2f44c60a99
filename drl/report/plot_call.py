"""`drl.plot`: plots of one run, or of several in one figure."""

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from drl.core.errors import BadInput, DrlError, UnusableFile, html_picture, one_line
from drl.core.safe_files import check_out
from drl.core.specs import PlainDict
from drl.report.report_page import write_report
from drl.runs.folder.finished import RunLike, folders_of
from drl.runs.folder.run_folder import find_run, runs_in
from drl.tracking.figures import picture_format


@dataclass(frozen=True)
class Plots:
    """Files written by `plot`: pictures, and reports if requested. A notebook shows the pictures."""

    paths: tuple[Path, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.paths))

    def _repr_html_(self) -> str:
        return "".join(html_picture(path, path.stem) for path in self.paths)


def plot(
    runs: RunLike | Iterable[RunLike],
    *,
    labels: Sequence[str] = (),
    metric: str | Sequence[str] = (),
    statistic: str | None = None,
    smooth: int | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    report: bool = False,
    console: bool = False,
) -> Plots:
    """Plot one run into its folder `plots/`, or several runs in one figure.

    `runs` are runs, or experiments with all their runs. `labels` has a name for each of them, or for each line.
    `metric` names columns of metrics.jsonl, one panel each; by default the return per episode. `statistic` over seeds
    is mean (the default), median or iqm. `smooth` is the window of the trailing mean in episodes or rows; 1: none; the
    default depends on the runs' length. `out` is a .png, .pdf or .svg, by default comparison.png beside the first run.
    `report` also writes report.html into each run, as `drl.report` does.
    """
    from drl.tracking.plots import plot_compare, plot_run

    pairs = [(path, folder) for path in folders_of(runs) for folder in _runs_of(path)]
    folders = [folder for _, folder in pairs]
    if not folders:
        raise BadInput("give at least one run folder: drl plot results/<experiment>/<run>")
    path = Path(out or folders[0].parent / "comparison.png")
    picture_format(path)
    check_out(path, overwrite=overwrite or not out)
    metrics = (metric,) if isinstance(metric, str) else tuple(metric)
    settings = {"metrics": metrics, "statistic": statistic, "smooth": smooth}
    options: PlainDict = {name: value for name, value in settings.items() if value not in (None, ())}
    try:
        if labels:
            options["labels"] = label_of_each(labels, pairs)
        if len(folders) == 1 and out is None and not options:
            written = plot_run(folders[0])
        else:
            written = [plot_compare(folders, path, **options)]
        if report:
            written += [write_report([folder]) for folder in folders]
    except DrlError:
        raise
    except Exception as error:  # a run's files are untrusted
        message = one_line(error, 300)
        raise UnusableFile(f"{', '.join(map(str, folders))} cannot be drawn ({message})") from error
    if not written:
        raise BadInput(f"{folders[0]} has nothing to draw yet: no finished episode in metrics.jsonl")
    plots = Plots(tuple(written))
    if console:
        print(plots)
    return plots


def label_of_each(labels: Sequence[str], pairs: Sequence[tuple[Path | str, Path]]) -> list[str]:
    """Return the label of each run: its path's label, or else its line's."""
    from drl.tracking.curves import grouped_runs

    paths = list(dict.fromkeys(path for path, _ in pairs))
    if len(labels) == len(paths):
        return [labels[paths.index(path)] for path, _ in pairs]
    lines = grouped_runs([folder for _, folder in pairs])
    if len(labels) != len(lines):
        raise BadInput(
            f"--labels has {len(labels)} names; expected one for each path ({len(paths)}), "
            f"or one for each line of the plot ({len(lines)}: {'; '.join(lines)})"
        )
    of_run = {run.resolve(): label for label, runs in zip(labels, lines.values(), strict=True) for run in runs}
    return [of_run[folder.resolve()] for _, folder in pairs]


def _runs_of(folder: Path) -> list[Path]:
    """Return one run, or every run of an experiment folder that has logged at least one row."""
    if os.path.lexists(folder / "run.json") or not (runs := runs_in(folder)):
        return [find_run(folder)]
    logged = [run for run in runs if os.path.lexists(run / "metrics.jsonl")]
    for run in runs if logged else ():
        if run not in logged:
            warnings.warn(f"left out: {run} has logged nothing yet", stacklevel=2)
    return logged or runs
