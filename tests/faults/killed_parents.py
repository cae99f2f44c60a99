"""Kill a command and see that its processes end."""

import os
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def alive(pid):
    try:  # a dead process that nobody waited for is a zombie
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def kill_the_parent(command, folder, processes, after=0.3):
    """Start a command that makes environments, SIGKILL it once there are so many processes, wait until all are gone."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    parent = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(list(folder.iterdir())) >= processes or parent.poll() is not None)
        assert parent.poll() is None
        time.sleep(after)  # they hang now
    finally:
        parent.kill()
        parent.wait()
    until(lambda: not any(alive(int(path.name)) for path in folder.iterdir()), 30.0)
