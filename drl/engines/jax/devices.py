"""Several devices that share every update (experimental): each has all weights and computes its part of the rows.

XLA does the rest: it sees one program over all rows, splits it by `split_rows` and sums what belongs to all rows.
"""

from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from drl.core.contracts import Learned
from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.core.state_files import StateDict
from drl.core.transition import Batch
from drl.engines.jax.layers import Tree

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
