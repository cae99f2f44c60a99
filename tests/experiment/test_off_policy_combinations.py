"""64 random combinations of the off-policy actor-critics' settings: each learns, is saved, and acts the same again.

What cannot be combined is refused with a message that says what to change, and another combination is drawn.
"""

import math
import re

import jax
import numpy as np
import pytest

from drl.agents.evaluation import evaluate
from drl.agents.load_agent import load_agent
from drl.core.errors import BadInput
from drl.core.state_files import read_state, write_state
from drl.engines.jax import off_policy
from drl.runs.building import open_trainer
from drl.settings.experiment import Experiment

COUNT, WITH_JAX, UPDATES = 64, 12, 200  # a JAX program takes longer to compile than to run
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}  # compiles in a third of the time
SAC, TD3 = ("sac", "tqc", "crossq", "normalized_sac"), ("ddpg", "td3")
SETTINGS = {
    "critic_hidden_sizes": (None, None, [6, 6]),
    "num_critics": (1, 2, 3),
    "distributional": ("none", "none", "c51", "qr"),
    "backbone": ("auto", "mlp", "simba"),
    "layer_norm": (False, False, True),
    "batch_renorm": (False, False, True),
    "renorm_warmup": (0, 50, 100_000),
    "activation": ("relu", "tanh", "gelu", "mish"),
    "init": ("auto", "auto", "xavier_normal"),
    "critic_subset": (None, None, 1, 2),
    "target_q": ("min", "mean"),
    "actor_q": ("min", "mean", "first"),
    "target_network": (True, True, False),
    "weight_norm": (False, False, False, True),
    "target_every": (1, 3),
    "tau": (0.005, 1.0),
    "policy_delay": (1, 2, 3),
    "optimizer": ("adam", "adamw"),
    "max_grad_norm": (None, 1.0),
    "learning_rate_end": (None, 0.0),
    "learning_rate_schedule": ("auto", "cosine"),
    "actor_learning_rate": (None, 1e-4),
    "loss": ("squared", "huber"),
    "reward_scale": (1.0, 0.1),
    "n_step": (1, 3),
    "prioritized": (False, True),
    "gradient_steps": (1, 2),
    "train_every": (1, 4),
    "num_envs": (1, 2),
    "noise": ("gaussian", "ornstein_uhlenbeck"),
    "noise_sigma": (0.0, 0.3),
    "random_steps": (None, 0, 40),
    "normalize_obs": (False, True),
    "normalize_reward": (False, True),
}
OF_SAC = {"learn_temperature": (True, False), "temperature": (1.0, 0.1), "quantiles_to_drop": (0, 0, 1, 4)}
OF_TD3 = {"target_noise": (0.0, 0.2), "noise_sigma_end": (None, 0.0)}
SMALL = {
    "hidden_sizes": [8, 8], "num_atoms": 4, "batch_size": 16, "warmup": 32,
    "capacity": 5000, "updates_per_log": 50, "compile": "off", "vectorization": "sync",
}  # fmt: skip


def draw(rng, number):
    """One combination, possible or not."""

    def pick(values):
        return values[rng.integers(len(values))]

    engine = "jax" if number < WITH_JAX else "torch"
    algorithm = pick((*SAC, *TD3))
    env = pick(("Pendulum-v1", "CartPole-v1")) if algorithm in ("sac", "crossq") else "Pendulum-v1"
    flat = {name: pick(values) for name, values in (SETTINGS | (OF_SAC if algorithm in SAC else OF_TD3)).items()}
    rounds = math.ceil(UPDATES / flat["gradient_steps"])
    steps = SMALL["warmup"] + flat["num_envs"] * flat["n_step"] + rounds * flat["train_every"]
    return SMALL | flat | {"algorithm": algorithm, "engine": engine, "env": env, "total_timesteps": steps}


def updates_of(learner):
    return int(learner.state.count) if hasattr(learner, "state") else learner.critic_optimizer.count


@pytest.fixture
def quick(monkeypatch):
    update = jax.jit(lambda pure, *inputs: pure.update(*inputs), static_argnums=0, compiler_options=QUICK)
    monkeypatch.setattr(off_policy, "_update", update)


def trained(flat):
    """A trainer at its end and its state; or why this cannot be."""
    try:
        with open_trainer(Experiment.from_flat(flat, "a test")) as trainer:
            for log in trainer():
                assert all(math.isfinite(value) for value in log.learn.values()), flat
            return trainer, trainer.state_dict(), None
    except BadInput as refusal:
        return None, None, str(refusal)


HELPFUL = r"use |drop fewer|expected|are for MLPs|needs Box actions|leave (it|them) out|give --"


@pytest.mark.default("1", "3")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("number", range(COUNT))
def test_a_random_combination_learns_and_is_the_same_after_loading(number, tmp_path):
    rng = np.random.default_rng(number)
    for flat in iter(lambda: draw(rng, number), None):
        trainer, state, refusal = trained(flat)
        if refusal is None:
            break
        assert re.search(HELPFUL, refusal), f"{refusal} — {flat}"
    agent = trainer.agent
    spare = flat["gradient_steps"] * flat["num_envs"] * flat["n_step"]  # steps that n-step returns may need
    assert UPDATES <= updates_of(trainer.algorithm) <= UPDATES + spare, flat
    assert trainer.buffer.size > 16
    obs = np.concatenate([np.random.default_rng(0).normal(size=(6, agent.obs_spec.shape[0])), trainer.obs])
    obs = obs.astype(np.float32)
    agent.save(tmp_path / "agent")
    actions = agent.act(obs)
    np.testing.assert_array_equal(load_agent(tmp_path / "agent").act(obs), actions)
    for engine in ("torch", "jax", "numpy"):
        other = load_agent(tmp_path / "agent", engine=engine)
        np.testing.assert_allclose(other.dist_params(obs), agent.dist_params(obs), rtol=1e-4, atol=1e-4)
        if agent.action_spec.kind == "box":
            np.testing.assert_allclose(other.act(obs), actions, atol=1e-4)
    # A checkpoint on disk makes the same learner of a new one.
    write_state(tmp_path / "state", state)
    with open_trainer(Experiment.from_flat(flat, "a test")) as again:
        again.load_state_dict(read_state(tmp_path / "state"))
        np.testing.assert_array_equal(again.agent.act(obs), actions)
        batch = trainer.buffer.take()
        one, two = (each.algorithm.learn(each._prepared(batch)).log for each in (trainer, again))
        assert one == two, flat
    if number % 16 == 0:
        assert np.isfinite(evaluate(agent, flat["env"], 1).summary()["mean_return"])
