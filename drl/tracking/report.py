"""One self-contained page for a run: headline numbers, pictures, evaluations, configuration.

It reads only the run folder and skips what is missing. Images are inlined; the page loads nothing else.
"""

import base64
import json
import os
from collections.abc import Iterable
from html import escape
from pathlib import Path

from drl.core.errors import BadInput
from drl.core.safe_files import read_inside, write_atomically
from drl.core.state_files import PlainDict
from drl.core.yaml_files import MOST_SETTINGS, parse_yaml
from drl.tracking.files import Row, read_metrics

PICTURES = ("return", "rollout_return", "success_rate", "evaluation", "loss")  # in this order; others follow
MOST_PICTURES, MOST_PICTURE_BYTES = 20, 8 << 20
MOST_EVALUATIONS = 100  # rows shown, the latest

STYLE = """
:root { color-scheme: light dark; --ink: #2b2b2b; --faint: #767676; --line: #e2e2e2; --card: #f6f7f8; --page: #fff }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --faint: #a0a0a0; --line: #3a3a3a; --card: #24272b; --page: #191b1e } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
       max-width: 62rem; margin: 2.5rem auto; padding: 0 1.25rem }
h1 { font-size: 1.6rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2.2rem 0 .7rem }
.where { color: var(--faint); margin: .2rem 0 1.5rem }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: .7rem }
.card { background: var(--card); border-radius: .5rem; padding: .7rem .9rem }
.card b { display: block; font-size: 1.25rem; overflow-wrap: anywhere } .card span { color: var(--faint) }
.card span { font-size: .85rem }
img { width: 100%; border-radius: .5rem; margin-bottom: .8rem; background: #fff }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .28rem .8rem .28rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
td { overflow-wrap: anywhere } .numbers th, .numbers td { text-align: right }
.pairs th { font-weight: 500; color: var(--faint); width: 18rem }
summary { cursor: pointer; font-weight: 600 } details { margin-top: 1.4rem }
"""


def write_report(run_dir: str | Path) -> Path:
    """Write `report.html` into a run folder. Call `plot_run` first to have the pictures in it."""
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise BadInput(f"{run_dir} is not a folder; expected a run folder such as results/<experiment>/<run-id>")
    metrics = run_dir / "metrics.jsonl"
    rows = read_metrics(metrics) if os.path.lexists(metrics) else []
    run = _parsed(run_dir / "run.json")
    name = f"{run_dir.resolve().parent.name} / {run_dir.resolve().name}"
    body = [
        f"<h1>{escape(run_dir.resolve().parent.name)}</h1><p class=where>{escape(run_dir.resolve().name)}</p>",
        _cards(_headline(rows, run)),
        _pictures(run_dir / "plots"),
        _evaluations(rows),
        _pairs("Configuration", _parsed(run_dir / "config.yaml"), opened=True),
        _pairs("Run", run, opened=False),
    ]
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        'style-src \'unsafe-inline\'"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)}</title><style>{STYLE}</style></head><body>\n" + "\n".join(filter(None, body))
    )
    path = run_dir / "report.html"
    write_atomically(path, (page + "\n</body></html>\n").encode())
    return path


def _headline(rows: list[Row], run: object) -> dict[str, str]:
    record = run if isinstance(run, dict) else {}
    found: PlainDict = {key: record[key] for key in ("status", "seed") if key in record}
    final = record.get("final_evaluation")
    if isinstance(final, dict):
        found["final evaluation, mean return"] = final.get("mean_return")
    if not rows:
        return {key: _text(value) for key, value in found.items()}
    last = rows[-1]
    found |= {"environment steps": last.get("env_steps"), "episodes": last.get("episodes")}
    window = last.get("recent/window")
    over = f", last {window:,.0f} episodes" if window else ""
    found[f"mean return{over}"] = last.get("recent/mean_ep_return")
    found[f"success rate{over}"] = last.get("recent/success_rate")
    found["seconds of training"] = sum(row.get("time/time_elapsed") or 0.0 for row in rows)  # of one step each
    found["steps per second"] = last.get("time/steps_per_second")
    return {key: _text(value) for key, value in found.items() if value is not None}


def _evaluations(rows: list[Row]) -> str:
    evaluated = [row for row in rows if any(name.startswith("evaluation/") for name in row)]
    if not evaluated:
        return ""
    names = list(dict.fromkeys(name for row in evaluated for name in row if name.startswith("evaluation/")))
    head = _cells("th", ["environment steps", *(name.split("/", 1)[1] for name in names)])
    lines = [
        _cells("td", [_text(row.get("env_steps")), *(_text(row.get(name)) for name in names)])
        for row in evaluated[-MOST_EVALUATIONS:]
    ]
    left_out = len(evaluated) - len(lines)
    note = f"<p class=where>{left_out:,} earlier evaluations are in metrics.jsonl.</p>" if left_out else ""
    return f"<h2>Evaluation</h2><div class=wide><table class=numbers>{head}{''.join(lines)}</table></div>{note}"


def _pictures(folder: Path) -> str:
    def place(path: Path) -> tuple[int, str]:
        return (PICTURES.index(path.stem) if path.stem in PICTURES else len(PICTURES), path.stem)

    images = []
    for path in sorted(folder.glob("*.png"), key=place)[:MOST_PICTURES]:
        data = base64.b64encode(read_inside(folder.parent, path, MOST_PICTURE_BYTES)).decode()
        images.append(f'<img alt="{escape(path.stem.replace("_", " "))}" src="data:image/png;base64,{data}">')
    return "<h2>Curves</h2>" + "".join(images) if images else ""


def _pairs(title: str, content: object, opened: bool) -> str:
    if not content:
        return ""
    lines = [f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in _leaves(content)]
    table = f"<table class=pairs>{''.join(lines)}</table>"
    return f"<details{' open' if opened else ''}><summary>{escape(title)}</summary>{table}</details>"


def _leaves(content: object, prefix: str = "") -> Iterable[tuple[str, str]]:
    """Nested mappings as `a.b.c` and value."""
    if isinstance(content, dict) and content:
        for key, value in content.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, content if isinstance(content, str) else json.dumps(content, default=str, ensure_ascii=False)


def _cards(numbers: dict[str, str]) -> str:
    cards = [f"<div class=card><b>{escape(text)}</b><span>{escape(key)}</span></div>" for key, text in numbers.items()]
    return f"<div class=cards>{''.join(cards)}</div>" if cards else ""


def _cells(tag: str, texts: list[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts) + "</tr>"


def _parsed(path: Path) -> object:
    """The content of a YAML or JSON file; the raw text if it cannot be parsed; None if there is no file."""
    if not os.path.lexists(path):
        return None
    text = read_inside(path.parent, path, MOST_SETTINGS).decode(errors="replace")
    try:
        return parse_yaml(text) if path.suffix == ".yaml" else json.loads(text)
    except (ValueError, RecursionError):
        return text


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
