"""Normalization of scores: different environments on one scale, described in words."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drl.core.errors import BadInput, did_you_mean
from drl.core.specs import Array, PlainDict
from drl.settings.experiment import read_yaml

REFERENCE = Path(__file__).with_name("reference_scores.yaml")
CHOICES = ("auto", "none", "reference", "minmax")


@dataclass(frozen=True)
class Normalization:
    """The scores that become 0 and 1 in each environment."""

    words: str  # description for the user
    low: Mapping[str, float]
    high: Mapping[str, float]
    target: float | None  # target of the optimality gap; None: unknown

    def __call__(self, env: str, scores: Array) -> Array:
        low, high = self.low.get(env, 0.0), self.high.get(env, 1.0)
        return (scores - low) / (high - low)


def read_references() -> dict[str, PlainDict]:
    """Read `random`, `target` and a description of the target per environment."""
    return {entry["env"]: entry for entry in read_yaml(REFERENCE)["scores"]}


def choose_normalization(choice: str, scores: Mapping[str, Sequence[float]]) -> Normalization:
    """Return the normalization for `choice`: one of CHOICES, or a YAML file with `ENV: [LOW, HIGH]`. `scores` are all
    scores by environment."""
    envs, references = list(scores), read_references()
    if choice == "auto":
        choice = "none" if len(envs) == 1 else "reference"
    if choice == "none":
        if len(envs) > 1:
            raise BadInput(f"--normalize none is for one environment, and there are {len(envs)}: {', '.join(envs)}")
        words, known = "none, these are returns", references.get(envs[0])
        if known is None:
            return Normalization(words, {}, {}, None)
        words += f"; the optimality gap is to {known['target']:g} ({known['target_is']})"
        return Normalization(words, {}, {}, known["target"])
    if choice == "reference":
        if missing := [env for env in envs if env not in references]:
            raise BadInput(
                f"no reference scores are known for {', '.join(missing)}; type --normalize minmax, or --normalize "
                "FILE.yaml with a line for each environment: ENV: [LOW, HIGH]"
            )
        low = {env: float(references[env]["random"]) for env in envs}
        high = {env: float(references[env]["target"]) for env in envs}
        words = "0 is a random policy, 1 the target: " + _scale(envs, low, high, references)
        return Normalization(words, low, high, 1.0)
    if choice == "minmax":
        low, high = {env: min(scores[env]) for env in envs}, {env: max(scores[env]) for env in envs}
        if flat := [env for env in envs if low[env] == high[env]]:
            raise BadInput(f"all scores of {flat[0]} are {low[flat[0]]:g}; --normalize minmax needs different ones")
        words = "0 is the worst run of this comparison, 1 the best: " + _scale(envs, low, high)
        return Normalization(words, low, high, 1.0)
    return _from_file(choice, envs)


def _from_file(path: str, envs: Sequence[str]) -> Normalization:
    if not path.endswith((".yaml", ".yml")):
        raise BadInput(f"--normalize is {path!r:.80}; {did_you_mean(path, CHOICES)}, or a YAML file of your own")
    content = read_yaml(path)
    low, high = dict[str, float](), dict[str, float]()
    for env in envs:
        ends = content.get(env)
        plain = isinstance(ends, list) and all(type(end) in (int, float) and math.isfinite(end) for end in ends)
        if not isinstance(ends, list) or not plain or len(ends) != 2 or ends[0] >= ends[1]:
            raise BadInput(f"{path} has {env}: {ends!r:.80}; expected two numbers, the lower one first: [0, 500]")
        low[env], high[env] = float(ends[0]), float(ends[1])
    return Normalization(f"by {path}: {_scale(envs, low, high)}", low, high, 1.0)


def _scale(
    envs: Sequence[str],
    low: Mapping[str, float],
    high: Mapping[str, float],
    references: Mapping[str, PlainDict] | None = None,
) -> str:
    what = {env: f" ({references[env]['target_is']})" if references else "" for env in envs}
    return "; ".join(f"{env} {low[env]:g} … {high[env]:g}{what[env]}" for env in envs)
