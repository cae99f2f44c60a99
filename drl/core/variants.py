"""Model variants: what a model answers with, and which algorithm needs which.

Policy-value `obs → (policy parameters, value)`, policy-only `obs → policy parameters`, q-value `obs → q`.
"""

from typing import Any

from drl.core.errors import BadInput
from drl.core.specs import ActionSpec

PROBES = 2  # observations in a probe: with one alone a value of shape [1] could be a batch or a column

# Variant → how people say it, and the function of either engine's `models` that builds one.
VARIANTS = {
    "policy_value": ("policy-value", "make_policy_value_model"),
    "policy_only": ("policy-only", "make_policy_model"),
    "q_value": ("q-value", "make_q_value_model"),
}


def require_variant(who: str, needed: str, found: str | None) -> None:
    """Raise unless a model has the variant that `who` needs. None passes: a model of the user's own shows what it is
    when it answers its agent."""
    if found is None or found == needed:
        return
    (wanted, maker), is_one = VARIANTS[needed], VARIANTS[found][0]
    raise BadInput(
        f"{who} needs a {wanted} model; this is a {is_one} model; build it with "
        f"{maker}(obs_spec, action_spec, config), or with a module of your own that answers alike"
    )


def answered_variant(answer: Any, spec: ActionSpec, acts_by: str) -> str:
    """The variant that an answer to `PROBES` observations shows. `acts_by` is policy or q: an array with one number per
    action may be either, so the agent says how it reads it."""
    expected = f"[{PROBES}, {spec.num_params}] policy parameters"
    if acts_by == "q":
        expected = f"[{PROBES}, {spec.num_params}] action values"
        if not isinstance(answer, tuple | list) and tuple(answer.shape) == (PROBES, spec.num_params):
            return "q_value"
    elif isinstance(answer, tuple | list):
        if [tuple(part.shape) for part in answer] == [(PROBES, spec.num_params), (PROBES,)]:
            return "policy_value"
        expected += f" and [{PROBES}] values"
    elif tuple(answer.shape) == (PROBES, spec.num_params):
        return "policy_only"
    given = [list(part.shape) for part in answer] if isinstance(answer, tuple | list) else list(answer.shape)
    raise BadInput(f"the model answers {PROBES} observations with {given}; expected {expected}")
