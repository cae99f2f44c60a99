"""Off-policy actor-critics in one program with their environments: they learn, explore and normalize as elsewhere."""

import math

import jax
import numpy as np
import pytest

from drl.core.normalize import ObsNormalizer, RewardScaler
from drl.engines.jax.fused import fused_trainer
from drl.runs.building import build_seed_batch, in_one_program
from drl.settings.experiment import Experiment

SMALL = {
    "engine": "jax", "num_seeds": 2, "num_envs": 2, "hidden_sizes": [8], "critic_hidden_sizes": [8], "batch_size": 16,
    "warmup": 20, "train_every": 2, "updates_per_log": 8, "capacity": 9000, "total_timesteps": 128, "num_atoms": 5,
    "num_critics": 2,
}  # fmt: skip
ROWS = 64  # steps of each environment in the whole run, 8 in a learning step
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}  # compiles in a third of the time
CASES = {
    "sac": {"env": "Pendulum-v1", "distributional": "c51", "v_min": -2.0, "v_max": 2.0, "normalize_obs": True,
            "normalize_reward": True, "env_kwargs": ["max_episode_steps=24"]},
    "td3": {"env": "Pendulum-v1", "noise": "ornstein_uhlenbeck", "noise_sigma": 0.5, "random_steps": 0,
            "env_kwargs": ["max_episode_steps=16"], "policy_delay": 1},
    "discrete sac": {"env": "drl/LegalMoves-v0", "gamma": 0.5},
    "crossq": {"env": "CartPole-v1", "policy_delay": 3, "renorm_warmup": 9, "weight_norm": True, "normalize_obs": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def runs():
    """Each case trained once: a program takes long to compile."""
    made = {}

    def run(case):
        if case not in made:
            experiment = Experiment.from_flat(SMALL | {"algorithm": case.split()[-1]} | CASES[case], "a test")
            assert in_one_program(experiment)
            seed_batch = build_seed_batch(experiment)
            made[case] = seed_batch, [list(trainer()) for trainer in seed_batch.trainers]
        return made[case]

    chunks = jax.jit(fused_trainer._several.__wrapped__, static_argnums=(0, 1), compiler_options=QUICK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_trainer, "_several", chunks)
        yield run


def one_seed(seed_batch, number=0):
    return jax.tree.map(lambda leaf: leaf[number], seed_batch.learner.carry)


@pytest.mark.full
@pytest.mark.default("td3")
@pytest.mark.parametrize("case", CASES)
def test_two_seeds_learn_and_act(runs, case):
    seed_batch, logs = runs(case)
    assert logs[0][-1].learn != logs[1][-1].learn
    for number, (trainer, told) in enumerate(zip(seed_batch.trainers, logs, strict=True)):
        assert told[-1].env_steps == 2 * ROWS
        names = {"critic_loss", "mean_q", "mean_error", "critic_grad_norm", "actor_loss", "actor_grad_norm"}
        names |= set() if case == "td3" else {"entropy", "temperature"}
        for log in told:
            assert log.learn.keys() == names
            assert all(math.isfinite(value) for value in log.learn.values())
        agent, env = trainer.agent, seed_batch.learner.program.env
        steps = one_seed(seed_batch, number).buffer.steps
        obs, action = np.asarray(steps.obs[:ROWS, 0]), np.asarray(steps.action[:ROWS, 0])
        acted = agent.decide(obs)
        assert acted.shape == action.shape
        if env.action_spec.kind == "box":
            assert np.abs(action).max() <= 1.0
            assert np.abs(agent.act(obs)).max() <= 2.0
        # The warm-up and every whole round after it: one update per two steps.
        assert int(one_seed(seed_batch, number).learner.count) == (128 - 20) // 2


@pytest.mark.full
def test_hidden_weights_have_norm_one_in_one_program(runs):
    for trainer in runs("crossq")[0].trainers:
        arrays = trainer.agent.model_state.host
        hidden = [name for name in arrays if name.endswith("layers.0.weight")]
        assert len(hidden) == 2
        for name in hidden:
            np.testing.assert_allclose(np.linalg.norm(arrays[name], axis=1), 1.0, rtol=1e-5)


@pytest.mark.default("crossq")
@pytest.mark.parametrize("case", ["sac", "crossq"])
def test_statistics_are_those_of_the_trainer(runs, case):
    """All observations and discounted returns of the run, merged learning step by learning step."""
    seed_batch, _ = runs(case)
    program, carry = seed_batch.learner.program, one_seed(seed_batch, 1)
    steps = jax.tree.map(lambda leaf: np.asarray(leaf)[:ROWS], carry.buffer.steps)
    normalizer = ObsNormalizer(steps.obs.shape[2:])
    normalizer.update(steps.obs.reshape(2 * ROWS, -1))
    mine = seed_batch.trainers[1].agent.normalizer.running_stats[""]
    theirs = normalizer.running_stats[""]
    assert mine.count == theirs.count == 2 * ROWS
    assert int(carry.buffer.written) <= program.replay.length, "the first rows were overwritten"
    np.testing.assert_allclose(mine.mean, theirs.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mine.variance, theirs.variance, rtol=1e-3)
    uniform = np.random.default_rng(0).random((program.replay.num_draws, 16), np.float32)
    _, rows, _ = program.replay.draw(carry.buffer, uniform)
    prepared = program._prepared(carry, rows)
    np.testing.assert_allclose(prepared.obs, normalizer(np.asarray(rows.obs)), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(prepared.next_obs, normalizer(np.asarray(rows.next_obs)), rtol=1e-3, atol=1e-3)
    if carry.scaler is None:
        np.testing.assert_array_equal(prepared.reward, rows.reward)
        return
    scaler = RewardScaler(2, program.pure.config.gamma, clip=None, bound=2.0)
    scaler.update(steps.reward, steps.terminated | steps.truncated, np.ones((ROWS, 2), bool))
    assert float(carry.scaler.largest) == pytest.approx(scaler.largest, rel=1e-5)
    np.testing.assert_allclose(prepared.reward, scaler(np.asarray(rows.reward)), rtol=1e-3)
    assert scaler.largest / 2.0 > np.sqrt(scaler.running_stats.variance), "here the bound decides"


@pytest.mark.full
def test_a_noise_process_begins_anew_with_every_episode(runs):
    """Episodes of 16 steps, 8 in a learning step."""
    learner = runs("td3")[0].learner
    ended = []
    for _ in range(3):
        learner.advance(1)
        ended.append(not np.asarray(learner.carry.noise).any())
    assert np.asarray(learner.carry.noise).shape == (2, 2, 1)
    assert sorted(ended[:2]) == [False, True]
    assert ended[2] == ended[0]


def test_the_noise_of_an_ornstein_uhlenbeck_process_is_correlated_in_time(runs):
    seed_batch, _ = runs("td3")
    program, carry = seed_batch.learner.program, one_seed(seed_batch)
    draws = program.acting.draw(jax.random.key(0), (2,))
    state = carry._replace(noise=np.float32([[1.0], [0.0]]))
    noise = program.env.draw(jax.random.key(1), (2,))
    act = jax.jit(program._act, compiler_options=QUICK)
    after, _ = act(state, (noise, draws, jax.random.key(2)))
    assert np.asarray(after.noise)[:, 0] == pytest.approx([0.85, 0.0] + 0.5 * np.asarray(draws["noise"])[:, 0])


def test_the_program_knows_what_was_legal_before_and_after(runs):
    """The actor learns in `obs`: without its mask it would climb the values of illegal actions."""
    seed_batch, logs = runs("discrete sac")
    program, carry = seed_batch.learner.program, one_seed(seed_batch)
    assert all(episode.episode_return >= 0 for log in logs[0] for episode in log.finished)  # an illegal one costs 100
    uniform = np.random.default_rng(0).random((program.replay.num_draws, 16), np.float32)
    _, rows, _ = program.replay.draw(carry.buffer, uniform)
    assert rows.next_action_mask is not None
    assert rows.action_mask is not None
    assert np.asarray(rows.action_mask)[np.arange(16), np.asarray(rows.action)].all()
    assert not np.asarray(rows.action_mask).all()
