"""`drl board results/`: the pages of all runs in a folder in your browser, updated as they go."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags


@dataclass(frozen=True)
class Flags:
    """Flags of `drl board`."""

    folder: Annotated[str, tyro.conf.Positional] = "results"  # a folder of runs; new ones appear by themselves
    port: int = 8321  # of the page; 0: any that is free
    host: str = "127.0.0.1"  # address to listen on; with another one, other machines can read the runs


def main(arguments: list[str]) -> int:
    """Run `drl board`."""
    flags = parse_flags(Flags, arguments, prog="drl board", description="Show runs in a browser, as they go.")
    from drl.report.board_server import board

    board(flags.folder, port=flags.port, host=flags.host, wait=True, console=True)
    return 0
