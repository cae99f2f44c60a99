"""How results look in a notebook: small, escaped HTML without scripts, which needs no network."""

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path

MOST_BYTES = 5_000_000  # of a picture in a notebook
PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}


def html_table(columns: Sequence[object], rows: Iterable[Sequence[object]], title: str = "") -> str:
    """A table; floats have four digits.

    >>> html_table(["name", "return"], [["<a>", 0.123456]], title="Runs")
    '<b>Runs</b><table><tr><th>name</th><th>return</th></tr><tr><td>&lt;a&gt;</td><td>0.1235</td></tr></table>'
    """
    head = "".join(f"<th>{_cell(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"{f'<b>{html.escape(title)}</b>' if title else ''}<table><tr>{head}</tr>{body}</table>"


def html_text(text: object) -> str:
    """Text as it is printed.

    >>> html_text("a < b")
    '<pre>a &lt; b</pre>'
    """
    return f"<pre>{html.escape(str(text))}</pre>"


def html_picture(path: Path, about: str, width: int = 600) -> str:
    """A .png or .svg file, inside the page; the path of any other file."""
    kind = PICTURES.get(path.suffix.lower())
    try:
        if kind is None or path.stat().st_size > MOST_BYTES:
            return html_text(path)
        data = base64.b64encode(path.read_bytes()).decode()
    except OSError:  # it was moved or deleted
        return html_text(path)
    return f'<img alt="{html.escape(about)}" width="{width}" src="data:{kind};base64,{data}">'


def _cell(value: object) -> str:
    return html.escape(f"{value:.4g}" if isinstance(value, float) else str(value))
