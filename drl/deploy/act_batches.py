"""Requests that arrive together are answered by one forward pass, in a thread beside the event loop."""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from drl.core.specs import Array
from drl.deploy.act_requests import ActRequest, Refused
from drl.engines.numpy.acting import Actor


class Acted(NamedTuple):
    """The answer to one request."""

    action: Array  # [N, …] in the environment's units
    rnn_state: Array | None  # [N, S] to send with the next observations


class Waiting(NamedTuple):
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
        self._waiting: deque[Waiting] = deque()
        self._arrived = asyncio.Event()

    async def act(self, request: ActRequest) -> Acted:
        answer: asyncio.Future[Acted] = asyncio.get_running_loop().create_future()
        self._waiting.append(Waiting(request, answer))
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
                        _settle(each, error)
                    continue
                for each, acted in zip(taken, answers, strict=True):
                    _settle(each, acted)

    def _take(self) -> list[Waiting]:
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
            agent.rnn_state = np.concatenate([request.rnn_state for request in requests])  # type: ignore[misc]
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
                answers.append(Refused(422, "the observation is so large that the action is not a finite number"))
        return answers


def _settle(waiting: Waiting, outcome: Acted | Exception) -> None:
    if waiting.answer.done():  # the client has gone
        return
    if isinstance(outcome, Exception):
        waiting.answer.set_exception(outcome)
    else:
        waiting.answer.set_result(outcome)
