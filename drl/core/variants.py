"""Model variants: the kind of output, the functions that make such models, and the agents that act with them.

Plugins add theirs with `register_variant`.

Policy-value `obs → (distribution parameters, value)`, policy-only `obs → distribution parameters`, q-value `obs → q`.
An actor-critic has the output of a policy-only model; its critics `(obs, action) → q` are for learning only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from drl.core.configs import ActorCriticConfig, ConfigClass, ModelConfig, QModelConfig
from drl.core.errors import BadInput, UnusableFile
from drl.core.network_parts import Factory, Maker, resolve
from drl.core.specs import Array

PROBES = 2  # observations in a probe; with one alone, shape [1] could be a batch or a column


@dataclass(frozen=True, kw_only=True)
class ModelVariant:
    """A kind of model, with its makers and agents."""

    name: str
    title: str  # as messages show it
    config: ConfigClass  # its settings, a frozen dataclass, stored on an agent's card
    makers: Mapping[str, Maker]  # engine → (obs_spec, action_spec, config[, generator]) → model
    agents: Mapping[str, Maker]  # engine → class of the agent that acts with it
    answers_like: str = ""  # the variant with the same kind of output; "": none


def _built_in(name: str, title: str, config: ConfigClass, model: str, agent: str) -> ModelVariant:
    agents = {engine: f"drl.engines.{engine}.agents:{agent}" for engine in ("torch", "jax")}
    return ModelVariant(
        name=name,
        title=title,
        config=config,
        makers={engine: f"drl.engines.{engine}.{model}" for engine in ("torch", "jax")},
        agents=agents | {"numpy": f"drl.engines.numpy.acting:Numpy{agent}"},
    )


VARIANTS: dict[str, ModelVariant] = {
    variant[0]: _built_in(*variant)
    for variant in (
        ("policy_value", "policy-value", ModelConfig, "models:make_policy_value_model", "PolicyAgent"),
        ("policy_only", "policy-only", ModelConfig, "models:make_policy_model", "PolicyAgent"),
        ("q_value", "q-value", QModelConfig, "models:make_q_value_model", "QAgent"),
        ("actor_critic", "actor-critic", ActorCriticConfig, "actor_critics:make_actor_critic", "PolicyAgent"),
        (
            "deterministic_actor_critic",
            "deterministic actor-critic",
            ActorCriticConfig,
            "actor_critics:make_deterministic_actor_critic",
            "PolicyAgent",
        ),
    )
}


def register_variant(variant: ModelVariant | str, *, like: str | None = None, **changes: Any) -> None:
    """Register a model variant of your own and the agent that acts with it. Give a complete `ModelVariant`, or a name,
    the variant it is `like`, and the fields that differ, such as `agents`."""
    if isinstance(variant, str):
        if like not in VARIANTS:
            raise BadInput(f"register_variant({variant!r}) needs like=…, one of {', '.join(VARIANTS)}")
        variant = replace(VARIANTS[like], **({"name": variant, "answers_like": like} | changes))
    if VARIANTS.get(variant.name, variant) != variant:
        raise BadInput(f"there is a model variant {variant.name!r} already; choose another name")
    VARIANTS[variant.name] = variant


def find_variant(name: str, source: object) -> ModelVariant:
    """Return the variant named in a file."""
    if name not in VARIANTS:
        raise UnusableFile(
            f"{source} is an agent of unknown variant {name!r}; for a custom variant, import the module that "
            "registers it: --plugins MODULE"
        )
    return VARIANTS[name]


def maker_in(variant: ModelVariant, engine: str) -> Factory:
    """Return the function that makes a variant's model in an engine."""
    return _in_engine(variant, variant.makers, engine)


def agent_in(variant: ModelVariant, engine: str) -> Any:
    """Return the agent class of a variant in an engine, which has a classmethod `load`."""
    return _in_engine(variant, variant.agents, engine)


def _in_engine(variant: ModelVariant, table: Mapping[str, Maker], engine: str) -> Factory:
    if engine not in table:
        raise BadInput(
            f"{variant.title} models are not available in the {engine} engine; available in {', '.join(table)}"
        )
    return resolve(table[engine])


BUILT_BY = {"policy_value": "PolicyValueModel", "policy_only": "PolicyModel", "q_value": "QModel"} | dict.fromkeys(
    ("actor_critic", "deterministic_actor_critic"), "ActorCritic"
)


def require_variant(who: str, needed: str, found: str | None) -> None:
    """Raise unless a model has the variant that `who` needs. None passes: a custom model's variant is inferred from its
    first output."""
    if found is None or needed in (found, VARIANTS[found].answers_like):
        return
    wanted, is_one = VARIANTS[needed], VARIANTS[found].title
    # An agent acts with every variant that names it; an algorithm learns with one.
    taken = [
        each for each in VARIANTS.values() if any(str(agent).endswith(f":{who}") for agent in each.agents.values())
    ]
    *others, last = (each.title for each in taken or [wanted])
    takes = f"{', '.join(others)} or {last}" if others else last
    build = f"{BUILT_BY[needed]}.build(envs)" if needed in BUILT_BY else "its own function"
    raise BadInput(
        f"{who} needs a {takes} model; this is a {is_one} model; build it with {build}, or use a custom module with "
        "the same outputs"
    )


def answered_variant(answer: Array | tuple[Array, ...], num_params: int, acts_by: str) -> str:
    """Infer the variant of a model from its output for `PROBES` observations. `acts_by` is policy or q: one number per
    action can be either, so the agent decides."""
    expected = f"[{PROBES}, {num_params}] distribution parameters"
    if acts_by == "q":
        expected = f"[{PROBES}, {num_params}] action values"
        if not isinstance(answer, tuple | list) and tuple(answer.shape) == (PROBES, num_params):
            return "q_value"
    elif isinstance(answer, tuple | list):
        if [tuple(part.shape) for part in answer] == [(PROBES, num_params), (PROBES,)]:
            return "policy_value"
        expected += f" and [{PROBES}] values"
    elif tuple(answer.shape) == (PROBES, num_params):
        return "policy_only"
    given = [list(part.shape) for part in answer] if isinstance(answer, tuple | list) else list(answer.shape)
    raise BadInput(f"the model answers {PROBES} observations with {given}; expected {expected}")
