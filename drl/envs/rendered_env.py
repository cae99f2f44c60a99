"""An environment that is drawn in a process of its own, where OpenGL may abort, hang or print what it likes."""

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, final

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
from gymnasium.vector.utils import CloudpickleWrapper

from drl.core.errors import EnvFailed
from drl.core.processes import start_program
from drl.core.specs import MASK_KEY, ActionSpec, Array, ObsSpec
from drl.envs.async_vec_env import GRACE, MOST_SECONDS, PATIENCE, Failure, ignore_signals
from drl.envs.env_attributes import call_on, set_on
from drl.envs.env_config import EnvLike, as_config
from drl.envs.faults import close_anyway
from drl.envs.make_vec_env import env_maker
from drl.envs.spaces import GymEnv, Info, action_spec, mask_reader, obs_spec

PICTURES = "rgb_array"  # the render mode
# pygame needs a screen even for drawing into memory, and a sound card always.
NO_SCREEN = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
INSTALL = "install one, on Debian with: apt-get install libegl1 libgl1-mesa-dri (or libosmesa6)"


class DrawingSpecs(NamedTuple):
    """The first answer of the process."""

    obs_spec: ObsSpec
    action_spec: ActionSpec
    render_mode: str | None
    metadata: dict[str, object]
    mujoco: bool  # whether MuJoCo draws it


@final
class RenderedEnv(gym.Env[object, Array]):
    """One environment in another process; `render` gives its picture. `timeout` is in seconds, for its start and every
    reset, step and picture. Infos hold nothing but the action mask.

    `render_mode` is None if the environment cannot be drawn. Whatever goes wrong raises `CannotDraw`.
    """

    def __init__(
        self,
        env: EnvLike,
        *,
        timeout: float = PATIENCE,
    ):
        config = as_config(env)
        self.env_id: str = config.env
        self.timeout: float = min(timeout, MOST_SECONDS)
        self._ends = contextlib.ExitStack()
        make = env_maker(config)
        refused = []
        for library in open_gl_libraries():
            self._needs_open_gl: bool = False
            try:
                self._start(make, library)
                return
            except CannotDraw as error:
                if not self._needs_open_gl:
                    raise
                refused.append(f"{library or 'the default'}: {error.why}")
        raise self._failed(f"MuJoCo finds no OpenGL that works ({'; '.join(refused)}); {INSTALL}")

    def _start(self, make: Callable[[str | None], GymEnv], library: str | None) -> None:
        self._messages = self._ends.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        variables = {name: os.environ.get(name, value) for name, value in NO_SCREEN.items()}
        try:
            maker = pickle.dumps(CloudpickleWrapper(make))  # type: ignore[arg-type]
            variables |= {} if library is None else {"MUJOCO_GL": library}
            self._process, self._pipe = start_program(serve, self._messages, variables)
        except Exception as error:
            raise self._failed(f"it cannot be started: {type(error).__name__}: {error}") from error
        self._ends.callback(_kill, self._process, self._pipe)
        ready: DrawingSpecs = self._ask("make", maker)
        self.obs_spec: ObsSpec = ready.obs_spec
        self.action_spec: ActionSpec = ready.action_spec
        self.render_mode: str | None = ready.render_mode
        self.metadata: dict[str, Any] = ready.metadata
        self._needs_open_gl = ready.mujoco and ready.render_mode is not None
        if self._needs_open_gl:  # whether it works is known after the first picture
            self._ask("reset", 0)
            self._ask("render")

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[object, Info]:
        obs, info = self._ask("reset", seed)
        return obs, info

    def step(self, action: Array) -> tuple[object, float, bool, bool, Info]:
        obs, reward, terminated, truncated, info = self._ask("step", action)
        return obs, reward, terminated, truncated, info

    def render(self) -> Any:
        """The picture of the current state."""
        return self._ask("render")

    def set(self, name: str, value: object) -> None:
        """Set an attribute, found as by `VecEnv.set`."""
        self._ask("set", cloudpickle.dumps((name, value)))

    def call(self, name: str, /, *args: object, **kwargs: object) -> None:
        """Call a method, found as by `VecEnv.call`."""
        self._ask("call", cloudpickle.dumps((name, (args, kwargs))))

    def close(self) -> None:
        if not self._pipe.closed:
            self.timeout = min(self.timeout, GRACE)
            with contextlib.suppress(CannotDraw):  # the pictures are there
                self._ask("close")
        self._ends.close()

    def _ask(self, name: str, *arguments: object) -> Any:
        """One answer. If there is none, the process is killed."""
        try:
            self._pipe.send((name, arguments))
            if not self._pipe.poll(self.timeout):
                raise self._failed(f"no answer within {self.timeout:g} s")
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise self._failed(self._death()) from None
        except BaseException:  # Ctrl-C: nobody waits for the answer
            self._ends.close()
            raise
        if isinstance(answer, Failure):
            error = self._failed(answer.reason)
            error.add_note(f"In the process that draws:\n{answer.trace}")
            raise error
        return answer

    def _death(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):  # the pipe may break shortly before the process ends
            self._process.wait(GRACE)
        self._messages.seek(0)
        said = self._messages.read().decode(errors="replace").strip().splitlines()[-1:]
        return ": ".join([f"its process died (exit code {self._process.poll()})", *said])

    def _failed(self, why: str) -> "CannotDraw":
        """End the process; the error to raise."""
        self._ends.close()
        return CannotDraw(self.env_id, why)


class CannotDraw(EnvFailed):
    """An environment raised, died or did not answer while it was drawn."""

    def __init__(self, env_id: str, why: str):
        super().__init__(f"environment {env_id!r} cannot be drawn: {why}")
        self.why = why


def open_gl_libraries() -> list[str | None]:
    """What MuJoCo may draw with, in the order to try. None: what it chooses, which is a window system."""
    if chosen := os.environ.get("MUJOCO_GL"):
        return [chosen]
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform == "darwin"
    return [None, "egl", "osmesa"] if screen else ["egl", "osmesa"]


def _kill(process: "subprocess.Popen[bytes]", pipe: Connection) -> None:
    pipe.close()
    process.kill()
    process.wait()


def serve(pipe: Connection) -> None:
    """Body of the process: it answers requests until it is asked to close."""
    ignore_signals()
    artist, name = _Artist(), ""
    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        while name != "close":
            name, arguments = pipe.recv()
            try:
                pipe.send(getattr(artist, name)(*arguments))
            except BaseException as error:
                pipe.send(Failure.of(error))


class _Artist:
    """Answers the requests."""

    env: GymEnv

    def make(self, maker: bytes) -> DrawingSpecs:
        make: Callable[[str | None], GymEnv] = pickle.loads(maker).fn
        self.env = make(None)
        if PICTURES in self.env.metadata.get("render_modes", []):
            close_anyway(self.env.close, "")
            self.env = make(PICTURES)
        self._read = mask_reader(self.env)
        drawn = self.env.render_mode if self.env.render_mode == PICTURES else None
        metadata = {"render_fps": self.env.metadata.get("render_fps")}
        specs = obs_spec(self.env.observation_space), action_spec(self.env.action_space)
        return DrawingSpecs(*specs, drawn, metadata, "mujoco" in sys.modules)

    def reset(self, seed: int | None) -> tuple[object, Info]:
        obs, info = self.env.reset(seed=seed)
        return obs, self._mask(obs, info)

    def step(self, action: Array) -> tuple[object, object, object, object, Info]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, self._mask(obs, info)

    def set(self, request: bytes) -> None:
        name, value = cloudpickle.loads(request)
        set_on(self.env, name, value, "the environment")

    def call(self, request: bytes) -> None:
        name, arguments = cloudpickle.loads(request)
        call_on(self.env, name, arguments, "the environment")

    def render(self) -> object:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _mask(self, obs: object, info: Info) -> Info:
        mask = self._read(obs, info)
        return {} if mask is None else {MASK_KEY: mask}
