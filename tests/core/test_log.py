"""What counts as a success, and how it is counted."""

import pickle

import numpy as np

from drl.agents.evaluation import Evaluation, run_episodes
from drl.core.log import Change, Episode, Log, Played
from drl.envs.episode_stats import judge_success
from drl.envs.make_vec_env import make_vec_env
from drl.trainer.trainer import rates


def episode(terminated, success, total=1.0):
    return Episode(total, 1, terminated, success, 0)


def test_the_envs_word_comes_first_then_the_threshold_then_nothing():
    assert judge_success(True, -1.0, 100.0) is True
    assert judge_success(False, 500.0, 475.0) is False
    assert judge_success(None, 475.0, 475.0) is True
    assert judge_success(None, 474.0, 475.0) is False
    assert judge_success(None, 474.0, None) is None


def test_rates_count_what_can_be_judged():
    assert rates([episode(True, None), episode(False, None)]) == {"terminated_rate": 0.5}
    mixed = [episode(True, None), episode(True, True), episode(False, False)]
    assert rates(mixed) == {"terminated_rate": 2 / 3, "success_rate": 0.5}


class Balancer:
    """Keeps a pole up, or lets it fall."""

    recurrent = False

    def __init__(self, envs, good):
        self.action_spec, self.good = envs.action_spec, good

    def begin(self, envs=None):
        pass

    def decide(self, obs, explore=False, action_mask=None):
        lean = obs[:, 2] + 0.3 * obs[:, 3] + 0.05 * obs[:, 0] + 0.05 * obs[:, 1]
        return (lean > 0).astype(int) if self.good else (lean < 0).astype(int)


def test_a_perfect_cartpole_is_a_success_and_a_fallen_one_is_not():
    told = []
    for good in (True, False):
        with make_vec_env("CartPole-v1", 4, seed=1) as envs:
            told.append(run_episodes(Balancer(envs, good), envs, 4))
    perfect, fallen = (evaluation.summary() for evaluation in told)
    assert (perfect["mean_return"], perfect["success_rate"], perfect["terminated_rate"]) == (500.0, 1.0, 0.0)
    assert (fallen["success_rate"], fallen["terminated_rate"]) == (0.0, 1.0)
    assert "success rate 100%" in told[0].sentence()


def test_a_lost_pong_says_nothing_of_success():
    lost = Evaluation([episode(True, judge_success(None, -21.0, None), -21.0)])
    assert "success_rate" not in lost.summary()
    assert "success" not in lost.sentence()


def test_a_plain_name_is_looked_up_in_the_recent_episodes_first():
    log = Log(8, 1, 1, rollout={"mean_ep_return": 1.0}, recent={"mean_ep_return": 2.0}, learn={"loss": 3.0})
    assert (log["mean_ep_return"], log["rollout/mean_ep_return"], log["loss"]) == (2.0, 1.0, 3.0)
    assert "recent/loss" not in log
    assert log.get("entropy") is None


def test_an_episode_can_be_sent_to_another_process_and_stored():
    """With all that repeats it."""
    plain = Episode(1.0, 2, True, None, 0)
    played = Played(3, np.array([0, 1]), (Change(-1, "level", 2), Change(1, "level", 3)))
    whole = plain._replace(played=played, info={"coins": 2.0})
    for episode in (plain, whole):
        assert pickle.loads(pickle.dumps(episode)) == episode
        assert Episode.from_plain(episode.plain()) == episode
