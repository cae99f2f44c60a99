"""The steps of one run from many processes: Ray actors with blocks of its environments and copies of its policy."""

import contextlib
import time
import warnings
from collections import deque
from collections.abc import Sequence
from types import ModuleType
from typing import Any, final

import numpy as np

from drl.cluster.env_blocks import (
    STEPS_TO_FOLLOW,
    BlockState,
    Chunk,
    CollectorActor,
    CollectorSpecs,
    CollectRequest,
    MakeBlocks,
    Weights,
    joined,
)
from drl.core.contracts import Agent, CollectedStep, EnvChange
from drl.core.errors import BadInput, DrlError, EnvFailed
from drl.core.log import Episode
from drl.core.specs import ActionSpec, Array, EnvValue, ObsSpec
from drl.core.state_files import StateDict
from drl.envs.env_attributes import is_lost, restored, stored_or_lost

GRACE = 2.0  # seconds that a collector has to close
START = 60.0  # seconds that a process may take to start, before its environments do
LOOK = 0.2  # seconds between looks at what has arrived; signals are handled between them
AHEAD = 2  # orders that an asynchronous collector has at a time: one in work and one that waits


class Process:
    """One collector: its actor, where it runs, and the orders it has."""

    def __init__(self, number: int, blocks: tuple[int, ...]):
        self.number: int = number
        self.blocks: tuple[int, ...] = blocks
        self.actor: Any = None
        self.specs: CollectorSpecs | None = None
        self.orders: deque[tuple[CollectRequest, Any, Any]] = deque()  # request, weights, answer: two in the store
        self.seen: int = -1  # steps taken at the last look
        self.looked: float = 0.0

    def __str__(self) -> str:
        where = "" if self.specs is None else f" (host {self.specs.host}, process {self.specs.process})"
        return f"collector {self.number}{where}"


@final
class RayCollectors:
    """A collector for a trainer.

    Synchronous: `steps` steps of every block with the newest weights, whoever takes them; the numbers do not depend on
    how many processes share the blocks, nor on processes that are started again. Asynchronous: whatever arrives first.
    """

    vectorization = "ray"

    def __init__(
        self,
        ray: ModuleType,
        make_blocks: MakeBlocks,
        sizes: Sequence[int],  # environments of each block
        num_collectors: int,
        *,
        steps: int,
        asynchronous: bool = False,
        restarts: int = 3,
        timeout: float = 60.0,  # seconds for one start, reset or step of an environment
        num_cpus: float = 1.0,  # of a collector
    ):
        self.ray: ModuleType = ray
        self.make_blocks: MakeBlocks = make_blocks
        self.steps: int = steps
        self.asynchronous: bool = asynchronous
        self.restarts: int = restarts
        self.timeout: float = timeout
        self.num_cpus = num_cpus
        ends = np.cumsum(sizes)
        self.places: list[slice] = [slice(int(end - size), int(end)) for end, size in zip(ends, sizes, strict=True)]
        self.num_envs: int = int(ends[-1])
        self.states: list[BlockState] = [BlockState() for _ in sizes]
        shares = np.array_split(np.arange(len(sizes)), num_collectors)
        self.processes: list[Process] = [Process(i, tuple(share.tolist())) for i, share in enumerate(shares)]
        self.obs: Array | None = None
        self.in_env_step: bool = False
        self.lost: str | None = None  # why running episodes were dropped; None: they were not
        self.agent: Agent | None = None
        self.rows: deque[CollectedStep] = deque()  # collected, but not yet given to the trainer
        self.version: int = 0  # of the weights: updates so far
        self.sent: tuple[int, Any] = (-1, None)  # the version that the collectors have, and its weights in the store
        self.staleness: list[int] = []  # of the chunks since the last log
        self.changes: list[EnvChange] = []  # of the environments, in order
        self._class = ray.remote(concurrency_groups={"look": 1})(CollectorActor)
        try:
            for process in self.processes:
                self._start(process)
            for process in self.processes:
                self._await_start(process)
        except EnvFailed as error:
            self.close()
            raise EnvFailed(f"{self._named(process)}: {error}") from error
        except BaseException:
            self.close()
            raise
        specs = [process.specs for process in self.processes if process.specs is not None]
        self.obs_spec: ObsSpec = specs[0].obs_spec
        self.action_spec: ActionSpec = specs[0].action_spec
        if any(each[:2] != specs[0][:2] for each in specs):
            self.close()
            raise BadInput("the collectors' environments differ in their spaces; install the same versions everywhere")

    def attach(self, agent: Agent) -> None:
        """The collectors act with this agent's weights."""
        self.agent = agent

    def step(self, env_steps: int) -> CollectedStep:
        if not self.rows:
            self.in_env_step = True
            self.rows.extend(self._next(env_steps) if self.asynchronous else self._all(env_steps))
        taken = self.rows.popleft()
        self.obs = taken.step.obs
        return taken

    def learned(self) -> None:
        self.version += 1

    def get(self, name: str) -> list[EnvValue]:
        answers: list[list[EnvValue]] = self._reach("get", name)
        return [value for values in answers for value in values]

    def set(self, name: str, value: object) -> None:
        self._settle()
        self._reach("get", name)  # a name that one of them lacks is refused before any is changed
        self._moved(self._reach("set", name, value))
        self.changes = [each for each in self.changes if (each.name, each.arguments) != (name, None)]
        self.changes.append(EnvChange(name, value))

    def call(self, name: str, /, *args: object, **kwargs: object) -> list[EnvValue]:
        self._settle()
        answers = self._reach("call", name, args, kwargs)
        self._moved([states for _, states in answers])
        values = [value for values, _ in answers for value in values]
        if all(value is None for value in values):
            self.changes.append(EnvChange(name, None, (args, kwargs)))
        return values

    def _settle(self) -> None:
        """Receive the results of all requests, so that the states of all blocks are known."""
        for process in self.processes:
            while process.orders:
                self.rows.extend(self._received_late(process))

    def _moved(self, states: list[dict[int, StateDict]]) -> None:
        """The environments of all blocks were changed: their actions since an earlier state do not lead here."""
        for number, envs in ((number, envs) for each in states for number, envs in each.items()):
            self.states[number] = self.states[number]._replace(envs=envs, since=())

    def _reach(self, method: str, *content: object) -> list[EnvValue]:
        try:
            calls = [getattr(process.actor, method).remote(*content) for process in self.processes]
            answers: list[EnvValue] = self.ray.get(calls, timeout=START + self.timeout)
            return answers
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, DrlError):
                raise error.cause from None
            raise EnvFailed(
                f"{method} of {content[0]!r} failed in a collector: {_reason(error.cause or error)}"
            ) from error
        except self.ray.exceptions.RayError as error:
            raise EnvFailed(f"{method} of {content[0]!r}: a collector does not answer: {_reason(error)}") from error
        except TypeError as error:
            raise BadInput(
                f"the value for {content[0]!r} cannot be sent to the collectors: {_reason(error)}"
            ) from error

    @property
    def may_stop(self) -> bool:
        return not self.rows

    def repeats(self, env_steps: int) -> bool:
        return self.in_env_step

    def crashed_episode(self, index: int) -> Episode | None:
        return None

    def numbers(self) -> dict[str, float]:
        """Staleness: by how many updates the weights were behind those of the learner."""
        if not self.staleness:
            return {}
        stale, self.staleness = self.staleness, []
        return {"mean_staleness": float(np.mean(stale)), "max_staleness": float(max(stale))}

    def _all(self, env_steps: int) -> list[CollectedStep]:
        """The same number of steps of all blocks."""
        for process in self.processes:
            if process.orders:  # of a step that was broken off
                self._restart(process)
        for process in self.processes:
            self._order(process, env_steps)
        answers = [(process, self._answer(process)) for process in self.processes]
        self.in_env_step = False  # from here on nothing is broken off: all blocks move on together
        return joined([chunk for each in answers for chunk in self._received(*each)], self.num_envs)

    def _next(self, env_steps: int) -> list[CollectedStep]:
        """The steps that arrive first."""
        for process in self.processes:
            while len(process.orders) < AHEAD:
                self._order(process, env_steps)
        while not (ready := self._arrived()):
            pass
        return self._received_late(ready[0])

    def _received_late(self, process: Process) -> list[CollectedStep]:
        """The steps of an asynchronous collector."""
        chunks = self._answer(process)
        self.in_env_step = False
        self.staleness.append(self.version - process.orders[0][0].version)
        return joined(self._received(process, chunks), self.num_envs)

    def _arrived(self) -> list[Process]:
        """Collectors with a finished request, at most one; waits a moment. Hanging ones are started again."""
        answered = self.ray.wait([process.orders[0][2] for process in self.processes], timeout=LOOK)[0]
        arrived = [process for process in self.processes if process.orders[0][2] in answered]
        for process in self.processes:
            if process not in arrived:
                try:
                    self._check_hanging(process)
                except (self.ray.exceptions.RayError, EnvFailed) as error:
                    self._restart(process, error)
        return arrived

    def _order(self, process: Process, env_steps: int) -> None:
        if self.sent[0] != self.version:
            assert self.agent is not None  # a trainer attaches it
            state = self.agent.state_dict()
            weights: Weights = {name: state[name] for name in ("model", "normalizer")}
            self.sent = (self.version, self.ray.put(weights))
        known = max(self.states[number].steps_to_follow for number in process.blocks)
        waiting = sum(order.steps for order, _, _ in process.orders)
        unknown = any(self.states[number].new_episodes for number in process.blocks)
        with_state = unknown or known + waiting + self.steps > STEPS_TO_FOLLOW
        order = CollectRequest(process.blocks, self.steps, env_steps, self.num_envs, self.version, with_state)
        self._send(process, order, self.sent[1])

    def _send(self, process: Process, order: CollectRequest, weights: Any) -> None:
        process.orders.append((order, weights, process.actor.collect.remote(order, weights)))
        process.looked = time.monotonic()

    def _received(self, process: Process, chunks: list[Chunk]) -> list[tuple[slice, Chunk]]:
        """Record the new states of the blocks."""
        process.orders.popleft()
        process.looked = time.monotonic()
        for number, chunk in zip(process.blocks, chunks, strict=True):
            self.states[number] = self.states[number].after(chunk)
        return [(self.places[number], chunk) for number, chunk in zip(process.blocks, chunks, strict=True)]

    def _answer(self, process: Process) -> list[Chunk]:
        """The result of the oldest request. A collector that fails is started again with its requests."""
        while True:
            try:
                while not self.ray.wait([process.orders[0][2]], timeout=LOOK)[0]:
                    self._check_hanging(process)
                chunks: list[Chunk] = self.ray.get(process.orders[0][2])
                return chunks
            except (self.ray.exceptions.RayError, EnvFailed) as error:
                self._restart(process, error)

    def _check_hanging(self, process: Process) -> None:
        """Raise if it has taken no step for `timeout` seconds."""
        if time.monotonic() - process.looked < self.timeout:
            return
        try:
            asked = process.actor.steps_taken.options(concurrency_group="look").remote()
            taken = self.ray.get(asked, timeout=GRACE)
        except self.ray.exceptions.GetTimeoutError:
            taken = process.seen  # it does not even answer
        process.looked = time.monotonic()
        if taken == process.seen:
            raise EnvFailed(
                f"it took no step for {self.timeout:g} s; raise --worker-timeout if a step may take that long"
            )
        process.seen = taken

    def _start(self, process: Process) -> None:
        options = {"num_cpus": self.num_cpus, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        process.specs, process.seen, process.looked = None, -1, time.monotonic()
        states = {number: self.states[number] for number in process.blocks}
        process.actor = self._class.options(**options).remote(self.make_blocks, states)

    def _await_start(self, process: Process) -> None:
        asked = process.actor.describe.remote()
        deadline = time.monotonic() + START + self.timeout
        while not self.ray.wait([asked], timeout=LOOK)[0]:
            if time.monotonic() > deadline:
                raise EnvFailed(f"it did not start within {START + self.timeout:g} s; see `ray status` for free cores")
        try:
            process.specs, why = self.ray.get(asked)
        except self.ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, DrlError):  # a wrong name or argument
                raise cause from None
            raise EnvFailed(_reason(error)) from error
        self.lost = why or self.lost

    def _restart(self, process: Process, error: BaseException | None = None) -> None:
        """Start a new process with the states of the blocks and the same requests."""
        if error is not None:
            self._count_failure(process, error)
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.ray.kill(process.actor)
        orders, process.orders = list(process.orders), deque()
        while True:
            try:
                self._start(process)
                self._await_start(process)
                break
            except EnvFailed as again:  # its new node may die as well
                self._count_failure(process, again)
        if error is not None:
            for order, weights, _ in orders:
                self._send(process, order, weights)

    def _count_failure(self, process: Process, error: BaseException) -> None:
        cause = getattr(error, "cause", None)
        failed = f"{self._named(process)}: {_reason(cause or error)}"
        if self.restarts == 0:
            failure = EnvFailed(f"{failed}; it was started again as often as --collector-restarts says")
            failure.env_index = getattr(cause, "env_index", None)
            raise failure from error
        self.restarts -= 1
        warnings.warn(f"{failed}; it is started again ({self.restarts} restarts left)", stacklevel=2)

    def _named(self, process: Process) -> str:
        first, last = self.places[process.blocks[0]].start, self.places[process.blocks[-1]].stop - 1
        return f"{process}, environments {first}–{last}"

    def begin_anew(self) -> None:
        self.states = [BlockState(state.envs, (), state.agent) for state in self.states]
        self.obs = None
        self._rebuild()

    def _rebuild(self) -> None:
        """Make new blocks from `states` in the existing processes."""
        self.rows.clear()
        for process in self.processes:
            process.orders.clear()
            process.actor.rebuild.remote({number: self.states[number] for number in process.blocks})
        for process in self.processes:
            self._await_start(process)

    def state_dict(self) -> StateDict:
        kind = "asynchronous" if self.asynchronous else "synchronous"
        changes = [[name, stored_or_lost(value)] for name, value, arguments in self.changes if arguments is None]
        return {"collectors": {"kind": kind, "blocks": [state.plain() for state in self.states], "changes": changes}}

    def load_state_dict(self, state: StateDict) -> str | None:
        blocks = state["collectors"]["blocks"]
        if len(blocks) != len(self.states):
            raise BadInput(f"this state is of {len(blocks)} blocks of environments, not {len(self.states)}")
        self.states = [BlockState.from_plain(block) for block in blocks]
        changes = state["collectors"]["changes"]
        self.changes = [EnvChange(name, restored(value)) for name, value in changes if not is_lost(value)]
        self._rebuild()
        if state["collectors"]["kind"] == "asynchronous":
            return "its collectors were asynchronous"
        why, self.lost = self.lost, None
        return why

    def close(self) -> None:
        closing = [process.actor.close.remote() for process in self.processes if process.specs is not None]
        if closing:
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.wait(closing, num_returns=len(closing), timeout=GRACE)
        for process in self.processes:
            with contextlib.suppress(self.ray.exceptions.RayError, AttributeError):
                self.ray.kill(process.actor)


def _reason(error: BaseException) -> str:
    kind = "" if isinstance(error, EnvFailed) else f"{type(error).__name__}: "
    return " ".join(f"{kind}{error}".split())[:300]
