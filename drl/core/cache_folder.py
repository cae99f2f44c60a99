"""The user's own folder for compiled programs."""

import os
from pathlib import Path

CACHE = "DRL_CACHE_DIR"  # environment variable: another folder


def cache_folder(name: str) -> Path:
    """`~/.cache/drl/NAME`, or where `DRL_CACHE_DIR` or `XDG_CACHE_HOME` says."""
    if given := os.environ.get(CACHE):
        return Path(given) / name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "drl" / name
