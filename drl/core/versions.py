"""The versions of this package, of Python and of the packages that affect results, and the platform."""

import functools
import importlib.metadata
import platform

from drl import __version__

RECORDED = ("torch", "numpy", "gymnasium", "jax", "envpool")  # packages whose versions affect results


@functools.cache
def versions() -> dict[str, str]:
    """Those of this process, by name; not to be changed."""
    found = {"drl": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in RECORDED:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
