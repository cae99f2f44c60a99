"""`drl serve RUN|AGENT`: an HTTP endpoint that takes observations and returns actions."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags


@dataclass(frozen=True)
class Flags:
    """Flags of `drl serve`."""

    agent: Annotated[str, tyro.conf.Positional]  # a run, an experiment (its newest run) or an agent folder
    port: int = 8000  # 0: any free port
    host: str = "127.0.0.1"  # address to listen on; with another address, other machines can send requests
    engine: str = "torch"  # torch · jax · numpy (MLPs only)
    sampled: bool = False  # sample actions from the policy instead of taking the most likely
    temperature: float = 1.0  # temperature of sampled actions
    max_batch: int = 256  # most observations in one forward pass, and in one request
    batch_window: float = 1.0  # milliseconds to collect requests for one forward pass
    max_bytes: int = 4 << 20  # largest body of a request
    plugins: tuple[str, ...] = ()  # your own modules to import first


def main(arguments: list[str]) -> int:
    """Run `drl serve`."""
    flags = parse_flags(Flags, arguments, prog="drl serve", description="Answer observations with actions over HTTP.")
    from drl.deploy.serve_call import serve

    serve(**vars(flags), wait=True, console=True)
    return 0
