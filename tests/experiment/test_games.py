"""Training on games of several agents: rows whose agent is out teach nothing."""

import dataclasses

import numpy as np
import pytest

import drl
from drl.cli.entry import main
from drl.envs.make_vec_env import make_vec_env
from drl.runs.building import open_trainer
from drl.settings.experiment import Experiment
from tests.envs.roster_game import ACTS, Roster

TINY = {"num_envs": 2, "hidden_sizes": [8], "compile": "off", "video": False, "plots": False, "tensorboard": False}
TINY |= {"env": "tests.envs.roster_game:Roster", "seed": 1}
LEARNERS = {
    "ppo": {"rollout_length": 12, "minibatches": 2, "epochs": 1},
    "ppo recurrent": {"rollout_length": 12, "minibatches": 2, "epochs": 1, "recurrent": "gru", "recurrent_size": 4},
    "a2c": {"rollout_length": 12},
}


def numbers(state):
    """All arrays in a state, by their path."""
    if isinstance(state, dict):
        return {f"{key}.{path}": each for key, part in state.items() for path, each in numbers(part).items()}
    if isinstance(state, list | tuple):
        return numbers(dict(enumerate(state)))
    return {"": np.asarray(state)} if state is not None else {}


@pytest.mark.parametrize(
    ("case", "engine"), [("ppo", "torch"), ("ppo", "jax"), ("ppo recurrent", "torch"), ("a2c", "torch"), ("a2c", "jax")]
)
def test_rows_of_agents_who_are_out_teach_nothing(case, engine):
    name, *_ = case.split()
    settings = TINY | LEARNERS[case] | {"algorithm": name, "engine": engine, "total_timesteps": 1000}
    learned = []
    for rubbish in (0, 7):
        with open_trainer(Experiment.from_flat(settings, "test")) as trainer:
            while not trainer.buffer.ready:
                trainer._add(trainer.collector.step(trainer.env_steps))
            batch = trainer.buffer.take()
            out = ~batch.valid
            assert out.sum() > 12, "of agents who are out for several rounds"
            changed = {name: np.array(getattr(batch, name)) for name in ("obs", "action", "reward")}
            changed["obs"][out] += rubbish
            changed["action"][out] = np.minimum(changed["action"][out] + rubbish, 3)
            changed["reward"][out] += rubbish
            trainer.algorithm.learn(dataclasses.replace(batch, **changed))
            learned.append(numbers(trainer.algorithm.state_dict()))
    assert learned[0].keys() == learned[1].keys()
    for path, value in learned[0].items():
        np.testing.assert_array_equal(value, learned[1][path], err_msg=path)


def test_returns_of_n_steps_stay_within_an_agents_episode():
    stored = 4 * sum(map(len, ACTS.values()))  # in two games of two copies
    settings = {"algorithm": "dqn", "n_step": 3, "gamma": 1.0, "batch_size": stored, "warmup": stored}
    experiment = Experiment.from_flat(TINY | settings, "test")
    with open_trainer(experiment) as trainer:
        for _ in range(10):
            trainer._add(trainer.collector.step(trainer.env_steps))
        assert trainer.env_steps == trainer.buffer.size == stored
        rows = trainer.buffer.store.read(np.arange(stored))
    rounds, reward, following = rows[0][:, 1], rows[2], rows[5][:, 1]
    last = {"ann": 2, "bob": 4, "cat": 5}
    for first, total, end in zip(rounds, reward, following, strict=True):
        played = np.arange(first + 1, end + 1)  # rounds whose rewards are in the sum
        assert 1 <= len(played) <= 3
        assert end in last.values() or len(played) == 3
        assert 0 <= total - 10 * played.sum() <= 3 * len(played), "10 · round + action for each of them"


def make_roster(render_mode=None):
    return Roster(render_mode)


def test_one_call_with_a_function_that_makes_a_game(tmp_path):
    settings = {name: value for name, value in TINY.items() if name not in ("env", "video")}
    settings |= LEARNERS["ppo"] | {"results_dir": str(tmp_path), "evaluation_episodes": 6, "console": False}
    done = drl.train("ppo", env=make_roster, total_timesteps=200, **settings)
    assert (done.folder / "videos" / "final_agent.mp4").is_file()
    result = drl.evaluate(done.folder, episodes=6, env=make_roster)
    assert [each.length for each in result.episodes] == [len(rounds) for rounds in ACTS.values()] * 2
    again = drl.evaluate(done.folder, episodes=6, env=make_roster)
    assert again.episodes == result.episodes


def test_the_commands(tmp_path, capsys):
    env = "tests.envs.roster_game:Roster"
    lean = ["--results-dir", str(tmp_path), "--quiet", "--no-plots", "--no-video", "--rollout-length", "12"]
    assert main(["train", "ppo", "--env", env, "--num-envs", "2", "--total-timesteps", "100", *lean]) == 0
    (run,) = tmp_path.glob("*/*")
    assert main(["evaluate", str(run), "--env", env, "--episodes", "2", "--step-by-step"]) == 0
    said = capsys.readouterr().out
    assert "game 2: 5 rounds, returns: ann " in said
    assert "6 episodes" in said
    assert main(["evaluate", str(run), "--env", env, "--render"]) == 2
    assert "Roster cannot be drawn: it has no render mode 'human'; try --video" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--episodes", "2"]) == 0, "a run of this account"
    capsys.readouterr()
    assert main(["replay", str(run), "--episode", "best", "--trust"]) == 2
    assert "multi-agent games" in capsys.readouterr().err


def test_frames_of_agents_who_come_and_go():
    with make_vec_env(Roster, seed=3, frame_stack=2) as envs:
        envs.reset()
        for current in range(1, 11):
            step = envs.step(np.zeros(3, int))
            seen = step.next_obs[step.valid]
            game_round = (current - 1) % 5 + 1
            np.testing.assert_array_equal(seen[:, 4], game_round)
            np.testing.assert_array_equal(seen[:, 1], game_round - 1)
