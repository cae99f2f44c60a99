"""Settings that ship with drl: `presets/<algorithm>/<env>.yaml`, with the usual flat names. `ALE__.yaml` is for all
environments of the namespace `ALE/`. `--preset NAME` selects `presets/<algorithm>/<name>/…`; `any.yaml` in that folder
is for all environments, on top of their own presets."""

import glob
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from drl.algorithms import ALGORITHMS
from drl.core.errors import BadInput, did_you_mean, shown
from drl.core.schedules import SHAPES
from drl.core.specs import PlainDict
from drl.settings.experiment import read_yaml

PRESETS = Path(__file__).parent / "presets"
ANY = "any"  # stem of a named preset for every environment


def preset_path(algorithm: str, env: str) -> Path:
    """Return the file of a preset. `algorithm` may be `dqn/rainbow`; `env` may be a whole namespace, `ALE/*`."""
    return PRESETS / algorithm / f"{env.removesuffix('*').replace('/', '__').replace(':', '..')}.yaml"


def load_preset(algorithm: str, env: str, name: str | None = None) -> PlainDict | None:
    """Return the settings of a preset, or None if the pair has none. An unknown `name` is an error. A variation has
    the presets of the algorithm that it is like."""
    algorithm = (algorithm in ALGORITHMS and ALGORITHMS[algorithm].like) or algorithm
    for_any = [each for owner, each in list_named() if owner == algorithm]
    if name in for_any:
        return (load_preset(algorithm, env) or {}) | read_yaml(PRESETS / algorithm / str(name) / f"{ANY}.yaml")
    whole = algorithm if name is None else f"{algorithm}/{name}"
    known = name is None or any(whole == each for each, _ in list_presets())  # before it becomes part of a path
    path = _find(whole, env) if known else None
    if path is None and name is not None:
        offers = [each for each, offered in list_presets() if preset_path(each, offered) == _find(each, env)]
        names = [*for_any, *(each.partition("/")[2] for each in offers if each.startswith(f"{algorithm}/"))]
        hint = did_you_mean(name, names) if names else "it has none of another name"
        raise BadInput(f"{algorithm} has no preset {shown(name)} for {env}; {hint}")
    return None if path is None else read_yaml(path)


def _find(algorithm: str, env: str) -> Path | None:
    path = preset_path(algorithm, env)
    if len(path.name.encode(errors="replace")) > 255 or "\0" in env:  # no file can have this name
        return None
    if not path.is_file() and not re.search(r"-v\d+$", env):  # take the newest version, as Gymnasium does
        path = max(path.parent.glob(f"{glob.escape(path.stem)}-v*.yaml"), default=path)
    if not path.is_file() and "/" in env:
        path = preset_path(algorithm, f"{env.partition('/')[0]}/*")
    return path if path.is_file() else None


BUDGETS = {"total_timesteps": "num_episodes", "num_episodes": "total_timesteps"}  # each, and the other kind


def one_budget(preset: PlainDict, from_file: PlainDict, given: Collection[str]) -> None:
    """Remove a budget that a later layer replaces by one of the other kind. `given` are the names of the last layer."""
    for name, other in BUDGETS.items():
        if from_file.get(name):
            preset.pop(other, None)
        if name in given:
            preset.pop(other, None)
            from_file.pop(other, None)


def one_schedule(preset: PlainDict, from_file: PlainDict, given: Mapping[str, object]) -> None:
    """Remove the final value of a rate that the last layer, `given`, makes constant or a function."""
    for name, value in given.items():
        rate = name.removesuffix("_schedule").removesuffix("_start")
        of_function = callable(value) or (name.endswith("_schedule") and str(value) not in (*SHAPES, "auto"))
        if of_function and f"{rate}_end" not in given:
            for settings in (preset, from_file):
                settings.pop(f"{rate}_end", None)
                if not name.endswith("_schedule"):
                    settings.pop(f"{rate}_schedule", None)


def list_presets() -> list[tuple[str, str]]:
    """Return every (algorithm, env) with a preset of its own, as `preset_path` takes them."""
    files = (path.relative_to(PRESETS) for path in PRESETS.rglob("*.yaml") if path.stem != ANY)
    return sorted((str(path.parent), _env_of(path.stem)) for path in files)


def list_named() -> list[tuple[str, str]]:
    """Return every (algorithm, name) of a preset for all environments."""
    return sorted((path.parts[-3], path.parts[-2]) for path in PRESETS.glob(f"*/*/{ANY}.yaml"))


def _env_of(stem: str) -> str:
    env = stem.replace("__", "/").replace("..", ":")
    return f"{env}*" if env.endswith("/") else env
