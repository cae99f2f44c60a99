"""When a user's environment breaks, we say which one, when and why, and leave no process behind."""

import functools
import multiprocessing
import os
import signal

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from vec_envs_under_test import FailingEnv

from drl.core.errors import EnvFailed, NonFinite
from drl.envs.async_vec_env import AsyncVecEnv
from drl.envs.native_vec_env import wrap_vector_env
from drl.envs.sync_vec_env import SyncVecEnv
from drl.games.probes import CountingEnv

ACTION = np.zeros(3, np.int64)


def _fns(how, at=3):
    """Environment 1 of three fails."""
    fine = functools.partial(FailingEnv, "never")
    return [fine, functools.partial(FailingEnv, how, at), fine]


def _engines(how, timeout=20.0):
    yield SyncVecEnv(_fns(how), 0, "Broken-v0")
    yield AsyncVecEnv(_fns(how), 0, "Broken-v0", timeout=timeout)


def _run(envs, steps=5):
    envs.reset()
    for _ in range(steps):
        envs.step(ACTION)


@pytest.fixture(autouse=True)
def _nobody_is_left_behind():
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize(("how", "said"), [("raise", "the wheel came off"), ("reset", "no way back")])
def test_an_exception_names_the_env(how, said):
    for envs in _engines(how):
        with (
            envs,
            pytest.raises(
                EnvFailed,
                match=rf"'Broken-v0', environment 1 failed after 6 steps: Unpicklable: {said}|"
                rf"'Broken-v0', environment 1 failed after 9 steps: Unpicklable: {said}",
            ),
        ):
            _run(envs)


def test_sync_keeps_the_original_error():
    with SyncVecEnv(_fns("raise"), 0) as envs, pytest.raises(EnvFailed) as caught:
        _run(envs)
    assert type(caught.value.__cause__).__name__ == "Unpicklable"


@pytest.mark.parametrize("how", ["nan", "inf"])
def test_a_non_finite_reward_is_refused(how):
    native = wrap_vector_env(SyncVectorEnv(_fns(how), autoreset_mode=AutoresetMode.DISABLED))
    native.stats.env_id = "Broken-v0"
    for envs in (*_engines(how), native):
        with envs, pytest.raises(NonFinite, match=rf"'Broken-v0', environment 1: reward {how} at step 3"):
            _run(envs)


def test_a_non_finite_observation_is_refused():
    native = wrap_vector_env(SyncVectorEnv(_fns("nan_obs"), autoreset_mode=AutoresetMode.DISABLED))
    native.stats.env_id = "Broken-v0"
    for envs in (*_engines("nan_obs"), native):
        with envs, pytest.raises(NonFinite, match=r"'Broken-v0', environment 1: the observation is nan at step 3"):
            _run(envs)


def test_huge_but_finite_numbers_pass():
    envs = SyncVecEnv([CountingEnv] * 2, 0)
    envs.stats.add(np.array([1.7e308, 1.7e308]))
    envs.stats.check_obs(np.full((2, 1), 3e38, np.float32), envs.obs_spec)
    assert envs.stats.env_steps == 2


def test_a_hung_worker_is_given_up():
    with AsyncVecEnv(_fns("hang"), 0, "Broken-v0", timeout=0.5) as envs:
        with pytest.raises(EnvFailed, match=r"'Broken-v0', environment 1 .*no answer within 0.5 s"):
            _run(envs)
        with pytest.raises(EnvFailed, match="closed"):
            envs.step(ACTION)


def test_a_worker_that_exits_is_reported():
    with (
        AsyncVecEnv(_fns("die"), 0, "Broken-v0") as envs,
        pytest.raises(EnvFailed, match=r"'Broken-v0', environment 1 .*died \(exit code 7\)"),
    ):
        _run(envs)


def test_a_worker_that_is_killed_is_reported():
    with AsyncVecEnv(_fns("never"), 0, "Broken-v0") as envs:
        envs.reset()
        process = envs.processes[2]
        os.kill(process.pid, signal.SIGKILL)
        process.join(5)
        with pytest.raises(EnvFailed, match=r"environment 2 .*died \(exit code -9\)"):
            envs.step(ACTION)


def test_close_does_not_wait_for_a_hung_worker(monkeypatch):
    monkeypatch.setattr("drl.envs.async_vec_env.GRACE", 0.2)
    envs = AsyncVecEnv(_fns("hang", at=1), 0, "Broken-v0")
    envs.reset()
    for pipe in envs.pipes:
        pipe.send(("step", (0, 0)))
    with pytest.warns(UserWarning, match="environment 1' could not be closed: no answer within 0.2 s"):
        envs.close()
    envs.close()


def test_an_environment_that_cannot_be_made_leaves_no_workers():
    def broken():
        raise RuntimeError("no such simulator")

    with pytest.raises(EnvFailed, match=r"no such simulator|EOFError|reset by peer"):
        AsyncVecEnv([broken, broken], 0, "Broken-v0")
    parent = os.getpid()

    def broken_in_the_worker():
        if os.getpid() != parent:
            os._exit(3)
        return FailingEnv("never")

    with pytest.raises(EnvFailed, match="Broken-v0"):
        AsyncVecEnv([broken_in_the_worker] * 2, 0, "Broken-v0")


def test_a_wrong_shape_is_not_broadcast():
    with SyncVecEnv(_fns("shape"), 0) as envs, pytest.raises(EnvFailed, match=r"environment 1 .*\(1,\).*\(2,\)"):
        envs.reset()


def test_a_vector_env_that_raises():
    env = SyncVectorEnv(_fns("raise"), autoreset_mode=AutoresetMode.SAME_STEP)
    with wrap_vector_env(env) as envs, pytest.raises(EnvFailed, match="the wheel came off"):
        _run(envs)
