"""The process of one environment of `AsyncVecEnv`: it takes requests from a pipe until it is asked to close."""

import contextlib
import copy
import ctypes
import signal
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import NamedTuple

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from drl.core.errors import BadInput
from drl.core.log import Change
from drl.core.specs import ActionSpec, Array, EnvValue, ObsSpec
from drl.envs.action_masks import flat_mask, mask_reader
from drl.envs.env_attributes import call_on, check_set, get_from, replayed, set_before, set_on
from drl.envs.episode_stats import numbers_in, success_in
from drl.envs.faults import checked, checked_info, reason
from drl.envs.spaces import GymEnv, Info, action_spec, obs_spec


class Failure(NamedTuple):
    """An answer: the environment raised. The exception itself may not pass through a pipe."""

    reason: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """An exception as text that another process can read."""
        return cls(reason(error), "".join(traceback.format_exception(error)))


def ignore_signals() -> None:
    """Ctrl-C reaches the whole process group; the parent decides when a worker ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


class Refused(NamedTuple):
    """An answer: what was asked for is not possible. The environment is as it was."""

    reason: str


class Closed(NamedTuple):
    """The last answer of a worker."""

    reason: str | None  # why the environment could not be closed


class Ready(NamedTuple):
    """The first answer of a worker."""

    obs_spec: ObsSpec
    action_spec: ActionSpec


class Moved(NamedTuple):
    """Answer to a step. The successor is in the environment's row of `Rows.obs`. If the episode ended, it is in
    `Rows.final_obs`, and `Rows.obs` has the first observation of the next episode."""

    reward: float
    terminated: bool
    truncated: bool
    success: bool | None
    mask: Array | None  # of legal actions, in `Rows.obs`
    final_mask: Array | None  # the same in `Rows.final_obs`
    info: Mapping[str, float] | None = None  # the numbers in an episode's last info


class Rows(NamedTuple):
    """Memory shared with the parent, as bytes: encoded observations of all environments `[N, …]`."""

    obs: "ctypes.Array[ctypes.c_ubyte]"
    final_obs: "ctypes.Array[ctypes.c_ubyte]"

    def arrays(self, spec: ObsSpec, num_envs: int) -> tuple[Array, Array]:
        """Views of the shared memory: observations, and those at the end of episodes."""
        shape = (num_envs, *spec.shape)
        obs, final_obs = (np.frombuffer(memoryview(part), spec.dtype).reshape(shape) for part in self)
        return obs, final_obs


def run_worker(make: Callable[[], GymEnv], index: int, num_envs: int, rows: Rows, pipe: Connection) -> None:
    """Body of the process. Nothing that the environment raises ends it, other than its own end."""
    ignore_signals()
    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        try:
            worker = _Worker(make(), index, num_envs, rows)
        except BaseException as error:
            pipe.send(Failure.of(error))
            pipe.recv()  # until it is asked to close: a worker that ends by itself counts as dead
            return
        pipe.send(Ready(worker.obs_spec, worker.action_spec))
        while True:
            name, argument = pipe.recv()
            if name == "close":
                break
            try:
                answer = getattr(worker, name)(*argument)
            except BadInput as error:
                answer = Refused(str(error)) if name == "reach" else Failure.of(error)
            except BaseException as error:
                answer = Failure.of(error)
            pipe.send(answer)
        try:
            worker.env.close()
            pipe.send(Closed(None))
        except BaseException as error:
            pipe.send(Closed(reason(error)))


class _Worker:
    """Answers the requests. The parent knows the seeds of all episodes and sends the next one with each request."""

    def __init__(self, env: GymEnv, index: int, num_envs: int, rows: Rows):
        self.env, self.index = env, index
        self.obs_spec, self.action_spec = obs_spec(env.observation_space), action_spec(env.action_space)
        self.rows, self.final_rows = rows.arrays(self.obs_spec, num_envs)
        self._read = mask_reader(env)

    def reset(self, seed: int) -> Array | None:
        """Begin an episode; the mask of its first observation."""
        obs, info = self.env.reset(seed=seed)
        checked_info(info)
        self.rows[self.index] = self.obs_spec.encode_one(obs)
        return self._mask(obs, info)

    def step(self, action: object, next_seed: int) -> Moved:
        obs, reward, terminated, truncated, info = self.env.step(action)
        reward, terminated, truncated = checked(reward, terminated, truncated, info)
        encoded, mask = self.obs_spec.encode_one(obs), self._mask(obs, info)
        if not (terminated or truncated):
            self.rows[self.index] = encoded
            return Moved(reward, terminated, truncated, None, mask, None)
        self.final_rows[self.index], success, numbers = encoded, success_in(info), numbers_in(info)
        final_mask = copy.copy(mask)  # the reset that follows may write into the same buffer
        return Moved(reward, terminated, truncated, success, self.reset(next_seed), final_mask, numbers)

    def reach(self, request: bytes) -> bytes:
        """Get or set an attribute, or call a method. In bytes, so that what cannot be sent does not break the pipe."""
        what, name, content, where = cloudpickle.loads(request)
        answer: EnvValue = None
        if what == "get":
            answer = get_from(self.env, name, where)
        elif what == "check_set":
            check_set(self.env, name, content, where)
        elif what == "set":
            set_on(self.env, name, content, where)
        else:
            answer = call_on(self.env, name, content, where)
        try:
            packed: bytes = cloudpickle.dumps(answer)
        except Exception as error:
            raise BadInput(f"{name!r} of {where} cannot leave its process: {reason(error)}") from error
        return packed

    def play_again(self, seed: int, actions: Array, changes: tuple[Change, ...]) -> None:
        """Go back into a running episode."""

        def set_value(name: str, value: object) -> None:
            set_on(self.env, name, value, "the environment")

        set_before(changes, set_value)
        obs, _ = self.env.reset(seed=seed)
        for action in replayed(actions, changes, set_value):
            obs = self.env.step(action)[0]
        self.rows[self.index] = self.obs_spec.encode_one(obs)

    def _mask(self, obs: object, info: Info) -> Array | None:
        mask = self._read(obs, info)
        return None if mask is None else flat_mask(mask)
