"""`drl resume RUN…`: continue runs exactly where they stopped."""

import os
import shlex
from pathlib import Path

from drl.cli.entry import EXIT_CODES
from drl.cli.flags import Parser
from drl.core.errors import UnusableFile
from drl.runs.folder.run_folder import find_run, runs_in

USAGE = """Continue runs exactly from their newest checkpoint: metrics and weights equal those of an uninterrupted run.
For an experiment folder, all unfinished runs in it are continued."""


def main(arguments: list[str]) -> int:
    """Run `drl resume`."""
    parser = Parser(prog="drl resume", description=USAGE)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder or an experiment folder")
    parser.add_argument(
        "--trust", action="store_true", help="import the modules that config.yaml names (runs their code)"
    )
    parser.add_argument("--cluster", metavar="local|auto|ADDRESS", help="where it runs this time; default: as before")
    parser.add_argument("--num-learners", type=int, metavar="N", help="learners this time; default: as before")
    options = parser.parse_args(arguments)
    changed = {"cluster": options.cluster, "num_learners": options.num_learners}
    scaling = {name: value for name, value in changed.items() if value is not None}
    folders = [folder for given in options.runs for folder in _runs(given)]

    from drl.runs.launch import is_unfinished, resume
    from drl.runs.session import say

    unusable: list[UnusableFile] = []
    for folder in folders:
        try:
            if not is_unfinished(folder):  # it may have been trained together with an earlier run of the list
                say(f"{folder} is finished, or another process trains it; there is nothing to resume")
                continue
            finished = resume(folder, scaling=scaling, trust=options.trust, hint=False)
        except UnusableFile as error:  # the other runs are continued first
            unusable.append(error)
            continue
        say(f"\n{finished.report()}")
        if code := EXIT_CODES[finished.status]:
            say(f"resume: {shlex.join(['drl', 'resume', *arguments])}")
            return code
    if unusable:
        raise unusable[0]
    return 0


def _runs(given: Path) -> list[Path]:
    return [given] if os.path.lexists(given / "run.json") else runs_in(given) or [find_run(given)]
