"""Several learners for one run: their updates are those of one learner, and one that dies costs nothing."""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from drl.core.errors import BadInput, Interrupted, LearnerFailed
from drl.experiment.building import learner_maker, open_trainer
from drl.experiment.config import Experiment
from drl.experiment.extras import Extras
from drl.experiment.launch import resume, train
from drl.experiment.many_learners import check_learners
from tests.cluster.learner_threads import InThreads

LEAN = {"num_envs": 4, "compile": "off", "device": "cpu", "quiet": True, "total_timesteps": 2048}
LEAN |= {"plots": False, "video": False, "tensorboard": False, "evaluate_every": 0, "evaluation_episodes": 1}
ROLLOUT = {"rollout_length": 33, "minibatches": 4, "epochs": 3, "hidden_sizes": [16]}
REPLAY = {"warmup": 60, "batch_size": 17, "capacity": 150, "updates_per_log": 10, "hidden_sizes": [16]}
SHARED = {"num_learners": 2, "cluster": "local"}
RECURRENT = {"env": "drl/CartPoleNoVelocity-v1", "recurrent": "gru", "recurrent_size": 8, "minibatches": 2}
RAINBOW = {"prioritized": True, "noisy": True, "dueling": True, "double": True, "n_step": 3, "distributional": "c51"}


def experiment(algorithm, **settings):
    return Experiment.from_flat(LEAN | {"algorithm": algorithm} | settings, "test")


CASES = {
    "ppo": experiment("ppo", **ROLLOUT, normalize_obs=True, entropy_coef_schedule="linear", entropy_coef=0.01),
    "ppo whole": experiment("ppo", **ROLLOUT | {"minibatches": 1}, normalize_advantage=False, value_clip=0.2),
    "ppo stops early": experiment("ppo", **ROLLOUT, target_kl=1e-5, critic_learning_rate=1e-3),
    "ppo native": experiment("ppo", **ROLLOUT, vectorization="native"),
    "ppo recurrent": experiment("ppo", **ROLLOUT | RECURRENT),
    "a2c": experiment("a2c", rollout_length=9, hidden_sizes=[16], normalize_advantage=True),
    "a2c recurrent": experiment("a2c", rollout_length=16, hidden_sizes=[16], env=RECURRENT["env"], recurrent="lstm"),
    "reinforce": experiment("reinforce", episodes_per_step=2, hidden_sizes=[16], entropy_coef=0.01),
    "dqn": experiment("dqn", **REPLAY, prioritized=True, max_grad_norm=0.5),
    "rainbow": experiment("dqn", **REPLAY, **RAINBOW, target_every=5),
    "sac": experiment("sac", **REPLAY, env="Pendulum-v1", prioritized=True),
    "sac discrete": experiment("sac", **REPLAY),
    "tqc": experiment("tqc", **REPLAY, env="Pendulum-v1"),
    "td3": experiment("td3", **REPLAY, env="Pendulum-v1"),
}


def learned(experiment, size, steps):
    """The weights and the logs of some learning steps of `size` learners; those of the last learner too."""
    with open_trainer(experiment) as trainer:
        one = trainer.algorithm
        if size > 1:
            make = learner_maker(experiment, (trainer.envs.obs_spec, trainer.envs.action_spec))
            trainer.algorithm = InThreads(trainer.agent, one, make, size)
        logs = [log.flat() for log in itertools.islice(trainer(), steps)]
        last = one if size == 1 else trainer.algorithm.algorithms[-1]
        return numbers_of(one.state_dict()), numbers_of(last.state_dict()), logs


def numbers_of(state):
    """Everything in a state, but random streams, as one row."""
    if isinstance(state, dict):
        return np.concatenate([numbers_of(value) for name, value in state.items() if name != "rng"] or [np.zeros(0)])
    if isinstance(state, list):
        return np.concatenate([numbers_of(value) for value in state] or [np.zeros(0)])
    return np.atleast_1d(np.array(0.0 if state is None else state, np.float64)).ravel()


def assert_same(logs, others):
    assert len(logs) == len(others)
    for log, other in zip(logs, others, strict=True):
        assert log.keys() == other.keys()
        for name in (name for name in log if not name.startswith("time/")):
            np.testing.assert_allclose(log[name], other[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_an_update_of_several_learners_is_that_of_one(name, size):
    alone, _, logs = learned(CASES[name], 1, 6)
    shared, last, others = learned(CASES[name], size, 6)
    np.testing.assert_allclose(shared, alone, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(shared, last)  # bit by bit, without being sent
    assert_same(logs, others)
