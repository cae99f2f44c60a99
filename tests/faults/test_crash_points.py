"""A crash or a full disk at every single operation on files: what was there before is whole, or what came after is.

The next save works and leaves nothing behind of the one that failed.
"""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from failing_disk import Disk, Killed, failing
from fault_cases import some
from tiny_runs import SETTINGS

from drl.core.agent_files import read_agent, write_agent
from drl.core.errors import DrlError
from drl.core.log import Log
from drl.core.safe_files import DRAFT
from drl.core.state_files import RowLog, check_pth, write_pth
from drl.engines.torch.agents import write_state_dict
from drl.runs.folder.checkpoints import Checkpoints
from drl.runs.folder.run_folder import Run, read_record, read_settings, runs_in
from drl.runs.launch import resume, train
from drl.settings.experiment import Experiment
from drl.tracking.files import CsvTracker, JsonlTracker, read_metrics

KIND = "crash points"
FAULTS = ("killed", "full", "broken")


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    """Flushing to the disk is counted and can fail, but nobody waits for it."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


def every_point(folder: Path, prepare: Callable, save: Callable, check: Callable, few: int = 12) -> int:
    """`save(prepare(folder))` fails at each of its operations in each way; then `check` looks at what is there.

    `check` gets the folder, what `prepare` gave, and the fault.
    """
    counted = prepare(folder / "whole")
    with failing(Disk(folder / "whole")) as disk:
        save(counted)
    cases = some([(fault, point) for fault in FAULTS for point in range(len(disk.operations))], few)
    assert len(disk.operations) > 1
    for fault, point in cases:
        here = folder / f"{fault}_{point}"
        prepared = prepare(here)
        with failing(Disk(here, fault, point)), contextlib.suppress(Killed, OSError, DrlError):
            save(prepared)
        check(here, prepared, fault)
    return len(cases)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def drafts(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if DRAFT.fullmatch(path.name)]


CARD = {name: {} for name in ("architecture", "distribution", "obs_spec", "action_spec", "normalizer", "notes")}
CARD |= {"engine": "torch", "variant": "q_value"}


def test_an_agent(tmp_path, tally):
    def arrays(number):
        return {"w": np.full(100, number, np.float32)}

    def prepare(folder):
        write_agent(folder / "agent", CARD | {"notes": {"number": 1}}, arrays(1))
        return folder / "agent"

    def check(folder, agent, fault):
        card, found = read_agent(agent)
        assert card["notes"]["number"] == found["w"][0] in (1, 2)
        write_agent(agent, CARD, arrays(3))
        assert read_agent(agent)[1]["w"][0] == 3
        assert len(names(agent)) == 2

    tried = every_point(
        tmp_path, prepare, lambda agent: write_agent(agent, CARD | {"notes": {"number": 2}}, arrays(2)), check
    )
    tally(KIND, tried)


def state_at(step: int) -> dict[str, object]:
    """What a run with a replay of 40 rows saves at a step: 15 new rows each time."""
    ring, written = np.zeros((40, 2), np.float32), 15 * step
    for row in range(written):
        ring[row % 40] = row
    return {"step": step, "weights": np.full(50, step, np.float32), "ring": RowLog(ring, written)}


def is_whole(state) -> bool:
    step, ring = state["step"], np.zeros((40, 2), np.float32)
    state["ring"].into(ring)
    wanted = state_at(step)
    return bool((ring == wanted["ring"].array).all() and (state["weights"] == wanted["weights"]).all())


def test_a_checkpoint_with_replay_rows(tmp_path, tally):
    def prepare(folder):
        checkpoints = Checkpoints(folder / "checkpoints")
        for step in (1, 2, 3):
            checkpoints.save(step, state_at(step), keep=2)
        return checkpoints

    def check(folder, checkpoints, fault):
        if fault == "killed":  # by a new process
            checkpoints = Checkpoints(folder / "checkpoints")
        fresh = Checkpoints(folder / "checkpoints")
        stored = [int(path.name.removeprefix("step_")) for path in fresh.stored()]
        assert stored in ([2, 3], [2, 3, 4], [3, 4])
        assert all(is_whole(fresh.load(step)) for step in stored)
        if fault == "killed":
            assert checkpoints.load_newest()["step"] in (3, 4)
        for step in (5, 6):
            checkpoints.save(step, state_at(step), keep=2)
        assert names(checkpoints.folder) == ["rows", "step_000000000005", "step_000000000006"]
        again = Checkpoints(folder / "checkpoints")
        assert all(is_whole(again.load(step)) for step in (5, 6))
        needed = {chunk.file for step in (5, 6) for chunk in chunks(again, step)}
        assert set(names(checkpoints.folder / "rows")) == needed
        for path in checkpoints.stored():
            assert names(path) == ["arrays.safetensors", "state.json"]

    def chunks(checkpoints, step):
        checkpoints.load(step)
        return checkpoints.row_files.known["/ring"]

    tried = every_point(tmp_path, prepare, lambda checkpoints: checkpoints.save(4, state_at(4), keep=2), check, few=24)
    tally(KIND, tried)


@pytest.mark.parametrize("writer", ["numpy", "torch"])
def test_a_pth_file(writer, tmp_path, tally):
    def write(path, value):
        if writer == "numpy":
            write_pth(path, {"w": np.full(10, value, np.float32)})
        else:
            module = torch.nn.Linear(2, 2)
            torch.nn.init.constant_(module.weight, value)
            write_state_dict(module, path)

    def prepare(folder):
        run = Run.create("x", {"a": 1}, folder)
        write(run.models / "m.pth", 1.0)
        return run

    def check(folder, run, fault):
        path = run.models / "m.pth"
        check_pth(path.read_bytes(), path)
        assert next(iter(torch.load(path, weights_only=True).values())).flatten()[0] in (1.0, 2.0)
        reopened_clean(run)
        write(path, 3.0)
        assert names(run.models) == ["m.pth"]

    tally(KIND, every_point(tmp_path, prepare, lambda run: write(run.models / "m.pth", 2.0), check))


def reopened_clean(run: Run) -> Run:
    """The same run, opened by another process; nothing is left of what failed."""
    run.close()
    again = Run.reopen(run.folder)
    again.close()
    assert drafts(run.folder) == []
    return again


def test_the_record_of_a_run(tmp_path, tally):
    def check(folder, run, fault):
        assert read_record(run.folder)["number"] in (1, 2)
        assert read_settings(run.folder) == {"a": 1}
        again = reopened_clean(run)
        again.note(number=3)
        assert read_record(run.folder)["number"] == 3

    def prepare(folder):
        run = Run.create("x", {"a": 1}, folder)
        run.note(number=1)
        return run

    tally(KIND, every_point(tmp_path, prepare, lambda run: run.note(number=2), check))


def test_a_new_run(tmp_path, tally):
    """A folder without a record is no run; with one it is whole."""

    def prepare(folder):
        folder.mkdir()
        return folder

    def check(folder, _, fault):
        for found in runs_in(folder / "x"):
            assert read_settings(found) == {"a": 1}
            assert read_record(found)["status"] == "unfinished"
        run = Run.create("x", {"a": 2}, folder)
        assert read_settings(run.folder) == {"a": 2}
        run.close()

    tally(KIND, every_point(tmp_path, prepare, lambda folder: Run.create("x", {"a": 1}, folder).close(), check))


def logs():
    """The third has a new column."""
    for step in (1, 2, 3, 4):
        yield Log(env_steps=step, episodes=0, learning_steps=step, learn={"loss": 0.5} if step > 2 else {})


@pytest.mark.parametrize(("tracker", "file"), [(JsonlTracker, "metrics.jsonl"), (CsvTracker, "progress.csv")])
def test_metrics(tracker, file, tmp_path, tally):
    def write(path, first, last):
        with contextlib.closing(tracker(path)) as writer:
            for log in logs():
                if first <= log.learning_steps <= last:
                    writer.write(log)

    write(tmp_path / "wanted" / file, 1, 4)

    def prepare(folder):
        write(folder / file, 1, 1)
        return folder / file

    def check(folder, path, fault):
        if tracker is JsonlTracker:
            assert [row["env_steps"] for row in read_metrics(path)] in ([1], [1, 2], [1, 2, 3])
        write(path, 2, 4)  # from the checkpoint after the first log
        assert path.read_bytes() == (tmp_path / "wanted" / file).read_bytes()
        if fault != "killed":  # resuming removes the drafts of a killed process
            assert drafts(folder) == []

    tally(KIND, every_point(tmp_path, prepare, lambda path: write(path, 2, 3), check))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # nobody closes files after a kill
def test_a_run_that_is_killed_at_any_operation_is_resumed_exactly(tmp_path, tally):
    """Training itself. Whatever the moment, the resumed run ends with the same rows and weights."""
    settings = SETTINGS | {"total_timesteps": 90, "checkpoint_every": 45, "updates_per_log": 20, "num_checkpoints": 1}

    def start(folder):
        return train(Experiment.from_flat(settings | {"results_dir": str(folder)}, "test"), console=False).folder

    with failing(Disk(tmp_path / "whole")) as disk:
        whole = start(tmp_path / "whole")
    points = some(range(len(disk.operations)), 4)
    for point in points:
        folder = tmp_path / f"killed_{point}"
        with failing(Disk(folder, "killed", point)), pytest.raises(Killed):
            start(folder)
        for stopped in runs_in(folder / "tiny"):  # none if it was killed before there was a record
            resume(stopped, console=False)
            assert result(stopped) == result(whole)
            assert drafts(stopped) == []
    tally(KIND, len(points))


def result(folder: Path) -> tuple[object, ...]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timeless = [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]
    files = sorted(path.name for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".rows"))
    return timeless, files, read_agent(folder)[0]["checksum"], read_record(folder)["status"]
