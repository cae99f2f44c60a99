"""Reproduced presets side by side, docs/by_environment.md and its picture, from their records: `make zoo`."""

from pathlib import Path

import numpy as np

from drl.analysis.run_scores import read_references
from drl.settings.preset_records import Record, reproductions, shown_score, train_command
from drl.tracking.curves import interval_of
from drl.tracking.figures import (
    Score,
    draw_forest,
    look,
    make_panels,
    panel_title,
    save_figure,
    text_width,
)

PAGE = Path(__file__).parents[1] / "docs" / "by_environment.md"
PICTURE = PAGE.with_name("by_environment.png")
TEXT = """# Benchmarks by environment

Environments that at least two presets were reproduced on. `make zoo` writes this page from the same records as
[the zoo](zoo.md). A score is the mean return of a seed's evaluation episodes without exploration; intervals are 95 %,
by percentile bootstrap over seeds. Budgets differ, so this compares presets, not algorithms. To compare algorithms,
train them with one budget and type [`drl compare`](comparing.md).

![A panel for each environment: seeds, means and intervals of the presets](by_environment.png)
{sections}"""
COLUMNS = ("preset", "mean", "95 % interval", "worst seed", "seeds", "steps", "train it")


def side_by_side() -> dict[str, list[Record]]:
    """Reproductions by environment, the best first."""
    by_env: dict[str, list[Record]] = {}
    for record in reproductions().values():
        by_env.setdefault(record.env, []).append(record)
    several = {env: records for env, records in sorted(by_env.items()) if len(records) > 1}
    return {env: sorted(records, key=lambda record: -record.mean) for env, records in several.items()}


def page() -> str:
    """The text of the page."""
    return TEXT.format(sections="".join(_section(env, records) for env, records in side_by_side().items()))


def draw() -> Path:
    """The picture of the page."""
    by_env = side_by_side()
    names = sorted({record.algorithm for records in by_env.values() for record in records})
    looks = {name: look(i) for i, name in enumerate(names)}  # one of each algorithm, in all panels
    rows = {env: [Score(each.algorithm, _seeds(each), looks[each.algorithm]) for each in by_env[env]] for env in by_env}
    height = 0.3 * max(map(len, rows.values()))
    words = max(map(text_width, rows.values()))
    figure, axes = make_panels(
        "Reproduced presets by environment",
        "a dot is a seed; means with 95 % intervals by percentile bootstrap; the dashed line is what Gymnasium calls "
        "solved, the maximum or the optimum, or else the best mean",
        len(rows),
        1,
        (5.0, height),
        titled=True,
        left=0.3,
        right=0.3 + words,
    )
    targets = {env: float(entry["target"]) for env, entry in read_references().items() if env != "Pendulum-v1"}
    for ax, (env, scores) in zip(axes, rows.items(), strict=True):
        draw_forest(ax, scores, targets.get(env, float(scores[0].seeds.mean())), "")
        panel_title(ax, env)
    return save_figure(figure, PICTURE)


def _seeds(record: Record) -> np.ndarray:
    return np.array(list((record.scores or {}).values()))


def _section(env: str, records: list[Record]) -> str:
    lines = ["", f"## {env}", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for record in records:
        _, low, high = interval_of(_seeds(record))
        between = "" if low is None or high is None else f"{shown_score(low)} to {shown_score(high)}"
        cells = [record.algorithm, shown_score(record.mean), between, shown_score(record.worst), str(record.seeds)]
        cells += [f"{record.steps:,}", f"`{train_command(*record.preset)}`"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE} and {draw()}")
