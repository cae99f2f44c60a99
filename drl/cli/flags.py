"""Flags from dataclasses, through tyro. Every field is a flag; bad flags give one message and exit code 2."""

import contextlib
import io
import re
from typing import TypeVar

import tyro

from drl.core.errors import BadInput

T = TypeVar("T")


def parse_flags(kind: type[T], arguments: list[str], prog: str, description: str) -> T:
    """`kind` filled from the command line; a flag that is not given keeps its default."""
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
        raise BadInput(_readable(complaint.getvalue()) + f"\nSee `{prog} --help`.") from None


def _plain_integer(text: str) -> str:
    """1e5 → 100000, so that integer flags accept it."""
    return str(int(float(text))) if re.fullmatch(r"\d+(\.\d+)?[eE]\d{1,2}", text) and float(text).is_integer() else text


def _readable(boxed: str) -> str:
    """tyro's message without its box."""
    lines = [line.strip("│╭╮╰╯─ \n") for line in boxed.splitlines()]
    wanted = [line for line in lines if line not in ("", "Value error", "Parsing error") and "helptext" not in line]
    return "\n".join(re.sub(r"^Error parsing \w+: ", "", line) for line in wanted)
