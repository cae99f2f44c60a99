"""`docs/environments.md` keeps its promises: the environment in it is short, its code and its commands run."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_env_is_under_forty_lines():
    assert len(blocks("python")[0].splitlines()) < 40


@pytest.mark.full
def test_the_page_runs(tmp_path):
    """Blocks and commands one after the other, beside the module that the first block is; budgets are small. The
    command with Brax would compile for a minute; it is in `tests/engines/jax/test_brax_env.py`."""
    env, *scripts = blocks("python")
    (tmp_path / "my_dilemma.py").write_text(env)
    commands = [shlex.split(line, comments=True)[1:] for block in blocks("bash") for line in block.splitlines()]
    commands = [command for command in commands if not any("brax" in word for word in command)]
    assert (len(scripts), len(commands)) == (2, 6)
    small = ["--total-timesteps", "600", "--quiet", "--no-video", "--no-plots"]
    commands = [re.sub(r"--total-timesteps \S+ ?", "", " ".join(command)).split() for command in commands]
    commands = [[*command, "--warmup", "100"] if "dqn" in command else command for command in commands]
    code = [script.replace("50_000", "4_000").replace('"video"', '"plots": False, "video"') for script in scripts]
    code += ["from drl.cli.entry import main", *(f"assert main({[*command, *small]!r}) == 0" for command in commands)]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, timeout=240, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("results/*/*/agent/card.json"))) == 7
    assert re.search(r"^\d\d\.\d+$", done.stdout, re.MULTILINE)  # the mean return that the page prints
