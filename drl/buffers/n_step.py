"""n-step transitions: rewards of up to n steps summed before they are stored.

Per environment. The sum stops at the first episode end, so the last rows of an episode look fewer steps ahead; each row
carries the discount γ^k of the k it really used. Truncation keeps its successor and so its value; termination says so.
"""

from typing import Any, NamedTuple

import numpy as np

from drl.core.contracts import VecStep
from drl.core.specs import Array


class NStepRows(NamedTuple):
    """Transitions ready to be stored, `[M, …]`."""

    obs: Array
    action: Array
    reward: Array  # Σ γ^i r_i over the k steps looked ahead
    terminated: Array  # whether the last of these steps was a termination
    discount: Array  # γ^k
    next_obs: Array  # true successor of the last of these steps
    env: Array  # which environment each row comes from


class NStep:
    """Turns single steps of N environments into n-step transitions, each handed out once and in order per
    environment."""

    def __init__(self, n: int, gamma: float, num_envs: int):
        self.n, self.gamma = n, gamma
        # Per environment, the steps that still look ahead: [obs, action, reward so far, k so far].
        self.pending: list[list[list[Any]]] = [[] for _ in range(num_envs)]

    def add(self, obs: Array, action: Array, step: VecStep) -> NStepRows | None:
        """The transitions that this step completed; None if there are none."""
        if self.n == 1:
            return self._single(obs, action, step)
        complete: list[tuple[Any, ...]] = []
        for env in np.flatnonzero(step.valid).tolist():
            waiting = self.pending[env]
            waiting.append([obs[env].copy(), np.copy(action[env]), 0.0, 0])
            reward = float(step.reward[env])
            for row in waiting:
                row[2] += self.gamma ** row[3] * reward
                row[3] += 1
            ended = bool(step.terminated[env] or step.truncated[env])
            ready = len(waiting) if ended else int(len(waiting) == self.n)
            for old_obs, old_action, total, used in waiting[:ready]:
                died = bool(step.terminated[env])
                complete.append((old_obs, old_action, total, died, self.gamma**used, step.next_obs[env], env))
            del waiting[:ready]
        if not complete:
            return None
        columns = [np.array(column) for column in zip(*complete, strict=True)]
        return NStepRows(*columns)

    def _single(self, obs: Array, action: Array, step: VecStep) -> NStepRows:
        """n = 1: every valid row as it is."""
        discount = np.full(len(step.reward), self.gamma, np.float32)
        envs = np.arange(len(step.reward))
        rows = NStepRows(obs, action, step.reward, step.terminated, discount, step.next_obs, envs)
        return rows if step.valid.all() else NStepRows(*(column[step.valid] for column in rows))

    def state_dict(self) -> dict[str, Any]:
        return {"pending": [[list(row) for row in waiting] for waiting in self.pending]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pending = [[list(row) for row in waiting] for waiting in state["pending"]]
