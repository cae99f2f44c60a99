"""The deployable agent on disk: a JSON card that describes it, and its weights as safetensors.

```text
agent/card.json                     format, engine, model variant and config, distribution, spaces, normalizer,
                                    golden pairs, versions, notes about the training
agent/weights-<checksum>.safetensors
agent/README.md                     for people, and for the Hugging Face Hub
```
The card is replaced last and atomically, so the weights that a card names always exist. It holds the checksum of the
weights and one of its own content. `Start` copies the weights of an agent into another model (`--from`).
"""

import hashlib
import math
import os
import typing
import warnings
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import yaml

from drl.core.configs import Config, ConfigClass, ModelConfig, QModelConfig, stated_type
from drl.core.errors import BadInput, UnusableFile, one_line
from drl.core.golden_pairs import Acting, make_pairs, pairs_to_json
from drl.core.normalize import ObsNormalizer
from drl.core.safe_files import is_inside, read_inside, remove_drafts, sync_folder, versions, write_atomically
from drl.core.setting_rules import is_score
from drl.core.specs import ActionSpec, Array, Distribution, ObsSpec, PlainDict, PlainValue
from drl.core.state_files import StateDict, arrays_as_bytes, read_arrays, read_sealed, write_sealed
from drl.core.variants import ModelVariant, find_variant

AGENT_FORMAT = 3
REQUIRED = (
    "engine", "variant", "architecture", "distribution", "obs_spec", "action_spec", "normalizer", "weights",
    "checksum", "notes",
)  # fmt: skip


def write_agent(folder: Path, card: PlainDict, arrays: dict[str, Array]) -> None:
    """Write weights and card. An older agent in the folder is replaced atomically."""
    remove_drafts(folder)
    content = arrays_as_bytes(arrays)
    checksum = hashlib.sha256(content).hexdigest()
    weights = f"weights-{checksum[:12]}.safetensors"
    write_atomically(folder / weights, content)
    write_sealed(folder / "card.json", {"format": AGENT_FORMAT} | card | {"weights": weights, "checksum": checksum})
    sync_folder(folder)
    for old in folder.glob("weights-*.safetensors"):
        if old.name != weights:
            old.unlink()


def find_agent(path: str | Path) -> Path:
    """Return the agent's folder. `path` is that folder, its run folder, or the card."""
    given = Path(path)
    if not given.exists():
        raise BadInput(f"{given} does not exist; give a run folder or an agent folder")
    for folder in (given, given / "agent", given.parent):
        if os.path.lexists(folder / "card.json"):
            if folder == given / "agent" and not is_inside(given, folder):
                raise UnusableFile(f"{folder} is a link that leads out of {given}; name the agent's own folder")
            return folder
    raise BadInput(f"{given} holds no agent: expected {given}/card.json or {given}/agent/card.json")


def read_agent(path: str | Path) -> tuple[PlainDict, dict[str, Array]]:
    """Return the card and the arrays, after verification."""
    folder = find_agent(path)
    card = read_sealed(folder / "card.json", AGENT_FORMAT)
    missing = [key for key in REQUIRED if key not in card]
    if missing:
        raise UnusableFile(f"{folder}/card.json lacks {', '.join(missing)}; restore it from a copy")
    for key, kind in (("engine", str), ("variant", str), ("notes", dict), ("weights", str), ("checksum", str)):
        if not isinstance(card[key], kind):
            raise UnusableFile(f"{folder}/card.json has {key} {repr(card[key])[:80]}; expected a {kind.__name__}")
    weights = card["weights"]
    if Path(weights).name != weights:
        raise UnusableFile(f"{folder}/card.json names its weights {weights!r}; expected a file beside the card")
    arrays = read_arrays(folder / weights, card["checksum"])
    check_finite(arrays, f"{folder}/{weights}")
    return card, arrays


def check_finite(arrays: dict[str, Array], source: str) -> None:
    """Raise unless every weight is a finite float32 number."""
    for name, array in arrays.items():
        with np.errstate(over="ignore"):
            if array.dtype.kind not in "fiu" or not np.isfinite(array.astype(np.float32)).all():
                raise UnusableFile(f"{source} has weights that are not finite numbers, in {name!r}")


class StoredAgent(NamedTuple):
    """The parsed content of an agent file."""

    variant: str  # of its model
    config: Config  # of the variant; rebuilds the model. None: a custom model
    distribution: Distribution  # of its policy; for action values the default of their space
    obs_spec: ObsSpec
    action_spec: ActionSpec
    normalizer: ObsNormalizer | None
    params: dict[str, Array]  # of the model, by name


def open_agent(path: str | Path) -> StoredAgent:
    """Read what an engine needs to rebuild an agent. Invalid content raises `UnusableFile`."""
    card, arrays = read_agent(path)
    variant = find_variant(card["variant"], path)
    try:
        return _stored(card, arrays, variant)
    except UnusableFile:
        raise
    except Exception as error:  # the card is untrusted: parsing it can raise anything
        reason = one_line(error)
        raise UnusableFile(f"the card of {path} describes an agent that this drl cannot build ({reason})") from None


def _stored(card: PlainDict, arrays: dict[str, Array], variant: ModelVariant) -> StoredAgent:
    obs_spec, action_spec = ObsSpec.from_json(card["obs_spec"]), ActionSpec.from_json(card["action_spec"])
    distribution = Distribution.on(action_spec, card["distribution"] or "auto")
    params = {name.removeprefix("model."): arrays[name] for name in arrays if name.startswith("model.")}
    config: Config = None
    if card["architecture"] is not None:
        config = _config(variant.config, card["architecture"])
        least, weights = _least_weights(config, obs_spec, action_spec), sum(array.size for array in params.values())
        if least > weights:
            raise UnusableFile(f"the card describes at least {least:,} weights; its file has {weights:,}")
    normalizer = _normalizer(card["normalizer"], arrays, obs_spec)
    return StoredAgent(variant.name, config, distribution, obs_spec, action_spec, normalizer, params)


def _config(kind: ConfigClass, plain: PlainDict) -> Config:
    """Make a model's config of plain data. Every value must have the type of its field."""
    values: PlainDict = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    for name, value in values.items():
        stated, optional = stated_type(kind, name)
        if value is None and optional:
            continue
        wanted = typing.get_origin(stated) or stated
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise ValueError(f"{name} is {value!r:.80}; expected a value of type {wanted.__name__}")
        if wanted is tuple and any(type(item) is not typing.get_args(stated)[0] for item in value):
            raise ValueError(f"{name} is {value!r:.80}; expected items of type {typing.get_args(stated)[0].__name__}")
    return kind(**values)


def _least_weights(config: Config, obs_spec: ObsSpec, action_spec: ActionSpec) -> int:
    """Return a lower bound on the number of weights of a built-in model, without allocating it."""
    if not isinstance(config, ModelConfig | QModelConfig) or config.backbone not in ("auto", "mlp", "cnn", "conv1d"):
        return 0
    shape, least = obs_spec.shape, 0
    images = len(shape) == 3 and min(shape[1:]) >= 36
    if config.backbone == "cnn" or (config.backbone == "auto" and images):
        pixels = math.prod(((side - 8) // 4 - 2) // 2 - 2 for side in shape[1:])  # after three convolutions
        features, least = config.cnn_features, 64 * pixels * config.cnn_features
    elif config.backbone == "conv1d":
        features = (config.hidden_sizes or (64,))[-1]
    else:
        widths = [math.prod(shape), *config.hidden_sizes]
        features, least = widths[-1], sum(one * two for one, two in pairwise(widths))
    if isinstance(config, ModelConfig):
        if config.recurrent != "none":
            features, least = config.recurrent_size, least + config.recurrent_size * (features + config.recurrent_size)
        return least + features * (sum(action_spec.sizes) or action_spec.entries)
    atoms = config.num_atoms if config.distributional != "none" else 1
    return least + features * action_spec.sizes[0] * atoms


def _normalizer(card: PlainDict | None, arrays: dict[str, Array], obs_spec: ObsSpec) -> ObsNormalizer | None:
    if card is None:
        return None
    clip, counts = card["clip"], card["counts"]
    normalizer = ObsNormalizer(obs_spec.shape, obs_spec.dtype)
    state: StateDict = {"clip": clip, "stats": {}}
    for field, stats in normalizer.running_stats.items():
        count, mean, squares = counts[field], arrays[f"normalizer.{field}mean"], arrays[f"normalizer.{field}squares"]
        if mean.shape != stats.mean.shape or squares.shape != stats.mean.shape:
            raise ValueError(f"the normalizer's arrays do not have the shape {stats.mean.shape}")
        if not (isinstance(count, int) and 0 <= count < 1 << 62 and 0 < clip < math.inf and (squares >= 0).all()):
            raise ValueError(f"the normalizer has count {count!r}, clip {clip!r} or negative squares")
        state["stats"][field] = {"mean": mean, "squares": squares, "count": count}
    normalizer.load_state_dict(state)
    return normalizer


class Savable(Acting, Protocol):
    """The attributes of an agent that its card holds besides the model."""

    variant: str
    normalizer: ObsNormalizer | None
    notes: PlainDict


def save_agent(
    folder: str | Path,
    engine: str,
    architecture: PlainDict | None,  # the config that rebuilds the model; None: a custom model
    agent: Savable,
    params: dict[str, Array],
    notes: PlainDict,
) -> None:
    """Write the deployable agent: safetensors weights and a JSON card with the agent's notes and these `notes`, which
    are plain data."""
    arrays = {f"model.{name}": array for name, array in params.items()}
    card: PlainDict = {
        "engine": engine,
        "variant": agent.variant,
        "architecture": architecture,
        "distribution": None if agent.distribution is None else agent.distribution.kind,
        "obs_spec": agent.obs_spec.to_json(),
        "action_spec": agent.action_spec.to_json(),
        "normalizer": None,
    }
    if agent.normalizer is not None:
        counts = {}
        for field, stats in agent.normalizer.running_stats.items():
            arrays |= {f"normalizer.{field}mean": stats.mean, f"normalizer.{field}squares": stats.squares}
            counts[field] = stats.count
        card["normalizer"] = {"clip": agent.normalizer.clip, "counts": counts}
    try:
        if (pairs := make_pairs(agent)) is not None:
            card["golden_pairs"] = pairs_to_json(pairs)
    except Exception as error:  # a user's model can raise anything
        reason = one_line(error)
        warnings.warn(
            f"the agent in {folder} has no golden pairs, because it cannot act on them: {reason}", stacklevel=3
        )
    card |= {"versions": versions(), "notes": agent.notes | notes}
    write_agent(Path(folder), card, arrays)
    write_readme(Path(folder), card)


MARK = "<!-- drl writes this file anew whenever it saves the agent; remove this line to keep your own text -->"


def write_readme(folder: Path, card: PlainDict) -> None:
    """Write README.md, unless there is one that drl did not write."""
    file = folder / "README.md"
    try:
        ours = not os.path.lexists(file) or MARK.encode() in read_inside(folder, file)
    except UnusableFile:  # a link that leads out, a pipe, a huge file
        ours = False
    if ours:
        write_atomically(file, readme(card).encode())


def readme(card: PlainDict) -> str:
    """Return a model card in Markdown. The agent's card is untrusted: texts are quoted, other types left out."""
    notes: PlainDict = card["notes"]
    env, algorithm, license_id = (_text(notes.get(name)) for name in ("env", "algorithm", "license"))
    title = f"{algorithm or 'agent'} in {env}" if env else f"{algorithm or 'agent'} without a named environment"
    metadata: PlainDict = {"library_name": "drl-workshop", "pipeline_tag": "reinforcement-learning"}
    if license_id:
        metadata["license"] = license_id
    named = [name for name in (algorithm, env) if name]
    metadata["tags"] = ["reinforcement-learning", "deep-reinforcement-learning", "drl-workshop", *named]
    if env and (score := _score(notes)):
        result = {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"type": env, "name": env},
            "metrics": [{"type": "mean_reward", "name": "mean_reward", "value": score, "verified": False}],
        }
        metadata["model-index"] = [{"name": title, "results": [result]}]
    facts = {
        "environment": env,
        "environment's arguments": notes.get("env_kwargs") or None,
        "wrappers": notes.get("wrappers"),
        "algorithm": algorithm,
        "mean return": _score(notes),
        "environment steps": notes.get("env_steps"),
        "seed": notes.get("seed"),
        "license": license_id or "none stated",
        "engine": card.get("engine"),
        "versions": ", ".join(f"{name} {version}" for name, version in _dict(card.get("versions")).items()),
    }
    lines = [f"- {name}: {_code(value)}" for name, value in facts.items() if value not in (None, "")]
    front = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)
    return f"---\n{front}---\n{MARK}\n\n# {_code(title)}\n\n" + "\n".join(lines) + USAGE


USAGE = """

This folder holds an agent of drl (`pip install drl-workshop`). `card.json` describes it and holds golden pairs:
observations with the actions that belong to them. The `.safetensors` file holds its weights and the statistics of its
normalizer. Loading it runs no code of this folder, and warns if the agent acts differently from its pairs.

```bash
drl pull OWNER/NAME --out agent
drl evaluate agent
```

```python
import drl

agent = drl.load_agent("agent")
action = agent.act(observation)
```
"""


def _score(notes: PlainDict) -> str | None:
    """Return the mean return as text; after an evaluation with its standard deviation."""
    evaluation = _dict(notes.get("evaluation"))
    mean, deviation = evaluation.get("mean_return", notes.get("mean_return")), evaluation.get("std_return")
    if not is_score(mean):
        return None
    return f"{mean:.2f} +/- {deviation:.2f}" if is_score(deviation) else f"{mean:.2f}"


def _dict(value: PlainValue) -> PlainDict:
    return value if isinstance(value, dict) else {}


def _text(value: PlainValue) -> str:
    """Return a text as one short printable line; "" for other types.

    >>> _text("Cart\\nPole"), _text(3)
    ('Cart Pole', '')
    """
    letters = (letter if letter.isprintable() else " " for letter in value) if isinstance(value, str) else ()
    return " ".join("".join(letters).split())[:200]


def _code(value: PlainValue) -> str:
    """Format a value as inline code, so that Markdown in it has no effect.

    >>> _code("a `b` <c>")
    "`a 'b' <c>`"
    """
    return f"`{_text(str(value)).replace('`', chr(39))}`"


class Start:
    """The weights of an agent, for another model where they fit."""

    def __init__(self, path: str | Path):
        self.source: str = str(path)
        self.stored: StoredAgent = open_agent(path)
        self.left_out: list[str] = []  # parameters that stay as they are, with the reason

    def fitted(self, own: Mapping[str, Array]) -> dict[str, Array]:
        """Return a new model's parameters, replaced where the agent has one of the same name and shape."""
        given, fitted = self.stored.params, dict(own)
        self.left_out.clear()
        for name, array in own.items():
            if name not in given:
                self.left_out.append(f"{name} (the agent has none)")
            elif given[name].shape != array.shape:
                self.left_out.append(f"{name} ({given[name].shape} there, {array.shape} here)")
            else:
                fitted[name] = given[name]
        if len(self.left_out) == len(own):
            there = find_variant(self.stored.variant, self.source).title
            raise BadInput(f"nothing of {self.source}, a {there} model, fits this model; choose the same network")
        return fitted

    def check_obs(self, obs_spec: ObsSpec, normalized: bool) -> None:
        """Raise unless agent and model have the same observations."""
        if (there := self.stored.obs_spec) != obs_spec:
            raise BadInput(
                f"{self.source} was trained on {there.kind} observations {there.shape}, and these are {obs_spec.kind} "
                f"{obs_spec.shape}; weights can only be taken over for the same observations"
            )
        if normalized != (self.stored.normalizer is not None):
            flag = "--no-normalize-obs" if normalized else "--normalize-obs"
            does = "does not normalize" if normalized else "normalizes"
            raise BadInput(f"{self.source} {does} its observations; add {flag}")
