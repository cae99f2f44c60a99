"""Flags from dataclasses, through tyro. Every field is a flag; bad flags give one line and exit code 2."""

import argparse
import contextlib
import io
import re
from typing import NoReturn, TypeVar

import tyro

from drl.core.errors import BadInput

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """Argument parser for commands without a dataclass of flags. Raises `BadInput`, so all errors look alike."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and exiting."""
        raise BadInput(f"{message}; see `{self.prog} --help`")


def parse_flags(kind: type[T], arguments: list[str], prog: str, description: str) -> T:
    """Build `kind` from the command line. Flags that are not given keep their defaults."""
    complaint = io.StringIO()
    arguments = [_plain_integer(argument) for argument in arguments]
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                kind, args=arguments, prog=prog, description=description, config=(tyro.conf.OmitArgPrefixes,)
            )
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        raise BadInput(f"{_readable(complaint.getvalue())}; see `{prog} --help`") from None


def list_wrappers(arguments: list[str]) -> list[str]:
    """Turn `--wrapper A --wrapper B` into the list `--wrappers A B`.

    >>> list_wrappers(["--wrapper", "A", "--seed", "1", "--wrapper=B:k=2"])
    ['--seed', '1', '--wrappers', 'A', 'B:k=2']
    """
    wrappers, others, given = [], [], iter(arguments)
    for argument in given:
        name, equals, value = argument.partition("=")
        if name != "--wrapper":
            others.append(argument)
        elif (value := value if equals else next(given, "")) and not value.startswith("--"):
            wrappers.append(value)
        else:
            raise BadInput("--wrapper needs a value: NAME, module:NAME or file.py:NAME, optionally with :k=v,k=v")
    return [*others, "--wrappers", *wrappers] if wrappers else others


def _plain_integer(text: str) -> str:
    """Turn 1e5 into 100000, so that integer flags accept it."""
    return str(int(float(text))) if re.fullmatch(r"\d+(\.\d+)?[eE]\d{1,2}", text) and float(text).is_integer() else text


TITLES = ("", "Value error", "Parsing error", "Unrecognized options", "Required options", "Missing argument")


def _readable(boxed: str) -> str:
    """Return tyro's message in one line, without its box."""
    unruled = re.sub(r"(?<!\S)[|+]?-{3,}[|+]?(?!\S)", " ", boxed)  # the box of an ASCII terminal
    lines = [line.strip("│╭╮╰╯─|+ \n") for line in unruled.splitlines()]
    wanted = [line for line in lines if line not in TITLES and "helptext" not in line and not line.endswith(" --help")]
    return re.sub(r"^Error parsing \w+: ", "", " ".join(wanted)).rstrip(".;")
