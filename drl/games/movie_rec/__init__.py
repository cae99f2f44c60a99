"""MovieRec: keep a viewer watching. Importing this registers nothing; see `drl.games.registry`."""

from drl.games.movie_rec.movie_rec_env import MovieRecEnv
from drl.games.movie_rec.movie_rec_rules import CATALOGUE, PERSONAS, Persona, Rules
from drl.games.movie_rec.movie_rec_vector_env import MovieRecVectorEnv

__all__ = ["CATALOGUE", "PERSONAS", "MovieRecEnv", "MovieRecVectorEnv", "Persona", "Rules"]
