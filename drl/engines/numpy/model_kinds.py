"""Questions of the PyTorch and JAX engines about a model: its variant, its distribution, and whether parameters fit.

The heads and models of both engines have these base classes, so that both engines give the same answers.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from drl.core.configs import ModelConfig
from drl.core.errors import UnusableFile
from drl.core.specs import ActionSpec, Distribution
from drl.core.variants import VARIANTS


class AnyPolicyHead:
    """Base class of our heads that output the parameters of a distribution."""


class AnyLogitsHead(AnyPolicyHead):
    """Its outputs are logits; over Box actions, the actions of a deterministic policy before tanh."""


class AnySquashedHead(AnyPolicyHead):
    """Its outputs are means and log standard deviations of a Gaussian before tanh."""


class AnyQHead:
    """Base class of our heads of action values."""


class AnyPolicyValueModel:
    """Base class of our models with an actor and a critic."""


class AnyHeadModel:
    """Base class of our models of a backbone and a head."""

    head: object


def known_variant(model: object) -> str | None:
    """The variant of one of our own models, or the attribute `variant` of a custom model; None if it names none: then
    the variant is inferred from its output."""
    if isinstance(model, AnyPolicyValueModel):
        return "policy_value"
    if isinstance(model, AnyHeadModel):
        kinds = {AnyPolicyHead: "policy_only", AnyQHead: "q_value"}
        return next((variant for kind, variant in kinds.items() if isinstance(model.head, kind)), None)
    variant = getattr(model, "variant", None)
    return variant if variant in VARIANTS else None


def distribution_of(model: object, action_spec: ActionSpec) -> Distribution:
    """The distribution of a policy model: that of one of our own heads, or the attribute `distribution` of a custom
    model, or of its head, or the default of the action space. A head that a config names has the config's."""
    actor = getattr(model, "actor", model)
    head = getattr(actor, "head", actor)
    config = getattr(actor, "config", None)
    kind = getattr(head, "distribution", "auto")
    if isinstance(config, ModelConfig) and config.head != "auto":
        kind = config.distribution
    kind = getattr(model, "distribution", kind)
    if isinstance(head, AnySquashedHead):
        kind = "tanh_gaussian"
    elif isinstance(head, AnyLogitsHead) and action_spec.kind == "box":
        kind = "deterministic"
    return Distribution.on(action_spec, kind)


class Shaped(Protocol):
    """An array of any library."""

    @property
    def shape(self) -> Sequence[int]:
        """Its size along each axis."""


def check_parameters(expected: Mapping[str, Shaped], given: Mapping[str, Shaped], source: str) -> None:
    """Raise unless every name and shape matches."""
    if differing := sorted(expected.keys() ^ given.keys()):
        raise UnusableFile(f"{source} does not fit the model: {', '.join(differing[:4])} in one but not in the other")
    for name, array in expected.items():
        if tuple(array.shape) != tuple(given[name].shape):
            shapes = f"{tuple(given[name].shape)} in the file, {tuple(array.shape)} in the model"
            raise UnusableFile(f"{source} does not fit the model: {name} is {shapes}")
