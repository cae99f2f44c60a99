"""The HTTP application: `POST /act`, `GET /health`, `/metrics` and `/`, which describes the spaces.

Answers are JSON; a refused request gets one line that says why. Every connection has an end, also if the client sends
or reads nothing: uvicorn alone closes only connections that are idle after an answer.
"""

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from drl import __version__
from drl.core.processes import is_loopback, is_own_host
from drl.core.specs import MASK_KEY, PlainDict
from drl.deploy.act_requests import ActBatches, RefusedRequest, read_request
from drl.deploy.policy_graph import PolicyGraph, golden_inputs, masks_in_training, raw_observations, sample_inputs
from drl.engines.numpy.acting import Actor

MOST_CONNECTIONS = 512  # open at once; further ones are answered with 503
PATIENCE = 30  # seconds for requests that are being answered when the server is stopped
BODY_SECONDS = 10.0  # for the body of a request
HEAD_SECONDS = 10.0  # for the whole head of a request, from the connection or the last answer on
READ_SECONDS = 10.0  # for a client to read an answer
LARGE = 64 << 10  # bytes from which a body is parsed in a thread, so that others are answered meanwhile
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)  # seconds
NO_MASK = f"the request has no {MASK_KEY}, which this agent was given in training; the action may be illegal"


class ServeMetrics:
    """Counts and latencies of requests to act.

    >>> metrics = ServeMetrics()
    >>> metrics.answered(200, 0.004)
    >>> [line for line in metrics.text(batches=1, rows=3).splitlines() if line[0] != "#"][:3]
    ['drl_serve_requests_total{code="200"} 1', 'drl_serve_in_flight 0', 'drl_serve_batches_total 1']
    """

    def __init__(self) -> None:
        self.in_flight = 0  # requests to act
        self._codes: Counter[int] = Counter()
        self._at_most = [0] * len(BUCKETS)  # answers that took at most so many seconds
        self._seconds = 0.0

    def answered(self, code: int, seconds: float) -> None:
        """Count an answer."""
        self._codes[code] += 1
        self._seconds += seconds
        for index, bound in enumerate(BUCKETS):
            self._at_most[index] += seconds <= bound

    @property
    def total(self) -> int:
        """Requests that were answered, refusals among them."""
        return self._codes.total()

    def text(self, batches: int, rows: int) -> str:
        """All numbers in the text form of Prometheus."""
        families = {
            "requests_total counter": [f'{{code="{code}"}} {self._codes[code]}' for code in sorted(self._codes)],
            "in_flight gauge": [f" {self.in_flight}"],
            "batches_total counter": [f" {batches}"],
            "observations_total counter": [f" {rows}"],
            "latency_seconds histogram": [
                *(f'_bucket{{le="{bound}"}} {n}' for bound, n in zip(BUCKETS, self._at_most, strict=True)),
                f'_bucket{{le="+Inf"}} {self.total}',
                f"_sum {self._seconds:.6f}",
                f"_count {self.total}",
            ],
        }
        lines = []
        for family, values in families.items():
            lines += [f"# TYPE drl_serve_{family}", *(f"drl_serve_{family.split()[0]}{value}" for value in values)]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class ServeLimits:
    """Limits of one request."""

    most_bytes: int = 4 << 20  # of a body
    most_rows: int = 256  # observations of a request, and of a forward pass


def make_app(
    agent: Actor,
    limits: ServeLimits,
    window: float = 0.001,
    explore: bool = False,
    host: str = "127.0.0.1",
    console: bool = True,
) -> Starlette:
    """The application. On a loopback `host` only requests to that machine's own names are answered: a web page whose
    name was pointed to 127.0.0.1 (DNS rebinding) is not."""
    server = _Server(agent, limits, window, explore, console)
    routes = [
        Route("/act", server.act, methods=["POST"]),
        Route("/health", server.health),
        Route("/metrics", server.show_metrics),
        Route("/", server.describe),
    ]
    own_names = [Middleware(_answer_own_names, host.lower())] if is_loopback(host) else []
    return Starlette(
        routes=routes, middleware=own_names, lifespan=server.lifespan, exception_handlers={HTTPException: _refuse_http}
    )


def _answer_own_names(app: ASGIApp, host: str) -> ASGIApp:
    """Refuse requests whose Host is not an address, `localhost` or the served name."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        passed = app
        if scope["type"] == "http":
            named = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            if not is_own_host(named, host):
                passed = _refusal(403, "this server answers only to the names of its own machine, such as localhost")
        await passed(scope, receive, send)

    return answer


class _Server:
    def __init__(self, agent: Actor, limits: ServeLimits, window: float, explore: bool, console: bool):
        self.agent, self.limits, self.explore, self.console = agent, limits, explore, console
        self.masked = masks_in_training(agent)
        self.metrics = ServeMetrics()
        self.batches = ActBatches(agent, limits.most_rows, window, explore)
        self.reading = ThreadPoolExecutor(1, "read")

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        running = asyncio.create_task(self.batches.run())
        yield
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        self.reading.shutdown()
        total = self.metrics.total
        if self.console:
            print(f"stopped after {total:,} request{'' if total == 1 else 's'} to act", flush=True)

    async def act(self, http: Request) -> Response:
        started, self.metrics.in_flight = time.perf_counter(), self.metrics.in_flight + 1
        code = 500
        try:
            answer = await self._act(http)
            code = 200
            return JSONResponse(answer)
        except RefusedRequest as refused:
            code = refused.status
            return _refusal(code, str(refused))
        except Exception as error:
            print(f"drl serve: {type(error).__name__}: {error}"[:300], file=sys.stderr)
            return _refusal(code, "the agent failed on this request; the server's log says how")
        finally:
            self.metrics.in_flight -= 1
            self.metrics.answered(code, time.perf_counter() - started)

    async def _act(self, http: Request) -> PlainDict:
        if http.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RefusedRequest(415, "send JSON, with the header Content-Type: application/json")
        body = await self._body(http)
        arguments = (self.agent, body, self.limits.most_rows)
        if len(body) < LARGE:
            request = read_request(*arguments)
        else:
            request = await asyncio.get_running_loop().run_in_executor(self.reading, read_request, *arguments)
        acted = await self.batches.act(request)
        answer = {"action": acted.action.tolist()}
        if acted.rnn_state is not None:
            answer["rnn_state"] = acted.rnn_state.tolist()
        warning = {"warning": NO_MASK} if self.masked and request.action_mask is None else {}
        return {name: rows[0] if request.single else rows for name, rows in answer.items()} | warning

    async def _body(self, http: Request) -> bytes:
        most, body = self.limits.most_bytes, bytearray()
        too_large = RefusedRequest(413, f"the body has more than {most:,} bytes")
        stated = http.headers.get("content-length", "")
        if stated.isdecimal() and int(stated[:20]) > most:
            raise too_large
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in http.stream():
                    body += chunk
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            raise RefusedRequest(408, f"the body did not arrive within {BODY_SECONDS:g} seconds") from None
        except ClientDisconnect:
            raise RefusedRequest(400, "the client closed the connection") from None
        return bytes(body)

    async def health(self, http: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def show_metrics(self, http: Request) -> Response:
        text = self.metrics.text(self.batches.batches, self.batches.rows)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def describe(self, http: Request) -> Response:
        agent, choices = self.agent, self.agent.action_spec.num_choices
        return JSONResponse({
            "drl": __version__,
            "env": agent.notes.get("env"),
            "acts": "sampled from the policy" if self.explore else "the most likely or best action",
            "obs_space": agent.obs_spec.to_json(),
            "action_space": agent.action_spec.to_json(),
            MASK_KEY: {"choices": choices, "given_in_training": self.masked} if choices else None,
            "rnn_state_size": agent.rnn_state_size,
            "limits": {"bytes": self.limits.most_bytes, "observations": self.limits.most_rows},
            "example": {"method": "POST", "path": "/act", "body": _example(agent, bool(self.masked))},
        })  # fmt: skip


def _example(agent: Actor, masked: bool) -> PlainDict:
    """A body with one observation of the space; if the agent's golden pairs have masks, the first of these pairs."""
    graph = PolicyGraph(agent.obs_spec, agent.action_spec, agent.normalizer, None, masked)
    inputs = golden_inputs(graph, agent.golden_inputs) if masked else None
    inputs = inputs or sample_inputs(graph, 1, np.random.default_rng(0))

    def plain(raw: object) -> object:
        if isinstance(raw, dict):
            return {key: plain(part) for key, part in raw.items()}
        return [plain(part) for part in raw] if isinstance(raw, tuple) else raw[0].tolist()  # type: ignore[index]

    mask = {MASK_KEY: inputs[MASK_KEY][0].tolist()} if masked else {}
    return {"obs": plain(raw_observations(agent.obs_spec, inputs))} | mask


def _refusal(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status)


async def _refuse_http(http: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _refusal(error.status_code, f"{http.method} {http.url.path[:80]}: {error.detail}; see GET /")


class HttpConnection(H11Protocol):
    """A connection with time limits. Beyond `limit_concurrency` of them a request is refused in our own form."""

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
        """Handle received data."""
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
        """Close the connection if the client does not read in time."""
        super().pause_writing()
        self._read = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel that timer."""
        super().resume_writing()
        if self._read is not None:
            self._read.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers."""
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


def make_server(app: ASGIApp) -> uvicorn.Server:
    """The server of an application, which does not run yet."""
    config = uvicorn.Config(
        app,
        http=HttpConnection,
        log_config=None,  # the logging of this process is its own
        log_level="critical",  # the application reports its own failures; clients must not fill a log
        access_log=False,
        server_header=False,
        ws="none",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=PATIENCE,
    )
    return uvicorn.Server(config)
