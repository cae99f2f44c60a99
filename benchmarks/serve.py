"""Load test of `drl serve`: requests per second, latency, lost requests, and a stop under load.

    python benchmarks/serve.py                      # 20 seconds, an untrained 64-64 policy on observations of 8 numbers
    python benchmarks/serve.py --seconds 600
    python benchmarks/serve.py --agent results/CartPole-v1_ppo

The server is a process of its own, the clients are connections of this one that ask as soon as they are answered. Every
answer is compared with the agent's own action. At the end SIGTERM comes in the middle of the load. Lost are answers
that the server counts as given and that no client has.
"""

import asyncio
import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from drl.agents.load_agent import load_agent
from drl.cli.entry import run_script
from drl.core.specs import Array
from drl.deploy.policy_graph import PolicyGraph, raw_observations, sample_inputs

OBSERVATIONS = 512  # different ones, asked over and over
HEAD = "POST /act HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"


@dataclass(frozen=True)
class Settings:
    seconds: float = 20.0  # under load
    connections: int = 64  # clients that ask at the same time
    agent: str | None = None  # a run or an agent folder whose observations are one array; default: an untrained policy
    window: float = 1.0  # milliseconds in which the server collects requests


@dataclass
class Tally:
    """What all clients have seen."""

    latencies: list[float] = field(default_factory=list)  # seconds, of answered requests
    sent: int = 0
    wrong: int = 0  # answers with another status or another action
    stopping: bool = False  # whether the server has been told to stop
    server_cpu: float = math.nan  # CPU seconds of the server under load, where the system tells
    too_late: int = 0  # requests that the server, while stopping, did not take


async def ask(port: int, bodies: list[bytes], actions: Array, row: int, tally: Tally) -> None:
    """One client: asks, waits for the answer, asks again."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while not tally.stopping:
        row = (row + 1) % len(bodies)
        started = time.perf_counter()
        tally.sent += 1
        try:
            writer.write(bodies[row])
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None
            answer = json.loads(await reader.readexactly(int(length[1])))
        except (ConnectionError, asyncio.IncompleteReadError):
            if not tally.stopping:
                raise
            tally.too_late += 1
            return
        tally.latencies.append(time.perf_counter() - started)
        right = head.startswith(b"HTTP/1.1 200") and np.allclose(answer.get("action"), actions[row], atol=1e-5)
        tally.wrong += not right
        if b"connection: close" in head.lower():
            return
    writer.close()


def untrained(folder: Path) -> Path:
    """A policy with two hidden layers of 64, as PPO has by default."""
    import torch

    from drl.core.configs import ModelConfig
    from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
    from drl.engines.torch.agents import PolicyAgent
    from drl.engines.torch.models import make_policy_value_model

    obs, action = ObsSpec("box", box_shape=(8,)), ActionSpec("discrete", sizes=(4,))
    model = make_policy_value_model(obs, action, ModelConfig(), torch.Generator().manual_seed(0))
    PolicyAgent(model, EnvSpecs(obs, action)).save(folder)
    return folder


def main(settings: Settings) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = settings.agent or str(untrained(Path(folder) / "agent"))
        agent: Any = load_agent(path)
        inputs = sample_inputs(PolicyGraph.of(agent), OBSERVATIONS, np.random.default_rng(0))
        obs = raw_observations(agent.obs_spec, inputs)
        texts = [json.dumps({"obs": row.tolist()}) for row in np.asarray(obs)]
        bodies = [(HEAD.format(length=len(text)) + text).encode() for text in texts]
        command = [sys.executable, "-m", "drl.cli.entry", "serve", path, "--port", "0"]
        command += ["--batch-window", str(settings.window)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            found = re.search(r":(\d+)$", server.stdout.readline().strip())
            assert found is not None, "the server did not start"
            tally = asyncio.run(load(server, int(found[1]), bodies, agent.act(obs), settings))
            last = server.stdout.read()
        finally:
            server.kill()
        show(settings, tally, server.wait(), last)


async def load(
    server: "subprocess.Popen[str]", port: int, bodies: list[bytes], actions: Array, settings: Settings
) -> Tally:
    tally = Tally()
    clients = [ask(port, bodies, actions, client, tally) for client in range(settings.connections)]
    running, before = asyncio.gather(*clients), cpu_seconds(server.pid)
    await asyncio.sleep(settings.seconds)
    tally.server_cpu = cpu_seconds(server.pid) - before
    tally.stopping = True
    server.send_signal(signal.SIGTERM)
    await running
    await asyncio.to_thread(server.wait, 60)
    return tally


def cpu_seconds(process: int) -> float:
    """What a process has used so far; NaN where there is no /proc."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system
    return math.nan


def show(settings: Settings, tally: Tally, code: int, last: str) -> None:
    counted = re.search(r"stopped after ([\d,]+) requests", last)
    given = int(counted[1].replace(",", "")) if counted else tally.sent
    times = np.array(tally.latencies) * 1000
    p50, p99, most = np.percentile(times, [50, 99, 100])
    numbers = [settings.connections, f"{settings.seconds:g}", f"{len(times):,}"]
    numbers += [f"{len(times) / settings.seconds:,.0f}", f"{p50:.1f}", f"{p99:.1f}", f"{most:.0f}"]
    numbers.insert(4, f"{len(times) / tally.server_cpu:,.0f}")
    columns = ["connections", "seconds", "requests", "a second", "a CPU second of the server"]
    columns += ["p50 ms", "p99 ms", "max ms", "lost", "wrong", "exit code"]
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    print("| " + " | ".join(map(str, [*numbers, given - len(times), tally.wrong, code])) + " |")
    print(f"{tally.too_late} requests came when the server was already stopping; their connections were closed")


if __name__ == "__main__":
    run_script(main, Settings)
