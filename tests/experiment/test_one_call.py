"""`drl.train(…)`: the same as the command, with objects where it takes names."""

import json
import re
import sys
import types
from functools import partialmethod

import gymnasium as gym
import numpy as np
import pytest
import yaml

import drl
import drl.core.errors
import drl.settings.presets
from drl.core.configs import ModelConfig
from drl.core.errors import BadInput
from drl.core.log import Log
from drl.envs.env_config import EnvConfig
from drl.runs.one_call import make_experiment
from drl.tracking.console import StartupProgress

TINY = {
    "num_envs": 2,
    "rollout_length": 16,
    "minibatches": 2,
    "epochs": 1,
    "hidden_sizes": (8,),
    "total_timesteps": 128,
}
TINY |= {"video": False, "plots": False, "tensorboard": False, "evaluation_episodes": 2, "console": False}


class Short(gym.Wrapper):
    """CartPole with a reward of 2."""

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, 2 * reward, terminated, truncated, info


def make_cart_pole():
    return gym.make("CartPole-v1", max_episode_steps=30)


@pytest.fixture
def tiny(tmp_path):
    def train(algorithm="ppo", **settings):
        settings = TINY | {"results_dir": str(tmp_path / "results")} | settings
        return drl.train(algorithm, **{name: value for name, value in settings.items() if value is not None})

    return train


def metrics(run):
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]


def test_the_same_as_the_command(tiny, tmp_path, monkeypatch):
    from drl.cli.train import run_train as main

    run = tiny(seed=3, env_kwargs={"sutton_barto_reward": True})
    monkeypatch.chdir(tmp_path)
    flags = (
        "--seed 3 --num-envs 2 --rollout-length 16 --minibatches 2 --epochs 1 --hidden-sizes 8 --total-timesteps 128"
    )
    flags += (
        " --no-video --no-plots --no-tensorboard --evaluation-episodes 2 --quiet --env-kwargs sutton_barto_reward=true"
    )
    assert main(["ppo", "--env", "CartPole-v1", *flags.split()]) == 0
    folders = sorted((tmp_path / "results" / "CartPole-v1_ppo").iterdir())
    configs = [yaml.safe_load((folder / "config.yaml").read_text()) for folder in folders]
    assert len(configs) == 2
    different = {name for name in configs[0] if configs[0][name] != configs[1][name]}
    assert different == {"results_dir", "quiet"}
    rows = [(folder / "metrics.jsonl").read_text().splitlines() for folder in folders]
    assert len(rows[0]) == len(rows[1]) == len(run.metrics["env_steps"])


def test_the_table_and_the_notebook(tiny):
    run = tiny(plots=True)
    table = run.metrics
    assert table["env_steps"] == [32, 64, 96, 128]
    assert {len(column) for column in table.values()} == {4}
    assert run.evaluation["episodes"] == 2
    assert "data:image/png;base64" in run._repr_html_()
    assert str(run.folder) in run.report()


def test_the_preset_then_the_config_then_the_call(tiny, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("gamma: 0.9\nlearning_rate: 0.5\nnum_episodes: 7\n")
    run = tiny(config=file, learning_rate=0.25, hidden_sizes=None, total_timesteps=None)
    settings = yaml.safe_load((run.folder / "config.yaml").read_text())
    preset = yaml.safe_load((drl.settings.presets.PRESETS / "ppo" / "CartPole-v1.yaml").read_text())
    assert settings["gamma"] == 0.9
    assert settings["learning_rate"] == 0.25
    assert settings["num_episodes"] == 7
    assert settings["gae_lambda"] == preset.get("gae_lambda", 0.95)
    assert tiny(config={"gamma": 0.8}, preset=False).status == "finished"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rte": 1}, "unknown setting 'learning_rte'.*learning_rate"),
        ({"gamma": "much"}, "gamma is 'much'"),
        ({"env": 3}, "env is 3; expected an id"),
        ({"env": "CartPol-v1"}, "did you mean 'CartPole-v1'"),
        ({"env_kwargs": {"gravity": object()}}, "pass a function"),
        ({"num_seeds": 2}, "use drl.train_seeds"),
        ({"workers": 2}, "workers is 2, processes for several seeds"),
        ({"config": {"algorithm": "a2c"}}, "config is for a2c; expected ppo"),
        ({"stages": [3]}, "expected functions that take logs"),
        ({"model": 3, "hidden_sizes": None}, "model is 3; expected a config"),
        ({"model": ModelConfig(), "hidden_sizes": (3,)}, "hidden_sizes is given beside model"),
        ({"wrappers": ["Nonsense"]}, "unknown wrapper"),
        ({"from_agent": "nowhere"}, "nowhere does not exist"),
    ],
)
def test_bad_input_writes_nothing(tiny, tmp_path, settings, message):
    with pytest.raises(BadInput, match=message):
        tiny(**settings)
    assert not (tmp_path / "results").exists()


def test_environments_as_objects(tiny):
    for env in (make_cart_pole, lambda: make_cart_pole(), make_cart_pole(), EnvConfig(env="CartPole-v1")):
        run = tiny(env=env, wrappers=[Short])
        played = drl.evaluate(run.agent, episodes=3)
        assert all(episode.episode_return == 2 * episode.length for episode in played.episodes)
        if env is make_cart_pole:  # named again, it has the wrappers of the training, unless others are given
            for wrappers, factor in ((None, 2), ((), 1)):
                (played,) = drl.evaluate(run.agent, env, episodes=1, wrappers=wrappers).episodes
                assert played.episode_return == factor * played.length


def test_a_vector_environment_stays_open(tiny):
    vector = gym.make_vec("CartPole-v1", num_envs=3)
    run = tiny(env=vector, num_envs=None, minibatches=1)
    assert vector.reset()[0].shape == (3, 4)
    assert run.evaluation["episodes"] == 2
    assert run.agent.notes["env"] == "CartPole-v1"
    vector.close()


def test_trackers_and_stages(tiny):
    class Counter:
        written = closed = 0

        def write(self, log: Log) -> None:
            self.written += 1
            assert log.learn["doubled"] == 2 * log.learn["entropy"]

        def close(self) -> None:
            self.closed += 1

    def doubled(logs):
        for log in logs:
            log.learn["doubled"] = 2 * log.learn["entropy"]
            yield log
            if log.env_steps >= 64:
                return

    counter = Counter()
    run = tiny(trackers=[counter], stages=[doubled])
    assert (counter.written, counter.closed) == (2, 1)
    assert run.metrics["env_steps"] == [32, 64]
    assert len(run.metrics["learn/doubled"]) == 2


def make_torch_model(obs_spec, action_spec):
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(obs_spec.shape[0], 8)
            self.policy, self.value = nn.Linear(8, action_spec.sizes[0]), nn.Linear(8, 1)

        def forward(self, obs):
            features = torch.tanh(self.body(obs))
            return self.policy(features), self.value(features)[:, 0]

    torch.manual_seed(0)
    return Model()


def test_a_model_of_ones_own(tiny):
    run = tiny(model=make_torch_model, hidden_sizes=None, keep_checkpoints=1, total_timesteps=64)
    specs = run.agent.obs_spec, run.agent.action_spec
    loaded = drl.load_agent(run.folder, model=make_torch_model(*specs))
    obs = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    np.testing.assert_array_equal(loaded.act(obs), run.agent.act(obs))
    module = tiny(model=make_torch_model(*specs), hidden_sizes=None, total_timesteps=64)
    assert metrics(module) == metrics(run)
    config = tiny(model=ModelConfig(hidden_sizes=(8,)), hidden_sizes=None)
    assert metrics(config) == metrics(tiny())
    with pytest.raises(BadInput, match=r"expected .* distribution parameters"):
        tiny("ppo", model=lambda obs_spec, action_spec: make_torch_model(obs_spec, action_spec).body, hidden_sizes=None)


@pytest.mark.default("ppo")
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_an_agent_from_a_plain_file_of_its_run(tiny, tmp_path, algorithm):
    replay = {"rollout_length": None, "minibatches": None, "epochs": None, "warmup": 16, "batch_size": 8}
    run = tiny(algorithm, **(replay | {"train_every": 8} if algorithm == "dqn" else {}))
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    files = run.folder / "models"
    policy = "final_actor.pth"
    np.testing.assert_array_equal(drl.load_agent(files / policy).act(obs), run.agent.act(obs))
    (early, *_), (final, *_) = (
        agent.explain(obs).values() for agent in (drl.load_agent(files / "pi_ckpt1.pth"), run.agent)
    )
    assert not np.array_equal(early, final)
    (tmp_path / "alone.pth").write_bytes((files / policy).read_bytes())
    with pytest.raises(BadInput, match="expected a file in the folder models/ of a run"):
        drl.load_agent(tmp_path / "alone.pth")
    if algorithm == "ppo":
        with pytest.raises(BadInput, match="is not a policy of the agent"):
            drl.load_agent(files / "final_critic.pth")


def test_functions_as_settings(tiny):
    run = tiny(learning_rate=lambda share: 1e-3 * (1 - share), activation=torch_sine, clip_range_schedule="cosine")
    rates = run.metrics["trainer/learning_rate"]
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])
    with pytest.raises(BadInput, match="gamma is"):
        tiny(gamma=lambda share: 0.9)


def torch_sine(x):
    return x.sin()


def test_resume_with_the_same_objects(tiny, tmp_path):
    whole = tiny(env=make_cart_pole, wrappers=[Short], model=make_torch_model, hidden_sizes=None)

    def stop(logs):
        for log in logs:
            yield log
            if log.env_steps == 64:
                raise KeyboardInterrupt

    stopped = tiny(env=make_cart_pole, wrappers=[Short], model=make_torch_model, hidden_sizes=None, stages=[stop])
    assert stopped.status == "interrupted"
    with pytest.raises(BadInput, match="a model of its own"):
        drl.resume(stopped.folder, console=False)
    with pytest.raises(BadInput, match="was started in"):
        drl.resume(stopped.folder, env="CartPole-v1", console=False)
    with pytest.raises(BadInput, match="was started with the wrappers"):
        drl.resume(stopped.folder, wrappers=["TimeAwareObservation"], console=False)
    objects = {"env": make_cart_pole, "wrappers": [Short], "model": make_torch_model}
    drl.resume(stopped.folder, **objects, console=False)
    assert metrics(stopped) == metrics(whole)


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_begin_with_the_weights_of_an_agent(tiny, engine):
    first = tiny(engine="torch", normalize_obs=True)
    options = {"engine": engine, "vectorization": "sync", "normalize_obs": True}
    still = {"learning_rate": 1e-12, "learning_rate_end": 1e-12}
    again = tiny(from_agent=str(first.folder), total_timesteps=32, **options, **still)
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    first.agent.normalizer, again.agent.normalizer = None, None  # it goes on learning its statistics
    np.testing.assert_array_equal(first.agent.act(obs), again.agent.act(obs))
    record = json.loads((again.folder / "run.json").read_text())
    assert record["from_agent"]["left_out"] == []
    with pytest.raises(BadInput, match="normalizes its observations; add --normalize-obs"):
        tiny(from_agent=str(first.folder), **options | {"normalize_obs": False})
    of_ppo = dict.fromkeys(("rollout_length", "minibatches", "epochs"))
    with pytest.raises(BadInput, match=r"nothing of .* a policy-value model, fits"):
        tiny("dqn", from_agent=str(first.folder), **options, **of_ppo, warmup=0, batch_size=16, train_every=1)
    with pytest.raises(BadInput, match=r"trained on box observations \(4,\), and these are box \(6,\)"):
        tiny(from_agent=str(first.folder), env="Acrobot-v1", **options)


def test_a_head_that_does_not_fit_is_new(tiny):
    first = tiny(env="CartPole-v1")
    other = tiny(env="CartPole-v1", wrappers=[ThreeActions], from_agent=str(first.folder))
    record = json.loads((other.folder / "run.json").read_text())
    assert record["from_agent"]["left_out"]
    assert all("(2," in line and "(3," in line for line in record["from_agent"]["left_out"])


class ThreeActions(gym.ActionWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.action_space = gym.spaces.Discrete(3)

    def action(self, action):
        return min(int(action), 1)


@pytest.mark.full
def test_a_fused_program_begins_with_weights(tiny):
    first = tiny(engine="torch")
    still = {"learning_rate": 1e-12, "learning_rate_end": 1e-12}
    again = tiny(engine="jax", from_agent=str(first.folder), **still)
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    np.testing.assert_array_equal(first.agent.act(obs), again.agent.act(obs))


@pytest.mark.full
def test_seeds_in_processes(tmp_path, monkeypatch):
    gone = types.ModuleType("plugin_that_is_gone")  # named by an earlier run, and no child can import it
    exec("def rate(share): return 1e-3", gone.__dict__)
    monkeypatch.setitem(sys.modules, gone.__name__, gone)
    make_experiment("ppo", "CartPole-v1", learning_rate=gone.rate)
    settings = TINY | {"results_dir": str(tmp_path), "num_envs": 2, "wrappers": [Short]}
    settings |= {"learning_rate": lambda share: 1e-3 * (1 - share / 2)}
    runs = drl.train_seeds("ppo", "CartPole-v1", seeds=[5, 1], **settings)
    assert [yaml.safe_load((run.folder / "config.yaml").read_text())["seed"] for run in runs] == [5, 1]
    alone = drl.train("ppo", "CartPole-v1", seed=1, **settings)
    assert metrics(runs[1]) == metrics(alone)
    assert runs[0].evaluation != runs[1].evaluation
    assert runs[1].agent.act(np.zeros(4, np.float32)) in (0, 1)
    with pytest.raises(BadInput, match="give one of them"):
        drl.train_seeds("ppo", seeds=[1, 2], num_seeds=3, **settings)
    with pytest.raises(drl.core.errors.DrlError, match=r"seed 0: BadInput: .*minibatches") as failed:
        drl.train_seeds("ppo", "CartPole-v1", num_seeds=2, **settings | {"minibatches": 1000})
    assert failed.value.exit_code == 2


@pytest.mark.full
def test_a_call_names_its_preset_as_the_command_does(tmp_path, monkeypatch, capsys):
    at_once = partialmethod(StartupProgress.__init__, seconds=0.0)  # as if it took long
    monkeypatch.setattr(StartupProgress, "__init__", at_once)
    settings = TINY | {"console": True, "num_envs": 1, "env": "CartPole-v1", "results_dir": str(tmp_path)}
    run = drl.train("ppo", **settings)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["settings: preset ppo/CartPole-v1", "ppo on CartPole-v1, 1 environment, torch"]
    assert lines[2] == f"run: {run.folder} (vectorization sync)"
    assert any(re.match(r"before the first log, 0:00:0\d: step \d+ of 16 in the first rollout", line) for line in lines)
    file = tmp_path / "my.yaml"
    file.write_text("gamma: 0.9\n")
    drl.train_seeds("ppo", config=str(file), num_seeds=2, engine="jax", vectorization="jax", **settings)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"settings: preset ppo/CartPole-v1, then {file}"
    assert lines[1] == "ppo on CartPole-v1, 1 environment, 2 seeds, jax"
    for silent in ({"quiet": True}, {"console": False}, {"preset": False}):
        drl.train("ppo", **settings | silent)
        assert "settings:" not in capsys.readouterr().out
