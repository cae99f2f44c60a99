"""The probe worlds keep their word, by Gymnasium's own checker and by their documented values."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from drl.envs.probes import CountingEnv, MatchEnv, OneStepEnv, TargetEnv, TwoStepEnv


@pytest.mark.filterwarnings("ignore:.*symmetric and normalized")  # the target world's [−2, 2] is on purpose
@pytest.mark.parametrize("make", [TwoStepEnv, OneStepEnv, MatchEnv, TargetEnv])
def test_gymnasium_accepts_them(make):
    check_env(make(), skip_render_check=True)


@pytest.mark.parametrize("truncate", [False, True])
def test_two_steps(truncate):
    env = TwoStepEnv(truncate)
    obs, _ = env.reset()
    assert obs == 0
    obs, reward, *flags, _ = env.step(0)
    assert (obs, reward, flags) == (1, 0.0, [False, False])
    obs, reward, *flags, _ = env.step(1)
    assert (obs, reward, flags) == (1, 1.0, [not truncate, truncate])


def test_one_step():
    env = OneStepEnv(reward=-3.0, truncate=True)
    env.reset()
    assert env.step(0)[1:4] == (-3.0, False, True)


def test_the_right_answer_pays():
    match = MatchEnv(choices=4)
    for seed in range(8):
        wanted, _ = match.reset(seed=seed)
        assert [match.step(a)[1] for a in range(4)] == [1.0 if a == wanted else -1.0 for a in range(4)]
    target = TargetEnv(size=2)
    goal, _ = target.reset(seed=0)
    assert target.step(2 * goal)[1] == 0.0
    assert target.step(2 * goal + 1)[1] == pytest.approx(-0.5)


def test_counting_lengths_follow_the_first_action():
    env = CountingEnv()
    for episode in range(6):
        obs, _ = env.reset()
        assert obs.tolist() == [episode, 0, -1]
        length = 1 + (2 * episode + 3) % 5
        ends = [env.step(3 if t == 0 else 0)[2:4] for t in range(length)]
        assert not np.any(ends[:-1])
        assert ends[-1] == (episode % 3 != 1, episode % 3 != 0)
