"""A page as one HTML text with inline styles and scripts. Its Content-Security-Policy forbids loading anything else."""

import base64
import hashlib
import html
import json
import re
from pathlib import Path

from drl.core.specs import PlainValue

PARTS = Path(__file__).parent / "page"
SCRIPTS: dict[str, tuple[str, ...]] = {
    "report": ("uPlot.iife.min.js", "elements.js", "charts.js", "tables.js", "report.js"),
    "board": ("elements.js", "board.js"),
}
MARK = '<meta name="generator" content="drl report">'  # distinguishes our pages from other files


def render_page(skeleton: str, title: str, data: PlainValue, live: bool = False) -> str:
    """Fill `page/<skeleton>.html` (`report` or `board`) with the `data` that its scripts draw. Only a `live` page,
    which a board serves, may request more from its server."""
    style = _part("uPlot.min.css") + _part("report.css")
    scripts = [_part(name) for name in SCRIPTS[skeleton]]
    sources = " ".join(map(_hash, scripts))
    own = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src {sources}; style-src {_hash(style)}; connect-src {own}; "
        f"media-src {own if live else 'data:'}; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": html.escape(policy),
        "mark": MARK,
        "title": html.escape(title),
        "style": style,
        "data": json_in_html(data),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _part(f"{skeleton}.html"))


def json_in_html(data: PlainValue) -> str:
    """Return JSON that cannot close the HTML element around it.

    >>> json_in_html("</script>")
    '"\\\\u003c/script\\\\u003e"'
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def is_our_page(path: Path) -> bool:
    """Whether a file is a page that we wrote and may overwrite."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return MARK.encode() in file.read(4096)


def _part(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash by which the policy allows a script or a style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
