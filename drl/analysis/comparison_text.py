"""A comparison as lines for a terminal."""

from drl.analysis.comparison import Comparison
from drl.analysis.resampling import DRAWS, Estimate
from drl.analysis.versus import Versus
from drl.core.errors import printable


def comparison_lines(result: Comparison) -> list[str]:
    """Tables, answers, and what was left out."""
    runs = {label: len(each.scores) for label, each in result.contestants.items()}
    lines = [
        f"environments: {', '.join(result.envs)}",
        f"score: {result.score_is}",
        f"normalization: {result.normalization.words}",
        f"intervals: 95 %, percentiles of {DRAWS:,} bootstrap draws, stratified by environment",
        "",
    ]
    names = list(next(iter(result.aggregates.values())))
    table = [["algorithm", "runs", *names]]
    table += [
        [label, f"{runs[label]} × {len(result.envs)}", *(_shown(each[name]) for name in names)]
        for label, each in result.aggregates.items()
    ]
    lines += _columns(table)
    if len(result.envs) > 1:
        rows = [[env, *(f"{of_env[env]:.4g}" for of_env in result.returns.values())] for env in result.envs]
        lines += ["", *_columns([["mean return", *result.returns], *rows])]
    if result.pairs:
        lines += ["", *(line for pair in result.pairs for line in (pair.sentence(), f"  {_how(pair)}"))]
    if len(result.pairs) > 1:
        lines.append(f"p values are adjusted for {len(result.pairs)} pairs (Holm)")
    lines += [f"note: {note}" for note in result.notes] + [f"left out: {each}" for each in result.left_out]
    return [printable(line) for line in lines]  # settings and names may come from anyone


def _how(pair: Versus) -> str:
    """What the answer rests on."""
    how = "paired by seed" if pair.pairs else "not paired: the seeds differ"
    if pair.pairs and not pair.paired_test:
        how = "intervals paired by seed; too few pairs for a paired test, so the test is the unpaired one"
    if 0 < pair.pairs < max(pair.runs):
        how += f", on the {pair.pairs} seeds that both have"
    counts = f"{pair.runs[0]} and {pair.runs[1]}" if pair.runs[0] != pair.runs[1] else f"{pair.runs[0]}"
    said = f"{counts} seed{'' if pair.runs == (1, 1) else 's'}, {how}; "
    said += f"difference of the IQM {_shown(pair.iqm_difference)}"
    if pair.winner:
        return said
    needed = "more than anyone trains" if pair.seeds_needed is None else f"about {pair.seeds_needed} seeds each"
    return f"{said}; a power of 80 % takes {needed}"


def _shown(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4g}"
    return f"{estimate.value:.4g} [{estimate.low:.4g}, {estimate.high:.4g}]"


def _columns(table: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
