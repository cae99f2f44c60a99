"""Exact values of games against memory-1 opponents.

Against such an opponent the last outcome is the whole state, so a game is a small decision process: five states, two
moves. A policy is five chances to cooperate: in the first round and after CC, CD, DC, DD, own move first. A value is
the expected sum of payoffs of one game; divide by `rules.expected_rounds` for a payoff per round.

`breed_pool` lets memory-1 strategies on a grid play each other; those that earn more become more frequent. Replicator
dynamics with mutation, in discrete generations: a strategy's share x becomes

    x' ∝ (1 − mutation) · x · exp(selection · payoff per round against the population) + mutation / strategies

The exponential form allows payoffs of any sign and approaches the replicator equation for small `selection`.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.games.ipd.ipd_rules import OTHER_SIDE, Rules
from drl.games.ipd.opponents import OnePlayer, Opponents, Pool, as_pool

START = 0  # the first state; state 1 + o follows outcome o
RANDOM_STARTS, ITERATIONS = 32, 3000  # in the search for a memory-1 reply


@dataclass(frozen=True, eq=False)
class BestResponse:
    """The best reply to one opponent; no policy of any kind is better."""

    value: float  # of a game
    values: Array  # [5] from each state on; with a fixed number of rounds [rounds, 5]
    policy: Array  # moves, shaped like values: stationary if games end by chance, else one row per round


def policy_values(policy: ArrayLike, opponents: Opponents, rules: Rules | None = None) -> Array:
    """Value of memory-1 policies [..., 5] against each of K opponents: [..., K].

    >>> policy_values([1, 1, 1, 1, 1], ["always_defect", "tit_for_tat"], Rules(rounds=10)).tolist()
    [0.0, 30.0]
    """
    rules, pool = rules or Rules(), as_pool(opponents)
    policy = checked_policy(policy)
    steps = _outcome_chances(policy[..., None, :], pool.table)  # [..., K, 5, 4]
    payoffs = np.array(rules.payoffs)
    if rules.survival is not None:
        return _survival_values(steps, rules)[..., START]
    reach, total = steps[..., START, :], np.zeros(steps.shape[:-2])
    for played in range(rules.rounds or 0):
        reach = reach if played == 0 else (reach[..., None, :] @ steps[..., 1:, :])[..., 0, :]
        total = total + reach @ payoffs
    return total


def pool_value(policy: ArrayLike, opponents: Opponents, rules: Rules | None = None) -> Array | np.float64:
    """Value of memory-1 policies [..., 5] against a pool, with one opponent drawn per game: [...]."""
    pool = as_pool(opponents)
    return policy_values(policy, pool, rules) @ pool.weights


def best_response(opponent: Pool | OnePlayer, rules: Rules | None = None) -> BestResponse:
    """Find the best reply to one known memory-1 opponent, by policy iteration or backward from the last fixed round.
    Ties go to cooperation.

    >>> reply = best_response("tit_for_tat")
    >>> round(reply.value, 9), reply.policy.tolist()
    (60.0, [1, 1, 1, 1, 1])
    """
    rules, pool = rules or Rules(), as_pool(opponent)
    if len(pool) != 1:
        raise BadInput(f"got {len(pool)} opponents; best_response is for one, upper_bound for a pool")
    chance = pool.table[0]
    if rules.survival is None:
        values, policies = [np.zeros(5)], list[Array]()
        for _ in range(rules.rounds or 0):
            moves = _move_values(chance, values[0][1:], rules)
            values.insert(0, moves.max(axis=1))
            policies.insert(0, _better(moves))
        return BestResponse(float(values[0][START]), np.array(values[:-1]), np.array(policies))
    policy = np.ones(5, np.int64)
    while True:  # ends: each policy is better than the last, and there are 32
        state_values = _survival_values(_outcome_chances(policy.astype(float), chance), rules)
        moves = _move_values(chance, rules.survival * state_values[1:], rules)
        better = np.where(moves.max(axis=1) > state_values + 1e-9, _better(moves), policy)
        if (better == policy).all():
            return BestResponse(float(state_values[START]), state_values, _better(moves))
        policy = better


def upper_bound(opponents: Opponents, rules: Rules | None = None) -> float:
    """Value of the best play by a player that knows the opponent: an upper bound for all players."""
    pool = as_pool(opponents)
    return float(pool.weights @ [best_response(row[None], rules).value for row in pool.table])


def best_memory_one_reply(opponents: Opponents, rules: Rules | None = None) -> tuple[Array, float]:
    """The best memory-1 policy found against a pool, and its exact value.

    The value is a smooth function of five probabilities and can have several maxima. Projected gradient ascent with
    exact gradients starts from all 32 deterministic policies, from a point near each and from 32 random ones. The
    returned value is exact, and no deterministic memory-1 policy is better. That no other memory-1 policy is better is
    likely, not proven.
    """
    rules, pool = rules or Rules(), as_pool(opponents)
    corners = np.array(list(itertools.product((0.0, 1.0), repeat=5)))
    # Also start near the corners: at a corner the gradient can vanish because a state is never reached.
    starts = np.concatenate([corners, 0.1 + 0.8 * corners, np.random.default_rng(0).random((RANDOM_STARTS, 5))])
    policies, values = _ascend(starts, pool, rules)
    best = int(values.argmax())
    return policies[best], float(values[best])


def checked_policy(policy: ArrayLike) -> Array:
    """Memory-1 policies [..., 5] as an array, or a clear error."""
    array = np.asarray(policy, np.float64)
    if array.shape[-1:] != (5,) or not ((array >= 0) & (array <= 1)).all():
        raise BadInput(f"policy = {policy!r}; expected five probabilities: first round, after CC, CD, DC, DD")
    return array


def _outcome_chances(policy: Array, opponent: Array) -> Array:
    """Chance of CC, CD, DC, DD in each state: [..., 5, 4]. Each table is from its own player's side."""
    mine, other = policy, opponent[..., OTHER_SIDE]
    return np.stack([mine * other, mine * (1 - other), (1 - mine) * other, (1 - mine) * (1 - other)], axis=-1)


def _survival_values(steps: Array, rules: Rules) -> Array:
    """Values [..., 5] of the states: V = P (payoffs + survival · V after the outcome), a linear system."""
    inner = np.eye(4) - rules.survival * steps[..., 1:, :]
    gain = steps[..., 1:, :] @ np.array(rules.payoffs)
    after = np.linalg.solve(inner, gain[..., None])[..., 0]  # [..., 4]
    first = steps[..., START, :]
    start = (first * (np.array(rules.payoffs) + rules.survival * after)).sum(axis=-1)
    return np.concatenate([start[..., None], after], axis=-1)


def _move_values(opponent: Array, future: Array, rules: Rules) -> Array:
    """Value of defecting (column 0) and cooperating (column 1) in each state: [..., 5, 2], given the value of the
    rest of the game after each outcome [..., 4]."""
    other = opponent[..., OTHER_SIDE]  # [..., 5]
    worth = (np.array(rules.payoffs) + future)[..., None, :]  # [..., 1, 4]
    cooperate = other * worth[..., 0] + (1 - other) * worth[..., 1]
    defect = other * worth[..., 2] + (1 - other) * worth[..., 3]
    return np.stack([defect, cooperate], axis=-1)


def _better(moves: Array) -> Array:
    return (moves[..., 1] >= moves[..., 0] - 1e-9).astype(np.int64)


def _value_and_gradient(policy: Array, pool: Pool, rules: Rules) -> tuple[Array, Array]:
    """Value [B] against the pool and its gradient [B, 5]: state visits times the gain of cooperating over defecting
    in it, summed over opponents."""
    table, payoffs = pool.table, np.array(rules.payoffs)
    steps = _outcome_chances(policy[:, None], table)  # [B, K, 5, 4]
    if rules.survival is not None:
        values = _survival_values(steps, rules)  # [B, K, 5]
        moves = _move_values(table, rules.survival * values[..., 1:], rules)
        flow = np.swapaxes(np.eye(4) - rules.survival * steps[..., 1:, :], -1, -2)
        visits = np.linalg.solve(flow, rules.survival * steps[..., START, :, None])[..., 0]  # [B, K, 4]
        visits = np.concatenate([np.ones((*visits.shape[:-1], 1)), visits], axis=-1)
        slope = visits * (moves[..., 1] - moves[..., 0])  # [B, K, 5]
        return values[..., START] @ pool.weights, np.einsum("bks,k->bs", slope, pool.weights)
    length = rules.rounds or 0
    reach = [np.broadcast_to(np.eye(5)[START], steps.shape[:-1])]  # chance of each state, round by round
    for _ in range(length - 1):
        following = (reach[-1][..., None, :] @ steps)[..., 0, :]
        reach.append(np.concatenate([np.zeros((*following.shape[:-1], 1)), following], axis=-1))
    values, slope = np.zeros(steps.shape[:-1]), np.zeros(steps.shape[:-1])
    for at in reversed(range(length)):
        moves = _move_values(table, values[..., 1:], rules)
        slope = slope + reach[at] * (moves[..., 1] - moves[..., 0])
        values = (steps * (payoffs + values[..., None, 1:])).sum(axis=-1)
    return values[..., START] @ pool.weights, np.einsum("bks,k->bs", slope, pool.weights)


def _ascend(policy: Array, pool: Pool, rules: Rules) -> tuple[Array, Array]:
    """Projected gradient ascent from every row at once. Each row has its own step length, which grows with success."""
    value, gradient = _value_and_gradient(policy, pool, rules)
    step = 0.1 / (np.abs(gradient).max(axis=1, keepdims=True) + 1e-12)
    for _ in range(ITERATIONS):
        trial = np.clip(policy + step * gradient, 0.0, 1.0)
        moving = (np.abs(trial - policy) > 1e-10).any(axis=1)
        if not moving.any():
            break
        trial_value, trial_gradient = _value_and_gradient(trial, pool, rules)
        better = (trial_value > value) & moving
        policy, gradient = np.where(better[:, None], trial, policy), np.where(better[:, None], trial_gradient, gradient)
        value = np.where(better, trial_value, value)
        step = np.where(better[:, None], 1.5 * step, 0.4 * step)
    return policy, value


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
    """Let a grid of memory-1 strategies compete, and return the survivors.

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
