"""`drl replay RUN --episode best`: replay an episode of training exactly."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags


@dataclass(frozen=True)
class Flags:
    """Flags of `drl replay`."""

    run: Annotated[str, tyro.conf.Positional]  # a run, or an experiment for its newest run
    episode: str = "best"  # best · worst · last · crash · a number, counted from 1 in the order in which episodes ended
    video: bool = False  # record it into the run's videos folder
    render: bool = False  # show it in the environment's own window
    step_by_step: bool = False  # print observation, action and reward of every step
    trust: bool = False  # import the modules that config.yaml names; this runs their code


def main(arguments: list[str]) -> int:
    """Run `drl replay`."""
    flags = parse_flags(Flags, arguments, prog="drl replay", description="Replay an episode of training exactly.")
    from drl.runs.play_again import replay

    replay(**vars(flags), console=True)
    return 0
