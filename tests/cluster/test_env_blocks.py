"""Blocks of a run's environments, in this process."""

import numpy as np
import pytest

from drl.cluster.env_blocks import BlockState, CollectRequest, collect, go_to, joined
from drl.envs.make_vec_env import make_vec_env
from drl.runs.collector_blocks import RunBlocks
from drl.settings.experiment import Experiment

SETTINGS = {"env": "CartPole-v1", "num_envs": 5, "hidden_sizes": [8], "cluster": "local", "num_collectors": 2}
SETTINGS |= {"env_blocks": 2, "seed": 4}
RECURRENT = {"env": "drl/LegalMoves-v0", "recurrent": "gru", "recurrent_size": 4}
NOISY = {"algorithm": "ddpg", "env": "Pendulum-v1", "noise": "ornstein_uhlenbeck"}


def make_blocks(**changes):
    return RunBlocks(Experiment.from_flat(SETTINGS | changes, "test"), None)


def order(steps, with_state=False):
    return CollectRequest((0,), steps, 0, 5, 0, with_state)


def test_blocks_are_the_environments_of_one_run_with_random_streams_of_their_own():
    first, second = (make_blocks().make(number) for number in (0, 1))
    with make_vec_env("CartPole-v1", 5, seed=4, vectorization="sync") as envs:
        np.testing.assert_array_equal(np.concatenate([first.envs.reset(), second.envs.reset()]), envs.reset())
    assert first.agent.rng.random() != second.agent.rng.random()
    assert [episode.env_index for _, episode in collect(second, order(300), lambda: None).episodes][:1] in ([3], [4])


@pytest.mark.parametrize(
    "settings", [{}, RECURRENT, NOISY, {"frame_stack": 3}], ids=["plain", "recurrent", "noisy", "stack"]
)
@pytest.mark.parametrize("with_state", [False, True])
def test_a_block_continues_elsewhere(settings, with_state):
    block = make_blocks(**settings).make(0)
    state = BlockState()
    for steps, asked in ((20, False), (30, with_state), (7, False)):
        state = state.after(collect(block, order(steps, asked), lambda: None))
    assert state.steps_to_follow == (7 if with_state else 57)
    other = make_blocks(**settings).make(0)
    assert go_to(other, BlockState.from_plain(state.plain())) is None
    one, two = (collect(each, order(40), lambda: None) for each in (block, other))
    for name in ("obs", "action", "reward", "terminated", "truncated", "final_obs"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert one.episodes == two.episodes


def test_a_block_whose_environments_differ_begins_new_episodes():
    block = make_blocks().make(0)
    state = BlockState().after(collect(block, order(10), lambda: None))
    other = make_blocks().make(0)
    assert "show other observations" in go_to(other, state._replace(obs=state.obs + 1))
    assert other.obs is None


def test_joined_steps_are_those_of_the_trainer():
    """Of blocks in any order; rows of environments without a block are not valid."""
    blocks = make_blocks()
    first, second = (collect(blocks.make(number), order(30), lambda: None) for number in (0, 1))
    taken = joined([(slice(3, 5), second), (slice(0, 3), first)], 5)
    for t, each in enumerate(taken):
        np.testing.assert_array_equal(each.obs, np.concatenate([first.obs[t], second.obs[t]]))
        over = each.step.terminated | each.step.truncated
        np.testing.assert_array_equal(each.step.next_obs[~over], each.step.obs[~over])
        assert len(each.step.episodes) == over.sum()
        assert not any((each.step.next_obs[env] == each.step.obs[env]).all() for env in np.flatnonzero(over))
    assert sum(len(each.step.episodes) for each in taken) > 0
    alone = joined([(slice(3, 5), second)], 5)
    assert alone[0].step.valid.tolist() == [False, False, False, True, True]
