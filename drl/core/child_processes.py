"""Child processes that never outlive their parent, even if it is killed by SIGKILL while they hang."""

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that a process gets when its parent dies


def start_child(context: BaseContext, target: Callable[..., None], *args: object, daemon: bool = False) -> BaseProcess:
    """Start a process that runs `target(*args)` and ends when this one ends, however that happens."""
    # The kernel takes the thread that starts a process for its parent; only the main thread lives as long as we do.
    from_main = threading.current_thread() is threading.main_thread()
    process: BaseProcess = context.Process(  # type: ignore[attr-defined]
        target=_body, args=(from_main, target, *args), daemon=daemon
    )
    process.start()
    return process


def _body(from_main: bool, target: Callable[..., None], *args: object) -> None:
    if from_main and sys.platform == "linux":  # works even if the child hangs and lets no other thread run
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # For other systems and threads, and for a parent that died before the line above.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    target(*args)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a child process
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
