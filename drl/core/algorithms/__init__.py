"""Algorithms by name. A plugin adds its own with `register_algorithm`."""

from drl.core.algorithms import a2c_record, dqn_record, ppo_record, reinforce_record, sac_record, td3_record
from drl.core.algorithms.algorithm_record import AlgorithmRecord
from drl.core.errors import BadInput, did_you_mean
from drl.core.network_parts import Factory, resolve
from drl.core.specs import ActionSpec

# The only table of algorithms: name → record.
ALGORITHMS: dict[str, AlgorithmRecord] = {
    record.name: record
    for record in (
        ppo_record.RECORD,
        a2c_record.RECORD,
        reinforce_record.RECORD,
        dqn_record.RECORD,
        td3_record.DDPG_RECORD,
        td3_record.TD3_RECORD,
        sac_record.SAC_RECORD,
        sac_record.TQC_RECORD,
        sac_record.CROSSQ_RECORD,
        sac_record.NORMALIZED_SAC_RECORD,
    )
}


def find_algorithm(name: str) -> AlgorithmRecord:
    """The record of an algorithm; raise with the nearest name if there is none."""
    if name not in ALGORITHMS:
        raise BadInput(f"unknown algorithm {name!r}; {did_you_mean(name, ALGORITHMS)}")
    return ALGORITHMS[name]


def class_in(record: AlgorithmRecord, engine: str, action_spec: ActionSpec) -> Factory:
    """The algorithm's class in an engine; raise if it does not support the action space."""
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


def register_algorithm(record: AlgorithmRecord) -> None:
    """Register an algorithm of your own, for `drl train NAME` and everything else."""
    if ALGORITHMS.get(record.name, record) != record:
        raise BadInput(f"there is an algorithm {record.name!r} already; choose another name")
    ALGORITHMS[record.name] = record
