"""Games of several agents that act at the same time: PettingZoo's parallel API.

`ParallelVecEnv` has a row for each agent of each copy: one policy plays all of them (parameter sharing).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import final

import numpy as np

from drl.core.contracts import VecStep
from drl.core.errors import BadInput
from drl.core.log import Change
from drl.core.specs import ActionSpec, Array, ObsSpec
from drl.core.state_files import StateDict
from drl.envs.env_attributes import Changes, replayed, set_before
from drl.envs.env_names import FoundWrapper, ParallelGame, as_parallel
from drl.envs.episode_stats import CountedVecEnv, EpisodeStats, results_in
from drl.envs.faults import checked, checked_info, close_anyway, make_all, making, reason
from drl.envs.spaces import EnvKwargs, Info, action_spec, obs_spec, read_mask

PADDING = {"observations": "supersuit:pad_observations_v0", "actions": "supersuit:pad_action_space_v0"}  # wrappers


class SeveralAgents(BadInput):
    """A game of several agents where one Gymnasium environment is expected."""

    def __init__(self, name: str):
        super().__init__(f"{name} is a game of several agents; expected an environment with one agent (Gymnasium)")


def make_game(
    call: Callable[[], object], name: str, env_kwargs: EnvKwargs, wrappers: Iterable[FoundWrapper]
) -> ParallelGame:
    """Make a game and wrap it; a wrapper takes and returns a `ParallelEnv`."""
    with making(name, env_kwargs):
        game = as_parallel(call(), name)
    for wrapper in wrappers:
        game = as_parallel(wrapper(game), f"the wrapper {wrapper.name!r}")
    return game


@final
class ParallelVecEnv(CountedVecEnv):
    """M copies of a game of A agents as M · A rows; row c · A + a is agent a of copy c.

    A copy begins its next game as soon as no agent is left in it. Until then the rows of agents outside of the game
    have `valid` False, and their actions are ignored. An episode is the part of a game that one agent is in.
    """

    vectorization = "parallel"
    target_name = "copy"

    def __init__(self, game_fns: Sequence[Callable[[], ParallelGame]], seed: int, env_id: str, stream: str = "world"):
        self.games: list[ParallelGame] = make_all(game_fns, env_id)
        self.targets: Sequence[object] = self.games
        self.env_id = env_id
        try:
            self.agents: list[str] = _agents(self.games, env_id)
            self.obs_spec, self.action_spec = _shared_specs(self.games[0], self.agents, env_id)
        except BaseException:
            self._close()
            raise
        self.num_envs: int = len(self.games) * len(self.agents)
        self.stats: EpisodeStats = EpisodeStats(env_id, self.num_envs, seed, stream)
        self._recorded = Changes(len(self.games))
        self.ended: Array = np.zeros(len(self.games), bool)  # copies whose game was over in the last step
        self._numbers = [-1] * len(self.games)  # number of each copy's running game, from 0
        self._played: list[list[Array]] = [[] for _ in self.games]  # actions [A, …] of each round of these games
        self._alive = np.zeros(self.num_envs, bool)  # rows whose agent acts next

    @property
    def recorded(self) -> Changes:
        return self._recorded

    def reset(self) -> Array:
        self.stats.begin()
        obs = np.zeros((self.num_envs, *self.obs_spec.shape), self.obs_spec.dtype)
        masks: list[object] = [None] * self.num_envs
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
        next_obs = stats.obs.copy()
        masks: list[object] = [None] * self.num_envs
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
        episodes = [stats.finish(row, bool(died[row]), *results_in(infos[row])) for row in ends]
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
        """Begin the next game of each copy that has no agent left. Return the observations to act on next."""
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
        self.recorded.begin(copy)
        game = self.games[copy]
        try:
            seen, infos = game.reset(seed=self.stats.seeds[copy](self._numbers[copy]))
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

    def _rows(self, copy: int) -> list[tuple[int, str]]:
        """Return the row and the name of every agent of a copy."""
        return list(enumerate(self.agents, start=copy * len(self.agents)))

    def _names(self, rows: Array, copy: int) -> list[str]:
        """Return the agents of a copy whose row is True."""
        return [name for row, name in self._rows(copy) if rows[row]]

    def _by_copy(self, rows: Array) -> list[Array]:
        """Split the rows of all agents into an array `[A, …]` for each copy."""
        return list(rows.reshape(len(self.games), len(self.agents), *rows.shape[1:]))

    def _moves(self, acting: Collection[str], moves: Array) -> dict[str, object]:
        plain = moves.tolist() if moves.ndim == 1 else moves
        return {name: move for name, move in zip(self.agents, plain, strict=True) if name in acting}

    def _encode(self, seen: dict[str, object], name: str) -> Array:
        if name not in seen:
            raise BadInput(f"it gave no observation of the agent {name!r}")
        return self.obs_spec.encode_one(seen[name])

    def _stacked(self, masks: list[object]) -> Array | None:
        """Stack the masks to act with; where actions are ignored, all are legal."""
        anything = np.ones(self.action_spec.num_choices, bool)
        filled = [mask if alive else anything for mask, alive in zip(masks, self._alive, strict=True)]
        return self.stats.masks(filled, self.action_spec)

    def render(self) -> object:
        """Draw the first copy."""
        return self.games[0].render()

    def repeats(self, env_steps: int) -> bool:
        return self.stats.env_steps == env_steps

    def state_dict(self) -> StateDict:
        games = {"numbers": list(self._numbers), "actions": [np.array(played) for played in self._played]}
        changes = self.recorded.state_dict(self.stats.tick)
        return super().state_dict() | {"alive": self._alive.copy(), "games": games, "game_changes": changes}

    def _restore(self, state: StateDict) -> str | None:
        self._alive = np.array(state["alive"], bool)
        self._numbers = [int(number) for number in state["games"]["numbers"]]
        self._played = [list(actions) for actions in state["games"]["actions"]]
        self.recorded.load_state_dict(state["game_changes"])
        if (lost := self.recorded.lost) is not None:
            return f"the copies of {self.env_id!r} cannot be changed again as they were: {lost}"
        if self.stats.obs is None:
            return None
        for copy, expected in enumerate(self._by_copy(self.stats.obs)):
            where = f"{self._where(copy)}, played again with {len(self._played[copy])} rounds"
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
        """Restore a copy in its running game. Return the observation of each agent there."""
        game, played, set_value = self.games[copy], self._played[copy], partial(self._set, copy)
        changes: tuple[Change, ...] = self.recorded.of(copy, self.stats.tick - len(played))
        set_before(changes, set_value)
        seen, _ = game.reset(seed=self.stats.seeds[copy](self._numbers[copy]))
        living = _living(game)
        for moves in replayed(played, changes, set_value):
            seen, _, *flags, _ = game.step(self._moves(living, moves))
            living = _living(game, *flags)
        return {name: self._encode(seen, name) for name in self.agents if name in living}

    def _close(self) -> None:
        for game in self.games:
            close_anyway(game.close, self.env_id)


def _living(game: ParallelGame, *flags: dict[str, bool]) -> list[str]:
    """Return the agents that act next."""
    return [name for name in game.agents if not any(flag.get(name) for flag in flags)]


def _agents(games: Sequence[ParallelGame], env_id: str) -> list[str]:
    names = getattr(games[0], "possible_agents", None)
    if not names or any(list(game.possible_agents) != list(names) for game in games):
        raise BadInput(f"{env_id} has possible_agents = {names!r}; expected the same names in every copy of the game")
    return list(names)


def _shared_specs(game: ParallelGame, agents: list[str], env_id: str) -> tuple[ObsSpec, ActionSpec]:
    """Return the specs of the spaces that all agents share."""
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
