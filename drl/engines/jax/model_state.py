"""A model and its current parameters: what an agent and its algorithm share.

Models are constants and JAX arrays are immutable, so a `ModelState` holds the current parameters. The algorithm
replaces them after every learning step; the agent acts with them.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import jax
import numpy as np

from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.engines.jax.layers import Params, Tree
from drl.engines.jax.models import AnyModel
from drl.engines.numpy.model_kinds import check_parameters

T = TypeVar("T")


class ModelState:
    """`params` is only replaced as a whole; `host` gives it as NumPy arrays, without a copy on a CPU."""

    def __init__(self, model: AnyModel, params: Tree, device: str = "auto"):
        self.model: AnyModel = model
        self.device: str = device
        self._params = place(params, device)
        self._host: dict[str, Array] | None = None
        self._version = 0  # counts replacements

    @property
    def params(self) -> Tree:
        """The current parameters."""
        return self._params

    @params.setter
    def params(self, params: Tree) -> None:
        self._params, self._host = params, None
        self._version += 1

    @property
    def host(self) -> dict[str, Array]:
        """The parameters as NumPy arrays by name."""
        if self._host is None:
            self._host = {name: np.asarray(value) for name, value in by_name(self._params).items()}
        return self._host

    def derived(self, make: Callable[["ModelState"], T]) -> Callable[[], T | None]:
        """A function that returns `make(model_state)`, computed again only when the parameters have changed."""
        made_at, made = -1, cast("T | None", None)

        def newest() -> T | None:
            nonlocal made_at, made
            if made_at != self._version:
                made_at, made = self._version, make(self)
            return made

        return newest

    def load(self, arrays: dict[str, Array], source: str) -> None:
        """Load `arrays`; every name and shape must match."""
        check_parameters(by_name(self._params), arrays, source)
        self.params = place(from_names(self._params, arrays), self.device)


def place(params: Tree, device: str) -> Tree:
    """Put `params` on a device. `auto` is JAX's own choice: a GPU if there is one."""
    if device not in ("auto", "cpu", "cuda"):
        raise BadInput(f"device {device!r} is unknown to the JAX engine; expected auto, cpu or cuda")
    if device == "auto" or device == jax.default_backend():
        return params
    try:
        return jax.device_put(params, jax.devices(device)[0])
    except RuntimeError:
        raise BadInput(f"device {device!r} is not available on this machine; use --device auto or cpu") from None


def by_name(params: Tree) -> Params:
    """The leaves of a tree by path. Parameters of our own models keep their names."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def from_names(like: Tree, arrays: dict[str, Array]) -> Tree:
    """The inverse of `by_name`; `like` has the structure of the tree."""
    leaves, shape = jax.tree_util.tree_flatten_with_path(like)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    return jax.tree_util.tree_unflatten(shape, [np.array(arrays[name], np.float32) for name in names])


def state_arrays(state: Tree) -> dict[str, Array]:
    """A tree of arrays as one flat dict, by path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): np.array(leaf) for path, leaf in leaves}


def restore_state(like: Tree, arrays: dict[str, Array]) -> Tree:
    """The inverse of `state_arrays`; `like` has the structure of the tree."""
    leaves, shape = jax.tree_util.tree_flatten_with_path(like)
    read = [np.array(arrays[jax.tree_util.keystr(path)], leaf.dtype).reshape(leaf.shape) for path, leaf in leaves]
    return jax.tree_util.tree_unflatten(shape, read)
