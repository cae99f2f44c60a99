"""`drl pull owner/name`: download an agent from the Hugging Face Hub into a new folder, without running any of it."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags


@dataclass(frozen=True)
class Flags:
    """Flags of `drl pull`."""

    repository: Annotated[str, tyro.conf.Positional]  # owner/name
    out: str | None = None  # new folder; default: the repository's name, here
    revision: str | None = None  # a branch, a tag or a commit; default: the newest commit


def main(arguments: list[str]) -> int:
    """Run `drl pull`."""
    flags = parse_flags(
        Flags, arguments, prog="drl pull", description="Download an agent from the Hugging Face Hub; no code is run."
    )
    from drl.agents.hub import pull

    print(pull(flags.repository, out=flags.out, revision=flags.revision))
    return 0
