"""`drl convert RUN|AGENT --engine jax`: write an agent for the other engine, after checking that both act alike."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags


@dataclass(frozen=True)
class Flags:
    """Flags of `drl convert`."""

    agent: Annotated[str, tyro.conf.Positional]  # a run, an experiment (its newest run) or an agent folder
    engine: str  # torch or jax
    plugins: tuple[str, ...] = ()  # your own modules to import first
    out: str | None = None  # new folder; default: beside the agent, with the engine's name appended
    strict: bool = False  # fail, not only warn, if the agent acts differently from its golden pairs


def main(arguments: list[str]) -> int:
    """Run `drl convert`."""
    flags = parse_flags(Flags, arguments, prog="drl convert", description="Write an agent for the other engine.")
    from drl.deploy.export_agent import convert

    print(convert(flags.agent, flags.engine, out=flags.out, plugins=flags.plugins, strict=flags.strict))
    return 0
