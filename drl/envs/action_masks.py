"""Which actions are legal, as environments say it: `info["action_mask"]` (Gymnasium's convention), a method
`action_masks()` (SB3-contrib's), or the key `action_mask` of a Dict observation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from drl.core.specs import MASK_KEY, ActionSpec, Array

Reader = Callable[[object, Mapping[str, Any]], object]  # (observation, info) → a mask, or None


def mask_reader(env: gym.Env[Any, Any]) -> Reader:
    """How to find an environment's mask. The method comes first: it is there for nothing else."""
    if env.has_wrapper_attr("action_masks"):
        method = env.get_wrapper_attr("action_masks")
        return lambda obs, info: method()
    return read_mask


def read_mask(obs: object, info: Mapping[str, Any]) -> object:
    """The mask in an info or a Dict observation, of one environment or of a vector of them; None: there is none."""
    mask = info.get(MASK_KEY)
    return obs.get(MASK_KEY) if mask is None and isinstance(obs, Mapping) else mask


def stack_masks(masks: Sequence[object], spec: ActionSpec) -> Array | None:
    """One mask per environment as `[N, choices]` bool; None where none of them has one."""
    if all(mask is None for mask in masks):
        return None
    missing = [number for number, mask in enumerate(masks) if mask is None]
    if missing:
        raise ValueError(f"environment {missing[0]} gives no action mask, others do")
    if not spec.num_choices:
        raise ValueError("it gives an action mask, but its actions are a Box, which has no choices to mask")
    rows = [
        np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple | list) else mask for mask in masks
    ]
    flat = np.array([np.asarray(row, bool).ravel() for row in rows])
    if flat.shape[1] != spec.num_choices:
        raise ValueError(f"its action mask has {flat.shape[1]} entries; expected {spec.num_choices}, one per choice")
    return flat


def check_legal(mask: Array, spec: ActionSpec) -> None:
    """Raise unless there is something to do for every environment, in every entry of its action."""
    sizes = spec.sizes or (2,) * spec.entries
    starts = np.cumsum([0, *sizes[:-1]])
    stuck = np.flatnonzero(~np.logical_or.reduceat(mask, starts, axis=1).all(axis=1))
    if len(stuck):
        raise ValueError(f"its action mask leaves environment {stuck[0]} no legal action")


def of_successors(mask: Array, spec: ActionSpec) -> Array:
    """Masks of true successors: where an episode ended with nothing left to do, everything counts as legal."""
    sizes = spec.sizes or (2,) * spec.entries
    starts = np.cumsum([0, *sizes[:-1]])
    able = np.logical_or.reduceat(mask, starts, axis=1)
    return mask | ~np.repeat(able, sizes, axis=1)
