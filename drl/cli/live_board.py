"""`drl board results/`: the pages of all runs in a folder in your browser, updated as they go."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags
from drl.core.configs import require
from drl.core.errors import BadInput, Interrupted
from drl.core.hosts import is_loopback


@dataclass(frozen=True)
class Flags:
    """Flags of `drl board`."""

    folder: Annotated[str, tyro.conf.Positional] = "results"  # a folder of runs; new ones appear by themselves
    port: int = 8321  # of the page; 0: any that is free
    host: str = "127.0.0.1"  # address to listen on; with another one, other machines can read the runs


def main(arguments: list[str]) -> int:
    """Run `drl board`."""
    flags = parse_flags(Flags, arguments, prog="drl board", description="Show runs in a browser, as they go.")
    require(flags, "a whole number from 0 to 65535", "port", lambda x: 0 <= x <= 65535)
    folder = Path(flags.folder)
    if not flags.folder or not folder.is_dir():
        raise BadInput(f"{flags.folder!r} is not a folder; expected a folder of runs: drl board results/")
    from drl.report.board_server import board_server

    with board_server(folder, flags.host, flags.port) as server:
        host = f"[{flags.host}]" if ":" in flags.host else flags.host
        if not is_loopback(flags.host):
            print(f"warning: everyone who can reach {flags.host} can read the runs in {folder}", flush=True)
        print(f"board of {folder}: http://{host}:{server.server_address[1]}/ (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt as stop:
            if isinstance(stop, Interrupted):  # SIGTERM, SIGHUP
                raise
    return 0
