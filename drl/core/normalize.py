"""Running statistics that scale observations and rewards.

The trainer updates them once per learning step. Observation statistics change after the learner has used the batch,
so that all actions and values of a rollout use the same statistics. Reward statistics change before, since only the
learner uses them. Evaluation does not change them.
"""

import numpy as np
from numpy.typing import DTypeLike

from drl.core.errors import BadInput
from drl.core.specs import NUMPY, AnyArray, Array, ArrayLibrary, ObsSpec
from drl.core.state_files import StateDict


class RunningStats:
    """Running mean and variance, merged batch by batch (Chan's parallel formula).

    >>> running_stats = RunningStats(())
    >>> running_stats.update(np.array([1.0, 3.0])); running_stats.update(np.array([5.0]))
    >>> float(running_stats.mean), round(float(running_stats.variance), 6)
    (3.0, 2.666667)
    """

    def __init__(self, shape: tuple[int, ...]):
        self.mean: Array = np.zeros(shape, np.float64)
        self.squares: Array = np.zeros(shape, np.float64)  # sum of squared deviations from the mean
        self.count: int = 0

    @property
    def variance(self) -> Array:
        """Variance of all data so far; 1 without data."""
        return self.squares / self.count if self.count else np.ones_like(self.mean)

    def update(self, batch: Array) -> None:
        """Merge a batch `[B, *shape]`."""
        if not len(batch):
            return
        batch_mean = batch.mean(axis=0, dtype=np.float64)
        batch_squares = np.square(batch - batch_mean).sum(axis=0)
        delta, total = batch_mean - self.mean, self.count + len(batch)
        self.squares = self.squares + batch_squares + np.square(delta) * self.count * len(batch) / total
        self.mean = self.mean + delta * len(batch) / total
        self.count = total

    def state_dict(self) -> StateDict:
        return {"mean": self.mean, "squares": self.squares, "count": self.count}

    def load_state_dict(self, state: StateDict) -> None:
        self.mean = np.asarray(state["mean"], np.float64)
        self.squares = np.asarray(state["squares"], np.float64)
        self.count = int(state["count"])


class ObsNormalizer:
    """(obs − mean) / std, clipped. Belongs to the agent and is saved with it.

    In structured observations every float field has its own statistics; images and other uint8 fields are unchanged.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike = np.float32, clip: float = 10.0):
        fields = np.dtype(dtype).fields
        shapes = {"": shape}
        if fields is not None:
            shapes = {name: kind.shape for name, (kind, *_) in fields.items() if kind.base.kind == "f"}
        # By field; "" is the whole observation.
        self.running_stats: dict[str, RunningStats] = {name: RunningStats(shape) for name, shape in shapes.items()}
        self.clip: float = clip
        self._refresh()

    def _refresh(self) -> None:
        self.scales: dict[str, tuple[Array, Array]] = {  # subtracted and multiplied, by field
            name: (stats.mean.astype(np.float32), (1.0 / np.sqrt(stats.variance + 1e-8)).astype(np.float32))
            for name, stats in self.running_stats.items()
        }

    def __call__(self, obs: Array) -> Array:
        if "" in self.scales:
            return self.scaled(obs)
        scaled = obs.copy()
        for name in self.scales:
            scaled[name] = self.scaled(obs[name], name)
        return scaled

    def scaled(self, obs: AnyArray, field: str = "", arrays: ArrayLibrary = NUMPY) -> AnyArray:
        """Scale the whole observation, or one field of a structured one."""
        shift, scale = map(arrays.constant, self.scales[field])
        return arrays.xp.clip((obs - shift) * scale, -self.clip, self.clip)

    def update(self, obs: Array) -> None:
        for name, stats in self.running_stats.items():
            stats.update((obs[name] if name else obs).reshape(-1, *stats.mean.shape))
        self._refresh()

    @property
    def count(self) -> int:
        """Number of observations so far."""
        return next((stats.count for stats in self.running_stats.values()), 0)

    def state_dict(self) -> StateDict:
        return {"clip": self.clip, "stats": {name: each.state_dict() for name, each in self.running_stats.items()}}

    def load_state_dict(self, state: StateDict) -> None:
        if state["stats"].keys() != self.running_stats.keys():
            raise ValueError(
                f"the normalizer is for {sorted(self.running_stats)}, the state for {sorted(state['stats'])}"
            )
        for name, stats in self.running_stats.items():
            stats.load_state_dict(state["stats"][name])
        self.clip = float(state["clip"])
        self._refresh()


def obs_normalizer(obs_spec: ObsSpec) -> ObsNormalizer:
    """Make a new normalizer for these observations."""
    if obs_spec.dtype == "uint8":
        raise BadInput("normalize_obs is for vectors; images of uint8 are divided by 255 by the model")
    return ObsNormalizer(obs_spec.shape, obs_spec.dtype)


def return_bound(v_min: float, v_max: float) -> float:
    """Return the largest absolute return that a fixed support covers. A support of one sign is for such returns."""
    return min(-v_min, v_max) if v_min < 0 < v_max else max(-v_min, v_max)


class RewardScaler:
    """reward / std of the running discounted return. Signs and zeros of rewards do not change.

    With a `bound`, rewards are scaled so that no return so far exceeds it, as critics with a fixed support need
    (Lee et al., 2025).
    """

    def __init__(self, columns: int, gamma: float, clip: float | None = 10.0, bound: float | None = None):
        self.running_stats: RunningStats = RunningStats(())
        self.returns: Array = np.zeros(columns)  # discounted return so far, per column of the rollout
        self.largest: float = 0.0  # largest absolute value of `returns` so far
        self.gamma: float = gamma
        self.clip: float | None = clip
        self.bound: float | None = bound

    def update(self, reward: Array, ended: Array, valid: Array) -> None:
        """Add a rollout `[T, N]`; rows that are not `valid` are ignored."""
        returns = np.empty(reward.shape)
        for t in range(len(reward)):
            self.returns = np.where(valid[t], self.gamma * self.returns + reward[t], self.returns)
            returns[t] = self.returns
            self.returns = np.where(ended[t] & valid[t], 0.0, self.returns)
        self.running_stats.update(returns[valid])
        self.largest = max(self.largest, float(np.abs(returns[valid]).max(initial=0.0)))

    def __call__(self, reward: Array) -> Array:
        deviation = np.sqrt(self.running_stats.variance + 1e-8)
        if self.bound is not None:
            deviation = np.maximum(deviation, self.largest / self.bound)
        scaled = reward / deviation
        return (scaled if self.clip is None else np.clip(scaled, -self.clip, self.clip)).astype(np.float32)

    def state_dict(self) -> StateDict:
        return self.running_stats.state_dict() | {"returns": self.returns, "largest": self.largest}

    def load_state_dict(self, state: StateDict) -> None:
        self.running_stats.load_state_dict(state)
        self.returns = np.asarray(state["returns"], np.float64)
        self.largest = float(state["largest"])
