"""MovieRec: keep a viewer watching. Importing this registers nothing; see `drl.games.registry`."""

from drl.games.movie_rec.movie_rec_env import MovieRecEnv, MovieRecVectorEnv
from drl.games.movie_rec.movie_rec_rules import CATALOGUE, PERSONAS, MovieRecRules, Persona

__all__ = ["CATALOGUE", "PERSONAS", "MovieRecEnv", "MovieRecRules", "MovieRecVectorEnv", "Persona"]
