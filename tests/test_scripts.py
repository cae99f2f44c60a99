"""The scripts in `experiments/` and the commands and code of the README run, at a tiny size."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "experiments").glob("*.py"))


@pytest.mark.full
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_experiments_run(script, tmp_path):
    steps = "2500" if script.stem == "cartpole_dqn" else "600"  # it learns from step 1,024 on
    arguments = ["--steps", steps, "--results-dir", str(tmp_path)]
    result = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert result.returncode == 0, result.stdout + result.stderr
    run = next(tmp_path.rglob("card.json")).parents[1]
    evaluation = [sys.executable, "-m", "drl.cli.entry", "evaluate", str(run), "--episodes", "1"]
    subprocess.run(evaluation, check=True, timeout=60, cwd=tmp_path)
    assert list(tmp_path.rglob("loss.png"))


@pytest.mark.full
def test_a_script_resumes_its_run(tmp_path):
    """From its checkpoint at 10,240 of 12,288 steps: it writes the last rows again."""
    script = [sys.executable, str(ROOT / "experiments" / "cartpole_ppo.py"), "--steps", "12000", "--results-dir", "r"]

    def result(*arguments):
        subprocess.run([*script, *arguments], check=True, timeout=240, cwd=tmp_path, capture_output=True)
        (metrics,) = tmp_path.rglob("metrics.jsonl")
        (weights,) = tmp_path.rglob("agent/weights-*")
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        return metrics.parent, weights.name, [{k: v for k, v in row.items() if k[:5] != "time/"} for row in rows]

    run, *whole = result()
    (run / "metrics.jsonl").write_text("".join((run / "metrics.jsonl").read_text().splitlines(keepends=True)[:10]))
    assert list(result("--resume", str(run)))[1:] == whole


@pytest.mark.full
def test_the_readmes_python_runs(tmp_path):
    """Every python block of the README, one after the other, in one process, with small budgets."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    code = "\n".join(blocks).replace("100_000", "2_000")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.full
def test_the_readmes_first_example_runs_as_a_notebook(tmp_path):
    """Each line is a cell; progress is printed below it, and a run is shown with its learning curve."""
    import nbformat
    from nbclient import NotebookClient

    (block,) = re.findall(r"```python\n(import drl\n\nrun.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line for line in block.replace("100_000", "2_000").splitlines() if line]
    cells = [nbformat.v4.new_code_cell(line) for line in [*lines, "run"]]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(output.get("text", "") for output in notebook.cells[1].outputs)
    assert "mean_ep_return" in printed
    (shown,) = notebook.cells[-1].outputs
    assert "data:image/png;base64" in shown["data"]["text/html"]


def test_the_readmes_commands_exist(tmp_path):
    """Flags shown in the README are flags that the command knows."""
    text = (ROOT / "README.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("drl train") and "--config" not in line]
    assert lines
    from drl.cli.train import read_experiment

    for line in lines:
        words = line.split("#")[0].split()
        read_experiment(words[2], words[3:])


def test_every_room_has_a_readme():
    rooms = [path for path in (ROOT / "drl").iterdir() if path.is_dir() and (path / "__init__.py").exists()]
    rooms += [ROOT / "drl" / "engines" / "torch", ROOT / "experiments", ROOT / "benchmarks"]
    missing = [str(room) for room in rooms if not (room / "README.md").exists()]
    assert not missing
