"""Names, numbers and vectorizations: honored or refused."""

import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs import _raise_mujoco_py_error
from gymnasium.envs.registration import EnvSpec

from drl.core.errors import BadInput, MissingExtra
from drl.envs import make_vec_env as making
from drl.envs.env_config import find_spec
from drl.envs.make_vec_env import NATIVE_FROM, make_env, make_vec_env
from drl.envs.native_vec_env import wrap_vector_env
from drl.games.probes import CountingVectorEnv
from drl.games.registry import ENVS, register_envs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": "CartPol-v1"}, r"'CartPol-v1'.*did you mean 'CartPole-v"),
        ({"env": "cartpole-v1"}, r"did you mean 'CartPole-v"),
        ({"env": "no_such_module:Thing-v0"}, "cannot import 'no_such_module'"),
        ({"env": "not an id", "vectorization": "envpool"}, "not an environment id"),
        ({"env": "not an id"}, "knows no environment 'not an id'"),
        ({"env": object}, "expected a Gymnasium environment"),
        ({"env": "CartPole-v1", "num_envs": 0}, "num_envs = 0; expected a whole number"),
        ({"env": "CartPole-v1", "num_envs": 2.0}, "num_envs = 2.0"),
        ({"env": "CartPole-v1", "frame_stack": 0}, "frame_stack = 0"),
        ({"env": "CartPole-v1", "seed": -1}, "seed = -1"),
        ({"env": "CartPole-v1", "timeout": 0}, "timeout = 0"),
        ({"env": "CartPole-v1", "vectorization": "asink"}, "unknown vectorization 'asink': did you mean"),
        ({"env": "Pendulum-v1", "vectorization": "native"}, "no vector form"),
        ({"env": "CartPole-v1", "env_kwargs": {"wheels": 4}}, r"cannot make 'CartPole-v1'.*wheels"),
        ({"env": "CartPole-v1", "env_kwargs": {"wheels": 4}, "vectorization": "native"}, "wheels"),
        ({"env": "CartPole-v1", "env_kwargs": {"wheels": 4}, "vectorization": "async"}, "wheels"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(BadInput, match=message):
        make_vec_env(**arguments)


@pytest.mark.full
def test_envpool_without_the_id():
    with pytest.raises(BadInput, match="EnvPool has no environment 'drl/Counting-v0'"):
        make_vec_env("drl/Counting-v0", vectorization="envpool")


def test_envpool_does_not_render():
    with pytest.raises(BadInput, match="takes no render_mode"):
        make_vec_env("CartPole-v1", vectorization="envpool", render_mode="rgb_array")


def test_envpool_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(MissingExtra, match=r"drl-workshop\[envpool\]"):
        make_vec_env("CartPole-v1", vectorization="envpool")


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [
        ("LunarLander-v3", "Box2D", "box2d"),
        ("HalfCheetah-v5", "mujoco", "mujoco"),
        ("ALE/NoSuchGame-v5", "ale_py", "atari"),
    ],
)
def test_a_missing_package_names_its_extra(monkeypatch, env_id, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    for loaded in [name for name in sys.modules if name.startswith(("gymnasium.envs.box2d", "gymnasium.envs.mujoco"))]:
        monkeypatch.delitem(sys.modules, loaded)
    with pytest.raises(MissingExtra, match=rf"drl-workshop\[{extra}\]"):
        make_vec_env(env_id)


def test_ids_with_a_module_and_without_a_version():
    assert find_spec("gymnasium:CartPole-v1").id == "CartPole-v1"
    assert find_spec("CartPole").id == "CartPole-v1"


def test_auto_takes_the_native_form_only_where_it_is_faster():
    for count, vectorization in ((1, "sync"), (NATIVE_FROM - 1, "sync"), (NATIVE_FROM, "native")):
        with make_vec_env("CartPole-v1", count) as envs:
            assert envs.vectorization == vectorization
    with make_vec_env("CartPole-v1", NATIVE_FROM, render_mode="rgb_array") as envs:
        assert envs.vectorization == "sync"


def test_auto_takes_processes_only_for_slow_steps_and_several_cores(monkeypatch):
    monkeypatch.setattr(making, "_cores", lambda: 2)
    monkeypatch.setattr(making, "_step_seconds", lambda order: 1.0)
    for count, vectorization in ((1, "sync"), (2, "async")):
        with make_vec_env("Pendulum-v1", count) as envs:
            assert envs.vectorization == vectorization
    monkeypatch.setattr(making, "_cores", lambda: 1)
    with make_vec_env("Pendulum-v1", 2) as envs:
        assert envs.vectorization == "sync"


def test_the_time_limit_can_be_changed():
    for vectorization in ("sync", "native"):
        with make_vec_env("CartPole-v1", 1, vectorization=vectorization, env_kwargs={"max_episode_steps": 3}) as envs:
            envs.reset()
            cuts = [bool(envs.step(np.array([t % 2])).truncated[0]) for t in range(3)]
            assert cuts == [False, False, True]


def test_registration_is_idempotent_and_every_env_runs():
    register_envs()
    register_envs()
    for env_id in ENVS:
        with make_vec_env(env_id, 2, vectorization="sync") as envs:
            envs.reset()
            space = envs.envs[0].action_space
            legal = [None, None] if envs.action_mask is None else envs.action_mask.astype(np.int8)
            step = envs.step(np.array([space.sample(mask) for mask in legal]))
            assert step.next_obs.shape == (2, *envs.obs_spec.shape)


def test_steps_need_a_reset_and_one_action_per_env():
    with make_vec_env("CartPole-v1", 2) as envs:
        with pytest.raises(BadInput, match=r"call environment.reset\(\)"):
            envs.step(np.array([0, 0]))
        envs.reset()
        with pytest.raises(BadInput, match="got 3 actions for 2 environments"):
            envs.step(np.array([0, 0, 0]))
        with (
            make_vec_env("CartPole-v1", 3) as other,
            pytest.raises(BadInput, match="state is of 2 environments, not 3"),
        ):
            other.load_state_dict(envs.state_dict())


def test_a_vector_env_that_does_not_say_how_it_resets_is_refused():
    env = CountingVectorEnv(2)
    env.metadata = {}
    with pytest.raises(BadInput, match="autoreset_mode"):
        wrap_vector_env(env)


def test_make_single_renders_and_stacks():
    env = make_env("CartPole-v1", "rgb_array", frame_stack=3)
    obs, _ = env.reset(seed=1)
    assert obs.shape == env.observation_space.shape == (12,)
    assert env.render().ndim == 3
    env.close()
    assert isinstance(make_env("CartPole-v1"), gym.Env)


@pytest.mark.parametrize(
    ("env_id", "said"),
    [
        ("LunarLander-v2", "Please use `LunarLander-v3` instead"),
        ("CartPole-v7", r"doesn't exist. It provides versioned environments: \[ `v0`, `v1` \]"),
        ("Ant-v2", r"moved to the gymnasium-robotics project .* Its newest version here is 'Ant-v5'"),
        ("CartPol-v1", "did you mean 'CartPole-v1'"),
    ],
)
def test_old_ids_get_the_advice_of_gymnasium(monkeypatch, env_id, said):
    moved = EnvSpec("Ant-v2", entry_point=_raise_mujoco_py_error)  # Gymnasium-Robotics puts its own in its place
    monkeypatch.setitem(gym.registry, "Ant-v2", moved)
    with pytest.raises(BadInput, match=said) as caught:
        make_vec_env(env_id)
    assert "\n" not in str(caught.value)
