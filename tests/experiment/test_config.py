import pytest
import yaml

from drl.cli.train import read_experiment
from drl.core.errors import BadInput
from drl.runs.one_call import make_experiment, make_trainer
from drl.settings.experiment import Experiment, changed_settings, read_yaml
from drl.settings.presets import list_presets, load_preset


def test_flat_settings_survive_yaml():
    flat = {"algorithm": "ppo", "env": "Acrobot-v1", "learning_rate": "1e-3", "hidden_sizes": [32], "num_envs": 2.0}
    experiment = Experiment.from_flat(flat, "here")
    assert (experiment.learner.learning_rate, experiment.model.hidden_sizes, experiment.run.num_envs) == (
        1e-3,
        (32,),
        2,
    )
    again = Experiment.from_flat(yaml.safe_load(yaml.safe_dump(experiment.to_flat())), "there")
    assert again == experiment


@pytest.mark.parametrize(
    ("flat", "message"),
    [
        ({"learning_rat": 1}, "unknown setting 'learning_rat'.*'learning_rate'"),
        ({"algorithm": "pppo"}, "unknown algorithm 'pppo'.*'ppo'"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'.*float"),
        ({"learning_rate": -1}, "learning_rate is -1.0; expected a number above 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"num_envs": 1.5}, "num_envs is 1.5.*int"),
        ({"num_envs": 0}, "num_envs is 0"),
        ({"num_envs": True}, "num_envs is True"),
        ({"hidden_sizes": 64}, "hidden_sizes is 64.*list"),
        ({"normalize_obs": "yes"}, "normalize_obs is 'yes'.*bool"),
        ({"total_timesteps": 10, "num_episodes": 10}, "give one budget"),
        ({"env_kwargs": ["gravity"]}, "NAME=VALUE"),
        ({"compile": "maybe"}, "compile is 'maybe'; expected 'auto', 'on' or 'off'"),
        ({"name": "../escape"}, "plain folder name"),
        ({"activation": "gelo"}, "activation is 'gelo'.*'gelu'"),
        ({"init": "orthagonal"}, "init is 'orthagonal'.*'orthogonal'"),
        ({"learning_rate_schedule": "cosin"}, "learning_rate_schedule is 'cosin'.*'cosine'"),
        ({"learning_rate_schedule": "my_parts:warm"}, "learning_rate_schedule is 'my_parts:warm'.*--plugins my_parts"),
        ({"learning_rate_schedule": "os:getcwd"}, "learning_rate_schedule is 'os:getcwd'"),
        ({"clip_range_schedule": "constant", "clip_range_end": 0.1}, "clip_range_end is 0.1, but"),
        ({"algorithm": "dqn", "epsilon_schedule": "constant", "epsilon_end": 0.2}, "epsilon_end is 0.2, but"),
        ({"algorithm": "dqn", "noisy": True, "init": "orthogonal"}, "noisy layers"),
        ({"algorithm": "reinforce", "baseline": "median"}, "baseline is 'median'"),
        ({"algorithm": "a2c", "optimizer": "sdg"}, "optimizer is 'sdg'"),
    ],
)
def test_bad_settings_are_named(flat, message):
    with pytest.raises(BadInput, match=message):
        Experiment.from_flat(flat, "file.yaml")


@pytest.mark.parametrize(
    ("algorithm", "flags", "scaled"),
    [
        ("sac", [], (False, False)),
        ("sac", ["--network", "simba"], (True, False)),
        ("sac", ["--network", "simba", "--no-normalize-obs"], (False, False)),
        ("sac", ["--normalize-reward"], (False, True)),
        ("normalized_sac", [], (False, True)),
        ("normalized_sac", ["--no-normalize-reward", "--normalize-obs"], (True, False)),
    ],
)
def test_scaling_is_on_where_it_is_expected(algorithm, flags, scaled):
    """By the network or by the algorithm, unless the flags say something else."""
    run = read_experiment(algorithm, ["--env", "Pendulum-v1", "--no-preset", *flags])[0].run
    assert (run.normalize_obs, run.normalize_reward) == scaled


@pytest.mark.parametrize(
    ("text", "meaning"),
    [("compile: on", "on"), ("compile: off", "off"), ("compile: true", "on"), ("compile: false", "off"), ("", "auto")],
)
def test_yaml_reads_on_and_off_as_booleans(tmp_path, text, meaning):
    """Configurations of older runs hold booleans too."""
    (tmp_path / "x.yaml").write_text(text)
    experiment = Experiment.from_flat(read_yaml(tmp_path / "x.yaml"), "x.yaml")
    assert experiment.run.compile == meaning
    assert Experiment.from_flat(yaml.safe_load(yaml.safe_dump(experiment.to_flat())), "again") == experiment


def test_environment_arguments_are_read_as_yaml():
    run = Experiment.from_flat({"env_kwargs": ["gravity=-5.0", "name=a=b", "on=true"]}, "x").run
    assert run.env_config.env_kwargs == {"gravity": -5.0, "name": "a=b", "on": True}


@pytest.mark.parametrize("content", ["a: [1", "- 1\n- 2", "1: 2"])
def test_files_that_hold_no_settings(tmp_path, content):
    (tmp_path / "x.yaml").write_text(content)
    with pytest.raises(BadInput, match=r"x\.yaml"):
        read_yaml(tmp_path / "x.yaml")
    with pytest.raises(BadInput, match="cannot read"):
        read_yaml(tmp_path / "missing.yaml")


@pytest.mark.parametrize(("algorithm", "env"), list_presets())
def test_presets_are_valid_and_say_their_budget(algorithm, env):
    preset = load_preset(algorithm, env)
    experiment = Experiment.from_flat(preset | {"algorithm": algorithm.partition("/")[0], "env": env}, env)
    assert experiment.run.total_timesteps or experiment.run.num_episodes


def test_a_preset_for_every_game_of_a_namespace():
    assert load_preset("ppo", "ALE/Pong-v5") == load_preset("ppo", "ALE/*")
    assert load_preset("ppo", "ALE/Breakout") == load_preset("ppo", "ALE/*")
    assert load_preset("sac", "ALE/Pong-v5") is None
    assert load_preset("ppo", "ALE") is None
    assert load_preset("ppo", "Other/Pong-v5") is None
    assert load_preset("dqn", "drl/BitFlip-v0")["her"] == "future", "one of its own comes first"


def test_a_preset_by_name():
    game = ["--env", "ALE/Pong-v5"]
    experiment, source = read_experiment("dqn", [*game, "--preset", "rainbow", "--seed", "3"])
    assert (experiment.model.noisy, experiment.buffer.n_step, experiment.run.seed) == (True, 3, 3)
    assert source == "preset rainbow dqn/ALE/Pong-v5"
    assert not read_experiment("dqn", game)[0].model.noisy
    for flags, said in (
        ([*game, "--preset", "rainbo"], "dqn has no preset 'rainbo' for ALE/Pong-v5; did you mean 'rainbow'"),
        (["--env", "CartPole-v1", "--preset", "rainbow"], "dqn has no preset 'rainbow' for CartPole-v1; it has none"),
        ([*game, "--preset", "rainbow", "--no-preset"], "give one of them"),
    ):
        with pytest.raises(BadInput, match=said):
            read_experiment("dqn", flags)


def test_a_preset_by_name_for_every_environment():
    """`--preset clip` is the fifth document; it goes on top of the environment's own preset."""
    usual, _ = read_experiment("ppo", ["--env", "CartPole-v1"])
    clip, source = read_experiment("ppo", ["--env", "CartPole-v1", "--preset", "clip", "--seed", "3"])
    assert source == "preset clip ppo/CartPole-v1"
    assert usual.learner.clip_range_end == 0.0
    assert usual.learner.value_clip is None
    changed = changed_settings(usual.to_flat(), clip.to_flat())
    assert changed == (
        "clip_range_end was 0.0 and is now None; log_every was 0 and is now 1; seed was 0 and is now 3; "
        "value_clip was None and is now 0.2"
    )
    assert read_experiment("ppo", ["--env", "MyOwn-v0", "--preset", "clip"])[0].learner.value_clip == 0.2
    assert read_experiment("ppo", ["--env", "CartPole-v1", "--preset", "clip", "--quiet"])[0].run.quiet
    with pytest.raises(BadInput, match="ppo has no preset 'clipp' for CartPole-v1; did you mean 'clip'"):
        read_experiment("ppo", ["--env", "CartPole-v1", "--preset", "clipp"])
    with pytest.raises(BadInput, match="a2c has no preset 'clip'"):
        read_experiment("a2c", ["--env", "CartPole-v1", "--preset", "clip"])
    assert not any("clip" in algorithm for algorithm, _ in list_presets())


def test_blocks_on_the_way_are_not_quiet():
    assert read_experiment("ppo", ["--log-every", "2"])[0].run.log_every == 2
    assert read_experiment("ppo", [])[0].run.log_every == 0
    with pytest.raises(BadInput, match="log_every prints during training and quiet prints one line"):
        read_experiment("ppo", ["--log-every", "2", "--quiet"])
    assert read_experiment("ppo", ["--log-every", "0", "--quiet"])[0].run.quiet
    with pytest.raises(BadInput, match="log_every prints during training and quiet prints one line"):
        make_experiment("ppo", log_every=2, quiet=True)
    with pytest.raises(BadInput, match="log_every is a setting of a run"):
        make_trainer("ppo", log_every=2)
    with pytest.raises(BadInput, match="log_every is -1; expected a whole number of at least 0"):
        Experiment.from_flat({"log_every": -1}, "test")


@pytest.mark.parametrize(
    ("flags", "frames"),
    [
        (["--env", "ALE/Pong-v5"], 4),
        (["--env", "ale_py:ALE/Pong-v5"], 4),
        (["--env", "ALE/Pong-v5", "--env-kwargs", "preprocess=false"], 1),
        (["--env", "ALE/Pong-v5", "--frame-stack", "2"], 2),
        (["--env", "CartPole-v1"], 1),
        (["--env", "CartPole-v1", "--frame-stack", "3"], 3),
    ],
)
def test_the_usual_frame_stack(flags, frames):
    experiment, _ = read_experiment("ppo", [*flags, "--no-preset"])
    assert experiment.run.frame_stack == frames
    assert experiment.to_flat()["frame_stack"] == frames
