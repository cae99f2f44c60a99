"""Requests to act: `{"obs": …}` or `{"batch": [obs, …]}` as JSON, checked against the agent's spaces.

Optional keys are `action_mask` and, for recurrent agents, `rnn_state`: that of the last answer, or none where an
episode begins. With a batch both are lists with one for each observation. `ActBatches` answers requests that arrive
together by one forward pass, in a thread beside the event loop.
"""

import asyncio
import json
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import Any, NamedTuple, NoReturn

import numpy as np

from drl.core.errors import BadInput, shown
from drl.core.specs import MASK_KEY, NUMBERS, Array, ObsSpec, PlainDict, PlainValue, RawObs
from drl.deploy.policy_graph import raw_dtype
from drl.engines.numpy.acting import Actor

MOST_AXES = 32  # of a shape in a message


class RefusedRequest(Exception):
    """A request that is not answered with an action; one line says why."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class ActRequest(NamedTuple):
    """Rows to act on."""

    obs: Array  # [N, …] encoded
    action_mask: Array | None  # [N, choices] bool
    rnn_state: Array | None  # [N, S] of a recurrent agent
    single: bool  # one observation, not a batch of one


def read_request(agent: Actor, body: bytes, most_rows: int) -> ActRequest:
    """The request in `body`; raises `RefusedRequest` with 422 or, for too many rows, 413."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return _read(agent, _parse(body), most_rows)
    except BadInput as error:
        raise RefusedRequest(422, str(error)) from None


def _parse(body: bytes) -> PlainDict:
    try:
        data = json.loads(body, parse_constant=_no_constant)
    except RecursionError:
        raise BadInput("the body is nested too deeply") from None
    except BadInput:  # of `_no_constant`; it is a ValueError
        raise
    except ValueError as error:
        raise BadInput(f"the body is not JSON: {shown(str(error))}") from None
    if not isinstance(data, dict) or ("obs" in data) == ("batch" in data):
        raise BadInput('expected a JSON object with "obs" (one observation) or "batch" (a list of them)')
    if unknown := sorted(data.keys() - {"obs", "batch", MASK_KEY, "rnn_state"}):
        raise BadInput(f"unknown key {shown(unknown[0])}; expected obs or batch, {MASK_KEY}, rnn_state")
    return data


def _no_constant(name: str) -> NoReturn:
    raise BadInput(f"the body has a {name}; expected finite numbers")


def _read(agent: Actor, data: PlainDict, most_rows: int) -> ActRequest:
    single = "obs" in data
    rows = [data["obs"]] if single else data["batch"]
    if not isinstance(rows, list) or not rows:
        raise BadInput(f"batch is {shown(rows)}; expected a list of observations")
    if len(rows) > most_rows:
        raise RefusedRequest(413, f"the batch has {len(rows):,} observations; at most {most_rows:,} are taken at once")
    masks = _per_row(data, MASK_KEY, single, len(rows))
    if masks is None and agent.obs_spec.kind == "dict":
        masks = _masks_inside(rows)
    encoded = agent.obs_spec.encode(_columns(agent.obs_spec, rows, "obs"))
    states = _per_row(data, "rnn_state", single, len(rows))
    return ActRequest(encoded, _masks(agent, masks), _states(agent, states, len(rows)), single)


def _masks_inside(rows: list[PlainValue]) -> list[PlainValue] | None:
    """Masks that are a key of Dict observations, as some environments give them."""
    masks = [row[MASK_KEY] for row in rows if isinstance(row, dict) and MASK_KEY in row]
    if masks and len(masks) < len(rows):
        raise BadInput(f"{MASK_KEY} is in some observations but not in all")
    return masks or None


def _per_row(data: PlainDict, key: str, single: bool, rows: int) -> list[PlainValue] | None:
    value = data.get(key)
    if value is None:
        return None
    values = [value] if single else value
    if not isinstance(values, list) or len(values) != rows:
        raise BadInput(f"{key} is {shown(value)}; expected a list with one for each of the {rows} observations")
    return values


def _columns(spec: ObsSpec, rows: list[PlainValue], name: str) -> RawObs:
    """Single observations as one batch: arrays, in a dict or tuple where the space is one."""
    if not spec.parts:
        return _numbers(spec, rows, name)
    keys: list[Any] = list(spec.keys) or list(range(len(spec.parts)))
    for row in rows:
        if spec.kind == "tuple" and not (isinstance(row, list) and len(row) == len(keys)):
            raise BadInput(f"{name} is {shown(row)}; expected a list of {len(keys)} parts")
        if spec.kind == "dict" and not (isinstance(row, dict) and row.keys() - {MASK_KEY} == set(keys)):
            expected = ", ".join(map(str, keys))
            some = ", ".join(map(shown, islice(row, 8)))[:200] if isinstance(row, dict) else ""
            got = f"has the keys {some}" if isinstance(row, dict) else f"is {shown(row)}"
            raise BadInput(f"{name} {got}; expected an object with the keys {expected}")
    pairs = zip(keys, spec.parts, strict=True)
    parts = {key: _columns(part, [row[key] for row in rows], f"{name}.{key}") for key, part in pairs}
    return parts if spec.kind == "dict" else tuple(parts.values())


def _numbers(spec: ObsSpec, rows: list[PlainValue], name: str) -> Array:
    """A part without parts. Its numbers must fit the type that the environment gives; a card has no bounds of a box."""
    dtype = np.dtype("bool" if spec.kind == "multi_binary" else raw_dtype(spec))
    array = _array(rows, name, spec.box_shape, booleans=dtype.kind == "b")
    if dtype.kind == "f":
        return _finite(array.astype(dtype), name)
    if array.dtype.kind == "f" and not (array == np.round(array)).all():
        raise BadInput(f"{name} has a fraction; expected whole numbers")
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if (array < low).any() or (array > high).any():
        raise BadInput(f"{name} has a number outside of {low} to {high}")
    return array.astype(dtype)


def _array(rows: list[PlainValue], name: str, shape: tuple[int, ...], booleans: bool = False) -> Array:
    """Lists of exactly this shape as `[N, …]`. All entries are checked before NumPy sees them: it would give each of
    several texts the room of the longest one."""
    given = _shape(rows[0])
    if given != shape and len(given) <= MOST_AXES:
        raise BadInput(f"{name} has the shape {list(given)}; expected {list(shape)}")
    no_array, entries = BadInput(f"{name} is not an array of numbers of the shape {list(shape)}"), rows
    for size in shape:
        if not all(isinstance(entry, list) and len(entry) == size for entry in entries):
            raise no_array
        entries = list(chain.from_iterable(entries))
    others = set(map(type, entries)) - ({int, float, bool} if booleans else {int, float})
    if list in others:
        raise no_array
    if others:
        first = next(entry for entry in entries if type(entry) in others)
        raise BadInput(f"{name} has {shown(first)}; expected numbers")
    try:
        array = np.array(entries).reshape(len(rows), *shape)
    except OverflowError:  # beside a fraction; without one it is an array of objects
        array = np.array(None)
    if array.dtype.kind not in NUMBERS:
        raise BadInput(f"{name} has a whole number of too many digits; expected numbers of 64 bits")
    _finite(array.astype(np.float32), name)  # which a network sees
    return array


def _shape(value: PlainValue) -> tuple[int, ...]:
    """Of nested lists, by the first entry of each."""
    sizes = []
    while isinstance(value, list):
        sizes.append(len(value))
        value = value[0] if value else None
    return tuple(sizes)


def _finite(array: Array, name: str) -> Array:
    if not np.isfinite(array).all():
        raise BadInput(f"{name} has a number that is not finite as {array.dtype}")
    return array


def _masks(agent: Actor, masks: list[PlainValue] | None) -> Array | None:
    if masks is None:
        return None
    spec = agent.action_spec
    if not spec.num_choices:
        raise BadInput(f"there is an {MASK_KEY}, but the actions are a Box, which has no choices to mask")
    array = _array(masks, MASK_KEY, (spec.num_choices,), booleans=True)
    if not np.isin(array, (0, 1)).all():
        raise BadInput(f"{MASK_KEY} is {shown(masks[0])}; expected true or false for each choice")
    legal = array.astype(bool)
    sizes = spec.sizes or (2,) * spec.entries
    if not np.logical_or.reduceat(legal, np.cumsum([0, *sizes[:-1]]), axis=1).all():
        raise BadInput(f"{MASK_KEY} leaves no legal action")
    return legal


def _states(agent: Actor, states: list[PlainValue] | None, rows: int) -> Array | None:
    size = agent.rnn_state_size
    if not size:
        if states is not None:
            raise BadInput("there is an rnn_state, but this agent is not recurrent")
        return None
    fresh = [0.0] * size
    given = [fresh if state is None else state for state in states or [None] * rows]
    return _array(given, "rnn_state", (size,)).astype(np.float32)


class Acted(NamedTuple):
    """The answer to one request."""

    action: Array  # [N, …] in the environment's units
    rnn_state: Array | None  # [N, S] to send with the next observations


class QueuedRequest(NamedTuple):
    """A request whose answer is awaited."""

    request: ActRequest
    answer: "asyncio.Future[Acted]"


class ActBatches:
    """`run` collects for `window` seconds after the first request, at most `most_rows` observations, then acts.

    What arrives while a batch is computed waits for the next one.
    """

    batches: int
    rows: int

    def __init__(self, agent: Actor, most_rows: int = 256, window: float = 0.001, explore: bool = False):
        self.agent: Actor = agent
        self.most_rows: int = most_rows
        self.window: float = window
        self.explore: bool = explore
        self.batches = self.rows = 0  # so far
        self._waiting: deque[QueuedRequest] = deque()
        self._arrived = asyncio.Event()

    async def act(self, request: ActRequest) -> Acted:
        answer: asyncio.Future[Acted] = asyncio.get_running_loop().create_future()
        self._waiting.append(QueuedRequest(request, answer))
        self._arrived.set()
        return await answer

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "act") as thread:
            while True:
                await self._arrived.wait()
                if self.window and sum(len(each.request.obs) for each in self._waiting) < self.most_rows:
                    await asyncio.sleep(self.window)
                taken = self._take()
                try:
                    answers = await loop.run_in_executor(thread, self._forward, [each.request for each in taken])
                except Exception as error:
                    for each in taken:
                        _resolve(each, error)
                    continue
                for each, acted in zip(taken, answers, strict=True):
                    _resolve(each, acted)

    def _take(self) -> list[QueuedRequest]:
        """The first requests that fit into one batch; at least one."""
        taken, rows = [self._waiting.popleft()], 0
        while self._waiting:
            rows += len(taken[-1].request.obs)
            if rows + len(self._waiting[0].request.obs) > self.most_rows:
                break
            taken.append(self._waiting.popleft())
        if not self._waiting:
            self._arrived.clear()
        return taken

    def _forward(self, requests: list[ActRequest]) -> list[Acted | Exception]:
        """One pass over the rows of all requests. Without a mask all actions are legal."""
        obs = np.concatenate([request.obs for request in requests])
        self.batches, self.rows = self.batches + 1, self.rows + len(obs)
        agent, mask = self.agent, None
        if any(request.action_mask is not None for request in requests):
            legal = np.ones((len(obs), agent.action_spec.num_choices), bool)
            mask = np.concatenate([legal[: len(r.obs)] if r.action_mask is None else r.action_mask for r in requests])
        if agent.recurrent:
            agent.rnn_state = np.concatenate([request.rnn_state for request in requests])
        with np.errstate(all="ignore"):
            action = agent.action_spec.to_env(agent.decide(obs, self.explore, mask))
        answers: list[Acted | Exception] = []
        ends = np.cumsum([len(request.obs) for request in requests])
        for request, end in zip(requests, ends, strict=True):
            own = slice(end - len(request.obs), end)
            state = agent.rnn_state[own] if agent.recurrent and agent.rnn_state is not None else None
            numbers = [action[own]] if state is None else [action[own], state]
            if all(np.isfinite(array).all() for array in numbers):
                answers.append(Acted(action[own], state))
            else:
                answers.append(
                    RefusedRequest(422, "the observation is so large that the action is not a finite number")
                )
        return answers


def _resolve(waiting: QueuedRequest, outcome: Acted | Exception) -> None:
    if waiting.answer.done():  # the client has gone
        return
    if isinstance(outcome, Exception):
        waiting.answer.set_exception(outcome)
    else:
        waiting.answer.set_result(outcome)
