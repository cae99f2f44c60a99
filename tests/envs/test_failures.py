"""When a user's world breaks, we say which one, when and why, and leave no process behind."""

import functools
import multiprocessing
import os
import signal

import numpy as np
import pytest
from engines_under_test import FailingEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from drl.core.errors import NonFinite, WorldFailed
from drl.envs.async_world import AsyncWorld
from drl.envs.native_world import wrap_vector_env
from drl.envs.probes import CountingEnv
from drl.envs.sync_world import SyncWorld

ACTION = np.zeros(3, np.int64)


def _fns(how, at=3):
    """World 1 of three fails."""
    fine = functools.partial(FailingEnv, "never")
    return [fine, functools.partial(FailingEnv, how, at), fine]


def _engines(how, timeout=20.0):
    yield SyncWorld(_fns(how), 0, "Broken-v0")
    yield AsyncWorld(_fns(how), 0, "Broken-v0", timeout=timeout)


def _run(world, steps=5):
    world.reset()
    for _ in range(steps):
        world.step(ACTION)


@pytest.fixture(autouse=True)
def _nobody_is_left_behind():
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize(("how", "said"), [("raise", "the wheel came off"), ("reset", "no way back")])
def test_an_exception_names_the_world(how, said):
    for world in _engines(how):
        with (
            world,
            pytest.raises(
                WorldFailed,
                match=rf"'Broken-v0', world 1 failed after 6 steps: Unpicklable: {said}|"
                rf"'Broken-v0', world 1 failed after 9 steps: Unpicklable: {said}",
            ),
        ):
            _run(world)


def test_sync_keeps_the_original_error():
    with SyncWorld(_fns("raise"), 0) as world, pytest.raises(WorldFailed) as caught:
        _run(world)
    assert type(caught.value.__cause__).__name__ == "Unpicklable"


@pytest.mark.parametrize("how", ["nan", "inf"])
def test_a_non_finite_reward_is_refused(how):
    native = wrap_vector_env(SyncVectorEnv(_fns(how), autoreset_mode=AutoresetMode.DISABLED))
    native.book.env_id = "Broken-v0"
    for world in (*_engines(how), native):
        with world, pytest.raises(NonFinite, match=rf"'Broken-v0', world 1: reward {how} at step 3"):
            _run(world)


def test_huge_but_finite_rewards_pass():
    world = SyncWorld([CountingEnv] * 2, 0)
    world.book.add(np.array([1.7e308, 1.7e308]))
    assert world.book.env_steps == 2


def test_a_hung_worker_is_given_up():
    with AsyncWorld(_fns("hang"), 0, "Broken-v0", timeout=0.5) as world:
        with pytest.raises(WorldFailed, match=r"'Broken-v0', world 1 .*no answer within 0.5 s"):
            _run(world)
        with pytest.raises(WorldFailed, match="closed"):
            world.step(ACTION)


def test_a_worker_that_exits_is_reported():
    with (
        AsyncWorld(_fns("die"), 0, "Broken-v0") as world,
        pytest.raises(WorldFailed, match=r"'Broken-v0', world 1 .*died \(exit code 7\)"),
    ):
        _run(world)


def test_a_worker_that_is_killed_is_reported():
    with AsyncWorld(_fns("never"), 0, "Broken-v0") as world:
        world.reset()
        process = world._vector.processes[2]
        os.kill(process.pid, signal.SIGKILL)
        process.join(5)
        with pytest.raises(WorldFailed, match=r"world 2 .*died \(exit code -9\)"):
            world.step(ACTION)


def test_close_does_not_wait_for_a_hung_worker(monkeypatch):
    monkeypatch.setattr("drl.envs.async_world.GRACE", 0.2)
    world = AsyncWorld(_fns("hang", at=1), 0, "Broken-v0")
    world.reset()
    world._vector.step_async(ACTION)
    world.close()
    world.close()


def test_an_environment_that_cannot_be_made_leaves_no_workers():
    def broken():
        raise RuntimeError("no such simulator")

    with pytest.raises(WorldFailed, match=r"no such simulator|EOFError|reset by peer"):
        AsyncWorld([broken, broken], 0, "Broken-v0")
    parent = os.getpid()

    def broken_in_the_worker():
        if os.getpid() != parent:
            os._exit(3)
        return FailingEnv("never")

    with pytest.raises(WorldFailed, match="Broken-v0"):
        AsyncWorld([broken_in_the_worker] * 2, 0, "Broken-v0")


def test_a_wrong_shape_is_not_broadcast():
    with SyncWorld(_fns("shape"), 0) as world, pytest.raises(WorldFailed, match=r"world 1 .*\(1,\).*\(2,\)"):
        world.reset()


def test_a_vector_env_that_raises():
    env = SyncVectorEnv(_fns("raise"), autoreset_mode=AutoresetMode.SAME_STEP)
    with wrap_vector_env(env) as world, pytest.raises(WorldFailed, match="the wheel came off"):
        _run(world)
