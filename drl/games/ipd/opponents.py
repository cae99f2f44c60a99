"""Whom the agent meets: named memory-1 players, tables of them, players of the axelrod package, pools in files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

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
    "grim": (
        1,
        1,
        0,
        0,
        0,
    ),  # after its first defection its own last move always is one, and it answers both with another
    "zd_extort_2": (1, 8 / 9, 1 / 2, 1 / 3, 0),
    "zd_gtft_2": (1, 1, 1 / 8, 1, 1 / 4),
}
AXELROD = "axelrod:"  # before the name of a strategy of that package
POOL_FORMAT = 1


@dataclass(frozen=True, eq=False)
class Pool:
    """K opponents and how often each is met. Make one with `as_pool`.

    >>> pool = as_pool(["grim", [1, 1, 0, 1, 0]], weights=[3, 1])
    >>> pool.names, pool.weights.tolist(), pool.probs.shape
    (('grim', '1'), [0.75, 0.25], (2, 5))
    """

    names: tuple[str, ...]
    probs: Array  # [K, 5], from the opponent's side; NaN where it is no memory-1 player
    weights: Array  # [K], summing to 1
    strategies: tuple[type | None, ...]  # the class of a player of the axelrod package, None for memory-1 players

    def __len__(self) -> int:
        return len(self.names)

    @property
    def table(self) -> Array:
        """The memory-1 table, for exact values. Raises where an opponent has none."""
        for name, strategy in zip(self.names, self.strategies, strict=True):
            if strategy is not None:
                raise BadInput(f"opponent {name!r} is no memory-1 player; exact values exist for memory-1 players only")
        return self.probs

    def draw(self, uniform: Any) -> Any:
        """The opponent (index) that a uniform draw from [0, 1) stands for; also for arrays of draws."""
        return np.searchsorted(self._edges, uniform, side="right")

    @cached_property
    def _edges(self) -> Array:
        """Where one opponent's share of [0, 1) ends and the next one's begins; [K − 1]."""
        return np.cumsum(self.weights)[:-1]

    def save(self, path: str | Path) -> None:
        """Write the pool as JSON, in one piece."""
        players = [
            {"name": name, "weight": float(weight)} | ({} if strategy else {"cooperation": row.tolist()})
            for name, row, weight, strategy in zip(self.names, self.probs, self.weights, self.strategies, strict=True)
        ]
        write_json(Path(path), {"format": POOL_FORMAT, "players": players})


def as_pool(opponents: Any = "all", weights: Sequence[float] | None = None) -> Pool:
    """A pool from plain data, such as a config file or a command line holds.

    One opponent or a list of them, each a name (see `NAMED`), `axelrod:Name` or five cooperation probabilities; a dict
    of such opponents, by names of your own; a (K, 5) array; `all`: every named one; a file ending in `.json`; a Pool.
    """
    if isinstance(opponents, Pool):
        return opponents if weights is None else _pool(_entries(opponents), weights)
    if isinstance(opponents, str) and opponents.endswith(".json"):
        return load_pool(opponents, weights)
    if isinstance(opponents, str):
        opponents = list(NAMED) if opponents == "all" else [opponents]
    if isinstance(opponents, np.ndarray):
        opponents = opponents.tolist()
    if isinstance(opponents, list | tuple) and opponents and all(isinstance(p, int | float) for p in opponents):
        opponents = [opponents]  # one row
    if isinstance(opponents, Mapping):
        return _pool([(str(name), given) for name, given in opponents.items()], weights)
    if not isinstance(opponents, list | tuple) or not opponents:
        raise BadInput(f"opponents = {opponents!r}; expected names, rows of five probabilities, or a .json file")
    return _pool([(given if isinstance(given, str) else str(i), given) for i, given in enumerate(opponents)], weights)


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


def _entries(pool: Pool) -> list[tuple[str, Any]]:
    return [
        (name, row.tolist() if strategy is None else name)
        for name, row, strategy in zip(pool.names, pool.probs, pool.strategies, strict=True)
    ]


def _pool(entries: Sequence[tuple[str, Any]], weights: Sequence[float] | None) -> Pool:
    if not entries:
        raise BadInput("a pool without opponents; give at least one")
    names = tuple(name for name, _ in entries)
    if len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise BadInput(f"opponents are named {list(names)!r}; expected a different name for each")
    found = [_player(name, given) for name, given in entries]
    probs = np.array([row for row, _ in found], np.float64)
    return Pool(names, _frozen(probs), _checked_weights(weights, len(names)), tuple(strategy for _, strategy in found))


def _player(name: str, given: Any) -> tuple[Sequence[float], type | None]:
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
    numbers = isinstance(row, list | tuple) and all(isinstance(p, int | float) and 0 <= p <= 1 for p in row)
    if not numbers or len(row) != 5:
        raise BadInput(
            f"opponent {name!r} is {given!r}; expected five probabilities: to cooperate first and after CC, CD, DC, DD"
        )
    return row, None


def _checked_weights(weights: Any, count: int) -> Array:
    array = np.ones(count) if weights is None else np.asarray(weights)
    fine = array.shape == (count,) and array.dtype.kind in "iuf" and np.isfinite(array).all()
    if not fine or (array < 0).any() or array.sum() <= 0:
        raise BadInput(f"weights = {weights!r}; expected {count} numbers, 0 or more, not all 0")
    return _frozen(array / array.sum())


def _frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array
