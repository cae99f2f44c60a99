"""Recurrent PPO and A2C in environments: what needs a memory is learned with one, and bookkeeping is exact."""

import copy

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from drl.agents.evaluation import evaluate
from drl.agents.watch import film, watch
from drl.algorithms.a2c import A2CConfig
from drl.algorithms.ppo import PPOConfig
from drl.buffers.rollout_buffer import EpisodeBuffer
from drl.core.configs import ModelConfig
from drl.core.errors import BadInput
from drl.core.seeding import Seeds
from drl.core.state_files import read_state, write_state
from drl.engines.numpy import distributions
from drl.engines.torch.build import build_learner
from drl.engines.torch.on_policy import evaluate_rollout
from drl.envs.make_vec_env import make_vec_env
from drl.envs.native_vec_env import wrap_vector_env
from drl.games.probes import CountingVectorEnv
from drl.trainer.trainer import Trainer, TrainerConfig

FAST = {"learning_rate": 1e-2, "learning_rate_end": 0.0}
CONFIGS = {
    "ppo": PPOConfig(rollout_length=16, minibatches=2, gamma=0.9, **FAST),
    "a2c": A2CConfig(rollout_length=8, optimizer="adam", gamma=0.9, **FAST),
}


def make_trainer(envs, algorithm="ppo", config=None, steps=None, normalize=False, **model):
    config = config or CONFIGS[algorithm]
    model_config = ModelConfig(**{"hidden_sizes": (16,), "recurrent": "gru", "recurrent_size": 16} | model)
    agent, learner = build_learner(algorithm, envs, (model_config, config), Seeds(3), normalize_obs=normalize)
    return Trainer(envs, agent, learner, config=TrainerConfig(total_timesteps=steps))


def train(algorithm, env, steps, config=None, **model):
    with make_vec_env(env, 8, seed=0) as envs:
        trainer = make_trainer(envs, algorithm, config, steps, **model)
        return next((trainer, log) for log in trainer() if log.env_steps >= steps)


@pytest.mark.default("gru-ppo", "lstm-a2c")
@pytest.mark.parametrize("algorithm", CONFIGS)
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_memory_repeats_what_it_saw(algorithm, kind):
    trainer, log = train(algorithm, "drl/Recall-v0", 5000, recurrent=kind, shared=algorithm == "ppo")
    assert log.recent["mean_ep_return"] > 0.9
    assert evaluate(trainer.agent, "drl/Recall-v0", 40).summary()["mean_return"] == 1.0


@pytest.mark.parametrize("algorithm", CONFIGS)
def test_without_a_memory_it_is_a_guess(algorithm):
    _, log = train(algorithm, "drl/Recall-v0", 5000, recurrent="none")
    assert abs(log.recent["mean_ep_return"]) < 0.4


@pytest.mark.default("*MoodTruncated*-ppo", "*Mood-v0*-a2c")
@pytest.mark.parametrize("algorithm", CONFIGS)
@pytest.mark.parametrize(
    ("env", "values"), [("drl/Mood-v0", [1.75, 1.5, 1.0]), ("drl/MoodTruncated-v0", [2.0, 2.0, 2.0])]
)
def test_values_of_what_is_only_remembered(algorithm, env, values):
    """γ = ½. Truncated, V(final observation) must be asked with what is remembered there: the observation is blank."""
    config = {
        "ppo": PPOConfig(rollout_length=16, minibatches=1, gamma=0.5, **FAST),
        "a2c": A2CConfig(rollout_length=8, optimizer="adam", gamma=0.5, **FAST),
    }[algorithm]
    trainer, _ = train(algorithm, env, 6000, config, shared=True)
    agent = trainer.agent
    agent.begin()
    blank = np.zeros((2, 2), np.float32)
    cues = np.array([[-1, 0], [1, 0]], np.float32)
    last = blank if env == "drl/MoodTruncated-v0" else blank + np.array([0, 1], np.float32)
    learned = []
    for obs in (cues, blank, last):
        learned.append(agent.value(obs))
        agent.decide(obs)
    np.testing.assert_allclose(learned, np.outer(values, [-1, 1]), atol=0.2)


@pytest.mark.default("gru-AutoresetMode.NEXT_STEP", "lstm-*")
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_the_learner_sees_the_policy_that_played(mode, kind):
    """In every autoreset mode, over several windows: log-probabilities worked out anew are those of acting."""
    with wrap_vector_env(CountingVectorEnv(3, mode)) as envs:
        config = PPOConfig(rollout_length=7, minibatches=3, learning_rate=1e-3)
        trainer = make_trainer(envs, config=config, recurrent=kind, normalize=True)
        agent, decide, played = trainer.agent, trainer.agent.decide, []

        def spy(obs, explore=False, action_mask=None):
            played.append(agent.dist_params(obs))
            return decide(obs, explore, action_mask)

        agent.decide = spy
        for _ in range(6):
            trainer.step()
            played.clear()
            while not trainer.buffer.ready:
                trainer._add(trainer.collector.step(trainer.env_steps))
            batch = trainer._prepared(trainer.buffer.take())
            rows = evaluate_rollout(agent.model, agent.distribution, batch, 0.99, 0.95)
            parts = distributions.probabilities(agent.distribution, np.concatenate(played))
            chosen = np.take_along_axis(parts[0].reshape(21, -1), batch.action.reshape(-1, 1), axis=1)[:, 0]
            np.testing.assert_allclose(rows.log_prob.exp(), chosen[rows.obs.packing.row], rtol=1e-4)
            assert len(rows.value) == batch.valid.sum()


def test_a_checkpoint_in_the_middle_of_a_window_goes_on_identically(tmp_path):
    with make_vec_env("drl/CartPoleNoVelocity-v1", 4, seed=1) as envs:
        trainer = make_trainer(envs, steps=2000)
        trainer.step()
        for _ in range(5):
            trainer._add(trainer.collector.step(trainer.env_steps))
        write_state(tmp_path / "state", trainer.state_dict())
        other = make_trainer(copy.deepcopy(envs), steps=2000)
        other.load_state_dict(read_state(tmp_path / "state"))
        assert trainer.agent.rnn_state.any()
        for _ in range(3):
            one, two = trainer.step(), other.step()
            assert (one.learn, one.rollout, one.recent) == (two.learn, two.rollout, two.recent)
        np.testing.assert_array_equal(trainer.agent.rnn_state, other.agent.rnn_state)


@pytest.mark.full
def test_whoever_watches_does_not_disturb(tmp_path, capsys):
    """Evaluation, step by step and film have a memory of their own; training goes on as if nothing had been."""
    env = "drl/CartPoleNoVelocity-v1"
    logs = []
    for watched in (False, True):
        with make_vec_env(env, 4, seed=1) as envs:
            trainer = make_trainer(envs, steps=2000)
            for _ in range(3):
                logs.append(trainer.step().learn)
                before = trainer.agent.rnn_state.copy()
                if watched:
                    evaluate(trainer.agent, env, 3, explore=True)
                    watch(trainer.agent, env, "ansi", 1, seed=0)
                    film(trainer.agent, env, tmp_path / "film.mp4")
                np.testing.assert_array_equal(trainer.agent.rnn_state, before)
    assert logs[:3] == logs[3:]
    assert "value" in capsys.readouterr().out


def test_step_by_step_shows_the_thoughts_behind_the_action(capsys):
    """The agent is asked before it acts: afterwards it would already remember what it is asked about."""
    trainer, _ = train("a2c", "drl/Recall-v0", 3000)
    watch(trainer.agent, "drl/Recall-v0", "ansi", 3, seed=0)
    with pytest.raises(BadInput, match="no render mode 'human'"):
        watch(trainer.agent, "drl/Recall-v0", "human", 3, seed=0)
    lines = [line for line in capsys.readouterr().out.splitlines() if "policy" in line]
    assert len(lines) == 12
    for line in lines:
        policy = [float(x) for x in line.split("policy [")[1].split("]")[0].split()]
        assert int(np.argmax(policy)) == int(line.split("action ")[1].split()[0])


def test_every_episode_of_an_evaluation_begins_with_a_blank_memory():
    """One environment after another or eight at once: the same games, whatever was played before them."""
    trainer, _ = train("a2c", "drl/Recall-v0", 3000)
    for num_envs in (1, 8):
        assert evaluate(trainer.agent, "drl/Recall-v0", 24, num_envs=num_envs).summary()["mean_return"] == 1.0


def test_a_memory_of_single_rows_is_refused():
    with make_vec_env("drl/Recall-v0", 2, seed=0) as envs:
        trainer = make_trainer(envs)
        episodes = EpisodeBuffer(envs, 4)
        with pytest.raises(BadInput, match="use a RolloutBuffer, not EpisodeBuffer"):
            Trainer(envs, trainer.agent, trainer.algorithm, episodes)
