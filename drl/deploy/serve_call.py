"""`drl.serve`: an HTTP endpoint that takes observations and gives actions."""

import importlib.util
import os
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from threading import Thread
from typing import Any

from drl.core.errors import BadInput, MissingExtra, shown
from drl.core.network_parts import import_plugins
from drl.core.processes import RunningServer, is_loopback, url_of
from drl.core.setting_rules import check_size, check_whole, is_score
from drl.runs.folder.finished import AgentLike, Finished, agent_folder, folder_of


def serve(
    agent: AgentLike,
    *,
    port: int = 8000,
    host: str = "127.0.0.1",
    engine: str = "torch",
    sampled: bool = False,
    temperature: float = 1.0,
    max_batch: int = 256,
    batch_window: float = 1.0,
    max_bytes: int = 4 << 20,
    plugins: Iterable[str] = (),
    wait: bool = False,
    console: bool = False,
) -> RunningServer:
    """Answer observations with actions over HTTP. The server runs in a thread until it is closed; with `wait` this call
    serves, until a signal.

    `agent` is a run, an experiment (its newest run), an agent folder or an agent, which is copied. `port` 0 is any that
    is free. With another `host` than this machine's own, other machines can ask, too. `engine` is torch, jax or numpy
    (MLPs only). `sampled` samples actions from the policy, with `temperature`. `max_batch` limits the observations of a
    forward pass and of a request, `max_bytes` the body of a request; requests within `batch_window` milliseconds share
    a forward pass.
    """
    check_whole("port", port, 0, 65535)
    check_whole("max_batch", max_batch)
    check_whole("max_bytes", max_bytes)
    check_size("host", host)
    if not is_score(batch_window) or not 0 <= batch_window <= 1000:
        raise BadInput(f"batch_window is {shown(batch_window)}; expected milliseconds from 0 to 1000")
    if not is_score(temperature) or temperature <= 0:
        raise BadInput(f"temperature is {shown(temperature)}; expected a number above 0")
    if temperature != 1.0 and not sampled:
        raise BadInput("--temperature is for sampled actions; add --sampled")
    for module in ("starlette", "uvicorn"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra("drl serve", "serve", module)
    import_plugins(plugins)
    with agent_folder(agent) as folder:  # before an engine is loaded
        from drl.agents.load_agent import load_agent, sample_actions
        from drl.deploy.http_app import MOST_CONNECTIONS, ServeLimits, make_app, make_server

        player: Any = load_agent(folder, engine=engine)
        if sampled:
            sample_actions(player, folder, temperature)
    name = str(folder_of(agent)) if isinstance(agent, str | Path | Finished) else type(agent).__name__
    limits = ServeLimits(max_bytes, max_batch)
    server = make_server(make_app(player, limits, batch_window / 1000.0, sampled, host, console))
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
    except (OSError, UnicodeError) as error:
        why = "no such address"
        if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
            why = os.strerror(error.errno)
        raise BadInput(f"cannot listen on {host}:{port}: {why}; choose another --port or --host") from None
    url = url_of(host, listening.getsockname()[1])
    paths = "POST /act · GET / describes the spaces · GET /health · GET /metrics · Ctrl-C stops"
    about = f"serving {name} at {url}\n  {paths}"
    if console:
        print(about, flush=True)
        if not is_loopback(host):
            warning = "drl: warning: other machines can reach this server, and it asks nobody who they are"
            print(warning, file=sys.stderr)

    def run() -> None:
        with listening:
            server.run(sockets=[listening])

    thread = Thread(target=run, name="drl serve", daemon=True)
    running = RunningServer(name, url, about, thread, lambda: setattr(server, "should_exit", True))
    if wait:
        # On SIGINT and SIGTERM it answers the requests whose head it has read, stops, and raises the signal again: exit
        # codes 130 and 143.
        run()
        return running
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    return running
