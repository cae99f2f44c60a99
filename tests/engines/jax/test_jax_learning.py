"""Every algorithm through the ordinary Trainer, on environments whose values are known, and continued from a
checkpoint."""

import engine_twins as twins
import numpy as np
import pytest
from engine_twins import draw_replay, quick_compilation  # noqa: F401 (the second is a fixture)

from drl.algorithms.a2c import A2CConfig
from drl.algorithms.dqn import DQNConfig
from drl.algorithms.ppo import PPOConfig
from drl.algorithms.reinforce import ReinforceConfig
from drl.buffers.replay_buffer import ReplayBuffer
from drl.core.configs import EpsilonGreedyConfig, ModelConfig, QModelConfig
from drl.core.errors import BadInput
from drl.core.seeding import Seeds
from drl.core.specs import EnvSpecs
from drl.core.state_files import read_state, write_state
from drl.engines.jax.build import build_learner
from drl.engines.numpy.exploration import EpsilonGreedy
from drl.engines.torch import build as torch_build
from drl.engines.torch.models import load_parameters
from drl.envs.make_vec_env import make_vec_env
from drl.trainer.trainer import Trainer, TrainerConfig

pytestmark = pytest.mark.usefixtures("quick_compilation")
FAST = {"learning_rate": 5e-3, "learning_rate_end": 0.0, "gamma": 0.9}
CONFIGS = {
    "ppo": PPOConfig(rollout_length=16, minibatches=2, **FAST),
    "a2c": A2CConfig(rollout_length=5, optimizer="adam", **FAST),
    "reinforce": ReinforceConfig(episodes_per_step=16, **FAST),
    "dqn": DQNConfig(tau=0.02, weight_decay=0.0, **FAST | {"learning_rate": 3e-3}),
}
MODELS = {"dqn": QModelConfig(hidden_sizes=(32,))}


def make_trainer(envs, algorithm, steps, config=None, build=build_learner, model=None, **options):
    config = config or CONFIGS[algorithm]
    model = model or MODELS.get(algorithm, ModelConfig(hidden_sizes=(32,)))
    agent, learner = build(algorithm, envs, (model, config), Seeds(3), **options)
    buffer = None
    if algorithm == "dqn":
        buffer = ReplayBuffer(envs, warmup=100, batch_size=64, updates_per_log=50)
        always = EpsilonGreedyConfig(epsilon_start=1.0, epsilon_schedule="constant")
        agent.exploration = EpsilonGreedy(always, envs.action_spec)
    return Trainer(envs, agent, learner, buffer, TrainerConfig(total_timesteps=steps))


def train(algorithm, env, steps, config=None, num_envs=4, **options):
    with make_vec_env(env, num_envs, seed=0) as envs:
        trainer = make_trainer(envs, algorithm, steps, config, **options)
        for log in trainer():
            if log.env_steps >= steps:
                return trainer, log


@pytest.mark.default("drl/TwoStepTruncated-v0-values1-dqn")
@pytest.mark.parametrize("algorithm", CONFIGS)
@pytest.mark.parametrize(("env", "values"), [("drl/TwoStep-v0", [0.9, 1.0]), ("drl/TwoStepTruncated-v0", [9.0, 10.0])])
def test_learns_the_values_of_a_two_step_env(algorithm, env, values):
    """obs 0 → obs 1 → end, reward 1 at the end, γ = 0.9. A clock is not a death."""
    steps = {"ppo": 8000, "a2c": 20_000, "reinforce": 15_000, "dqn": 2000}[algorithm]
    trainer, _ = train(algorithm, env, steps, num_envs=1 if algorithm == "dqn" else 4)
    obs = np.array([[0.0], [1.0]], np.float32)
    learned = trainer.agent.q_values(obs).mean(axis=1) if algorithm == "dqn" else trainer.agent.value(obs)
    np.testing.assert_allclose(learned, values, rtol=0.12)


@pytest.mark.default("ppo")
@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "reinforce"])
def test_learns_which_action_fits_the_observation(algorithm):
    trainer, log = train(algorithm, "drl/Match-v0", 6000)
    assert log.recent["mean_ep_return"] > 0.8
    assert trainer.agent.act(np.array([0, 1])).tolist() == [0, 1]


@pytest.mark.full
@pytest.mark.parametrize("baseline", ["none", "mean"])
def test_reinforce_without_a_critic(baseline):
    trainer, log = train("reinforce", "drl/Match-v0", 8000, ReinforceConfig(baseline=baseline, **FAST))
    assert not trainer.agent.has_value
    assert log.recent["mean_ep_return"] > 0.8


@pytest.mark.full
def test_learns_a_continuous_target():
    trainer, _ = train("ppo", "drl/Target-v0", 20_000, PPOConfig(rollout_length=32, **FAST))
    targets = np.array([[-0.8], [0.0], [0.8]], np.float32)
    np.testing.assert_allclose(trainer.agent.act(targets) / 2, targets, atol=0.2)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_both_engines_walk_the_same_way(algorithm):
    """The same seeds and first weights: the same actions, environments and logs for a while, through the ordinary
    Trainer."""
    logs = []
    for build in (build_learner, torch_build.build_learner):
        with make_vec_env("CartPole-v1", 4, seed=0) as envs:
            trainer = make_trainer(envs, algorithm, 10_000, build=build, normalize_obs=True)
            if build is build_learner:
                first = trainer.agent.model_state.host
            else:
                load_parameters(trainer.agent.model, dict(first), "the other engine")
            logs.append([trainer.step().flat() for _ in range(4)])
    for mine, theirs in zip(*logs, strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            if not name.startswith("time/"):
                assert mine[name] == pytest.approx(value, rel=2e-3, abs=1e-4), name


@pytest.mark.default("ppo", "dqn")
@pytest.mark.parametrize("algorithm", CONFIGS)
def test_a_checkpoint_continues_identically(algorithm, tmp_path):
    """What agent and algorithm write to disk is all they need to go on as if nothing had happened."""
    rng, spec = np.random.default_rng(0), twins.ACTIONS["categorical"]
    draw = {"dqn": draw_replay, "reinforce": twins.draw_episodes}.get(algorithm, twins.draw_rollout)
    batches = [draw(rng, twins.VECTOR, spec) for _ in range(3)]
    model = QModelConfig(hidden_sizes=(5,), noisy=True) if algorithm == "dqn" else ModelConfig(hidden_sizes=(5,))
    config = ReinforceConfig(baseline="mean") if algorithm == "reinforce" else CONFIGS[algorithm]

    def build(seed):
        options = (algorithm, EnvSpecs(twins.VECTOR, spec), (model, config), Seeds(seed))
        return build_learner(*options, normalize_obs=True)

    agent, learner = build(1)
    agent.normalizer.update(batches[0].obs)
    for batch in batches[:2]:
        learner.learn(batch)
    write_state(tmp_path, {"agent": agent.state_dict(), "learner": learner.state_dict()})
    ends = []
    restored = build(2)
    for part, state in zip(restored, read_state(tmp_path).values(), strict=True):
        part.load_state_dict(state)
    for student, lesson in ((agent, learner), restored):
        logs = lesson.learn(batches[2], progress=0.5)
        actions = student.decide(batches[2].obs.reshape(-1, 3), explore=True)
        ends.append(logs.log | student.model_state.host | {"actions": actions})
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[0].items():
        np.testing.assert_array_equal(value, ends[1][name], err_msg=name)


def test_target_kl_stops_the_epochs():
    config = PPOConfig(rollout_length=16, epochs=50, target_kl=1e-4, minibatches=1, learning_rate=0.01)
    _, log = train("ppo", "drl/Match-v0", 60, config)
    assert log.trainer["gradient_steps"] < 50


def test_what_an_algorithm_cannot_do_is_refused():
    with make_vec_env("drl/Match-v0", 1, seed=0) as envs:
        for algorithm, options, complaint in (
            ("sacc", {}, "unknown algorithm 'sacc'"),
            ("ppo", {"config": PPOConfig(critic_learning_rate=1e-3), "model": ModelConfig(shared=True)}, "of its own"),
            ("ppo", {"model": ModelConfig(recurrent="lstm")}, "recurrent is 'lstm'"),
        ):
            with pytest.raises(BadInput, match=complaint):
                make_trainer(envs, algorithm, 10, **{"config": PPOConfig()} | options)
