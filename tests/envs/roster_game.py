"""A game in which agents come and go, with known rewards."""

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

# Rounds 1 to 5 of a game: who acts in it, and how each agent's episode ends.
ACTS = {"ann": (1, 2), "bob": (1, 2, 3, 4), "cat": (2, 3, 4, 5)}
ENDS = {"ann": "terminated", "bob": "truncated", "cat": "terminated"}


class Roster(ParallelEnv):
    """Ann is out after round 2, Bob is cut off after round 4, Cat joins in round 2 and ends the game in round 5.
    An agent sees a number of the game, the round and its last action; its reward is 10 · round + action."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012
    masks = False
    noise = 0.0

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.possible_agents, self.agents = list(ACTS), []

    def observation_space(self, agent):
        return spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(4)

    def reset(self, seed=None, options=None):
        self.game, self.round = np.random.default_rng(seed).integers(1000), 0
        self.agents = [name for name in ACTS if 1 in ACTS[name]]
        return self._seen({}), self._infos()

    def _seen(self, actions):
        noisy = self.game + Roster.noise
        return {name: np.array([noisy, self.round, actions.get(name, -1)], np.float32) for name in ACTS}

    def _infos(self):
        legal = np.array([True, self.round % 3 == 0, True, True])
        return {name: {"action_mask": legal} if self.masks else {} for name in ACTS}

    def step(self, actions):
        assert list(actions) == self.agents, "actions of exactly those who are in the game"
        self.round += 1
        last = {name: self.round == ACTS[name][-1] for name in actions}
        terminated = {name: last[name] and ENDS[name] == "terminated" for name in actions}
        truncated = {name: last[name] and ENDS[name] == "truncated" for name in actions}
        rewards = {name: 10.0 * self.round + action for name, action in actions.items()}
        self.agents = [name for name in ACTS if self.round + 1 in ACTS[name]]
        return self._seen(actions), rewards, terminated, truncated, self._infos()

    def render(self):
        return np.full((16, 16, 3), 40 * self.round, np.uint8)

    def close(self):
        pass


class Masked(Roster):
    masks = True
