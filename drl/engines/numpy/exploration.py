"""Exploration during training. It belongs to the agent; the trainer sets its time.

An agent without one samples from its policy. Noisy networks explore through their noise; for these ε is positive only
before the first update.
"""

import numpy as np

from drl.core.configs import ActionNoiseConfig, EpsilonGreedyConfig, NoSettings, RandomStartConfig
from drl.core.errors import BadInput
from drl.core.schedules import Schedule, epsilon_schedule, schedule_of
from drl.core.specs import ActionSpec, Array
from drl.core.state_files import StateDict


class EpsilonGreedy:
    """Takes a uniformly random legal action with probability `epsilon`, independently in each environment."""

    carries = False

    def __init__(self, schedule: Schedule, spec: ActionSpec):
        self.schedule, self.num_actions = schedule, spec.sizes[0]
        self.epsilon = 0.0

    def at(self, env_steps: int) -> dict[str, float]:
        self.epsilon = self.schedule(env_steps)
        return {"epsilon": self.epsilon}

    def __call__(self, action: Array, rng: np.random.Generator, action_mask: Array | None = None) -> Array:
        if self.epsilon <= 0.0:
            return action
        coin = rng.random(len(action)) < self.epsilon
        if action_mask is None:
            random_action = rng.integers(self.num_actions, size=len(action))
        else:
            random_action = (rng.random(action_mask.shape) * action_mask).argmax(axis=1)
        return np.where(coin, random_action, action)

    def begin(self, envs: Array | None = None) -> None:
        """There is no state within an episode."""

    def state_dict(self) -> StateDict:
        return {"epsilon": self.epsilon}

    def load_state_dict(self, state: StateDict) -> None:
        self.epsilon = float(state["epsilon"])


class RandomStart:
    """Uniformly random actions for the first `random_steps` environment steps, then the agent's actions."""

    carries = False

    def __init__(self, random_steps: int, spec: ActionSpec):
        self.random_steps, self.spec = random_steps, spec
        self.random = random_steps > 0

    def at(self, env_steps: int) -> dict[str, float]:
        self.random = env_steps < self.random_steps
        return {}

    def __call__(self, action: Array, rng: np.random.Generator, action_mask: Array | None = None) -> Array:
        if not self.random:
            return action
        if self.spec.kind == "box":
            return rng.uniform(-1.0, 1.0, action.shape).astype(np.float32)
        sizes = self.spec.sizes or (2,) * self.spec.entries
        legal = np.ones((len(action), sum(sizes)), bool) if action_mask is None else action_mask
        parts = np.split(rng.random(legal.shape) * legal, np.cumsum(sizes)[:-1], axis=1)
        drawn = np.stack([part.argmax(axis=1) for part in parts], axis=1)
        return drawn[:, 0] if self.spec.kind == "discrete" else drawn

    def begin(self, envs: Array | None = None) -> None:
        """There is no state within an episode."""

    def state_dict(self) -> StateDict:
        return {"random": self.random}

    def load_state_dict(self, state: StateDict) -> None:
        self.random = bool(state["random"])


class ActionNoise:
    """Noise on the actions of a deterministic policy: x ← (1 − θ) x + σ ε, ε standard normal, added and clipped.

    θ = 1 is independent (Gaussian) noise; a smaller θ is an Ornstein-Uhlenbeck process, which restarts with every
    episode.
    """

    carries = True

    def __init__(self, sigma: Schedule, theta: float, start: RandomStart):
        self.schedule, self.theta, self.start = sigma, theta, start
        self.sigma = sigma(0)
        self.noise: Array | None = None  # [N, entries]

    def at(self, env_steps: int) -> dict[str, float]:
        self.start.at(env_steps)
        self.sigma = self.schedule(env_steps)
        return {"noise_sigma": self.sigma}

    def __call__(self, action: Array, rng: np.random.Generator, action_mask: Array | None = None) -> Array:
        if self.start.random:
            return self.start(action, rng, action_mask)
        fresh = self.sigma * rng.standard_normal(action.shape, np.float32)
        if self.noise is None or self.noise.shape != action.shape:
            self.noise = np.zeros_like(fresh)
        self.noise = (1.0 - self.theta) * self.noise + fresh
        return np.clip(action + self.noise, -1.0, 1.0).astype(np.float32)

    def begin(self, envs: Array | None = None) -> None:
        if envs is None:
            self.noise = None
        elif self.noise is not None:
            self.noise = np.where(envs[:, None], np.float32(0.0), self.noise)

    def state_dict(self) -> StateDict:
        noise = None if self.noise is None else self.noise.copy()
        return {"sigma": self.sigma, "noise": noise, "start": self.start.state_dict()}

    def load_state_dict(self, state: StateDict) -> None:
        self.sigma = float(state["sigma"])
        self.noise = None if state["noise"] is None else np.array(state["noise"], np.float32)
        self.start.load_state_dict(state["start"])


AnyExploration = EpsilonGreedy | RandomStart | ActionNoise
ExplorationConfig = NoSettings | EpsilonGreedyConfig | RandomStartConfig | ActionNoiseConfig


def make_exploration(
    config: ExplorationConfig, spec: ActionSpec, noisy: bool = False, first_update: int = 1
) -> AnyExploration | None:
    """The exploration of a config. `noisy`: a noisy network, which needs no ε after step `first_update`, the first one
    that can be followed by an update."""
    if isinstance(config, EpsilonGreedyConfig):
        return EpsilonGreedy(epsilon_schedule(config, noisy, first_update), spec)
    if not isinstance(config, RandomStartConfig):
        return None
    start = RandomStart(first_update if config.random_steps is None else config.random_steps, spec)
    if not isinstance(config, ActionNoiseConfig) or config.quiet:
        return start
    if spec.kind != "box":
        raise BadInput(f"noise_sigma is {config.noise_sigma}, but {spec.kind} actions take no noise; use 0")
    sigma = schedule_of(config, "noise_sigma", config.noise_decay)
    return ActionNoise(sigma, 1.0 if config.noise == "gaussian" else config.noise_theta, start)
