"""A run from start to folder: what is written, that it is the same twice, and that it survives interruption."""

import json

import numpy as np
import pytest
import torch
import yaml

import drl
from drl.agents.evaluation import evaluate
from drl.cli.entry import main
from drl.core.errors import BadInput, NonFinite
from drl.core.state_files import read_state
from drl.envs.make_vec_env import make_vec_env
from drl.runs import launch
from drl.runs.building import build_trainer
from drl.runs.extras import Extras
from drl.runs.folder.run_folder import Run, find_run
from drl.runs.launch import train
from drl.settings.experiment import Experiment

TINY = {
    "env": "CartPole-v1",
    "total_timesteps": 512,
    "num_envs": 2,
    "rollout_length": 32,
    "evaluation_episodes": 2,
    "quiet": True,
    "video": False,
}


def run(tmp_path, **changes):
    settings = TINY | {"results_dir": str(tmp_path)} | changes
    if settings.get("algorithm") == "reinforce":
        settings = {k: v for k, v in settings.items() if k != "rollout_length"} | {"episodes_per_step": 2}
    return train(Experiment.from_flat(settings, "test"))


def metrics(folder):
    """metrics.jsonl without the wall clock."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [json.dumps({k: v for k, v in row.items() if not k.startswith("time/")}) for row in rows]


def test_the_run_folder_is_as_documented(tmp_path):
    finished = run(tmp_path, video=True, num_checkpoints=2)
    folder = finished.folder
    assert folder.parent == tmp_path / "CartPole-v1_ppo"
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {
        "config.yaml",
        "run.json",
        "metrics.jsonl",
        "progress.csv",
        "models/best_return_pi_ckpt.pth",
        "models/pi_ckpt1.pth",
        "models/pi_ckpt2.pth",
        "models/final_actor.pth",
        "models/final_critic.pth",
        "agent/card.json",
        "plots/return.png",
        "plots/loss.png",
        "videos/final_agent.mp4",
        "checkpoints/step_000000000512/state.json",
    } <= names
    assert any(name.startswith("tensorboard/") for name in names)
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["env_steps"] == 512
    again = Experiment.from_flat(yaml.safe_load((folder / "config.yaml").read_text()), "config.yaml")
    assert again.run.total_timesteps == 512
    torch.load(folder / "models" / "final_actor.pth", weights_only=True)
    assert find_run(folder.parent) == folder


@pytest.mark.default("False-a2c", "True-ppo")
@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "reinforce"])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_same_command_twice_gives_the_same_metrics(tmp_path, algorithm, normalize):
    options = {"algorithm": algorithm, "normalize_obs": normalize, "normalize_reward": normalize, "plots": False}
    one, two = run(tmp_path, **options), run(tmp_path, **options)
    assert one.folder != two.folder
    assert metrics(one.folder) == metrics(two.folder)
    other = run(tmp_path, **options, seed=1)
    assert metrics(other.folder) != metrics(one.folder)


def test_evaluation_does_not_change_training(tmp_path):
    quiet = run(tmp_path, evaluate_every=0, plots=False)
    watched = run(tmp_path, evaluate_every=64, plots=False)
    strip = lambda row: {k: v for k, v in json.loads(row).items() if not k.startswith("evaluation/")}  # noqa: E731
    assert [strip(row) for row in metrics(quiet.folder)] == [strip(row) for row in metrics(watched.folder)]
    assert sum("evaluation/mean_return" in row for row in metrics(watched.folder)) == 8


def test_the_saved_agent_is_the_trained_one(tmp_path):
    finished = run(tmp_path, normalize_obs=True, plots=False)
    loaded = drl.load_agent(finished.folder)
    obs = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    np.testing.assert_array_equal(loaded.act(obs), finished.agent.act(obs))
    one = evaluate(loaded, "CartPole-v1", 5, seed=3).summary()
    assert one == evaluate(finished.agent, "CartPole-v1", 5, seed=3).summary()
    assert one["episodes"] == 5


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_which_agent_of_a_run_is_loaded(tmp_path, engine, capsys):
    settings = {"engine": engine, "vectorization": "sync", "normalize_obs": True, "plots": False}
    finished = run(tmp_path, **settings, checkpoint_every=128, keep_checkpoints=3, evaluate_every=128)
    folder = finished.folder

    def params(which):
        return drl.load_agent(folder, which=which).state_dict()["model"]

    final = params(None)
    for same in ("final", 512, "512"):
        for name, array in params(same).items():
            np.testing.assert_array_equal(array, final[name])
    assert any((array != final[name]).any() for name, array in params(256).items())
    earlier = drl.load_agent(folder, which=256)
    state = read_state(folder / "checkpoints" / "step_000000000256", None)["trainer"]["agent"]
    for name, array in earlier.state_dict()["model"].items():
        np.testing.assert_array_equal(array, state["model"][name])
    np.testing.assert_array_equal(earlier.normalizer.running_stats[""].mean, state["normalizer"]["stats"][""]["mean"])
    for which, place in (("best", "best_agent"), ("best-evaluated", "best_evaluated_agent")):
        (stored,) = (folder / "models" / place).glob("weights-*")
        drl.load_agent(folder, which=which).save(tmp_path / place)
        assert (tmp_path / place / stored.name).is_file(), "the same checksum"
    assert main(["evaluate", str(folder), "--which", "256", "--episodes", "1"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(folder), "--which", "100", "--episodes", "1"]) == 2
    offered = "it has final, best, best-evaluated, 256, 384, 512"
    assert f"{folder} keeps no agent '100'; {offered}\n" in capsys.readouterr().err
    for path, said in ((folder / "agent", "is one agent"), (tmp_path / "nowhere", "not a run folder")):
        with pytest.raises(BadInput, match=said):
            drl.load_agent(path, which="best")
    with pytest.raises(BadInput, match="needs torch or jax"):
        drl.load_agent(folder, engine="numpy", which=256)


def test_the_best_evaluated_agent_is_the_final_one_without_another_evaluation(tmp_path):
    finished = run(tmp_path, evaluate_every=0, plots=False)
    card = json.loads((finished.folder / "models" / "best_evaluated_agent" / "card.json").read_text())
    assert card["notes"]["mean_return"] == finished.evaluation["mean_return"]
    assert card["notes"]["env_steps"] == 512


def test_an_agent_that_does_not_fit_a_env_is_refused(tmp_path):
    agent = run(tmp_path, plots=False).agent
    with pytest.raises(BadInput, match="does not fit Acrobot-v1"):
        evaluate(agent, "Acrobot-v1", 1)


def test_a_checkpoint_restores_the_trainer(tmp_path):
    finished = run(tmp_path, checkpoint_every=256, plots=False)
    folders = sorted((finished.folder / "checkpoints").glob("step_*"))
    assert [folder.name for folder in folders] == ["step_000000000256", "step_000000000512"]
    experiment = Experiment.from_flat(TINY | {"results_dir": str(tmp_path), "seed": 9}, "test")
    with make_vec_env("CartPole-v1", 2, seed=0) as envs:
        trainer = build_trainer(experiment, envs)
        trainer.load_state_dict(read_state(folders[-1])["trainer"])
        assert trainer.env_steps == 512
        obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
        np.testing.assert_array_equal(trainer.agent.dist_params(obs), finished.agent.dist_params(obs))


class Bomb:
    """A tracker that ends the run in its own way."""

    def __init__(self, error, after=3):
        self.error, self.after, self.count = error, after, 0

    def write(self, log):
        self.count += 1
        if self.count == self.after:
            raise self.error

    def close(self):
        pass


def test_ctrl_c_saves_and_leaves_a_usable_run(tmp_path, monkeypatch):
    experiment = Experiment.from_flat(TINY | {"results_dir": str(tmp_path)}, "test")
    own = launch._trackers
    monkeypatch.setattr(launch, "_trackers", lambda *given: [*own(*given), Bomb(KeyboardInterrupt())])
    finished = train(experiment)
    assert finished.status == "interrupted"
    assert json.loads((finished.folder / "run.json").read_text())["status"] == "interrupted"
    assert len(metrics(finished.folder)) == 3
    drl.load_agent(finished.folder)


def test_a_failing_tracker_warns_once_and_training_goes_on(tmp_path):
    experiment = Experiment.from_flat(TINY | {"results_dir": str(tmp_path), "plots": False}, "test")
    with pytest.warns(UserWarning, match="disk full") as caught:
        finished = train(experiment, Extras(trackers=[Bomb(OSError("disk full"))]))
    assert finished.status == "finished"
    assert sum("disk full" in str(w.message) for w in caught) == 1
    assert len(metrics(finished.folder)) == 8


def test_a_number_that_is_not_finite_ends_the_run_and_is_recorded(tmp_path):
    with pytest.raises(NonFinite):
        run(tmp_path, learning_rate=1e30, max_grad_norm=None, plots=False)
    record = json.loads((find_run(tmp_path / "CartPole-v1_ppo") / "run.json").read_text())
    assert record["status"] == "failed"
    assert "NonFinite" in record["error"]


def test_bad_input_writes_nothing(tmp_path):
    with pytest.raises(BadInput):
        run(tmp_path / "results", env="NoSuchWorld-v0")
    assert not (tmp_path / "results").exists()


def test_run_folders_are_never_reused(tmp_path):
    folders = {Run.create("x", {}, tmp_path, 0).folder for _ in range(5)}
    assert len(folders) == 5


@pytest.mark.parametrize(
    "env",
    ["drl/Target-v0", "drl/Match-v0", "Taxi-v4", "Blackjack-v1", "MountainCarContinuous-v0", "LunarLander-v3"],
)
def test_every_kind_of_space_trains(tmp_path, env):
    finished = run(tmp_path, env=env, plots=False, total_timesteps=128, evaluation_episodes=1)
    assert finished.status == "finished"


def test_num_episodes_is_a_budget(tmp_path):
    finished = run(tmp_path, total_timesteps=None, num_episodes=10, plots=False)
    assert 10 <= finished.log.episodes < 20
    assert (finished.folder / "models" / "pi_ckpt3.pth").exists()


def test_frame_stacks_reach_the_agent_and_its_evaluation(tmp_path):
    finished = run(tmp_path, frame_stack=3, plots=False, video=True)
    assert finished.agent.obs_spec.shape == (12,)
    assert (finished.folder / "videos" / "final_agent.mp4").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"total_timesteps": 1500, "warmup": 10_000},
            r"1,500.*step 10,001.*--total-timesteps 100010, or --warmup 150$",
        ),
        ({"total_timesteps": 64, "warmup": 0}, r"first update at step 128 .*or --batch-size 6$"),
        ({"total_timesteps": 100, "train_every": 999, "warmup": 0, "batch_size": 8}, r"or --train-every 1$"),
    ],
)
def test_a_budget_without_an_update_is_refused(tmp_path, settings, said):
    experiment = Experiment.from_flat({"algorithm": "dqn", "results_dir": str(tmp_path), "num_envs": 4} | settings, "x")
    for begin in (train, launch.train_seeds):
        with pytest.raises(BadInput, match=said):
            begin(experiment)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("steps", "first"), [(30, 29), (30, 32)])
def test_the_first_update_is_where_the_check_expects_it(steps, first, tmp_path):
    """Four environments make 32 steps of 30."""
    settings = {"algorithm": "dqn", "total_timesteps": steps, "num_envs": 4, "warmup": first - 1, "batch_size": 4}
    settings |= {"results_dir": str(tmp_path), "quiet": True, "plots": False, "video": False, "hidden_sizes": [4]}
    finished = train(Experiment.from_flat(settings | {"tensorboard": False, "evaluation_episodes": 1}, "test"))
    assert finished.log.learn
    with pytest.raises(BadInput, match="it would learn nothing"):
        train(Experiment.from_flat(settings | {"warmup": 32}, "test"))
