"""`drl push RUN|AGENT owner/name`: upload an agent to the Hugging Face Hub."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags


@dataclass(frozen=True)
class Flags:
    """Flags of `drl push`."""

    agent: Annotated[str, tyro.conf.Positional]  # a run, an experiment (its newest run) or an agent folder
    repository: Annotated[str, tyro.conf.Positional]  # owner/name; created if it does not exist
    which: str | None = None  # for a run: final (the newest), best (by training return) or best-evaluated
    private: bool = False  # make a new repository private


def main(arguments: list[str]) -> int:
    """Run `drl push`."""
    flags = parse_flags(
        Flags, arguments, prog="drl push", description="Upload an agent to the Hugging Face Hub, with HF_TOKEN."
    )
    from drl.agents.hub import push

    print(push(flags.agent, flags.repository, which=flags.which, private=flags.private))
    return 0
