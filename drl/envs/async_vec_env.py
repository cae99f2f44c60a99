"""One process per environment, for slow environments. The transitions are bit-identical to those of `sync`.

`run_worker` is the process: it answers requests from a pipe until it is asked to close. `AsyncVecEnv` is our side.
"""

import contextlib
import copy
import ctypes
import math
import multiprocessing
import selectors
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any, NamedTuple, final

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from drl.core.contracts import VecStep
from drl.core.errors import BadInput, DrlError, EnvFailed
from drl.core.log import Change
from drl.core.processes import start_child
from drl.core.specs import ActionSpec, Array, EnvValue, ObsSpec
from drl.core.state_files import StateDict
from drl.envs.env_attributes import call_on, check_set, get_from, replayed, set_before, set_on
from drl.envs.episode_stats import EpisodeStats, ReplayableVecEnv, numbers_in, success_in
from drl.envs.faults import checked, checked_info, close_anyway, reason, warn_of_closing
from drl.envs.spaces import GymEnv, Info, action_spec, flat_mask, mask_reader, obs_spec

EnvFn = Callable[[], GymEnv]
GRACE = 2.0  # seconds a worker has to close
PATIENCE = 60.0  # default of `timeout`
MOST_SECONDS = 3600.0  # of one system call that waits


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


class WorkerRefusal(NamedTuple):
    """An answer: what was asked for is not possible. The environment is as it was."""

    reason: str


class WorkerClosed(NamedTuple):
    """The last answer of a worker."""

    reason: str | None  # why the environment could not be closed


class WorkerSpecs(NamedTuple):
    """The first answer of a worker."""

    obs_spec: ObsSpec
    action_spec: ActionSpec


class WorkerStep(NamedTuple):
    """Answer to a step. The successor is in the environment's row of `SharedRows.obs`. If the episode ended, it is in
    `SharedRows.final_obs`, and `SharedRows.obs` has the first observation of the next episode."""

    reward: float
    terminated: bool
    truncated: bool
    success: bool | None
    mask: Array | None  # of legal actions, in `SharedRows.obs`
    final_mask: Array | None  # the same in `SharedRows.final_obs`
    info: Mapping[str, float] | None = None  # the numbers in an episode's last info


class SharedRows(NamedTuple):
    """Memory shared with the parent, as bytes: encoded observations of all environments `[N, …]`."""

    obs: "ctypes.Array[ctypes.c_ubyte]"
    final_obs: "ctypes.Array[ctypes.c_ubyte]"

    def arrays(self, spec: ObsSpec, num_envs: int) -> tuple[Array, Array]:
        """Views of the shared memory: observations, and those at the end of episodes."""
        shape = (num_envs, *spec.shape)
        obs, final_obs = (np.frombuffer(memoryview(part), spec.dtype).reshape(shape) for part in self)
        return obs, final_obs


def run_worker(make: Callable[[], GymEnv], index: int, num_envs: int, rows: SharedRows, pipe: Connection) -> None:
    """Body of the process. Nothing that the environment raises ends it, other than its own end."""
    ignore_signals()
    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        try:
            worker = _Worker(make(), index, num_envs, rows)
        except BaseException as error:
            pipe.send(Failure.of(error))
            pipe.recv()  # until it is asked to close: a worker that ends by itself counts as dead
            return
        pipe.send(WorkerSpecs(worker.obs_spec, worker.action_spec))
        while True:
            name, argument = pipe.recv()
            if name == "close":
                break
            try:
                answer = getattr(worker, name)(*argument)
            except BadInput as error:
                answer = WorkerRefusal(str(error)) if name == "reach" else Failure.of(error)
            except BaseException as error:
                answer = Failure.of(error)
            pipe.send(answer)
        try:
            worker.env.close()
            pipe.send(WorkerClosed(None))
        except BaseException as error:
            pipe.send(WorkerClosed(reason(error)))


class _Worker:
    """Answers the requests. The parent knows the seeds of all episodes and sends the next one with each request."""

    def __init__(self, env: GymEnv, index: int, num_envs: int, rows: SharedRows):
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

    def step(self, action: object, next_seed: int) -> WorkerStep:
        obs, reward, terminated, truncated, info = self.env.step(action)
        reward, terminated, truncated = checked(reward, terminated, truncated, info)
        encoded, mask = self.obs_spec.encode_one(obs), self._mask(obs, info)
        if not (terminated or truncated):
            self.rows[self.index] = encoded
            return WorkerStep(reward, terminated, truncated, None, mask, None)
        self.final_rows[self.index], success, numbers = encoded, success_in(info), numbers_in(info)
        final_mask = copy.copy(mask)  # the reset that follows may write into the same buffer
        return WorkerStep(reward, terminated, truncated, success, self.reset(next_seed), final_mask, numbers)

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


@final
class AsyncVecEnv(ReplayableVecEnv):
    """Steps Gymnasium environments in worker processes. `timeout` is in seconds, for each start, reset and step."""

    vectorization = "async"

    def __init__(
        self, env_fns: Sequence[EnvFn], seed: int, env_id: str = "", stream: str = "world", timeout: float = PATIENCE
    ):
        self.num_envs: int = len(env_fns)
        self.timeout: float = timeout
        self.env_id: str = env_id or "an unregistered environment"
        self.stats: EpisodeStats = EpisodeStats(self.env_id, self.num_envs, seed, stream)
        try:
            probe = env_fns[0]()  # a wrong name or argument is found here, not in a worker
            self.obs_spec: ObsSpec = obs_spec(probe.observation_space)
            self.action_spec: ActionSpec = action_spec(probe.action_space)
        except DrlError:
            raise
        except BaseException as error:
            raise self.stats.failed(error) from error
        close_anyway(probe.close, self.env_id)
        self._always_valid = np.ones(self.num_envs, bool)
        self._busy = False  # whether answers are due
        self.pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []
        self._selector = selectors.DefaultSelector()
        # Runs once: in `close`, or when this object is collected, or when the program ends.
        self._end = Finalize(self, _end_all, (self.pipes, self.processes), exitpriority=10)
        self._start(env_fns)

    def _start(self, env_fns: Sequence[EnvFn]) -> None:
        context, size = multiprocessing.get_context(), math.prod((self.num_envs, *self.obs_spec.shape))
        rows = SharedRows(*(context.RawArray("B", size * self.obs_spec.dtype.itemsize) for _ in SharedRows._fields))
        self._rows, self._final_rows = rows.arrays(self.obs_spec, self.num_envs)
        for index, make in enumerate(env_fns):
            try:
                ours, theirs = context.Pipe()
                self.pipes.append(ours)
                args = (CloudpickleWrapper(make), index, self.num_envs, rows, theirs)
                self.processes.append(start_child(context, run_worker, *args, daemon=True))
            except OSError as error:
                raise self._failed(f"its worker process cannot be started: {error}", index) from error
            theirs.close()
            self._selector.register(ours, selectors.EVENT_READ, index)
        for index, ready in enumerate(self._checked(self._answers())):
            if ready != WorkerSpecs(self.obs_spec, self.action_spec):
                raise self._failed("its spaces differ from those of another environment of the same id", index)

    def reset(self) -> Array:
        seeds = self.stats.begin()
        masks = self._ask("reset", [(seed,) for seed in seeds])
        self.stats.obs = self._rows.copy()
        self.stats.check_obs(self.stats.obs, self.obs_spec)
        self.action_mask = self.stats.action_mask = self.stats.masks(masks, self.action_spec)
        return self.stats.obs

    def step(self, action: Array) -> VecStep:
        stats = self.stats
        stats.check_action(action)
        following = [seeds(number + 1) for seeds, number in zip(stats.seeds, stats.numbers, strict=True)]
        actions = action.tolist() if action.ndim == 1 else action  # environments check plain ints much faster
        moved: list[WorkerStep] = self._ask("step", list(zip(actions, following, strict=True)))
        reward, terminated, truncated = (np.array(column) for column in list(zip(*moved, strict=True))[:3])
        obs = self._rows.copy()  # the workers write the next step into the same memory
        stats.add(reward, action=action)
        truncated &= ~terminated
        next_obs, episodes = obs, []
        ends = np.flatnonzero(terminated | truncated)
        if len(ends):
            next_obs = obs.copy()
            next_obs[ends] = self._final_rows[ends]
            stats.check_obs(next_obs, self.obs_spec)
            ended = [(i, moved[i]) for i in ends.tolist()]
            episodes = [stats.finish(i, bool(terminated[i]), each.success, each.info) for i, each in ended]
        stats.check_obs(obs, self.obs_spec)
        stats.obs, next_mask, valid = obs, None, self._always_valid
        if self.action_mask is not None:
            last = [each.final_mask if i in ends else each.mask for i, each in enumerate(moved)]
            next_mask = stats.masks(last, self.action_spec, successors=ends)
            self.action_mask = stats.action_mask = stats.masks([each.mask for each in moved], self.action_spec)
        reward = reward.astype(np.float32)
        return VecStep(reward, terminated, truncated, next_obs, obs, valid, episodes, self.action_mask, next_mask)

    def _ask(self, name: str, arguments: Sequence[tuple[object, ...]]) -> list[Any]:
        """One round trip; the answers of all environments. If one fails, all are closed."""
        return self._checked(self._request(name, arguments))

    def _checked(self, answers: list[Any]) -> list[Any]:
        for index, answer in enumerate(answers):
            if isinstance(answer, Failure):
                raise self._failed(answer.reason, index, answer.trace)
        return answers

    def _request(self, name: str, arguments: Sequence[tuple[object, ...]]) -> list[Any]:
        if not self.pipes:
            raise self.stats.failed("it was closed; make a new environment")
        if self._busy:
            raise self.stats.failed("an earlier call was interrupted; make a new environment")
        for pipe, argument in zip(self.pipes, arguments, strict=True):
            with contextlib.suppress(OSError):  # it died: so it will not answer
                pipe.send((name, argument))
        return self._answers()

    def _answers(self) -> list[Any]:
        """One answer of every worker, within `timeout` seconds."""
        answers: list[Any] = [None] * self.num_envs
        due, deadline = set(range(self.num_envs)), time.monotonic() + self.timeout
        self._busy = True
        while due:
            left = deadline - time.monotonic()
            ready = self._selector.select(min(max(left, 0.0), MOST_SECONDS))
            if not ready and left <= 0:
                hint = "raise --worker-timeout (`timeout` of make_vec_env) if a start or step may take that long"
                raise self._failed(f"no answer within {self.timeout:g} s; {hint}", min(due))
            for key, _ in ready:
                try:
                    answers[key.data] = self.pipes[key.data].recv()
                except (EOFError, OSError):
                    raise self._failed(self._death(key.data), key.data) from None
                due.discard(key.data)
        self._busy = False
        return answers

    def _death(self, index: int) -> str:
        self.processes[index].join(GRACE)  # the pipe may break shortly before the process ends
        return f"its worker process died (exit code {self.processes[index].exitcode})"

    def _failed(self, why: str, index: int, trace: str | None = None) -> EnvFailed:
        """Close everything; the error to raise."""
        error = self.stats.failed(why, index)
        if trace is not None:
            error.add_note(f"In the worker process:\n{trace}")
        self._end()
        return error

    def load_state_dict(self, state: StateDict) -> str | None:
        stats = self.stats
        stats.load_state_dict(state)
        self.action_mask = stats.action_mask
        if stats.obs is None or stats.changes.lost or len(stats.actions) < stats.lengths.max():
            stats.changes.set_all(self._set)
            return stats.continued(lambda index: np.zeros(0))
        answers = self._request(
            "play_again",
            [(stats.seed_of(i), stats.running_actions(i), stats.running_changes(i)) for i in range(self.num_envs)],
        )

        def shown(index: int) -> Array:
            answer = answers[index]
            if isinstance(answer, Failure):
                raise EnvFailed(answer.reason)
            return self._rows[index]

        why = stats.continued(shown)
        if why is not None:
            stats.changes.set_all(self._set)
        return why

    def get(self, name: str) -> list[EnvValue]:
        return self._reach("get", name)

    def set(self, name: str, value: object) -> None:
        self._reach("check_set", name, value)
        self.stats.changed(name, value)
        self._set(name, value)

    def _set(self, name: str, value: object) -> None:
        self._reach("set", name, value)

    def call(self, name: str, /, *args: object, **kwargs: object) -> list[EnvValue]:
        answers = self._reach("call", name, (args, kwargs))
        self.stats.called(name, answers, args, kwargs)
        return answers

    def _reach(self, what: str, name: str, content: object = None) -> list[EnvValue]:
        """Ask every worker about an attribute. A refusal closes nothing."""
        try:
            requests = [
                cloudpickle.dumps((what, name, content, f"environment {index} of {self.env_id!r}"))
                for index in range(self.num_envs)
            ]
        except Exception as error:
            raise BadInput(f"the value for {name!r} cannot be sent to worker processes: {reason(error)}") from error
        answers = self._request("reach", [(request,) for request in requests])
        for index, answer in enumerate(answers):
            if isinstance(answer, WorkerRefusal):
                raise BadInput(answer.reason)
            if isinstance(answer, Failure):
                failure = self.stats.failed(answer.reason, index)
                failure.add_note(f"In the worker process:\n{answer.trace}")
                raise failure
        return [cloudpickle.loads(answer) for answer in answers]

    def close(self) -> None:
        complaints: list[tuple[int, str]] | None = self._end()  # None: it was closed before
        self._selector.close()
        for index, why in complaints or ():
            warn_of_closing(f"{self.env_id}, environment {index}", why)


def _end_all(pipes: list[Connection], processes: list[BaseProcess]) -> list[tuple[int, str]]:
    """Ask all workers to close, wait `GRACE` seconds in total, then kill them. Returns which did not close, and why."""
    complaints = []
    for pipe in pipes:
        with contextlib.suppress(OSError):
            pipe.send(("close", ()))
    deadline = time.monotonic() + GRACE
    for index, pipe in enumerate(pipes):
        why = _last_word(pipe, deadline)
        if why is not None:
            complaints.append((index, why))
    for process in processes:
        process.join(max(deadline - time.monotonic(), 0.0))
        if process.is_alive():
            process.kill()
            process.join()
    for pipe in pipes:
        pipe.close()
    pipes.clear()
    return complaints


def _last_word(pipe: Connection, deadline: float) -> str | None:
    """What a worker says when it closes; None if there is nothing to say."""
    with contextlib.suppress(EOFError, OSError):  # it is dead, which its user knows
        while pipe.poll(max(deadline - time.monotonic(), 0.0)):
            answer = pipe.recv()  # the answer to an interrupted call may come first
            if isinstance(answer, WorkerClosed):
                return answer.reason
        return f"no answer within {GRACE:g} s"
    return None
