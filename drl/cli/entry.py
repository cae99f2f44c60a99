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
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TypeVar

from drl import __version__
from drl.core.errors import BadInput, DrlError, Interrupted, advice_of, did_you_mean, printable, raised_at

if TYPE_CHECKING:
    from drl.core.configs import Dataclass

DataclassT = TypeVar("DataclassT", bound="Dataclass")
MOST_LETTERS = 1000  # longest error message

# Subcommand → dataclass of its flags, or function of its words, in drl.cli; and help text.
COMMANDS = {
    "train": ("train:run_train", "train an agent: drl train ppo --env CartPole-v1"),
    "resume": ("train:ResumeCommand", "continue a run exactly where it stopped: drl resume RUN"),
    "fork": (
        "train:ForkCommand",
        "start a new run from a checkpoint of another: drl fork RUN --set learning_rate=1e-4",
    ),
    "replay": ("examine:ReplayCommand", "replay an episode of training exactly: drl replay RUN --episode best"),
    "evaluate": ("examine:EvaluateCommand", "measure or watch a trained agent: drl evaluate RUN --episodes 100"),
    "ablate": ("studies:run_ablate", "measure what each part of an algorithm adds: drl ablate dqn --env CartPole-v1"),
    "search": ("studies:run_search", "search for better settings: drl search dqn --env CartPole-v1 --n-trials 100"),
    "compare": (
        "studies:CompareCommand",
        "say which algorithm is better, or how many seeds are needed: drl compare A/ B/",
    ),
    "reproduce": (
        "studies:ReproduceCommand",
        "train a preset again and check its stored result: drl reproduce ppo/CartPole-v1",
    ),
    "doctor": ("examine:DoctorCommand", "report likely problems of an environment or a run: drl doctor RUN"),
    "plot": ("pages:PlotCommand", "plot one run, or several in one figure: drl plot RUN…"),
    "report": ("pages:ReportCommand", "write an HTML page about runs: drl report RUN…"),
    "board": ("pages:BoardCommand", "watch the runs in a folder live in a browser: drl board results/"),
    "convert": ("deploy:ConvertCommand", "write an agent for the other engine: drl convert RUN --engine jax"),
    "export": ("deploy:ExportCommand", "write an agent as an ONNX, PyTorch, JAX or C file: drl export RUN --to onnx"),
    "serve": ("deploy:ServeCommand", "answer observations with actions over HTTP: drl serve RUN"),
    "push": ("deploy:PushCommand", "upload an agent to the Hugging Face Hub: drl push RUN owner/name"),
    "pull": ("deploy:PullCommand", "download an agent from the Hugging Face Hub: drl pull owner/name"),
    "list": ("offers:ListCommand", "show algorithms, presets and environments"),
    "completion": ("completion:run_completion", "let your shell complete commands and flags: drl completion bash"),
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
    words = list(sys.argv[1:] if argv is None else argv)
    with errors_reported("drl", words) as ended:
        name = words[0] if words else ""
        if not words or name in ("-h", "--help", "help"):
            print(HELP)
            ended.code = 0 if words else 2
        elif name in ("--version", "-V"):
            print(f"drl {__version__}")
        elif name not in COMMANDS:
            raise BadInput(f"unknown command {name!r}; {did_you_mean(name, COMMANDS)}")
        else:
            command = load_command(name)
            if isinstance(command, type):
                from drl.cli.flags import parse_flags

                ended.code = parse_flags(command, words[1:], f"drl {name}")() or 0
            else:
                ended.code = command(words[1:])
    return ended.code


@dataclass
class Ended:
    """The end of a command."""

    code: int = 0


@contextlib.contextmanager
def errors_reported(name: str, words: list[str]) -> Iterator[Ended]:
    """Print an error as one message, with its exit code as the result. SIGTERM and SIGHUP end the command like Ctrl-C,
    so that it cleans up; runs handle these signals themselves.

    `--debug`, which is removed from the words, shows the error with its traceback.
    """
    ended, debug = Ended(), "--debug" in words
    words[:] = [word for word in words if word != "--debug"]
    warnings.showwarning = _shown_once()
    for stream in (sys.stdout, sys.stderr):  # an ASCII terminal shows a question mark where it cannot print
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    handled = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        handled = []
    for number in handled:
        signal.signal(number, _stop)
    try:
        yield ended
    except KeyboardInterrupt as stop:
        ended.code = 128 + (stop.args[0] if stop.args and isinstance(stop.args[0], int) else signal.SIGINT)
    except BrokenPipeError:  # the reader (`| head`) closed the pipe
        sys.stderr.close()
    except Exception as error:
        ended.code = error.exit_code if isinstance(error, DrlError) else 1
        if debug:
            traceback.print_exc()
            return
        message = _one_line(str(error))
        if not isinstance(error, DrlError):
            message = _one_line(f"unexpected {type(error).__name__} at {raised_at(error)}: {error}")
            message += "; add --debug for the traceback"
        for line in [message, *advice_of(error).splitlines()]:
            print(f"{name}: {printable(line)}", file=sys.stderr)
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise Interrupted(number)


def _one_line(text: str) -> str:
    """Return `text` as one short line without control characters, which could move the cursor."""
    text = " ".join(text.splitlines())
    text = text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"
    return printable(text)


def run_script(main: Callable[[DataclassT], None], settings: type[DataclassT]) -> NoReturn:
    """Run your own script. The fields of `settings` (a dataclass) are its flags; errors print one line."""
    from drl.cli.flags import parse_flags

    name, words = Path(sys.argv[0]).name, sys.argv[1:]
    with errors_reported(name, words) as ended:
        main(parse_flags(settings, words, name, sys.modules["__main__"].__doc__ or ""))
    sys.exit(ended.code)


def load_command(name: str) -> Callable[[list[str]], int] | type:
    """Return the dataclass or the function of a subcommand."""
    module, _, member = COMMANDS[name][0].partition(":")
    command: Callable[[list[str]], int] | type = getattr(importlib.import_module(f"drl.cli.{module}"), member)
    return command


def _shown_once() -> Callable[..., None]:
    """Return a function that prints each warning once, in one line."""
    printed: set[str] = set()

    def show(message: Warning | str, category: type, *_: object, **__: object) -> None:
        if str(message) not in printed:
            printed.add(str(message))
            print(f"drl: warning: {message}", file=sys.stderr)

    return show


if __name__ == "__main__":
    sys.exit(main())
