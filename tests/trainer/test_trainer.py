import itertools

import gymnasium
import numpy as np
import pytest

import drl
from drl.algorithms.dqn import DQNConfig
from drl.algorithms.ppo import PPOConfig
from drl.algorithms.reinforce import ReinforceConfig
from drl.algorithms.td3 import TD3Config
from drl.buffers.replay_buffer import ReplayBuffer
from drl.buffers.rollout_buffer import EpisodeBuffer, RolloutBuffer
from drl.core.configs import ActorCriticConfig, ModelConfig, QModelConfig, ReplayConfig
from drl.core.contracts import Learned
from drl.core.errors import BadInput, NonFinite
from drl.core.normalize import RewardScaler
from drl.core.seeding import Seeds
from drl.core.state_files import read_state, write_state
from drl.engines.torch.build import build_learner
from drl.envs.make_vec_env import make_vec_env
from drl.trainer.trainer import Trainer, TrainerConfig

CONFIG = PPOConfig(rollout_length=32, learning_rate_end=0.0)


def make_trainer(envs, seed=1, normalize=False):
    agent, learner = build_learner("ppo", envs, (ModelConfig(), CONFIG), Seeds(seed), normalize_obs=normalize)
    scaler = RewardScaler(envs.num_envs, 0.99) if normalize else None
    return Trainer(envs, agent, learner, None, TrainerConfig(total_timesteps=2000), scaler)


def numbers(log):
    return {name: value for name, value in log.flat().items() if not name.startswith("time/")}


@pytest.mark.parametrize("normalize", [False, True])
def test_the_same_seed_gives_the_same_logs_and_iterating_resumes(normalize):
    with make_vec_env("CartPole-v1", 4, seed=1) as one, make_vec_env("CartPole-v1", 4, seed=1) as two:
        straight = [numbers(log) for log in itertools.islice(make_trainer(one, normalize=normalize)(), 6)]
        trainer = make_trainer(two, normalize=normalize)
        broken = []
        for _ in range(3):  # break and iterate again: nothing is lost
            broken += [numbers(log) for log in itertools.islice(trainer(), 2)]
    assert straight == broken


def test_another_seed_gives_other_logs():
    with make_vec_env("CartPole-v1", 4, seed=1) as one, make_vec_env("CartPole-v1", 4, seed=1) as two:
        assert numbers(make_trainer(one, seed=1).step()) != numbers(make_trainer(two, seed=2).step())


def test_counters_and_schedules():
    with make_vec_env("CartPole-v1", 4, seed=1) as envs:
        logs = list(itertools.islice(make_trainer(envs)(), 20))
    assert [log.env_steps for log in logs[:3]] == [128, 256, 384]
    assert [log.trainer["learning_rate"] for log in logs[:2]] == [3e-4, pytest.approx(3e-4 * (1 - 128 / 2000))]
    assert [logs[-1].env_steps, len(logs)] == [2048, 16]  # the rollout that reaches the budget is the last
    assert sum(len(log.finished) for log in logs) == logs[-1].episodes
    lengths = [episode.length for log in logs for episode in log.finished]
    assert all(episode.episode_return == episode.length for log in logs for episode in log.finished)
    assert logs[-1].recent["mean_ep_len"] == pytest.approx(np.mean(lengths[-100:]))


def test_learner_state_survives_a_trip_to_disk(tmp_path):
    """After loading, the same batch teaches the same lesson (environments themselves resume in a later release)."""
    with make_vec_env("CartPole-v1", 4, seed=1) as envs, make_vec_env("CartPole-v1", 4, seed=1) as other_env:
        trainer = make_trainer(envs, normalize=True)
        for _ in range(3):
            trainer.step()
        write_state(tmp_path / "state", trainer.state_dict())
        other = make_trainer(other_env, seed=5, normalize=True)
        other_env.reset()
        other.load_state_dict(read_state(tmp_path / "state"))
        assert (other.env_steps, other.episodes) == (trainer.env_steps, trainer.episodes)
        assert other.stats.recent == trainer.stats.recent
        np.testing.assert_array_equal(other.obs, trainer.obs)
        assert other.agent.rng.bit_generator.state == trainer.agent.rng.bit_generator.state
        while not trainer.buffer.ready:
            trainer._add(trainer.collector.step(trainer.env_steps))
        batch = trainer.buffer.take()
        results = [t.algorithm.learn(t._prepared(batch), 0.5) for t in (trainer, other)]
        assert results[0] == results[1]
        obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
        np.testing.assert_array_equal(trainer.agent.dist_params(obs), other.agent.dist_params(obs))


def test_a_number_that_is_not_finite_stops_with_a_hint():
    with make_vec_env("CartPole-v1", 4, seed=1) as envs:
        trainer = make_trainer(envs)
        trainer.algorithm.learn = lambda batch, progress: Learned({"policy_loss": float("nan")})
        with pytest.raises(NonFinite, match=r"policy_loss.*learning rate"):
            trainer.step()


class Recorder:
    """An exploration that changes nothing and remembers what it is told."""

    carries = True

    def __init__(self):
        self.now, self.times, self.begins = None, [], []

    def at(self, env_steps):
        self.now = env_steps
        return {}

    def begin(self, envs=None):
        self.begins.append(None if envs is None else envs.tolist())

    def __call__(self, action, rng, action_mask=None):
        self.times.append(self.now)
        return action


def make_replay_trainer(envs, **changes):
    settings = (QModelConfig(hidden_sizes=(8,)), DQNConfig())
    agent, learner = build_learner("dqn", envs, settings, Seeds(1))
    buffer = ReplayBuffer(envs, batch_size=8, warmup=8, train_every=4, **changes)
    return Trainer(envs, agent, learner, buffer, TrainerConfig(updates_per_log=5))


def test_exploration_is_told_environment_steps_and_where_episodes_begin():
    """ε of 4 environments falls as fast as that of one: per step of an environment, not per call."""
    with make_vec_env("CartPole-v1", 4, seed=1) as envs:
        trainer = make_replay_trainer(envs)
        trainer.agent.exploration = told = Recorder()
        over, step = [], envs.step
        envs.step = lambda action: over.append((result := step(action)).over.tolist()) or result
        trainer.step()
        trainer.step()
    assert told.times == list(range(0, 4 * len(over), 4))
    assert told.begins == [None, *over]
    assert any(map(any, over))


def test_the_errors_of_an_update_become_the_priorities_of_its_rows():
    with make_vec_env("CartPole-v1", 4, seed=1) as envs:
        trainer = make_replay_trainer(envs, prioritized=True)
        learned, given = [], []

        def learn(batch, progress):
            learned.append((batch.index.tolist(), [len(learned) + row / 8 for row in range(8)]))
            return Learned({}, np.array(learned[-1][1]))

        trainer.algorithm.learn = learn
        trainer.buffer.update_priorities = lambda index, error: given.append((index.tolist(), error.tolist()))
        trainer.step()
    assert given == learned
    assert len(given) == 5


def test_a_log_has_means_over_the_updates_that_report_a_number():
    with make_vec_env("CartPole-v1", 4, seed=1) as envs:
        trainer = make_replay_trainer(envs)
        reports = iter([{"loss": 1.0}, {"loss": 2.0, "actor_loss": 5.0}, {"loss": 3.0}, {"loss": 4.0}, {"loss": 10.0}])
        trainer.algorithm.learn = lambda batch, progress: Learned(next(reports))
        assert trainer.step().learn == {"loss": 4.0, "actor_loss": 5.0}


def test_rewards_and_steps_of_a_log_are_its_own_and_leave_out_reset_rows():
    """The native CartPole resets in a row of its own, which pays nothing and is no step."""
    with make_vec_env("CartPole-v1", 4, seed=1, vectorization="native") as envs:
        logs = list(itertools.islice(make_trainer(envs)(), 4))
        assert logs[-1].env_steps == envs.stats.env_steps < 4 * 4 * CONFIG.rollout_length
    assert [log.rollout["mean_reward"] for log in logs] == [1.0] * 4
    assert sum(log.rollout["rollout_len"] for log in logs) == logs[-1].env_steps


def test_a_rollout_is_learned_with_the_statistics_that_it_was_played_with():
    with make_vec_env("CartPole-v1", 4, seed=1) as envs:
        trainer = make_trainer(envs, normalize=True)
        counts, learn = [], trainer.algorithm.learn
        trainer.algorithm.learn = lambda *given: counts.append(trainer.agent.normalizer.count) or learn(*given)
        for _ in range(3):
            trainer.step()
    assert counts == [0, 128, 256]


# ── parts that fit together ───────────────────────────────────────────────────────────────────────────────────────


LEARNERS = {
    "ppo": (ModelConfig(hidden_sizes=(8,)), PPOConfig(rollout_length=32)),
    "reinforce": (ModelConfig(hidden_sizes=(8,)), ReinforceConfig(episodes_per_step=3)),
    "dqn": (QModelConfig(hidden_sizes=(8,)), DQNConfig(gamma=0.8)),
    "td3": (ActorCriticConfig(hidden_sizes=(8,)), TD3Config()),
}


def make_parts(name, env="CartPole-v1"):
    envs = make_vec_env(env, 2, seed=1)
    return envs, *build_learner(name, envs, LEARNERS[name], Seeds(1))


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("ppo", RolloutBuffer, {"length": 32, "updates_per_log": 1, "first_update": 64}),
        ("reinforce", EpisodeBuffer, {"num_episodes": 3, "updates_per_log": 1}),
        ("dqn", ReplayBuffer, {"config": ReplayConfig(), "gamma": 0.8, "updates_per_log": 100, "first_update": 1000}),
    ],
)
def test_the_default_buffer_is_that_of_the_algorithms_record(name, kind, settings):
    trainer = Trainer(*make_parts(name))
    assert type(trainer.buffer) is kind
    assert {setting: getattr(trainer.buffer, setting) for setting in settings} == settings
    assert trainer.updates_per_log == settings["updates_per_log"]


@pytest.mark.parametrize(
    ("name", "make_buffer", "message"),
    [
        (
            "ppo",
            lambda envs: RolloutBuffer(envs, 16),
            r"rollout_length is 32, .* 16 .*RolloutBuffer\(envs, 32\)",
        ),
        ("reinforce", EpisodeBuffer, r"episodes_per_step is 3, .* collects 1; use EpisodeBuffer\(envs, 3\)"),
        ("dqn", lambda envs: ReplayBuffer(envs, gamma=0.5), "gamma is 0.8 in the algorithm and 0.5 in the buffer"),
    ],
)
def test_a_buffer_with_other_settings_than_the_algorithm_is_refused(name, make_buffer, message):
    envs, agent, algorithm = make_parts(name)
    with pytest.raises(BadInput, match=message):
        Trainer(envs, agent, algorithm, make_buffer(envs))


def test_a_replay_buffer_takes_the_discount_of_the_algorithm():
    envs, agent, algorithm = make_parts("dqn")
    buffer = ReplayBuffer(envs, n_step=3)
    Trainer(envs, agent, algorithm, buffer)
    assert buffer.n_step.gamma == 0.8


@pytest.mark.parametrize(
    ("name", "env", "agent_class"), [("dqn", "CartPole-v1", "QAgent"), ("td3", "Pendulum-v1", "PolicyAgent")]
)
def test_an_agent_that_would_never_explore_is_refused(name, env, agent_class):
    envs, agent, algorithm = make_parts(name, env)
    Trainer(envs, agent, algorithm)  # its own exploration will do
    agent.exploration = None
    with pytest.raises(BadInput, match=rf"{agent_class} .* never explore; make it with {agent_class}\(model, envs\)"):
        Trainer(envs, agent, algorithm)


def test_exploration_knows_when_updates_begin():
    """A random start lasts until the first update, which the buffer decides."""
    envs, agent, algorithm = make_parts("td3", "Pendulum-v1")
    Trainer(envs, agent, algorithm, ReplayBuffer(envs, warmup=300))
    assert agent.exploration.start.random_steps == 300


def test_a_call_sets_the_budget():
    """In environment steps in all: a second call goes on where the first one ended."""
    trainer = Trainer(*make_parts("ppo"))
    assert [log.env_steps for log in trainer(128)] == [64, 128]
    assert [log.env_steps for log in trainer(256)] == [192, 256]
    assert list(trainer(200)) == []
    with pytest.raises(BadInput, match="total_timesteps is 0; expected at least 1"):
        trainer(0)


class Closing(gymnasium.Wrapper):
    closed = 0

    def close(self):
        Closing.closed += 1
        super().close()


@pytest.mark.full
def test_a_made_trainer_closes_the_environments_that_it_opened():
    Closing.closed = 0
    settings = {"num_envs": 2, "vectorization": "sync", "rollout_length": 16, "hidden_sizes": [8]}
    with drl.make_trainer("ppo", env="CartPole-v1", wrappers=[Closing], **settings) as trainer:
        next(iter(trainer()))
        assert Closing.closed == 0
    assert Closing.closed == 2


@pytest.mark.full
def test_a_made_trainer_leaves_a_given_vector_environment_open():
    vector = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    with drl.make_trainer("ppo", env=vector, rollout_length=16, hidden_sizes=[8]) as trainer:
        next(iter(trainer()))
    assert not vector.closed
    vector.close()


def test_a_made_trainer_takes_no_setting_of_a_run():
    with pytest.raises(BadInput, match=r"num_seeds is a setting of a run.*drl\.train"):
        drl.make_trainer("ppo", env="CartPole-v1", num_seeds=2)


def test_a_compiled_program_refuses_a_new_budget():
    settings = {"engine": "jax", "vectorization": "jax", "rollout_length": 16, "hidden_sizes": [8]}
    trainer = drl.make_trainer("ppo", env="CartPole-v1", total_timesteps=256, **settings)
    with pytest.raises(BadInput, match="budget is compiled into this program; give total_timesteps"):
        trainer(512)
