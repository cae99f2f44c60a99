"""What an algorithm is to the rest of the package: one record, and nobody else asks for its name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from drl.core.configs import ModelConfig, NoSettings, ReplayConfig
from drl.core.network_parts import Maker
from drl.core.search_dimensions import Space

ALL_SPACES = ("discrete", "multi_discrete", "multi_binary", "box")


@dataclass(frozen=True)
class BufferRecord:
    """A buffer: who makes it, from which settings, and what a run may ask of it."""

    make: Maker  # (learner config, buffer config, num_envs, specs, rng, frame_stack) → Buffer
    config: type[Any] = NoSettings
    whole_episodes: bool = False  # hands out episodes one after another in one column, not a column per environment
    scales_reward: bool = True  # whether rewards may be scaled by a running deviation before they are learned from


ROLLOUT = BufferRecord("drl.buffers.rollout_buffer:make_rollout_buffer")
EPISODES = BufferRecord("drl.buffers.episode_buffer:make_episode_buffer", whole_episodes=True)
REPLAY = BufferRecord("drl.buffers.replay_buffer:make_replay_buffer", config=ReplayConfig, scales_reward=False)


@dataclass(frozen=True, kw_only=True)
class AlgorithmRecord:
    """All that the package must know of an algorithm. `docs/extending.md` walks through a new one."""

    name: str  # what users type
    summary: str  # one line for `drl list algorithms`
    config: type[Any]  # its own settings, a frozen dataclass with gamma and learning_rate among them
    model_config: type[Any] = ModelConfig
    variant: Callable[[Any], str]  # its config → the model variant it needs
    buffer: BufferRecord
    exploration: type[Any] = NoSettings  # settings of its exploration; NoSettings: it samples from its policy
    action_spaces: tuple[str, ...] = ALL_SPACES
    recurrent: bool = False  # whether it learns from sequences
    engines: Mapping[str, Maker]  # engine → class
    fused: Maker | None = None  # the program that compiles it together with its environment (JAX)
    search_base: Space = field(default_factory=dict)  # what `drl search` varies
    search_all: Space = field(default_factory=dict)  # what it varies on top in mode `all`
    # What `drl ablate` turns on and off: name → (settings with it, settings without).
    switches: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, type[Any]]:
        """Its configs by the name they have in an `Experiment`. Their fields share one flat namespace."""
        return {
            "model": self.model_config,
            "learner": self.config,
            "buffer": self.buffer.config,
            "exploration": self.exploration,
        }
