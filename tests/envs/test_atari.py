"""Atari: what a learner sees, what is counted, and that ale-py's own vector environment shows the same."""

import json
import sys

import numpy as np
import pytest

from drl.agents.evaluation import evaluate
from drl.buffers.replay_buffer import ReplayBuffer
from drl.core.errors import BadInput, MissingExtra
from drl.envs.make_vec_env import make_env, make_vec_env
from drl.runs.launch import train
from drl.settings.experiment import Experiment

PONG = "ALE/Pong-v5"
SHORT = {"max_num_frames_per_episode": 80}  # 20 steps
PLAIN = SHORT | {"noop_max": 0, "repeat_action_probability": 0.0}  # nothing is random


def roll(envs, steps=30, seed=0):
    """First observation, then every step."""
    rng = np.random.default_rng(seed)
    actions = rng.integers(envs.action_spec.sizes[0], size=(steps, envs.num_envs))
    return envs.reset(), [envs.step(action) for action in actions]


def results(steps):
    """Of the episodes; only some vectorizations can repeat them, and ale-py's vector form has no last info."""
    return [episode._replace(played=None, info={}) for step in steps for episode in step.episodes]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.default("sync", "native")
@pytest.mark.parametrize("vectorization", ["sync", "async", "native"])
def test_observations_are_four_small_gray_frames(vectorization):
    with make_vec_env(PONG, 2, seed=1, vectorization=vectorization, frame_stack=4) as envs:
        first, steps = roll(envs, 3)
        assert envs.vectorization == vectorization
        assert first.shape == (2, 4, 84, 84)
        assert first.dtype == np.uint8
        assert all(step.obs.shape == first.shape and step.obs.dtype == np.uint8 for step in steps)
        assert (first == first[:, :1]).all()  # the first frame is repeated
        assert envs.action_spec.sizes == (6,)


@pytest.mark.parametrize(
    ("kwargs", "shape"), [({"screen_size": 42}, (4, 42, 42)), ({"grayscale": False}, (12, 84, 84)), ({}, (4, 84, 84))]
)
def test_a_single_environment_shows_what_its_env_shows(kwargs, shape):
    with make_vec_env(PONG, 1, vectorization="sync", frame_stack=4, env_kwargs=kwargs) as envs:
        assert envs.obs_spec.shape == shape
    env = make_env(PONG, "rgb_array", frame_stack=4, env_kwargs=kwargs)
    obs, _ = env.reset(seed=0)
    assert obs.shape == shape
    assert env.render().shape == (210, 160, 3)
    env.close()


def test_without_a_stack_a_gray_image_has_one_channel():
    for vectorization in ("sync", "native"):
        with make_vec_env(PONG, 1, vectorization=vectorization) as envs:
            assert envs.obs_spec.shape == (1, 84, 84)


@pytest.mark.default("native")
@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_the_seed_decides_everything(vectorization):
    played = []
    for seed in (3, 3, 4):
        with make_vec_env(PONG, 2, seed=seed, vectorization=vectorization, frame_stack=2, env_kwargs=SHORT) as envs:
            first, steps = roll(envs)
            played.append(np.stack([first, *(step.obs for step in steps)]))
    assert np.array_equal(played[0], played[1])
    assert not np.array_equal(played[0], played[2])


@pytest.mark.full
@pytest.mark.default("ALE/Pong-v5-kwargs2-90")
@pytest.mark.parametrize(
    ("env_id", "kwargs", "steps"),
    [(PONG, {}, 50), ("ALE/MsPacman-v5", {"frame_skip": 2}, 30), (PONG, {"frameskip": 1}, 90)],
)
def test_engines_show_the_same_game(env_id, kwargs, steps):
    """Pixels, rewards, ends and successors of ale-py's vector environment, against our own preprocessing."""
    played = []
    for vectorization in ("sync", "async", "native"):
        with make_vec_env(env_id, 2, vectorization=vectorization, frame_stack=4, env_kwargs=PLAIN | kwargs) as envs:
            played.append(roll(envs, steps))
    (first, ours), *others = played
    for other_first, theirs in others:
        assert np.array_equal(first, other_first)
        assert all(same(a[:6], b[:6]) for a, b in zip(ours, theirs, strict=True))
        assert results(ours) == results(theirs)
    assert not any(step.terminated.any() for step in ours)  # a clock is not a death
    if not kwargs:
        assert [t for t, step in enumerate(ours) if step.truncated.any()] == [19, 39]


@pytest.mark.full
def test_engines_agree_on_deaths_and_clocks_of_envs_that_are_not_in_step():
    kwargs = PLAIN | {"max_num_frames_per_episode": 720}  # 180 steps; a game of Breakout takes about as long
    envs = [
        make_vec_env("ALE/Breakout-v5", 3, vectorization=vectorization, env_kwargs=kwargs)
        for vectorization in ("sync", "native")
    ]
    (first, ours), (other_first, theirs) = (roll(envs, 700) for envs in envs)
    assert np.array_equal(first, other_first)
    for a, b in zip(ours, theirs, strict=True):
        alive = ~a.terminated  # where the game is over ale-py shows the observation before; nobody values it
        assert np.array_equal(a.next_obs[alive], b.next_obs[alive])
        assert same((a.reward, a.terminated, a.truncated, a.obs), (b.reward, b.terminated, b.truncated, b.obs))
        assert results([a]) == results([b])
    assert len({episode.terminated for step in ours for episode in step.episodes}) == 2
    for each in envs:
        each.close()


@pytest.mark.default("sync")
@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_the_end_of_a_game_is_a_termination(vectorization):
    """Breakout with five lives is over within a few hundred random steps."""
    with make_vec_env("ALE/Breakout-v5", 1, vectorization=vectorization) as envs:
        _, steps = roll(envs, 700)
        ends = [step for step in steps if step.episodes]
        assert ends
        assert all(step.terminated.all() and not step.truncated.any() for step in ends)


@pytest.mark.default("native")
@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_no_op_starts_vary(vectorization):
    for noops, vary in ((30, True), (0, False)):
        with make_vec_env(
            "ALE/SpaceInvaders-v5", 4, 5, vectorization=vectorization, env_kwargs=PLAIN | {"noop_max": noops}
        ) as envs:
            envs.reset()
            played = np.stack([envs.step(np.zeros(4, np.int64)).obs for _ in range(20)], axis=1)
            assert (len({game.tobytes() for game in played}) > 1) == vary


@pytest.mark.default("native")
@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_the_learner_sees_signs_and_episodes_are_raw(vectorization):
    kwargs = {"max_num_frames_per_episode": 1000, "noop_max": 0}
    totals = {}
    for clip in (True, False):
        with make_vec_env(
            "ALE/MsPacman-v5", 1, 0, vectorization=vectorization, env_kwargs=kwargs | {"clip_reward": clip}
        ) as envs:
            _, steps = roll(envs, 250)
            (episode,) = [episode for step in steps for episode in step.episodes]
            rewards = [float(step.reward[0]) for step in steps]
            totals[clip] = (episode.episode_return, sum(rewards))
            assert set(rewards) <= ({-1.0, 0.0, 1.0} if clip else set(range(0, 5000, 10)))
    assert totals[True][0] == totals[False][0] == totals[False][1] > 10
    assert totals[True][1] == totals[True][0] / 10  # pills of 10 points each


def test_a_lost_life_goes_on_with_the_game_in_sync():
    """Episodes of sync and async begin with a seed, which must not begin a new game."""
    kwargs = {"terminal_on_life_loss": True, "noop_max": 0, "fire_reset": True}
    with make_vec_env("ALE/Breakout-v5", 1, vectorization="sync", env_kwargs=kwargs) as envs:
        envs.reset()
        while not envs.step(np.ones(1, np.int64)).episodes:
            pass
        assert envs.envs.envs[0].unwrapped.ale.lives() == 4


def test_a_lost_life_ends_an_episode_and_the_game_goes_on():
    env = make_env("ALE/Breakout-v5", env_kwargs={"terminal_on_life_loss": True, "fire_reset": True})
    rng = np.random.default_rng(0)
    _, info = env.reset(seed=0)
    lives = [info["lives"]]
    while len(lives) < 7:
        _, _, terminated, _, _ = env.step(int(rng.integers(4)))
        if terminated:
            lives.append(env.reset()[1]["lives"])
    assert lives == [5, 4, 3, 2, 1, 5, 4]
    env.close()


@pytest.mark.default("3-native")
@pytest.mark.parametrize("vectorization", ["sync", "native"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_the_replay_gives_back_the_stacks_of_the_env(vectorization, n_step):
    with make_vec_env(PONG, 2, seed=2, vectorization=vectorization, frame_stack=4, env_kwargs=SHORT) as envs:
        buffer = ReplayBuffer(envs, capacity=500, batch_size=64, warmup=0, n_step=n_step)
        seen = set()
        obs, rng = envs.reset(), np.random.default_rng(0)
        stacks, ends = (
            [[], []],
            [[], []],
        )  # of each environment: observations with their successors, and where episodes end
        for _ in range(70):
            action = rng.integers(6, size=2)
            step = envs.step(action)
            buffer.add(obs, action, step)
            for i in range(2):
                stacks[i].append((obs[i], step.next_obs[i]))
                ends[i].append(bool(step.terminated[i] or step.truncated[i]))
            obs = step.obs
    for i in range(2):
        for t, (before, _) in enumerate(stacks[i]):
            last = next((t + k for k in range(n_step) if t + k < 70 and ends[i][t + k]), t + n_step - 1)
            if last < 70:
                seen.add((before.tobytes(), stacks[i][last][1].tobytes()))
    assert sum(ends[0]) == 3  # episodes of 20 steps
    assert buffer.store.frames.shape[2:] == (1, 84, 84)
    for _ in range(5):
        batch = buffer.take()
        assert batch.obs.dtype == np.uint8
        for row in range(64):
            assert (batch.obs[row].tobytes(), batch.next_obs[row].tobytes()) in seen


@pytest.mark.full
def test_a_tiny_dqn_run_and_its_film(tmp_path):
    settings = {
        "algorithm": "dqn",
        "env": PONG,
        "env_kwargs": ["max_num_frames_per_episode=80"],
        "num_envs": 1,
        "capacity": 500,
        "warmup": 40,
        "batch_size": 8,
        "train_every": 6,
        "updates_per_log": 4,
        "total_timesteps": 64,
        "evaluation_episodes": 1,
        "threads": 1,
        "quiet": True,
        "results_dir": str(tmp_path),
    }
    finished = train(Experiment.from_flat(settings, "test"))
    assert finished.status == "finished"
    assert finished.log.env_steps == 64
    assert finished.evaluation["mean_length"] == 20
    assert (finished.folder / "videos" / "final_agent.mp4").stat().st_size > 1000
    assert finished.agent.obs_spec.shape == (4, 84, 84), "a stack of 4, unasked"
    assert json.loads((finished.folder / "agent" / "card.json").read_text())["notes"]["frame_stack"] == 4
    kwargs = {"max_num_frames_per_episode": 80, "terminal_on_life_loss": True}
    assert evaluate(finished.agent, PONG, 1, env_kwargs=kwargs).episodes[0].length == 20


def test_an_evaluation_plays_whole_games_with_raw_rewards():
    """Breakout without a move loses its five lives one after the other."""

    class Waiting:
        obs_spec, action_spec, recurrent, rng, rnn_state = None, None, False, None, None

        def begin(self, over=None):
            pass

        def decide(self, obs, explore, mask):
            return np.ones(len(obs), np.int64)  # FIRE: serve the ball, and do not move

    agent, game = Waiting(), "ALE/Breakout-v5"
    kwargs = {"terminal_on_life_loss": True, "noop_max": 0, "repeat_action_probability": 0.0}
    with make_vec_env(game, 1, frame_stack=4) as envs:
        agent.obs_spec, agent.action_spec = envs.obs_spec, envs.action_spec
    (whole,) = evaluate(agent, game, 1, env_kwargs=kwargs).episodes
    (same,) = evaluate(agent, game, 1, env_kwargs=kwargs | {"terminal_on_life_loss": False}).episodes
    assert (whole.length, whole.episode_return) == (same.length, same.episode_return)
    with make_vec_env(game, 1, env_kwargs=kwargs) as envs:
        envs.reset()
        life = next(length for length in range(1, 2000) if envs.step(np.ones(1, np.int64)).episodes)
    assert whole.length > 2 * life


def test_auto_takes_the_native_form_for_several_envs_where_it_is_sound():
    for count, vectorization in ((1, "sync"), (2, "native")):
        with make_vec_env(PONG, count, env_kwargs={"max_episode_steps": 3}) as envs:
            assert envs.vectorization == vectorization
            assert [step.truncated.all() for step in roll(envs, 4)[1]] == [False, False, True, False]
    with make_vec_env("ALE/Breakout-v5", 2, env_kwargs={"terminal_on_life_loss": True}) as envs:
        assert envs.vectorization in ("sync", "async")


def test_the_game_as_gymnasium_gives_it():
    with make_vec_env(PONG, 2, env_kwargs={"preprocess": False, "obs_type": "ram"}) as envs:
        assert envs.reset().shape == (2, 128)


@pytest.mark.parametrize(
    ("kwargs", "vectorization", "said"),
    [
        ({"noop_max": -1}, "sync", "noop_max is -1"),
        ({"frame_skip": 1.5}, "sync", "frame_skip is 1.5; expected a whole number"),
        ({"grayscale": "no"}, "sync", "grayscale is 'no'; expected true or false"),
        ({"obs_type": "ram"}, "sync", "preprocess=False"),
        ({"frameskip": (2, 5)}, "sync", "expected a whole number"),
        ({"preprocess": False, "noop_max": 3}, "sync", "preprocess=False beside noop_max"),
        ({"terminal_on_life_loss": True}, "native", "use vectorization='sync'"),
        ({"grayscale": False}, "native", "use vectorization='sync'"),
        ({"nonsense": 1}, "sync", "nonsense"),
        ({"nonsense": 1}, "native", "nonsense"),
    ],
)
def test_what_cannot_be_honored_is_refused(kwargs, vectorization, said):
    with pytest.raises(BadInput, match=said):
        make_vec_env(PONG, 2, vectorization=vectorization, env_kwargs=kwargs)


def test_opencv_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingExtra, match=r"drl-workshop\[atari\]"):
        make_vec_env(PONG)
