"""`drl fork RUN --at STEP --set NAME=VALUE…`: begin a new run in the middle of another one, with changed settings."""

from drl.cli.entry import EXIT_CODES
from drl.cli.flags import Parser
from drl.core.configs import plain_pairs


def main(arguments: list[str]) -> int:
    """Run `drl fork`."""
    parser = Parser(prog="drl fork", description="Start a new run from a checkpoint of another.")
    parser.add_argument("run", metavar="RUN", help="a run folder, or an experiment folder for its newest run")
    parser.add_argument("--at", type=int, metavar="STEP", help="the step of a kept checkpoint; default: the newest")
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="settings to change"
    )
    parser.add_argument("--trust", action="store_true", help="import the modules that config.yaml names")
    options = parser.parse_args(arguments)
    changes = plain_pairs("--set", tuple(options.set))

    from drl.runs.folder.finished import resume_line
    from drl.runs.launch import fork
    from drl.runs.session import say

    finished = fork(options.run, changes, options.at, trust=options.trust, hint=False)
    say("\n".join(filter(None, [f"\n{finished.report()}", resume_line([finished])])))
    return EXIT_CODES[finished.status]
