"""Loading an agent without knowing what trained it."""

from pathlib import Path
from typing import Any

from drl.core.agent_files import read_agent
from drl.core.errors import UnusableFile


def load_agent(path: str | Path, model: Any = None, device: str = "cpu") -> Any:
    """The agent in a run folder or agent folder, ready to `act`. Give `model` if it was one of your own."""
    card, _ = read_agent(path)
    if card["engine"] != "torch":
        raise UnusableFile(f"{path} was saved by the {card['engine']!r} engine, which this version cannot load")
    from drl.engines.torch.build import AGENTS

    if card["variant"] not in AGENTS:
        raise UnusableFile(f"{path} is an agent of an unknown kind, {card['variant']!r}")
    return AGENTS[card["variant"]].load(path, model, device)
