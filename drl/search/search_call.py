"""`drl.search("ppo", env=…)`: what the command `drl search` does, in one call."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Unpack

from drl.algorithms.search_dimensions import Choice, Dimension, Real, Space
from drl.core.errors import BadInput
from drl.core.setting_rules import plain_setting
from drl.core.settings import AlgorithmName, SearchSettings
from drl.core.specs import PlainValue
from drl.envs.env_config import EnvLike
from drl.envs.env_names import WrapperLike
from drl.envs.spaces import EnvKwargs
from drl.search.run_search import SearchResult
from drl.search.run_search import search as run
from drl.search.search_plan import SearchConfig
from drl.settings.layering import env_settings

OWN = {field.name for field in dataclasses.fields(SearchConfig)} - {"env"}


def search(
    algorithm: AlgorithmName = "ppo",
    env: EnvLike = "CartPole-v1",
    *,
    env_kwargs: EnvKwargs | None = None,
    wrappers: Iterable[WrapperLike] | None = None,
    search_space: Mapping[str, Dimension | list[PlainValue]] | None = None,
    preset: bool = True,
    console: bool = True,
    **settings: Unpack[SearchSettings],
) -> SearchResult:
    """Search, or continue a search. `settings` are those of `drl search` (`n_trials`, …) and those of the run, which
    stay fixed; for a setting that is searched they are the starting point.

    `search_space` replaces the algorithm's: by the name of a setting a `Real(low, high)`, drawn on a logarithmic scale,
    or a list of values. `console=False` prints nothing.
    """
    given = {name: plain_setting(value) for name, value in settings.items()}
    own = {name: given.pop(name) for name in OWN & given.keys()}
    described = env_settings(env, env_kwargs, wrappers)
    config = SearchConfig(env=described.pop("env"), **own)
    space = _dimensions(search_space)
    result = run(algorithm, config, described | given, use_preset=preset, space=space, console=console)
    if result.status != "finished" and console and not config.quiet:
        print(f"resume: the same drl.search(…) continues {result.folder}", flush=True)
    return result


def _dimensions(space: Mapping[str, Dimension | list[PlainValue]] | None) -> Space | None:
    if space is None:
        return None
    made = {name: Choice(tuple(each)) if isinstance(each, list) else each for name, each in space.items()}
    for name, each in made.items():
        if not isinstance(each, Real | Choice) or (isinstance(each, Choice) and not each.options):
            raise BadInput(f"search_space has {name}: {each!r:.80}; expected Real(low, high) or a list of values")
    return made
