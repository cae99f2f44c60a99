"""Atari 2600 games through ale-py, preprocessed as in the DQN papers. An extra; ale-py includes the games.

One step repeats the action for `frameskip` (4 in every `ALE/…-v5` id) × `frame_skip` frames. The observation is the
maximum of the last two, because many games draw some objects only in every other frame; then gray, then resized.
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, SupportsIndex, final

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorWrapper
from gymnasium.wrappers import TimeLimit

from drl.core.errors import BadInput, MissingExtra
from drl.core.setting_rules import Rule, Rules, check_fields
from drl.core.specs import Array
from drl.envs.spaces import EnvKwargs, GymEnv, GymVectorEnv, GymWrapper, Info, VectorBatch

# From this many environments on, ale-py's vector environment is at least as fast as our loop; see README.
NATIVE_FROM = 2
SEEDS = 2**31  # ale-py's seeds and counters are 32-bit


@dataclass(frozen=True, kw_only=True)
class AtariOptions:
    """Preprocessing options in the `env_kwargs` of an ALE id, beside the game's own arguments."""

    screen_size: int = 84  # height and width of an observation
    noop_max: int = 30  # an episode begins after 0 to this many no-op frames
    frame_skip: int = 1  # multiplies the game's own `frameskip`, which is 4 in …-v5
    grayscale: bool = True
    clip_reward: bool = True  # rewards become −1, 0 or 1 for the learner; returns of episodes stay raw
    terminal_on_life_loss: bool = False  # each life is an episode; the next one continues the same game
    fire_reset: bool = False  # press FIRE at the start if the game has that action
    preprocess: bool = True  # False: the unwrapped game; all of the above are ignored

    RULES: ClassVar[Rules] = {
        Rule("a whole number", lambda x: type(x) is int): "screen_size noop_max frame_skip",
        Rule("at least 1", lambda x: x >= 1): "screen_size frame_skip",
        Rule("at least 0", lambda x: x >= 0): "noop_max",
        Rule("true or false", lambda x: type(x) is bool): (
            "grayscale clip_reward terminal_on_life_loss fire_reset preprocess"
        ),
    }

    def __post_init__(self) -> None:
        check_fields(self)


def is_atari(spec: EnvSpec) -> bool:
    """Whether it is a game of ALE."""
    return spec.entry_point == "ale_py.env:AtariEnv"


def usual_frame_stack(env_id: str, env_kwargs: EnvKwargs) -> int:
    """Return the default frames per observation: 4 for a preprocessed game, as in the DQN papers.

    >>> usual_frame_stack("ALE/Pong-v5", {}), usual_frame_stack("CartPole-v1", {})
    (4, 1)
    """
    return 4 if _is_game(env_id) and env_kwargs.get("preprocess", True) else 1


def whole_games(env_id: str, env_kwargs: EnvKwargs) -> EnvKwargs:
    """Return `env_kwargs` for an evaluation: an episode is a whole game, as in the DQN papers, not a life."""
    lives = _is_game(env_id) and "terminal_on_life_loss" in env_kwargs
    return env_kwargs | {"terminal_on_life_loss": False} if lives else env_kwargs


def _is_game(env_id: str) -> bool:
    return env_id.rpartition(":")[2].startswith("ALE/")


def split_kwargs(spec: EnvSpec, env_kwargs: EnvKwargs) -> tuple[AtariOptions, EnvKwargs]:
    """Return our options, and the remaining arguments for the game's constructor."""
    names = {field.name for field in fields(AtariOptions)}
    options = AtariOptions(**{name: value for name, value in env_kwargs.items() if name in names})
    game = {name: value for name, value in env_kwargs.items() if name not in names}
    if not options.preprocess:
        ours = sorted(names & set(env_kwargs) - {"preprocess"})
        if ours:
            raise BadInput(
                f"env_kwargs of {spec.id!r} has preprocess=False beside {', '.join(ours)}; give only one of them"
            )
        return options, game
    for name in ("obs_type", "sound_obs", "continuous"):
        if game.get(name):
            raise BadInput(
                f"env_kwargs of {spec.id!r} has {name}={game[name]!r}, which the DQN preprocessing does not support; "
                f"give preprocess=False for the unwrapped game"
            )
    skip = game.get("frameskip", spec.kwargs.get("frameskip", 4))
    if isinstance(skip, bool) or not isinstance(skip, int) or skip < 1:
        raise BadInput(f"frameskip of {spec.id!r} is {skip!r}; expected a whole number, such as frameskip=4")
    return options, game | {"frameskip": skip}


def clips_reward(spec: EnvSpec, env_kwargs: EnvKwargs) -> bool:
    """Whether training sees the sign of rewards only."""
    options, _ = split_kwargs(spec, env_kwargs)
    return options.preprocess and options.clip_reward


def make_atari(spec: EnvSpec, render_mode: str | None, env_kwargs: EnvKwargs) -> GymEnv:
    """One game, preprocessed. Rewards are raw; `SignRewards` clips them for the learner."""
    options, game = split_kwargs(spec, env_kwargs)
    if not options.preprocess:
        return gym.make(spec, render_mode=render_mode, disable_env_checker=True, **game)
    skip = game.pop("frameskip") * options.frame_skip
    limit = _take_limit(spec, game, skip)
    # The wrappers below do these instead.
    own: EnvKwargs = {"obs_type": "grayscale", "frameskip": 1, "max_num_frames_per_episode": None}
    bare = gym.make(spec, render_mode=render_mode, disable_env_checker=True, **own, **game)
    env = AtariFrames(bare, options, skip)
    return env if limit is None else TimeLimit(env, limit)


def _take_limit(spec: EnvSpec, game: EnvKwargs, skip: int) -> int | None:
    """Take the limits out of `game` and return the steps of an episode. The emulator's own limit also counts the no-ops
    and can end an episode between the frames of a step."""
    frames = game.pop("max_num_frames_per_episode", spec.kwargs.get("max_num_frames_per_episode"))
    steps = game.pop("max_episode_steps", spec.max_episode_steps)
    limits = [-(-frames // skip)] if frames else []
    return min(limits + ([steps] if steps else []), default=None)


def make_atari_vector(spec: EnvSpec, num_envs: int, env_kwargs: EnvKwargs) -> GymVectorEnv:
    """Make ale-py's own vector environment; raise for options that it does not support."""
    options, game = split_kwargs(spec, env_kwargs)
    for name, wanted in (("preprocess", True), ("grayscale", True), ("terminal_on_life_loss", False)):
        if getattr(options, name) != wanted:
            raise BadInput(
                f"vectorization 'native' cannot do {name}={not wanted} for {spec.id!r}; use vectorization='sync'"
            )
    skip = game.pop("frameskip") * options.frame_skip
    limit = _take_limit(spec, game, skip)
    words = game | {
        "frameskip": skip,
        "img_height": options.screen_size,
        "img_width": options.screen_size,
        "noop_max": options.noop_max + 1,  # its upper end is exclusive
        "use_fire_reset": options.fire_reset,
        "reward_clipping": False,  # it would also clip the returns of episodes
        "stack_num": 1,  # it would pad with black frames; `StackedVecEnv` repeats the first frame
        "max_num_frames_per_episode": SEEDS - 1,  # never: see `AtariVector`
        "autoreset_mode": "SameStep",
    }
    return AtariVector(gym.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **words), limit)


@final
class AtariFrames(GymWrapper):
    """Repeats each action, max-pools the last two frames and resizes: uint8 (1, size, size); in color (size, size, 3).

    Gymnasium's `AtariPreprocessing` does not pool when the game skips frames itself, as every …-v5 does, and starts a
    new game after each lost life. This class drives the emulator directly.
    """

    def __init__(self, env: GymEnv, options: AtariOptions, skip: int):
        super().__init__(env)
        try:
            import ale_py
            import cv2
        except ImportError as error:
            raise MissingExtra("Atari", "atari", error) from error
        self._resize, self._interpolation = cv2.resize, cv2.INTER_AREA
        game: Any = env.unwrapped
        self.options: AtariOptions = options
        self.skip: int = skip
        self.ale: Any = game.ale
        self._actions = [getattr(ale_py.Action, name) for name in game.get_action_meanings()]
        self._noop, self._fire = ale_py.Action.NOOP, ale_py.Action.FIRE
        self._read = self.ale.getScreenGrayscale if options.grayscale else self.ale.getScreenRGB
        height, width = self.ale.getScreenDims()
        screen = (height, width) if options.grayscale else (height, width, 3)
        self._older, self._newest = np.zeros(screen, np.uint8), np.zeros(screen, np.uint8)
        size = options.screen_size
        self._shape = (1, size, size) if options.grayscale else (size, size, 3)
        self.observation_space = spaces.Box(0, 255, self._shape, np.uint8)
        self._lives = 0
        self._life_lost = False  # the last episode ended with a lost life, not with the game

    def step(self, action: SupportsIndex) -> tuple[Array, float, bool, bool, Info]:
        reward = self._hold(self._actions[action])
        lives, game_over = self.ale.lives(), self.ale.game_over()
        self._life_lost = self.options.terminal_on_life_loss and lives < self._lives and not game_over
        self._lives = lives
        return self._observe(), reward, game_over or self._life_lost, False, {"lives": lives}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        if self._life_lost:
            self._hold(self._noop)  # continue the same game, whatever the seed
        if not self._life_lost or self.ale.game_over():
            self._new_game(seed, options)
        self._life_lost = False
        self._lives = self.ale.lives()
        return self._observe(), {"lives": self._lives}

    def _new_game(self, seed: int | None, options: Info | None) -> None:
        self.env.reset(seed=seed, options=options)
        noops = self.env.unwrapped.np_random.integers(self.options.noop_max + 1)
        opening = [self._noop] * int(noops)
        if self.options.fire_reset and self._fire in self._actions:
            opening.append(self._fire)
        for action in opening:
            self.ale.act(action)
            if self.ale.game_over():
                self.env.reset(options=options)
        self._read(self._newest)

    def _hold(self, action: object) -> float:
        """Repeat an action for `skip` frames and pool the last two. Frames after the end of a game change nothing."""
        act, reward = self.ale.act, 0
        for _ in range(self.skip - 1):
            reward += act(action)
        if self.skip > 1:
            self._read(self._older)
        reward += act(action)
        self._read(self._newest)
        if self.skip > 1:
            np.maximum(self._older, self._newest, out=self._newest)
        return float(reward)

    def _observe(self) -> Array:
        size = (self.options.screen_size, self.options.screen_size)
        small: Array = self._resize(self._newest, size, interpolation=self._interpolation)
        return small.reshape(self._shape)


@final
class AtariVector(VectorWrapper):
    """ale-py's vector environment with our own time limit.

    ale-py's limit can stop between the frames of a step and then returns the observation before it. That is harmless
    after termination, but the value of a truncated episode needs its true last observation.
    """

    def __init__(self, env: GymVectorEnv, limit: int | None):
        super().__init__(env)
        self._limit = limit or SEEDS
        self._steps = np.zeros(env.num_envs, np.int64)

    def reset(self, *, seed: VectorBatch = None, options: Info | None = None) -> tuple[VectorBatch, Info]:
        self._steps[:] = 0
        seeds = None if seed is None else (seed + np.arange(self.num_envs)) % SEEDS
        return self.env.reset(seed=seeds, options=options)

    def step(self, actions: VectorBatch) -> tuple[VectorBatch, VectorBatch, VectorBatch, VectorBatch, Info]:
        obs, reward, terminated, truncated, infos = self.env.step(actions)
        self._steps += 1
        cut = (self._steps >= self._limit) & ~terminated
        if cut.any():
            first, _ = self.env.reset(options={"reset_mask": cut})
            last = infos.get("final_obs", obs).copy()
            last[cut] = obs[cut]
            obs, truncated, infos = np.where(cut[:, None, None, None], first, obs), cut, infos | {"final_obs": last}
        self._steps[terminated | cut] = 0
        return obs, reward, terminated, truncated, infos
