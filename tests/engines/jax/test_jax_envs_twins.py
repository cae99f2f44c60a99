"""Classic control in JAX against its Gymnasium twin: same state, same action, same everything after it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from drl.core.specs import ActionSpec
from drl.engines.jax.envs import Noise, make_jax_env, step_and_reset, to_env_units
from drl.engines.jax.envs.jax_env import Timed
from drl.envs.make_vec_env import make_env, make_vec_env

ENVS, STEPS = 64, 64

# Wide ranges of every coordinate, so that ends of all kinds come up; then where a reset may put it.
PI = np.pi
WIDE = {
    "CartPole-v0": [(-2.4, 2.4), (-2, 2), (-0.2, 0.2), (-2, 2)],
    "CartPole-v1": [(-2.4, 2.4), (-2, 2), (-0.2, 0.2), (-2, 2)],
    "Acrobot-v1": [(-PI, PI), (-PI, PI), (-4, 4), (-9, 9)],
    "MountainCar-v0": [(-1.2, 0.6), (-0.07, 0.07)],
    "MountainCarContinuous-v0": [(-1.2, 0.6), (-0.07, 0.07)],
    "Pendulum-v1": [(-PI, PI), (-8, 8)],
}
START = {
    "CartPole-v0": [(-0.05, 0.05)] * 4,
    "CartPole-v1": [(-0.05, 0.05)] * 4,
    "Acrobot-v1": [(-0.1, 0.1)] * 4,
    "MountainCar-v0": [(-0.6, -0.4), (0, 0)],
    "MountainCarContinuous-v0": [(-0.6, -0.4), (0, 0)],
    "Pendulum-v1": [(-PI, PI), (-1, 1)],
}
TERMINATES = set(WIDE) - {"Pendulum-v1"}
# Compiling is what takes the time here, so most environments run once, some of them with arguments.
ARGUMENTS = [
    ("CartPole-v0", {}),
    ("CartPole-v1", {"sutton_barto_reward": True, "max_episode_steps": 70}),
    ("Acrobot-v1", {}),
    ("MountainCar-v0", {}),
    ("MountainCarContinuous-v0", {"goal_velocity": 0.03}),
    ("Pendulum-v1", {"g": 9.81}),
]


@partial(jax.jit, static_argnums=0)
def rollout(env, state, actions, noise):
    """Every step and the states around it, in one program per environment."""

    def body(state, inputs):
        after, step = step_and_reset(env, state, *inputs)
        return after, (state, step, after)

    return jax.lax.scan(body, state, (actions, noise))[1]


def policy_actions(spec, rng):
    if spec.kind == "box":
        return rng.normal(size=(STEPS, ENVS, *spec.shape)).astype(np.float32)
    return rng.integers(spec.sizes[0], size=(STEPS, ENVS)).astype(np.int32)


def spread_out(env_id, max_steps, rng):
    """Environments all over the place, each less than STEPS steps before its time limit; half of them at their last
    step."""
    low, high = np.array(WIDE[env_id]).T
    body = rng.uniform(low, high, (ENVS, len(low))).astype(np.float32)
    steps = max_steps - rng.integers(1, STEPS, ENVS)
    steps[::2] = max_steps - 1
    return Timed(body, steps.astype(np.int32))


def uniform_draws(env, shape, rng):
    """As `env.draw`, but from NumPy, which has nothing to compile."""
    shapes = jax.eval_shape(lambda key: env.draw(key, shape), jax.random.key(0))
    assert shapes.step is None
    return Noise(rng.random(shapes.reset.shape, np.float32), None)


def twin_step(twin, body, steps, action):
    """One step of the Gymnasium environment from a given state."""
    inner = twin.unwrapped
    inner.state = body.astype(np.float64)
    inner.steps_beyond_terminated = None  # CartPole's memory of having fallen
    twin._elapsed_steps = int(steps)  # TimeLimit's clock
    return twin.step(action)


@pytest.mark.default("CartPole-v0*", "Pendulum*")
@pytest.mark.parametrize(("env_id", "arguments"), ARGUMENTS, ids=lambda value: str(value))
def test_agrees_with_its_gymnasium_twin_step_by_step(env_id, arguments):
    env, rng = make_jax_env(env_id, arguments), np.random.default_rng(0)
    state, actions = spread_out(env_id, env.max_steps, rng), policy_actions(env.action_spec, rng)
    noise = uniform_draws(env, (STEPS, ENVS), rng)
    before, step, after = jax.tree.map(np.asarray, rollout(env, state, actions, noise))
    twin = make_env(env_id, env_kwargs=arguments)
    twin.reset(seed=0)
    both = False
    for t in range(STEPS):
        in_env = env.action_spec.to_env(actions[t])
        for i in range(ENVS):
            obs, reward, terminated, truncated, _ = twin_step(twin, before.body[t, i], before.steps[t, i], in_env[i])
            np.testing.assert_allclose(step.next_obs[t, i], obs, rtol=2e-5, atol=2e-5)
            np.testing.assert_allclose(step.reward[t, i], reward, rtol=2e-5, atol=2e-5)
            assert step.terminated[t, i] == terminated
            assert step.truncated[t, i] == (truncated and not terminated)
            both |= terminated and truncated
    ended = step.terminated | step.truncated
    assert step.truncated.any()
    assert step.terminated.any() == both == (env_id in TERMINATES)
    # Between episodes: nothing but the observation to act on and the state changes.
    assert np.array_equal(step.obs[~ended], step.next_obs[~ended])
    assert (after.steps[ended] == 0).all()
    assert (after.steps[~ended] == before.steps[~ended] + 1).all()
    low, high = np.array(START[env_id], np.float32).T
    assert ((low <= after.body[ended]) & (after.body[ended] <= high)).all()
    np.testing.assert_allclose(step.obs[ended], np.asarray(env.observe(Timed(after.body[ended], 0))), atol=1e-6)


@pytest.mark.parametrize("env_id", WIDE)
def test_resets_are_uniform(env_id):
    env, number = make_jax_env(env_id), 20_000
    state = env.reset(uniform_draws(env, (number,), np.random.default_rng(0)).reset)
    for column, (low, high) in zip(np.asarray(state.body).T, START[env_id], strict=True):
        width = high - low
        assert np.float32(low) <= column.min()
        assert column.max() <= np.float32(high)
        assert abs(column.mean() - (low + high) / 2) <= 4 * width / np.sqrt(12 * number)
        assert column.std() == pytest.approx(width / np.sqrt(12), rel=0.02)
    assert not np.asarray(state.steps).any()


def test_same_key_same_numbers_and_equal_envs_compile_once():
    compiled = []

    @partial(jax.jit, static_argnums=0)
    def run(env, key):
        compiled.append(env)
        noise, action = env.draw(key, (STEPS, 8)), jnp.ones(8, jnp.int32)
        state = env.reset(noise.reset[0])
        return jax.lax.scan(lambda state, now: step_and_reset(env, state, action, now), state, noise)[1].obs

    first, again, other = (np.asarray(run(make_jax_env("CartPole-v1"), jax.random.key(seed))) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert len(compiled) == 1
    assert make_jax_env("CartPole-v1") != make_jax_env("CartPole-v0")


def test_no_time_limit():
    env = make_jax_env("CartPole-v1", {"max_episode_steps": -1})
    moved = env.step(Timed(jnp.zeros((1, 4)), jnp.array([10**6])), jnp.array([1]), None)
    assert env.max_steps is None
    assert not moved.truncated[0]


@pytest.mark.parametrize("env_id", [*WIDE, "MovieRec-v1", "IteratedPrisonersDilemma-v0"])
def test_specs_are_those_of_the_twin(env_id):
    env = make_jax_env(env_id)
    with make_vec_env(env_id) as twin:
        assert env.obs_spec == twin.obs_spec
        assert env.action_spec == twin.action_spec


@pytest.mark.parametrize("env_id", WIDE)
def test_defaults_are_those_of_the_twin(env_id):
    env, twin = make_jax_env(env_id), make_env(env_id)
    assert env.max_steps == twin.spec.max_episode_steps
    for name in ("g", "goal_velocity", "sutton_barto_reward"):
        default = getattr(env, name, None)
        assert default == getattr(twin.unwrapped, name, getattr(twin.unwrapped, f"_{name}", None))


@pytest.mark.parametrize(
    "spec",
    [
        ActionSpec(
            "gaussian", shape=(2, 2), low=(-2.0, 0.0, -np.inf, 1.0), high=(2.0, 5.0, 3.0, np.inf), dtype="float32"
        ),
        ActionSpec("discrete", sizes=(3,), starts=(-1,)),
        ActionSpec("multi_discrete", sizes=(3, 2), starts=(1, 0), shape=(2,)),
        ActionSpec("multi_binary", shape=(3,), dtype="int8"),
    ],
    ids=lambda spec: spec.kind,
)
def test_actions_are_translated_as_in_numpy(spec):
    rng = np.random.default_rng(0)
    action = rng.normal(0, 3, (50, *spec.policy_shape)).astype(np.float32)
    if spec.kind != "box":
        action = rng.integers(2, size=action.shape).astype(np.int32)
    translated = np.asarray(to_env_units(spec, jnp.asarray(action)))
    np.testing.assert_allclose(translated, spec.to_env(action), rtol=1e-6, atol=1e-6)
    assert translated.shape == (50, *spec.shape)
