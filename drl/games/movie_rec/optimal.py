"""Exact values of MovieRec sessions, by dynamic programming over fatigue and step.

Satisfaction is observed but has no effect, so for a known persona (fatigue, step) is the whole state.

A policy that does not know the persona has bounds (`belief_bounds`). The state is the belief over personas, fatigue and
step. The value is convex in the belief, so linear interpolation on a grid never underestimates it: backing up
interpolated values gives an upper bound. The greedy policy on that grid is a real policy. Following all its histories
(each step branches into click and no click) gives its exact value, a lower bound. The optimal value lies between them.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.games.movie_rec.movie_rec_rules import CHURN_TENTHS, MovieRecRules

MOST_CELLS = 20_000  # largest grid; with three personas it takes about 200 MB
CHUNK = 4096  # beliefs evaluated at once
SAME_BELIEF = 12  # decimals at which two beliefs count as equal


def upper_bound(rules: MovieRecRules | None = None) -> float:
    """Expected return of the best policy that knows the persona: an upper bound for all policies.

    >>> round(upper_bound(MovieRecRules(max_session_length=1)), 9)  # one movie, 90 % liked: 0.9 · 1.0 + 0.1 · −0.2
    0.88
    """
    rules = rules or MovieRecRules()
    return float(_solve(rules, lambda q: q.max(axis=1))[:, 0, 0].mean())


def random_return(rules: MovieRecRules | None = None) -> float:
    """Expected return of recommending uniformly at random."""
    rules = rules or MovieRecRules()
    return float(_solve(rules, lambda q: q.mean(axis=1))[:, 0, 0].mean())


def constant_returns(rules: MovieRecRules | None = None) -> Array:
    """Expected return of always recommending the same movie, for each movie: [M]."""
    rules = rules or MovieRecRules()

    def always(movie: int) -> float:
        return float(_solve(rules, lambda q: q[:, movie])[:, 0, 0].mean())

    return np.array([always(movie) for movie in range(len(rules.catalogue))])


class PersonaOracle:
    """The best policy that knows the persona; its expected return is `upper_bound`.

    >>> oracle = PersonaOracle()
    >>> int(oracle.movies[0, 0, 0])  # the first movie for an action fan
    0
    """

    def __init__(self, rules: MovieRecRules | None = None):
        self.rules: MovieRecRules = rules or MovieRecRules()
        self.values: Array = _solve(self.rules, lambda q: q.max(axis=1))  # [P, L + 1, F], from a step on
        steps = range(self.rules.max_session_length)
        q = [movie_values(self.rules, self.values[:, step + 1]) for step in steps]
        # The smallest id of equally good movies; rounding keeps float errors from breaking ties.
        self.movies: Array = np.stack([np.round(values, 9).argmax(axis=1) for values in q], axis=1)  # [P, L, F]
        self._index = {persona.name: i for i, persona in enumerate(self.rules.personas)}

    def act(self, persona: str | Array, obs: ArrayLike) -> Array:
        """Best movies for personas (a name, or an array of names as in infos) and observations [..., G + 2]."""
        names = np.asarray(persona, object)
        if unknown := sorted(set(names.ravel().tolist()) - set(self._index)):
            raise BadInput(f"unknown persona {unknown[0]!r}; expected one of {', '.join(map(repr, self._index))}")
        who = np.vectorize(self._index.__getitem__, otypes=[np.int64])(names)
        array = np.asarray(obs)
        fatigue = np.rint(array[..., -2] * CHURN_TENTHS).astype(np.int64)
        step = np.rint(array[..., -1] * self.rules.max_session_length).astype(np.int64)
        return self.movies[who, step, fatigue]


def movie_values(rules: MovieRecRules, following: Array) -> Array:
    """Value of each movie at each level of fatigue: [P, M, F], given the values after the step [P, F]."""
    lives = rules.fatigue_after < CHURN_TENTHS  # [2, F]
    level = np.where(lives, rules.fatigue_after, 0)
    miss, click = (rules.reward[c] + np.where(lives[c], following[:, level[c]], 0.0) for c in (0, 1))  # [P, F]
    return rules.click_prob * click[:, None] + (1 - rules.click_prob) * miss[:, None]


def _solve(rules: MovieRecRules, choose: Callable[[Array], Array]) -> Array:
    """Values [P, L + 1, F] of a policy; `choose` maps movie values [P, M, F] to the value of its choice [P, F]."""
    length = rules.max_session_length
    values = np.zeros((len(rules.personas), length + 1, CHURN_TENTHS))
    for step in reversed(range(length)):
        values[:, step] = choose(movie_values(rules, values[:, step + 1]))
    return values


def belief_bounds(rules: MovieRecRules | None = None, resolution: int = 60) -> tuple[float, float]:
    """(lower, upper) bound of the expected return of the best policy that does not know the persona."""
    policy = BeliefPolicy(rules, resolution)
    return policy.expected_return(), policy.upper_bound


class BeliefPolicy:
    """Greedy on the interpolated values of a belief grid: close to optimal.

    >>> policy = BeliefPolicy(MovieRecRules(max_session_length=2), resolution=8)
    >>> int(policy.act(policy.prior[None], np.array([0]), step=0)[0]), policy.prior.round(2).tolist()
    (2, [0.33, 0.33, 0.33])
    """

    def __init__(self, rules: MovieRecRules | None = None, resolution: int = 60):
        self.rules: MovieRecRules = rules or MovieRecRules()
        count = len(self.rules.personas)
        if resolution < 1 or (resolution + 1) ** (count - 1) > MOST_CELLS:
            most = int(MOST_CELLS ** (1 / max(count - 1, 1))) - 1
            raise BadInput(f"resolution = {resolution!r}; expected 1 to {most} for {count} personas")
        self.resolution = resolution
        self.prior: Array = np.full(count, 1 / count)
        # Movies with equal click probabilities are one choice, represented by the smallest id.
        _, first = np.unique(self.rules.click_base, axis=1, return_index=True)
        self.choices: Array = np.sort(first)
        self.values: Array = self._solve()  # [L + 1, F, cells]
        self.upper_bound: float = float(self._choice_values(self.prior[None], np.array([0]), 0).max())

    def act(self, belief: Array, fatigue: Array, step: int) -> Array:
        """Movies [n] for beliefs [n, P] and fatigue in tenths [n]."""
        parts = [slice(i, i + CHUNK) for i in range(0, len(belief), CHUNK)]
        best = [self._choice_values(belief[part], fatigue[part], step).argmax(axis=1) for part in parts]
        return self.choices[np.concatenate(best)]

    def update(self, belief: Array, fatigue: Array, movie: Array, clicked: Array) -> Array:
        """Beliefs [n, P] after the outcomes `clicked` [n]; `fatigue` is the one before the step."""
        prob = self.rules.click_prob[:, movie, fatigue].T
        weight = belief * np.where(clicked[:, None], prob, 1 - prob)
        return weight / weight.sum(axis=1, keepdims=True)

    def expected_return(self) -> float:
        """The exact value: follows every history of clicks and merges those with the same belief."""
        rules = self.rules
        reach, belief, fatigue = np.ones(1), self.prior[None], np.zeros(1, np.int64)
        total = 0.0
        for step in range(rules.max_session_length):
            movie = self.act(belief, fatigue, step)
            prob = (belief * rules.click_prob[:, movie, fatigue].T).sum(axis=1)
            branches = []
            for clicked, chance in ((0, 1 - prob), (1, prob)):
                total += float((reach * chance * rules.reward[clicked, fatigue]).sum())
                posterior = self.update(belief, fatigue, movie, np.full(len(movie), bool(clicked)))
                branches.append((reach * chance, posterior, rules.fatigue_after[clicked, fatigue]))
            reach, belief, fatigue = (np.concatenate(parts) for parts in zip(*branches, strict=True))
            reach, belief, fatigue = _merged(*(part[fatigue < CHURN_TENTHS] for part in (reach, belief, fatigue)))
            if not len(reach):
                break
        return total

    def _solve(self) -> Array:
        rules, cells = self.rules, (self.resolution + 1) ** (len(self.prior) - 1)
        points, place = self._grid()
        values = np.zeros((rules.max_session_length + 1, CHURN_TENTHS, cells))
        # A grid point's posteriors do not depend on the step: compute them once.
        levels = [self._branches(points, np.full(len(points), f)) for f in range(CHURN_TENTHS)]
        for step in reversed(range(rules.max_session_length)):
            for fatigue, branches in enumerate(levels):
                values[step, fatigue, place] = _backup(branches, values[step + 1]).max(axis=1)
        return values

    def _choice_values(self, belief: Array, fatigue: Array, step: int) -> Array:
        return _backup(self._branches(belief, fatigue), self.values[step + 1])  # [n, choices]

    def _branches(self, belief: Array, fatigue: Array) -> list[tuple[Array, ...]]:
        """Of a miss and of a click: chance, reward, fatigue (all [n, choices]), cells and weights [n, choices, P]."""
        prob = self.rules.click_prob[:, self.choices][:, :, fatigue].transpose(2, 1, 0)  # [n, choices, P]
        branches: list[tuple[Array, ...]] = []
        for clicked, likelihood in ((0, 1 - prob), (1, prob)):
            joint = belief[:, None] * likelihood
            chance = joint.sum(axis=2)
            after = np.broadcast_to(self.rules.fatigue_after[clicked, fatigue][:, None], chance.shape)
            reward = np.broadcast_to(self.rules.reward[clicked, fatigue][:, None], chance.shape)
            branches.append((chance, reward, after, *self._corners(joint / chance[:, :, None])))
        return branches

    def _corners(self, belief: Array) -> tuple[Array, Array]:
        """The P grid points around each belief [..., P] and their weights (Freudenthal's triangulation).

        In the coordinates K · (belief in personas i and later), i = 1 … P − 1, grid points are whole and the simplex
        around a point follows from sorting the fractions: start at the floor and raise the largest fraction first.
        """
        size = belief.shape[-1] - 1
        tail = self.resolution * np.cumsum(belief[..., ::-1], axis=-1)[..., ::-1][..., 1:]
        tail = np.clip(np.round(tail, 9), 0, self.resolution)  # keeps rounding errors inside the grid
        floor = np.minimum(np.floor(tail), self.resolution).astype(np.int64)
        fraction = tail - floor
        order = np.argsort(-fraction, axis=-1, kind="stable")
        sorted_fraction = np.take_along_axis(fraction, order, axis=-1)
        edges = np.concatenate([np.ones_like(fraction[..., :1] if size else belief), sorted_fraction], axis=-1)
        weight = edges - np.concatenate([sorted_fraction, np.zeros_like(edges[..., :1])], axis=-1)
        stride = (self.resolution + 1) ** np.arange(size)
        start = (floor * stride).sum(axis=-1, keepdims=True)
        cell = start + np.concatenate([np.zeros_like(start), np.cumsum(stride[order], axis=-1)], axis=-1)
        # A corner of weight 0 may lie outside the grid; any cell will do.
        return np.where(weight > 0, cell, 0), weight

    def _grid(self) -> tuple[Array, Array]:
        """All beliefs in steps of 1 / resolution [n, P] and their cells [n]."""
        count, whole = len(self.prior), self.resolution
        bars = itertools.combinations(range(whole + count - 1), count - 1)
        edges = np.array([(-1, *bar, whole + count - 1) for bar in bars])
        parts = np.diff(edges, axis=1) - 1
        assert len(parts) == math.comb(whole + count - 1, count - 1)
        points = parts / whole
        cell, weight = self._corners(points)
        return points, np.take_along_axis(cell, weight.argmax(axis=-1)[:, None], axis=-1)[:, 0]


def _backup(branches: list[tuple[Array, ...]], following: Array) -> Array:
    """Value of each choice [n, choices], given the grid values after the step [F, cells]."""
    total = 0.0
    for chance, reward, after, cell, weight in branches:
        lives = after < CHURN_TENTHS
        future = (following[np.where(lives, after, 0)[:, :, None], cell] * weight).sum(axis=2)
        total = total + chance * (reward + np.where(lives, future, 0.0))
    return np.asarray(total)


def _merged(reach: Array, belief: Array, fatigue: Array) -> tuple[Array, Array, Array]:
    keys = np.column_stack([fatigue, np.round(belief, SAME_BELIEF)])
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return np.bincount(group.ravel(), reach), belief[first], fatigue[first]
