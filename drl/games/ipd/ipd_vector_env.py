"""The iterated Prisoner's Dilemma for N games in one NumPy program."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.core.state_files import StateDict
from drl.games.ipd.axelrod_players import AxelrodOpponent
from drl.games.ipd.ipd_rules import ONE_HOT, OTHER_SIDE, OUTCOMES, STATES, Rules, outcome_of
from drl.games.ipd.opponents import Opponents, Pool, as_pool
from drl.games.random_streams import Info, UniformStreams, masked, streams_for

SPARE = 64  # rounds written after the histories before these move back to the front


class IteratedPrisonersDilemmaVectorEnv(VectorEnv[Array, Array, Array]):
    """N games at once. A game restarts in the step that ends it (SAME_STEP).

    Environment i equals `IteratedPrisonersDilemmaEnv` with seed `seed + i` (or `seed[i]` of a list), whatever N is.
    Where a game ended, `infos["final_obs"]` and `infos["final_info"]` hold its last observation and info. Opponents
    from the axelrod package are not vectorized: they move one by one.

    >>> env = IteratedPrisonersDilemmaVectorEnv(num_envs=2, opponents=["grim", "random"])
    >>> obs, infos = env.reset(seed=1)
    >>> obs.shape, infos["opponent"].tolist()
    ((2, 20, 5), ['random', 'grim'])
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 1,
        opponents: Opponents = "all",
        weights: Sequence[float] | None = None,
        payoffs: Sequence[float] = (3.0, 0.0, 5.0, 1.0),
        survival: float | None = None,
        rounds: int | None = None,
        history: int = 20,
        render_mode: str | None = None,
    ):
        if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
            raise BadInput(f"num_envs = {num_envs!r}; expected a whole number, 1 or more")
        if render_mode is not None:
            raise BadInput(
                f"the vector form draws nothing (render_mode = {render_mode!r}); "
                "use IteratedPrisonersDilemmaEnv to render"
            )
        self.rules: Rules = Rules(payoffs, survival, rounds, history)
        self.pool: Pool = as_pool(opponents, weights)
        self.num_envs: int = num_envs
        self.render_mode: str | None = None
        self.single_observation_space: spaces.Box = spaces.Box(0.0, 1.0, (history, len(ONE_HOT)), np.float32)
        self.single_action_space: spaces.Discrete[np.int64] = spaces.Discrete(2)
        self.observation_space: spaces.Space[Array] = batch_space(self.single_observation_space, num_envs)
        self.action_space: spaces.Space[Array] = batch_space(self.single_action_space, num_envs)
        self._cooperation = np.ascontiguousarray(self.pool.probs[:, OTHER_SIDE]).ravel()  # [K · states]
        self._payoffs, self._outcomes = np.array(self.rules.payoffs), np.array(OUTCOMES, object)
        self._names = np.array(self.pool.names, object)
        self._is_scripted = np.array([strategy is not None for strategy in self.pool.strategies])
        self._scripted: dict[tuple[int, int], AxelrodOpponent] = {}  # by environment and opponent
        self._streams: UniformStreams | None = None
        self._everywhere = np.ones(num_envs, bool)
        self._everywhere.flags.writeable = False  # returned as a mask by every step
        # One-hot rounds of all environments. The observation is the window of `history` rounds from `_at` on. A new
        # round is written after the window, which then moves by one, so nothing is shifted.
        self._rows = np.zeros((num_envs, history + SPARE, len(ONE_HOT)), np.float32)
        self._at = 0
        self._opponent = np.zeros(num_envs, np.int64)
        self._state = np.zeros(num_envs, np.int64)
        self._round = np.zeros(num_envs, np.int64)
        self._name = np.full(num_envs, None, object)  # replaced, never changed in place, because infos refer to it

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, object] | None = None
    ) -> tuple[Array, Info]:
        if seed is not None or self._streams is None:
            self._streams = streams_for(seed, self.num_envs)
        self._begin(np.arange(self.num_envs))
        return self._observed(), masked({"opponent": self._name}, self._everywhere)

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, Info]:
        rules = self.rules
        move = self._checked(actions)
        assert self._streams is not None
        chance = self._cooperation.take(self._opponent * len(STATES) + self._state)
        other = (self._streams.draw_all() < chance).astype(np.int64)
        if self._is_scripted.any():
            self._ask_scripted(move, other)
        outcome = outcome_of(move, other)
        self._state = 1 + outcome
        self._remember(self._state)
        if rules.survival is not None:
            terminated = self._streams.draw_all() >= rules.survival
            ended, truncated = terminated, np.zeros(self.num_envs, bool)
        else:
            self._round += 1
            ended = truncated = self._round >= rules.rounds  # type: ignore[operator]
            terminated = np.zeros(self.num_envs, bool)
        reward = self._payoffs.take(outcome)
        info = {"opponent": self._name, "outcome": self._outcomes.take(outcome)}
        if not ended.any():
            return self._observed(), reward, terminated, truncated, masked(info, self._everywhere)
        indices = np.flatnonzero(ended)
        final = {"final_obs": self._last_observed(indices), "final_info": masked(info, ended)}
        infos = masked(final, ended) | masked(info, ~ended)
        self._begin(indices)
        first_info = masked({"opponent": self._name}, self._everywhere)
        return self._observed(), reward, terminated, truncated, infos | first_info

    def state_dict(self) -> StateDict | None:
        """None with players of the axelrod package, which do not tell their state."""
        if self._is_scripted.any():
            return None
        streams = None if self._streams is None else self._streams.state_dict()
        games = {"opponent": self._opponent.copy(), "state": self._state.copy(), "round": self._round.copy()}
        return {"streams": streams, "seen": self._observed()} | games

    def load_state_dict(self, state: StateDict) -> None:
        if state["streams"] is not None:
            self._streams = streams_for(0, self.num_envs)
            self._streams.load_state_dict(state["streams"])
        self._at, self._rows[:, : self.rules.history] = 0, state["seen"]
        self._opponent[:], self._state[:], self._round[:] = state["opponent"], state["state"], state["round"]
        self._name = self._names[self._opponent]

    def _begin(self, indices: Array) -> None:
        assert self._streams is not None
        opponent = self.pool.draw(self._streams.draw(indices))
        self._opponent[indices], self._state[indices], self._round[indices] = opponent, 0, 0
        self._rows[indices, self._at : self._at + self.rules.history] = ONE_HOT[0]
        self._name = self._name.copy()
        self._name[indices] = self._names[opponent]
        scripted = indices[self._is_scripted[opponent]]
        if len(scripted):
            for index, uniform in zip(scripted.tolist(), self._streams.draw(scripted).tolist(), strict=True):
                key = index, int(self._opponent[index])
                if key not in self._scripted:
                    strategy = self.pool.strategies[key[1]]
                    assert strategy is not None
                    self._scripted[key] = AxelrodOpponent(strategy, self.rules)
                self._scripted[key].begin(uniform)

    def _ask_scripted(self, move: Array, other: Array) -> None:
        """Write the moves of players of the axelrod package into `other`."""
        for index in np.flatnonzero(self._is_scripted[self._opponent]).tolist():
            player = self._scripted[index, int(self._opponent[index])]
            other[index] = player.move()
            player.see(int(other[index]), int(move[index]))

    def _remember(self, state: Array) -> None:
        length = self.rules.history
        if self._at == SPARE:
            self._rows[:, :length] = self._rows[:, self._at :].copy()
            self._at = 0
        self._rows[:, self._at + length] = ONE_HOT.take(state, axis=0)
        self._at += 1

    def _observed(self) -> Array:
        return self._rows[:, self._at : self._at + self.rules.history].copy()

    def _last_observed(self, indices: Array) -> Array:
        """Gymnasium's layout, one array per environment that ended. Few end at once, so this is cheaper than a whole
        batch."""
        found = np.full(self.num_envs, None, object)
        for index, obs in zip(
            indices.tolist(), self._rows[indices, self._at : self._at + self.rules.history], strict=True
        ):
            found[index] = obs
        return found

    def _checked(self, actions: Array) -> Array:
        if self._streams is None:
            raise BadInput("step() before the first reset(); call reset() once")
        move = np.asarray(actions)
        if move.shape != (self.num_envs,) or move.dtype.kind not in "iu":
            raise BadInput(f"actions = {actions!r}; expected {self.num_envs} moves, 0 (defect) or 1 (cooperate)")
        if (move.astype(np.uint64) > 1).any():  # a negative number wraps to a huge one
            raise BadInput(f"actions = {actions!r}; expected only 0 (defect) and 1 (cooperate)")
        return move.astype(np.int64, copy=False)
