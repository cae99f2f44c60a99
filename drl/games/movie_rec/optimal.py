"""Exact values of MovieRec sessions, by dynamic programming over fatigue and step.

Satisfaction is observed but has no effect, so for a known persona (fatigue, step) is the whole state.
`hidden_persona.py` has the values for an unknown persona.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.games.movie_rec.movie_rec_rules import CHURN_TENTHS, Rules


def upper_bound(rules: Rules | None = None) -> float:
    """Expected return of the best policy that knows the persona: an upper bound for all policies.

    >>> round(upper_bound(Rules(max_session_length=1)), 9)  # one movie, 90 % liked: 0.9 · 1.0 + 0.1 · −0.2
    0.88
    """
    rules = rules or Rules()
    return float(_solve(rules, lambda q: q.max(axis=1))[:, 0, 0].mean())


def random_return(rules: Rules | None = None) -> float:
    """Expected return of recommending uniformly at random."""
    rules = rules or Rules()
    return float(_solve(rules, lambda q: q.mean(axis=1))[:, 0, 0].mean())


def constant_returns(rules: Rules | None = None) -> Array:
    """Expected return of always recommending the same movie, for each movie: [M]."""
    rules = rules or Rules()

    def always(movie: int) -> float:
        return float(_solve(rules, lambda q: q[:, movie])[:, 0, 0].mean())

    return np.array([always(movie) for movie in range(len(rules.catalogue))])


class PersonaOracle:
    """The best policy that knows the persona; its expected return is `upper_bound`.

    >>> oracle = PersonaOracle()
    >>> int(oracle.movies[0, 0, 0])  # the first movie for an action fan
    0
    """

    def __init__(self, rules: Rules | None = None):
        self.rules: Rules = rules or Rules()
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


def movie_values(rules: Rules, following: Array) -> Array:
    """Value of each movie at each level of fatigue: [P, M, F], given the values after the step [P, F]."""
    lives = rules.fatigue_after < CHURN_TENTHS  # [2, F]
    level = np.where(lives, rules.fatigue_after, 0)
    miss, click = (rules.reward[c] + np.where(lives[c], following[:, level[c]], 0.0) for c in (0, 1))  # [P, F]
    return rules.click_prob * click[:, None] + (1 - rules.click_prob) * miss[:, None]


def _solve(rules: Rules, choose: Callable[[Array], Array]) -> Array:
    """Values [P, L + 1, F] of a policy; `choose` maps movie values [P, M, F] to the value of its choice [P, F]."""
    length = rules.max_session_length
    values = np.zeros((len(rules.personas), length + 1, CHURN_TENTHS))
    for step in reversed(range(length)):
        values[:, step] = choose(movie_values(rules, values[:, step + 1]))
    return values
