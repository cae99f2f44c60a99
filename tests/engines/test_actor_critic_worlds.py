"""Off-policy actor-critics in worlds: known values, actions that reach their bounds, exploration, normalization."""

from typing import ClassVar

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from drl.agents.evaluation import evaluate
from drl.agents.load_agent import load_agent
from drl.algorithms import ALGORITHMS
from drl.core.configs import ActionNoiseConfig
from drl.core.seeding import Seeds
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.engines.jax import off_policy
from drl.engines.jax.build import build_learner as build_jax
from drl.engines.jax.fused.fused_off_policy import ActByPolicy, Situation
from drl.engines.numpy.exploration import make_exploration
from drl.engines.torch.build import build_learner as build_torch
from drl.envs.make_vec_env import make_vec_env
from drl.games.probes import TwoStepEnv
from drl.runs.building import build_trainer, open_trainer
from drl.settings.experiment import Experiment


class TwoStepBox(TwoStepEnv):
    """`TwoStepEnv` with an action that is a number, in bounds that are not symmetric."""

    def __init__(self, truncate=False, render_mode=None):
        super().__init__(truncate, render_mode)
        self.action_space = gym.spaces.Box(np.float32([-3.0, 0.5]), np.float32([1.0, 0.7]))


class Recorder(TwoStepBox):
    """Remembers the actions that arrive."""

    arrived: ClassVar[list] = []

    def step(self, action):
        assert self.action_space.contains(action)
        Recorder.arrived.append(np.array(action))
        return super().step(action)


for made in (TwoStepBox, Recorder):
    gym.register(f"test/{made.__name__}-v0", entry_point=made)

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}  # compiles in a third of the time
SMALL = {
    "hidden_sizes": [16], "critic_hidden_sizes": None, "batch_size": 32, "warmup": 64, "learning_rate": 1e-2,
    "capacity": 2000, "compile": "off", "updates_per_log": 50, "vectorization": "sync",
}  # fmt: skip


def experiment(algorithm, env, **changes):
    return Experiment.from_flat(SMALL | {"algorithm": algorithm, "env": env} | changes, "a test")


def replayed(trainer, count):
    """Observations and actions of the first rows of a replay buffer."""
    read = trainer.buffer.store.read  # into the same arrays every time
    rows = [[part.copy() for part in read(np.arange(start, start + 32))[:2]] for start in range(0, count, 32)]
    return tuple(np.concatenate(column)[:count] for column in zip(*rows, strict=True))


# ── truncation keeps the value, termination does not ──────────────────────────────────────────────────────────────


@pytest.mark.default("ddpg*")
@pytest.mark.parametrize(("truncate", "values"), [(False, [0.5, 1.0]), (True, [1.0, 2.0])])
@pytest.mark.parametrize(
    ("algorithm", "env", "changes"),
    [
        ("ddpg", "test/TwoStepBox-v0", {}),
        ("sac", "test/TwoStepBox-v0", {"n_step": 2}),
        ("tqc", "test/TwoStepBox-v0", {"num_atoms": 3, "quantiles_to_drop": 0}),
        ("sac", "drl/TwoStep-v0", {}),
        ("crossq", "drl/TwoStep-v0", {"renorm_warmup": 50}),
    ],
)
def test_the_critics_learn_known_values(algorithm, env, changes, truncate, values):
    """obs 0 → obs 1 → end with reward 1, γ = 0.5, nearly no weight on the entropy. A clock is not a death."""
    soft = {"learn_temperature": False, "temperature": 1e-4} if algorithm != "ddpg" else {}
    target = {"tau": 0.5} if algorithm != "crossq" else {}
    settings = {"gamma": 0.5, "num_critics": 1, "total_timesteps": 364, "env_kwargs": [f"truncate={truncate}"]}
    settings |= soft | target
    with open_trainer(experiment(algorithm, env, **settings | changes)) as trainer:
        list(trainer())
    critics, spec = trainer.algorithm.critics, trainer.agent.action_spec
    obs = torch.tensor([[0.0], [1.0]])
    with torch.no_grad():
        action = None if spec.kind == "discrete" else torch.zeros(2, 2)
        learned = critics.head.q_values(critics(obs, action)).mean(dim=(0, 2))
    np.testing.assert_allclose(learned, values, rtol=0.1, atol=0.05)


# ── actions reach both bounds ─────────────────────────────────────────────────────────────────────────────────────

OBS = ObsSpec("box", (3,))
LOW, HIGH = np.float32([-3.0, 0.5]), np.float32([1.0, 0.7])
BOX = ActionSpec("box", shape=(2,), low=tuple(LOW.tolist()), high=tuple(HIGH.tolist()), dtype="float32")
CHOICES = ActionSpec("discrete", sizes=(4,))


def build(algorithm, engine="torch", spec=BOX, **model):
    record = ALGORITHMS[algorithm]
    sizes = {
        "hidden_sizes": (6,),
        "critic_hidden_sizes": (5,) if algorithm == "crossq" else None,
        "num_critics": 1,
        "num_atoms": 3,
    }
    configs = (
        record.model_config(**sizes | model),
        record.config(**({"quantiles_to_drop": 0} if algorithm == "tqc" else {})),
    )
    return {"torch": build_torch, "jax": build_jax}[engine](algorithm, EnvSpecs(OBS, spec), configs, Seeds(0))


def saturate(agent, bias):
    """A policy whose action, before it is squashed, is `bias`."""
    arrays = agent.state_dict()["model"]
    name = next(name for name in ("actor.head.mean.bias", "actor.head.bias") if name in arrays)
    state = agent.state_dict()
    state["model"][name] = np.asarray(bias, np.float32)
    agent.load_state_dict(state)


@pytest.mark.parametrize("engine", ["torch", "jax", "numpy"])
@pytest.mark.parametrize("algorithm", ["ddpg", "td3", "sac", "tqc", "crossq"])
def test_a_saturated_policy_reaches_both_bounds_exactly(algorithm, engine, tmp_path):
    agent, _ = build(algorithm, "jax" if engine == "jax" else "torch")
    agent.exploration = None
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for number, (bias, expected) in enumerate([((-50, -50), LOW), ((50, 50), HIGH), ((-50, 50), (LOW[0], HIGH[1]))]):
        saturate(agent, bias)
        acting = agent
        if engine == "numpy":
            agent.save(tmp_path / str(number))
            acting = load_agent(tmp_path / str(number), engine="numpy")
        for explore in (False, True):
            action = acting.act(obs, explore=explore)
            assert action.dtype == np.float32
            np.testing.assert_array_equal(action, np.tile(np.float32(expected), (5, 1)))


@pytest.mark.parametrize("engine", ["torch", "jax", "numpy"])
def test_a_deterministic_policy_is_evaluated_without_its_noise(engine, tmp_path):
    agent, _ = build("td3", "jax" if engine == "jax" else "torch")
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    expected = agent.act(obs)
    if engine == "numpy":
        agent.save(tmp_path)
        agent = load_agent(tmp_path, engine="numpy")
    agent.exploration = make_exploration(ActionNoiseConfig(noise_sigma=0.5, random_steps=0), agent.action_spec)
    assert np.abs(agent.act(obs, explore=True) - expected).max() > 0.01
    np.testing.assert_allclose(agent.act(obs), expected, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
@pytest.mark.parametrize("noise", ["gaussian", "ornstein_uhlenbeck"])
def test_replay_holds_the_policys_units_and_the_world_gets_its_own(algorithm, noise):
    Recorder.arrived.clear()
    settings = {"noise": noise, "noise_sigma": 1.5, "total_timesteps": 100, "random_steps": 30, "num_envs": 2}
    with open_trainer(experiment(algorithm, "test/Recorder-v0", **settings)) as trainer:
        list(trainer())
    stored = replayed(trainer, 100)[1]
    assert stored.dtype == np.float32
    assert np.abs(stored).max() == 1.0  # clipped, not rejected
    assert (np.abs(stored[:30]) < 1).all()  # uniform at first
    assert (np.abs(stored[32:]) == 1).mean() > 0.2
    expected = LOW + (stored + 1) / 2 * (HIGH - LOW)
    np.testing.assert_allclose(np.stack(Recorder.arrived), expected, atol=1e-5)
    assert {tuple(bound) for bound in zip(LOW, HIGH, strict=True)} <= {
        (column.min(), column.max()) for column in np.stack(Recorder.arrived).T
    }


# ── exploration, in NumPy and inside a program ────────────────────────────────────────────────────────────────────

COUNT = 4000


def explored(form, algorithm, config, env_steps, before=None, spec=BOX, mask=None):
    """Actions of many environments in which the policy says about 0.5, the noise process after them, what it says."""
    agent, learner = build(algorithm, "jax", spec)
    obs = np.zeros((COUNT, 3), np.float32)
    noise = np.zeros((COUNT, 2), np.float32) if before is None else before
    if spec is BOX:
        saturate(agent, [np.arctanh(0.5)] * 2)
    if form == "numpy":
        agent.exploration = make_exploration(config, spec)
        agent.exploration.begin_training(100)
        agent.exploration.at(env_steps)
        if hasattr(agent.exploration, "noise"):
            agent.exploration.noise = noise.copy()
        action = agent.decide(obs, True, mask)
        return action, getattr(agent.exploration, "noise", None), agent.decide(obs)
    acting = ActByPolicy(learner.pure, config, spec, 100)
    now = Situation(
        jnp.asarray(obs), mask, jnp.int32(env_steps), jnp.asarray(noise) if acting.sigma else acting.begin(COUNT)
    )
    act = jax.jit(
        lambda params, now, key: acting.act(params, now, acting.draw(key, (COUNT,)), key), compiler_options=QUICK
    )
    action, after = act(agent.model_state.params, now, jax.random.key(0))
    return np.asarray(action), np.asarray(after), agent.decide(obs)


both_forms = pytest.mark.parametrize("form", ["numpy", "fused"])


@both_forms
@pytest.mark.parametrize(
    ("random_steps", "env_steps", "uniform"),
    [(None, 99, True), (None, 100, False), (7, 6, True), (7, 7, False), (0, 0, False)],
)
def test_actions_are_uniform_at_first(form, random_steps, env_steps, uniform):
    action, _, _ = explored(form, "td3", ActionNoiseConfig(random_steps=random_steps, noise_sigma=0.05), env_steps)
    if uniform:
        assert abs(action.mean()) < 0.03
        assert action.std() == pytest.approx(3**-0.5, abs=0.02)
        assert abs(np.corrcoef(action.T)[0, 1]) < 0.06
    else:
        assert action.mean() == pytest.approx(0.5, abs=0.01)
        assert action.std() == pytest.approx(0.05, abs=0.005)


@both_forms
@pytest.mark.parametrize(("kind", "keep"), [("gaussian", 0.0), ("ornstein_uhlenbeck", 0.8)])
def test_noise_is_a_process_and_actions_stay_inside(form, kind, keep):
    config = ActionNoiseConfig(
        random_steps=0, noise=kind, noise_theta=0.2, noise_sigma=0.4, noise_sigma_end=0.2, noise_decay=10
    )
    before = np.tile(np.float32([1.0, -1.0]), (COUNT, 1))
    action, after, said = explored(form, "td3", config, 5, before)
    np.testing.assert_allclose(after.mean(0), keep * before[0], atol=0.02)
    np.testing.assert_allclose(after.std(0), 0.3, atol=0.02)  # half of the way from 0.4 to 0.2
    np.testing.assert_allclose(action, np.clip(said + after, -1, 1), atol=1e-5)
    assert np.abs(action).max() == 1.0


@both_forms
def test_noise_waits_while_actions_are_random(form):
    before = np.ones((COUNT, 2), np.float32)
    _, after, _ = explored(form, "td3", ActionNoiseConfig(random_steps=5, noise="ornstein_uhlenbeck"), 4, before)
    np.testing.assert_array_equal(after, before)


@both_forms
def test_a_random_start_of_choices_is_legal(form):
    mask = np.tile([True, False, True, True], (COUNT, 1))
    config = ALGORITHMS["sac"].exploration(random_steps=5)
    action, _, _ = explored(form, "sac", config, 0, spec=CHOICES, mask=mask)
    np.testing.assert_allclose(np.bincount(action, minlength=4) / COUNT, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.03)


# ── masks, normalization ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("n_step", [1, 2])
def test_replay_knows_what_was_legal_before_and_after(n_step):
    """The actor learns in `obs`: without its mask it would climb the values of illegal actions."""
    settings = {"total_timesteps": 100, "n_step": n_step, "num_envs": 2}
    with open_trainer(experiment("sac", "drl/LegalMoves-v0", **settings)) as trainer:
        list(trainer())
        batch = trainer.buffer.take()
    assert batch.next_action_mask is not None
    assert batch.action_mask is not None
    assert batch.action_mask[np.arange(len(batch.action)), batch.action].all()
    assert not batch.action_mask.all()


@pytest.mark.default("torch")
@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_statistics_are_frozen_in_evaluation_and_saved_with_the_agent(engine, tmp_path, monkeypatch):
    update = jax.jit(lambda pure, *inputs: pure.update(*inputs), static_argnums=0, compiler_options=QUICK)
    monkeypatch.setattr(off_policy, "_update", update)
    made = experiment("sac", "Pendulum-v1", backbone="simba", normalize_obs=True, total_timesteps=100, engine=engine)
    with make_vec_env("Pendulum-v1", 1, seed=0) as envs:
        trainer = build_trainer(made, envs)
        for _ in trainer():
            pass
    agent = trainer.agent
    stats = agent.normalizer.state_dict()["stats"][""]
    assert stats["count"] == 100
    seen = replayed(trainer, 100)[0]
    np.testing.assert_allclose(stats["mean"], seen.mean(0), atol=1e-5)
    np.testing.assert_allclose(stats["squares"] / 100, seen.var(0), rtol=1e-4)
    evaluate(agent, "Pendulum-v1", 1)
    agent.act(100 * np.ones((3, 3), np.float32))
    assert agent.normalizer.count == 100
    agent.save(tmp_path / "agent")
    obs = np.random.default_rng(0).normal(2.0, 3.0, (8, 3)).astype(np.float32)
    for reader in ("torch", "jax", "numpy"):
        loaded = load_agent(tmp_path / "agent", engine=reader)
        assert loaded.normalizer.state_dict()["stats"][""]["count"] == 100
        np.testing.assert_allclose(loaded.act(obs), agent.act(obs), atol=1e-5)
        before, loaded.normalizer = loaded.act(obs), None
        assert np.abs(loaded.act(obs) - before).max() > 1e-3  # it matters
