"""The rules of MovieRec as tables, shared by both environments and the exact solutions.

The tables hold integers: fatigue in tenths, satisfaction in fifths, click probabilities in hundredths. One division
turns them into floats at the end, so rounding errors do not add up and churn happens exactly at its threshold.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import overload

import numpy as np

from drl.core.errors import BadInput
from drl.core.specs import Array

CHURN_TENTHS = 10  # at this fatigue a viewer leaves
RELIEF_TENTHS = 1  # a click reduces fatigue by this
BOREDOM_TENTHS = 2  # a miss increases fatigue by this
SATISFIED_FIFTHS = 5  # the observed satisfaction stops growing here; a click adds one fifth
# Click probability, in hundredths.
NEUTRAL, PER_LIKED, PER_HATED, PER_TENTH, LEAST, MOST = 30, 30, 20, 5, 5, 95


@dataclass(frozen=True)
class Persona:
    """A kind of viewer. Other genres than those liked or hated have no effect."""

    name: str
    likes: tuple[str, ...] = ()
    hates: tuple[str, ...] = ()


CATALOGUE: tuple[tuple[str, ...], ...] = (
    ("Action", "Adventure"),  # 0
    ("Action", "Thriller"),
    ("Sci-Fi", "Adventure"),
    ("Sci-Fi", "IMAX"),
    ("Comedy",),
    ("Comedy", "Romance"),  # 5
    ("Romance", "Drama"),
    ("Romance",),
    ("Horror", "Thriller"),
    ("Horror", "Mystery"),
    ("Drama",),  # 10
    ("Documentary",),
    ("Children", "Animation"),
    ("Action", "Comedy"),
    ("Sci-Fi", "Action"),
    ("Romance", "Comedy"),  # 15
    ("Action", "Drama"),
    ("Sci-Fi", "Drama"),
    ("Drama", "War"),
    ("Fantasy", "Adventure"),
)

PERSONAS: tuple[Persona, ...] = (
    Persona("action_fan", ("Action", "Adventure", "Sci-Fi"), ("Romance", "Documentary")),
    Persona("romance_lover", ("Romance", "Comedy", "Drama"), ("Horror", "Action", "War")),
    Persona("sci-fi_geek", ("Sci-Fi", "IMAX", "Mystery"), ("Comedy", "Children")),
)


@dataclass(frozen=True)
class MovieRecRules:
    """The settings of MovieRec, checked, and the tables computed from them.

    In shapes: P personas, M movies, G genres, F = 10 levels of fatigue (tenths) before churn.

    >>> rules = MovieRecRules()
    >>> len(rules.genres), rules.click_prob.shape
    (15, (3, 20, 10))
    >>> rules.click_prob[:, 14, 0].tolist()
    [0.9, 0.1, 0.6]
    """

    catalogue: Sequence[Sequence[str]] = CATALOGUE  # genres of each movie; a movie's id is its place
    personas: Sequence[Persona] = PERSONAS  # drawn uniformly at reset
    reward_click: float = 1.0
    reward_no_click: float = -0.2
    reward_churn: float = -10.0  # replaces the reward of the miss
    max_session_length: int = 20  # steps

    def __post_init__(self) -> None:
        object.__setattr__(self, "catalogue", _checked_catalogue(self.catalogue))
        object.__setattr__(self, "personas", _checked_personas(self.personas))
        for name in ("reward_click", "reward_no_click", "reward_churn"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
                raise BadInput(f"{name} = {value!r}; expected a finite number")
        length = self.max_session_length
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise BadInput(f"max_session_length = {length!r}; expected a whole number of steps, 1 or more")

    @cached_property
    def genres(self) -> tuple[str, ...]:
        """The genre index: all genres of the catalogue, sorted."""
        return tuple(sorted({genre for movie in self.catalogue for genre in movie}))

    @cached_property
    def membership(self) -> Array:
        """Which genres a movie has, as 0 and 1: [M, G]."""
        return np.array([[genre in movie for genre in self.genres] for movie in self.catalogue], np.int32)

    @cached_property
    def click_base(self) -> Array:
        """Click probability of a rested viewer before clipping, in hundredths: [P, M]."""
        likes = np.array([[genre in persona.likes for genre in self.genres] for persona in self.personas], np.int64)
        hates = np.array([[genre in persona.hates for genre in self.genres] for persona in self.personas], np.int64)
        return NEUTRAL + PER_LIKED * likes @ self.membership.T - PER_HATED * hates @ self.membership.T

    @cached_property
    def click_prob(self) -> Array:
        """[P, M, F]"""
        hundredths = self.click_base[:, :, None] - PER_TENTH * np.arange(CHURN_TENTHS)
        return np.clip(hundredths, LEAST, MOST) / 100

    @cached_property
    def fatigue_after(self) -> Array:
        """Tenths after a miss (row 0) and after a click (row 1): [2, F]. At `CHURN_TENTHS` the viewer leaves."""
        fatigue = np.arange(CHURN_TENTHS)
        return np.stack([fatigue + BOREDOM_TENTHS, np.maximum(fatigue - RELIEF_TENTHS, 0)])

    @cached_property
    def reward(self) -> Array:
        """Reward of a miss (row 0) and of a click (row 1): [2, F]."""
        plain = np.array([[self.reward_no_click], [self.reward_click]], np.float64)
        return np.where(self.fatigue_after >= CHURN_TENTHS, float(self.reward_churn), plain)

    @cached_property
    def scale(self) -> Array:
        """Units that make 1.0 in each entry of an observation: [G + 2]."""
        units = [SATISFIED_FIFTHS] * len(self.genres) + [CHURN_TENTHS, self.max_session_length]
        return np.array(units, np.int32)

    @overload
    def persona_of(self, uniform: float) -> np.int64: ...
    @overload
    def persona_of(self, uniform: Array) -> Array: ...
    def persona_of(self, uniform: float | Array) -> np.int64 | Array:
        """The index of the persona for a uniform draw from [0, 1), or for an array of draws."""
        return np.int64(uniform * len(self.personas))


def observe(counts: Array, scale: Array) -> Array:
    """Turns integers (fifths per genre, tenths, steps) [..., G + 2] into a new float32 observation in [0, 1]."""
    return np.divide(np.minimum(counts, scale), scale, dtype=np.float32)


def as_personas(given: Sequence[Persona] | Mapping[str, Mapping[str, Sequence[str]]]) -> Sequence[Persona]:
    """Personas from plain data, such as a config file.

    >>> as_personas({"night_owl": {"likes": ["Horror"]}})
    (Persona(name='night_owl', likes=('Horror',), hates=()),)
    """
    if not isinstance(given, Mapping):
        return given
    personas = []
    for name, taste in given.items():
        if not isinstance(taste, Mapping) or not set(taste) <= {"likes", "hates"}:
            raise BadInput(f"persona {name!r} is {taste!r}; expected {{'likes': [genres], 'hates': [genres]}}")
        likes = _checked_genres(f"likes of persona {name!r}", taste.get("likes", ()))
        personas.append(Persona(name, likes, _checked_genres(f"hates of persona {name!r}", taste.get("hates", ()))))
    return tuple(personas)


def _checked_catalogue(catalogue: object) -> tuple[tuple[str, ...], ...]:
    if not isinstance(catalogue, list | tuple) or not catalogue:
        raise BadInput(f"catalogue = {catalogue!r}; expected a list with one list of genres per movie")
    movies = tuple(_checked_genres(f"catalogue: movie {i}", genres) for i, genres in enumerate(catalogue))
    if () in movies:
        raise BadInput(f"catalogue: movie {movies.index(())} has no genre; give it at least one")
    return movies


def _checked_personas(personas: object) -> tuple[Persona, ...]:
    if not isinstance(personas, list | tuple) or not personas or not all(isinstance(p, Persona) for p in personas):
        raise BadInput(f"personas = {personas!r}; expected a list of Persona, or a dict of name → likes and hates")
    names = [persona.name for persona in personas]
    if len(set(names)) < len(names) or not all(isinstance(name, str) and name for name in names):
        raise BadInput(f"personas are named {names!r}; expected a different name, as text, for each")
    checked = []
    for persona in personas:
        likes = _checked_genres(f"likes of persona {persona.name!r}", persona.likes)
        hates = _checked_genres(f"hates of persona {persona.name!r}", persona.hates)
        if both := sorted(set(likes) & set(hates)):
            raise BadInput(f"persona {persona.name!r} both likes and hates {', '.join(both)}; choose one")
        checked.append(Persona(persona.name, likes, hates))
    return tuple(checked)


def _checked_genres(of: str, genres: object) -> tuple[str, ...]:
    if not isinstance(genres, list | tuple) or not all(isinstance(genre, str) and genre for genre in genres):
        raise BadInput(f"{of}: {genres!r}; expected a list of genre names, such as ['Drama', 'War']")
    if len(set(genres)) < len(genres):
        raise BadInput(f"{of}: {list(genres)!r} names a genre twice; once is enough")
    return tuple(genres)
