"""The command as people type it: exit codes, and no traceback ever. A process of its own only where that matters."""

import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from drl.cli.entry import main
from drl.cli.train import read_experiment
from drl.core.errors import BadInput
from drl.report.plot_call import label_of_each
from tests.commands import run_here, run_process

TINY = ["--total-timesteps", "256", "--num-envs", "2", "--rollout-length", "32", "--evaluation-episodes", "2"]
LEAN = ["--no-plots", "--no-video", "--no-tensorboard"]


drl = partial(run_here, main)


def drl_process(*arguments, cwd, code=0):
    return run_process([sys.executable, "-m", "drl.cli.entry", *arguments], cwd, code)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    result = drl_process("train", "ppo", "--env", "CartPole-v1", *TINY, "--name", "first", cwd=folder)
    return folder, result


def test_train_shows_its_blocks_and_where_things_are(trained):
    folder, result = trained
    for words in ("preset ppo/CartPole-v1", "ROLLOUT STATISTICS", "RECENT", "TRAINER STATISTICS", "final agent:"):
        assert words in result.stdout
    for line in result.stdout.splitlines():
        if line.strip().startswith(("agent ", "plot ", "video ")):
            assert (folder / line.split()[1]).exists()
    assert "video" in result.stdout


def test_evaluate_measures_and_speaks_json(trained):
    folder, _ = trained
    result = drl("evaluate", "results/first", "--episodes", "3", "--json", cwd=folder)
    summary = json.loads(result.stdout)
    assert summary["episodes"] == 3
    assert summary["env"] == "CartPole-v1"
    words = drl("evaluate", "results/first", "--episodes", "3", cwd=folder).stdout
    assert f"{summary['mean_return']:.2f}" in words
    drl("evaluate", "results/first", "--sampled", "--temperature", "0.5", cwd=folder)


def test_evaluate_step_by_step_shows_what_the_agent_thinks(trained):
    folder, _ = trained
    shown = drl("evaluate", "results/first", "--episodes", "1", "--step-by-step", cwd=folder).stdout
    for word in ("episode 1", "obs [", "action", "policy [", "value", "reward 1", "mean return"):
        assert word in shown


def test_evaluate_films_without_overwriting(trained):
    folder, _ = trained
    first = drl("evaluate", "results/first", "--episodes", "1", "--video", cwd=folder).stdout.split("video: ")[1]
    again = ("evaluate", "results/first", "--which", "best", "--episodes", "1", "--video")
    second = drl(*again, cwd=folder).stdout.split("video: ")[1]
    assert first.split()[0] != second.split()[0]
    assert Path(first.split()[0]).parent == Path(second.split()[0]).parent


def test_plot_draws_one_run_and_several(trained):
    folder, _ = trained
    pictures = drl("plot", "results/first", cwd=folder).stdout.split()
    assert all((folder / picture).exists() for picture in pictures)
    run = next((folder / "results" / "first").iterdir())
    arguments = ("plot", str(run), str(run), "--out", "both.png")
    drl(*arguments, cwd=folder)
    assert (folder / "both.png").exists()
    assert "exists" in drl(*arguments, cwd=folder, code=2).stderr
    assert "report.html" in drl("plot", str(run), "--report", cwd=folder).stdout


def test_plot_takes_labels_metrics_and_formats(trained, tmp_path):
    run = str(next((trained[0] / "results" / "first").iterdir()))
    options = ("--labels", "Ours", "--metric", "return", "entropy", "--statistic", "median", "--smooth", "3")
    assert drl("plot", run, *options, "--out", "x.svg", cwd=tmp_path).stdout == "x.svg\n"
    drawn = (tmp_path / "x.svg").read_text()
    for words in ("Ours", "learn/entropy", "mean of the last 3 episodes", "mean of the last 3 values"):
        assert f">{words}</text>" in drawn


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (("--metric", "entropi"), "did you mean 'entropy'"),
        (("--metric", "zzz"), "there are return, learn/"),
        (("--labels", "a", "b"), "one for each path (1), or one for each line of the plot (1: first)"),
        (("--out", "x.jpg"), ".png, .pdf, .svg"),
        (("--statistic", "medain"), "did you mean 'median'"),
        (("--smooth", "0"), "smooth is 0"),
    ],
)
def test_plot_refuses_in_one_line_and_writes_nothing(trained, tmp_path, flags, hint):
    run = next((trained[0] / "results" / "first").iterdir())
    out = () if "--out" in flags else ("--out", "x.png")
    message = drl("plot", str(run), *out, *flags, cwd=tmp_path, code=2).stderr.strip()
    assert hint in message
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []


def test_plot_labels_name_paths_or_lines(tmp_path):
    found = [("results/a", tmp_path / "a" / run) for run in "xyz"]
    for i, (_, run) in enumerate(found):
        run.mkdir(parents=True)
        (run / "config.yaml").write_text(f"learning_rate: {min(i, 1)}")
    assert label_of_each(["A"], found) == ["A", "A", "A"]
    assert label_of_each(["zero", "one"], found) == ["zero", "one", "one"]
    again = ("x", tmp_path / "a" / ".." / "a" / "x")
    assert label_of_each(["zero", "one"], [*found, again, ("y", again[1])]) == ["zero", "one", "one", "zero", "zero"]
    assert label_of_each(["A", "B"], [*found, ("results/b", found[0][1])]) == ["A", "A", "A", "B"]
    with pytest.raises(BadInput, match="has 3 names; expected one for each path"):
        label_of_each(["A", "B", "C"], found)


def test_a_runs_config_starts_it_again(trained):
    folder, _ = trained
    run = next((folder / "results" / "first").iterdir())
    arguments = ("--config", str(run / "config.yaml"), "--name", "second", "--quiet", *LEAN)
    result = drl("train", "ppo", *arguments, cwd=folder)
    assert len(result.stdout.strip().splitlines()) == 1
    again = next((folder / "results" / "second").iterdir())
    strip = lambda line: {k: v for k, v in json.loads(line).items() if not k.startswith("time/")}  # noqa: E731
    lines = [[strip(x) for x in (r / "metrics.jsonl").read_text().splitlines()] for r in (run, again)]
    assert lines[0] == lines[1]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("trian",), "did you mean 'train'"),
        (("train", "pp0"), "did you mean 'ppo'"),
        (("train", "ppo", "--env", "CartPol-v1"), "did you mean 'CartPole-v1'"),
        (("train", "ppo", "--learning-rat", "1"), "--learning-rate"),
        (("train", "ppo", "--learning-rate", "fast"), "learning-rate"),
        (("train", "ppo", "--learning-rate", "-1"), "learning_rate is -1.0"),
        (("train", "ppo", "--num-envs", "0"), "num_envs is 0"),
        (("train", "ppo", "--device", "cuda"), "not available"),
        (("train", "ppo", "--config", "nowhere.yaml"), "cannot read nowhere.yaml"),
        (("train", "ppo", "--config"), "--config needs a value"),
        (("train", "ppo", "--env-kwargs", "a=["), "not YAML"),
        (("train", "ppo", "--minibatches", "100000"), "only"),
        (("train", "ppo", "--learning-rate", "inf"), "finite"),
        (("train", "ppo", "--critic-learning-rate", "1e-3", "--shared"), "critic of its own"),
        (("train", "ppo", "--env", "nomodule:Id-v0"), "cannot import"),
        (("train", "ppo", "--vectorization", "fast"), "unknown vectorization 'fast'"),
        (("train", "ppo", "--backbone", "cnn"), "36 × 36"),
        (("train", "ppo", "--total-timesteps", "10", "--num-episodes", "3"), "give one budget"),
        (("evaluate", "nowhere"), "nowhere"),
        (("plot", "nowhere"), "nowhere"),
        (("list", "preset"), "did you mean 'presets'"),
        ((), ""),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_wrong_input_is_one_message_exit_2_and_nothing_written(tmp_path, arguments, hint):
    result = drl(*arguments, cwd=tmp_path, code=2)
    assert hint in result.stderr + result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_a_process_says_it_too(trained, tmp_path):
    folder, _ = trained
    assert "did you mean 'ppo'" in drl_process("train", "pp0", cwd=tmp_path, code=2).stderr
    assert json.loads(drl_process("evaluate", "results/first", "--episodes", "1", "--json", cwd=folder).stdout)


def test_a_damaged_agent_is_exit_3(trained, tmp_path):
    import shutil

    run = next((trained[0] / "results" / "first").iterdir())
    shutil.copytree(run, tmp_path / "run")
    weights = next((tmp_path / "run" / "agent").glob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert "damaged" in drl("evaluate", "run", cwd=tmp_path, code=3).stderr


def test_help_version_and_list(tmp_path):
    assert "train" in drl("--help", cwd=tmp_path).stdout
    assert drl("--version", cwd=tmp_path).stdout.startswith("drl ")
    assert "--clip-range" in drl_process("train", "ppo", "--help", cwd=tmp_path).stdout
    listed = drl("list", cwd=tmp_path).stdout
    assert "ALE/*" in listed
    assert "Ant-v2" not in listed
    assert "Ant-v2 " in drl("list", "--all", "envs", cwd=tmp_path).stdout
    for word in ("reinforce", "CartPole-v1", "drl/Match-v0"):
        assert word in listed


def test_an_agent_copied_out_of_its_run_knows_its_env(tmp_path):
    import shutil

    flags = ("--env", "CartPole-v1", *TINY, "--frame-stack", "2", "--name", "stacked", "--quiet", *LEAN)
    drl("train", "ppo", *flags, cwd=tmp_path)
    agent = next(tmp_path.rglob("card.json")).parent
    run = next((tmp_path / "results" / "stacked").iterdir())
    shutil.copytree(run / "agent", tmp_path / "alone")
    assert agent.exists()
    for given in ("alone", str(run / "models" / "best_agent")):
        drl("evaluate", given, "--episodes", "1", cwd=tmp_path)
    message = drl("evaluate", "alone", "--env", "Pendulum-v1", "--step-by-step", cwd=tmp_path, code=2).stderr
    assert "does not fit" in message
    assert "--sampled" in drl("evaluate", "alone", "--temperature", "2", cwd=tmp_path, code=2).stderr


@pytest.mark.full
def test_a_reader_that_goes_away_does_not_end_training(tmp_path):
    command = f"{sys.executable} -m drl.cli.entry train ppo {' '.join([*TINY, *LEAN])} | head -1"
    subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, timeout=120, check=True)
    assert json.loads(next(tmp_path.rglob("run.json")).read_text())["status"] == "finished"


@pytest.mark.full
def test_a_env_in_a_module_of_the_current_folder(tmp_path):
    (tmp_path / "my_worlds.py").write_text(
        "import gymnasium as gym\nfrom drl.games.probes import MatchEnv\ngym.register('Mine-v0', MatchEnv)\n"
    )
    drl_process("train", "ppo", "--env", "my_worlds:Mine-v0", *TINY, "--quiet", *LEAN, cwd=tmp_path)


@pytest.mark.full
def test_a_signal_saves_and_says_so(tmp_path):
    command = [sys.executable, "-m", "drl.cli.entry", "train", "ppo", "--total-timesteps", "100000000", *LEAN]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not any(p.stat().st_size for p in tmp_path.rglob("metrics.jsonl")):
        time.sleep(0.1)
    process.terminate()
    output, errors = process.communicate(timeout=90)
    assert process.returncode == 143, output + errors
    assert "Traceback" not in errors
    record = json.loads(next(tmp_path.rglob("run.json")).read_text())
    assert record["status"] == "terminated"
    assert list(tmp_path.rglob("agent/card.json"))


@pytest.mark.full
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_final_save_loses_nothing(tmp_path, sent):
    """The signals arrive while the agent is being written: it is whole, and only the final evaluation is left."""
    code = f"""
import os, signal, sys
from drl.core import agent_files
from drl.cli.entry import main
write = agent_files.write_agent
def signalled(folder, card, arrays):
    if folder.name == "agent":
        print("signal", flush=True)
        for _ in range(3):
            os.kill(os.getpid(), {int(sent)})
    write(folder, card, arrays)
agent_files.write_agent = signalled
sys.exit(main(["train", "ppo", {", ".join(map(repr, [*TINY, *LEAN, "--checkpoint-every", "0"]))}]))
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, timeout=120)
    assert ended.stdout.count(b"signal\n") == 1
    assert ended.returncode == 128 + sent
    (record,) = tmp_path.rglob("run.json")
    assert json.loads(record.read_text())["status"] == ("interrupted" if sent == signal.SIGINT else "terminated")
    assert list(tmp_path.rglob("agent/card.json"))
    assert not list(tmp_path.rglob("*.part"))
    drl("resume", record.parent, cwd=tmp_path)
    assert json.loads(record.read_text())["status"] == "finished"
    assert "final_evaluation" in json.loads(record.read_text())


@pytest.mark.parametrize(
    ("flags", "choice"),
    [
        ([], "auto"),
        (["--compile"], "on"),
        (["--compile", "--seed", "3"], "on"),
        (["--no-compile"], "off"),
        (["--compile", "off"], "off"),
        (["--compile=on"], "on"),
        (["--compile", "auto", "--no-video"], "auto"),
    ],
)
def test_compile_is_a_switch_and_takes_a_word(flags, choice):
    experiment, _ = read_experiment("ppo", ["--env", "CartPole-v1", *flags])
    assert experiment.run.compile == choice
