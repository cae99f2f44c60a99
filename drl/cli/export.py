"""`drl export RUN|AGENT --to onnx|torch-export|jax-export|c`: write an agent as a file for another runtime."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags


@dataclass(frozen=True)
class Flags:
    """Flags of `drl export`."""

    agent: Annotated[str, tyro.conf.Positional]  # a run, an experiment (its newest run) or an agent folder
    to: str  # onnx · torch-export · jax-export · c
    out: str | None = None  # new file; default: beside the agent, with the suffix of the format
    # Add an input for action masks: auto (if the training environment provides masks) · on · off.
    action_mask: str = "auto"
    plugins: tuple[str, ...] = ()  # your own modules to import first


def main(arguments: list[str]) -> int:
    """Run `drl export`."""
    flags = parse_flags(
        Flags, arguments, prog="drl export", description="Write an agent as a file for another runtime."
    )
    from drl.deploy.export_agent import export

    print(export(flags.agent, flags.to, out=flags.out, action_mask=flags.action_mask, plugins=flags.plugins))
    return 0
