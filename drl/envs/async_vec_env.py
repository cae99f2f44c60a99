"""One process per environment, for slow environments. The transitions are bit-identical to those of `sync`."""

import contextlib
import math
import multiprocessing
import selectors
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any, final

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from drl.core.child_processes import start_child
from drl.core.contracts import EnvChange, VecEnv, VecStep
from drl.core.errors import BadInput, DrlError, EnvFailed
from drl.core.log import Episode
from drl.core.specs import ActionSpec, Array, EnvValue, ObsSpec
from drl.core.state_files import StateDict
from drl.envs.env_worker import Closed, Failure, Moved, Ready, Refused, Rows, run_worker
from drl.envs.episode_stats import EpisodeStats
from drl.envs.faults import close_anyway, reason, warn_of_closing
from drl.envs.spaces import GymEnv, action_spec, obs_spec

EnvFn = Callable[[], GymEnv]
GRACE = 2.0  # seconds a worker has to close
PATIENCE = 60.0  # default of `timeout`
MOST_SECONDS = 3600.0  # of one system call that waits


@final
class AsyncVecEnv(VecEnv):
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
        rows = Rows(*(context.RawArray("B", size * self.obs_spec.dtype.itemsize) for _ in Rows._fields))
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
            if ready != Ready(self.obs_spec, self.action_spec):
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
        moved: list[Moved] = self._ask("step", list(zip(actions, following, strict=True)))
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

    def repeats(self, env_steps: int) -> bool:
        return self.stats.env_steps == env_steps

    def running_episode(self, index: int) -> Episode | None:
        return self.stats.running(index)

    def state_dict(self) -> StateDict:
        return self.stats.state_dict()

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

    def set(self, name: str, value: EnvValue) -> None:
        self._reach("check_set", name, value)
        self.stats.changed(name, value)
        self._set(name, value)

    def _set(self, name: str, value: object) -> None:
        self._reach("set", name, value)

    def call(self, name: str, /, *args: EnvValue, **kwargs: EnvValue) -> list[EnvValue]:
        answers = self._reach("call", name, (args, kwargs))
        self.stats.called(name, answers, args, kwargs)
        return answers

    @property
    def changes(self) -> list[EnvChange]:
        return self.stats.changes.changes

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
            if isinstance(answer, Refused):
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
            if isinstance(answer, Closed):
                return answer.reason
        return f"no answer within {GRACE:g} s"
    return None
