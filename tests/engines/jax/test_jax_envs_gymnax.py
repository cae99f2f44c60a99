"""The gymnax adapter against gymnax itself."""

import importlib
import sys
from functools import partial

import jax
import numpy as np
import pytest

from drl.agents.watch import film, watch
from drl.core.errors import BadInput, MissingExtra
from drl.engines.jax.envs import make_jax_env, step_and_reset
from drl.settings.presets import list_presets, load_preset

pytestmark = pytest.mark.full
gymnax = pytest.importorskip("gymnax")

ENVS, STEPS = 16, 120


def test_minatar_breakout_moves_as_in_gymnax():
    env = make_jax_env("gymnax:Breakout-MinAtar", {"max_steps_in_episode": 40})
    theirs, params = gymnax.make("Breakout-MinAtar")
    params = params.replace(max_steps_in_episode=40)
    first, noise = env.draw(jax.random.key(0), (ENVS,)), env.draw(jax.random.key(1), (STEPS, ENVS))
    actions = jax.random.randint(jax.random.key(2), (STEPS, ENVS), 0, 3)

    def body(state, inputs):
        after, step = step_and_reset(env, state, *inputs)
        # What gymnax's own rules say of one environment after the other, from the same state, action and key.
        truth = jax.lax.map(lambda row: theirs.step_env(*row, params)[:4], (inputs[1].step, state.inner, inputs[0]))
        return after, (step, truth)

    # Whole numbers cannot be rounded otherwise, so compile in a third of the time.
    unoptimized = partial(jax.jit, compiler_options={"xla_backend_optimization_level": "0"})
    run = unoptimized(lambda first: jax.lax.scan(body, env.reset(first.reset), (actions, noise)))
    step, (obs, inner, reward, terminated) = jax.tree.map(np.asarray, run(first)[1])
    assert np.array_equal(step.next_obs, np.moveaxis(obs, -1, 2))
    assert np.array_equal(step.reward, reward)
    assert np.array_equal(step.terminated, terminated)
    assert np.array_equal(step.truncated, (inner.time >= 40) & ~terminated)
    assert step.success is None  # it does not say
    assert step.terminated.any()
    ended = step.terminated | step.truncated
    assert np.array_equal(step.obs[~ended], step.next_obs[~ended])
    assert (step.obs[ended][:, 3].sum(axis=(1, 2)) == 30).all()  # all bricks are back


def test_specs():
    env = make_jax_env("gymnax:Breakout-MinAtar")
    assert (env.obs_spec.shape, env.action_spec.sizes, env.max_steps) == ((4, 10, 10), (3,), 1000)
    image = np.random.default_rng(0).random((2, 10, 10, 4), np.float32)
    assert np.array_equal(env._encode(image), env.obs_spec.encode(image))
    assert env == make_jax_env("gymnax:Breakout-MinAtar")
    full = make_jax_env("gymnax:Breakout-MinAtar", {"use_minimal_action_set": False})
    assert full.action_spec.sizes == (6,)
    pendulum = make_jax_env("gymnax:Pendulum-v1")
    assert pendulum.action_spec == make_jax_env("Pendulum-v1").action_spec
    assert pendulum.obs_spec == make_jax_env("Pendulum-v1").obs_spec
    assert make_jax_env("gymnax:FrozenLake-misc").obs_spec.shape == (16,)


@pytest.mark.parametrize("name", ["Pendulum-v1", "FrozenLake-misc", "Asterix-MinAtar", "DeepSea-bsuite", "Pong-misc"])
def test_other_environments_scan(name):
    """Boxes as actions, whole numbers as observations, changing dtypes: what comes out looks like what went in."""
    env = make_jax_env(f"gymnax:{name}")
    action = np.zeros((4, *env.action_spec.policy_shape), np.float32 if env.action_spec.shape else np.int32)

    def run(key):
        noise = env.draw(key, (30, 4))
        state = env.reset(noise.reset[0])
        return jax.lax.scan(lambda state, now: step_and_reset(env, state, action, now), state, noise)[1]

    step = jax.eval_shape(run, jax.random.key(0))  # traced, not compiled
    assert step.next_obs.shape == (30, 4, *env.obs_spec.shape)
    assert step.next_obs.dtype == env.obs_spec.dtype


@pytest.mark.parametrize(
    ("env_id", "arguments", "words"),
    [
        ("gymnax:Breakout", {}, ["knows no 'Breakout'", "'Breakout-MinAtar'"]),
        ("gymnax:Breakout-MinAtar", {"speed": 2}, ["'speed'", "max_steps_in_episode"]),
        ("gymnax:Breakout-MinAtar", {"levels": [1, 2]}, ["levels = [1, 2]"]),
    ],
)
def test_what_cannot_be_honored_is_refused(env_id, arguments, words):
    with pytest.raises(BadInput) as caught:
        make_jax_env(env_id, arguments)
    assert [word for word in words if word not in str(caught.value)] == []


def test_without_gymnax_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", None)
    with pytest.raises(MissingExtra, match=r"drl-workshop\[gymnax\]"):
        make_jax_env("gymnax:Breakout-MinAtar")


def test_an_old_gymnax_is_refused(monkeypatch):
    environment = importlib.import_module("gymnax.environments.environment")
    monkeypatch.delattr(environment.Environment, "is_truncated")
    with pytest.raises(BadInput, match=r"gymnax>=1\.0"):
        make_jax_env("gymnax:Breakout-MinAtar")


def test_gymnax_envs_have_a_preset_and_are_not_watched(tmp_path):
    assert load_preset("ppo", "gymnax:Breakout-MinAtar")["engine"] == "jax"
    assert ("ppo", "gymnax:Breakout-MinAtar") in list_presets()
    assert film(None, "gymnax:Breakout-MinAtar", tmp_path / "film.mp4") is None
    with pytest.raises(BadInput, match="cannot be watched"):
        watch(None, "gymnax:Breakout-MinAtar", "ansi", 1, 0)
