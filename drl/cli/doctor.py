"""`drl doctor ENV|RUN`: report likely problems of an environment or a run, and what to change."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import list_wrappers, parse_flags
from drl.core.configs import plain_pairs

ABOUT = (
    "Report likely problems of an environment or a run, and what to change. "
    "Exit code 0: no problem, 1: problems were found, 2: bad input, 3: the run cannot be read."
)


@dataclass(frozen=True)
class Flags:
    """Flags of `drl doctor`."""

    subject: Annotated[
        str, tyro.conf.Positional
    ]  # a single-agent environment, as for --env; or a run, or its experiment
    env_kwargs: tuple[str, ...] = ()  # for an environment: NAME=VALUE constructor arguments, read as YAML
    wrappers: tuple[str, ...] = ("auto",)  # for an environment: its wrappers, or --wrapper once for each
    steps: int = 2000  # steps to play: random actions in an environment, the agent's actions in a run
    seed: int = 0
    json: bool = False  # print JSON and nothing else
    picture: bool = True  # for a run: draw the evidence into RUN/doctor/
    trust: bool = False  # for a run: import the modules that it names; this runs their code


def main(arguments: list[str]) -> int:
    """Run `drl doctor`."""
    flags = parse_flags(Flags, list_wrappers(arguments), prog="drl doctor", description=ABOUT)
    env_kwargs = plain_pairs("env_kwargs", flags.env_kwargs) if flags.env_kwargs else None
    wrappers = None if flags.wrappers == Flags.wrappers else flags.wrappers
    from drl.doctor.examine_run import doctor

    with _stdout_to_stderr() if flags.json else contextlib.nullcontext():
        found = doctor(
            flags.subject,
            env_kwargs=env_kwargs,
            wrappers=wrappers,
            steps=flags.steps,
            seed=flags.seed,
            picture=flags.picture,
            trust=flags.trust,
        )
    print(json.dumps(found.plain()) if flags.json else found)
    return 1 if found.problems else 0


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirect to stderr what an environment prints, including output of C code."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
