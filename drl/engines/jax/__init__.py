"""The JAX engine. The one place that notices when JAX is not installed."""

import importlib.util

from drl.core.errors import MissingExtra

if importlib.util.find_spec("jax") is None:
    raise MissingExtra("the JAX engine", "jax", "jax")
