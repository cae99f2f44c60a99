"""Tuned settings that ship with drl: `presets/<algorithm>/<env>.yaml`, with the usual flat names."""

import glob
import re
from collections.abc import Collection
from pathlib import Path

from drl.core.state_files import PlainDict
from drl.experiment.config import read_yaml

PRESETS = Path(__file__).parent / "presets"


def preset_path(algorithm: str, env: str) -> Path:
    return PRESETS / algorithm / f"{env.replace('/', '__').replace(':', '..')}.yaml"


def load_preset(algorithm: str, env: str) -> PlainDict | None:
    """The preset's settings; None if this pair has no preset."""
    path = preset_path(algorithm, env)
    if len(path.name.encode(errors="replace")) > 255 or "\0" in env:  # no file can have this name
        return None
    if not path.is_file() and not re.search(r"-v\d+$", env):  # take the newest version, as Gymnasium does
        path = max(path.parent.glob(f"{glob.escape(path.stem)}-v*.yaml"), default=path)
    return read_yaml(path) if path.is_file() else None


BUDGETS = {"total_timesteps": "num_episodes", "num_episodes": "total_timesteps"}  # each, and the other kind


def one_budget(preset: PlainDict, from_file: PlainDict, given: Collection[str]) -> None:
    """A budget in a file, or one of the `given` names, replaces one of the other kind in what it overrides."""
    for name, other in BUDGETS.items():
        if from_file.get(name):
            preset.pop(other, None)
        if name in given:
            preset.pop(other, None)
            from_file.pop(other, None)


def list_presets() -> list[tuple[str, str]]:
    """Every (algorithm, env) that has a preset."""
    return sorted((p.parent.name, p.stem.replace("__", "/").replace("..", ":")) for p in PRESETS.glob("*/*.yaml"))
