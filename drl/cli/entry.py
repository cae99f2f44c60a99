"""`drl`: run the subcommand and turn errors into one clear message and an exit code.

Nothing heavy is imported here, so `drl --help` is fast.
"""

import importlib
import io
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from drl import __version__
from drl.core.errors import BadInput, DrlError, did_you_mean

T = TypeVar("T")
MOST_LETTERS = 1000  # of an error message

# The only table from a subcommand to the module that runs it.
COMMANDS = {
    "train": ("drl.cli.train", "train an agent: drl train ppo --env CartPole-v1"),
    "resume": ("drl.cli.resume", "continue a run exactly where it stopped: drl resume RUN"),
    "fork": (
        "drl.cli.fork",
        "begin a new run in the middle of another: drl fork RUN --set learning_rate=1e-4",
    ),
    "evaluate": ("drl.cli.evaluate", "measure or watch a trained agent: drl evaluate RUN --episodes 100"),
    "ablate": ("drl.cli.ablate", "measure what each part of DQN adds: drl ablate dqn --env CartPole-v1"),
    "search": ("drl.cli.search", "search for better settings: drl search dqn --env CartPole-v1 --n-trials 100"),
    "plot": ("drl.cli.plot", "draw one run, or several on one picture: drl plot RUN…"),
    "convert": ("drl.cli.convert", "write an agent for the other engine: drl convert RUN --engine jax"),
    "list": ("drl.cli.list_offers", "show algorithms, presets and environments"),
}

# Status of a run → exit code. Errors have their own codes.
EXIT_CODES = {"finished": 0, "interrupted": 130, "terminated": 143, "hung up": 129}

HELP = f"""drl {__version__}: a workshop for deep reinforcement learning

usage: drl COMMAND …

""" + "\n".join(f"  {name:10} {text}" for name, (_, text) in COMMANDS.items())

HELP += "\n\n`drl COMMAND --help` explains a command; `drl --version` prints the version."


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code (listed in `drl.core.errors`)."""
    arguments = sys.argv[1:] if argv is None else argv
    return report_errors(lambda: _dispatch(arguments), name="drl")


def report_errors(run: Callable[[], int], name: str) -> int:
    """The exit code of `run`; a `DrlError` becomes one line and its own code."""
    warnings.showwarning = _one_line_warning
    for stream in (sys.stdout, sys.stderr):  # an ASCII terminal shows a question mark where it cannot print
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        return run()
    except DrlError as error:
        print(f"{name}: {_one_line(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader (`| head`) closed the pipe
        sys.stderr.close()
        return 0


def _one_line(text: str) -> str:
    """`text` in one line, cut short, without control characters, which could move the cursor."""
    text = " ".join(text.splitlines())
    text = text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def run_script(main: Callable[[T], None], settings: type[T]) -> NoReturn:
    """Run your own script: the fields of `settings` (a dataclass) are its flags; errors print one line."""
    from drl.cli.flags import parse_flags

    name = Path(sys.argv[0]).name

    def run() -> int:
        main(parse_flags(settings, sys.argv[1:], prog=name, description=sys.modules["__main__"].__doc__ or ""))
        return 0

    sys.exit(report_errors(run, name))


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP)
        return 0 if arguments else 2
    if arguments[0] in ("--version", "-V"):
        print(f"drl {__version__}")
        return 0
    name = arguments[0]
    if name not in COMMANDS:
        raise BadInput(f"unknown command {name!r}; {did_you_mean(name, COMMANDS)}")
    from drl.cli.flags import refuse_doubles

    refuse_doubles(arguments[1:])
    module = importlib.import_module(COMMANDS[name][0])
    return int(module.main(arguments[1:]))


def _one_line_warning(message: Warning | str, category: type, *_: object, **__: object) -> None:
    print(f"drl: warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
