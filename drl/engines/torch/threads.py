"""Threads of PyTorch. With more than one, small networks spend their time waiting for each other."""

import os

import torch

from drl.core.specs import ObsSpec

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # by which a user decides
_set_here = 0


def set_threads(obs_spec: ObsSpec, threads: int | None = None) -> None:
    """As many threads as asked for. None: one for vectors and all cores for images, unless an environment variable or
    the user's own `torch.set_num_threads` has decided."""
    global _set_here
    cores = os.cpu_count() or 1
    if threads is None:
        by_itself = (cores, cores // 2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores)
        if any(os.environ.get(name) for name in VARIABLES) or torch.get_num_threads() not in (*by_itself, _set_here):
            return
        images = any(len(leaf.shape) == 3 and min(leaf.shape[1:]) >= 36 for leaf in obs_spec.leaves.values())
        threads = cores if images else 1
    _set_here = threads
    torch.set_num_threads(threads)
