"""`drl serve RUN|AGENT`: an HTTP endpoint that takes observations and gives actions."""

import importlib.util
import os
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from drl.cli.flags import parse_flags
from drl.core.configs import require
from drl.core.errors import BadInput, MissingExtra
from drl.core.hosts import is_loopback
from drl.core.network_parts import import_plugins
from drl.experiment.run_folder import find_agent_folder

if TYPE_CHECKING:
    import uvicorn

    from drl.engines.numpy.acting import Actor

MOST_CONNECTIONS = 512  # open at once; further ones are answered with 503
PATIENCE = 30  # seconds for requests that are being answered when it is stopped


@dataclass(frozen=True)
class Flags:
    """Flags of `drl serve`."""

    agent: Annotated[str, tyro.conf.Positional]  # a run, an experiment (its newest run) or an agent folder
    port: int = 8000  # 0: any free one
    host: str = "127.0.0.1"  # address to listen on; with another one, other machines can ask, too
    engine: str = "torch"  # what computes: torch · jax · numpy (MLPs only)
    sampled: bool = False  # sample actions from the policy instead of taking the most likely
    temperature: float = 1.0  # of sampled actions
    max_batch: int = 256  # observations of one forward pass, and of one request
    batch_window: float = 1.0  # milliseconds in which requests are collected for one forward pass
    max_bytes: int = 4 << 20  # of the body of a request
    plugins: tuple[str, ...] = ()  # your own modules to import first


def main(arguments: list[str]) -> int:
    """Run `drl serve`."""
    flags = parse_flags(Flags, arguments, prog="drl serve", description="Answer observations with actions over HTTP.")
    require(flags, "a port from 0 to 65535", "port", lambda x: 0 <= x <= 65535)
    require(flags, "a whole number of at least 1", "max_batch max_bytes", lambda x: x >= 1)
    require(flags, "milliseconds from 0 to 1000", "batch_window", lambda x: 0 <= x <= 1000)
    require(flags, "a number above 0", "temperature", lambda x: x > 0)
    if flags.temperature != 1.0 and not flags.sampled:
        raise BadInput("--temperature is for sampled actions; add --sampled")
    for module in ("starlette", "uvicorn"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra("drl serve", "serve", module)
    import_plugins(flags.plugins)
    folder = find_agent_folder(flags.agent)  # before an engine is loaded

    from drl.experiment.load_agent import load_agent, sample_actions

    agent: Any = load_agent(flags.agent, engine=flags.engine)
    if flags.sampled:
        sample_actions(agent, folder, flags.temperature)
    with _listen(flags.host, flags.port) as listening:
        _serve(agent, flags, listening)
    return 0


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None)
        why = os.strerror(number) if number and not isinstance(error, socket.gaierror) else "no such address"
        raise BadInput(f"cannot listen on {host}:{port}: {why}; choose another --port or --host") from None


def make_server(agent: "Actor", flags: Flags) -> "uvicorn.Server":
    """The server of an agent, which does not run yet."""
    import uvicorn

    from drl.deploy.http_app import ServeLimits, make_app
    from drl.deploy.http_connections import HttpConnection

    limits = ServeLimits(flags.max_bytes, flags.max_batch)
    config = uvicorn.Config(
        make_app(agent, limits, flags.batch_window / 1000.0, flags.sampled, flags.host),
        http=HttpConnection,
        log_level="critical",  # the application reports its own failures; whoever sends nonsense writes no log
        access_log=False,
        server_header=False,
        ws="none",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=PATIENCE,
    )
    return uvicorn.Server(config)


def _serve(agent: "Actor", flags: Flags, listening: socket.socket) -> None:
    server = make_server(agent, flags)
    place = f"[{flags.host}]" if ":" in flags.host else flags.host
    print(f"serving {flags.agent} at http://{place}:{listening.getsockname()[1]}", flush=True)
    print("  POST /act · GET / describes the spaces · GET /health · GET /metrics · Ctrl-C stops", flush=True)
    if not is_loopback(flags.host):
        print("drl: warning: other machines can reach this server, and it asks nobody who they are", file=sys.stderr)
    # On SIGINT and SIGTERM it answers the requests whose head it has read, stops, and raises the signal again: exit
    # codes 130 and 143.
    server.run(sockets=[listening])
