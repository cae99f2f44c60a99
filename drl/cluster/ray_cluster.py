"""Ray: a cluster for one command, or one that exists."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from drl.core.errors import BadInput, MissingExtra

if TYPE_CHECKING:
    from types import ModuleType

# Read by Ray when it is imported: nothing is reported to its makers, and GPUs are hidden only from tasks that say so.
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
ONLY_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # Ray's switch for machines without a cluster: 127.0.0.1


@contextlib.contextmanager
def open_cluster(address: str, num_cpus: int | None = None) -> Iterator["ModuleType"]:
    """Ray, connected: `local` is started for this block, on 127.0.0.1 only, with `num_cpus` (default: the cores of this
    machine); `auto` or an address is a cluster that exists. Inside another block it is the same cluster."""
    ray = import_ray(address)
    if ray.is_initialized():
        yield ray
        return
    with tempfile.TemporaryDirectory(prefix="drl_ray_", ignore_cleanup_errors=True) as folder:  # sockets and Ray's logs
        try:
            if address == "local":
                _start(ray, num_cpus, folder)
            else:
                ray.init(address=address, log_to_driver=False, configure_logging=False)
        except Exception as error:  # Ray raises of every kind
            said = " ".join(str(error).split())[:200]
            what = "cannot be started" if address == "local" else "cannot be reached; start one: ray start --head"
            raise BadInput(f"cluster is {address!r}, which {what}: {type(error).__name__}: {said}") from error
        try:
            yield ray
        finally:
            ray.shutdown()


def import_ray(address: str) -> "ModuleType":
    """Ray, with our settings. A cluster for one command listens on 127.0.0.1 only."""
    os.environ.update({name: value for name, value in SETTINGS.items() if name not in os.environ})
    if address == "local":
        os.environ.update(ONLY_LOOPBACK)
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(f"--cluster {address}", "ray", error) from None
    return ray  # type: ignore[no-any-return]


def _start(ray: "ModuleType", num_cpus: int | None, folder: str) -> None:
    ray.init(
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        _temp_dir=folder,
    )
