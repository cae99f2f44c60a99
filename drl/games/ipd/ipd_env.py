"""The iterated Prisoner's Dilemma as a single Gymnasium environment."""

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.games.ipd.axelrod_players import AxelrodOpponent
from drl.games.ipd.game_picture import describe, draw_game
from drl.games.ipd.ipd_rules import ONE_HOT, OTHER_SIDE, OUTCOMES, Rules, outcome_of
from drl.games.ipd.opponents import Opponents, Pool, as_pool
from drl.games.random_streams import Info

RENDER_MODES = ("ansi", "rgb_array")


class IteratedPrisonersDilemmaEnv(gym.Env[Array, np.int64]):
    """One episode is one game against one opponent, drawn from a pool. Each step is a round: 0 defect, 1 cooperate.

    Observation: the last `history` rounds, oldest first, one-hot over empty, CC, CD, DC, DD. A game takes one uniform
    draw for the opponent (and one more to seed a player of the axelrod package), then one per round for the opponent's
    move, and one per round to end the game if it ends by chance.

    >>> env = IteratedPrisonersDilemmaEnv("tit_for_tat", render_mode="ansi")
    >>> obs, info = env.reset(seed=1)
    >>> for action in (1, 1, 0, 0):
    ...     obs, reward, terminated, truncated, info = env.step(action)
    >>> print(env.render())
    round 4  tit_for_tat  agent CCDD  opponent CCCD  DD  reward +1.0  total 12.0
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # noqa: RUF012  (Gymnasium's own convention)

    def __init__(
        self,
        opponents: Opponents = "all",  # see `as_pool`
        weights: Sequence[float] | None = None,  # how often each is drawn; default: equal
        payoffs: Sequence[float] = (3.0, 0.0, 5.0, 1.0),  # to the agent, after CC, CD, DC, DD
        survival: float | None = None,  # chance that the game continues after a round; 0.95 unless rounds are given
        rounds: int | None = None,  # or a fixed number of rounds
        history: int = 20,  # rounds in an observation
        render_mode: str | None = None,
    ):
        if render_mode not in (None, *RENDER_MODES):
            raise BadInput(f"render_mode = {render_mode!r}; expected one of {', '.join(RENDER_MODES)} or None")
        self.rules: Rules = Rules(payoffs, survival, rounds, history)
        self.pool: Pool = as_pool(opponents, weights)
        self.render_mode = render_mode
        self.observation_space: spaces.Box = spaces.Box(0.0, 1.0, (history, len(ONE_HOT)), np.float32)
        self.action_space: spaces.Discrete[np.int64] = spaces.Discrete(2)
        self._cooperation = self.pool.probs[
            :, OTHER_SIDE
        ].tolist()  # of an opponent in each state, from the agent's side
        self._scripted: dict[int, AxelrodOpponent] = {}  # players of the axelrod package, created on first use
        self._states = np.zeros(history, np.int64)
        self._opponent, self._state, self._round, self._over = 0, 0, 0, True
        self._played: list[int] = []  # outcomes of this game, kept only for rendering

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self._opponent = int(self.pool.draw(self.np_random.random()))
        strategy = self.pool.strategies[self._opponent]
        if strategy is not None:
            if self._opponent not in self._scripted:
                self._scripted[self._opponent] = AxelrodOpponent(strategy, self.rules)
            self._scripted[self._opponent].begin(self.np_random.random())
        self._states[:] = 0
        self._state, self._round, self._over = 0, 0, False
        self._played.clear()
        return ONE_HOT[self._states], {"opponent": self.pool.names[self._opponent]}

    def step(self, action: SupportsIndex) -> tuple[Array, float, bool, bool, Info]:
        rules = self.rules
        move = self._checked(action)
        other = int(self.np_random.random() < self._cooperation[self._opponent][self._state])
        if self.pool.strategies[self._opponent] is not None:
            other = self._scripted[self._opponent].move()
            self._scripted[self._opponent].see(other, move)
        outcome = outcome_of(move, other)
        self._state = 1 + outcome
        self._states[:-1] = self._states[1:]
        self._states[-1] = self._state
        self._round += 1
        terminated = rules.survival is not None and bool(self.np_random.random() >= rules.survival)
        truncated = rules.rounds is not None and self._round >= rules.rounds
        self._over = terminated or truncated
        if self.render_mode is not None:
            self._played.append(outcome)
        info: Info = {"opponent": self.pool.names[self._opponent], "outcome": OUTCOMES[outcome]}
        return ONE_HOT[self._states], rules.payoffs[outcome], terminated, truncated, info

    def render(self) -> str | Array:
        """The game so far as a line of text (`ansi`) or a picture (`rgb_array`)."""
        if self.render_mode is None:
            raise BadInput(f"this environment was made without a render_mode; pass one of {', '.join(RENDER_MODES)}")
        show = describe if self.render_mode == "ansi" else draw_game
        return show(self.rules, self.pool.names[self._opponent], self._played)

    def _checked(self, action: SupportsIndex) -> int:
        if self._over:
            raise BadInput("step() without a running game; call reset() first")
        try:
            move = operator.index(action)
        except TypeError:
            move = -1
        if move not in (0, 1):
            raise BadInput(f"action {action!r} is no move; expected 0 (defect) or 1 (cooperate)")
        return move
