"""The Brax adapter: Brax's rules, our time limit and resets."""

import json
import sys
from functools import partial

import jax
import numpy as np
import pytest

from drl.agents.watch import film, watch
from drl.cli.entry import main
from drl.core.errors import BadInput, MissingExtra
from drl.engines.jax.envs import has_jax_env, make_jax_env, step_and_reset

pytestmark = pytest.mark.full

PENDULUM, LIMIT = "brax:inverted_pendulum", 20
STEPS, ENVS = 60, 8


@pytest.fixture(scope="module")
def play():
    """Random play from a key: the steps of inverted pendulums, compiled once."""
    env = make_jax_env(PENDULUM, {"backend": "spring", "max_episode_steps": LIMIT})  # the quickest one to compile

    # Nothing here depends on rounding, so compile in two thirds of the time.
    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": "0"})
    def run(key):
        noise = env.draw(key, (STEPS, ENVS))
        push = 3 * jax.random.normal(key, (STEPS, ENVS, 1))
        state = env.reset(noise.reset[0])
        _, steps = jax.lax.scan(lambda state, x: step_and_reset(env, state, *x), state, (push, noise))
        return env.observe(state), steps

    return lambda seed: jax.tree.map(np.asarray, run(jax.random.key(seed)))


def test_episodes_terminate_as_brax_says_and_are_cut_at_our_limit(play):
    first, step = play(0)
    assert (step.reward == 1).all()
    assert np.array_equal(step.terminated, abs(step.next_obs[..., 1]) > 0.2)  # Brax's rule, on the true successor
    age = np.zeros(ENVS, int)
    for terminated, truncated in zip(step.terminated, step.truncated, strict=True):
        age += 1
        assert np.array_equal(truncated, (age >= LIMIT) & ~terminated)
        age[terminated | truncated] = 0
    assert step.terminated.any()
    assert step.truncated.any()
    assert step.success is None
    ended = step.terminated | step.truncated
    assert np.array_equal(step.obs[~ended], step.next_obs[~ended])
    assert (abs(step.obs[ended]) <= 0.0101).all()  # Brax's reset: uniform noise of 0.01
    assert (abs(first) <= 0.0101).all()
    assert (abs(step.next_obs[step.truncated]).max(axis=1) > 0.0101).all()  # the true successor, not a reset
    assert len(np.unique(step.obs[ended], axis=0)) == ended.sum()  # every reset has its own noise


def test_the_same_key_plays_the_same(play):
    for one, other in zip(jax.tree.leaves(play(1)), jax.tree.leaves(play(1)), strict=True):
        assert np.array_equal(one, other)
    assert not np.array_equal(play(1)[0], play(2)[0])


@pytest.mark.parametrize(
    ("name", "obs", "actions"),
    [("inverted_pendulum", 4, 1), ("halfcheetah", 17, 6)],
)
def test_specs(name, obs, actions):
    env = make_jax_env(f"brax:{name}")
    assert (env.obs_spec.shape, env.obs_spec.dtype, env.max_steps) == ((obs,), np.float32, 1000)
    spec = env.action_spec
    assert (spec.kind, spec.shape, spec.low, spec.high) == ("box", (actions,), (-1.0,) * actions, (1.0,) * actions)


def test_environments_are_static_arguments():
    one, same = (make_jax_env("brax:fast", {"max_episode_steps": -1}) for _ in range(2))
    assert one.max_steps is None
    assert (one, hash(one)) == (same, hash(same))
    assert one != make_jax_env("brax:fast")
    assert has_jax_env("brax:fast")


@pytest.mark.parametrize(
    ("env_id", "arguments", "words"),
    [
        ("brax:half_cheetah", {}, ["knows no 'half_cheetah'", "did you mean 'halfcheetah'"]),
        ("brax:swimmer", {}, ["needs an older jax"]),
        ("brax:inverted_pendulum", {"backend": "bullet"}, ["brax:inverted_pendulum", "'bullet'", "generalized"]),
        ("brax:inverted_pendulum", {"gravity": 1.6}, ["'gravity'"]),
        ("brax:ant", {"healthy_z_range": [0, 1]}, ["healthy_z_range = [0, 1]"]),
        ("brax:fast", {"max_episode_steps": 0}, ["max_episode_steps = 0", "-1"]),
    ],
)
def test_what_cannot_be_honored_is_refused(env_id, arguments, words):
    with pytest.raises(BadInput) as caught:
        make_jax_env(env_id, arguments)
    assert [word for word in words if word not in str(caught.value)] == []


def test_observations_of_several_parts_are_refused():
    with pytest.raises(BadInput, match="expected one array"):
        make_jax_env("brax:fast", {"obs_mode": "dict_state"}).obs_spec  # noqa: B018


def test_without_brax_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "brax.envs", None)
    with pytest.raises(MissingExtra, match=r"drl-workshop\[brax\]"):
        make_jax_env("brax:ant")


def test_making_one_says_nothing_and_writes_nothing(tmp_path, monkeypatch, capfd):
    """MuJoCo warns of the cheetah's model file, on the screen and in a file of the current folder."""
    monkeypatch.chdir(tmp_path)
    make_jax_env("brax:halfcheetah")
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_train_and_evaluate(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    budget = ["--total-timesteps", "128", "--num-envs", "4", "--rollout-length", "32", "--evaluation-episodes", "2"]
    limit = ["--env-kwargs", "max_episode_steps=16", "--no-tensorboard", "--no-plots"]
    assert main(["train", "ppo", "--engine", "jax", "--env", "brax:fast", *budget, *limit, "--name", "run"]) == 0
    assert len(list(tmp_path.glob("results/run/*/agent/card.json"))) == 1
    capsys.readouterr()
    assert main(["evaluate", "results/run", "--episodes", "3", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["env"], summary["episodes"], summary["mean_length"]) == ("brax:fast", 3, 16)


def test_they_are_not_watched(tmp_path):
    assert film(None, PENDULUM, tmp_path / "film.mp4") is None
    with pytest.raises(BadInput, match="cannot be watched"):
        watch(None, PENDULUM, "ansi", 1, 0)
