"""`drl doctor ENV|RUN`: say what is likely wrong with an environment or a run, and what to change."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from drl.cli.flags import list_wrappers, parse_flags
from drl.core.configs import require
from drl.core.errors import BadInput

if TYPE_CHECKING:
    from drl.doctor.findings import Diagnosis

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
    require(flags, "a whole number of at least 10", "steps", lambda x: x >= 10)
    require(flags, "a whole number of at least 0", "seed", lambda x: x >= 0)
    with _stdout_to_stderr() if flags.json else contextlib.nullcontext():
        found = _examine(flags)
    print(json.dumps(found.plain()) if flags.json else found.text())
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


def _examine(flags: Flags) -> "Diagnosis":
    if Path(flags.subject).is_dir():
        if flags.env_kwargs or flags.wrappers != Flags.wrappers:
            raise BadInput(f"{flags.subject} is a folder; --env-kwargs and --wrapper are for an environment")
        from drl.doctor.examine_run import examine_run

        return examine_run(flags.subject, flags.steps, flags.seed, trust=flags.trust, picture=flags.picture)
    if flags.trust or not flags.picture:
        raise BadInput(f"--trust and --no-picture are for a run, and there is no folder {flags.subject}")
    from drl.doctor.examine_env import examine_env
    from drl.experiment.config import RunConfig

    run = RunConfig(env=flags.subject, env_kwargs=flags.env_kwargs, wrappers=flags.wrappers, frame_stack=1)
    try:
        return examine_env(run.env_config, flags.steps, flags.seed)
    except BadInput as error:
        if "/" in flags.subject and ":" not in flags.subject:  # meant to be a path
            raise BadInput(f"there is no folder {flags.subject}, and {error}") from error
        raise
