"""`drl.ablate`: add every switch of an algorithm alone to the plain one, and remove it alone from the full one."""

import contextlib
import dataclasses
import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from drl.algorithms import ALGORITHMS, find_algorithm
from drl.core.errors import BadInput, Interrupted, html_picture, html_table, plural
from drl.core.setting_rules import check_size, check_whole
from drl.core.specs import PlainDict
from drl.core.state_files import read_json, write_json
from drl.envs.env_config import AnyEnv
from drl.runs.many_runs import RunAnswer, RunFailed, progress_of, train_many
from drl.runs.one_call import make_experiment
from drl.runs.stop_signals import STATUS
from drl.settings.experiment import Experiment, changed_settings
from drl.settings.scaling import ScalingConfig
from drl.tracking import figures
from drl.tracking.curves import LEAST, OF_ONE_RUN, RETURN, curves_of, history_of, interval_of
from drl.tracking.figures import INK, Look, Score, finish, look, panel_title, save_figure
from drl.tracking.plots import draw_curves

SETTINGS = "settings.json"  # of an ablation's folder: what is measured
NOT_MEASURED = OF_ONE_RUN | {"workers", *(field.name for field in dataclasses.fields(ScalingConfig))}
Switches = Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]]  # name → settings when on, when off


class AblationRow(TypedDict):
    """One variant in the table of an ablation."""

    variant: str
    mean_return: float
    low_95: float | None  # ends of the 95 % interval; None with fewer than three seeds
    high_95: float | None
    returns: list[float]  # of each seed


@dataclasses.dataclass(frozen=True, repr=False)
class Ablation:
    """The result of `ablate`. A notebook shows the table and the picture."""

    folder: Path  # of all runs
    table: list[AblationRow]  # best first

    @property
    def picture(self) -> Path:
        """The plot of all variants."""
        return self.folder / "ablation.png"

    def __str__(self) -> str:
        lines = [f"{'variant':28} {'mean return':>12}   95 % interval"]
        lines += [f"{row['variant']:28} {row['mean_return']:12.2f}   {_interval(row)}".rstrip() for row in self.table]
        return "\n".join([*lines, "", str(self.picture), str(self.folder / "ablation.json")])

    def __repr__(self) -> str:
        best = f", best={self.table[0]['variant']!r}" if self.table else ""
        return f"Ablation(folder={str(self.folder)!r}{best})"

    def _repr_html_(self) -> str:
        rows = [(row["variant"], f"{row['mean_return']:.2f}", _interval(row)) for row in self.table]
        shown = html_table(("variant", "mean return", "95 % interval"), rows, str(self.folder))
        return shown + (html_picture(self.picture, "ablation") if self.picture.is_file() else "")


def ablate(
    algorithm: str | Experiment,
    env: AnyEnv | None = None,
    *,
    seeds: int = 5,
    workers: int | None = None,
    episodes: int = 50,
    console: bool = False,
    **settings: Any,
) -> Ablation:
    """Measure what each part of an algorithm adds: every switch is added alone to the plain algorithm and removed alone
    from the full one, over several seeds. The same call continues one that was stopped.

    `algorithm` is a name, with `env` and `settings` as in `train`, or an experiment. `workers` runs are trained at a
    time (2, or all on a cluster); `episodes` are played in each evaluation. `console=True` shows progress and result.
    """
    if isinstance(algorithm, Experiment):
        if extra := [*(["env"] if env is not None else []), *settings]:
            raise BadInput(f"{', '.join(extra)} is given beside an experiment, which has its own; leave it out")
        base = algorithm
    else:
        base = make_experiment(algorithm, env, **settings)
    check_whole("seeds", seeds)
    check_size("num_seeds", seeds)
    check_whole("episodes", episodes)
    if workers is not None:
        check_whole("workers", workers)
    if not console:
        base = dataclasses.replace(base, run=dataclasses.replace(base.run, quiet=True))
    if base.scaling.cluster is None:
        workers = workers or 2
    result = Ablation(*ablate_experiment(base, seeds, workers, episodes))
    if console:
        print(f"\n{result}")
    return result


def _interval(row: AblationRow) -> str:
    return "" if row["low_95"] is None else f"[{row['low_95']:.2f}, {row['high_95']:.2f}]"


def variants(switches: Switches) -> dict[str, PlainDict]:
    """Name → settings: plain, plain + one, full, full − one."""

    def settings(on: set[str]) -> PlainDict:
        merged: PlainDict = {}
        for name, (yes, no) in switches.items():
            merged |= yes if name in on else no
        return merged

    everything = set(switches)
    named = {"plain": settings(set())} | {f"plain + {name}": settings({name}) for name in switches}
    named |= {"full": settings(everything)}
    return named | {f"full - {name}": settings(everything - {name}) for name in switches}


def ablate_experiment(
    base: Experiment, seeds: int, workers: int | None = None, episodes: int = 50
) -> tuple[Path, list[AblationRow]]:
    """Run every variant with every seed, `workers` at a time (1, or all on a cluster). Writes a table of evaluations,
    best first, and a plot.

    The folder is `results/<name>/`; each variant has a folder inside it. Finished runs are not repeated, so a stopped
    ablation continues; one of other settings needs another name.
    """
    switches = find_algorithm(base.algorithm).switches
    if not switches:
        able = ", ".join(record.name for record in ALGORITHMS.values() if record.switches)
        raise BadInput(f"ablate is for {able}, whose parts are switches; {base.algorithm} has none")
    name = base.run.name or f"{base.run.env.replace('/', '_')}_{base.algorithm}_ablation"
    folder = Path(base.run.results_dir) / name
    _claim(folder, base, episodes)
    numbers = range(base.run.seed, base.run.seed + seeds)
    jobs = {f"{name}, seed {seed}": (name, seed) for seed in numbers for name in variants(switches)}
    _train_missing(base, folder, jobs, workers, episodes)
    results = {name: [read_json(_result(folder, name, seed)) for seed in numbers] for name in variants(switches)}
    table = _table(results)
    write_json(folder / "ablation.json", table)
    folders = {name: [folder / name / result["run"] for result in each] for name, each in results.items()}
    draw_ablation(folders, {row["variant"]: row["returns"] for row in table}, list(switches), folder / "ablation.png")
    return folder, table


def _train_missing(
    base: Experiment, folder: Path, jobs: Mapping[str, tuple[str, int]], workers: int | None, episodes: int
) -> None:
    """Train and keep what has no result yet; raises if a run failed, or if a signal stopped some of them."""
    missing = {job: each for job, each in jobs.items() if not _result(folder, *each).exists()}
    runs = {job: _experiment(base, folder, *each, episodes) for job, each in missing.items()}
    failed, stopped = dict[str, RunAnswer](), "finished"
    with (
        progress_of(base.scaling, base.run.quiet) as bar,
        contextlib.closing(train_many(runs, base.scaling, bar, workers)) as ended,
    ):
        bar.begin("ablation", len(jobs), len(jobs) - len(missing))
        for job, answer in ended:
            if answer.folder is None:
                failed[job] = answer
            elif answer.evaluation is None:
                stopped = answer.status
            else:
                name, seed = missing[job]
                write_json(_result(folder, name, seed), {**answer.evaluation, "seed": seed, "run": answer.folder.name})
                bar.advance(f"{name:24} seed {seed}  {answer.evaluation['mean_return']:8.2f}")
    for job, answer in failed.items():
        message = f"{len(failed)} of {len(runs)} runs failed; {job}: {answer.error}; the same command repeats them"
        raise RunFailed(message, answer)
    if not all(_result(folder, *each).exists() for each in jobs.values()):
        raise Interrupted(next((number for number, status in STATUS.items() if status == stopped), signal.SIGINT))


def _claim(folder: Path, base: Experiment, episodes: int) -> None:
    """Write down what is measured. Raises if the folder holds results of other settings: they do not compare."""
    plain = {name: value for name, value in base.to_flat().items() if name not in NOT_MEASURED}
    settings: PlainDict = json.loads(json.dumps(plain | {"episodes": episodes}))
    path = folder / SETTINGS
    if path.exists():
        if changes := changed_settings(read_json(path), settings):
            raise BadInput(f"{folder} is another ablation: {changes}. Give the same values to go on, or another --name")
    elif any(folder.glob("*/seed_*.json")):
        raise BadInput(f"{folder} has results without a {SETTINGS} that says of what; give another --name")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, settings)


def _experiment(base: Experiment, folder: Path, name: str, seed: int, episodes: int) -> Experiment:
    """The run of one seed of one variant."""
    lean: PlainDict = {"quiet": True, "video": False, "plots": False, "tensorboard": False, "evaluate_every": 0}
    # A run that is lost with its node goes on from its checkpoint.
    lean |= {"keep_checkpoints": 0 if base.scaling.cluster is None else 1, "num_checkpoints": 0}
    run = base.run
    place: PlainDict = {"seed": seed, "name": name, "results_dir": str(folder), "evaluation_episodes": episodes}
    if run.wandb_project is not None or run.mlflow_experiment is not None:
        place["group"] = run.group or folder.name
    flat = base.to_flat() | variants(find_algorithm(base.algorithm).switches)[name] | lean | place
    return Experiment.from_flat(flat, name)


def _result(folder: Path, name: str, seed: int) -> Path:
    return folder / name / f"seed_{seed}.json"


def _table(results: Mapping[str, list[PlainDict]]) -> list[AblationRow]:
    rows: list[AblationRow] = []
    for name, of_seeds in results.items():
        returns = [float(result["mean_return"]) for result in of_seeds]
        mean, low, high = interval_of(np.array(returns))
        rows.append({"variant": name, "mean_return": mean, "low_95": low, "high_95": high, "returns": returns})
    return sorted(rows, key=lambda row: -row["mean_return"])


FULL, PLAIN = Look(INK, "-", "*"), Look(INK, "-", "p")


def draw_ablation(
    runs: Mapping[str, Sequence[Path]], scores: Mapping[str, Sequence[float]], switches: Sequence[str], out: Path
) -> Path:
    """`runs` and `scores` by variant: full, full - SWITCH, plain, plain + SWITCH. A switch has one color everywhere."""
    looks = {"full": FULL, "plain": PLAIN}
    for i, name in enumerate(switches):
        looks |= {f"full - {name}": look(i), f"plain + {name}": look(i)}
    halves = {
        "full recipe, and without one part": ["full", *(f"full - {name}" for name in switches)],
        "plain algorithm, and with one part": ["plain", *(f"plain + {name}" for name in switches)],
    }
    order = [name for names in halves.values() for name in names]
    seeds = max(map(len, scores.values()))
    band = ", 95 % intervals by percentile bootstrap over seeds" if seeds >= LEAST else ""
    rows = [Score(name, np.array(scores[name], float), looks[name]) for name in order]
    caption = f"means over {plural(seeds, 'seed')}{band}; the rows on the right name the curves"
    size = (4.0, max(3.2, 0.27 * len(rows)))
    right = 0.3 + figures.text_width(rows)
    figure, axes = figures.make_panels("Ablation", caption, 1, 3, size, titled=True, right=right)
    curves = curves_of({name: [history_of(run) for run in runs[name]] for name in order}, RETURN)
    for ax, (title, names) in zip(axes, halves.items(), strict=False):
        lines = {name: curves.lines[name] for name in names if name in curves.lines}
        draw_curves(ax, curves._replace(lines=lines), looks, "mean", thin=False)
        panel_title(ax, title)
        finish(ax, figures.axis_words(curves.name, curves.smoothing))
    bounds = [ax.get_ylim() for ax in axes[:2]]
    for ax in axes[:2]:  # one scale, to compare them
        ax.set_ylim(min(low for low, _ in bounds), max(high for _, high in bounds))
    figures.draw_forest(axes[2], rows, float(np.mean(scores["full"])), "return of the final agent")
    panel_title(axes[2], "final scores; the dashed line is the full recipe")
    return save_figure(figure, out)
