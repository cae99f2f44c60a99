"""What two equal runs have in common on disk."""

import json
from pathlib import Path


def rows(folder: Path) -> list[dict[str, object]]:
    """The metrics of a run, without times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


def weights(folder: Path) -> str:
    """The name of the file with the agent's weights, which holds their checksum."""
    (file,) = (folder / "agent").glob("weights-*")
    return file.name
