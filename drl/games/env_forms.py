"""Base classes of our environments' single and vector forms; a random stream for each environment of a vector form."""

import operator
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from drl.core.errors import BadInput
from drl.core.seeding import generator_state, restore_generator
from drl.core.specs import Array
from drl.core.state_files import StateDict

BLOCK = 256  # draws fetched from a generator at once: one call costs more than unused draws
RENDER_MODES = ("ansi", "rgb_array")

Info = dict[str, object]  # what `reset` and `step` return beside the observation
Step = tuple[Array, float, bool, bool, Info]
VectorStep = tuple[Array, Array, Array, Array, Info]


def check_render_mode(render_mode: str | None) -> None:
    """Raise unless it is None or one of `RENDER_MODES`."""
    if render_mode not in (None, *RENDER_MODES):
        raise BadInput(f"render_mode = {render_mode!r}; expected one of {', '.join(RENDER_MODES)} or None")


class SingleForm(gym.Env[Array, np.int64]):
    """An environment with observations in [0, 1] and `choices` actions, drawn as text or as a picture."""

    def __init__(self, shape: tuple[int, ...], choices: int, render_mode: str | None):
        check_render_mode(render_mode)
        self.render_mode = render_mode
        self.observation_space: spaces.Box = spaces.Box(0.0, 1.0, shape, np.float32)
        self.action_space: spaces.Discrete[np.int64] = spaces.Discrete(choices)
        self._choices = choices
        self._over = True  # no episode is running

    def render(self) -> str | Array:
        if self.render_mode is None:
            raise BadInput(f"this environment was made without a render_mode; pass one of {', '.join(RENDER_MODES)}")
        return self._describe() if self.render_mode == "ansi" else self._draw()

    @abstractmethod
    def _describe(self) -> str:
        """Return a line of text."""

    @abstractmethod
    def _draw(self) -> Array:
        """Return a picture."""

    def _checked(self, action: SupportsIndex, expected: str) -> int:
        """Return an action as an integer; `expected` is for the error message."""
        if self._over:
            raise BadInput("step() before reset(), or after the episode's end; call reset() first")
        try:
            choice = operator.index(action)
        except TypeError:
            choice = -1
        if not 0 <= choice < self._choices:
            raise BadInput(f"action {action!r} is {expected}")
        return choice


class VectorForm(VectorEnv[Array, Array, Array]):
    """N such environments at once. An episode restarts in the step that ends it (SAME_STEP).

    Environment i equals the single form with seed `seed + i` (or `seed[i]` of a list) for any N. Where an episode
    ended, `infos["final_obs"]` and `infos["final_info"]` hold its last observation and info.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(self, num_envs: int, shape: tuple[int, ...], choices: int, render_mode: str | None):
        if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
            raise BadInput(f"num_envs = {num_envs!r}; expected a whole number, 1 or more")
        if render_mode is not None:
            raise BadInput(f"the vector form draws nothing (render_mode = {render_mode!r}); render the single form")
        self.num_envs: int = num_envs
        self._choices = choices
        self.render_mode: str | None = None
        self.single_observation_space: spaces.Box = spaces.Box(0.0, 1.0, shape, np.float32)
        self.single_action_space: spaces.Discrete[np.int64] = spaces.Discrete(choices)
        self.observation_space: spaces.Space[Array] = batch_space(self.single_observation_space, num_envs)
        self.action_space: spaces.Space[Array] = batch_space(self.single_action_space, num_envs)
        self._streams: UniformStreams | None = None
        self._everywhere = np.ones(num_envs, bool)
        self._everywhere.flags.writeable = False  # returned as a mask by every step

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, object] | None = None
    ) -> tuple[Array, Info]:
        if seed is not None or self._streams is None:
            self._streams = streams_for(seed, self.num_envs)
        self._begin(self._streams, np.arange(self.num_envs))
        return self._observed(), masked(self._first_info(), self._everywhere)

    @abstractmethod
    def _begin(self, streams: "UniformStreams", indices: Array) -> None:
        """Begin episodes in these environments."""

    @abstractmethod
    def _first_info(self) -> Info:
        """Return the info of a reset."""

    @abstractmethod
    def _observed(self) -> Array:
        """Return all observations in a new array."""

    def _restart(self, ended: Array, info: Info, final_obs: Array, final_info: Info) -> Info:
        """Begin new episodes where `ended` is True; return the infos of the step."""
        infos = masked({"final_obs": final_obs, "final_info": masked(final_info, ended)}, ended) | masked(info, ~ended)
        assert self._streams is not None
        self._begin(self._streams, np.flatnonzero(ended))
        return infos | masked(self._first_info(), self._everywhere)

    def _started(self) -> "UniformStreams":
        """Return the random streams; raise before the first reset."""
        if self._streams is None:
            raise BadInput("step() before the first reset(); call reset() once")
        return self._streams

    def _checked(self, actions: Array, expected: str) -> Array:
        """Copy the actions; infos refer to the copy. `expected` is for the error message."""
        checked = np.array(actions)
        fits = checked.shape == (self.num_envs,) and checked.dtype.kind in "iu"
        if not fits or (checked.astype(np.uint64) >= self._choices).any():  # −1 wraps to a huge number
            raise BadInput(f"actions = {actions!r}; expected {self.num_envs} {expected}")
        return checked.astype(np.int64, copy=False)

    def state_dict(self) -> StateDict | None:
        """State within the running episodes; None: it cannot be stored."""
        return {"streams": None if self._streams is None else self._streams.state_dict()}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore such a state."""
        if state["streams"] is not None:
            self._streams = streams_for(0, self.num_envs)
            self._streams.load_state_dict(state["streams"])


def masked(info: Mapping[str, object], mask: Array) -> Info:
    """Return Gymnasium's layout: each array has a mask of the environments that it applies to."""
    return {**info, **{f"_{key}": mask for key in info}}


def streams_for(seed: int | Sequence[int] | None, num_envs: int) -> "UniformStreams":
    """Make streams in which environment i draws the same numbers as a single environment with seed `seed + i`, or
    `seed[i]`."""
    seeds: list[int] | list[None] = [None] * num_envs
    if seed is not None:
        if isinstance(seed, int | np.integer):
            seeds = [int(seed) + i for i in range(num_envs)]
        else:
            seeds = list(seed) if isinstance(seed, list | tuple | np.ndarray) else []
        if len(seeds) != num_envs or not all(isinstance(s, int | np.integer) and s >= 0 for s in seeds):
            raise BadInput(
                f"seed = {seed!r}; expected a whole number, 0 or more, or one for each of {num_envs} environments"
            )
    return UniformStreams([seeding.np_random(None if one is None else int(one))[0] for one in seeds])


class UniformStreams:
    """Random numbers for N environments as one array; environment i gets the numbers of `generators[i].random()`.

    >>> streams = UniformStreams([np.random.default_rng(0), np.random.default_rng(1)])
    >>> first, other = streams.draw_all(), streams.draw(np.array([1]))
    >>> [first[1], other[0]] == np.random.default_rng(1).random(2).tolist()
    True
    """

    def __init__(self, generators: Sequence[np.random.Generator]):
        self._generators = generators
        self._draws = np.empty((len(generators), BLOCK))
        self._first = np.arange(len(generators)) * BLOCK  # flat index of each environment's first draw
        self._used = np.full(len(generators), BLOCK)
        self._sure = 0  # draws that every environment still has

    def draw_all(self) -> Array:
        """Return the next number of every environment."""
        self._spend()
        draws = self._draws.take(self._first + self._used)
        self._used += 1
        return draws

    def draw(self, indices: Array) -> Array:
        """Return the next number of each of these environments (distinct indices)."""
        self._spend()
        used = self._used[indices]
        self._used[indices] = used + 1
        return self._draws[indices, used]

    def _spend(self) -> None:
        if not self._sure:
            self._refill()
        self._sure -= 1

    def _refill(self) -> None:
        for index in np.flatnonzero(self._used == BLOCK).tolist():
            self._generators[index].random(out=self._draws[index])
            self._used[index] = 0
        self._sure = BLOCK - int(self._used.max())

    def state_dict(self) -> StateDict:
        kept = {"draws": self._draws.copy(), "used": self._used.copy(), "sure": self._sure}
        return kept | {"generators": [generator_state(generator) for generator in self._generators]}

    def load_state_dict(self, state: StateDict) -> None:
        self._draws[:], self._used[:], self._sure = state["draws"], state["used"], int(state["sure"])
        for generator, stored in zip(self._generators, state["generators"], strict=True):
            restore_generator(generator, stored)
