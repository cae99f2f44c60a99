"""The environments of one run in other processes: the same numbers, whoever steps them and whatever happens to them."""

import json
import os
import signal
import warnings

import numpy as np
import pytest
from three_nodes import LONG

from drl.cluster.ray_cluster import open_cluster
from drl.core.errors import BadInput, EnvFailed
from drl.core.state_files import read_state, write_state
from drl.runs.building import open_trainer
from drl.runs.launch import train
from drl.settings.experiment import Experiment

pytestmark = pytest.mark.full

PPO = {"algorithm": "ppo", "rollout_length": 32, "minibatches": 2, "epochs": 1, "total_timesteps": 600}
DQN = {"algorithm": "dqn", "warmup": 60, "batch_size": 16, "train_every": 4, "total_timesteps": 240, "n_step": 3}
DQN |= {"updates_per_log": 10}
SAC = {"algorithm": "sac", "env": "Pendulum-v1", "warmup": 60, "batch_size": 16, "total_timesteps": 90}
SAC |= {"updates_per_log": 10}
SMALL = {"env": "CartPole-v1", "num_envs": 6, "hidden_sizes": [8], "seed": 3, "compile": "off"}
MASKED = {"env": "drl/LegalMoves-v0", "recurrent": "gru", "recurrent_size": 4}
KINDS = {"ppo": PPO | MASKED}
if LONG:
    KINDS |= {"dqn": DQN, "a2c": {"algorithm": "a2c", "total_timesteps": 300}, "sac": SAC}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with open_cluster("local", num_cpus=8) as ray:
        yield ray


def experiment(settings, collectors=0, blocks=3, **changes):
    scaling = {"cluster": "local", "num_collectors": collectors, "env_blocks": blocks} if collectors else {}
    return Experiment.from_flat(SMALL | settings | scaling | changes, "test")


def numbers(log):
    return json.dumps({name: value for name, value in log.items() if not name.startswith("time/")})


CALM = {}  # runs without trouble, by their settings


def calm(settings, *scaling, **changes):
    """`learned`, once for the same arguments."""
    key = repr((settings, scaling, changes))
    if key not in CALM:
        CALM[key] = learned(settings, *scaling, **changes)
    return CALM[key]


def learned(settings, *scaling, **changes):
    """The logs, and the weights at the end."""
    with open_trainer(experiment(settings, *scaling, **changes)) as trainer:
        logs = [numbers(log) for log in trainer()]
        return logs, trainer.agent.state_dict()["model"]


def assert_same(one, other):
    assert one[0] == other[0]
    for name, weights in one[1].items():
        np.testing.assert_array_equal(weights, other[1][name])


PLAIN = {
    "dqn": DQN | {"noisy": True, "prioritized": True, "frame_stack": 2},
    "jax": PPO | {"engine": "jax", "normalize_obs": True, "normalize_reward": True},
}


@pytest.mark.parametrize("settings", (PLAIN | KINDS).values(), ids=PLAIN | KINDS)
def test_one_block_is_the_run_without_collectors(settings):
    assert_same(learned(settings, 1, 1), learned(settings, vectorization="sync"))


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_the_number_of_collectors_changes_nothing(settings):
    one = calm(settings, 1)
    assert len(one[0]) > 1
    assert_same(one, learned(settings, 2))


def troubled(folder):
    return {"wrappers": [f"tests/cluster/troubled_env.py:Troubled:folder={folder}"]}


@pytest.mark.filterwarnings("ignore:collector")
def test_troubles_change_nothing(tmp_path):
    (tmp_path / "troubles").write_text("raise exit nan hang")
    run = learned(PPO | MASKED | troubled(tmp_path), 2, collector_restarts=4, worker_timeout=3.0)
    assert_same(run, calm(PPO | MASKED, 1))
    assert (tmp_path / "troubles").read_text() == "none"


def test_a_collector_that_always_fails_is_named(tmp_path):
    (tmp_path / "troubles").write_text("raise")
    with pytest.raises(EnvFailed, match=r"collector \d \(host .*, process \d+\), environments .*out of order"):
        learned(PPO | troubled(tmp_path), 1, collector_restarts=0)


@pytest.mark.filterwarnings("ignore:collector")
def test_an_environment_that_does_not_repeat_itself_begins_new_episodes(tmp_path):
    (tmp_path / "troubles").write_text("exit")
    env = {"env": "tests.experiment.unrepeatable_env:Unrepeatable-v0", "evaluate_every": 0, "plots": False}
    settings = experiment(PPO | env | troubled(tmp_path), 1, results_dir=str(tmp_path), name="run", video=False)
    run = train(settings, console=False)
    assert run.status == "finished"
    assert "show other observations" in json.loads((run.folder / "run.json").read_text())["inexact"]


@pytest.mark.skipif(not LONG, reason="DRL_FAULTS=long; an exit is among the troubles")
@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
@pytest.mark.filterwarnings("ignore:collector")
def test_kills_change_nothing(settings):
    undisturbed, logs, killed = calm(settings, 1), [], 0
    with open_trainer(experiment(settings, 2, collector_restarts=100)) as trainer:
        for number, log in enumerate(trainer()):
            logs.append(numbers(log))
            if number % 2:
                killed += 1
                os.kill(trainer.collector.processes[killed % 2].specs.process, signal.SIGKILL)
        assert_same((logs, trainer.agent.state_dict()["model"]), undisturbed)
    assert killed >= 1


@pytest.mark.parametrize("settings", KINDS.values() if LONG else [DQN])
def test_a_run_continues_where_it_was(tmp_path, settings):
    with open_trainer(experiment(settings, 2)) as trainer:
        begun = [numbers(trainer.step())]
        write_state(tmp_path, trainer.state_dict())
        trainer.step()
    with open_trainer(experiment(settings, 1)) as other:
        other.load_state_dict(read_state(tmp_path))
        assert other.inexact is None
        rest = [numbers(log) for log in other()]
        assert_same((begun + rest, other.agent.state_dict()["model"]), calm(settings, 1))


def test_a_step_that_is_broken_off_is_taken_again(monkeypatch):
    with open_trainer(experiment(PPO | MASKED, 2)) as trainer:
        logs = [numbers(trainer.step())]
        collector = trainer.collector
        monkeypatch.setattr(collector, "_answer", lambda process: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            next(trainer())
        monkeypatch.undo()
        assert trainer.whole
        logs += [numbers(log) for log in trainer()]
        assert_same((logs, trainer.agent.state_dict()["model"]), calm(PPO | MASKED, 1))


def test_a_hanging_collector_is_restarted_while_another_works(tmp_path):
    (tmp_path / "troubles").write_text("hang")
    settings = experiment(DQN | troubled(tmp_path), 2, async_collectors=True, worker_timeout=1.0, total_timesteps=10**6)
    with open_trainer(settings) as trainer, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in trainer():
            if trainer.collector.restarts < settings.scaling.collector_restarts:
                break
            assert trainer.env_steps < 100_000
    assert "took no step for 1 s" in str(said[0].message)


def pushed(settings, *scaling, kill=False, store=None, **changes):
    """`learned`, but the carts are pushed with another force after the first log, in the middle of episodes."""
    logs = []
    with open_trainer(experiment(settings, *scaling, **changes)) as trainer:
        for number, log in enumerate(trainer()):
            logs.append(numbers(log))
            if number == 0:
                assert trainer.envs.get("force_mag") == [10.0] * 6
                trainer.envs.set("force_mag", 3.0)
                assert trainer.envs.get("force_mag") == [3.0] * 6
                if kill:
                    os.kill(trainer.collector.processes[0].specs.process, signal.SIGKILL)
            if number == 1 and store is not None:
                write_state(store, trainer.state_dict())
        assert trainer.envs.get("force_mag") == [3.0] * 6
        assert [(change.name, change.value) for change in trainer.changes][-1] == ("force_mag", 3.0)
        return logs, trainer.agent.state_dict()["model"]


@pytest.mark.filterwarnings("ignore:collector")
def test_what_is_set_reaches_every_collector_also_after_a_kill_and_a_resume(tmp_path):
    plain = pushed(PPO, 1, 1)
    assert_same(plain, pushed(PPO, vectorization="sync"))
    assert plain[0] != calm(PPO, 1, 1)[0]
    one = pushed(PPO, 1)
    assert_same(one, pushed(PPO, 2, kill=True, store=tmp_path))
    with open_trainer(experiment(PPO, 1)) as other:
        other.load_state_dict(read_state(tmp_path))
        assert other.inexact is None
        assert other.envs.get("force_mag") == [3.0] * 6
        rest = [numbers(log) for log in other()]
        assert_same((one[0][:2] + rest, other.agent.state_dict()["model"]), one)


def test_asynchronous_collectors_are_reached_and_refuse_by_name():
    with open_trainer(experiment(DQN, 2, async_collectors=True)) as trainer:
        for number, log in enumerate(trainer()):
            assert log
            if number == 0:
                trainer.envs.set("force_mag", 3.0)
                assert trainer.envs.call("close") == [None] * 6
        assert trainer.envs.get("force_mag") == [3.0] * 6
        for attempt in (trainer.envs.get, trainer.envs.call, lambda name: trainer.envs.set(name, 1)):
            with pytest.raises(BadInput, match="did you mean 'force_mag'"):
                attempt("force_ma")


def test_asynchronous_collectors(tmp_path):
    with open_trainer(experiment(DQN, 2, async_collectors=True)) as trainer:
        logs = list(trainer())
        assert all(log["max_staleness"] >= log["mean_staleness"] >= 0 for log in logs if "max_staleness" in log)
        assert any("max_staleness" in log for log in logs)
        assert trainer.env_steps >= DQN["total_timesteps"]
        buffer = trainer.buffer
        assert buffer.env_steps == trainer.env_steps
        assert buffer.written <= trainer.env_steps
        write_state(tmp_path, trainer.state_dict())
        trainer.load_state_dict(read_state(tmp_path))
        assert "asynchronous" in trainer.inexact


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "reinforce"}, "whole episodes"),
        (PPO | {"async_collectors": True}, "replay buffer"),
        (PPO | {"vectorization": "async"}, "use sync"),
        (PPO | {"env_blocks": 7}, "--env-blocks"),
        (PPO | {"num_collectors": 4}, "--env-blocks"),
        (PPO | {"env": "pettingzoo:mpe2.simple_spread_v3"}, "single"),
        (PPO | {"env": "NoSuchEnv-v0"}, "NoSuchEnv"),
    ],
)
def test_what_collectors_cannot_do(settings, message):
    with pytest.raises(BadInput, match=message), open_trainer(experiment({}, 2, **settings)):
        pass


def test_collectors_need_a_cluster():
    with pytest.raises(BadInput, match="--cluster local"):
        Experiment.from_flat({"num_collectors": 2}, "test")
    with pytest.raises(BadInput, match="num-collectors"):
        Experiment.from_flat({"env_blocks": 2}, "test")
