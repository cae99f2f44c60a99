"""A tiny run to damage, the commands that must notice, and files that are forged with the right checksums."""

import hashlib
import json
import os
import shutil
from pathlib import Path

from drl.cli import flat
from drl.cli.entry import main
from drl.core.state_files import SEAL, _checksum
from drl.runs.folder.run_folder import Run
from drl.runs.launch import train
from drl.settings.experiment import Experiment

SETTINGS = {
    "algorithm": "dqn", "env": "CartPole-v1", "num_envs": 2, "warmup": 30, "capacity": 100, "batch_size": 8,
    "hidden_sizes": [8, 8], "total_timesteps": 200, "checkpoint_every": 100, "evaluate_every": 0, "compile": "off",
    "evaluation_episodes": 1, "quiet": True, "plots": False, "video": False, "tensorboard": False, "name": "tiny",
}  # fmt: skip


def train_tiny(folder: Path, **settings: object) -> Path:
    """A run that looks as if its process had been killed after the last checkpoint."""
    flat_settings = SETTINGS | {"results_dir": str(folder)} | settings
    finished = train(Experiment.from_flat(flat_settings, "test"), console=False).folder
    run = Run.reopen(finished)
    run.note(status="unfinished")
    run.close()
    return finished


def copy_of(run: Path, parent: Path) -> Path:
    shutil.rmtree(parent, ignore_errors=True)
    return Path(shutil.copytree(run, parent / "tiny" / "run", symlinks=True))


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step_*"))


def forget_older(run: Path) -> None:
    """Leave only the newest checkpoint."""
    for path in sorted((run / "checkpoints").glob("step_*"))[:-1]:
        shutil.rmtree(path)


def files_of(run: Path) -> dict[str, Path]:
    """By their role."""
    return {
        "card": run / "agent" / "card.json",
        "weights": next((run / "agent").glob("weights-*")),
        "state": newest(run) / "state.json",
        "arrays": newest(run) / "arrays.safetensors",
        "rows": max((run / "checkpoints" / "rows").glob("*.rows"), key=lambda path: int(path.name.split("-")[0])),
        "record": run / "run.json",
        "config": run / "config.yaml",
        "metrics": run / "metrics.jsonl",
        "table": run / "progress.csv",
        "lock": run / ".lock",
        "pth": run / "models" / "final_actor.pth",
    }


COMMANDS = {
    "evaluate": ["evaluate", "RUN", "--episodes", "1"],
    "film": ["evaluate", "RUN", "--episodes", "1", "--video"],
    "convert": ["convert", "RUN", "--engine", "jax"],
    "export": ["export", "RUN", "--to", "c"],
    "serve": ["serve", "RUN", "--port", "0"],
    "resume": ["resume", "RUN"],
    "fork": ["fork", "RUN"],
    "doctor": ["doctor", "RUN"],
    "plot": ["plot", "RUN"],
    "report": ["report", "RUN"],
}


def call(command: str, run: Path) -> int:
    if command == "main.py":
        words = f"--env_name CartPole-v1 --hidden 8 --quiet --eval_episodes 1 --load_model_path {files_of(run)['pth']}"
        return flat.main(["--evaluate", *words.split()])
    return main([str(run) if word == "RUN" else word for word in COMMANDS[command]])


def refused(command: str, run: Path, capsys) -> str:
    """The one line that a command prints when it ends with 3."""
    code, said = call(command, run), capsys.readouterr().err
    assert code == 3, f"{command}: exit {code}: {said}"
    assert said.count("\n") == 1, said
    assert said.startswith(("drl: ", "main.py: "))
    return said


def forge(path: Path, **changes: object) -> None:
    """Change a sealed file and seal it again, as its author could."""
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(document | {SEAL: _checksum(document)}, indent=2) + "\n")


def forge_file(run: Path, role: str, content: bytes) -> None:
    """Replace a file and correct the checksum that another file holds of it."""
    files, checksum = files_of(run), hashlib.sha256(content).hexdigest()
    files[role].write_bytes(content)
    if role == "weights":
        forge(files["card"], checksum=checksum)
    if role == "arrays":
        forge(files["state"], checksum=checksum)
    if role == "config":
        forge(files["record"], config_checksum=checksum)
    if role == "rows":
        state = files["state"].read_text()
        after = state[state.index(files["rows"].name) :]
        listed = next(word for word in after.split('"') if len(word) == 64)
        files["state"].write_text(state.replace(listed, checksum))
        forge(files["state"])


def tree(folder: Path) -> dict[str, object]:
    """Everything in a folder: names, sizes and contents."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        plain = path.is_file() and not path.is_symlink()
        found[str(path.relative_to(folder))] = path.read_bytes() if plain else os.path.islink(path)
    return found
