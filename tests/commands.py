"""Commands run in the test's own process: starting one and importing PyTorch takes seconds."""

import contextlib
import io
import subprocess
from collections.abc import Callable
from pathlib import Path


def run_here(main: Callable[[list[str]], int], *arguments: object, cwd: Path, code: int = 0):
    """What a process would have printed and returned; `code` is the exit code that is expected."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        returned = main([str(argument) for argument in arguments])
    return checked(subprocess.CompletedProcess(arguments, returned, out.getvalue(), err.getvalue()), code)


def run_process(command: list[str], cwd: Path, code: int = 0):
    """The same in a process of its own."""
    return checked(subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=180), code)


def checked(result: subprocess.CompletedProcess, code: int):
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result
