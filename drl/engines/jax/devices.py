"""JAX start-up settings, and several devices that share every update (experimental): each has all weights and computes
its part of the rows.

XLA does the rest: it sees one program over all rows, splits it by `split_rows` and sums what belongs to all rows.
"""

import os
import warnings
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from drl.core.contracts import Batch, Learned
from drl.core.errors import BadInput
from drl.core.safe_files import cache_folder
from drl.core.specs import Array
from drl.core.state_files import StateDict
from drl.engines.jax.layers import Tree


def start_jax(device: str = "auto", threads: int | None = None) -> None:
    """Choose the device and cache compiled programs on disk, so that the second start of a run compiles nothing.

    XLA flags set by the user are kept. Calling it again changes nothing.
    """
    # JAX warns about every fork; our child processes step environments or write videos and never use JAX.
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
    flags = os.environ.get("XLA_FLAGS", "")
    # Level 2 compiles a quarter faster than the default and runs as fast. The small programs here gain nothing from
    # threads within one operation.
    wanted = {"--xla_backend_optimization_level": "2"}
    if (threads or 1) == 1:
        wanted["--xla_cpu_multi_thread_eigen"] = "false"
    added = [f"{name}={value}" for name, value in wanted.items() if name not in flags]
    os.environ["XLA_FLAGS"] = " ".join([flags, *added]).strip()
    # Programs are short and their results are needed at once; another thread that runs them costs a twentieth.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        jax.config.update("jax_compilation_cache_dir", str(cache_folder("jax")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if device != "auto":
        try:
            jax.config.update("jax_default_device", jax.devices(device.split(":")[0])[0])
        except RuntimeError:
            raise BadInput(f"device {device!r} is not available to JAX; use --device auto or --device cpu") from None


AXIS = "learners"


def split_rows(rows: Tree) -> Tree:
    """The same arrays `[B, …]`, computed by the devices of the current mesh in equal parts. Without a mesh, or where
    the rows cannot be divided, nothing changes."""
    mesh = jax.sharding.get_abstract_mesh()
    if AXIS not in mesh.axis_names:
        return rows

    def split(leaf: jax.Array) -> jax.Array:
        return leaf if len(leaf) % mesh.size else jax.lax.with_sharding_constraint(leaf, PartitionSpec(AXIS))

    return jax.tree.map(split, rows)


class ManyDevices:
    """An algorithm whose updates are computed by the first `count` devices of this process."""

    def __init__(self, algorithm: Any, count: int, device: str):
        devices = jax.devices(None if device == "auto" else device.partition(":")[0])
        if len(devices) < count:
            found = f"JAX has {len(devices)} {devices[0].platform} device{'s' if len(devices) > 1 else ''}"
            how = f"XLA_FLAGS=--xla_force_host_platform_device_count={count} makes more of a CPU"
            raise BadInput(f"num_learners is {count}, but {found}; use --num-learners {len(devices)}, or {how}")
        self.algorithm: Any = algorithm
        self.needs: str = algorithm.needs
        self.mesh: jax.sharding.Mesh = jax.make_mesh(
            (count,), (AXIS,), axis_types=(AxisType.Auto,), devices=devices[:count]
        )
        self.everywhere: NamedSharding = NamedSharding(self.mesh, PartitionSpec())

    def learn(self, batch: Batch, progress: float = 0.0) -> Learned:
        state = self.algorithm.model_state
        with jax.set_mesh(self.mesh):
            state.params = jax.device_put(state.params, self.everywhere)
            learned: Learned = self.algorithm.learn(batch, progress)
        return learned

    def predict(self, obs: Array) -> Array:
        prediction: Array = self.algorithm.predict(obs)
        return prediction

    def sync_target(self) -> None:
        self.algorithm.sync_target()

    def state_dict(self) -> StateDict:
        state: StateDict = self.algorithm.state_dict()
        return state

    def load_state_dict(self, state: StateDict) -> None:
        self.algorithm.load_state_dict(state)
