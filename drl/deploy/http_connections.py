"""Connections of the server. Each has an end, also if the client sends nothing or reads nothing.

uvicorn alone closes only those that are idle after an answer. Others would count for ever among those that it allows.
"""

import asyncio

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0  # for the whole head of a request, from the connection or the last answer on
READ_SECONDS = 10.0  # for a client to read an answer


class HttpConnection(H11Protocol):
    """One connection. Beyond `limit_concurrency` of them a request is refused in the form of all other refusals."""

    app: ASGIApp
    most: int | None  # connections
    limit_concurrency: int | None
    _head: asyncio.TimerHandle | None = None
    _read: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self.most, self.limit_concurrency = self.limit_concurrency, None  # uvicorn would answer in plain text
        self._await_head()

    def handle_events(self) -> None:
        """Take up what has arrived."""
        full = self.most is not None and max(len(self.connections), len(self.tasks)) > self.most
        self.app = refuse_full if full else self.config.loaded_app
        super().handle_events()
        if self._head is not None and self.cycle is not None and not self.cycle.response_complete:
            self._head.cancel()

    def on_response_complete(self) -> None:
        """Wait for the next request, and for the client to read this answer."""
        self._await_head()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client reads too slowly, or not at all."""
        super().pause_writing()
        self._read = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        if self._read is not None:
            self._read.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        for timer in (self._head, self._read):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
        self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)


async def refuse_full(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 503 to one request."""
    answer = JSONResponse({"error": "too many connections; try again"}, 503, headers={"connection": "close"})
    await answer(scope, receive, send)
