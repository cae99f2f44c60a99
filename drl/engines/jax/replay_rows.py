"""A replay batch as the compiled updates take it."""

from typing import NamedTuple

import numpy as np

from drl.core.specs import AnyArray
from drl.core.transition import ReplayBatch
from drl.engines.jax.backbones import Obs
from drl.engines.jax.on_policy import fields


class ReplayRows(NamedTuple):
    """A replay batch `[B, …]`."""

    obs: Obs
    action: AnyArray
    reward: AnyArray  # discounted sum over k steps
    discount: AnyArray  # γ^k, or 0 if the episode terminated
    next_obs: Obs
    weight: AnyArray | None  # importance weights; None: all 1
    next_action_mask: AnyArray | None = None  # [B, choices] bool: legal actions in `next_obs`; None: all
    action_mask: AnyArray | None = None  # the same for `obs`


def replay_rows(batch: ReplayBatch) -> ReplayRows:
    """A batch of the replay buffer as rows of a loss."""
    discount = np.asarray(batch.discount * (1.0 - batch.terminated))
    obs, next_obs = fields(batch.obs), fields(batch.next_obs)
    masks = (batch.next_action_mask, batch.action_mask)
    return ReplayRows(obs, batch.action, batch.reward, discount, next_obs, batch.weight, *masks)
