"""The README of an agent's folder, with the metadata that make it a model repository of the Hugging Face Hub."""

import os
from pathlib import Path

import yaml

from drl.core.errors import UnusableFile
from drl.core.safe_files import read_inside, write_atomically
from drl.core.setting_rules import is_score
from drl.core.specs import PlainDict, PlainValue

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
    """A model card in Markdown. The agent's card may come from anybody: texts are quoted, other types left out."""
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
    """The mean return as text, with its deviation where there was an evaluation."""
    evaluation = _dict(notes.get("evaluation"))
    mean, deviation = evaluation.get("mean_return", notes.get("mean_return")), evaluation.get("std_return")
    if not is_score(mean):
        return None
    return f"{mean:.2f} +/- {deviation:.2f}" if is_score(deviation) else f"{mean:.2f}"


def _dict(value: PlainValue) -> PlainDict:
    return value if isinstance(value, dict) else {}


def _text(value: PlainValue) -> str:
    """A text in one printable line, cut short; "" for anything else.

    >>> _text("Cart\\nPole"), _text(3)
    ('Cart Pole', '')
    """
    letters = (letter if letter.isprintable() else " " for letter in value) if isinstance(value, str) else ()
    return " ".join("".join(letters).split())[:200]


def _code(value: PlainValue) -> str:
    """A value as code, where Markdown has no other meaning.

    >>> _code("a `b` <c>")
    "`a 'b' <c>`"
    """
    return f"`{_text(str(value)).replace('`', chr(39))}`"
