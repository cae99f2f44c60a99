"""Opponents of the agent: named memory-1 players, tables of them, players of the axelrod package, pools in files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np

from drl.core.errors import BadInput, UnusableFile, did_you_mean
from drl.core.specs import Array
from drl.core.state_files import read_json, write_json
from drl.games.ipd.axelrod_players import find_strategy

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
    return [
        (name, row.tolist() if strategy is None else name)
        for name, row, strategy in zip(pool.names, pool.probs, pool.strategies, strict=True)
    ]


def _pool(entries: Sequence[tuple[str, object]], weights: Sequence[float] | None) -> Pool:
    if not entries:
        raise BadInput("a pool without opponents; give at least one")
    names = tuple(name for name, _ in entries)
    if len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise BadInput(f"opponents are named {list(names)!r}; expected a different name for each")
    found = [_player(name, given) for name, given in entries]
    probs = np.array([row for row, _ in found], np.float64)
    return Pool(names, _frozen(probs), _checked_weights(weights, len(names)), tuple(strategy for _, strategy in found))


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
    if isinstance(row, list | tuple) and len(row) == 5 and all(map(_is_probability, row)):
        return row, None
    raise BadInput(
        f"opponent {name!r} is {given!r}; expected five probabilities: to cooperate first and after CC, CD, DC, DD"
    )


def _is_probability(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


def _checked_weights(weights: Sequence[float] | None, count: int) -> Array:
    array = np.ones(count) if weights is None else np.asarray(weights)
    fine = array.shape == (count,) and array.dtype.kind in "iuf" and np.isfinite(array).all()
    if not fine or (array < 0).any() or array.sum() <= 0:
        raise BadInput(f"weights = {weights!r}; expected {count} numbers, 0 or more, not all 0")
    return _frozen(array / array.sum())


def _frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array
