"""MovieRec: keep a viewer watching. Importing this registers nothing; see `drl.envs.registry`."""

from drl.envs.movie_rec.environment import MovieRecEnv
from drl.envs.movie_rec.rules import CATALOGUE, PERSONAS, Persona, Rules
from drl.envs.movie_rec.vector_environment import MovieRecVectorEnv

__all__ = ["CATALOGUE", "PERSONAS", "MovieRecEnv", "MovieRecVectorEnv", "Persona", "Rules"]
