"""Whether users' type checkers know the types of drl: `python .ci/check_types.py`, run by `make check`.

At least 99 % of the public names must have a type that is declared, so that every type checker reads the same one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LEAST = 0.99
SHOWN = 40  # complaints


def main() -> int:
    """Ask pyright. It takes the packages of the Python that is first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    command = [sys.executable, "-m", "pyright", "--verifytypes", "drl", "--ignoreexternal", "--outputjson"]
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    report = json.loads(subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT).stdout)
    complete = report["typeCompleteness"]
    score = complete["completenessScore"]
    if score < LEAST:
        print("\n".join(complaints(complete["symbols"])[:SHOWN]))
    print(f"types: {score:.2%} of {sum(complete['exportedSymbolCounts'].values())} public names, at least {LEAST:.0%}")
    return int(score < LEAST)


def complaints(symbols: list[dict[str, Any]]) -> list[str]:
    """One line for each symbol that lacks a type. Those that are incomplete only because of others come last."""
    lines = []
    for symbol in symbols:
        for each in [each for each in symbol["diagnostics"] if each["severity"] == "error"][:1]:
            place = ""
            if "range" in each:
                place = f"{os.path.relpath(each['file'], ROOT)}:{each['range']['start']['line'] + 1}: "
            reason = " ".join(each["message"].split())
            lines.append(("partially unknown" in reason, f"{place}{symbol['name']}: {reason}"))
    return [line for _, line in sorted(lines)]


if __name__ == "__main__":
    sys.exit(main())
