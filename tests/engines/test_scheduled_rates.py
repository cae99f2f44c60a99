"""Rates that change: every algorithm logs what its schedule says, in PyTorch, in JAX and in one program."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from drl.algorithms import ALGORITHMS
from drl.algorithms.ppo import PPOConfig
from drl.core.configs import ModelConfig
from drl.core.contracts import RolloutBatch
from drl.core.errors import BadInput
from drl.core.schedules import register_schedule
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.engines.jax.fused import fused_trainer
from drl.engines.torch.algorithms.ppo import PPO
from drl.engines.torch.models import make_policy_value_model
from drl.runs.building import open_trainer
from drl.settings.experiment import Experiment

TOTAL = 240
ROLLOUTS, EPISODES = ("ppo", "a2c"), ("reinforce",)
SMALL = {"num_envs": 2, "total_timesteps": TOTAL, "hidden_sizes": [6], "compile": "off", "vectorization": "sync"}
OF_REPLAY = {"batch_size": 8, "warmup": 16, "updates_per_log": 10, "train_every": 8, "capacity": 500}
register_schedule("root", lambda progress: 0.01 * (1.0 - progress) ** 0.5)
EXPECTED = {
    "linear": lambda share: 0.01 * (1 - share),
    "cosine": lambda share: 0.005 * (1 + math.cos(math.pi * share)),
    "constant": lambda share: 0.01,
    "root": lambda share: 0.01 * math.sqrt(1 - share),
}


@pytest.fixture(autouse=True)
def quick_programs(monkeypatch):
    options = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
    program = jax.jit(fused_trainer._one.__wrapped__, static_argnums=(0, 1), compiler_options=options)
    monkeypatch.setattr(fused_trainer, "_one", program)


def sizes_of(algorithm):
    if algorithm in ROLLOUTS:
        return {"rollout_length": 30, "env": "CartPole-v1"}
    if algorithm in EPISODES:
        return {"episodes_per_step": 2, "env": "CartPole-v1"}
    env = "Pendulum-v1" if "box" in ALGORITHMS[algorithm].action_spaces else "CartPole-v1"
    critics = {} if algorithm == "dqn" else {"critic_hidden_sizes": [6]}
    return OF_REPLAY | critics | {"env": env}


def logs_of(algorithm, **settings):
    """Pairs of the share of the budget at the beginning of a learning step, and what the step logs."""
    flat = SMALL | sizes_of(algorithm) | {"algorithm": algorithm} | settings
    pairs, before = [], 0
    with open_trainer(Experiment.from_flat(flat, "a test")) as trainer:
        for log in trainer():
            if log.learn:
                pairs.append((before, log))
            before = log.env_steps
    assert len(pairs) > 1
    return pairs


def assert_rates(algorithm, pairs, name, rate):
    """Equal to `rate` of the share of the budget used when the learning step began. The first step of a replay buffer
    began at 0 as well: the warm-up is part of it."""
    for before, log in pairs:
        share = before / TOTAL
        assert log.trainer[name] == pytest.approx(rate(share), rel=1e-4), (algorithm, name, share)


@pytest.mark.default("*-cosine", "ppo-*")
@pytest.mark.parametrize("kind", EXPECTED)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_learning_rate_in_torch(algorithm, kind):
    pairs = logs_of(algorithm, learning_rate=0.01, learning_rate_schedule=kind)
    assert_rates(algorithm, pairs, "learning_rate", EXPECTED[kind])


IN_JAX = {"ppo": "cosine", "a2c": "root", "reinforce": "linear", "dqn": "root", "sac": "cosine"}


@pytest.mark.default("ppo-cosine", "dqn-root")
@pytest.mark.parametrize(("algorithm", "kind"), IN_JAX.items())
def test_the_learning_rate_in_jax(algorithm, kind):
    pairs = logs_of(algorithm, learning_rate=0.01, learning_rate_schedule=kind, engine="jax")
    assert_rates(algorithm, pairs, "learning_rate", EXPECTED[kind])


@pytest.mark.default("*-sync", "ppo-jax")
@pytest.mark.parametrize(
    ("algorithm", "program"),
    [("ppo", "sync"), ("ppo", "jax"), ("a2c", "sync"), ("reinforce", "sync"), ("reinforce", "jax")],
)
def test_all_rates_of_the_on_policy_algorithms(algorithm, program):
    """The entropy coefficient is logged only if it changes."""
    settings = {"learning_rate": 0.01, "learning_rate_schedule": "cosine", "entropy_coef": 0.01}
    settings |= {"clip_range_schedule": "root"} if algorithm == "ppo" else {}
    scheduled = settings | {"entropy_coef_end": 0.0}
    engine = {"engine": "jax", "vectorization": program} if program == "jax" else {}
    pairs = logs_of(algorithm, **scheduled, **engine)
    assert_rates(algorithm, pairs, "learning_rate", EXPECTED["cosine"])
    assert_rates(algorithm, pairs, "entropy_coef", EXPECTED["linear"])
    if algorithm == "ppo":
        assert_rates(algorithm, pairs, "clip_range", EXPECTED["root"])
    if program == "sync":
        assert "entropy_coef" not in logs_of(algorithm, **settings)[0][1].trainer


@pytest.mark.default("*-sync", "dqn-*-jax")
@pytest.mark.parametrize("program", ["sync", "jax"])
@pytest.mark.parametrize(
    ("algorithm", "rate", "decay"), [("dqn", "epsilon", "epsilon_decay"), ("td3", "noise_sigma", "noise_decay")]
)
def test_exploration_follows_its_schedule(algorithm, rate, decay, program):
    settings = {"learning_rate": 0.01, "learning_rate_schedule": "root", f"{rate}_schedule": "root", decay: 300.0}
    engine = {"engine": "jax", "vectorization": program} if program == "jax" else {}
    pairs = logs_of(algorithm, **settings, **engine)
    assert_rates(algorithm, pairs, "learning_rate", EXPECTED["root"])
    for _, log in pairs:
        assert log.trainer[rate] == pytest.approx(EXPECTED["root"](min(log.env_steps / 300, 1.0)), abs=1e-9)


def stepped(progress):
    return 0.01 if progress < 0.5 else 0.001


def stepped_in_jax(progress):
    return jnp.where(progress < 0.5, 0.01, 0.001)


@pytest.mark.parametrize("setting", ["learning_rate_schedule", "epsilon_schedule"])
def test_a_function_that_cannot_be_compiled_is_refused_before_anything_runs(setting):
    register_schedule(f"stepped_{setting}", stepped)
    flat = SMALL | sizes_of("dqn") | {"algorithm": "dqn", "engine": "jax", "vectorization": "jax"}
    message = f"{setting} is 'stepped_{setting}', which cannot be compiled .*jax.numpy.*--vectorization sync"
    experiment = Experiment.from_flat(flat | {setting: f"stepped_{setting}"}, "a test")
    with pytest.raises(BadInput, match=message), open_trainer(experiment):
        pass


def test_a_function_of_jax_works_in_a_program():
    register_schedule("stepped_in_jax", stepped_in_jax)
    pairs = logs_of("a2c", learning_rate_schedule="stepped_in_jax", engine="jax", vectorization="jax")
    assert_rates("a2c", pairs, "learning_rate", stepped)


OBS, ACTIONS = ObsSpec("box", (3,)), ActionSpec("discrete", sizes=(3,))


def draw_rollout(seed):
    rng, shape = np.random.default_rng(seed), (6, 4)
    ends = np.zeros(shape, bool)
    ends[-1] = True
    return RolloutBatch(
        obs=rng.standard_normal((*shape, 3), np.float32),
        action=rng.integers(3, size=shape),
        reward=rng.standard_normal(shape, np.float32),
        terminated=ends,
        truncated=np.zeros(shape, bool),
        valid=np.ones(shape, bool),
        last_obs=rng.standard_normal((4, 3), np.float32),
        final_index=np.flatnonzero(ends),
        final_obs=rng.standard_normal((4, 3), np.float32),
    )


@pytest.mark.full
@pytest.mark.usefixtures("compiler")
def test_a_compiled_update_follows_changing_rates():
    """Three updates at different times, eager and compiled; with constant rates they would differ."""
    rates = {"learning_rate_schedule": "cosine", "clip_range_end": 0.0, "entropy_coef": 0.5, "entropy_coef_end": 0.0}
    config = PPOConfig(learning_rate=0.01, clip_range=0.02, epochs=1, minibatches=1, **rates)
    values = []
    for compiled in (False, True):
        model = make_policy_value_model(OBS, ACTIONS, ModelConfig(hidden_sizes=(6,)), torch.Generator().manual_seed(1))
        learner = PPO(model, EnvSpecs(OBS, ACTIONS), config, np.random.default_rng(0), compile_update=compiled)
        for number, progress in enumerate((0.0, 0.4, 0.9)):
            learned = learner.learn(draw_rollout(number), progress)
            assert learned.log["entropy_coef"] == pytest.approx(0.5 * (1 - progress))
        values.append(learner.optimizer.values)
    torch.testing.assert_close(*values, rtol=1e-5, atol=1e-6)


@pytest.mark.default("*-torch", "ppo-jax", "dqn-jax", "sac-jax")
@pytest.mark.parametrize("engine", ["torch", "jax"])
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_factor_multiplies_every_learning_rate(algorithm, engine):
    """Half of it is logged; with none of it an update changes no weight."""
    flat = SMALL | sizes_of(algorithm) | {"algorithm": algorithm, "engine": engine, "learning_rate": 0.01}
    with open_trainer(Experiment.from_flat(flat, "a test")) as trainer:
        logs = (log for log in trainer() if log.learn)
        assert next(logs)["learning_rate"] == pytest.approx(0.01)
        trainer.algorithm.learning_rate_factor = np.float32(0.5)
        assert next(logs)["learning_rate"] == pytest.approx(0.005)
        trainer.algorithm.learning_rate_factor = 0
        before = {name: np.array(value) for name, value in trainer.agent.state_dict()["model"].items()}
        assert next(logs)["learning_rate"] == 0.0
        for name, value in trainer.agent.state_dict()["model"].items():
            if value.dtype.kind == "f" and ".norms." not in name:  # statistics of batches are no weights
                np.testing.assert_allclose(value, before[name], atol=1e-6, err_msg=name)


@pytest.mark.parametrize("factor", [-1.0, math.nan, math.inf, "0.5", True, None])
def test_a_factor_that_is_none_is_refused(factor):
    with (
        open_trainer(Experiment.from_flat(SMALL | sizes_of("ppo"), "a test")) as trainer,
        pytest.raises(BadInput, match=r"learning_rate_factor is .*; expected a number of at least 0"),
    ):
        trainer.algorithm.learning_rate_factor = factor
