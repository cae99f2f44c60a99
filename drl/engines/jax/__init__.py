"""The JAX engine. Importing it raises `MissingExtra` if JAX is not installed."""

import importlib.util

from drl.core.errors import MissingExtra

if importlib.util.find_spec("jax") is None:
    raise MissingExtra("the JAX engine", "jax", "jax")
