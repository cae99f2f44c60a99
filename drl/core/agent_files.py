"""The deployable agent on disk: a JSON card that says what it is, and its weights as safetensors.

```text
agent/card.json                     format, engine, model variant and architecture, spaces, normaliser, checksum
agent/weights-<checksum>.safetensors
```
The card is replaced last and in one piece, so a reader always finds a card whose weights are there.
"""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from drl.core.configs import ModelConfig, QModelConfig
from drl.core.errors import BadInput, UnusableFile
from drl.core.normalise import ObsNormaliser
from drl.core.specs import ActionSpec, Array, ObsSpec
from drl.core.state_files import read_arrays, read_json, write_arrays, write_json

AGENT_FORMAT = 1
MANY_WEIGHTS = 10_000_000  # a model of up to this many is built without asking how many its file has
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
    weights = card["weights"]
    if not isinstance(weights, str) or Path(weights).name != weights:
        raise UnusableFile(f"{folder}/card.json names its weights {weights!r}; expected a file beside the card")
    arrays = read_arrays(folder / weights, card["checksum"])
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UnusableFile(f"{folder}/{weights} has a weight that is not a finite number, in {name}")
    return card, arrays


class StoredAgent(NamedTuple):
    """An agent file in our own words."""

    variant: str  # policy_value · policy_only · q_value
    config: ModelConfig | QModelConfig | None  # rebuilds the model; None: it was one of the user's own
    obs_spec: ObsSpec
    action_spec: ActionSpec
    normaliser: ObsNormaliser | None
    params: dict[str, Array]  # of the model, by name


def open_agent(path: str | Path) -> StoredAgent:
    """What an engine needs to bring an agent back."""
    card, arrays = read_agent(path)
    try:
        obs_spec, action_spec = ObsSpec.from_json(card["obs_spec"]), ActionSpec.from_json(card["action_spec"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UnusableFile(f"the card of {path} describes its spaces wrongly ({error!r})") from None
    config: ModelConfig | QModelConfig | None = None
    if card["architecture"] is not None:
        kind = QModelConfig if card["variant"] == "q_value" else ModelConfig
        try:
            config = kind(**card["architecture"] | {"hidden": tuple(card["architecture"]["hidden"])})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnusableFile(f"the card of {path} describes a model this drl cannot build ({error!r})") from None
    params = {name.removeprefix("model."): arrays[name] for name in arrays if name.startswith("model.")}
    if config is not None:
        _check_size(config, obs_spec, action_spec, sum(array.size for array in params.values()), path)
    try:
        normaliser = _normaliser(card["normaliser"], arrays, obs_spec)
    except (KeyError, TypeError, ValueError) as error:
        raise UnusableFile(f"the card of {path} describes its normaliser wrongly ({error!r})") from None
    return StoredAgent(card["variant"], config, obs_spec, action_spec, normaliser, params)


def _check_size(
    config: ModelConfig | QModelConfig, obs_spec: ObsSpec, action_spec: ActionSpec, weights: int, path: str | Path
) -> None:
    """Refuse a card whose model is larger than its weights, before anybody makes room for it."""
    widths = [*config.hidden] if config.backbone in ("auto", "mlp") else [config.cnn_features]
    if config.backbone in ("auto", "mlp") and len(obs_spec.shape) == 1:
        widths = [math.prod(obs_spec.shape), *widths]
    outputs = action_spec.entries * (config.num_atoms if isinstance(config, QModelConfig) else 1)
    recurrent = config.recurrent_size**2 if isinstance(config, ModelConfig) and config.recurrent != "none" else 0
    least = sum(one * two for one, two in pairwise(widths)) + recurrent + outputs
    if least > max(weights, MANY_WEIGHTS):
        raise UnusableFile(f"the card of {path} describes at least {least:,} weights; its file has {weights:,}")


def _normaliser(card: dict[str, Any] | None, arrays: dict[str, Array], obs_spec: ObsSpec) -> ObsNormaliser | None:
    if card is None:
        return None
    moments = {name: arrays[f"normaliser.{name}"] for name in ("mean", "squares")}
    if any(array.shape != obs_spec.shape for array in moments.values()):
        raise ValueError(f"its arrays do not have the shape {obs_spec.shape}")
    normaliser = ObsNormaliser(obs_spec.shape)
    normaliser.load_state_dict(card | moments)
    return normaliser


def save_agent(
    folder: str | Path,
    engine: str,
    variant: str,
    architecture: dict[str, Any] | None,  # the config that rebuilds the model; None: one of the user's own
    agent: Any,  # its specs and its normaliser
    params: dict[str, Array],
    notes: dict[str, Any],
) -> None:
    """Write the deployable agent: safetensors weights and a JSON card. `notes` (plain data) go on the card."""
    arrays = {f"model.{name}": array for name, array in params.items()}
    card: dict[str, Any] = {
        "engine": engine,
        "variant": variant,
        "architecture": architecture,
        "obs_spec": agent.obs_spec.to_json(),
        "action_spec": agent.action_spec.to_json(),
        "normaliser": None,
    }
    if agent.normaliser is not None:
        state = agent.normaliser.state_dict()
        arrays |= {f"normaliser.{name}": np.asarray(state.pop(name)) for name in ("mean", "squares")}
        card["normaliser"] = state
    write_agent(Path(folder), card | {"notes": notes}, arrays)
