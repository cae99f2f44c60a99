"""`drl doctor ENV|RUN`: say what is likely wrong with an environment or a run, and what to change."""

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
    "Say what is likely wrong with an environment or a run, and what to change. "
    "Exit code 0: no problem, 1: problems were found, 2: bad input, 3: a run that cannot be read."
)


@dataclass(frozen=True)
class Flags:
    """Flags of `drl doctor`."""

    subject: Annotated[
        str, tyro.conf.Positional
    ]  # an environment of one agent, as for --env; or a run, or its experiment
    env_kwargs: tuple[str, ...] = ()  # of an environment: NAME=VALUE pairs for its constructor, read as YAML
    wrappers: tuple[str, ...] = ("auto",)  # around an environment, also as --wrapper, once for each
    steps: int = 2000  # that are played: random ones in an environment, the agent's in a run
    seed: int = 0
    json: bool = False  # print JSON and nothing else
    picture: bool = True  # of a run: draw the evidence into RUN/doctor/
    trust: bool = False  # of a run: import the modules that it names; this runs their code


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
    """What an environment prints goes to stderr, also where C code prints it."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
