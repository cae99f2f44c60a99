"""`drl board results/`: show the pages of all runs in a folder in a browser, updated live."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags


@dataclass(frozen=True)
class Flags:
    """Flags of `drl board`."""

    folder: Annotated[str, tyro.conf.Positional] = "results"  # a folder of runs; new runs appear automatically
    port: int = 8321  # 0: any free port
    host: str = "127.0.0.1"  # address to listen on; with another address, other machines can read the runs


def main(arguments: list[str]) -> int:
    """Run `drl board`."""
    flags = parse_flags(Flags, arguments, prog="drl board", description="Watch runs live in a browser.")
    from drl.report.board import board

    board(flags.folder, port=flags.port, host=flags.host, wait=True, console=True)
    return 0
