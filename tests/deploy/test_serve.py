"""A served agent: its answers are those of the agent, limits hold, and it stops without loss."""

import asyncio
import contextlib
import json
import logging
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading

import httpx
import numpy as np
import pytest

import drl
from drl.cli.entry import main
from drl.core.golden_pairs import GoldenInputs
from drl.deploy import http_app
from drl.deploy.act_requests import ActBatches, read_request
from drl.deploy.http_app import ServeLimits, make_app
from drl.deploy.policy_graph import PolicyGraph, raw_observations, sample_inputs
from tests.deploy.tiny_agents import KINDS, make_agent, save_tiny

JSON = {"content-type": "application/json"}


def observations(agent, rows, seed=0):
    """Raw ones of the space: as a batch for the agent, and one by one as JSON."""
    batch = raw_observations(agent.obs_spec, sample_inputs(PolicyGraph.of(agent), rows, np.random.default_rng(seed)))

    def row(raw, i):
        if isinstance(raw, dict):
            return {key: row(part, i) for key, part in raw.items()}
        return [row(part, i) for part in raw] if isinstance(raw, tuple) else raw[i].tolist()

    return batch, [row(batch, i) for i in range(rows)]


def talk(agent, conversation, limits=None, **options):
    """What `conversation(client)` returns, with a client of the application."""

    async def run():
        app = make_app(agent, limits or ServeLimits(), **options)
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
                return await conversation(client)

    return asyncio.run(run())


def as_numbers(actions):
    return np.array(actions, np.float64)


@pytest.mark.default("ppo", "q_cnn", "ppo_parts", "ppo_lstm", "sac", "q_rainbow")
@pytest.mark.parametrize("name", KINDS)
def test_answers_are_the_agents_alone_in_batches_and_together(name):
    agent, kind = make_agent(name), KINDS[name]
    batch, rows = observations(agent, 12)
    masks = np.ones((12, kind.action.num_choices), bool)
    if kind.masked:
        masks = sample_inputs(PolicyGraph.of(agent, True), 12, np.random.default_rng(1))["action_mask"]
    expected = as_numbers(make_agent(name).act(batch, action_mask=masks if kind.masked else None))

    async def conversation(client):
        bodies = [{"obs": row} | ({"action_mask": m.tolist()} if kind.masked else {}) for row, m in zip(rows, masks)]  # noqa: B905
        alone = [(await client.post("/act", json=body)).json()["action"] for body in bodies[:3]]
        together = await asyncio.gather(*(client.post("/act", json=body) for body in bodies))
        whole = {"batch": rows} | ({"action_mask": masks.tolist()} if kind.masked else {})
        one_request = (await client.post("/act", json=whole)).json()["action"]
        counted = (await client.get("/metrics")).text
        return alone, [answer.json()["action"] for answer in together], one_request, counted

    alone, together, one_request, counted = talk(agent, conversation, window=0.05)
    np.testing.assert_allclose(as_numbers(alone), expected[:3], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(as_numbers(together), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(as_numbers(one_request), expected, rtol=1e-5, atol=1e-5)
    batches = int(re.search(r"drl_serve_batches_total (\d+)\n", counted)[1])
    assert 5 <= batches < 16  # three alone, twelve together in one or a few, one request
    assert "drl_serve_observations_total 27\n" in counted
    assert 'drl_serve_requests_total{code="200"} 16\n' in counted


@pytest.mark.parametrize("name", ["ppo_gru", "ppo_lstm"])
def test_clients_carry_the_rnn_state(name):
    """Two episodes, mixed with other requests, are those of an agent that plays them alone."""
    agent, reference = make_agent(name), make_agent(name)
    raw, rows = observations(agent, 6)
    expected = []
    for episode in (raw[:3], raw[3:]):
        reference.begin()
        expected.append([reference.act(obs[None])[0] for obs in episode])

    async def play(client, episode):
        state, actions = None, []
        for obs in episode:
            body = {"obs": obs} | ({} if state is None else {"rnn_state": state})
            answer = (await client.post("/act", json=body)).json()
            state = answer["rnn_state"]
            actions.append(answer["action"])
        return actions

    async def conversation(client):
        together = await asyncio.gather(play(client, rows[:3]), play(client, rows[3:]))
        first = (await client.post("/act", json={"batch": [rows[0], rows[3]]})).json()
        mixed = {"batch": [rows[1], rows[3]], "rnn_state": [first["rnn_state"][0], None]}
        second = (await client.post("/act", json=mixed)).json()
        assert len(first["rnn_state"][0]) == (await client.get("/")).json()["rnn_state_size"]
        return together, [first["action"][0], second["action"][0]], second["action"][1]

    together, in_batches, fresh = talk(agent, conversation)
    np.testing.assert_allclose(as_numbers(together), as_numbers(expected), atol=1e-5)
    np.testing.assert_allclose(as_numbers(in_batches), as_numbers(expected[0][:2]), atol=1e-5)
    np.testing.assert_allclose(as_numbers(fresh), as_numbers(expected[1][0]), atol=1e-5)


def test_sampled_actions_differ_and_the_best_ones_do_not():
    def asked(explore):
        agent = make_agent("policy_bits")
        agent.rng = np.random.default_rng(0)
        _, rows = observations(agent, 1)

        async def conversation(client):
            return (await client.post("/act", json={"batch": rows * 50})).json()["action"]

        return {tuple(action) for action in talk(agent, conversation, explore=explore)}

    assert len(asked(False)) == 1
    assert len(asked(True)) > 1


def test_the_description_has_a_body_that_works():
    for name in ("q_cnn", "ppo_parts", "ppo_seeing"):
        agent = make_agent(name)

        async def conversation(client):
            told = (await client.get("/")).json()
            example = told["example"]
            answer = await client.request(example["method"], example["path"], json=example["body"])
            return told, answer.status_code

        told, status = talk(agent, conversation)
        assert status == 200
        assert told["obs_space"] == agent.obs_spec.to_json()
        assert told["limits"] == {"bytes": 4 << 20, "observations": 256}


def masked_agent(name):
    """An agent with golden pairs of an environment that gives masks, and these masks."""
    agent = make_agent(name)
    inputs = sample_inputs(PolicyGraph.of(agent, True), 3, np.random.default_rng(5))
    encoded = agent.obs_spec.encode(raw_observations(agent.obs_spec, inputs))
    agent.golden_inputs = GoldenInputs(encoded, inputs["action_mask"])
    return agent, inputs["action_mask"]


@pytest.mark.parametrize("name", ["q_vector", "ppo_parts", "ppo_gru", "policy_bits"])
def test_masks_are_described_and_a_client_that_forgets_them_is_told(name):
    agent, masks = masked_agent(name)

    async def conversation(client):
        told = (await client.get("/")).json()
        body = told["example"]["body"]
        bare = {"obs": body["obs"]}
        bodies = (body, bare, {"batch": [bare["obs"]] * 2})
        return told, [(await client.post("/act", json=each)).json() for each in bodies]

    told, (whole, forgot, forgot_in_batch) = talk(agent, conversation)
    assert told["action_mask"] == {"choices": agent.action_spec.num_choices, "given_in_training": True}
    assert told["example"]["body"]["action_mask"] == masks[0].tolist()
    assert "warning" not in whole
    for answer in (forgot, forgot_in_batch):
        assert "no action_mask, which this agent was given in training" in answer["warning"]
    assert forgot["action"] == forgot_in_batch["action"][0] == forgot_in_batch["action"][1]


def test_agents_without_masks_are_described_as_such():
    unknown, never = make_agent("q_vector"), make_agent("q_vector")
    never.golden_inputs = GoldenInputs(np.ones((3, 4), np.float32))

    async def conversation(client):
        answer = (await client.post("/act", json={"obs": [1, 2, 3, 4]})).json()
        told = (await client.get("/")).json()
        return told["action_mask"], list(told["example"]["body"]), list(answer)

    expected = ["obs"], ["action"]
    assert talk(unknown, conversation) == ({"choices": 5, "given_in_training": None}, *expected)
    assert talk(never, conversation) == ({"choices": 5, "given_in_training": False}, *expected)
    assert talk(make_agent("ppo"), conversation) == (None, *expected)


def test_others_are_answered_while_a_large_body_is_read(monkeypatch):
    answered, in_time = threading.Event(), []

    def slowly(*given):
        in_time.append(answered.wait(3))
        return read_request(*given)

    monkeypatch.setattr(http_app, "read_request", slowly)

    async def conversation(client):
        body = b'{"obs": [1, 2, 3, 4]' + b" " * http_app.LARGE + b"}"
        asked = asyncio.create_task(client.post("/act", content=body, headers=JSON))
        await asyncio.sleep(0.1)
        health = await client.get("/health")
        answered.set()
        return health.status_code, (await asked).status_code

    assert talk(make_agent("ppo"), conversation) == (200, 200)
    assert in_time == [True]


def test_an_action_that_is_not_a_number_is_refused_and_others_in_the_batch_are_answered():
    agent = make_agent("policy_half_open")
    for layer in (agent.model.backbone[0], agent.model.backbone[2], agent.model.head.mean):
        layer.weight.data.fill_(1.0)
    agent.model.head.mean.weight.data[0, 0] = -1.0  # ∞ − ∞

    async def conversation(client):
        large, usual = {"obs": [3e38, 3e38, 3e38, 3e38]}, {"obs": [0, 0, 0, 0]}
        return await asyncio.gather(*(client.post("/act", json=body) for body in (large, usual)))

    large, usual = talk(agent, conversation, window=0.05)
    assert (large.status_code, usual.status_code) == (422, 200)
    assert "so large that the action is not a finite number" in large.text


def test_limits_names_and_methods():
    agent = make_agent("ppo")
    body = b'{"obs": [1, 2, 3, 4]}'

    async def conversation(client):
        async def chunks():
            yield b'{"obs": ['
            for _ in range(100):
                yield b"1, " * 10

        answers = {
            "too long": await client.post("/act", content=b" " * 2001, headers=JSON),
            "too long in chunks": await client.post("/act", content=chunks(), headers=JSON),
            "lies": await client.post("/act", content=body, headers=JSON | {"content-length": "9" * 30}),
            "many": await client.post("/act", json={"batch": [[1, 2, 3, 4]] * 5}),
            "most": await client.post("/act", json={"batch": [[1, 2, 3, 4]] * 4}),
            "form": await client.post("/act", content=body),
            "get": await client.get("/act"),
            "nowhere": await client.get("/admin"),
            "rebound": await client.post("/act", content=body, headers=JSON | {"host": "evil.example:8000"}),
            "lookalike": await client.get("/", headers={"host": "127.0.0.1.evil.example"}),
            "no host": await client.get("/", headers={"host": ""}),
            "ipv6": await client.get("/health", headers={"host": "[::1]:8000"}),
            "own": await client.get("/health", headers={"host": "127.0.0.1"}),
        }
        return {name: (answer.status_code, answer.text) for name, answer in answers.items()}

    told = talk(agent, conversation, ServeLimits(most_bytes=2000, most_rows=4))
    codes = {name: code for name, (code, _) in told.items()}
    assert codes == {
        "too long": 413, "too long in chunks": 413, "lies": 413, "many": 413, "most": 200, "form": 415, "get": 405,
        "nowhere": 404, "rebound": 403, "lookalike": 403, "no host": 403, "ipv6": 200, "own": 200,
    }  # fmt: skip
    assert json.loads(told["many"][1])["error"] == "the batch has 5 observations; at most 4 are taken at once"
    assert all("error" in json.loads(text) for code, text in told.values() if code >= 400)
    assert codes["rebound"] == 403

    async def from_elsewhere(client):
        return (await client.get("/health", headers={"host": "workshop.example"})).status_code

    assert talk(agent, from_elsewhere, host="0.0.0.0") == 200  # whoever opens it to others has other names


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(http_app, "BODY_SECONDS", 0.05)

    async def conversation(client):
        async def slowly():
            yield b"{"
            await asyncio.sleep(5)

        return await client.post("/act", content=slowly(), headers=JSON)

    assert talk(make_agent("ppo"), conversation).status_code == 408


def test_an_agent_that_fails_is_one_line_without_a_traceback(capsys):
    agent = make_agent("ppo")

    def fail(*_):
        raise RuntimeError("secret path")

    agent.decide = fail

    async def conversation(client):
        first = await client.post("/act", json={"obs": [1, 2, 3, 4]})
        del agent.decide
        return first, await client.post("/act", json={"obs": [1, 2, 3, 4]})

    failed, later = talk(agent, conversation)
    assert (failed.status_code, later.status_code) == (500, 200)
    assert "secret" not in failed.text
    assert capsys.readouterr().err == "drl serve: RuntimeError: secret path\n"


def test_a_batch_has_at_most_so_many_rows():
    agent = make_agent("ppo")
    asked = [read_request(agent, b'{"batch": [[1, 2, 3, 4], [1, 2, 3, 4]]}', 9) for _ in range(5)]

    async def run():
        batches, sizes = ActBatches(agent, most_rows=5, window=0.0), []
        decide = agent.decide
        agent.decide = lambda obs, *rest: (sizes.append(len(obs)), decide(obs, *rest))[1]
        answers = [asyncio.ensure_future(batches.act(request)) for request in asked]
        await asyncio.sleep(0)
        running = asyncio.create_task(batches.run())
        await asyncio.gather(*answers)
        running.cancel()
        return sizes

    assert asyncio.run(run()) == [4, 4, 2]


# ── the command, in a process of its own ──────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def served(folder, *flags):
    """The process and its port."""
    command = [sys.executable, "-m", "drl.cli.entry", "serve", str(folder), "--port", "0", "--engine", "numpy", *flags]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": os.getcwd()}
    )
    try:
        first = process.stdout.readline()
        yield process, int(re.search(r"http://127\.0\.0\.1:(\d+)$", first.strip())[1])
    finally:
        process.kill()
        process.communicate()


def hostile(number):
    """The bytes of one of many requests that no client should send."""
    rng = random.Random(number)
    kinds = [
        lambda: rng.randbytes(200),
        lambda: b"GET " + b"/" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        lambda: b"POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        lambda: b"POST /act HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        lambda: b"POST /act HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        lambda: request(b'{"obs": ' + b"[" * rng.randrange(1, 50_000)),
        lambda: request(json.dumps({"obs": [rng.choice([1e308, None, "x", {}, []])] * rng.randrange(9)}).encode()),
        lambda: request(rng.randbytes(rng.randrange(3000))),
        lambda: request(b'{"obs": [1,2,3,4]}', b"Host: evil.example"),
        lambda: request(b'{"obs": [1,2,3,4]}')[: rng.randrange(1, 100)],
    ]
    return kinds[number % len(kinds)]()


def request(body, host=b"Host: localhost"):
    head = b"POST /act HTTP/1.1\r\n%s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (host, len(body)) + body


def test_a_hundred_hostile_requests_and_a_graceful_stop(tmp_path):
    folder = save_tiny("ppo", tmp_path, env="Pendulum-v1")
    with served(folder, "--batch-window", "1000") as (process, port):
        for number in range(100):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                client.sendall(hostile(number))
                client.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionError):
                    answer = client.recv(65536)
                    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), (number, answer[:200])
                    assert b"Traceback" not in answer
        url = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}

        async def stopped_in_between():
            async with httpx.AsyncClient() as client:
                bodies = [{"obs": [1, 2, 3, i]} for i in range(8)]
                asked = [asyncio.create_task(client.post(f"{url}/act", json=body)) for body in bodies]
                while "in_flight 8" not in (await client.get(f"{url}/metrics")).text and not asked[0].done():
                    await asyncio.sleep(0.01)  # until all of them wait for their batch
                process.send_signal(signal.SIGTERM)
                return [answer.json() for answer in await asyncio.gather(*asked)]

        answers = asyncio.run(stopped_in_between())
        expected = make_agent("ppo").act(np.array([[1, 2, 3, i] for i in range(8)], np.float32))
        np.testing.assert_allclose([answer["action"] for answer in answers], expected, rtol=1e-5, atol=1e-5)
        assert process.wait(20) == 143
        assert "Traceback" not in process.stderr.read()
        assert re.search(r"stopped after \d+ requests to act\n$", process.stdout.read())


def test_ctrl_c_ends_it_as_other_commands(tmp_path):
    with served(save_tiny("q", tmp_path)) as (process, port):
        assert httpx.post(f"http://127.0.0.1:{port}/act", json={"obs": 3}).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr.read() == ""


def test_the_logging_of_the_process_is_left_alone(tmp_path):
    closed = []

    class Handler(logging.Handler):
        def close(self):
            closed.append(self)

    handler = Handler()
    with drl.serve(save_tiny("q", tmp_path), port=0):
        assert closed == []
    logging.Handler.close(handler)


def test_wrong_flags(tmp_path, capsys, monkeypatch):
    folder = save_tiny("q", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        wrong = {
            ("--port", port): f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port",
            ("--host", "300.0.0.1"): "cannot listen on 300.0.0.1:8000",
            ("--port", "70000"): "expected a whole number from 0 to 65535",
            ("--max-batch", "0"): "expected a whole number of at least 1",
            ("--batch-window", "-1"): "expected milliseconds from 0 to 1000",
            ("--temperature", "2"): "add --sampled",
            ("--temperature", "2", "--sampled"): "this one acts by action values",
            ("--sampled",): "this one takes the action of the highest value",
            ("--engine", "tf"): "unknown engine 'tf'",
        }
        for words, message in wrong.items():
            assert main(["serve", str(folder), *words]) == 2
            error = capsys.readouterr().err
            assert message in error
            assert error.count("\n") == 1
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["serve", str(folder)]) == 2
    assert "pip install 'drl-workshop[serve]'" in capsys.readouterr().err
