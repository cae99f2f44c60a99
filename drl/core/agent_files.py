"""The deployable agent on disk: a JSON card that says what it is, and its weights as safetensors.

```text
agent/card.json                     format, engine, model variant and architecture, spaces, normaliser, checksum
agent/weights-<checksum>.safetensors
```
The card is replaced last and in one piece, so a reader always finds a card whose weights are there.
"""

from pathlib import Path
from typing import Any

from drl.core.errors import BadInput, UnusableFile
from drl.core.specs import Array
from drl.core.state_files import read_arrays, read_json, write_arrays, write_json

AGENT_FORMAT = 1
REQUIRED = (
    "engine",
    "variant",
    "architecture",
    "obs_spec",
    "action_spec",
    "normaliser",
    "weights",
    "checksum",
    "notes",
)


def write_agent(folder: Path, card: dict[str, Any], arrays: dict[str, Array]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    checksum = write_arrays(folder / "weights.new", arrays)
    weights = f"weights-{checksum[:12]}.safetensors"
    (folder / "weights.new").replace(folder / weights)
    write_json(folder / "card.json", {"format": AGENT_FORMAT} | card | {"weights": weights, "checksum": checksum})
    for old in folder.glob("weights-*.safetensors"):
        if old.name != weights:
            old.unlink()


def find_agent(path: str | Path) -> Path:
    """The agent's folder, given that folder, the run folder around it, or the card."""
    given = Path(path)
    if not given.exists():
        raise BadInput(f"{given} does not exist; give a run folder or an agent folder")
    for folder in (given, given / "agent", given.parent):
        if (folder / "card.json").is_file():
            return folder
    raise BadInput(f"{given} holds no agent: expected {given}/card.json or {given}/agent/card.json")


def read_agent(path: str | Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """The card and the arrays, verified."""
    folder = find_agent(path)
    card = read_json(folder / "card.json")
    if not isinstance(card, dict) or "format" not in card:
        raise UnusableFile(f"{folder}/card.json is not the card of a drl agent")
    if card["format"] != AGENT_FORMAT:
        raise UnusableFile(
            f"{folder} is an agent of format {card['format']}, this drl reads format {AGENT_FORMAT}; upgrade drl"
        )
    missing = [key for key in REQUIRED if key not in card]
    if missing:
        raise UnusableFile(f"{folder}/card.json lacks {', '.join(missing)}; restore it from a copy")
    return card, read_arrays(folder / card["weights"], card["checksum"])
