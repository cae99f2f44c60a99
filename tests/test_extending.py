"""`docs/extending.md`, as it stands: its module is written to a file, its commands run one after the other."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text()
BLOCKS = re.findall(r"```(python|bash)\n(.*?)```", PAGE, re.DOTALL)
SMALL = {
    "ppo": "--num-envs 2 --rollout-length 64 --hidden-sizes 16",
    "sticky_ppo": "--num-envs 2 --rollout-length 64 --hidden-sizes 16",
    "kl_ppo": "--num-envs 2 --rollout-length 64 --hidden-sizes 16",
    "a2c": "--num-envs 2 --hidden-sizes 16",
    "my_ddpg": "--num-envs 1 --hidden-sizes 16 --updates-per-log 50",
}


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extending")
    *module, _ = [code for kind, code in BLOCKS if kind == "python"]
    (folder / "my_parts.py").write_text("\n\n".join(module))
    return folder


@pytest.mark.full
def test_the_page_runs(folder):
    commands = []
    for kind, code in BLOCKS:
        for line in code.splitlines() if kind == "bash" else ():
            words = shlex.split(line)
            if words[1] == "train":
                words += ["--no-plots", "--no-video", "--no-tensorboard", "--quiet", "--evaluation-episodes", "1"]
                words += shlex.split(SMALL[words[2]])
            commands.append(words[1:])
    together = "import sys, json; from drl.cli.entry import main; "  # one process: most of the time would be imports
    together += "[sys.exit(str(words)) for words in json.loads(sys.argv[1]) if main(words) != 0]"
    run([sys.executable, "-c", together, json.dumps(commands)], folder)
    rows = [path.read_text() for path in folder.glob("results/ddpg/*/metrics.jsonl")]
    assert "actor_loss" in rows[0], "a loss that only some updates report is logged"
    assert "noise_sigma" in rows[0]
    (kl,) = folder.glob("results/kl/*/metrics.jsonl")
    assert json.loads(kl.read_text().splitlines()[0])["learn/kl_penalty"] >= 0
    (snake,) = folder.glob("results/snake/*/metrics.jsonl")
    assert json.loads(snake.read_text().splitlines()[0])["trainer/entropy_coef"] == 0.02
    last = next(code for kind, code in reversed(BLOCKS) if kind == "python")
    run([sys.executable, "-c", last + "assert type(agent).__name__ == 'StickyAgent', agent"], folder)
    (agent,) = folder.glob("results/fourier/*/agent")
    shutil.copytree(agent, folder / "copied")  # its run is no longer beside it, which may import its own plugins
    without = [sys.executable, "-m", "drl.cli.entry", "evaluate", "copied"]
    done = subprocess.run(without, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 3
    assert "--plugins MODULE" in done.stderr


def test_how_long_the_examples_are():
    """A variation in at most 25 lines, an algorithm in at most 60, imports from three modules."""
    code = {name: text for _, text in BLOCKS for name in re.findall(r"^class (\w+)", text, re.MULTILINE)}
    assert len(code["KLPPO"].strip().splitlines()) <= 25
    assert len(code["DelayedDDPG"].strip().splitlines()) <= 60
    assert set(re.findall(r"(?:import|from) (drl[.\w]*)", PAGE)) <= {"drl", "drl.torch", "drl.jax"}
