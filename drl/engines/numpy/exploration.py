"""Exploration during training. It belongs to the agent; the trainer sets its time.

An agent without one samples from its policy. Noisy networks explore through their noise; for these ε is positive only
before the first update.
"""

import numpy as np

from drl.core.configs import ActionNoiseConfig, EpsilonGreedyConfig, NoSettings, PolicyNoiseConfig, RandomStartConfig
from drl.core.errors import BadInput
from drl.core.schedules import Schedule, epsilon_schedule, schedule_of
from drl.core.specs import ActionSpec, Array, Distribution
from drl.core.state_files import StateDict


class WithoutState:
    """Exploration without state within an episode."""

    carries = False

    def begin(self, envs: Array | None = None) -> None:
        """Nothing begins."""


class EpsilonGreedy(WithoutState):
    """Takes a uniformly random legal action with probability `epsilon`, independently in each environment."""

    def __init__(self, config: EpsilonGreedyConfig, spec: ActionSpec, noisy: bool = False):
        self.config: EpsilonGreedyConfig = config
        self.num_actions: int = spec.sizes[0]
        self.noisy: bool = noisy
        self.begin_training(1)

    def begin_training(self, first_update: int) -> None:
        self.schedule: Schedule = epsilon_schedule(self.config, self.noisy, first_update)
        self.epsilon: float = self.schedule(0)

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

    def state_dict(self) -> StateDict:
        return {"epsilon": self.epsilon}

    def load_state_dict(self, state: StateDict) -> None:
        self.epsilon = float(state["epsilon"])


class RandomStart(WithoutState):
    """Uniformly random actions for the first `random_steps` environment steps (None: until the first update), then the
    agent's actions."""

    def __init__(self, config: RandomStartConfig, spec: ActionSpec):
        self.config: RandomStartConfig = config
        self.spec: ActionSpec = spec
        self.begin_training(1)

    def begin_training(self, first_update: int) -> None:
        self.random_steps: int = first_update if self.config.random_steps is None else self.config.random_steps
        self.random: bool = self.random_steps > 0

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

    def __init__(self, config: ActionNoiseConfig, spec: ActionSpec):
        if spec.kind != "box":
            raise BadInput(f"noise_sigma is {config.noise_sigma}, but {spec.kind} actions take no noise; use 0")
        self.schedule: Schedule = schedule_of(config, "noise_sigma", config.noise_decay)
        self.theta: float = 1.0 if config.noise == "gaussian" else config.noise_theta
        self.start: RandomStart = RandomStart(config, spec)
        self.sigma: float = self.schedule(0)
        self.noise: Array | None = None  # [N, entries]

    def begin_training(self, first_update: int) -> None:
        self.start.begin_training(first_update)

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


def default_exploration(variant: str, distribution: Distribution | None = None) -> ExplorationConfig:
    """The exploration of an agent by default: that of the algorithms that use its kind of model."""
    if variant == "q_value":
        return EpsilonGreedyConfig()
    if distribution is not None and distribution.kind == "deterministic":
        return ActionNoiseConfig()
    return PolicyNoiseConfig() if variant == "actor_critic" else NoSettings()


def make_exploration(config: ExplorationConfig, spec: ActionSpec, noisy: bool = False) -> AnyExploration | None:
    """The exploration of a config; None: the agent samples from its policy. `noisy`: a noisy network, which needs no ε
    after the first update."""
    if isinstance(config, EpsilonGreedyConfig):
        return EpsilonGreedy(config, spec, noisy)
    if isinstance(config, ActionNoiseConfig) and not config.quiet:
        return ActionNoise(config, spec)
    return RandomStart(config, spec) if isinstance(config, RandomStartConfig) else None
