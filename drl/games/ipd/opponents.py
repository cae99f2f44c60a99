"""Opponents of the agent: named memory-1 players, tables of them, players of the axelrod package, pools in files.

The axelrod package (extra `axelrod`) is imported on first use. `agent_player` is the reverse: a trained agent as a
player in its tournaments.
"""

import copy
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, TypeVar, overload

import numpy as np

from drl.core.errors import BadInput, MissingExtra, UnusableFile, did_you_mean
from drl.core.specs import Array
from drl.core.state_files import read_json, write_json
from drl.games.ipd.ipd_rules import COOPERATE, ONE_HOT, Rules, outcome_of

# Chance to cooperate in the first round and after CC, CD, DC, DD, the player's own move first.
NAMED: dict[str, tuple[float, float, float, float, float]] = {
    "always_cooperate": (1, 1, 1, 1, 1),
    "always_defect": (0, 0, 0, 0, 0),
    "random": (1 / 2, 1 / 2, 1 / 2, 1 / 2, 1 / 2),
    "tit_for_tat": (1, 1, 0, 1, 0),
    "suspicious_tit_for_tat": (0, 1, 0, 1, 0),
    "generous_tit_for_tat": (1, 1, 1 / 3, 1, 1 / 3),
    "win_stay_lose_shift": (1, 1, 0, 0, 1),
    "grim": (1, 1, 0, 0, 0),  # once it has defected, its own last move is always a defection
    "zd_extort_2": (1, 8 / 9, 1 / 2, 1 / 3, 0),
    "zd_gtft_2": (1, 1, 1 / 8, 1, 1 / 4),
}
AXELROD = "axelrod:"  # prefix for a strategy of that package
POOL_FORMAT = 1


if TYPE_CHECKING:
    from axelrod import Action, Player


@dataclass(frozen=True, eq=False)
class Pool:
    """K opponents and how often each is drawn. Make one with `as_pool`.

    >>> pool = as_pool(["grim", [1, 1, 0, 1, 0]], weights=[3, 1])
    >>> pool.names, pool.weights.tolist(), pool.probs.shape
    (('grim', '1'), [0.75, 0.25], (2, 5))
    """

    names: tuple[str, ...]
    probs: Array  # [K, 5], from the opponent's side; NaN for players that are not memory-1
    weights: Array  # [K], summing to 1
    strategies: tuple[type | None, ...]  # the class of a player of the axelrod package, None for memory-1 players

    def __len__(self) -> int:
        return len(self.names)

    @property
    def table(self) -> Array:
        """The memory-1 table, for exact values. Raises if an opponent has none."""
        for name, strategy in zip(self.names, self.strategies, strict=True):
            if strategy is not None:
                raise BadInput(f"opponent {name!r} is no memory-1 player; exact values exist for memory-1 players only")
        return self.probs

    @overload
    def draw(self, uniform: float) -> np.intp: ...
    @overload
    def draw(self, uniform: Array) -> Array: ...
    def draw(self, uniform: float | Array) -> np.intp | Array:
        """The index of the opponent for a uniform draw from [0, 1), or for an array of draws."""
        return np.searchsorted(self._edges, uniform, side="right")

    @cached_property
    def _edges(self) -> Array:
        """Boundaries between the opponents' shares of [0, 1): [K − 1]."""
        return np.cumsum(self.weights)[:-1]

    def save(self, path: str | Path) -> None:
        """Write the pool as JSON, atomically."""
        players = [
            {"name": name, "weight": float(weight)} | ({} if strategy else {"cooperation": row.tolist()})
            for name, row, weight, strategy in zip(self.names, self.probs, self.weights, self.strategies, strict=True)
        ]
        write_json(Path(path), {"format": POOL_FORMAT, "players": players})


OnePlayer = str | Sequence[float] | Array  # a name, or five cooperation probabilities
Opponents = Pool | OnePlayer | Sequence[OnePlayer] | Mapping[str, OnePlayer]  # what `as_pool` takes


def as_pool(opponents: Opponents = "all", weights: Sequence[float] | None = None) -> Pool:
    """A pool from plain data, such as a config file or a command line.

    Takes one opponent or a list of them, each a name (see `NAMED`), `axelrod:Name` or five cooperation probabilities; a
    dict of such opponents under your own names; a (K, 5) array; `all`: every named one; a `.json` file; or a Pool.
    """
    given: object = opponents
    if isinstance(given, Pool):
        return given if weights is None else _pool(_entries(given), weights)
    if isinstance(given, str) and given.endswith(".json"):
        return load_pool(given, weights)
    if isinstance(given, str):
        given = list(NAMED) if given == "all" else [given]
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if isinstance(given, list | tuple) and given and all(isinstance(p, int | float) for p in given):
        given = [given]  # one row
    if isinstance(given, Mapping):
        return _pool([(str(name), player) for name, player in given.items()], weights)
    if not isinstance(given, list | tuple) or not given:
        raise BadInput(f"opponents = {given!r}; expected names, rows of five probabilities, or a .json file")
    return _pool([(player if isinstance(player, str) else str(i), player) for i, player in enumerate(given)], weights)


def load_pool(path: str | Path, weights: Sequence[float] | None = None) -> Pool:
    """Read what `Pool.save` wrote."""
    document = read_json(Path(path))
    if not isinstance(document, dict) or document.get("format") != POOL_FORMAT:
        raise UnusableFile(f"{path} is no pool of opponents, or one of another version of drl; expected format 1")
    try:
        rows = [(player["name"], player.get("cooperation", player["name"])) for player in document["players"]]
        own_weights = [player["weight"] for player in document["players"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise UnusableFile(f"{path}: a player without name and weight ({error!r}); restore it from a copy") from None
    try:
        return _pool(rows, own_weights if weights is None else weights)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def _entries(pool: Pool) -> list[tuple[str, object]]:
    rows = zip(pool.names, pool.probs, pool.strategies, strict=True)
    return [(name, row.tolist() if strategy is None else name) for name, row, strategy in rows]


def _pool(entries: Sequence[tuple[str, object]], weights: Sequence[float] | None) -> Pool:
    if not entries:
        raise BadInput("a pool without opponents; give at least one")
    names = tuple(name for name, _ in entries)
    if len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise BadInput(f"opponents are named {list(names)!r}; expected a different name for each")
    found = [_player(name, given) for name, given in entries]
    probs = np.array([row for row, _ in found], np.float64)
    shares = np.ones(len(names)) if weights is None else np.asarray(weights)
    fine = shares.shape == (len(names),) and shares.dtype.kind in "iuf" and np.isfinite(shares).all()
    if not fine or (shares < 0).any() or shares.sum() <= 0:
        raise BadInput(f"weights = {weights!r}; expected {len(names)} numbers, 0 or more, not all 0")
    shares = shares / shares.sum()
    probs.flags.writeable = shares.flags.writeable = False
    return Pool(names, probs, shares, tuple(strategy for _, strategy in found))


def _player(name: str, given: object) -> tuple[Sequence[float], type | None]:
    if isinstance(given, str):
        if given.startswith(AXELROD):
            return [np.nan] * 5, find_strategy(given.removeprefix(AXELROD))
        if given not in NAMED:
            raise BadInput(
                f"unknown opponent {given!r}; {did_you_mean(given, NAMED)} "
                f"(a player of the axelrod package is written {AXELROD}{given})"
            )
        return NAMED[given], None
    row = given.tolist() if isinstance(given, np.ndarray) else given
    probs = row if isinstance(row, list | tuple) else []
    if len(probs) == 5 and all(isinstance(value, int | float) and 0 <= value <= 1 for value in probs):
        return probs, None
    raise BadInput(
        f"opponent {name!r} is {given!r}; expected five probabilities: to cooperate first and after CC, CD, DC, DD"
    )


class GameAgent(Protocol):
    """Anything with `act(obs)`; sampling also needs `act(obs, explore=True)`."""

    @property
    def act(self) -> Callable[..., Array]:
        """What chooses moves."""


GameAgentT = TypeVar("GameAgentT", bound=GameAgent)


def own_copy(agent: GameAgentT, rng: np.random.Generator | None = None) -> GameAgentT:
    """A copy with shared weights and its own rnn_state, at the start of a game.

    A recurrent agent can play against itself, and training is not affected. With `rng` the copy explores from it.
    """
    mine = copy.copy(agent)
    if hasattr(mine, "begin"):
        mine.begin()
    if rng is not None and hasattr(mine, "rng"):
        mine.rng = rng
    return mine


def rounds_seen(agent: object, otherwise: int) -> int:
    """Rounds in the agent's observations, from its `obs_spec`; `otherwise` if it has none."""
    spec = getattr(agent, "obs_spec", None)
    return otherwise if spec is None else int(spec.shape[0])


def load_axelrod() -> ModuleType:
    """The package. Importing it reads the source of every strategy many times; caching the sources cuts the import
    from 20 s to 6 s (measured once)."""
    if "axelrod" in sys.modules:
        return sys.modules["axelrod"]
    if importlib.util.find_spec("axelrod") is None:
        raise MissingExtra("a player of the axelrod package", "axelrod", "axelrod")
    read_source = inspect.getsource
    seen: dict[object, str] = {}

    def cached(thing: Callable[..., object]) -> str:
        function = getattr(thing, "__func__", thing)
        if function not in seen:
            seen[function] = read_source(thing)
        return seen[function]

    inspect.getsource = cached  # type: ignore[assignment]
    try:
        return importlib.import_module("axelrod")
    finally:
        inspect.getsource = read_source


def find_strategy(name: str) -> type:
    """The class of a strategy, by a name such as `TitForTat`."""
    axelrod = load_axelrod()
    strategies: dict[str, type] = {strategy.__name__: strategy for strategy in axelrod.all_strategies}
    if name not in strategies:
        raise BadInput(f"the axelrod package has no strategy {name!r}; {did_you_mean(name, strategies)}")
    if not axelrod.Classifiers.obey_axelrod(strategies[name]()):
        raise BadInput(f"{name} looks into or changes its opponent, which is a neural network here; choose another")
    return strategies[name]


class AxelrodOpponent:
    """One player of the package in one of our games. Call `begin`, then `move` and `see` in turn."""

    def __init__(self, strategy: type, rules: Rules):
        axelrod = load_axelrod()
        self._cooperate, self._moves = axelrod.Action.C, (axelrod.Action.D, axelrod.Action.C)
        self._player = strategy()
        self._agent = axelrod.Player()  # represents the agent: the player reads its history
        reward, sucker, temptation, punishment = rules.payoffs
        self._attributes = {
            "length": math.inf if rules.rounds is None else rules.rounds,
            "game": axelrod.Game(r=reward, s=sucker, t=temptation, p=punishment),
            "noise": 0,
        }

    def begin(self, uniform: float) -> None:
        """Start a new game. The uniform draw seeds the player."""
        self._agent.reset()
        self._player.reset()
        self._player.set_match_attributes(**self._attributes)
        self._player.set_seed(int(uniform * 2**32))

    def move(self) -> int:
        """Its next move: 1 cooperates."""
        return int(self._player.strategy(self._agent) == self._cooperate)

    def see(self, own: int, agents: int) -> None:
        """What was played in this round."""
        self._player.update_history(self._moves[own], self._moves[agents])
        self._agent.update_history(self._moves[agents], self._moves[own])


def agent_player(agent: GameAgent, name: str = "drl agent", history: int = 20, explore: bool = False) -> "Player":
    """A player of the axelrod package that moves like `agent`: anything with `act(obs)`.

    `history` is the number of observed rounds for agents without an `obs_spec`. `explore=True` samples from the policy.

        axelrod.Tournament([agent_player(agent), axelrod.TitForTat()], turns=100).play()
    """
    return _player_class()(agent, name, history, explore)


@cache
def _player_class() -> type:
    axelrod = load_axelrod()

    class AgentPlayer(axelrod.Player):  # type: ignore[misc, name-defined]
        name = "drl agent"
        classifier = {  # noqa: RUF012  (the package's own convention)
            "memory_depth": math.inf,
            "stochastic": True,  # disables the package's match cache, since two agents may share a name
            "long_run_time": False,
            "inspects_source": False,
            "manipulates_source": False,
            "manipulates_state": False,
        }

        def __init__(self, agent: GameAgent, name: str, history: int, explore: bool):
            super().__init__()
            self.agent = own_copy(agent)  # axelrod creates a new player per match
            self.name, self.explore, self.length = name, explore, rounds_seen(agent, history)

        def __repr__(self) -> str:
            return str(self.name)

        def strategy(self, opponent: "Player") -> "Action":
            cooperate = axelrod.Action.C
            rounds = zip(self.history[-self.length :], self.history.coplays[-self.length :], strict=True)
            played = [1 + outcome_of(int(own == cooperate), int(other == cooperate)) for own, other in rounds]
            obs = ONE_HOT[[0] * (self.length - len(played)) + played]
            move = self.agent.act(obs, explore=True) if self.explore else self.agent.act(obs)
            return cooperate if int(np.asarray(move)) == COOPERATE else axelrod.Action.D

    return AgentPlayer
