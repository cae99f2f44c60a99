"""Three nodes on this machine, for all tests of a module."""

import concurrent.futures
import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drl.cluster import ray_cluster

LONG = os.environ.get("DRL_FAULTS") == "long"  # `make faults`
ROOT = Path(__file__).parents[2]
# A node counts as dead after eight seconds.
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 8}
MARK = f"DRL_TESTS={os.getpid()}".encode()  # in the environment of every process that these tests start
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 32}
SLOW_FLAGS = "--no-preset --env tests.cluster.waiting_env:Waiting-v0 --num-envs 2 --vectorization sync --compile off"
SLOW_FLAGS += " --hidden-sizes 8 --total-timesteps 1024 --rollout-length 32 --minibatches 2 --checkpoint-every 128"
SLOW_FLAGS += " --evaluate-every 256 --evaluation-episodes 1 --num-checkpoints 0 --no-plots --no-video --quiet"


class Nodes:
    """The nodes of a cluster. The driver is on the first one, which is never killed."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        # The kernel ends a node when the thread ends that has started it.
        self.thread = concurrent.futures.ThreadPoolExecutor(1)
        head = {"num_cpus": 1, "_system_config": QUICK, "include_dashboard": False}
        self.cluster = self.thread.submit(Cluster, True, head_node_args=head).result()
        self.others: list[object] = []
        for _ in range(2):
            self.add_one()

    @property
    def address(self) -> str:
        return self.cluster.address

    def kill_one(self) -> None:
        self.thread.submit(self.cluster.remove_node, self.others.pop(0), allow_graceful=False).result()

    def add_one(self) -> None:
        self.others.append(self.thread.submit(self.cluster.add_node, num_cpus=1).result())

    def close(self) -> None:
        self.thread.submit(self.cluster.shutdown).result()
        self.thread.shutdown()


@pytest.fixture(scope="session", autouse=True)
def _marked() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*MARK.decode().split("="))
        yield


@pytest.fixture(scope="module")
def nodes(_marked: None) -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (TOKEN | ray_cluster.LOCAL | {"PYTHONPATH": str(ROOT)}).items():
            patch.setenv(name, value)
        ray_cluster.import_ray("local")
        ray_cluster._forget_token()
        # Nodes can then be started by a thread.
        patch.setattr("ray._private.utils.set_sigterm_handler", lambda handler: None)
        with ray_cluster._same_handlers(), ray_cluster.loopback_only():
            cluster = Nodes()
            try:
                yield cluster
            finally:
                listening = foreign_ports()
                cluster.close()
    until(lambda: not commands())
    assert not listening


def until(condition, seconds=240.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def commands() -> dict[int, str]:
    """How the processes of these tests were started, also those that have lost their parent."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if MARK in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_text()
    return {pid: words for pid, words in found.items() if "resource_tracker" not in words}  # of this process


def training() -> list[int]:
    """Those that train."""
    return [pid for pid, words in commands().items() if "run_target" in words]


def foreign_ports() -> list[str]:
    """Ports of our processes that others than this machine can reach."""
    own = {os.getpid(), *commands()}
    sockets = set[str]()
    for pid in own:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                sockets.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    open_to_all = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            loopback = local.startswith(
                ("0100007F:", "0000000000000000FFFF00000100007F:", "00000000000000000000000001000000:")
            )
            if state == "0A" and rest[5] in sockets and not loopback:
                open_to_all.append(local)
    return open_to_all


def records(folder: Path) -> dict[int, Path]:
    """The runs in a results folder, by seed."""
    return {json.loads(file.read_text())["seed"]: file.parent for file in folder.rglob("run.json")}
