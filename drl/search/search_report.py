"""Output of a search: a progress bar, a table, `best.yaml` and `best.json`, and the plots."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml

from drl.core.errors import plural
from drl.core.safe_files import write_atomically
from drl.core.specs import PlainDict
from drl.core.state_files import write_json
from drl.search.search_worker import Job, Outcome
from drl.tracking import figures
from drl.tracking.figures import make_log
from drl.tracking.jobs import JobBar, JobTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from optuna import Study
    from optuna.trial import FrozenTrial

    from drl.search.run_search import SearchResult
    from drl.search.search_plan import SearchConfig

SHOWN = 10  # rows of the table


class Commands(NamedTuple):
    """The command of a search and the one to train with its result. The defaults are commands of `drl`."""

    typed: str = ""  # the command that searches
    train: Callable[[PlainDict], str] | None = None  # the command that trains with the settings of a trial

    def of(self, result: "SearchResult", mode: str) -> tuple[str, str]:
        """The command that found the best trial, and the one that trains with it."""
        typed = self.typed or f"drl search {result.algorithm} --env {result.env} --mode {mode}"
        if self.train is None:
            return typed, f"drl train {result.algorithm} --config {result.folder / 'best.yaml'}"
        return typed, self.train(result.best.settings)


class Display:
    """A progress bar on a terminal, a line per trial elsewhere, nothing if quiet."""

    def __init__(self, config: "SearchConfig", name: str):
        self.config: SearchConfig = config
        self.name: str = name
        self.bar: JobBar | JobTable = JobBar(config.quiet) if config.cluster is None else JobTable(config.quiet)
        self.best: tuple[float, int] | None = None  # score, trial

    def __enter__(self) -> "Display":
        self.bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.__exit__(*error)

    def begin(self, finished: int, lost: list[int], complete: "list[FrozenTrial]") -> None:
        """`complete`: the trials with a score from earlier sessions."""
        config = self.config
        for trial in complete:
            self._note(trial.value, trial.number)
        again = f", {finished} of them already there" if finished else ""
        self.bar.say(f"search {self.name}: {plural(config.n_trials, 'trial')}{again}, {config.n_jobs} at a time")
        if lost:
            numbers = ", ".join(map(str, lost))
            self.bar.say(f"a search before this one was killed; it lost: trial {numbers}")
        self.bar.begin("searching", config.n_trials, finished)

    def ended(self, job: Job, outcome: Outcome) -> None:
        """Show the end of a trial."""
        if outcome.state == "complete":
            self._note(outcome.score, job.number)
        words = "" if self.best is None else f"best {self.best[0]:.2f}, trial {self.best[1]}"
        text = f"trial {job.number}: {_text(outcome)}" + (f" ({words})" if words else "")
        counts, show = outcome.state not in ("lost", "stopped"), outcome.state in ("failed", "lost")
        self.bar.advance(text, words or "searching", show=show, step=int(counts))

    def _note(self, score: float | None, trial: int) -> None:
        if score is not None and score > (self.best or (-math.inf,))[0]:
            self.best = (score, trial)

    def again(self, count: int) -> None:
        """Show the start of the re-runs on fresh seeds."""
        if count:
            self.bar.say(f"re-running the best on fresh seeds: {plural(count, 'run')}")
            self.bar.begin("fresh seeds", count)

    def ended_again(self, job: Job, outcome: Outcome) -> None:
        """Show the end of a re-run."""
        text = f"trial {job.number} with seed {job.settings['seed']}: {_text(outcome)}"
        self.bar.advance(text, show=outcome.state != "complete")


def _text(outcome: Outcome) -> str:
    if outcome.state == "complete":
        return f"{outcome.score:.2f}"
    why = f": {outcome.error}" if outcome.score is None else f" at {outcome.score:.2f}"
    return f"{outcome.state}{why}"


def write_report(result: "SearchResult", config: "SearchConfig", commands: Commands, console: bool) -> None:
    """Write files first, then pictures, which may fail, then print the table."""
    train = ""
    if result.ranking:
        typed, train = commands.of(result, config.mode)
        best, about = result.best, result.study.user_attrs["search"]
        honest = "none" if best.honest is None else f"{best.honest:.2f} over {plural(len(best.fresh), 'fresh seed')}"
        lines = (
            f"# Found by {typed}: trial {best.number}.",
            f"# Mean return in the search {best.score:.2f}; honest score {honest}; trained with {about['budget']}.",
            f"# Train with: {train}",
            yaml.safe_dump(result.preset, sort_keys=False, allow_unicode=True),
        )
        write_atomically(result.folder / "best.yaml", "\n".join(lines).encode())
        head = {"algorithm": result.algorithm, "env": result.env, "status": result.status, "trials": result.counts}
        rows = [
            {
                "trial": found.number,
                "search_score": found.score,
                "honest_score": found.honest,
                "fresh_scores": {str(seed): score for seed, score in found.fresh.items()},
                "settings": found.settings,
            }
            for found in result.ranking[:SHOWN]
        ]
        write_json(result.folder / "best.json", head | about | {"best": rows})
        if config.plots:
            try:
                draw_study(result.study, result.folder)
            except (OSError, RuntimeError, ValueError, ImportError) as error:
                warnings.warn(f"plots were not made: {error}", stacklevel=2)
    if console:
        _print(result, config, train)


def _print(result: "SearchResult", config: "SearchConfig", train: str) -> None:
    from rich.console import Console
    from rich.table import Table

    counts = ", ".join(f"{count} {state}" for state, count in result.counts.items() if count)
    if not result.ranking:
        print(f"{result.status}: {counts or 'no trial yet'}; the same command continues", flush=True)
        return
    best = result.best
    honest = "" if best.honest is None else f", {best.honest:.2f} on fresh seeds"
    line = f"{result.status}: {counts}; best trial {best.number}: {best.score:.2f}{honest}; {result.folder}/best.yaml"
    if config.quiet:
        print(line, flush=True)
        return
    names = list(dict.fromkeys(name for found in result.ranking[:SHOWN] for name in found.settings))
    table = Table(title=f"best trials of {result.study.study_name}", title_justify="left")
    for heading in ("trial", "search score", "honest score", *names):
        table.add_column(heading, justify="right", overflow="fold")
    for found in result.ranking[:SHOWN]:
        scores = [score for score in found.fresh.values() if score is not None]
        failed = len(found.fresh) - len(scores)
        again = "" if found.honest is None else f"{found.honest:.2f} ± {np.std(scores):.2f} ({len(scores)})"
        again += f" {failed} failed" if failed else ""
        values = [found.settings.get(name, "") for name in names]
        short = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values]
        table.add_row(str(found.number), f"{found.score:.2f}", again, *short)
    console = Console(highlight=False)
    if not console.is_terminal:  # do not fold lines in a file
        console = Console(highlight=False, width=max(20 * (len(names) + 3), 80))
    console.print(table)
    print(line, flush=True)
    if best.honest is not None:
        why = "because it selected the trial; the honest score uses fresh seeds."
        print(f"The search score is too high on average, {why}")
    print(f"train with it: {train}", flush=True)


def draw_study(study: "Study", folder: Path) -> list[Path]:
    """`history.png`, `importances.png` and `slices.png`; a plot without data is skipped."""
    complete = [t for t in study.get_trials(deepcopy=False) if t.value is not None and t.state.name == "COMPLETE"]
    if not complete:
        return []
    makers = {"history": _history, "importances": _importances, "slices": _slices}
    pictures = {name: make(study, complete) for name, make in makers.items()}
    drawn = {name: figure for name, figure in pictures.items() if figure is not None}
    return [figures.save_figure(figure, folder / f"{name}.png") for name, figure in drawn.items()]


def _history(study: "Study", complete: "list[FrozenTrial]") -> "Figure":
    figure, ax = figures.make_figure("Score by trial", study.study_name)
    numbers, scores = np.array([t.number for t in complete]), np.array([t.value for t in complete])
    ax.scatter(numbers, scores, s=18, alpha=0.6, color=figures.COLORS[0], linewidths=0, label="complete")
    last = {t.number: t.intermediate_values for t in study.get_trials(deepcopy=False) if t.state.name == "PRUNED"}
    pruned = {number: values[max(values)] for number, values in last.items() if values}
    if pruned:
        x, y = list(pruned), list(pruned.values())
        ax.scatter(x, y, s=18, marker="x", color=figures.FAINT, linewidths=1, label="pruned, last score")
    ax.step(numbers, np.maximum.accumulate(scores), where="post", color=figures.COLORS[1], label="best so far")
    figures.finish(ax, "mean return", x_label="trial")
    figures.add_legend(figure, [ax])
    return figure


def _importances(study: "Study", complete: "list[FrozenTrial]") -> "Figure | None":
    """PED-ANOVA: how strongly a setting separates the best tenth of the trials from the rest."""
    if len(complete) < 4 or len({t.value for t in complete}) < 2:
        return None
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental in Optuna 4
        try:
            shares = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
        except (RuntimeError, ValueError):  # too few distinct trials
            return None
    if not shares or not np.isfinite(list(shares.values())).all():
        return None
    names, values = list(shares)[::-1], np.array(list(shares.values()))[::-1]
    size, left = (6.0, 0.3 * len(names) + 0.3), 0.3 + max(map(len, names)) * figures.CHARACTER
    figure, (ax,) = figures.make_panels("Importance", f"{study.study_name} · PED-ANOVA", 1, 1, size, left=left)
    ax.barh(range(len(names)), values, color=figures.COLORS[0], height=0.6)
    for row, value in enumerate(values):
        ax.text(value + 0.01 * values.max(), row, f"{value:.2f}", va="center", fontsize=8.5, color=figures.INK)
    figures.finish(ax, "", x_label="share")
    figures.name_ticks(ax.yaxis, names)
    ax.grid(False, axis="y")
    ax.set_xlim(0, 1.1 * max(values.max(), 1e-9))
    return figure


def _slices(study: "Study", complete: "list[FrozenTrial]") -> "Figure":
    """Score against each setting; later trials are darker."""
    from matplotlib.colors import to_rgba

    names = list(dict.fromkeys(name for t in complete for name in t.params))
    wide = min(len(names), 3)
    caption = f"{study.study_name} · later trials are darker"
    down = -(-len(names) // wide)
    figure, axes = figures.make_panels("Score by setting", caption, down, wide, (3.7, 1.9), titled=True)
    for number, (ax, name) in enumerate(zip(axes, names, strict=False)):
        there = [t for t in complete if name in t.params]
        values, scores = [t.params[name] for t in there], np.array([t.value for t in there])
        distribution: Any = there[0].distributions[name]
        options = getattr(distribution, "choices", None)
        x = values if options is None else [options.index(value) for value in values]
        shades = [to_rgba(figures.COLORS[0], alpha) for alpha in np.linspace(0.25, 1.0, len(there))]
        ax.scatter(x, scores, s=16, color=shades, linewidths=0)
        figures.finish(ax, "mean return" if number % wide == 0 else "", x_label="")
        figures.panel_title(ax, name)
        if options is not None:
            figures.name_ticks(ax.xaxis, [str(option) for option in options])
            ax.set_xlim(-0.5, len(options) - 0.5)
        elif getattr(distribution, "log", False):
            make_log(ax, distribution.low, distribution.high)
    for ax in axes[len(names) :]:
        ax.set_visible(False)
    return figure
