"""The HTTP application: `POST /act`, `GET /health`, `/metrics` and `/`, which describes the spaces.

Answers are JSON; a request that is refused gets one line that says why.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from drl import __version__
from drl.core.hosts import is_loopback, is_own_host
from drl.core.specs import MASK_KEY, PlainDict
from drl.deploy.act_batches import ActBatches
from drl.deploy.act_requests import ActRequest, Refused, read_request, rnn_state_size
from drl.deploy.known_masks import masks_in_training
from drl.deploy.policy_graph import PolicyGraph
from drl.deploy.sampled_inputs import golden_inputs, raw_observations, sample_inputs
from drl.deploy.serve_metrics import ServeMetrics
from drl.engines.numpy.acting import Actor

BODY_SECONDS = 10.0  # in which a body must have arrived
LARGE = 64 << 10  # bytes of a body from which on it is read in a thread, so that others are answered meanwhile
NO_MASK = f"the request has no {MASK_KEY}, which this agent was given in training; the action may be illegal"


@dataclass(frozen=True)
class ServeLimits:
    """What one request may ask for."""

    most_bytes: int = 4 << 20  # of a body
    most_rows: int = 256  # observations of a request, and of a forward pass


def make_app(
    agent: Actor,
    limits: ServeLimits,
    window: float = 0.001,
    explore: bool = False,
    host: str = "127.0.0.1",
    console: bool = True,
) -> ASGIApp:
    """The application. On a loopback `host` only requests to that machine's own names are answered: a web page whose
    name was pointed to 127.0.0.1 (DNS rebinding) is not."""
    server = _Server(agent, limits, window, explore, console)
    routes = [
        Route("/act", server.act, methods=["POST"]),
        Route("/health", server.health),
        Route("/metrics", server.show_metrics),
        Route("/", server.describe),
    ]
    app = Starlette(routes=routes, lifespan=server.lifespan, exception_handlers={HTTPException: _refuse_http})
    return _OwnNames(app, host) if is_loopback(host) else app


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
        except Refused as refused:
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
            raise Refused(415, "send JSON, with the header Content-Type: application/json")
        asked = await self._read(await self._body(http))
        acted = await self.batches.act(asked)
        answer = {"action": acted.action.tolist()}
        if acted.rnn_state is not None:
            answer["rnn_state"] = acted.rnn_state.tolist()
        warning = {"warning": NO_MASK} if self.masked and asked.action_mask is None else {}
        return {name: rows[0] if asked.single else rows for name, rows in answer.items()} | warning

    async def _read(self, body: bytes) -> ActRequest:
        given = (self.agent, body, self.limits.most_rows)
        if len(body) < LARGE:
            return read_request(*given)
        return await asyncio.get_running_loop().run_in_executor(self.reading, read_request, *given)

    async def _body(self, http: Request) -> bytes:
        most, body = self.limits.most_bytes, bytearray()
        too_large = Refused(413, f"the body has more than {most:,} bytes")
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
            raise Refused(408, f"the body did not arrive within {BODY_SECONDS:g} seconds") from None
        except ClientDisconnect:
            raise Refused(400, "the client closed the connection") from None
        return bytes(body)

    async def health(self, http: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def show_metrics(self, http: Request) -> Response:
        text = self.metrics.text(self.batches.batches, self.batches.rows)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def describe(self, http: Request) -> Response:
        agent = self.agent
        return JSONResponse({
            "drl": __version__,
            "env": agent.notes.get("env"),
            "acts": "sampled from the policy" if self.explore else "the most likely or best action",
            "obs_space": agent.obs_spec.to_json(),
            "action_space": agent.action_spec.to_json(),
            MASK_KEY: self._mask(),
            "rnn_state_size": rnn_state_size(agent),
            "limits": {"bytes": self.limits.most_bytes, "observations": self.limits.most_rows},
            "example": {"method": "POST", "path": "/act", "body": _example(agent, bool(self.masked))},
        })  # fmt: skip

    def _mask(self) -> PlainDict | None:
        """What the description says about masks; None: the actions are a Box, which has no choices to mask."""
        choices = self.agent.action_spec.num_choices
        return {"choices": choices, "given_in_training": self.masked} if choices else None


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


class _OwnNames:
    """Passes on requests whose Host is an address, `localhost` or the served name."""

    def __init__(self, app: ASGIApp, host: str):
        self.app, self.host = app, host.lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            if not is_own_host(given, self.host):
                refusal = _refusal(403, "this server answers only to the names of its own machine, such as localhost")
                await refusal(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _refusal(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status)


async def _refuse_http(http: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _refusal(error.status_code, f"{http.method} {http.url.path[:80]}: {error.detail}; see GET /")
