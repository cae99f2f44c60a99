"""A model and the parameters it has now: what an agent and its algorithm share.

Models are constants and arrays cannot be changed in place, so somebody has to hold the newest parameters. An algorithm
puts new ones in after every learning step; the agent acts with what is there.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.engines.jax.layers import Params
from drl.engines.jax.models import check_parameters


class ModelState:
    """`params` is replaced as a whole, never changed; `host` gives it as NumPy arrays, without a copy on a CPU."""

    def __init__(self, model: Any, params: Params, device: str = "auto"):
        self.model, self.device = model, device
        self._params = place(params, device)
        self._host: dict[str, Array] | None = None
        self._version = 0  # counts replacements

    @property
    def params(self) -> Params:
        return self._params

    @params.setter
    def params(self, params: Params) -> None:
        self._params, self._host = params, None
        self._version += 1

    @property
    def host(self) -> dict[str, Array]:
        if self._host is None:
            self._host = {name: np.asarray(value) for name, value in self._params.items()}
        return self._host

    def derived(self, make: Callable[["ModelState"], Any]) -> Callable[[], Any]:
        """A function that gives `make(model_state)`, made again only when the parameters have changed."""
        made_at, made = -1, None

        def newest() -> Any:
            nonlocal made_at, made
            if made_at != self._version:
                made_at, made = self._version, make(self)
            return made

        return newest

    def load(self, arrays: dict[str, Array], source: str) -> None:
        """Take over `arrays`; every name and shape must match."""
        check_parameters(self._params, arrays, source)
        self.params = place({name: np.array(arrays[name], np.float32) for name in self._params}, self.device)


def place(params: Params, device: str) -> Params:
    """`params` where a device's name says. `auto` is JAX's own choice: a GPU when there is one."""
    if device not in ("auto", "cpu", "cuda"):
        raise BadInput(f"device {device!r} is not one of the JAX engine's: auto, cpu or cuda")
    if device == "auto" or device == jax.default_backend():
        return params
    try:
        return jax.device_put(params, jax.devices(device)[0])  # type: ignore[no-any-return]
    except RuntimeError:
        raise BadInput(f"device {device!r} is not available on this machine; use --device auto or cpu") from None


def state_arrays(state: Any) -> dict[str, Array]:
    """A tree of arrays as one flat dict, by the path to each."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): np.array(leaf) for path, leaf in leaves}


def restore_state(like: Any, arrays: dict[str, Array]) -> Any:
    """The tree that `state_arrays` made flat; `like` has its shape."""
    leaves, shape = jax.tree_util.tree_flatten_with_path(like)
    read = [np.array(arrays[jax.tree_util.keystr(path)], leaf.dtype).reshape(leaf.shape) for path, leaf in leaves]
    return jax.tree_util.tree_unflatten(shape, read)
