"""The page of the presets, docs/zoo.md, from their records: `python benchmarks/zoo.py` or `make zoo`."""

from pathlib import Path

from drl.experiment.config import read_yaml
from drl.experiment.preset_records import COLUMNS, PUBLISHED, Record, all_records, read_records, train_command, zoo_rows

PAGE = Path(__file__).parents[1] / "docs" / "zoo.md"
TEXT = """# The zoo: tuned settings and what they reach

{presets} presets, {measured} of them measured here. `drl train ALGORITHM --env ENVIRONMENT` takes the preset of a pair;
`drl list presets` prints this table. The settings are in [drl/experiment/presets](../drl/experiment/presets).

- **score** is the mean return of evaluation episodes without exploration, 100 per seed unless the command below says
  otherwise; ± is the standard deviation over seeds, where it was kept. No choice was based on the seeds of a
  command with `--first-seed`, or on those of `drl reproduce`.
- **not run here**: nothing was measured; the settings are published ones or those of a similar environment.
- **steps** are environment steps. "A of B": measured with a smaller budget than the preset's.
- **time** is that of one run, or of all seeds in one program ("for all"), on one or two shared cores.
- **published** are scores of other implementations: {sources}. RL Zoo's
  are those of one run, CleanRL's are returns during training. "is optimal": no policy has a higher mean return.

| {columns} | train it |
|{rules}
{rows}

## Commands
Each repeats a measurement; a preset's row is the one with the most seeds. [`drl reproduce`](comparing.md) checks it
with fresh seeds. Add `--record` to that or to one of `learning.py` to keep the result, then type `make zoo`. Versions,
dates, scores by seed and evaluation episodes are in [measured.yaml](../drl/experiment/records/measured.yaml).

```text
{commands}
```
"""


def page() -> str:
    rows, records, sources = zoo_rows(), read_records(), read_yaml(PUBLISHED)["sources"]
    return TEXT.format(
        presets=len(rows),
        measured=len(records),
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
