"""The Optuna study of a search: its storage, its settings, and which trials count.

The study holds the whole state of a search, so the same command continues after a kill.
"""

import contextlib
import json
import os
import re
import socket
import sqlite3
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from drl.core.errors import BadInput, DrlError, MissingExtra, UnusableFile
from drl.core.specs import PlainDict
from drl.settings.experiment import changed_settings

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.storages import BaseStorage, JournalStorage
    from optuna.trial import FrozenTrial, Trial

LOCK_SECONDS = 60.0  # how long a locked SQLite file is waited for; Optuna tries five times to add a trial
SQLITE = (".db", ".sqlite", ".sqlite3")
HEARTBEAT, SILENCE = 30.0, 300.0  # seconds between heartbeats; seconds without one: the search counts as dead
KILLED, STOPPED = "its search was killed", "the search was stopped"  # why a trial was lost


def optuna() -> ModuleType:
    """The library with its logging off. Raises `MissingExtra` if it is not installed."""
    try:
        import optuna as library
    except ImportError as error:
        raise MissingExtra("hyper-parameter search", "search", error) from None
    library.logging.set_verbosity(library.logging.ERROR)
    return library


def open_study(storage: str | None, folder: Path, name: str, sampler_seed: int, pruner: "BasePruner") -> "Study":
    """The study of this name, created if missing, in `storage` or in `folder/study.db`."""
    library, place = optuna(), storage or str(folder / "study.db")
    try:
        study: Study = library.create_study(
            study_name=name, storage=_backend(place), direction="maximize", load_if_exists=True, pruner=pruner
        )
        earlier = len(study.get_trials(deepcopy=False))
    except DrlError:
        raise
    except Exception as error:  # every driver has its own errors
        raise _storage_error(error, place) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant_liar is marked experimental in Optuna 4
        # A resumed search must not draw the same random points again, so the seed depends on the number of trials.
        study.sampler = library.samplers.TPESampler(seed=sampler_seed + 7919 * earlier, constant_liar=True)
    return study


@contextlib.contextmanager
def storage_errors(storage: str) -> Iterator[None]:
    """Convert errors of the storage into our own, with advice."""
    library = optuna()
    try:
        yield
    except (library.exceptions.StorageInternalError, sqlite3.Error) as error:
        raise _storage_error(error, storage) from error


def _storage_error(error: BaseException, storage: str) -> DrlError:
    place = re.sub(r"://([^:/@]*):[^@]*@", r"://\1:…@", storage)
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    message = next((str(cause).splitlines()[0] for cause in reversed(causes) if str(cause)), "")
    reason = f"{type(causes[-1]).__name__}: {message}"
    if "locked" in message:
        return BadInput(
            f"the storage {place} has been locked by another program for {LOCK_SECONDS:g} seconds; wait for it or end "
            "it, then repeat the command, which continues the search"
        )
    file = Path(storage.removeprefix("sqlite:///"))
    if not isinstance(causes[-1], OSError) and file.is_file() and file.stat().st_size:
        return _damaged(place, reason)
    return BadInput(
        f"cannot use the storage {place} ({reason}); expected a database URL such as "
        "postgresql://user:password@host/name, or a file ending in .db (SQLite) or .log (journal)"
    )


def _damaged(storage: object, reason: str) -> UnusableFile:
    return UnusableFile(f"the storage {storage} is damaged ({reason}) and left as it is; give another --storage")


def release(study: "Study") -> None:
    """Close database connections, which Optuna leaves to the garbage collector. The study stays readable."""
    backend = getattr(study._storage, "_backend", study._storage)
    if hasattr(backend, "engine"):
        backend.remove_session()
        backend.engine.dispose()


def _backend(storage: str) -> "BaseStorage":
    library = optuna()
    if "://" in storage and not storage.startswith("sqlite"):
        return library.storages.RDBStorage(storage, engine_kwargs={"pool_pre_ping": True})
    if "://" not in storage:
        path = Path(storage)
        if path.suffix not in (*SQLITE, ".log"):
            raise BadInput(f"storage is {storage!r}; expected a URL or a file ending in .db (SQLite) or .log (journal)")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".log":
            return _journal(path)
        storage = f"sqlite:///{path}"
        if path.exists():  # a damaged file must not be written to
            uri = f"{path.resolve().as_uri()}?mode=rw"
            with contextlib.closing(sqlite3.connect(uri, LOCK_SECONDS, uri=True)) as database:
                (state,) = database.execute("PRAGMA integrity_check(1)").fetchone()
            if state != "ok":
                raise _damaged(path, " ".join(state.split()))
    return library.storages.RDBStorage(storage, engine_kwargs={"connect_args": {"timeout": LOCK_SECONDS}})


def _journal(path: Path) -> "JournalStorage":
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    lock = JournalFileOpenLock(str(path))
    if path.exists():  # a damaged file must not be written to
        lock.acquire()
        try:
            *lines, last = path.read_bytes().removesuffix(b"\n").split(b"\n")
            if not lines and not last.startswith(b'{"') and last:
                raise _damaged(path, "it is not a journal")
            for number, line in enumerate(lines, 1):
                try:
                    json.loads(line)["op_code"]
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    raise _damaged(path, f"line {number}: {type(error).__name__}") from None
            cut_torn_line(path)
        finally:
            lock.release()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental in Optuna 4
        return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))


def cut_torn_line(path: Path) -> bool:
    """Remove an incomplete last line, left by a kill, which Optuna would refuse. Returns whether there was one."""
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    last = whole[:-1].rpartition(b"\n")[2]
    try:
        json.loads(last or b"{}")
    except ValueError:
        whole = whole[: len(whole) - len(last) - 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    return len(whole) < len(content)


def claim(study: "Study", belongs: PlainDict) -> None:
    """Record the settings of a search. Raises if the study has those of another: their scores do not compare."""
    before = study.user_attrs.get("search")
    belongs = json.loads(json.dumps(belongs))
    if before is None:
        study.set_user_attr("search", belongs)
        return
    if changes := changed_settings(_leaves(before), _leaves(belongs)):
        raise BadInput(
            f"the study {study.study_name!r} is of another search: {changes}. Give the same values to continue it, or "
            "another --name to begin a new one"
        )


def _leaves(tree: PlainDict) -> PlainDict:
    """Nested settings, flattened."""
    plain: PlainDict = {}
    for name, value in tree.items():
        plain |= _leaves(value) if isinstance(value, dict) else {name: value}
    return plain


class Ledger:
    """Trials by state: finished, running here or elsewhere, or lost because their process died."""

    def __init__(self, study: "Study"):
        self.study: Study = study
        self.owner: str = f"{socket.gethostname()}|{os.getpid()}|{_started(os.getpid())}"
        self._last_sign = 0.0

    def trials(self, *states: str) -> "list[FrozenTrial]":
        """Trials in these states."""
        wanted = tuple(optuna().trial.TrialState[state] for state in states)
        return list(self.study.get_trials(deepcopy=False, states=wanted))

    def lost(self) -> set[int]:
        """Numbers of trials whose process was lost."""
        return {int(key[5:]) for key in self.study.user_attrs if key.startswith("lost:")}

    def taken(self) -> int:
        """Trials that count: complete, pruned, failed by themselves, or still running."""
        return len({trial.number for trial in self.trials("COMPLETE", "PRUNED", "FAIL", "RUNNING")} - self.lost())

    def fail(self, number: int, error: str, lost: bool = False) -> None:
        """Mark a trial as failed. A lost trial does not count, so another replaces it."""
        self.study.set_user_attr(f"{'lost' if lost else 'error'}:{number}", error)
        self.study.tell(number, state=optuna().trial.TrialState.FAIL, skip_if_finished=True)

    def ask_again(self) -> None:
        """Queue the trials that ended only because their search did: same settings, same seed."""
        trials, errors = self.study.get_trials(deepcopy=False), self.study.user_attrs
        unfinished = {number for number in self.lost() if errors[f"lost:{number}"] in (KILLED, STOPPED)}
        unfinished -= {trial.user_attrs.get("again") for trial in trials}
        for trial in trials:
            if trial.number in unfinished and trial.params:
                notes = {"again": trial.number, "seed_number": seed_number(trial)}
                self.study.enqueue_trial(trial.params, user_attrs=notes)

    def fail_stale(self) -> list[int]:
        """Fail the trials of searches that died, and return their numbers."""
        stale = [trial.number for trial in self.trials("RUNNING") if not self._lives(trial.user_attrs.get("owner"))]
        for number in stale:
            self.fail(number, KILLED, lost=True)
        return stale

    def fail_own(self) -> None:
        """Fail our own running trials, at the end of a stopped search."""
        for trial in self.trials("RUNNING"):
            if trial.user_attrs.get("owner") == self.owner:
                self.fail(trial.number, STOPPED, lost=True)

    def sign_of_life(self) -> None:
        """Write a heartbeat for searches on other machines; those on this machine check our process."""
        if time.monotonic() - self._last_sign > HEARTBEAT or not self._last_sign:
            self._last_sign = time.monotonic()
            self.study.set_user_attr(f"alive:{self.owner}", time.time())

    def _lives(self, owner: str | None) -> bool:
        if owner is None or owner == self.owner:  # this process has no running search yet
            return False
        host, pid, started = owner.split("|")
        if host == socket.gethostname() and os.name == "posix":
            return _started(int(pid)) == started
        return time.time() - self.study.user_attrs.get(f"alive:{owner}", 0.0) < SILENCE


def seed_number(trial: "Trial | FrozenTrial") -> int:
    """Offset of a trial's seed: its number, or that of the trial that it repeats."""
    return int(trial.user_attrs.get("seed_number", trial.number))


def _started(pid: int) -> str:
    """A process's start time in kernel ticks; "" if it does not run. It tells apart processes that reuse a pid."""
    with contextlib.suppress(OSError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state == "Z" else fields[18]
    with contextlib.suppress(OSError):
        if not Path("/proc/self/stat").exists():
            os.kill(pid, 0)
            return "runs"
    return ""
