"""`drl.compare`: compare algorithms over environments and seeds, with intervals and a winner for each pair."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drl.analysis.aggregates import (
    AGGREGATES,
    DRAWS,
    draw_runs,
    estimate,
    in_chunks,
    interval,
    optimality_gap,
    performance_profile,
)
from drl.analysis.run_scores import Normalization, ScoreTable, choose_normalization, read_scores
from drl.analysis.versus import Contestant, Versus, all_against_all
from drl.core.errors import BadInput, html_picture, html_table, html_text, plural, printable
from drl.core.safe_files import check_out, unwritable
from drl.core.specs import Array, PlainDict
from drl.core.state_files import write_json
from drl.runs.folder.finished import Finished, RunLike, folders_of
from drl.tracking import figures
from drl.tracking.curves import Band, Estimate

PROFILE_POINTS, PROFILE_DRAWS = 101, 2000
ROW = 0.3  # inches of a row of the picture
GAP = "optimality gap"


class Profile(NamedTuple):
    """Share of runs above each threshold, with its interval."""

    share: Array
    low: Array | None  # None with a single run
    high: Array | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """The result of `compare`. `print` shows the output of `drl compare`; a notebook shows tables and answers."""

    envs: list[str]
    normalization: Normalization
    score_is: str
    contestants: dict[str, Contestant]  # normalized
    returns: dict[str, dict[str, float]]  # label → environment → mean return
    aggregates: dict[str, dict[str, Estimate]]  # label → name → estimate
    thresholds: Array
    profiles: dict[str, Profile]
    pairs: list[Versus]
    left_out: list[str]
    notes: list[str]
    written: tuple[Path, ...] = ()  # the files of `out`

    @property
    def winners(self) -> list[str]:
        """The label of the winner of each pair that has one."""
        return [pair.winner for pair in self.pairs if pair.winner]

    def __str__(self) -> str:
        return "\n".join([*comparison_lines(self), *map(str, self.written)])

    def __repr__(self) -> str:
        return f"Comparison(algorithms={list(self.contestants)}, envs={self.envs}, winners={self.winners})"

    def _repr_html_(self) -> str:
        header, *rows = _aggregate_table(self)
        answers = "\n".join(map(printable, [*(pair.sentence() for pair in self.pairs), *self.notes]))
        pictures = [html_picture(path, "comparison", width=900) for path in self.written if path.suffix != ".json"]
        return html_table(header, rows, ", ".join(self.envs)) + html_text(answers) + "".join(pictures)

    def to_json(self) -> PlainDict:
        """Return everything as plain data."""
        versus = [asdict(pair) | {"winner": pair.winner, "answer": pair.sentence()} for pair in self.pairs]
        for pair in versus:
            pair |= {name: pair[name]._asdict() for name in ("probability", "iqm_difference")}
        return {
            "envs": self.envs,
            "score": self.score_is,
            "normalization": self.normalization.words,
            "intervals": f"95 %, percentile, stratified bootstrap of {DRAWS:,} draws ({PROFILE_DRAWS:,} for profiles)",
            "runs": {
                label: {
                    env: [{"seed": seed, "score": float(score)} for seed, score in zip(seeds, scores, strict=True)]
                    for env, seeds, scores in zip(self.envs, each.seeds, each.scores.T, strict=True)
                }
                for label, each in self.contestants.items()
            },
            "mean_returns": self.returns,
            "aggregates": {
                label: {name: value._asdict() for name, value in each.items()}
                for label, each in self.aggregates.items()
            },
            "thresholds": self.thresholds.tolist(),
            "profiles": {
                label: {name: None if ends is None else ends.tolist() for name, ends in each._asdict().items()}
                for label, each in self.profiles.items()
            },
            "pairs": versus,
            "left_out": self.left_out,
            "notes": self.notes,
        }


def compare(
    runs: Iterable[RunLike | Iterable[RunLike]] | Mapping[str, RunLike | Iterable[RunLike]],
    *,
    labels: Sequence[str] = (),
    normalize: str = "auto",
    score: str = "auto",
    mixed_budgets: bool = False,
    out: str | Path | Sequence[str | Path] = (),
    overwrite: bool = False,
    console: bool = False,
) -> Comparison:
    """Compare algorithms by their runs, and say which is better or how many seeds are needed to decide.

    `runs` has an entry for each algorithm: a folder of runs, a run, or a list of runs as returned by `train_seeds`.
    `{"mine": …, "theirs": …}` names the entries, as `labels` does. Entries with the same name are one algorithm.
    `normalize` is auto (none for one environment, else reference), reference (0: a random policy, 1: the target),
    minmax (over the runs), none, or a YAML file with lines ENV: [LOW, HIGH]. `score` is evaluation (the final agent's),
    training (the last episodes') or auto. `mixed_budgets` also compares runs with different budgets and runs that ended
    early. `out` are files to write: .png, .pdf or .svg for a picture, .json for all numbers.
    """
    outs = [Path(out)] if isinstance(out, str | Path) else [Path(each) for each in out]
    folders, names = _folders(runs, labels)
    if not folders:
        raise BadInput("give a folder of runs for each algorithm: drl compare results/A results/B")
    for path in outs:
        if path.suffix != ".json":
            figures.picture_format(path)
        check_out(path, overwrite)
    result = compare_scores(read_scores(folders, names, score, mixed_budgets), normalize)
    if console:
        print(result)
    for path in outs:
        try:
            if path.suffix == ".json":
                write_json(path, result.to_json())
            else:
                draw_comparison(result, path)
        except OSError as error:
            raise unwritable(path, error) from None
        if console:
            print(path)
    return replace(result, written=tuple(outs))


def _folders(
    runs: Iterable[RunLike | Iterable[RunLike]] | Mapping[str, RunLike | Iterable[RunLike]], labels: Sequence[str]
) -> tuple[list[Path], list[str]]:
    """Return the distinct folders and a label for each, or no labels."""
    if isinstance(runs, Mapping):
        if labels:
            raise BadInput("labels is given, but runs already has names; leave out labels")
        labels, runs = list(runs), list(runs.values())
    entries = [runs] if isinstance(runs, str | Path | Finished) else list(runs)
    groups = [folders_of(entry) for entry in entries]
    if all(len(group) == 1 for group in groups):
        return list({folder.resolve(): folder for (folder,) in groups}.values()), list(labels)
    if not labels:
        labels = [group[0].resolve().parent.name if len(group) > 1 else str(group[0]) for group in groups if group]
        if len(set(labels)) < len(groups):
            raise BadInput('lists of runs need different names: drl.compare({"mine": runs, "theirs": others})')
    if len(labels) != len(groups):
        raise BadInput(f"labels has {len(labels)} names for {len(groups)} entries of runs; expected one for each")
    named = {folder.resolve(): (folder, label) for label, group in zip(labels, groups, strict=True) for folder in group}
    return [folder for folder, _ in named.values()], [label for _, label in named.values()]


def compare_scores(table: ScoreTable, normalize: str = "auto", seed: int = 0) -> Comparison:
    """Compare the algorithms of a table over the environments that all of them have. The result depends only on the
    scores; the bootstrap draws come from `seed`."""
    labels, notes = list(table.scores), list(table.notes)
    envs = sorted(set.intersection(*(set(by_env) for by_env in table.scores.values())))
    if not envs:
        had = "; ".join(f"{label}: {', '.join(by_env)}" for label, by_env in table.scores.items())
        raise BadInput(f"the algorithms have no environment in common ({had}); train them on the same one")
    others = sorted({env for by_env in table.scores.values() for env in by_env} - set(envs))
    notes += [f"{env} is left out because not every algorithm has it" for env in others]
    pooled = {env: [s for label in labels for s in table.scores[label][env].values()] for env in envs}
    normalization = choose_normalization(normalize, pooled)
    contestants = {label: _contestant(label, table.scores[label], envs, normalization, notes) for label in labels}
    aggregates = dict(AGGREGATES)
    if normalization.target is not None:
        aggregates[GAP] = partial(optimality_gap, target=normalization.target)
    else:
        notes.append("no optimality gap: no target is known for this environment")
    every = np.concatenate([each.scores.ravel() for each in contestants.values()])
    thresholds = np.linspace(every.min() - 0.02 * np.ptp(every), every.max(), PROFILE_POINTS)
    estimates, profiles = dict[str, dict[str, Estimate]](), dict[str, Profile]()
    for label, each in contestants.items():
        drawn = draw_runs(np.random.default_rng(seed), *each.scores.shape)
        estimates[label] = {name: estimate(function, (each.scores, drawn)) for name, function in aggregates.items()}
        profile, low, high = partial(performance_profile, thresholds=thresholds), None, None
        if len(each.scores) > 1:
            low, high = interval(in_chunks(profile, (each.scores, drawn[:PROFILE_DRAWS])))
        profiles[label] = Profile(profile(each.scores), low, high)
    returns = {label: {env: float(np.mean([*table.scores[label][env].values()])) for env in envs} for label in labels}
    return Comparison(
        envs=envs,
        normalization=normalization,
        score_is=table.score_is,
        contestants=contestants,
        returns=returns,
        aggregates=estimates,
        thresholds=thresholds,
        profiles=profiles,
        pairs=all_against_all(contestants, seed=seed),
        left_out=table.left_out,
        notes=notes,
    )


def _contestant(
    label: str,
    scores: Mapping[str, Mapping[int, float]],
    envs: Sequence[str],
    normalization: Normalization,
    notes: list[str],
) -> Contestant:
    """Keep the same number of runs in every environment, preferring seeds that all environments have."""
    runs = min(len(scores[env]) for env in envs)
    seeds = []
    for env in envs:
        preferred = sorted(scores[env], key=lambda seed: (not all(seed in scores[other] for other in envs), seed))
        seeds.append(tuple(sorted(preferred[:runs])))
        if unused := sorted(preferred[runs:]):
            listed = ", ".join(map(str, unused))
            notes.append(f"{label}: seeds {listed} of {env} are left out, so that every environment has {runs} runs")
    returns = [np.array([scores[env][seed] for seed in of_env]) for env, of_env in zip(envs, seeds, strict=True)]
    columns = [normalization(env, column) for env, column in zip(envs, returns, strict=True)]
    return Contestant(np.stack(columns, axis=1), tuple(seeds))


# ── as lines for a terminal ───────────────────────────────────────────────────────────────────────────────────────────


def comparison_lines(result: Comparison) -> list[str]:
    """Return tables, answers and notes on what was left out."""
    lines = [
        f"environments: {', '.join(result.envs)}",
        f"score: {result.score_is}",
        f"normalization: {result.normalization.words}",
        f"intervals: 95 %, percentiles of {DRAWS:,} bootstrap draws, stratified by environment",
        "",
    ]
    lines += _columns(_aggregate_table(result))
    if len(result.envs) > 1:
        rows = [[env, *(f"{of_env[env]:.4g}" for of_env in result.returns.values())] for env in result.envs]
        lines += ["", *_columns([["mean return", *result.returns], *rows])]
    if result.pairs:
        lines += ["", *(line for pair in result.pairs for line in (pair.sentence(), f"  {_how(pair)}"))]
    if len(result.pairs) > 1:
        lines.append(f"p values are adjusted for {len(result.pairs)} pairs (Holm)")
    lines += [f"note: {note}" for note in result.notes] + [f"left out: {each}" for each in result.left_out]
    return [printable(line) for line in lines]  # settings and names are untrusted


def _aggregate_table(result: Comparison) -> list[list[str]]:
    runs = {label: len(each.scores) for label, each in result.contestants.items()}
    names = list(next(iter(result.aggregates.values())))
    rows = [
        [label, f"{runs[label]} × {len(result.envs)}", *(_shown(each[name]) for name in names)]
        for label, each in result.aggregates.items()
    ]
    return [["algorithm", "runs", *names], *rows]


def _how(pair: Versus) -> str:
    """Describe the evidence for the answer of a pair."""
    how = "paired by seed" if pair.pairs else "not paired: the seeds differ"
    if pair.pairs and not pair.paired_test:
        how = "intervals paired by seed; too few pairs for a paired test, so the test is the unpaired one"
    if 0 < pair.pairs < max(pair.runs):
        how += f", on the {pair.pairs} seeds that both have"
    counts = f"{pair.runs[0]} and {pair.runs[1]}" if pair.runs[0] != pair.runs[1] else f"{pair.runs[0]}"
    counts += f" seed{'' if pair.runs == (1, 1) else 's'}"
    words = f"{counts}, {how}; difference of the IQM {_shown(pair.iqm_difference)}"
    if pair.winner:
        return words
    needed = "too many seeds" if pair.seeds_needed is None else f"about {pair.seeds_needed} seeds each"
    return f"{words}; a power of 80 % takes {needed}"


def _shown(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4g}"
    return f"{estimate.value:.4g} [{estimate.low:.4g}, {estimate.high:.4g}]"


def _columns(table: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]


# ── as a picture ──────────────────────────────────────────────────────────────────────────────────────────────────────


def draw_comparison(result: Comparison, out: Path) -> Path:
    """Draw aggregates, performance profiles and, for several algorithms, probabilities of improvement."""
    labels, raw = list(result.contestants), not result.normalization.low
    looks = {label: figures.look(i) for i, label in enumerate(labels)}
    unit = "return" if raw else "normalized score"
    runs = {len(each.scores) for each in result.contestants.values()}
    counts = plural(min(runs), "seed") if len(runs) == 1 else f"{min(runs)} to {plural(max(runs), 'seed')}"
    envs = result.envs[0] if len(result.envs) == 1 else f"{len(result.envs)} environments"
    caption = (
        f"{counts} per environment; score: {result.score_is}; normalization: {result.normalization.words}; "
        "95 % intervals by stratified bootstrap"
    )
    aggregates = list(result.aggregates[labels[0]])
    pairs = [f"{pair.first} over {pair.second}" for pair in result.pairs]
    figure, axes = figures.make_panels(
        f"{' and '.join(labels) if len(labels) < 4 else f'{len(labels)} algorithms'} on {envs}",
        caption,
        1,
        3 if pairs else 2,
        (3.6, max(2.6, ROW * max(len(labels) * len(aggregates), len(pairs)))),
        titled=True,
        left=0.4 + max(map(len, aggregates)) * figures.CHARACTER,
        right=0.3 + max(map(len, pairs), default=0) * figures.CHARACTER,
    )
    step = 0.7 / len(labels)
    for row, name in enumerate(aggregates):
        for i, label in enumerate(labels):
            place = row + (i - (len(labels) - 1) / 2) * step
            figures.draw_interval(axes[0], place, result.aggregates[label][name], looks[label])
    figures.finish(axes[0], "", x_label=unit, fractions=not raw)
    figures.panel_title(axes[0], "aggregates")
    for label, profile in result.profiles.items():
        if profile.low is None or profile.high is None:
            figures.draw_line(axes[1], result.thresholds, profile.share, looks[label], label=label)
        else:
            band = Band(result.thresholds, profile.share, profile.low, profile.high)
            figures.draw_band(axes[1], band, looks[label], label=label, marks=6)
    figures.finish(axes[1], "share of runs above it", x_label=unit, fractions=not raw)
    axes[1].set_ylim(-0.03, 1.03)
    figures.panel_title(axes[1], "performance profile")
    if pairs:
        figures.draw_reference(axes[2], 0.5)
        for row, pair in enumerate(result.pairs):
            figures.draw_interval(axes[2], row, pair.probability, figures.Look(figures.INK))
        figures.finish(axes[2], "", x_label="probability that a run scores higher", fractions=True)
        axes[2].set_xlim(-0.03, 1.03)
        figures.panel_title(axes[2], "probability of improvement")
    for ax, names in ((axes[0], aggregates), *([(axes[2], pairs)] if pairs else [])):
        figures.name_ticks(ax.yaxis, names)
        ax.set_ylim(len(names) - 0.5, -0.5)
    if pairs:
        axes[2].yaxis.tick_right()
        axes[2].tick_params(length=0)
    figures.add_legend(figure, axes)
    return figures.save_figure(figure, out)
