"""Prints the table of `make faults` from the file that its tests counted into."""

import json
import sys
from collections import Counter
from pathlib import Path


def table(record: Path) -> str:
    tried, passed = Counter(), Counter()
    for line in record.read_text().splitlines():
        row = json.loads(line)
        tried[row["kind"]] += row["tried"]
        passed[row["kind"]] += row["passed"]
    rows = [f"| {kind} | {tried[kind]} | {passed[kind]} | {tried[kind] - passed[kind]} |" for kind in sorted(tried)]
    return "\n".join(["| kind | tried | held | lost |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))
