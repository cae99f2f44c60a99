"""Whole fused programs: chunks do not matter, episodes are told truly, runs save and resume, seeds train together."""

import re

import numpy as np
import pytest

from drl.core.errors import BadInput
from drl.runs.building import build_seed_batch, in_one_program
from drl.runs.launch import train, train_seeds
from drl.settings.experiment import Experiment

SMALL = {
    "ppo": {"rollout_length": 16, "num_envs": 4, "minibatches": 2, "epochs": 2, "normalize_obs": True},
    "reinforce": {"episodes_per_step": 4, "num_envs": 2, "env_kwargs": ["max_episode_steps=40"], "baseline": "mean"},
    "dqn": {"num_envs": 2, "train_every": 4, "updates_per_log": 8, "warmup": 64, "batch_size": 16, "capacity": 200,
            "prioritized": True, "n_step": 2},
}  # fmt: skip
QUIET = {"quiet": True, "plots": False, "video": False, "tensorboard": False, "evaluation_episodes": 2}


def experiment(algorithm, **changes):
    settings = {"algorithm": algorithm, "engine": "jax", "hidden_sizes": [8], "total_timesteps": 2000}
    return Experiment.from_flat(settings | SMALL[algorithm] | changes, "a test")


def taken(trainer, steps):
    """What `steps` learning steps told, without the clock."""
    logs = [trainer.step() for _ in range(steps)]
    return [(log.env_steps, log.episodes, log.learn, log.rollout, log.recent, log.finished) for log in logs]


@pytest.mark.default("ppo")
@pytest.mark.parametrize("algorithm", SMALL)
def test_chunks_resume_and_seeds(algorithm):
    """One test for all of it: a program takes long to compile."""
    made = experiment(algorithm)
    assert in_one_program(made)
    whole, parts = build_seed_batch(made), build_seed_batch(made, sync_points=(130,))
    logs = taken(whole.trainers[0], 12)
    # Chunks of other lengths give the same numbers.
    assert taken(parts.trainers[0], 12) == logs
    # The books are right: CartPole pays 1 a step.
    for episode in logs[-1][-1]:
        assert episode.episode_return == episode.length
    lengths = sum(episode.length for log in logs for episode in log[-1])
    assert lengths <= logs[-1][0] <= lengths + 500 * made.run.num_envs
    assert logs[-1][1] == sum(len(log[-1]) for log in logs)
    if algorithm == "dqn":  # errors have become priorities; new rows get the largest one so far
        assert whole.learner.carry.buffer.top > 1.0
    # A state taken in the middle of a chunk continues exactly.
    state = whole.trainers[0].state_dict()
    further = taken(whole.trainers[0], 5)
    other = build_seed_batch(made)
    other.trainers[0].load_state_dict(state)
    assert taken(other.trainers[0], 5) == further
    for name, value in whole.trainers[0].agent.model_state.host.items():
        np.testing.assert_array_equal(value, other.trainers[0].agent.model_state.host[name])


@pytest.mark.full
def test_a_seed_that_is_left_stays_as_it_is():
    """The others go on in the same program."""
    seed_batch = build_seed_batch(experiment("ppo", num_seeds=2), sync_points=(64,))
    first, second = seed_batch.trainers
    taken(first, 2)
    taken(second, 2)
    steps, pending = first.env_steps, len(first.pending)
    before = {name: value.copy() for name, value in first.agent.model_state.host.items()}
    first.leave()
    taken(second, 6)
    assert (first.env_steps, len(first.pending)) == (steps, pending)
    stored = first.state_dict()
    for name, value in before.items():
        np.testing.assert_array_equal(first.agent.model_state.host[name], value)
        np.testing.assert_array_equal(stored["agent"]["model"][name], value)
        assert (second.agent.model_state.host[name] != value).any()


@pytest.mark.default("dqn")
@pytest.mark.parametrize("algorithm", SMALL)
def test_the_same_command_twice_gives_the_same_metrics(algorithm, tmp_path):
    made = experiment(algorithm, results_dir=str(tmp_path), **QUIET)
    told = []
    for _ in range(2):
        lines = (train(made, console=False).folder / "metrics.jsonl").read_text().splitlines()
        told.append([re.sub(r'"time/[^,}]*,? ?', "", line) for line in lines])
    assert len(told[0]) > 3
    assert told[0] == told[1]


def test_sync_points_end_chunks():
    seed_batch = build_seed_batch(experiment("ppo"), sync_points=(300, 1000))
    ends, seen = [], 0
    for _ in range(20):
        seed_batch.advance()
        ends.append(seed_batch.computed[0])
    for sync_point in (300, 600, 900, 1000, 1200):
        passed = next(end for end in ends if end >= sync_point)
        assert passed - sync_point < 64, "the step that passes one is the last of its chunk"
    assert all(b > a for a, b in zip([seen, *ends], ends, strict=False))


@pytest.mark.full
def test_seeds_train_together_as_they_would_alone(tmp_path, capsys):
    options = QUIET | {"results_dir": str(tmp_path), "env": "MovieRec-v1"}
    both = train_seeds(experiment("ppo", num_seeds=2, seed=3, **options | {"plots": True, "quiet": False}))
    said = capsys.readouterr().out
    assert re.search(r"%  \d:\d\d:\d\d left  seed 3, of 2 seeds  step", said), "one panel, which says whose it is"
    assert f"   1 of 2  seed 3 is saved: {both[0].folder}" in said
    assert f"   2 of 2  seed 4 is saved: {both[1].folder}  (0:00:00 left)" in said
    alone = train(experiment("ppo", seed=4, **options), console=False)
    assert [run.log.env_steps for run in both] == [alone.log.env_steps] * 2
    np.testing.assert_allclose(
        [both[1].log.learn[name] for name in ("policy_loss", "entropy")],
        [alone.log.learn[name] for name in ("policy_loss", "entropy")],
        rtol=1e-2,
        atol=1e-4,
    )
    assert both[0].folder != both[1].folder
    assert (both[1].folder / "config.yaml").read_text().count("seed: 4") == 1
    assert list(both[0].folder.parent.glob("*_seeds.png"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "torch", "vectorization": "jax"}, "needs --engine jax"),
        ({"num_seeds": 2, "workers": 1}, "workers is for seeds in processes"),
        ({"compile": True}, "always compiles"),
        ({"vectorization": "jax", "env": "LunarLander-v3"}, "written in JAX"),
        ({"vectorization": "jax", "frame_stack": 2}, "frame_stack"),
        ({"device": "tpu"}, "device"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path, changes, message):
    with pytest.raises(BadInput, match=message):
        train_seeds(experiment("ppo", results_dir=str(tmp_path), **changes), console=False)
    assert not list(tmp_path.iterdir())


def test_a_dqn_that_does_not_divide_says_what_to_type():
    with pytest.raises(BadInput, match="train-every"):
        build_seed_batch(experiment("dqn", num_envs=3, train_every=4))


def test_a_program_stores_its_whole_replay():
    with pytest.raises(BadInput, match="checkpoint_rows"):
        build_seed_batch(experiment("dqn", checkpoint_rows=10))


def test_a_dqn_ends_at_its_budget():
    """In the middle of a round and of the warm-up as well; two environments step together."""
    logs = list(build_seed_batch(experiment("dqn", total_timesteps=39)).trainers[0]())
    assert logs[-1].env_steps == 40
    assert logs[-1].learn == {}


@pytest.mark.full
def test_seeds_end_each_at_its_own_episode():
    trainers = build_seed_batch(
        experiment("dqn", num_seeds=2, total_timesteps=None, num_episodes=3, num_envs=1)
    ).trainers
    for trainer in trainers:
        logs = list(trainer())
        assert logs[-1].episodes == 3
        assert logs[-1].env_steps == sum(episode.length for log in logs for episode in log.finished)
        assert trainer.in_sync
    assert trainers[0].env_steps != trainers[1].env_steps
    assert list(trainers[0]()) == []
