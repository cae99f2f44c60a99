"""The iterated Prisoner's Dilemma as a Gymnasium environment: single, and N games in one NumPy program; pictures."""

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np

from drl.core.specs import Array
from drl.core.state_files import StateDict
from drl.games.canvas import AMBER, GREEN, GREY, GROOVE, NIGHT, PANEL, RED, WHITE, Canvas
from drl.games.env_forms import RENDER_MODES, Info, SingleForm, Step, UniformStreams, VectorForm, VectorStep, masked
from drl.games.ipd.ipd_rules import ONE_HOT, OTHER_SIDE, OUTCOMES, STATES, Rules, outcome_of
from drl.games.ipd.opponents import AxelrodOpponent, Opponents, Pool, as_pool

MOVES = "0 (defect) or 1 (cooperate)"
SPARE = 64  # rounds written after the histories before these move back to the front
STRIP = 40  # rounds of the text strip: the last ones
COLUMNS = 32  # rounds of the picture: the last ones
WIDTH, HEIGHT = 640, 288  # multiples of 16, for video encoders
MOVE_COLORS = {"C": GREEN, "D": RED}


class IteratedPrisonersDilemmaEnv(SingleForm):
    """One episode is one game against one opponent, drawn from a pool. Each step is a round: 0 defect, 1 cooperate.

    Observation: the last `history` rounds, oldest first, one-hot over empty, CC, CD, DC, DD. A game uses one uniform
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
        self.rules: Rules = Rules(payoffs, survival, rounds, history)
        self.pool: Pool = as_pool(opponents, weights)
        super().__init__((history, len(ONE_HOT)), 2, render_mode)
        # Chance that an opponent cooperates in each state, from the agent's side.
        self._cooperation = self.pool.probs[:, OTHER_SIDE].tolist()
        self._scripted: dict[int, AxelrodOpponent] = {}  # players of the axelrod package, created on first use
        self._states = np.zeros(history, np.int64)
        self._opponent, self._state, self._round = 0, 0, 0
        self._played: list[int] = []  # outcomes of this game, only for rendering

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

    def step(self, action: SupportsIndex) -> Step:
        rules = self.rules
        move = self._checked(action, f"no move; expected {MOVES}")
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

    def _describe(self) -> str:
        return describe(self.rules, self.pool.names[self._opponent], self._played)

    def _draw(self) -> Array:
        return draw_game(self.rules, self.pool.names[self._opponent], self._played)


class IteratedPrisonersDilemmaVectorEnv(VectorForm):
    """N games at once; see `VectorForm`. Opponents from the axelrod package are not vectorized: they move one by one.

    >>> env = IteratedPrisonersDilemmaVectorEnv(num_envs=2, opponents=["grim", "random"])
    >>> obs, infos = env.reset(seed=1)
    >>> obs.shape, infos["opponent"].tolist()
    ((2, 20, 5), ['random', 'grim'])
    """

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
        self.rules: Rules = Rules(payoffs, survival, rounds, history)
        self.pool: Pool = as_pool(opponents, weights)
        super().__init__(num_envs, (history, len(ONE_HOT)), 2, render_mode)
        self._cooperation = np.ascontiguousarray(self.pool.probs[:, OTHER_SIDE]).ravel()  # [K · states]
        self._payoffs, self._outcomes = np.array(self.rules.payoffs), np.array(OUTCOMES, object)
        self._names = np.array(self.pool.names, object)
        self._is_scripted = np.array([strategy is not None for strategy in self.pool.strategies])
        self._scripted: dict[tuple[int, int], AxelrodOpponent] = {}  # by environment and opponent
        # One-hot rounds of all environments. The observation is the window of `history` rounds from `_at` on. A new
        # round is written after the window, which then moves by one, so nothing is shifted.
        self._rows = np.zeros((num_envs, history + SPARE, len(ONE_HOT)), np.float32)
        self._at = 0
        self._opponent = np.zeros(num_envs, np.int64)
        self._state = np.zeros(num_envs, np.int64)
        self._round = np.zeros(num_envs, np.int64)
        self._name = np.full(num_envs, None, object)  # replaced, never changed in place, because infos refer to it

    def step(self, actions: Array) -> VectorStep:
        rules, streams = self.rules, self._started()
        move = self._checked(actions, f"moves, {MOVES}")
        chance = self._cooperation.take(self._opponent * len(STATES) + self._state)
        other = (streams.draw_all() < chance).astype(np.int64)
        if self._is_scripted.any():
            self._ask_scripted(move, other)
        outcome = outcome_of(move, other)
        self._state = 1 + outcome
        self._remember(self._state)
        if rules.survival is not None:
            terminated = streams.draw_all() >= rules.survival
            ended, truncated = terminated, np.zeros(self.num_envs, bool)
        else:
            self._round += 1
            ended = truncated = self._round >= rules.rounds  # type: ignore[operator]
            terminated = np.zeros(self.num_envs, bool)
        reward = self._payoffs.take(outcome)
        info: Info = {"opponent": self._name, "outcome": self._outcomes.take(outcome)}
        if not ended.any():
            return self._observed(), reward, terminated, truncated, masked(info, self._everywhere)
        # One array per environment that ended: few end at once, so this is cheaper than a whole batch.
        indices, final_obs = np.flatnonzero(ended), np.full(self.num_envs, None, object)
        last = self._rows[indices, self._at : self._at + rules.history]
        for index, obs in zip(indices.tolist(), last, strict=True):
            final_obs[index] = obs
        infos = self._restart(ended, info, final_obs, info)
        return self._observed(), reward, terminated, truncated, infos

    def state_dict(self) -> StateDict | None:
        if self._is_scripted.any():  # players of the axelrod package do not report their state
            return None
        games = {"opponent": self._opponent.copy(), "state": self._state.copy(), "round": self._round.copy()}
        return (super().state_dict() or {}) | {"seen": self._observed()} | games

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self._at, self._rows[:, : self.rules.history] = 0, state["seen"]
        self._opponent[:], self._state[:], self._round[:] = state["opponent"], state["state"], state["round"]
        self._name = self._names[self._opponent]

    def _begin(self, streams: UniformStreams, indices: Array) -> None:
        opponent = self.pool.draw(streams.draw(indices))
        self._opponent[indices], self._state[indices], self._round[indices] = opponent, 0, 0
        self._rows[indices, self._at : self._at + self.rules.history] = ONE_HOT[0]
        self._name = self._name.copy()
        self._name[indices] = self._names[opponent]
        scripted = indices[self._is_scripted[opponent]]
        if len(scripted):
            for index, uniform in zip(scripted.tolist(), streams.draw(scripted).tolist(), strict=True):
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

    def _first_info(self) -> Info:
        return {"opponent": self._name}

    def _observed(self) -> Array:
        return self._rows[:, self._at : self._at + self.rules.history].copy()


def describe(rules: Rules, opponent: str, outcomes: Sequence[int]) -> str:
    """Return both players' moves as strips of letters, the last outcome and the running total."""
    head = f"round {len(outcomes)}  {opponent}  "
    if not outcomes:
        return head + "the game begins"
    shown = [OUTCOMES[outcome] for outcome in outcomes[-STRIP:]]
    more = "…" if len(outcomes) > STRIP else ""
    agent, other = ("".join(moves) for moves in zip(*shown, strict=True))
    total = sum(rules.payoffs[outcome] for outcome in outcomes)
    reward = rules.payoffs[outcomes[-1]]
    return f"{head}agent {more}{agent}  opponent {more}{other}  {shown[-1]}  reward {reward:+.1f}  total {total:.1f}"


def draw_game(rules: Rules, opponent: str, outcomes: Sequence[int]) -> Array:
    """Draw the last rounds, one column each, and the running score: uint8 [HEIGHT, WIDTH, 3]."""
    canvas = Canvas(WIDTH, HEIGHT)
    canvas.box((0, 0, WIDTH, HEIGHT), NIGHT)
    canvas.text((24, 16), "Prisoner's Dilemma", 22, WHITE)
    canvas.text((WIDTH - 24, 20), f"opponent  {opponent}", 17, GREY, right=True)
    canvas.text((24, 68), "agent", 15, GREY)
    canvas.text((24, 96), "opponent", 15, GREY)
    first = max(len(outcomes) - COLUMNS, 0)
    wide = (WIDTH - 24 - 112) / COLUMNS
    for column in range(COLUMNS):
        left = 112 + column * wide
        moves = OUTCOMES[outcomes[first + column]] if first + column < len(outcomes) else None
        for row in (0, 1):
            color = GROOVE if moves is None else MOVE_COLORS[moves[row]]
            canvas.box((left, 64 + 28 * row, wide - 3, 24), color, 4)
    _draw_score(canvas, rules, outcomes, first, wide)
    return canvas.pixels()


def _draw_score(canvas: Canvas, rules: Rules, outcomes: Sequence[int], first: int, wide: float) -> None:
    """Draw the mean payoff per round so far, as a curve below the columns."""
    top, tall = 136, 104
    canvas.box((112, top, WIDTH - 24 - 112, tall), PANEL, 8)
    low, high = min(rules.payoffs), max(rules.payoffs)
    canvas.text((24, top), "payoff", 15, GREY)
    canvas.text((24, top + 20), "per round", 15, GREY)
    payoffs = np.array([rules.payoffs[outcome] for outcome in outcomes])
    if len(outcomes):
        mean = np.cumsum(payoffs) / np.arange(1, len(payoffs) + 1)
        share = (mean[first:] - low) / ((high - low) or 1.0)
        x = 112 + (np.arange(len(share)) + 0.5) * wide
        canvas.curve(x, top + tall - 8 - share * (tall - 16), AMBER)
        rounds = f"{len(outcomes)} round{'' if len(outcomes) == 1 else 's'}"
        canvas.text((24, 254), f"{rounds}, last {OUTCOMES[outcomes[-1]]}", 17, WHITE)
        canvas.text((WIDTH - 24, 254), f"{mean[-1]:.2f} per round, total {payoffs.sum():.1f}", 17, WHITE, right=True)
    else:
        canvas.text((24, 254), "The game begins", 17, WHITE)
