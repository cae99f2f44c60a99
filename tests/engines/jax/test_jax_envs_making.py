"""Names and arguments of JAX-native environments are honored or refused, with a way out."""

import pytest

from drl.core.errors import BadInput
from drl.engines.jax.envs import JAX_ENVS, has_jax_env, make_jax_env


@pytest.mark.parametrize("env_id", JAX_ENVS)
def test_every_envs_of_the_table_is_made(env_id):
    env = make_jax_env(env_id)
    assert has_jax_env(env_id)
    assert hash(env) == hash(make_jax_env(env_id))


def test_versions_differ_in_their_time_limit():
    assert (make_jax_env("CartPole-v0").max_steps, make_jax_env("CartPole-v1").max_steps) == (200, 500)


@pytest.mark.parametrize(
    ("env_id", "arguments", "words"),
    [
        ("CartPole-v2", {}, ["did you mean 'CartPole-v1' or 'CartPole-v0'", "gymnax:NAME", "make_vec_env"]),
        ("LunarLander-v3", {}, ["Pendulum-v1", "MovieRec-v1", "make_vec_env"]),
        ("CartPole-v1", {"gravity": 1.6}, ["'gravity'", "'max_episode_steps', 'sutton_barto_reward'"]),
        ("Pendulum-v1", {"render_mode": "human"}, ["'render_mode'", "'g'"]),
        ("Pendulum-v1", {"g": "heavy"}, ["g = 'heavy'", "finite number"]),
        ("CartPole-v1", {"max_episode_steps": 0}, ["max_episode_steps = 0", "-1"]),
        ("CartPole-v1", {"max_episode_steps": None}, ["max_episode_steps = None", "-1"]),
        ("CartPole-v1", {"sutton_barto_reward": 1}, ["sutton_barto_reward = 1", "true or false"]),
        ("MountainCar-v0", {"goal_velocity": True}, ["goal_velocity = True"]),
        ("MovieRec-v1", {"max_session_length": 0}, ["max_session_length = 0"]),
        ("MovieRec-v1", {"max_session": 3}, ["did you mean 'max_session_length'"]),
    ],
)
def test_what_cannot_be_honored_is_refused(env_id, arguments, words):
    with pytest.raises(BadInput) as caught:
        make_jax_env(env_id, arguments)
    assert [word for word in words if word not in str(caught.value)] == []
