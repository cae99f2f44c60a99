"""Attributes and methods of environments, from outside, in every vectorization; numbers of the last infos."""

import functools
import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit, TransformReward
from roster_game import Roster
from vec_envs_under_test import FakePool

from drl.core.contracts import repeat_changes
from drl.core.errors import BadInput, EnvFailed
from drl.core.state_files import read_state, write_state
from drl.envs.async_vec_env import AsyncVecEnv
from drl.envs.env_attributes import restored, stored, stored_or_lost
from drl.envs.env_wrappers import StackedVecEnv
from drl.envs.episode_stats import MOST_NUMBERS, info_of, numbers_in
from drl.envs.make_vec_env import make_vec_env
from drl.envs.native_vec_env import EnvPoolVecEnv, NativeVecEnv
from drl.envs.sync_vec_env import SyncVecEnv


class Level(gym.Env):
    """Episodes of 2 · level steps; the observation shows the level, the last info the coins."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        self.level, self.bonus, self.steps, self.locked = 1, {"gold": 0.0}, 0, object()

    @property
    def twice(self):
        return 2 * self.level

    def raise_level(self, by=1):
        self.level += by

    def where(self, scale=1):
        return scale * self.steps

    def fail(self):
        raise RuntimeError("the wheel came off")

    def _obs(self):
        return np.array([self.level, self.steps, self.np_random.random()], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        over = self.steps >= 2 * self.level
        info = {"coins": self.steps, "won": self.level > 1, "name": "level"} if over else {"secret": 1}
        return self._obs(), float(action) + self.bonus["gold"], over, False, info


def wrapped():
    return TransformReward(TimeLimit(Level(), 50), float)


def single(kind, count=2):
    return kind([wrapped] * count, seed=3, env_id="Level-v0")


def native(count=2):
    vector = SyncVectorEnv([wrapped] * count, autoreset_mode=AutoresetMode.SAME_STEP)
    return NativeVecEnv(vector, seed=3, env_id="Level-v0")


KINDS = {
    "sync": functools.partial(single, SyncVecEnv),
    "async": functools.partial(single, AsyncVecEnv),
    "native": native,
    "stacked": lambda: StackedVecEnv(single(SyncVecEnv), 2),
}
anywhere = pytest.mark.parametrize("kind", KINDS)
ONE = np.ones(2, np.int64)


@anywhere
def test_get_set_and_call_reach_every_environment(kind):
    with KINDS[kind]() as envs:
        envs.reset()
        envs.step(ONE)
        assert envs.get("level") == [1, 1]
        assert envs.get("twice") == [2, 2]
        envs.set("level", 3)
        assert envs.get("level") == [3, 3]
        assert envs.get("_max_episode_steps") == [50, 50]
        assert envs.call("where", 10) == envs.call("where", scale=10) == [10, 10]
        assert envs.call("raise_level", by=2) == [None, None]
        assert envs.get("level") == [5, 5]
        assert envs.step(ONE).obs.reshape(2, -1)[:, -3].tolist() == [5.0, 5.0]  # at once


@anywhere
def test_what_is_not_there_is_refused_by_name_and_nothing_is_changed(kind):
    with KINDS[kind]() as envs:
        envs.reset()
        for attempt in (
            lambda: envs.get("levle"),
            lambda: envs.set("levle", 3),
            lambda: envs.call("levle"),
            lambda: envs.get("__class__"),
        ):
            with pytest.raises(BadInput, match=r"levle|__class__"):
                attempt()
        assert envs.changes == []
        envs.step(ONE)  # it is not broken


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_method_cannot_be_set_and_a_number_not_be_called(kind):
    with KINDS[kind]() as envs:
        envs.reset()
        for name, said in (("raise_level", "use call"), ("step", "use call"), ("twice", "cannot be set")):
            with pytest.raises(BadInput, match=said):
                envs.set(name, 3)
        with pytest.raises(BadInput, match="not a method"):
            envs.call("level")
        with pytest.raises(BadInput, match="did you mean 'level'"):
            envs.get("leve")
        assert envs.get("level") == [1, 1]


def test_what_cannot_cross_a_process_is_refused_and_the_workers_go_on():
    with KINDS["async"]() as envs:
        envs.reset()
        with pytest.raises(BadInput, match="cannot be sent"):
            envs.set("level", (n for n in range(3)))
        envs.set("bonus", {"gold": 2.0, "rule": lambda: 3})  # functions travel
        assert envs.step(ONE).reward.tolist() == [3.0, 3.0]


@anywhere
def test_a_method_that_raises_is_a_failure_of_the_environment(kind):
    with KINDS[kind]() as envs:
        envs.reset()
        with pytest.raises(EnvFailed, match="the wheel came off"):
            envs.call("fail")


@anywhere
def test_every_environment_has_its_own_copy_of_a_value(kind):
    if kind == "native":
        pytest.skip("Gymnasium's vector environment shares it")
    value = {"gold": 1.0}
    with KINDS[kind]() as envs:
        envs.reset()
        envs.set("bonus", value)
        value["gold"] = 9.0
        assert envs.step(ONE).reward.tolist() == [2.0, 2.0]
        first, second = envs.get("bonus")
        assert first == second
        assert first is not second


@pytest.mark.default("*-sync", "*-native", "0-async")
@anywhere
@pytest.mark.parametrize("steps", [0, 1, 3, 5])
def test_a_stored_state_continues_with_what_was_set(kind, steps, tmp_path):
    """Set before the first episode, in the middle of one, and twice."""
    with KINDS[kind]() as envs, KINDS[kind]() as again:
        envs.set("level", 2)
        envs.reset()
        for count in range(steps):
            if count == 2:
                envs.set("bonus", {"gold": 4.0})
                envs.set("level", 3)
            envs.step(ONE)
        if steps == 5:
            envs.set("level", 4)
        write_state(tmp_path / "state", envs.state_dict())
        why = again.load_state_dict(read_state(tmp_path / "state"))
        assert again.get("level") == envs.get("level")
        assert again.get("bonus") == envs.get("bonus")
        if kind == "native":
            return  # a vector environment of Gymnasium cannot go back into its episodes
        assert why is None
        for _ in range(9):
            one, two = envs.step(ONE), again.step(ONE)
            np.testing.assert_array_equal(one.obs, two.obs)
            np.testing.assert_array_equal(one.reward, two.reward)
            assert [e[:5] for e in one.episodes] == [e[:5] for e in two.episodes]
            assert [e.played for e in one.episodes] == [e.played for e in two.episodes]


@pytest.mark.default("sync")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_no_file_can_hold_makes_a_resume_inexact(kind):
    for change, said in (
        (lambda envs: envs.set("locked", Level), "which no file can hold"),
        (lambda envs: envs.call("raise_level"), r"raise_level\(\) was called"),
    ):
        with KINDS[kind]() as envs, KINDS[kind]() as again:
            envs.reset()
            envs.set("bonus", {"gold": 4.0})
            change(envs)
            envs.step(ONE)
            why = again.load_state_dict(envs.state_dict())
            assert why is not None
            assert re.search(said, why)
            assert again.get("bonus") == [{"gold": 4.0}] * 2  # the rest is set


@anywhere
def test_other_environments_repeat_the_changes(kind):
    with KINDS[kind]() as envs, single(SyncVecEnv) as others:
        envs.reset()
        envs.set("level", 3)
        envs.call("raise_level", by=4)
        assert envs.call("where") == [0, 0]  # it returns something: it is not repeated
        envs.set("bonus", {"gold": 1.0})
        assert [change.name for change in envs.changes] == ["level", "raise_level", "bonus"]
        repeat_changes(envs.changes, others)
        assert others.get("level") == [7, 7]
        assert others.get("bonus") == [{"gold": 1.0}] * 2


def test_old_values_are_forgotten():
    with KINDS["sync"]() as envs:
        envs.reset()
        for level in range(2, 60):
            envs.set("level", 1 + level % 2)
            for _ in range(5):
                envs.step(ONE)
        assert len(envs.changes) < 10


def test_a_time_limit_that_is_set_counts():
    with KINDS["sync"]() as envs:
        envs.set("level", 40)
        envs.reset()
        envs.set("_max_episode_steps", 3)
        lengths = [episode.length for _ in range(6) for episode in envs.step(ONE).episodes]
        assert lengths == [3, 3, 3, 3]


class Paid(Roster):
    """What a round pays is an attribute; the last infos have it."""

    pay = 0.0

    def raise_pay(self):
        self.pay += 1.0

    def step(self, actions):
        seen, rewards, *flags, infos = super().step(actions)
        return (
            seen,
            {name: reward + self.pay for name, reward in rewards.items()},
            *flags,
            {name: info | {"pay": self.pay} for name, info in infos.items()},
        )


def test_games_of_several_agents_are_reached_and_continue(tmp_path):
    with make_vec_env(Paid, num_envs=2, seed=3) as envs, make_vec_env(Paid, num_envs=2, seed=3) as again:
        assert envs.get("pay") == [0.0, 0.0]  # one for each copy
        envs.set("pay", 5.0)
        envs.reset()
        action = np.zeros(6, np.int64)
        for count in range(7):
            if count == 6:
                envs.set("pay", 7.0)  # in the second round of the second game
            step = envs.step(action)
        assert step.reward[:2].tolist() == [27.0, 27.0]
        assert {episode.info["pay"] for episode in step.episodes} == {7.0}
        write_state(tmp_path / "state", envs.state_dict())
        assert again.load_state_dict(read_state(tmp_path / "state")) is None
        assert again.get("pay") == [7.0, 7.0]
        for _ in range(6):
            one, two = envs.step(action), again.step(action)
            np.testing.assert_array_equal(one.obs, two.obs)
            np.testing.assert_array_equal(one.reward, two.reward)
        envs.call("raise_pay")
        assert envs.get("pay") == [8.0, 8.0]
        assert [change.name for change in envs.changes][-1] == "raise_pay"
        with pytest.raises(BadInput, match=r"copy 0 of .* has no attribute 'pai'"):
            envs.get("pai")


def test_compiled_environments_refuse_by_name():
    pool = EnvPoolVecEnv(lambda seed: FakePool(2), seed=0, env_id="Pong-v5")
    for attempt in (lambda: pool.get("level"), lambda: pool.set("level", 1), lambda: pool.call("level")):
        with pytest.raises(BadInput, match=r"EnvPool.*env_kwargs"):
            attempt()
    pytest.importorskip("jax")
    from drl.engines.jax.envs import HostedVecEnv, make_jax_env

    with (
        HostedVecEnv(make_jax_env("CartPole-v1", {}), 2, 0, "CartPole-v1") as envs,
        pytest.raises(BadInput, match=r"cannot set 'gravity' of 'CartPole-v1': it is a compiled program"),
    ):
        envs.set("gravity", 3.0)


@anywhere
def test_the_numbers_of_the_last_info_are_on_the_episode(kind):
    with KINDS[kind]() as envs:
        envs.reset()
        found = [episode for _ in range(4) for episode in envs.step(ONE).episodes]
        assert [dict(episode.info) for episode in found] == [{"coins": 2.0, "won": 0.0}] * 4


def test_only_numbers_count():
    class Odd(dict):
        def items(self):
            raise RuntimeError("no")

    info = {
        "a": np.float32(2), "b": True, "c": "x", "d": [1], "e": np.ones(3), "f": float("nan"), "g": None, 7: 1, "": 2,
        "_h": 3, "TimeLimit.truncated": True, "i": np.array(4), "j": 1 + 2j, "k": 10**400, "action_mask": 1, "a\nb": 1,
    }  # fmt: skip
    assert numbers_in(info) == {"a": 2.0, "b": 1.0, "i": 4.0}
    assert numbers_in(None) == numbers_in(Odd()) == {}
    assert len(numbers_in({f"n{i}": i for i in range(5000)})) == MOST_NUMBERS


def test_masked_values_of_a_vector_environment_are_missing():
    infos = {"coins": np.array([1.0, 2.0]), "_coins": np.array([True, False]), "won": np.array([0, 1]), "all": 3}
    assert numbers_in(info_of(infos, 0)) == {"coins": 1.0, "won": 0.0}
    assert numbers_in(info_of(infos, 1)) == {"won": 1.0}


def test_values_are_stored_as_they_are():
    value = {"a": (1, [2.5, None]), 3: np.arange(4, dtype=np.int8), "b": float("inf"), "c": np.float32(0.1), "d": "x"}
    again = restored(stored(value))
    assert list(again) == list(value)
    assert again["a"] == (1, [2.5, None])
    assert again["b"] == float("inf")
    assert again[3].dtype == np.int8
    assert again[3].tolist() == [0, 1, 2, 3]
    assert type(again["c"]) is np.float32
    assert again["c"] == value["c"]
    assert stored_or_lost({"x": {1, 2}}) == ["lost", "a set was set, which no file can hold"]
    assert stored_or_lost(np.zeros(1 << 20))[0] == "lost"
    loop = []
    loop.append(loop)
    assert stored_or_lost(loop)[0] == "lost"
    for wrong in (["array", ["|O8", [1], "AAAAAAAAAAA="]], ["code", 1], ["array", ["<f4", [9], "AAAA"]]):
        with pytest.raises(ValueError, match=r"type|kind|reshape|size|buffer"):
            restored(wrong)
