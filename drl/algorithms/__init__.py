"""Algorithms by name. Plugins add theirs with `register_algorithm`."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from drl.algorithms import a2c, dqn, ppo, reinforce, sac, td3
from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.core.configs import Config, ConfigClass
from drl.core.errors import BadInput, did_you_mean
from drl.core.network_parts import Factory, Maker, resolve
from drl.core.normalize import ObsNormalizer, obs_normalizer
from drl.core.specs import ActionSpec, Specs
from drl.core.variants import VARIANTS, ModelVariant

# The only table of algorithms: name → record.
ALGORITHMS: dict[str, AlgorithmRecord] = {
    record.name: record
    for record in (
        ppo.RECORD,
        a2c.RECORD,
        reinforce.RECORD,
        dqn.RECORD,
        td3.DDPG_RECORD,
        td3.TD3_RECORD,
        sac.SAC_RECORD,
        sac.TQC_RECORD,
        sac.CROSSQ_RECORD,
        sac.NORMALIZED_SAC_RECORD,
    )
}


def find_algorithm(name: str) -> AlgorithmRecord:
    """Return the record of an algorithm; if the name is unknown, raise with the nearest one."""
    if name not in ALGORITHMS:
        hint = "for a custom one, import the module that registers it: --plugins MODULE"
        raise BadInput(f"unknown algorithm {name!r}; {did_you_mean(name, ALGORITHMS)}; {hint}")
    return ALGORITHMS[name]


def class_in(record: AlgorithmRecord, engine: str, action_spec: ActionSpec) -> Factory:
    """Return the algorithm's class in an engine; raise if it does not support the action space."""
    if action_spec.kind not in record.action_spaces:
        fitting = [other.name for other in ALGORITHMS.values() if action_spec.kind in other.action_spaces]
        raise BadInput(
            f"{record.name} takes {' or '.join(record.action_spaces)} actions, this environment's are "
            f"{action_spec.kind}; use {' or '.join(fitting)}"
        )
    if engine not in record.engines:
        raise BadInput(
            f"{record.name} is not available in the {engine} engine; use --engine {' or '.join(record.engines)}"
        )
    return resolve(record.engines[engine])


class LearnerParts(NamedTuple):
    """What an engine builds a learner from."""

    learner: Factory  # class of the algorithm
    variant: ModelVariant
    normalizer: ObsNormalizer | None


def learner_parts(algorithm: str, engine: str, specs: Specs, config: Config, normalize_obs: bool) -> LearnerParts:
    """Return the algorithm's class in an engine, the variant of its model, and the normalizer of its agent."""
    record = find_algorithm(algorithm)
    learner, variant = class_in(record, engine, specs.action_spec), VARIANTS[record.variant(config)]
    return LearnerParts(learner, variant, obs_normalizer(specs.obs_spec) if normalize_obs else None)


def register_algorithm(
    name: str | AlgorithmRecord,
    *,
    like: str | None = None,
    torch: Maker | None = None,
    jax: Maker | None = None,
    config: ConfigClass | None = None,
    **changes: Any,
) -> None:
    """Register an algorithm of your own for `drl.train`, `drl train NAME` and all other commands.

    For a variation, give its name, the algorithm it is `like`, its class in each engine, and optionally a config
    with additional settings. `changes` are other fields of the `AlgorithmRecord`, such as `summary`, `model_config`
    or `search_base`. For a new algorithm, give a complete `AlgorithmRecord` instead.

    >>> register_algorithm("long_ppo", like="ppo", summary="ppo for long rollouts")
    >>> find_algorithm("long_ppo").engines == find_algorithm("ppo").engines
    True
    >>> del ALGORITHMS["long_ppo"]
    """
    if isinstance(name, AlgorithmRecord):
        record = name
    elif like is None:
        raise BadInput(f"register_algorithm({name!r}) needs like=…, one of {', '.join(ALGORITHMS)}, or a whole record")
    else:
        record = _variation(name, find_algorithm(like), {"torch": torch, "jax": jax}, config, changes)
    built_in = ALGORITHMS.get(record.name)
    if built_in is not None and built_in != record and not _same_classes(built_in, record):
        raise BadInput(f"there is an algorithm {record.name!r} already; choose another name")
    ALGORITHMS[record.name] = record
    for maker in record.engines.values():
        if isinstance(maker, type) and "record" not in vars(maker):
            maker.record = record  # type: ignore[attr-defined]


def _variation(
    name: str,
    like: AlgorithmRecord,
    classes: Mapping[str, Maker | None],
    config: ConfigClass | None,
    changes: Mapping[str, Any],
) -> AlgorithmRecord:
    if not name.isidentifier():
        raise BadInput(f"algorithm {name!r} is not a valid name; use letters, digits and underscores")
    if unknown := sorted(set(changes) - {field.name for field in fields(AlgorithmRecord)}):
        known = [field.name for field in fields(AlgorithmRecord)]
        raise BadInput(f"register_algorithm takes no {unknown[0]!r}; {did_you_mean(unknown[0], known)}")
    if config is not None and not issubclass(config, like.config):
        raise BadInput(
            f"config is {config.__name__}; expected a subclass of {like.config.__name__}, the one of {like.name}"
        )
    own = {engine: maker for engine, maker in classes.items() if maker is not None}
    for engine, maker in own.items():
        if isinstance(maker, type) and not callable(getattr(maker, "learn", None)):
            raise BadInput(f"{engine}={maker.__name__} has no method learn; expected a subclass of an algorithm")
    made: dict[str, Any] = {"summary": f"a variation of {like.name}", "like": like.like or like.name}
    if own:
        made |= {"engines": own, "fused": like.fused if _learns_like_ours(own.get("jax")) else None}
    return replace(like, **(made | {"name": name, "config": config or like.config} | dict(changes)))


def _learns_like_ours(maker: Maker | None) -> bool:
    """Whether a class overrides losses only: a compiled program calls these, but not a custom `learn`."""
    owners = [each for each in getattr(maker, "__mro__", ()) if "learn" in vars(each)]
    return bool(owners) and owners[0].__module__.startswith("drl.engines.jax.")


def _same_classes(before: AlgorithmRecord, now: AlgorithmRecord) -> bool:
    """Whether the same script or notebook cell registers an algorithm again."""
    if before.engines.keys() != now.engines.keys() or before.like is None:
        return False
    pairs = [(before.engines[engine], now.engines[engine]) for engine in now.engines]
    return all(one == two or getattr(one, "__qualname__", 1) == getattr(two, "__qualname__", 2) for one, two in pairs)
