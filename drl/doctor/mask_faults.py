"""Checks of action masks: length, dtype, at least one legal action."""

import numpy as np

from drl.core.errors import shown
from drl.core.specs import NUMBERS, ActionSpec, RawObs
from drl.envs.spaces import check_legal, stack_masks

EVERYWHERE = "return a mask from every reset and step, or from none"


def mask_fault(mask: RawObs, spec: ActionSpec, ended: bool = False) -> tuple[str, str] | None:
    """Return a mask's fault and what to change; None if there is none. After an episode's end no action needs to be
    legal.

    >>> spec = ActionSpec("discrete", (3,))
    >>> mask_fault([1, 0, 1], spec)
    >>> mask_fault([1, 0], spec)[0]
    'has 2 entries; expected 3, one per choice'
    >>> mask_fault([0, 0, 0], spec)[0]
    'leaves no legal action'
    """
    change = f"return {spec.num_choices} numbers of 0 or 1, one per choice, as np.int8"
    parts = mask if isinstance(mask, tuple | list) else [mask]
    try:
        flat = np.concatenate([np.ravel(part) for part in parts])
    except ValueError:  # an empty list, or parts that are not arrays
        return f"is {shown(mask)}", change
    if flat.dtype.kind not in NUMBERS or not np.isin(flat, (0, 1)).all():
        return f"is {shown(mask)}, of {flat.dtype}", change
    try:
        stacked = stack_masks([mask], spec)
    except ValueError as error:
        return str(error).removeprefix("its action mask "), change if spec.num_choices else "leave the mask out"
    try:
        if stacked is not None and not ended:
            check_legal(stacked, spec)
    except ValueError:
        return "leaves no legal action", "allow at least one action, or end the episode earlier with terminated=True"
    return None
