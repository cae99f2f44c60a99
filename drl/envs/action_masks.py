"""Action masks, from `info["action_mask"]` (Gymnasium's convention), a method `action_masks()` (SB3-contrib's), or the
key `action_mask` of a Dict observation."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from drl.core.specs import MASK_KEY, ActionSpec, Array, RawObs
from drl.envs.spaces import GymEnv, Info

Reader = Callable[[object, Info], object]  # (observation, info) → a mask, or None


def mask_reader(env: GymEnv) -> Reader:
    """How to read an environment's mask. A method `action_masks` takes precedence."""
    if env.has_wrapper_attr("action_masks"):
        method = env.get_wrapper_attr("action_masks")
        return lambda obs, info: method()
    return read_mask


def flat_mask(mask: RawObs) -> Array:
    """One environment's mask as a vector. A mask of several entries may be a list of parts of different lengths."""
    parts = [np.ravel(part) for part in mask] if isinstance(mask, tuple | list) else [np.ravel(mask)]
    return np.concatenate(parts).astype(bool)


def masks_in_infos(infos: Info, num_envs: int) -> list[object]:
    """Masks in a vector environment's infos, one per environment; None: it has none."""
    masks, given = infos.get(MASK_KEY), infos.get(f"_{MASK_KEY}", np.ones(num_envs, bool))
    return [None] * num_envs if masks is None else [m if g else None for m, g in zip(masks, given, strict=True)]


def read_mask(obs: object, info: Info) -> object:
    """The mask in an info or a Dict observation, of one environment or a vector of them; None: there is none."""
    mask = info.get(MASK_KEY)
    return obs.get(MASK_KEY) if mask is None and isinstance(obs, Mapping) else mask


def stack_masks(masks: Sequence[object], spec: ActionSpec) -> Array | None:
    """One mask per environment as `[N, choices]` bool; None if there are none."""
    if all(mask is None for mask in masks):
        return None
    missing = [number for number, mask in enumerate(masks) if mask is None]
    if missing:
        raise ValueError(f"environment {missing[0]} gives no action mask, others do")
    if not spec.num_choices:
        raise ValueError("it gives an action mask, but its actions are a Box, which has no choices to mask")
    flat = np.array([flat_mask(mask) for mask in masks])
    if flat.shape[1] != spec.num_choices:
        raise ValueError(f"its action mask has {flat.shape[1]} entries; expected {spec.num_choices}, one per choice")
    return flat


def check_legal(mask: Array, spec: ActionSpec) -> None:
    """Raise unless every environment has a legal action, in every entry of the action."""
    sizes = spec.sizes or (2,) * spec.entries
    starts = np.cumsum([0, *sizes[:-1]])
    stuck = np.flatnonzero(~np.logical_or.reduceat(mask, starts, axis=1).all(axis=1))
    if len(stuck):
        raise ValueError(f"its action mask leaves environment {stuck[0]} no legal action")


def of_successors(mask: Array, spec: ActionSpec) -> Array:
    """Masks of true successors: where an episode ended with no legal action, all actions count as legal."""
    sizes = spec.sizes or (2,) * spec.entries
    starts = np.cumsum([0, *sizes[:-1]])
    able = np.logical_or.reduceat(mask, starts, axis=1)
    return mask | ~np.repeat(able, sizes, axis=1)
