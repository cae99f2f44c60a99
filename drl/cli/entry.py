"""`drl`: run the subcommand and turn errors into one clear message and an exit code.

Nothing heavy is imported here, so `drl --help` is fast.
"""

import contextlib
import importlib
import io
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

from drl import __version__
from drl.core.errors import BadInput, DrlError, Interrupted, advice_of, did_you_mean, printable, raised_at

T = TypeVar("T")
MOST_LETTERS = 1000  # longest error message

# Subcommand → function that runs it, and help text.
COMMANDS = {
    "train": ("drl.cli.train:run_train", "train an agent: drl train ppo --env CartPole-v1"),
    "resume": ("drl.cli.train:run_resume", "continue a run exactly where it stopped: drl resume RUN"),
    "fork": (
        "drl.cli.train:run_fork",
        "start a new run from a checkpoint of another: drl fork RUN --set learning_rate=1e-4",
    ),
    "replay": ("drl.cli.examine:run_replay", "replay an episode of training exactly: drl replay RUN --episode best"),
    "evaluate": ("drl.cli.examine:run_evaluate", "measure or watch a trained agent: drl evaluate RUN --episodes 100"),
    "ablate": (
        "drl.cli.studies:run_ablate",
        "measure what each part of an algorithm adds: drl ablate dqn --env CartPole-v1",
    ),
    "search": (
        "drl.cli.studies:run_search",
        "search for better settings: drl search dqn --env CartPole-v1 --n-trials 100",
    ),
    "compare": (
        "drl.cli.studies:run_compare",
        "say which algorithm is better, or how many seeds are needed: drl compare A/ B/",
    ),
    "reproduce": (
        "drl.cli.studies:run_reproduce",
        "train a preset again and check its stored result: drl reproduce ppo/CartPole-v1",
    ),
    "doctor": ("drl.cli.examine:run_doctor", "report likely problems of an environment or a run: drl doctor RUN"),
    "plot": ("drl.cli.pages:run_plot", "plot one run, or several in one figure: drl plot RUN…"),
    "report": ("drl.cli.pages:run_report", "write an HTML page about runs: drl report RUN…"),
    "board": ("drl.cli.pages:run_board", "watch the runs in a folder live in a browser: drl board results/"),
    "convert": ("drl.cli.deploy:run_convert", "write an agent for the other engine: drl convert RUN --engine jax"),
    "export": (
        "drl.cli.deploy:run_export",
        "write an agent as an ONNX, PyTorch, JAX or C file: drl export RUN --to onnx",
    ),
    "serve": ("drl.cli.deploy:run_serve", "answer observations with actions over HTTP: drl serve RUN"),
    "push": ("drl.cli.deploy:run_push", "upload an agent to the Hugging Face Hub: drl push RUN owner/name"),
    "pull": ("drl.cli.deploy:run_pull", "download an agent from the Hugging Face Hub: drl pull owner/name"),
    "list": ("drl.cli.completion:run_list", "show algorithms, presets and environments"),
    "completion": (
        "drl.cli.completion:run_completion",
        "let your shell complete commands and flags: drl completion bash",
    ),
}

# Status of a run → exit code. Errors have their own codes.
EXIT_CODES = {"finished": 0, "interrupted": 130, "terminated": 143, "hung up": 129}

HELP = f"""drl {__version__}: a workshop for deep reinforcement learning

usage: drl COMMAND …

""" + "\n".join(f"  {name:10} {text}" for name, (_, text) in COMMANDS.items())

HELP += """

`drl COMMAND --help` explains a command; `drl --version` prints the version.
With --debug, anywhere on the line, errors are shown with their traceback."""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code (listed in `drl.core.errors`)."""
    arguments = sys.argv[1:] if argv is None else argv
    return report_errors(_dispatch, arguments, name="drl")


def report_errors(run: Callable[[list[str]], int], arguments: list[str], name: str) -> int:
    """Run `run(arguments)` and return its exit code; an error becomes one message and its code.

    `--debug` among the arguments, which is not passed on to `run`, shows the error with its traceback.
    """
    warnings.showwarning = _said_once()
    for stream in (sys.stdout, sys.stderr):  # an ASCII terminal shows a question mark where it cannot print
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        with _stoppable():
            return run([argument for argument in arguments if argument != "--debug"])
    except KeyboardInterrupt as stop:
        return 128 + (stop.args[0] if stop.args and isinstance(stop.args[0], int) else signal.SIGINT)
    except BrokenPipeError:  # the reader (`| head`) closed the pipe
        sys.stderr.close()
        return 0
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        elif isinstance(error, DrlError):
            print(f"{name}: {_one_line(str(error))}", file=sys.stderr)
        else:
            said = _one_line(f"unexpected {type(error).__name__} at {raised_at(error)}: {error}")
            print(f"{name}: {said}; add --debug for the traceback", file=sys.stderr)
        if "--debug" not in arguments:
            for line in advice_of(error).splitlines():
                print(f"{name}: {printable(line)}", file=sys.stderr)
        return error.exit_code if isinstance(error, DrlError) else 1


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a command like Ctrl-C, so that it cleans up. Runs handle these signals themselves."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Interrupted(number)

    handled = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        handled = []
    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _one_line(text: str) -> str:
    """Return `text` as one short line without control characters, which could move the cursor."""
    text = " ".join(text.splitlines())
    text = text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"
    return printable(text)


def run_script(main: Callable[[T], None], settings: type[T]) -> NoReturn:
    """Run your own script. The fields of `settings` (a dataclass) are its flags; errors print one line."""
    from drl.cli.flags import parse_flags

    name = Path(sys.argv[0]).name

    def run(arguments: list[str]) -> int:
        main(parse_flags(settings, arguments, prog=name, description=sys.modules["__main__"].__doc__ or ""))
        return 0

    sys.exit(report_errors(run, sys.argv[1:], name))


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
    return run_command(name, arguments[1:])


def run_command(name: str, arguments: list[str]) -> int:
    """Run a subcommand with its arguments and return its exit code."""
    module, _, function = COMMANDS[name][0].partition(":")
    return int(getattr(importlib.import_module(module), function)(arguments))


def _said_once() -> Callable[..., None]:
    """Return a function that prints each warning once, in one line."""
    said: set[str] = set()

    def show(message: Warning | str, category: type, *_: object, **__: object) -> None:
        if str(message) not in said:
            said.add(str(message))
            print(f"drl: warning: {message}", file=sys.stderr)

    return show


if __name__ == "__main__":
    sys.exit(main())
