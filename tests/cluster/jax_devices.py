"""Run by test_learners.py with two devices: updates on both are those on one."""

import itertools

import jax
import numpy as np
import pytest

from drl.core.errors import BadInput
from drl.runs.building import open_trainer
from drl.settings.experiment import Experiment

LEAN = {"engine": "jax", "num_envs": 4, "device": "cpu", "vectorization": "sync", "hidden_sizes": [16]}
REPLAY = {"warmup": 60, "batch_size": 16, "capacity": 150, "updates_per_log": 5}
CASES = {
    "ppo": {"rollout_length": 32, "minibatches": 4, "epochs": 3},
    "dqn": REPLAY | {"prioritized": True, "noisy": True},
}


def learned(algorithm, **settings):
    """Parameters and logs of some learning steps."""
    experiment = Experiment.from_flat(LEAN | CASES[algorithm] | {"algorithm": algorithm} | settings, "test")
    with open_trainer(experiment) as trainer:
        logs = [log.flat() for log in itertools.islice(trainer(), 4)]
        params = jax.tree.leaves(trainer.agent.model_state.params)
        devices = {len(leaf.sharding.device_set) for leaf in params}
        return [np.asarray(leaf) for leaf in params], logs, devices


divided = set()
constrain = jax.lax.with_sharding_constraint


def noted(array, spec):
    divided.add(len(array))
    return constrain(array, spec)


if __name__ == "__main__":
    jax.lax.with_sharding_constraint = noted
    for algorithm, rows in {"ppo": 32, "dqn": 16}.items():
        divided.clear()
        alone, logs, _ = learned(algorithm)
        assert not divided
        shared, others, devices = learned(algorithm, num_learners=2, cluster="local")
        assert rows in divided, (algorithm, divided)  # those of a minibatch
        assert devices == {2}, devices
        for one, two in zip(alone, shared, strict=True):
            np.testing.assert_allclose(two, one, rtol=1e-6, atol=1e-6)
        for log, other in zip(logs, others, strict=True):
            for name in (name for name in log if not name.startswith("time/")):
                np.testing.assert_allclose(log[name], other[name], rtol=1e-5, atol=1e-6, err_msg=name)
    with pytest.raises(BadInput, match="JAX has 2 cpu devices"):
        learned("dqn", num_learners=4, cluster="local")
