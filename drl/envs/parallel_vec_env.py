"""Games of several agents who act at the same time: PettingZoo's parallel API, by name and by object.

`ParallelVecEnv` has a row for each agent of each copy: one policy plays all of them (parameter sharing).
"""

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, final

import numpy as np

from drl.core.contracts import EnvChange, VecEnv, VecStep
from drl.core.errors import BadInput, MissingExtra, did_you_mean
from drl.core.log import Change
from drl.core.specs import ActionSpec, Array, EnvValue, ObsSpec, RawObs
from drl.core.state_files import StateDict
from drl.envs.env_attributes import (
    Changes,
    call_on,
    check_set,
    get_from,
    own_copy,
    replayed,
    set_before,
    set_on,
)
from drl.envs.env_names import FoundWrapper, import_for, is_installed
from drl.envs.episode_stats import EpisodeStats, numbers_in, success_in
from drl.envs.faults import checked, checked_info, close_anyway, make_all, reason
from drl.envs.spaces import EnvKwargs, GymSpace, Info, action_spec, obs_spec, read_mask

PREFIX = "pettingzoo:"
FAMILIES = ("atari", "butterfly", "classic", "sisl")  # folders of the package `pettingzoo`
PADDING = {"observations": "supersuit:pad_observations_v0", "actions": "supersuit:pad_action_space_v0"}  # wrappers


class ParallelGame(Protocol):
    """PettingZoo's `ParallelEnv`, as far as it is used here."""

    possible_agents: list[str]
    agents: list[str]  # those who act next
    metadata: Info
    render_mode: str | None

    def observation_space(self, agent: str) -> GymSpace:
        """Of one agent."""

    def action_space(self, agent: str) -> GymSpace:
        """Of one agent."""

    def reset(self, seed: int | None = None) -> tuple[dict[str, RawObs], dict[str, Info]]: ...
    def step(self, actions: dict[str, object]) -> tuple[
        dict[str, RawObs], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Info]
    ]: ...  # fmt: skip
    def render(self) -> Any:
        """A picture of the game."""

    def close(self) -> None: ...


class SeveralAgents(BadInput):
    """A game of several agents where one Gymnasium environment is expected."""

    def __init__(self, name: str):
        super().__init__(f"{name} is a game of several agents; expected an environment with one agent (Gymnasium)")


def game_module(env_id: str) -> str:
    """The module of `pettingzoo:NAME`: NAME, below `pettingzoo` if it is one of its families. Its `mpe` is `mpe2` now.

    >>> game_module("pettingzoo:butterfly.pistonball_v6"), game_module("pettingzoo:mpe2.simple_spread_v3")
    ('pettingzoo.butterfly.pistonball_v6', 'mpe2.simple_spread_v3')
    """
    name = re.sub(r"^mpe\.", "mpe2.", env_id.removeprefix(PREFIX))
    return f"pettingzoo.{name}" if name.partition(".")[0] in FAMILIES else name


def find_game(env_id: str) -> Callable[..., object]:
    """The function that makes the game `pettingzoo:NAME`: its module's `parallel_env`, else `env`."""
    if not is_installed("pettingzoo"):  # a file of this name in the current folder
        raise BadInput(
            f"{env_id!r} needs the installed package pettingzoo, but another module of its name is in the way"
        )
    try:
        importlib.import_module("pettingzoo")
    except ImportError as error:
        raise MissingExtra(f"environment {env_id!r}", "pettingzoo", error) from error
    module = game_module(env_id)
    try:
        found = import_for(f"{module}:parallel_env")
    except BadInput as error:
        raise _cannot_import(env_id, module, error.__cause__) from error
    make = getattr(found, "parallel_env", None) or getattr(found, "env", None)
    if not callable(make):
        raise BadInput(f"{module} has no parallel_env; expected a module with a function parallel_env(render_mode=…)")
    return make


def _cannot_import(env_id: str, module: str, error: BaseException | None) -> BadInput:
    missing = error.name or "" if isinstance(error, ImportError) else ""
    package, _, last = module.rpartition(".")
    if missing in ("mpe2", "pygame"):
        return MissingExtra(f"environment {env_id!r}", "pettingzoo", missing)
    if missing and not module.startswith(missing) and module.startswith("pettingzoo."):
        needs = f"pip install 'pettingzoo[{module.split('.')[1]}]'"
        return BadInput(f"environment {env_id!r} needs the module {missing!r}; install it with: {needs}")
    said = f"cannot import {module!r} for {env_id!r}: {'' if error is None else reason(error)}"
    known = _games_in(package)
    return BadInput(f"{said}; {did_you_mean(last, known)}" if known else said)


def _games_in(package: str) -> list[str]:
    """Names of the modules of a package that are games of PettingZoo."""
    found = sys.modules.get(package)
    names = (module.name for module in pkgutil.iter_modules(getattr(found, "__path__", [])))
    return [name for name in names if re.search(r"_v\d+$", name)]


def is_game(env: object) -> bool:
    """Whether an object is an environment of PettingZoo."""
    library = sys.modules.get("pettingzoo")
    return library is not None and isinstance(env, library.ParallelEnv | library.AECEnv)


def as_parallel(env: object, name: str) -> ParallelGame:
    """A game in which all agents act at once. PettingZoo converts those in turns, if these say that they allow it."""
    library = sys.modules.get("pettingzoo")
    if library is None or not is_game(env):
        raise BadInput(f"{name} gave {type(env).__name__}; expected a ParallelEnv of PettingZoo")
    if isinstance(env, library.ParallelEnv):
        return env
    if not env.metadata.get("is_parallelizable"):  # type: ignore[attr-defined]
        raise BadInput(
            f"{name} is played in turns (PettingZoo's AEC API); expected a game in which all agents act at once, "
            "such as pettingzoo:mpe2.simple_spread_v3"
        )
    from pettingzoo.utils.conversions import aec_to_parallel

    return aec_to_parallel(env)


def make_game(
    call: Callable[[], object], name: str, env_kwargs: EnvKwargs, wrappers: Iterable[FoundWrapper]
) -> ParallelGame:
    """A game with its wrappers around it, which take and give a `ParallelEnv`."""
    try:
        game = as_parallel(call(), name)
    except BadInput:
        raise
    except BaseException as error:
        raise BadInput(f"cannot make {name!r} with env_kwargs={env_kwargs}: {reason(error)}") from error
    for wrapper in wrappers:
        game = as_parallel(wrapper(game), f"the wrapper {wrapper.name!r}")
    return game


@final
class ParallelVecEnv(VecEnv):
    """M copies of a game of A agents as M · A rows; row c · A + a is agent a of copy c.

    A copy begins its next game as soon as no agent of it is left. Until then the rows of agents who are out, or not in
    yet, have `valid` False: their actions are not taken. An episode is the part of a game that one agent is in.
    """

    action_spec: ActionSpec
    obs_spec: ObsSpec

    vectorization = "parallel"

    def __init__(self, game_fns: Sequence[Callable[[], ParallelGame]], seed: int, env_id: str, stream: str = "world"):
        self.games: list[ParallelGame] = make_all(game_fns, env_id)
        self.env_id = env_id
        try:
            self.agents: list[str] = _agents(self.games, env_id)
            self.obs_spec, self.action_spec = _shared_specs(self.games[0], self.agents, env_id)
        except BaseException:
            self._close_games()
            raise
        self.num_envs: int = len(self.games) * len(self.agents)
        self.stats: EpisodeStats = EpisodeStats(env_id, self.num_envs, seed, stream)
        self._changes = Changes(len(self.games))
        self.ended: Array = np.zeros(len(self.games), bool)  # copies whose game was over in the last step
        self._numbers = [-1] * len(self.games)  # of the running game of each copy, from 0
        self._played: list[list[Array]] = [[] for _ in self.games]  # [A, …] actions of each round of these
        self._alive = np.zeros(self.num_envs, bool)  # rows whose agent acts next
        self._closed = False

    def reset(self) -> Array:
        self.stats.begin()
        obs, masks = np.zeros((self.num_envs, *self.obs_spec.shape), self.obs_spec.dtype), self._no_masks()
        for copy in range(len(self.games)):
            self._begin(copy, obs, masks)
        self.stats.obs = obs
        self.stats.check_obs(obs, self.obs_spec)
        has_masks = any(mask is not None for mask in masks)
        self.action_mask = self.stats.action_mask = self._stacked(masks) if has_masks else None
        return obs

    def step(self, action: Array) -> VecStep:
        stats = self.stats
        stats.check_action(action)
        assert stats.obs is not None
        valid, alive = self._alive.copy(), np.zeros(self.num_envs, bool)
        next_obs, masks = stats.obs.copy(), self._no_masks()
        reward, died, cut = np.zeros(self.num_envs), np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        infos: dict[int, Info] = {}  # of the rows that acted
        rounds = self._by_copy(action)
        for copy, game in enumerate(self.games):
            try:
                acting = self._names(self._alive, copy)
                seen, rewards, terminated, truncated, told = game.step(self._moves(acting, rounds[copy]))
                living = _living(game, terminated, truncated)
                for row, name in self._rows(copy):
                    info = told.get(name, {})
                    if name in acting:
                        reward[row], died[row], cut[row] = checked(
                            rewards[name], terminated[name], truncated[name], info
                        )
                        infos[row] = info
                        if name not in living and not (died[row] or cut[row]):
                            raise BadInput(f"the agent {name!r} left the game, neither terminated nor truncated")
                    alive[row] = name in living
                    if alive[row] or (name in acting and (name in seen or not died[row])):
                        next_obs[row], masks[row] = self._encode(seen, name), read_mask(seen[name], info)
            except BaseException as error:
                raise stats.failed(error, copy) from error
        cut &= ~died
        stats.add(reward, valid)
        stats.check_obs(next_obs, self.obs_spec)
        for played, moves in zip(self._played, rounds, strict=True):
            played.append(np.array(moves))
        ends = np.flatnonzero(died | cut).tolist()
        episodes = [stats.finish(row, bool(died[row]), success_in(infos[row]), numbers_in(infos[row])) for row in ends]
        next_mask = None
        if self.action_mask is not None:
            next_mask = stats.masks(masks, self.action_spec, successors=np.flatnonzero(~alive))
        self._alive = alive
        stats.obs = self._restart(next_obs, masks)
        if self.action_mask is not None:
            self.action_mask = stats.action_mask = self._stacked(masks)
        return VecStep(
            reward.astype(np.float32), died, cut, next_obs, stats.obs, valid, episodes, self.action_mask, next_mask
        )

    def _restart(self, next_obs: Array, masks: list[object]) -> Array:
        """Begin the next game of each copy that no agent is left in; what to act on next."""
        self.ended = np.array([not alive.any() for alive in self._by_copy(self._alive)])
        if not self.ended.any():
            return next_obs
        obs = next_obs.copy()
        for copy in np.flatnonzero(self.ended).tolist():
            self._begin(copy, obs, masks)
        self.stats.check_obs(obs, self.obs_spec)
        return obs

    def _begin(self, copy: int, obs: Array, masks: list[object]) -> None:
        """Begin the next game of a copy; write the first observations and masks of its agents."""
        self._numbers[copy] += 1
        self._played[copy] = []
        self._changes.begin(copy)
        game = self.games[copy]
        try:
            seen, infos = game.reset(seed=self._seed(copy))
            checked_info(infos)
            living = _living(game)
            if not living:
                raise BadInput("no agent is in the game after reset")
            for row, name in self._rows(copy):
                self._alive[row] = name in living
                masks[row] = None
                if name in living:
                    obs[row], masks[row] = self._encode(seen, name), read_mask(seen[name], infos.get(name, {}))
        except BaseException as error:
            raise self.stats.failed(error, copy) from error

    def _seed(self, copy: int) -> int:
        return self.stats.seeds[copy](self._numbers[copy])

    def _rows(self, copy: int) -> list[tuple[int, str]]:
        """The row and the name of every agent of a copy."""
        return list(enumerate(self.agents, start=copy * len(self.agents)))

    def _names(self, rows: Array, copy: int) -> list[str]:
        """The agents of a copy whose row is True."""
        return [name for row, name in self._rows(copy) if rows[row]]

    def _by_copy(self, rows: Array) -> list[Array]:
        """Rows of all agents as an array `[A, …]` for each copy."""
        return list(rows.reshape(len(self.games), len(self.agents), *rows.shape[1:]))

    def _moves(self, acting: Collection[str], moves: Array) -> dict[str, object]:
        plain = moves.tolist() if moves.ndim == 1 else moves
        return {name: move for name, move in zip(self.agents, plain, strict=True) if name in acting}

    def _encode(self, seen: dict[str, object], name: str) -> Array:
        if name not in seen:
            raise BadInput(f"it gave no observation of the agent {name!r}")
        return self.obs_spec.encode_one(seen[name])

    def _no_masks(self) -> list[object]:
        return [None] * self.num_envs

    def _stacked(self, masks: list[object]) -> Array | None:
        """Masks to act with; rows whose actions are not taken may do anything."""
        anything = np.ones(self.action_spec.num_choices, bool)
        filled = [mask if alive else anything for mask, alive in zip(masks, self._alive, strict=True)]
        return self.stats.masks(filled, self.action_spec)

    def render(self) -> object:
        """What the first copy draws."""
        return self.games[0].render()

    def repeats(self, env_steps: int) -> bool:
        return self.stats.env_steps == env_steps

    def state_dict(self) -> StateDict:
        games = {"numbers": list(self._numbers), "actions": [np.array(played) for played in self._played]}
        changes = self._changes.state_dict(self.stats.tick)
        return self.stats.state_dict() | {"alive": self._alive.copy(), "games": games, "game_changes": changes}

    def load_state_dict(self, state: StateDict) -> str | None:
        self.stats.load_state_dict(state)
        self.action_mask = self.stats.action_mask
        self._alive = np.array(state["alive"], bool)
        self._numbers = [int(number) for number in state["games"]["numbers"]]
        self._played = [list(actions) for actions in state["games"]["actions"]]
        self._changes.load_state_dict(state["game_changes"])
        why = self._continued()
        if why is not None or self.stats.obs is None:
            for copy in range(len(self.games)):
                self._changes.set_all(partial(self._set, copy))
        return why

    def _continued(self) -> str | None:
        """Bring every copy back into its running game. Returns why that fails, if it does."""
        if (lost := self._changes.lost) is not None:
            return f"the copies of {self.env_id!r} cannot be changed again as they were: {lost}"
        if self.stats.obs is None:
            return None
        for copy, expected in enumerate(self._by_copy(self.stats.obs)):
            where = f"copy {copy} of {self.env_id!r}, played again with {len(self._played[copy])} rounds"
            try:
                shown = self._play_again(copy)
            except BaseException as error:
                return f"{where}, fails: {reason(error)}"
            seen = dict(zip(self.agents, expected, strict=True))
            alive = {name: seen[name].tobytes() for name in self._names(self._alive, copy)}
            if {name: obs.tobytes() for name, obs in shown.items()} != alive:
                return f"{where}, shows another observation than before"
        self.stats.begun = True
        return None

    def _play_again(self, copy: int) -> dict[str, Array]:
        """Bring a copy back into its running game; what its agents see there."""
        game, played = self.games[copy], self._played[copy]
        changes: tuple[Change, ...] = self._changes.of(copy, self.stats.tick - len(played))
        set_before(changes, partial(self._set, copy))
        seen, _ = game.reset(seed=self._seed(copy))
        living = _living(game)
        for moves in replayed(played, changes, partial(self._set, copy)):
            seen, _, *flags, _ = game.step(self._moves(living, moves))
            living = _living(game, *flags)
        return {name: self._encode(seen, name) for name in self.agents if name in living}

    def get(self, name: str) -> list[EnvValue]:
        return [get_from(game, name, self._where(copy)) for copy, game in enumerate(self.games)]

    def set(self, name: str, value: object) -> None:
        for copy, game in enumerate(self.games):
            check_set(game, name, value, self._where(copy))
        self._changes.add(EnvChange(name, value), self.stats.tick)
        for copy in range(len(self.games)):
            try:
                self._set(copy, name, own_copy(value))
            except BaseException as error:
                raise self.stats.failed(error, copy) from error

    def _set(self, copy: int, name: str, value: object) -> None:
        set_on(self.games[copy], name, value, self._where(copy))

    def call(self, name: str, /, *args: object, **kwargs: object) -> list[EnvValue]:
        answers = []
        for copy, game in enumerate(self.games):
            try:
                answers.append(call_on(game, name, (args, kwargs), self._where(copy)))
            except BadInput:
                raise
            except BaseException as error:
                raise self.stats.failed(error, copy) from error
        if all(answer is None for answer in answers):
            self._changes.add(EnvChange(name, None, (args, kwargs)), self.stats.tick)
        return answers

    @property
    def changes(self) -> list[EnvChange]:
        return self._changes.changes

    def _where(self, copy: int) -> str:
        return f"copy {copy} of {self.env_id!r}"

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._close_games()

    def _close_games(self) -> None:
        for game in self.games:
            close_anyway(game.close, self.env_id)


def _living(game: ParallelGame, *flags: dict[str, bool]) -> list[str]:
    """The agents who act next."""
    return [name for name in game.agents if not any(flag.get(name) for flag in flags)]


def _agents(games: Sequence[ParallelGame], env_id: str) -> list[str]:
    names = getattr(games[0], "possible_agents", None)
    if not names or any(list(game.possible_agents) != list(names) for game in games):
        raise BadInput(f"{env_id} has possible_agents = {names!r}; expected the same names in every copy of the game")
    return list(names)


def _shared_specs(game: ParallelGame, agents: list[str], env_id: str) -> tuple[ObsSpec, ActionSpec]:
    """The spaces that all agents have."""
    spaces = {name: (game.observation_space(name), game.action_space(name)) for name in agents}
    specs = {name: (obs_spec(seen), action_spec(acted)) for name, (seen, acted) in spaces.items()}
    first = agents[0]
    for part, (what, padding) in enumerate(PADDING.items()):
        other = next((name for name in agents if specs[name][part] != specs[first][part]), None)
        if other is not None:
            raise BadInput(
                f"one policy plays all agents of {env_id}, but their {what} differ: {first} has {spaces[first][part]}, "
                f"{other} has {spaces[other][part]}; make them equal: --wrapper {padding} (pip install supersuit)"
            )
    return specs[first]
