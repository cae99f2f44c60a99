"""Runs as training leaves them, written in a moment."""

import hashlib
import json
from pathlib import Path

import yaml

from drl.core.state_files import write_sealed
from drl.settings.experiment import Experiment


def metric_row(step: int, total: int = 40) -> dict[str, object]:
    """A row of metrics.jsonl; its numbers follow from the step."""
    share = step / total
    row: dict[str, object] = {"env_steps": 100 * step, "episodes": 2 * step, "learning_steps": step}
    row |= {"recent/mean_ep_return": 400 * share, "recent/window": 100.0, "time/time_elapsed": 1.5}
    row |= {
        "learn/value_loss": 100 * 0.9**step,
        "learn/policy_loss": -0.01 * (-1) ** step,
        "learn/entropy": 0.7 - share / 2,
    }
    if step % 10 == 0:
        row |= {"evaluation/mean_return": 390.5 * share, "evaluation/std_return": 2.0}
    row["finished"] = [[400 * share - 5 * (-1) ** step, 20, True, None], [400 * share, 20, True, None]]
    return row


def append_rows(run: Path, rows: list[dict[str, object]]) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_run(folder: Path, rows: int = 40, settings: dict[str, object] | None = None, **record: object) -> Path:
    """A run of PPO with `rows` learning steps; `record` changes its run.json."""
    folder.mkdir(parents=True)
    flat = Experiment.from_flat({"algorithm": "ppo", "env": "CartPole-v1"}, "test").to_flat() | (settings or {})
    config = yaml.safe_dump(flat, sort_keys=False, allow_unicode=True).encode()
    (folder / "config.yaml").write_bytes(config)
    about = {"format": 2, "config_checksum": hashlib.sha256(config).hexdigest(), "status": "finished", "seed": 3}
    about |= {"command": ["drl", "train", "ppo", "--env", "CartPole-v1"], "started": "2026-01-02T03:04:05"}
    about |= {
        "versions": {"drl": "9.8.7", "torch": "2.8.0"},
        "final_evaluation": {"mean_return": 487.5, "episodes": 10},
    }
    write_sealed(folder / "run.json", about | record)
    append_rows(folder, [metric_row(step, rows) for step in range(1, rows + 1)])
    return folder
