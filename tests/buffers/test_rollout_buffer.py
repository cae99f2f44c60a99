import numpy as np
import pytest

from drl.buffers.rollout_buffer import EpisodeBuffer, RolloutBuffer
from drl.core.contracts import VecStep
from drl.core.log import Episode
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec

SPECS = EnvSpecs(ObsSpec("box", (1,)), ActionSpec("discrete", sizes=(2,)), num_envs=2)


def step(next_obs, obs, terminated, truncated, valid, reward=1.0):
    count = len(next_obs)
    flags = (np.array(terminated, bool), np.array(truncated, bool))
    episodes = [Episode(1.0, 1, bool(flags[0][i]), True, i) for i in np.flatnonzero(flags[0] | flags[1])]
    column = lambda x: np.array(x, np.float32)[:, None]  # noqa: E731
    rewards = np.full(count, reward, np.float32)
    return VecStep(rewards, *flags, column(next_obs), column(obs), np.array(valid, bool), episodes)


# Environment 0: 0 → 1 → 2 | end at 2 (terminated), 10 → 11.  Environment 1: 5 → 6 (truncated), a reset row, 20 → 21 →
# 22.
SCRIPT = [
    ([0, 5], step([1, 6], [1, 6], [0, 0], [0, 1], [1, 1])),
    ([1, 6], step([2, 0], [10, 20], [1, 0], [0, 0], [1, 0])),
    ([10, 20], step([11, 21], [11, 21], [0, 0], [0, 0], [1, 1])),
]


def filled(buffer):
    for obs, result in SCRIPT:
        buffer.add(np.array(obs, np.float32)[:, None], np.array([0, 1]), result)
    return buffer


def test_successors_are_true_also_at_ends_and_reset_rows_are_not_stored():
    buffer = filled(RolloutBuffer(SPECS, 3))
    assert buffer.ready
    rows = buffer.take().transition()
    pairs = sorted(zip(rows.obs[:, 0].tolist(), rows.next_obs[:, 0].tolist(), strict=True))
    assert pairs == [(0, 1), (1, 2), (5, 6), (10, 11), (20, 21)]
    assert rows.truncated.sum() == rows.terminated.sum() == 1
    assert not buffer.ready


def test_rollout_state_survives_a_round_trip_in_the_middle():
    buffer = RolloutBuffer(SPECS, 3)
    for obs, result in SCRIPT[:2]:
        buffer.add(np.array(obs, np.float32)[:, None], np.array([0, 1]), result)
    other = RolloutBuffer(SPECS, 3)
    other.load_state_dict(buffer.state_dict())
    for m in (buffer, other):
        m.add(np.array(SCRIPT[2][0], np.float32)[:, None], np.array([0, 1]), SCRIPT[2][1])
    one, two = buffer.take().transition(), other.take().transition()
    for name in ("obs", "action", "reward", "terminated", "truncated", "next_obs"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def test_episodes_come_whole_one_after_another():
    buffer = filled(EpisodeBuffer(SPECS, 2))
    assert buffer.ready
    batch = buffer.take()
    assert batch.obs[:, 0, 0].tolist() == [5, 0, 1]
    assert batch.final_obs[:, 0].tolist() == [6, 2]
    assert batch.final_index.tolist() == [0, 2]
    assert not buffer.ready
    # What was running stays: environment 0 is at 10 → 11, environment 1 at 20 → 21.
    buffer.add(
        np.array([[11.0], [21.0]], np.float32), np.array([0, 0]), step([12, 22], [12, 30], [0, 1], [0, 0], [1, 1])
    )
    assert buffer.complete[0]["obs"][:, 0].tolist() == [20, 21]


@pytest.mark.parametrize("split", [1, 2])
def test_episodes_state_survives_a_round_trip(split):
    buffer = EpisodeBuffer(SPECS, 2)
    for obs, result in SCRIPT[:split]:
        buffer.add(np.array(obs, np.float32)[:, None], np.array([0, 1]), result)
    other = EpisodeBuffer(SPECS, 2)
    other.load_state_dict(buffer.state_dict())
    for obs, result in SCRIPT[split:]:
        for m in (buffer, other):
            m.add(np.array(obs, np.float32)[:, None], np.array([0, 1]), result)
    np.testing.assert_array_equal(buffer.take().obs, other.take().obs)
