"""Searches whose trials raise, exit, hang or are killed, and whose storage is locked, torn or damaged."""

import contextlib
import multiprocessing
import sqlite3
import threading
import time
from pathlib import Path

import gymnasium as gym
import pytest
from fault_cases import LONG, some
from faulty_trial_envs import FAULTS

from drl.agents.evaluation import Evaluation
from drl.cli.entry import main
from drl.core.errors import BadInput, EnvFailed, UnusableFile
from drl.core.log import Episode
from drl.games.probes import MatchEnv
from drl.runs import session
from drl.search import study
from drl.search.run_search import run_search
from drl.search.search_plan import SearchConfig

KIND = "search"
SMALL = {
    "num_envs": 2,
    "rollout_length": 16,
    "hidden_sizes": [8],
    "epochs": 1,
    "minibatches": 1,
    "vectorization": "sync",
}
LOST = {"os._exit", "kill", "terminate", "abort"}  # the process is gone, so another trial takes the place of this one
SILENT = {"hang", "spin"}


def run(folder, n_trials=3, settings=None, **changes):
    options = {"env": "drl/Match-v0", "num_timesteps_per_trial": 96, "reports": 3, "evaluation_episodes": 4}
    options |= {"rerun_best": 1, "rerun_seeds": 1, "plots": False, "quiet": True, "name": "study", "n_jobs": 0}
    config = SearchConfig(n_trials=n_trials, results_dir=str(folder), **options | changes)
    return run_search("ppo", config, SMALL | (settings or {}))


@pytest.fixture
def fast(monkeypatch):
    """Trials in this process that are scored by their seed."""
    during = {}

    def evaluate(agent, env, episodes, seed, **_):
        during.get("do", lambda: None)()
        return Evaluation([Episode(float(seed), 1, True, True, 0)])

    monkeypatch.setattr(session, "evaluate", evaluate)
    monkeypatch.setattr("optuna.storages._rdb.storage.time.sleep", lambda seconds: None)  # between its five tries
    return during


# The short form tries one job and the death that tells the least; tests/search tries two jobs.
TRIALS = [("os._exit", 1), *((fault, jobs) for fault in FAULTS for jobs in (1, 2) if (fault, jobs) != ("os._exit", 1))]


@pytest.mark.full
@pytest.mark.parametrize(("fault", "jobs"), some(TRIALS, 1))
def test_a_bad_trial_is_accounted_for_and_the_search_goes_on(fault, jobs, tmp_path, monkeypatch, tally):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    settings = {"env_kwargs": [f"folder={tmp_path}", f"fault={fault}"]}
    minutes = 0.3 if fault in SILENT else 60.0
    env = "faulty_trial_envs:FaultyTrial-v0"
    result = run(tmp_path, 3, settings, env=env, n_jobs=jobs, trial_timeout=minutes, rerun_best=0)
    lost, failed = (1, 0) if fault in LOST else (0, 1)
    assert result.counts == {"complete": 3 - failed, "pruned": 0, "failed": failed, "lost": lost, "running": 0}
    notes = " ".join(str(note) for name, note in result.study.user_attrs.items() if name[:5] in ("error", "lost:"))
    words = {"hang": "no sign of life for 0.3 minutes", "exit": "SystemExit: 3", "os._exit": "exit code 7"}
    assert words.get(fault, "") in notes
    assert result.best.score is not None
    assert multiprocessing.active_children() == []
    tally(KIND)


@pytest.mark.skipif(not LONG, reason="five workers start one after another; make faults tries it")
@pytest.mark.parametrize("jobs", [1, 2])
def test_trials_that_all_kill_their_worker_end_the_search(jobs, tmp_path, monkeypatch, tally):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    settings = {"env_kwargs": [f"folder={tmp_path}", "fault=kill", "always=true"]}
    with pytest.raises(EnvFailed, match="workers died in a row, the last with exit code -9"):
        run(tmp_path, 3, settings, env="faulty_trial_envs:FaultyTrial-v0", n_jobs=jobs)
    assert multiprocessing.active_children() == []
    tally(KIND)


@pytest.mark.full
def test_an_environment_that_only_this_process_knows(tmp_path, fast, capsys, tally):
    gym.register("OnlyHere-v0", entry_point=MatchEnv)
    try:
        result = run(tmp_path, 2, env="OnlyHere-v0", n_jobs=1, quiet=False)
        assert result.counts["complete"] == 2
        assert "trials run in this process" in capsys.readouterr().out
    finally:
        del gym.registry["OnlyHere-v0"]
    tally(KIND)


def test_a_torn_journal_loses_its_torn_line_only(tmp_path, fast, tally):
    path = tmp_path / "kept.log"
    run(tmp_path, 2, storage=str(path))
    whole = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == 10]
    cuts = some([end - back for end in ends[-4:] for back in (1, 2, 20)], 3)
    for cut in cuts:
        path.write_bytes(whole[:cut])
        result = run(tmp_path, 2, storage=str(path))
        assert result.counts["complete"] == 2
        assert result.counts["running"] == 0
    tally(KIND, len(cuts))


JOURNALS = {
    "a damaged line": lambda text: text.replace(b'"op_code"', b'"op_c', 1),
    "a line of zeros": lambda text: b"\x00" * 40 + b"\n" + text,
    "a line that is not an object": lambda text: b"[1]\n" + text,
    "a missing name": lambda text: text.replace(b'"study_name"', b'"study_nome"', 1),
    "a missing beginning": lambda text: text[len(text) // 3 :],
    "a diary": lambda text: b"dear diary,\ntoday nothing happened",
    "one line of a diary": lambda text: b"dear diary",
    "nested too deep": lambda text: b"[" * 100_000 + b"\n" + text,
}
DATABASES = {
    "cut in half": lambda data: data[: len(data) // 2],
    "cut within a page": lambda data: data[: len(data) - 1000],
    "another header": lambda data: b"SQLite format 4\x00" + data[16:],
    "a text": lambda data: b"dear diary " * 400,
    "a page of zeros": lambda data: data[:4096] + b"\x00" * 4096 + data[8192:],
    "a page of noise": lambda data: data[:8192] + bytes(range(256)) * 16 + data[12288:],
    "no schema": lambda data: data[:100] + b"\xff" * 3996 + data[4096:],
}


@pytest.mark.parametrize("ending", ["log", "db"])
def test_a_damaged_storage_is_refused_and_left_as_it_is(ending, tmp_path, fast, monkeypatch, capsys, tally):
    damages = JOURNALS if ending == "log" else DATABASES
    path = tmp_path / f"kept.{ending}"
    run(tmp_path, 1, storage=str(path))
    whole, chosen = path.read_bytes(), some(list(damages), 4)
    for name in chosen:
        damaged = damages[name](whole)
        path.write_bytes(damaged)
        with pytest.raises(UnusableFile, match=r"is damaged .* and left as it is; give another --storage"):
            run(tmp_path, 2, storage=str(path))
        assert path.read_bytes() == damaged, name
    capsys.readouterr()
    words = "--env drl/Match-v0 --n-trials 2 --n-jobs 0 --no-plots --name study"
    assert main(["search", "ppo", *words.split(), "--results-dir", str(tmp_path), "--storage", str(path)]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1
    tally(KIND, len(chosen) + 1)


def test_an_empty_storage_is_a_new_one(tmp_path, fast, tally):
    names = some(["empty.log", "empty.db"], 1)
    for name in names:
        (tmp_path / name).touch()
        assert run(tmp_path, 1, storage=str(tmp_path / name)).counts["complete"] == 1
    tally(KIND, len(names))


def lock(path):
    connection = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN EXCLUSIVE")
    return connection


@pytest.mark.parametrize("when", some(["during a trial", "before"], 1))
def test_a_locked_database_is_waited_for_and_then_told_in_one_line(when, tmp_path, fast, monkeypatch, capsys, tally):
    path, locks = tmp_path / "kept.db", []
    run(tmp_path, 1, storage=str(path))
    monkeypatch.setattr(study, "LOCK_SECONDS", 0.2)
    if when == "before":
        locks.append(lock(path))
    else:
        fast["do"] = lambda: locks or locks.append(lock(path))
    started = time.monotonic()
    with pytest.raises(BadInput, match=r"locked by another program for 0\.2 seconds") as caught:
        run(tmp_path, 3, storage=str(path))
    assert time.monotonic() - started < 30
    assert "\n" not in str(caught.value)
    for connection in locks:
        connection.close()
    fast.clear()
    assert run(tmp_path, 3, storage=str(path)).counts["complete"] == 3, "the same command goes on"
    tally(KIND)


def test_a_lock_that_is_released_in_time_is_not_noticed(tmp_path, fast, tally):
    path = tmp_path / "kept.db"
    run(tmp_path, 1, storage=str(path))
    with contextlib.closing(lock(path)) as connection:
        threading.Timer(0.5, lambda: connection.execute("ROLLBACK")).start()
        assert run(tmp_path, 2, storage=str(path)).counts["complete"] == 2
    tally(KIND)
