"""Files that survive kills and resumes."""

import csv
import json
import math

import numpy as np
import pytest

from drl.core.errors import UnusableFile
from drl.core.log import Episode, Log
from drl.tracking.files import CsvTracker, JsonlTracker, read_metrics

NAN, INF = float("nan"), float("inf")


def log(step: int, **groups) -> Log:
    return Log(env_steps=8 * step, episodes=step, learning_steps=step, learn={"loss": 1 / step}, **groups)


def write(tracker, steps, **groups):
    for step in steps:
        tracker.write(log(step, **groups))
    tracker.close()


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_jsonl_round_trip(tmp_path):
    tracker = JsonlTracker(tmp_path / "deep" / "metrics.jsonl")
    episodes = [Episode(1.5, 10, True, False, 0), Episode(np.float32(0.5), np.int64(3), np.False_, np.True_, 1)]
    tracker.write(log(1, finished=episodes, recent={"mean_ep_return": np.float64(1.25)}))
    (row,) = read_metrics(tracker.path)  # readable before it is closed
    tracker.close()
    finished = row.pop("finished")
    assert finished == [[1.5, 10, True, False], [0.5, 3, False, True]]
    assert row == log(1, recent={"mean_ep_return": 1.25}).flat()


def test_jsonl_stays_json_when_numbers_are_not_finite(tmp_path):
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    tracker.write(
        log(1, rollout={"a": NAN, "b": -INF, "c": np.float32("inf")}, finished=[Episode(NAN, 1, True, True, 0)])
    )
    tracker.close()

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    row = json.loads(tracker.path.read_text(), parse_constant=refuse)
    assert (row["rollout/a"], row["rollout/b"], row["rollout/c"]) == (None, None, None)
    assert row["finished"][0][0] is None


@pytest.mark.parametrize(("name", "kind"), [("metrics.jsonl", JsonlTracker), ("progress.csv", CsvTracker)])
def test_an_interrupted_run_leaves_the_bytes_of_an_uninterrupted_one(tmp_path, name, kind):
    whole, resumed = tmp_path / "whole" / name, tmp_path / "resumed" / name
    write(kind(whole), range(1, 8))
    write(kind(resumed), range(1, 6))
    resumed.write_bytes(resumed.read_bytes()[:-9])  # killed while step 5 was being written
    write(kind(resumed), range(4, 8))  # from the checkpoint after step 3
    assert resumed.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(("name", "kind"), [("metrics.jsonl", JsonlTracker), ("progress.csv", CsvTracker)])
def test_a_torn_last_line_is_dropped_and_the_rest_kept(tmp_path, name, kind):
    path = tmp_path / name
    write(kind(path), range(1, 4))
    path.write_bytes(path.read_bytes()[:-4])
    write(kind(path), [9])
    rows = read_metrics(path) if kind is JsonlTracker else read_csv(path)
    assert [int(row["learning_steps"]) for row in rows] == [1, 2, 9]


def test_reading_tolerates_a_torn_last_line_only(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"")
    assert read_metrics(path) == []
    path.write_bytes(b'{"env_steps": 1}\n{"env_st')
    assert read_metrics(path) == [{"env_steps": 1}]
    path.write_bytes(b'{"env_steps": 1}\n{"env_steps": 2}')  # whole by chance: continuing drops it too
    assert read_metrics(path) == [{"env_steps": 1}]
    path.write_bytes(b'{"env_steps": 1\n"episodes": 2}\n{"env_steps": 3}\n')  # valid when joined, wrong as lines
    with pytest.raises(UnusableFile, match="line 1"):
        read_metrics(path)


def test_csv_columns_grow_without_losing_rows(tmp_path):
    tracker = CsvTracker(tmp_path / "progress.csv")
    tracker.write(log(1))
    tracker.write(log(2, evaluation={"mean_return": 7.0, "odd, name": 1.0}))
    tracker.write(log(3, rollout={"mean_reward": NAN}))
    tracker.close()
    rows = read_csv(tracker.path)
    assert [row["evaluation/mean_return"] for row in rows] == ["", "7.0", ""]
    assert [row["evaluation/odd, name"] for row in rows] == ["", "1.0", ""]
    assert [row["learn/loss"] for row in rows] == ["1.0", "0.5", repr(1 / 3)]
    assert math.isnan(float(rows[2]["rollout/mean_reward"]))
    assert [p.name for p in tmp_path.iterdir()] == ["progress.csv"]


def test_csv_columns_of_the_first_life_stay(tmp_path):
    path = tmp_path / "progress.csv"
    write(CsvTracker(path), [1, 2], evaluation={"mean_return": 7.0})
    write(CsvTracker(path), [3], rollout={"mean_reward": 1.0})
    rows = read_csv(path)
    assert [row["evaluation/mean_return"] for row in rows] == ["7.0", "7.0", ""]
    assert [row["rollout/mean_reward"] for row in rows] == ["", "", "1.0"]


def test_csv_does_not_overwrite_a_foreign_file(tmp_path):
    path = tmp_path / "progress.csv"
    path.write_text("name,price\napple,3\n")
    with pytest.raises(UnusableFile, match="not written by drl"):
        CsvTracker(path).write(log(1))
    assert path.read_text() == "name,price\napple,3\n"
