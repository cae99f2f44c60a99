"""Several learners for one run: their updates are those of one learner, and one that dies costs nothing."""

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from drl.cluster.learners import LearnerProcess, ManyLearners
from drl.cluster.ray_cluster import open_cluster
from drl.core.errors import BadInput, LearnerFailed
from drl.engines.torch.flat_optimizer import FlatOptimizer
from drl.runs.building import check_learners, learner_maker, open_trainer
from drl.runs.extras import Extras
from drl.runs.launch import resume, train
from drl.settings.experiment import Experiment
from tests.cluster.learner_threads import InThreads, Meeting, ThreadGroup

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


def learned(experiment, size, steps, in_threads=False):
    """The state of the first and the last of `size` learners after some learning steps, and the logs of these."""
    with open_trainer(experiment) as trainer:
        one = last = trainer.algorithm
        if size > 1 or in_threads:
            make = learner_maker(experiment, trainer.collector)
            trainer.algorithm = InThreads(trainer.agent, one, make, size)
            last = trainer.algorithm.algorithms[-1]
        logs = [log.flat() for log in itertools.islice(trainer(), steps)]
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


@pytest.mark.default("dqn")
@pytest.mark.parametrize("name", CASES)
def test_an_update_of_several_learners_is_that_of_one(name):
    alone, _, logs = learned(CASES[name], 1, 4)
    for size in (2, 3):
        shared, last, others = learned(CASES[name], size, 4)
        np.testing.assert_allclose(shared, alone, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(shared, last)  # bit by bit, without being sent
        assert_same(logs, others)


@pytest.mark.full
def test_a_compiled_update_is_shared_too():
    """The program ends with the gradient, which is then summed; here over one learner, to compile one program only."""
    settings = {"rollout_length": 8, "hidden_sizes": [16], "normalize_advantage": True}
    alone, _, logs = learned(experiment("a2c", **settings), 1, 3)
    shared, _, others = learned(experiment("a2c", **settings, compile="on"), 1, 3, in_threads=True)
    np.testing.assert_allclose(shared, alone, rtol=1e-6, atol=1e-6)
    assert_same(logs, others)


@pytest.mark.parametrize(("name", "most"), [("ppo", 11), ("dqn", 6), ("sac", 6)])  # of 33 and 17 rows
def test_every_learner_computes_its_part_only(monkeypatch, name, most):
    whole, rows = FlatOptimizer.gradient, []

    def counted(self, inputs):
        rows.append(len(inputs[0].action))
        return whole(self, inputs)

    monkeypatch.setattr(FlatOptimizer, "gradient", counted)
    learned(CASES[name], 3, 1)
    assert set(rows) <= {most, most - 1}
    assert most in rows


def test_the_first_learner_goes_on_alone(monkeypatch):
    """The others are lost in the middle of a learning step: it is finished as if there had been one learner."""
    alone, _, logs = learned(CASES["ppo"], 1, 3)
    add_up, calls = ThreadGroup.sum, itertools.count()

    def lose(self, numbers):
        if self.rank == 0 and next(calls) == 17:
            self.broken = "lost"
            self.meeting.barrier.abort()
            raise LearnerFailed("lost")
        add_up(self, numbers)

    monkeypatch.setattr(ThreadGroup, "sum", lose)
    shared, _, others = learned(CASES["ppo"], 2, 3)
    np.testing.assert_allclose(shared, alone, rtol=1e-6, atol=1e-6)
    assert_same(logs, others)


@pytest.mark.parametrize(
    ("algorithm", "settings", "named"),
    [
        ("ppo", {"num_learners": 2}, "add --cluster local"),
        ("dqn", SHARED | {"batch_size": 4, "num_learners": 5}, "--num-learners 4"),
        ("ppo", SHARED | {"rollout_length": 1, "minibatches": 4}, "--num-learners 1"),
        ("ppo", SHARED | RECURRENT | {"num_learners": 3}, "--num-learners 2"),
        ("ppo", SHARED | {"num_seeds": 2}, "one run"),
        ("crossq", SHARED, "--no-batch-renorm"),
        ("ppo", {"engine": "jax", "num_learners": 2, "cluster": "auto"}, "use local"),
        ("ppo", SHARED | {"engine": "jax", "rollout_length": 5, "num_envs": 1, "minibatches": 1}, "divide"),
        ("reinforce", SHARED | {"engine": "jax", "num_learners": 3}, "power of two"),
    ],
)
def test_what_cannot_be_shared_is_refused(algorithm, settings, named):
    with pytest.raises(BadInput, match=named):
        check_learners(experiment(algorithm, **settings))


def test_batch_renormalization_is_refused():
    crossq = experiment("crossq", **REPLAY, env="Pendulum-v1")
    with open_trainer(crossq) as trainer, pytest.raises(BadInput, match="whole batches"):
        trainer.algorithm.share(ThreadGroup(Meeting(2), 0))


def test_a_learner_that_raises_leaves_its_group():
    """Its connections are closed, so that nobody waits for it."""

    def fail(batch, progress):
        raise ValueError("broken")

    left, process = [], LearnerProcess()
    process.algorithm = SimpleNamespace(learn=fail)
    process.group = SimpleNamespace(leave=lambda: left.append(True))
    with pytest.raises(ValueError, match="broken"):
        process.learn(None, 0.0)
    assert left


# On Ray, which is started once.


@pytest.fixture(scope="module")
def cluster():
    with open_cluster("local", num_cpus=1) as ray:
        yield ray


@pytest.fixture
def shared(monkeypatch, tmp_path, cluster):
    """Trains with two learners; `members` are the further ones."""
    members, init = [], ManyLearners.__init__

    def noted(self, *arguments):
        init(self, *arguments)
        members.extend(int(re.search(r"process (\d+)", member.name)[1]) for member in self.members)

    monkeypatch.setattr(ManyLearners, "__init__", noted)
    monkeypatch.chdir(tmp_path)
    return members


def rows(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{n: v for n, v in json.loads(line).items() if not n.startswith("time/")} for line in lines]


def is_gone(process):
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.mark.full
def test_a_run_with_two_learners(shared, cluster, tmp_path, capsys):
    """It is that of one learner to 1e-6; stopped and resumed it is the same to the last bit."""
    alone = train(experiment("ppo", **ROLLOUT, name="alone"))
    once = train(experiment("ppo", **ROLLOUT, **SHARED, name="once", quiet=False))
    assert_same(rows(alone.folder), rows(once.folder))
    assert "experimental: 2 learners" in capsys.readouterr().out
    assert json.loads((once.folder / "run.json").read_text())["learners"] == "experimental: 2 learners"

    def stop(logs):
        for number, log in enumerate(logs):
            yield log
            if number == 4:
                raise KeyboardInterrupt

    def listening(logs):
        for log in logs:
            for process in (os.getpid(), shared[-1]):
                connections = psutil.Process(process).net_connections()
                found.extend(each.laddr.ip for each in connections if each.status == "LISTEN")
            yield log

    found = []
    stopped = train(experiment("ppo", **ROLLOUT, **SHARED, name="stopped"), Extras(stages=(listening, stop)))
    assert stopped.status == "interrupted"
    resume(stopped.folder)
    assert rows(stopped.folder) == rows(once.folder)
    assert set(found) == {"127.0.0.1", "::ffff:127.0.0.1"}
    assert len(shared) == 3
    deadline = time.monotonic() + 60
    while not all(is_gone(process) for process in shared):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.full
def test_a_learner_that_is_killed_costs_nothing(shared, tmp_path):
    """The step is finished without it and saved; exit code 5, named; one learner can go on."""
    alone = train(experiment("dqn", **REPLAY, prioritized=True, total_timesteps=400, name="alone"))

    def kill(logs):
        for number, log in enumerate(logs):
            yield log
            if number == 3:
                os.kill(shared[0], signal.SIGKILL)

    settings = experiment("dqn", **REPLAY, **SHARED, prioritized=True, total_timesteps=400, name="killed")
    with pytest.raises(LearnerFailed, match=r"learner 2 of 2 \(host .+, process \d+\) died") as failed:
        train(settings, Extras(stages=(kill,)))
    assert failed.value.exit_code == 5
    (folder,) = (tmp_path / "results" / "killed").glob("*-s0")
    assert json.loads((folder / "run.json").read_text())["status"] == "failed"
    assert len(rows(folder)) == 5
    assert (folder / "agent" / "card.json").exists()
    resumed = resume(folder, scaling={"num_learners": 1})
    assert resumed.status == "finished"
    assert_same(rows(alone.folder), rows(folder))


@pytest.mark.full
def test_the_devices_of_jax(tmp_path):
    """In a process of its own, which has two devices: the numbers are those of one."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, Path(__file__).with_name("jax_devices.py")]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | flags, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
