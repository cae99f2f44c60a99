"""Ray: a cluster for one command, or one that exists."""

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drl.core.errors import BadInput, MissingExtra

if TYPE_CHECKING:
    from types import ModuleType

    from drl.cluster.node_process import Needs

# Read by Ray when it is imported: nothing is reported to its makers, and GPUs are hidden only from tasks that say so.
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
LOCAL = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's switch for machines without a cluster: 127.0.0.1 only
    "RAY_worker_niceness": "0",  # runs are as important as they are without Ray
}
CONNECT_SECONDS = 5.0  # to the address of a cluster
PREFIX = "drl_ray_"  # of the folder with sockets and logs


@contextlib.contextmanager
def open_cluster(address: str, num_cpus: int | None = None) -> Iterator["ModuleType"]:
    """Ray, connected: `local` is started for this block, on 127.0.0.1 only, with `num_cpus` (default: the cores of this
    machine); `auto` or an address is a cluster that exists. Inside another block it is the same cluster."""
    if address not in ("local", "auto"):
        _check_address(address)
    ray = import_ray(address)
    if ray.is_initialized():
        yield ray
        return
    if address == "auto":
        from ray._private.utils import read_ray_address

        if last := os.environ.get("RAY_ADDRESS") or read_ray_address():  # may be of a cluster that was stopped
            _check_address(last)
    with _own_cluster() if address == "local" else contextlib.nullcontext(), _folder() as folder:
        try:
            with _same_handlers():
                _connect(ray, address, num_cpus, folder)
            yield ray
        finally:
            with _same_handlers():
                ray.shutdown()


def import_ray(address: str) -> "ModuleType":
    """Ray, with our settings."""
    os.environ.update({name: value for name, value in SETTINGS.items() if name not in os.environ})
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(f"--cluster {address}", "ray", error) from None
    return ray


def check_needs(ray: "ModuleType", address: str, needs: "Needs") -> None:
    """Raise if no node can ever have what a run needs. A cluster that exists may still grow."""
    if address != "local":
        return
    has = ray.cluster_resources()
    for name, needed, flag in (("CPU", needs.cpus, "cpus_per_run"), ("GPU", needs.gpus, "gpus_per_run")):
        if needed > has.get(name, 0.0):
            raise BadInput(f"{flag} is {needed:g}, but this machine has {has.get(name, 0.0):g}; give at most that")


def _connect(ray: "ModuleType", address: str, num_cpus: int | None, folder: str) -> None:
    quiet = {"log_to_driver": False, "configure_logging": False}
    try:
        if address == "local":
            ray.init("local", num_cpus=num_cpus, include_dashboard=False, _temp_dir=folder, **quiet)
        else:
            ray.init(address, **quiet)
    except Exception as error:  # Ray raises of every kind
        message = " ".join(str(error).split())
        if "ersion mismatch" in message:
            names = [f"{name} {version}" for name, version in re.findall(r"(Ray|Python): (\S+)", message)]
            versions = " and this is ".join(", ".join(each) for each in (names[:2], names[2:4]) if each)
            raise BadInput(
                f"cluster {address!r} has {versions or message[:200]}; install the same on all nodes"
            ) from error
        what = "cannot be started" if address == "local" else "cannot be reached; start one: ray start --head"
        raise BadInput(f"cluster is {address!r}, which {what}: {type(error).__name__}: {message[:200]}") from error


def _check_address(address: str) -> None:
    """Raise at once if nobody listens there; Ray would wait for a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in address:
        raise BadInput(
            f"cluster is {address!r}; expected local, auto or HOST:PORT of a head node, such as 10.0.0.1:6379"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise BadInput(
            f"cluster is {address!r}, where nobody answers ({error}); type on the head node: ray start --head --port "
            f"{port}"
        ) from None


@contextlib.contextmanager
def _own_cluster() -> Iterator[None]:
    """Use a separate token; otherwise Ray writes one into the home folder and prints that."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with _variables(LOCAL | token), loopback_only():
        _forget_token()
        try:
            yield
        finally:
            _forget_token()


@contextlib.contextmanager
def loopback_only() -> Iterator[None]:
    """Set Ray's switch, which it reads once, when it is imported."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """A folder for sockets and Ray's logs. Folders of processes that were killed are removed."""
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = old.name.removeprefix(PREFIX).partition("_")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc/self").exists():
            shutil.rmtree(old, ignore_errors=True)
    name = f"{PREFIX}{os.getpid()}_"
    with tempfile.TemporaryDirectory(prefix=name, ignore_cleanup_errors=True) as folder:
        yield folder


@contextlib.contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _same_handlers() -> Iterator[None]:
    """Restore signal handlers: Ray's own handler of SIGTERM would not let a run save itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _forget_token() -> None:
    """Make Ray read token and mode again."""
    from ray import _raylet

    loaded: Any = _raylet
    loaded.Config.initialize("")
    loaded.AuthenticationTokenLoader.instance().reset_cache()
