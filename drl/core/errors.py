"""Errors for users, each with an exit code of the command line; words of messages; results as HTML in notebooks.

The HTML is small and escaped, has no scripts and needs no network.
"""

import base64
import difflib
import html
import os
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

OURS = str(Path(__file__).parents[1]) + os.sep
LIBRARIES = tuple(f"{name}{os.sep}" for name in (sysconfig.get_path("stdlib"), "site-packages", "dist-packages"))
MOST_BYTES = 5_000_000  # largest picture in a notebook
PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}


class DrlError(Exception):
    """Base class of every error that `drl` raises on purpose."""

    exit_code = 1


class BadInput(DrlError, ValueError):
    """An invalid value, name or combination. The message states what was given, what was expected and what to type."""

    exit_code = 2


class MissingExtra(BadInput, ImportError):
    """An optional dependency is not installed. `cause` is the failed import or the name of its module: an installed
    package may itself lack a dependency."""

    def __init__(self, feature: str, extra: str, cause: ImportError | str):
        module = cause if isinstance(cause, str) else cause.name
        what = f"the module {module!r}, which cannot be imported" if module else f"an optional package ({cause})"
        super().__init__(f"{feature} needs {what}; install it with: pip install 'drl-workshop[{extra}]'")
        self.name = module


class UnusableFile(DrlError):
    """A checkpoint or agent file that is damaged, foreign or from another version."""

    exit_code = 3


class SaveFailed(DrlError):
    """Training finished but the final save did not."""

    exit_code = 4


class EnvFailed(DrlError):
    """An environment raised, died or did not answer in time."""

    exit_code = 5
    env_index: int | None = None  # index among the environments that are stepped together, if known


class LearnerFailed(DrlError):
    """One of several learners of a run raised, died or did not answer in time."""

    exit_code = 5


class NonFinite(DrlError):
    """A loss, gradient or reward was NaN or infinite."""

    exit_code = 6


def shown(value: object) -> str:
    """Show a value in one short line, for a message.

    >>> shown([1, None])
    '[1, None]'
    """
    try:
        return " ".join(repr(value).split())[:80]
    except Exception:  # Python does not print an int of more than 4300 digits, and a user's class can raise anything
        return f"an object of {type(value)}"


def one_line(error: BaseException, most: int = 200) -> str:
    """Show an exception in one short line.

    >>> one_line(ValueError("a\\n b"))
    'ValueError: a b'
    """
    return " ".join(f"{type(error).__name__}: {error}".split())[:most]


def raised_at(error: BaseException) -> str:
    """Return where an error was raised as `file.py:LINE`: the last line of the user's code in the traceback, else of a
    library, else of `drl`; "" if unknown.

    >>> raised_at(ValueError("not raised"))
    ''
    """
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    places = [place for place in places if not place[0].startswith("<")]
    foreign = [place for place in places if not place[0].startswith(OURS)]
    own = [place for place in foreign if not any(folder in place[0] for folder in LIBRARIES)]
    for file, line in reversed(own or foreign or places):
        here = os.path.relpath(file)
        return f"{file if here.startswith(os.pardir) else here}:{line}"
    return ""


def advise(error: BaseException, advice: str) -> None:
    """Attach advice to an error without any: a note in Python, lines below the message on the command line."""
    if not advice_of(error):
        error.advice = advice  # type: ignore[attr-defined]
        error.add_note(advice)


def advice_of(error: BaseException) -> str:
    """Return the advice attached by `advise`."""
    return str(getattr(error, "advice", ""))


def plural(count: float, noun: str, many: str = "") -> str:
    """Return a count with its noun; `many` is an irregular plural.

    >>> plural(1, "episode"), plural(2500, "episode")
    ('1 episode', '2,500 episodes')
    """
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def printable(text: str) -> str:
    r"""Escape control characters, which could move the cursor of a terminal.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


class Interrupted(KeyboardInterrupt):
    """A signal arrived during work that may be interrupted."""


def did_you_mean(given: str, options: Iterable[str]) -> str:
    """Return a hint for an error message: the closest options, or the whole list if it is short.

    >>> did_you_mean("pp0", ["ppo", "a2c"])
    "did you mean 'ppo'?"
    >>> did_you_mean("zzz", ["ppo", "a2c"])
    "expected one of 'a2c', 'ppo'"
    """
    names = sorted(set(options))
    lowered = {name.lower(): name for name in names}
    close = difflib.get_close_matches(given.lower(), lowered, n=3, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(repr(lowered[name]) for name in close) + "?"
    listed = ", ".join(repr(name) for name in names[:12]) + (", …" if len(names) > 12 else "")
    return f"expected one of {listed}"


def html_table(columns: Sequence[object], rows: Iterable[Sequence[object]], title: str = "") -> str:
    """Return a table as HTML; floats have four digits.

    >>> html_table(["name", "return"], [["<a>", 0.123456]], title="Runs")
    '<b>Runs</b><table><tr><th>name</th><th>return</th></tr><tr><td>&lt;a&gt;</td><td>0.1235</td></tr></table>'
    """

    def cell(value: object) -> str:
        return html.escape(f"{value:.4g}" if isinstance(value, float) else str(value))

    head = "".join(f"<th>{cell(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"{f'<b>{html.escape(title)}</b>' if title else ''}<table><tr>{head}</tr>{body}</table>"


def html_text(text: object) -> str:
    """Return preformatted text as HTML.

    >>> html_text("a < b")
    '<pre>a &lt; b</pre>'
    """
    return f"<pre>{html.escape(str(text))}</pre>"


def html_picture(path: Path, about: str, width: int = 600) -> str:
    """Return a .png or .svg file embedded in HTML; for any other file its path."""
    kind = PICTURES.get(path.suffix.lower())
    try:
        if kind is None or path.stat().st_size > MOST_BYTES:
            return html_text(path)
        data = base64.b64encode(path.read_bytes()).decode()
    except OSError:  # it was moved or deleted
        return html_text(path)
    return f'<img alt="{html.escape(about)}" width="{width}" src="data:{kind};base64,{data}">'
