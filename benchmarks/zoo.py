"""The page of the presets, docs/zoo.md, from their records: `python benchmarks/zoo.py` or `make zoo`."""

from pathlib import Path

from drl.settings.experiment import read_yaml
from drl.settings.preset_records import (
    COLUMNS,
    PUBLISHED,
    Record,
    all_records,
    reproductions,
    train_command,
    zoo_rows,
)

PAGE = Path(__file__).parents[1] / "docs" / "zoo.md"
TEXT = """# The zoo: tuned settings and what they reach

{presets} presets, {reproduced} of them trained again with fresh seeds by [`drl reproduce`](comparing.md). The table is
made from its records only. `drl train ALGORITHM --env ENVIRONMENT` takes the preset of a pair; `drl list presets`
prints the table. The settings are in [drl/settings/presets](../drl/settings/presets).

- **score** is the mean return of 100 evaluation episodes per seed (or as many as the stored result has) without
  exploration; ± is the standard deviation over seeds. No choice was based on these seeds.
- **answer** is that of the newest reproduction: PASS, FAIL, or UNDECIDED (too few seeds, or nothing was stored).
- **not reproduced**: the settings are those of the stored result below; without one they are published ones or those of
  a similar environment.
- **steps** are environment steps. "A of B": measured with a smaller budget than the preset's, as the stored result.
- **time** is that of a run, the median, on one core that other work shared.
- **published** are scores of other implementations: {sources}. RL Zoo's
  are those of one run, CleanRL's are returns during training. "is optimal": no policy has a higher mean return.

| {columns} | train it |
|{rules}
{rows}

## Commands
Each repeats a measurement. `drl reproduce` compares with the stored result, the measurement of a preset with the most
seeds. Add `--record` to that or to one of `learning.py` to keep the result, then type `make zoo`. Versions, dates,
scores by seed and evaluation episodes are in [measured.yaml](../drl/settings/records/measured.yaml).

```text
{commands}
```
"""


def page() -> str:
    rows, sources = zoo_rows(), read_yaml(PUBLISHED)["sources"]
    return TEXT.format(
        presets=len(rows),
        reproduced=len(reproductions()),
        sources=", ".join(f"[{name}]({address})" for name, address in sources.items()),
        columns=" | ".join(COLUMNS),
        rules="---|" * (len(COLUMNS) + 1),
        rows="\n".join(f"| {' | '.join(row)} | `{train_command(*row[:2])}` |" for row in rows),
        commands="\n".join(map(_command, all_records())),
    )


def _command(record: Record) -> str:
    return record.command if record.verdict is None else f"{record.command}  # {record.date}: {record.verdict}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
