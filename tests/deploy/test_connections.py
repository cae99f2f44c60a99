"""Connections to a server have an end: those that send nothing, those that read nothing, those that are too many."""

import asyncio
import contextlib
import json
import socket

import httpx
import pytest
import uvicorn

from drl.deploy import http_app
from drl.deploy.http_app import HttpConnection, ServeLimits, make_app, make_server
from tests.deploy.tiny_agents import make_agent

HEAD = b"POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 21\r\n\r\n"
BODY = b'{"obs": [1, 2, 3, 4]}'


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(http_app, "HEAD_SECONDS", 0.8)
    monkeypatch.setattr(http_app, "READ_SECONDS", 0.8)
    monkeypatch.setattr(http_app, "MOST_CONNECTIONS", 5)


def with_server(conversation, server=None):
    """What `conversation(port, server)` returns while the server of `drl serve` runs, in this process."""

    async def run():
        served = server or make_server(make_app(make_agent("ppo"), ServeLimits(), window=0.0))
        with socket.create_server(("127.0.0.1", 0)) as listening:
            running = asyncio.create_task(served.serve(sockets=[listening]))
            try:
                while not served.started:
                    await asyncio.sleep(0.01)
                async with asyncio.timeout(15):
                    return await conversation(listening.getsockname()[1], served)
            finally:
                served.should_exit = True
                await running

    return asyncio.run(run())


@contextlib.asynccontextmanager
async def connected(port, *sent):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in sent:
            writer.write(part)
            await writer.drain()
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def until_closed(reader):
    """What arrives before the server ends the connection."""
    try:
        return await asyncio.wait_for(reader.read(), 5)
    except ConnectionResetError:
        return b""


SLOW = {
    "nothing": [],
    "half a head": [HEAD[:30]],
    "half a second head": [HEAD + BODY, HEAD[:30]],
    "half a body that nobody waits for": [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
        b"12",
    ],
}


@pytest.mark.default("nothing")
@pytest.mark.parametrize("sent", SLOW.values(), ids=SLOW.keys())
def test_a_connection_without_a_request_is_closed(sent):
    async def conversation(port, server):
        async with connected(port) as (reader, writer):
            for part in sent:
                writer.write(part)
                await asyncio.sleep(0.05)
            return await until_closed(reader)

    answer = with_server(conversation)
    assert answer.count(b"HTTP/1.1 200") == (len(sent) > 1)


def test_bytes_that_drip_do_not_keep_a_connection_open():
    async def conversation(port, server):
        async with connected(port) as (reader, writer):
            closed = asyncio.create_task(until_closed(reader))
            for byte in HEAD:  # 100 bytes, so five seconds
                if closed.done():
                    break
                writer.write(bytes([byte]))
                await asyncio.sleep(0.05)
            assert closed.done()

    with_server(conversation)


def test_a_server_full_of_idle_connections_refuses_in_json_and_then_answers_again():
    async def conversation(port, server):
        url = f"http://127.0.0.1:{port}/health"
        async with contextlib.AsyncExitStack() as stack, httpx.AsyncClient() as client:
            idle = [await stack.enter_async_context(connected(port)) for _ in range(5)]
            while len(server.server_state.connections) < 5:
                await asyncio.sleep(0.01)
            full = await client.get(url)
            for reader, _ in idle:
                await until_closed(reader)
            return full, await client.get(url)

    full, later = with_server(conversation)
    assert full.status_code == 503
    assert json.loads(full.text) == {"error": "too many connections; try again"}
    assert full.headers["connection"] == "close"
    assert later.json() == {"status": "ok"}


def test_as_many_connections_as_allowed_are_answered_again_and_again():
    """Requests that come slower than a head may are fine, as long as each head is quick."""

    async def conversation(port, server):
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(port)) for _ in range(5)]
            for _ in range(2):
                for _, writer in clients:
                    writer.write(HEAD)
                await asyncio.sleep(1.0)  # longer than HEAD_SECONDS: the head is here, the body is not
                for reader, writer in clients:
                    writer.write(BODY)
                    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
                    assert b'{"action":' in await reader.readuntil(b"}")

    with_server(conversation)


def test_a_client_that_does_not_read_is_not_waited_for():
    async def large(scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for more in (True, True, False):
                await send({"type": "http.response.body", "body": b"x" * (8 << 20), "more_body": more})

    async def conversation(port, server):
        with socket.create_connection(("127.0.0.1", port)) as deaf:
            deaf.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while not server.server_state.tasks:
                await asyncio.sleep(0.01)
            while server.server_state.connections or server.server_state.tasks:
                await asyncio.sleep(0.01)

    config = uvicorn.Config(large, http=HttpConnection, lifespan="off", log_level="critical")
    with_server(conversation, uvicorn.Server(config))


def test_a_stop_answers_whoever_has_sent_a_head_and_resets_the_others(capsys):
    async def conversation(port, server):
        async with connected(port, HEAD) as (taken, writer), connected(port, HEAD[:30]) as (late, _):
            while not server.server_state.tasks or len(server.server_state.connections) < 2:
                await asyncio.sleep(0.01)
            server.should_exit = True
            lost = await until_closed(late)
            writer.write(BODY)
            return await until_closed(taken), lost

    answer, lost = with_server(conversation)
    assert answer.startswith(b"HTTP/1.1 200")
    assert lost == b""
    assert capsys.readouterr().out == "stopped after 1 request to act\n"
