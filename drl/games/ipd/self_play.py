"""The iterated Prisoner's Dilemma between two learners: a game of PettingZoo's parallel API (extra `pettingzoo`)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.games.env_forms import RENDER_MODES, Info, check_render_mode
from drl.games.ipd.ipd_env import describe, draw_game
from drl.games.ipd.ipd_rules import ONE_HOT, OTHER_SIDE, OUTCOMES, Rules, outcome_of

PLAYERS = ("player_0", "player_1")
ByPlayer = dict[str, Any]


class SelfPlay(ParallelEnv[str, Array, int]):  # type: ignore[misc]
    """Two players, the rules of `IteratedPrisonersDilemmaEnv`. Each sees the last rounds from its own side.

    >>> game = SelfPlay(rounds=2)
    >>> observations, infos = game.reset(seed=1)
    >>> game.step({"player_0": 1, "player_1": 0})[1]
    {'player_0': 0.0, 'player_1': 5.0}
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 4, "name": "self_play"}  # noqa: RUF012

    def __init__(
        self,
        payoffs: Sequence[float] = (3.0, 0.0, 5.0, 1.0),  # to a player, after CC, CD, DC, DD, its own move first
        survival: float | None = None,  # chance that the game continues after a round; 0.95 unless rounds are given
        rounds: int | None = None,  # or a fixed number of rounds
        history: int = 20,  # rounds in an observation
        render_mode: str | None = None,
    ):
        check_render_mode(render_mode)
        self.rules: Rules = Rules(payoffs, survival, rounds, history)
        self.render_mode = render_mode
        self.possible_agents: list[str] = list(PLAYERS)
        self.agents: list[str] = list[str]()
        self._seen = spaces.Box(0.0, 1.0, (history, len(ONE_HOT)), np.float32)
        self._moves: spaces.Discrete[np.int64] = spaces.Discrete(2)  # 0 defect, 1 cooperate
        self._rng = np.random.default_rng(0)
        self._states = np.zeros(history, np.int64)  # of the last rounds, from the side of the first player
        self._outcomes: list[int] = []

    def observation_space(self, agent: str) -> spaces.Box:
        return self._seen

    def action_space(self, agent: str) -> "spaces.Discrete[np.int64]":
        return self._moves

    def reset(self, seed: int | None = None, options: Info | None = None) -> tuple[ByPlayer, dict[str, Info]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._states[:] = 0
        self._outcomes.clear()
        self.agents = list(PLAYERS)
        return self._observations(), {player: {} for player in PLAYERS}

    def step(self, actions: Mapping[str, int]) -> tuple[ByPlayer, ByPlayer, ByPlayer, ByPlayer, dict[str, Info]]:
        if not self.agents:
            raise BadInput("step() without a running game; call reset() first")
        first, second = (int(actions[player]) for player in PLAYERS)
        if not {first, second} <= {0, 1}:
            raise BadInput(f"the moves are {first} and {second}; expected 0 (defect) or 1 (cooperate)")
        outcomes = outcome_of(first, second), outcome_of(second, first)
        self._outcomes.append(outcomes[0])
        self._states[:-1] = self._states[1:]
        self._states[-1] = 1 + outcomes[0]
        rules = self.rules
        terminated = rules.survival is not None and bool(self._rng.random() >= rules.survival)
        truncated = rules.rounds is not None and len(self._outcomes) >= rules.rounds
        if terminated or truncated:
            self.agents = []
        rewards = dict(zip(PLAYERS, (rules.payoffs[outcome] for outcome in outcomes), strict=True))
        infos: dict[str, Info] = dict(zip(PLAYERS, ({"outcome": OUTCOMES[each]} for each in outcomes), strict=True))
        flags = (dict.fromkeys(PLAYERS, flag) for flag in (terminated, truncated))
        return self._observations(), rewards, *flags, infos  # type: ignore[return-value]

    def _observations(self) -> ByPlayer:
        return {PLAYERS[0]: ONE_HOT[self._states], PLAYERS[1]: ONE_HOT[OTHER_SIDE[self._states]]}

    def render(self) -> str | Array:
        """The game so far, from the side of the first player."""
        show = describe if self.render_mode == "ansi" else draw_game
        return show(self.rules, PLAYERS[1], self._outcomes)


parallel_env = SelfPlay
