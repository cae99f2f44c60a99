from types import SimpleNamespace

import numpy as np

from drl.agents.evaluation import Evaluation, own_stream, run_episodes
from drl.core.configs import ActionNoiseConfig
from drl.core.log import Episode
from drl.core.specs import ActionSpec
from drl.engines.numpy.exploration import make_exploration
from drl.envs.sync_vec_env import SyncVecEnv
from drl.games.probes import CountingEnv

BOX = ActionSpec("box", shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0), dtype="float32")


class Constant:
    """An agent that always takes action 0 in the first environment and 3 in the second."""

    recurrent = False

    def __init__(self, action_spec):
        self.action_spec = action_spec

    def begin(self, envs=None):
        pass

    def decide(self, obs, explore, action_mask):
        return 3 * np.arange(len(obs))


def test_every_environment_plays_its_share_however_long_its_episodes_are():
    """Episode e lasts 1 + (2 e + first action) mod 5 steps: 1, 3, 5 with action 0 and 4, 1, 3 with action 3."""
    with SyncVecEnv([CountingEnv] * 2, seed=0) as envs:
        episodes = run_episodes(Constant(envs.action_spec), envs, 5).episodes
    assert [(episode.env_index, episode.length) for episode in episodes] == [(0, 1), (0, 3), (0, 5), (1, 4), (1, 1)]


def test_evaluation_leaves_the_stream_and_the_memory_of_training_alone():
    noise = make_exploration(ActionNoiseConfig(noise="ornstein_uhlenbeck", noise_sigma=0.5), BOX)
    agent = SimpleNamespace(rng=np.random.default_rng(3), rnn_state="what it remembers", exploration=noise)
    noise.noise = np.ones((4, 2), np.float32)
    drawn = []
    for _ in range(2):
        with own_stream(agent, seed=7):
            assert agent.rnn_state is None
            noise.begin()
            drawn.append(agent.rng.random())
    assert drawn[0] == drawn[1]  # the same evaluation again
    assert agent.rng.random() == np.random.default_rng(3).random()
    assert agent.rnn_state == "what it remembers"
    assert (noise.noise == 1.0).all()


def test_the_sentence_says_how_fast_and_the_summary_does_not():
    episodes = [Episode(1.0, 5, True, None, 0)] * 3
    assert Evaluation(episodes, seconds=2.0).sentence().endswith(", 3 episodes (1.5 a second)")
    assert Evaluation(episodes).sentence().endswith(", 3 episodes")
    assert Evaluation(episodes, seconds=2.0).summary() == Evaluation(episodes).summary()
    assert Evaluation(episodes, seconds=2.0) == Evaluation(episodes)
