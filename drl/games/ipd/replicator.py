"""Breeds a pool: memory-1 strategies on a grid play each other, and those that earn more become more frequent.

Replicator dynamics with mutation, in discrete generations: a strategy's share x becomes

    x' ∝ (1 − mutation) · x · exp(selection · payoff per round against the population) + mutation / strategies

The exponential form allows payoffs of any sign and approaches the replicator equation for small `selection`.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.games.ipd.exact_values import policy_values
from drl.games.ipd.ipd_rules import Rules
from drl.games.ipd.opponents import Pool, as_pool

MOST_STRATEGIES = 1100  # all pairs are solved: 1024 strategies (four levels) take seconds


@dataclass(frozen=True, kw_only=True)
class Breeding:
    """Settings of an evolution."""

    levels: Sequence[float] = (0.0, 0.5, 1.0)  # cooperation probabilities of the grid; it has levels⁵ strategies
    generations: int = 500
    selection: float = 0.5  # weight of the payoff per round
    mutation: float = 1e-3  # share of each generation replaced by random strategies of the grid
    least_share: float = 0.01  # strategies rarer than this at the end are left out of the pool

    def __post_init__(self) -> None:
        levels = list(self.levels)
        if not levels or len(set(levels)) < len(levels) or not all(0 <= level <= 1 for level in levels):
            raise BadInput(f"levels = {self.levels!r}; expected different probabilities, such as [0, 0.5, 1]")
        if len(levels) ** 5 > MOST_STRATEGIES:
            raise BadInput(f"{len(levels)} levels make {len(levels) ** 5} strategies; expected at most 4 levels")
        if self.generations < 1 or self.selection <= 0:
            raise BadInput(
                f"generations = {self.generations!r}, selection = {self.selection!r}; expected at least 1, above 0"
            )
        if not 0 <= self.mutation < 1 or not 0 <= self.least_share < 1:
            raise BadInput(f"mutation = {self.mutation}, least_share = {self.least_share}; expected 0 to below 1")


@dataclass(frozen=True, eq=False)
class Bred:
    """The result of an evolution."""

    pool: Pool  # the survivors, weighted by their shares
    shares: Array  # [generations + 1, strategies] of the whole grid
    payoffs: Array  # [generations + 1] mean payoff per round of the population


def breed_pool(breeding: Breeding | None = None, rules: Rules | None = None) -> Bred:
    """Let a grid of memory-1 strategies compete and keep the survivors.

    >>> bred = breed_pool(Breeding(levels=(0, 1), generations=200))
    >>> bred.shares.shape, len(bred.pool) < 32
    ((201, 32), True)
    """
    breeding, rules = breeding or Breeding(), rules or Rules()
    grid = np.array(list(itertools.product(breeding.levels, repeat=5)), np.float64)
    payoffs = payoff_matrix(grid, rules)
    shares, means = [np.full(len(grid), 1 / len(grid))], []
    for _ in range(breeding.generations):
        earned = payoffs @ shares[-1]
        means.append(float(shares[-1] @ earned))
        grown = shares[-1] * np.exp(breeding.selection * (earned - earned.max()))  # the largest factor is 1
        shares.append((1 - breeding.mutation) * grown / grown.sum() + breeding.mutation / len(grid))
    means.append(float(shares[-1] @ payoffs @ shares[-1]))
    survivors = np.flatnonzero(shares[-1] >= breeding.least_share)
    if not len(survivors):
        raise BadInput(f"no strategy reached least_share = {breeding.least_share}; lower it, or breed for longer")
    survivors = survivors[np.argsort(-shares[-1][survivors], kind="stable")]
    named = {strategy_name(grid[i]): grid[i].tolist() for i in survivors}
    return Bred(as_pool(named, shares[-1][survivors].tolist()), np.array(shares), np.array(means))


def payoff_matrix(table: Array, rules: Rules) -> Array:
    """Mean payoff per round of each strategy (row) against each (column)."""
    return np.stack([policy_values(row, table, rules) for row in table]) / rules.expected_rounds


def strategy_name(probs: Array) -> str:
    """
    >>> strategy_name(np.array([1, 1, 0.5, 0, 1 / 3]))
    'm1_1_1_0.5_0_0.333'
    """
    return "m1_" + "_".join(f"{p:.3g}" for p in probs)
