"""The record of an algorithm. The rest of the package reads it and never compares algorithm names."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from drl.algorithms.search_dimensions import Space
from drl.core.configs import Config, ConfigClass, ModelConfig, NoSettings, ReplayConfig
from drl.core.network_parts import Maker
from drl.core.specs import PlainDict

ALL_SPACES = ("discrete", "multi_discrete", "multi_binary", "box")


@dataclass(frozen=True)
class BufferRecord:
    """A buffer: its factory, its settings, and what it supports."""

    make: Maker  # (learner config, buffer config, envs or their specs, rng, frame_stack) → Buffer
    config: ConfigClass = NoSettings
    whole_episodes: bool = (
        False  # its batches hold episodes one after another in one column, not a column per environment
    )
    replays: bool = False  # whether its batches are old transitions, drawn at random


ROLLOUT = BufferRecord("drl.buffers.rollout_buffer:make_rollout_buffer")
EPISODES = BufferRecord("drl.buffers.rollout_buffer:make_episode_buffer", whole_episodes=True)
REPLAY = BufferRecord("drl.buffers.replay_buffer:make_replay_buffer", config=ReplayConfig, replays=True)


@dataclass(frozen=True, kw_only=True)
class AlgorithmRecord:
    """Configs, classes and capabilities of an algorithm. `docs/extending.md` shows how to add one."""

    name: str  # what users type
    summary: str  # one line for `drl list algorithms`
    like: str | None = None  # for a variation: the algorithm whose presets it uses
    config: ConfigClass  # its own settings, a frozen dataclass that includes gamma and learning_rate
    model_config: ConfigClass = ModelConfig
    variant: Callable[[Config], str]  # its config → the model variant it needs
    buffer: BufferRecord
    exploration: ConfigClass = NoSettings  # settings of its exploration; NoSettings: it samples from its policy
    action_spaces: tuple[str, ...] = ALL_SPACES
    recurrent: bool = False  # whether it learns from sequences
    normalize_reward: bool = False  # whether it expects scaled rewards
    engines: Mapping[str, Maker]  # engine → class
    fused: Maker | None = None  # the program that compiles it together with its environment (JAX)
    search_base: Space = field(default_factory=dict)  # what `drl search` varies
    search_all: Space = field(default_factory=dict)  # what it varies in addition in mode `all`
    # What `drl ablate` turns on and off: name → (settings with it, settings without).
    switches: Mapping[str, tuple[PlainDict, PlainDict]] = field(default_factory=dict)

    @property
    def plugins(self) -> list[str]:
        """Modules other than ours that define its classes and can be imported by name."""
        makers = [each for each in (*self.engines.values(), self.config) if not isinstance(each, str)]
        names = dict.fromkeys(each.__module__ for each in makers)
        ours = ("drl", "__main__")
        found = [name for name in names if name.partition(".")[0] not in ours]
        return [name for name in found if getattr(sys.modules.get(name), "__spec__", None) is not None]

    @property
    def parts(self) -> dict[str, ConfigClass]:
        """Config classes by their name in an `Experiment`. Their fields share one flat namespace."""
        return {
            "model": self.model_config,
            "learner": self.config,
            "buffer": self.buffer.config,
            "exploration": self.exploration,
        }
