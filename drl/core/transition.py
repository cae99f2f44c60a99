"""Batches of experience, from buffers to algorithms."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from drl.core.normalize import ObsNormalizer
from drl.core.specs import Array


@dataclass(frozen=True)
class Transition:
    """Transitions of one or many environments. `next_obs` is always the true successor, even at the end of an episode.

    `terminated`: the value of `next_obs` is 0. `truncated`: the episode ends, but the value of `next_obs` counts.
    """

    obs: Array
    action: Array  # in the policy's units
    reward: Array
    terminated: Array
    truncated: Array
    next_obs: Array


@dataclass(frozen=True)
class Batch:
    """A batch of experience from a buffer."""

    obs: Array
    action: Array  # in the policy's units
    reward: Array

    def normalized(self, normalizer: ObsNormalizer) -> Self:
        """Return this batch with observations normalized as they were when the agent acted."""
        raise NotImplementedError


@dataclass(frozen=True)
class RolloutBatch(Batch):
    """A window of experience, time-major.

    Successors are stored once: the successor of row t is row t + 1 of `obs`, or `last_obs`, except where an episode
    ended. In that case the true successor is in `final_obs`, at the flat position in `final_index` (t · N + n).
    """

    obs: Array  # [T, N, …]
    action: Array  # [T, N, …] in the policy's units
    reward: Array  # [T, N]
    terminated: Array  # [T, N] bool
    truncated: Array  # [T, N] bool
    valid: Array  # [T, N] bool; False in rows where an environment only reset itself
    last_obs: Array  # [N, …]
    final_index: Array  # [E] int
    final_obs: Array  # [E, …]
    rnn_state: Array | None = None  # [N, S] of a recurrent agent at the start of the window
    action_mask: Array | None = None  # [T, N, choices] bool: legal actions; None: all

    def normalized(self, normalizer: ObsNormalizer) -> Self:
        obs, last_obs, final_obs = (normalizer(array) for array in (self.obs, self.last_obs, self.final_obs))
        return replace(self, obs=obs, last_obs=last_obs, final_obs=final_obs)

    def transition(self) -> Transition:
        """Return the valid rows with all successors, flattened to `[B, …]`."""
        next_obs = np.concatenate([self.obs[1:], self.last_obs[None]])
        next_obs.reshape(-1, *self.last_obs.shape[1:])[self.final_index] = self.final_obs
        rows = (self.obs, self.action, self.reward, self.terminated, self.truncated, next_obs)
        return Transition(*(array[self.valid] for array in rows))


@dataclass(frozen=True)
class ReplayBatch(Batch):
    """Transitions sampled from a replay buffer, `[B, …]`. The arrays are overwritten by the next batch."""

    obs: Array
    action: Array
    reward: Array  # discounted sum over k steps
    terminated: Array  # 1.0 where the value of `next_obs` is 0
    discount: Array  # γ^k, where k is the number of steps in the n-step return
    next_obs: Array
    weight: Array  # importance weights, at most 1; all 1 in uniform replay
    index: Array  # position of each row in the buffer
    next_action_mask: Array | None = None  # [B, choices] bool: legal actions in `next_obs`; None: all
    action_mask: Array | None = None  # the same for `obs`

    def normalized(self, normalizer: ObsNormalizer) -> Self:
        return replace(self, obs=normalizer(self.obs), next_obs=normalizer(self.next_obs))
