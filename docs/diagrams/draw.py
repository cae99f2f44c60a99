"""Draws the diagrams of the documentation: `python docs/diagrams/draw.py` writes the SVG files beside it.

`python docs/diagrams/draw.py CLONE FILE.svg` draws the packages of another clone, such as one of an earlier commit.
"""

import ast
import sys
from collections import defaultdict
from html import escape
from pathlib import Path

INK, FAINT, PAPER = "#2b2b2b", "#6f6f6f", "#ffffff"
BLUE, GREEN, ORANGE, PINK, GREY = "#d6e8f5", "#d5ede4", "#fae5d3", "#f3e0ec", "#eeeeee"


class Drawing:
    """Boxes, arrows and words on a page of a fixed size."""

    def __init__(self, width: int, height: int, title: str):
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def box(self, x: int, y: int, w: int, h: int, text: str, fill: str = GREY, small: str = "") -> None:
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="6" fill="{fill}" stroke="{INK}"/>')
        middle = y + h / 2 + (5 if not small else -3)
        self.words(x + w / 2, middle, text, bold=True)
        if small:
            self.words(x + w / 2, middle + 17, small, size=11, color=FAINT)

    def words(
        self,
        x: float,
        y: float,
        text: str,
        size: int = 14,
        bold: bool = False,
        color: str = INK,
        anchor: str = "middle",
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
        self.parts.append(f'<text {place} font-size="{size}"{weight} fill="{color}">{escape(text)}</text>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, text: str = "", dashed: bool = False) -> None:
        self.path((x1, y1), (x2, y2), dashed=dashed)
        if text:
            above = 6 if y1 == y2 else -4
            right = 0 if y1 == y2 else 8 if x1 == x2 else 16
            self.words((x1 + x2) / 2 + right, (y1 + y2) / 2 - above, text, size=11, color=FAINT,
                       anchor="middle" if y1 == y2 else "start")  # fmt: skip

    def path(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """An arrow along these points."""
        dash = ' stroke-dasharray="3 3"' if dashed else ""
        ends = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<polyline points="{ends}" fill="none" stroke="{INK}"{dash} marker-end="url(#head)"/>')

    def cell(self, x: int, y: int, text: str, fill: str, w: int = 44, h: int = 28) -> None:
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" fill="{fill}" stroke="{INK}"/>')
        self.words(x + w / 2, y + h / 2 + 4, text, size=11)

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'font-family="system-ui, sans-serif" role="img"><title>{escape(self.title)}</title>\n'
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            f'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>\n'
            f'<rect width="{self.width}" height="{self.height}" fill="{PAPER}"/>\n'
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"


def architecture() -> Drawing:
    """What owns what."""
    d = Drawing(760, 430, "What owns what: experiment, trainer, agent, model, algorithm, buffer, environment, trackers")
    d.box(290, 16, 180, 50, "Experiment", PINK, "stages, budget, run folder")
    d.box(290, 110, 180, 50, "Trainer", ORANGE, "a generator of logs")
    d.box(560, 110, 180, 50, "Trackers", PINK, "files, plots, videos, board")
    d.arrow(380, 66, 380, 110, "pulls logs")
    d.arrow(470, 135, 560, 135, "logs")
    d.box(20, 210, 160, 50, "Environment", GREEN, "N stepped together")
    d.box(210, 210, 160, 50, "Agent", BLUE, "obs → action")
    d.box(400, 210, 160, 50, "Algorithm", ORANGE, "a loss, an optimizer")
    d.box(590, 210, 150, 50, "Buffer", GREY, "what the learner sees")
    d.arrow(320, 160, 110, 210)
    d.words(190, 178, "steps", size=11, color=FAINT)
    d.arrow(360, 160, 295, 210, "asks")
    d.arrow(410, 160, 475, 210, "calls learn")
    d.arrow(450, 160, 655, 210)
    d.words(632, 182, "fills, takes from", size=11, color=FAINT)
    d.box(305, 305, 160, 50, "Model", BLUE, "backbone + head")
    d.arrow(290, 260, 360, 305, "acts with")
    d.arrow(480, 260, 410, 305, "improves")
    d.box(200, 380, 150, 40, "Backbone", BLUE)
    d.box(420, 380, 150, 40, "Head", BLUE)
    d.arrow(350, 355, 290, 380)
    d.arrow(420, 355, 480, 380)
    return d


def buffer_dimensions() -> Drawing:
    """The arrays of a rollout."""
    d = Drawing(760, 330, "Arrays of a rollout: time first, then environments, then what one entry is")
    d.words(20, 30, "A rollout: arrays are time-major, [T, N, …]", bold=True, anchor="start")
    for n in range(4):
        d.words(172 + 50 * n, 66, f"env {n}", size=11, color=FAINT)
    for t in range(5):
        d.words(135, 97 + 34 * t, f"t = {t}", size=11, color=FAINT, anchor="end")
        for n in range(4):
            d.cell(150 + 50 * n, 78 + 34 * t, f"{t},{n}", BLUE)
    d.arrow(40, 80, 40, 245, "")
    d.words(40, 265, "T steps", size=12)
    d.arrow(150, 268, 345, 268)
    d.words(248, 288, "N environments", size=12)
    rows = [
        ("obs", "[T, N, *obs_shape]", "what the agent saw"),
        ("action", "[T, N, *action_shape]", "in the policy's units"),
        ("reward", "[T, N]", "raw"),
        ("terminated, truncated", "[T, N]", "how the episode ended here"),
        ("valid", "[T, N]", "False: only a reset"),
        ("last_obs", "[N, *obs_shape]", "successor of the last row"),
        ("final_obs, final_index", "[E, …], [E]", "true successors at E ends"),
    ]
    for i, (name, shape, meaning) in enumerate(rows):
        y = 82 + 29 * i
        d.words(375, y, name, size=12, bold=True, anchor="start")
        d.words(530, y, shape, size=12, anchor="start")
        d.words(375, y + 13, meaning, size=10, color=FAINT, anchor="start")
    return d


def rollout_structure() -> Drawing:
    """Episodes in a rollout, and where values are bootstrapped."""
    d = Drawing(760, 300, "A rollout of two environments: where episodes end and where values are bootstrapped")
    d.words(20, 28, "One rollout: T = 8 steps of N = 2 environments", bold=True, anchor="start")
    rows = [
        ("env 0", ["a0", "a1", "a2 ✕", "b0", "b1", "b2", "b3", "b4"], {2: "terminated: no value"}, "V(last_obs)"),
        ("env 1", ["c3", "c4", "c5", "c6 |", "d0", "d1", "d2", "d3"], {3: "truncated: V(final_obs)"}, "V(last_obs)"),
    ]
    fills = {"a": BLUE, "b": GREEN, "c": ORANGE, "d": PINK}
    for i, (name, cells, ends, tail) in enumerate(rows):
        y = 62 + 100 * i
        d.words(70, y + 24, name, size=12, color=FAINT, anchor="end")
        for t, text in enumerate(cells):
            d.cell(85 + 66 * t, y, text, fills[text[0]], w=62, h=36)
        d.arrow(85 + 66 * 8, y + 18, 85 + 66 * 8 + 28, y + 18)
        d.words(85 + 66 * 8 + 32, y + 22, tail, size=11, anchor="start")
        for t, text in ends.items():
            d.arrow(85 + 66 * t + 31, y + 36, 85 + 66 * t + 31, y + 58)
            d.words(85 + 66 * t + 31, y + 72, text, size=11, color=FAINT)
    for y, text in (
        (262, "Advantages flow backwards within an episode and stop at its end. A termination has no future; a"),
        (280, "truncation and the end of the rollout keep theirs: the critic speaks for what was not played."),
    ):
        d.words(20, y, text, size=12, anchor="start")
    return d


def pipeline_with_buffer() -> Drawing:
    """One learning step."""
    d = Drawing(600, 330, "One learning step: collect into the buffer, take it, advantages, minibatch epochs, one log")
    d.box(20, 40, 130, 52, "Environment", GREEN, "N envs")
    d.box(220, 40, 130, 52, "Agent", BLUE, "act(obs)")
    d.arrow(150, 56, 220, 56, "obs")
    d.arrow(220, 78, 150, 78)
    d.words(185, 92, "action", size=11, color=FAINT)
    d.box(430, 40, 150, 52, "Buffer", GREY, "add(…) until ready")
    d.arrow(350, 66, 430, 66, "transitions")
    d.words(390, 92, "T times", size=11, color=FAINT)
    d.box(430, 150, 150, 52, "take()", GREY, "one RolloutBatch")
    d.arrow(505, 92, 505, 150)
    d.box(430, 250, 150, 52, "evaluate_rollout", ORANGE, "V, log π, GAE")
    d.arrow(505, 202, 505, 250)
    d.box(220, 250, 150, 52, "minibatches", ORANGE, "epochs × shuffled parts")
    d.arrow(430, 276, 370, 276)
    d.box(20, 250, 140, 52, "ppo_loss, Adam", ORANGE, "one step each")
    d.arrow(220, 276, 160, 276)
    d.box(20, 150, 140, 52, "Model", BLUE, "new parameters")
    d.arrow(90, 250, 90, 202)
    d.arrow(110, 150, 240, 92, dashed=True)
    d.words(200, 128, "acts with them", size=11, color=FAINT, anchor="start")
    d.box(220, 150, 150, 52, "Log", PINK, "one per learning step")
    d.arrow(160, 176, 220, 176, "then")
    return d


def four_classes() -> Drawing:
    """Two ways to put model, algorithm, agent and trainer together."""
    d = Drawing(910, 590, "Model, algorithm, agent and trainer: one inside the other, and side by side as in drl")
    column = [20 + 190 * i for i in range(5)]
    wide, middle = 112, [x + 56 for x in column]

    def between(left: int, y: int, text: str, dashed: bool, back: bool = False) -> None:
        start, end = column[left] + wide, column[left + 1]
        d.arrow(*((end, y, start, y) if back else (start, y, end, y)), text, dashed)

    def down(x: float, y: int, text: str) -> None:
        d.arrow(x, y, x, y + 60, text)

    def both(x: float, y: int, call: str, answer: str) -> None:
        d.arrow(x - 16, y, x - 16, y + 60)
        d.words(x - 22, y + 34, call, size=11, color=FAINT, anchor="end")
        d.arrow(x + 16, y + 60, x + 16, y, answer, dashed=True)

    d.words(20, 30, "One inside the other: Trainer has Agent has Algorithm has Model", bold=True, anchor="start")
    d.box(column[0], 50, column[2] + wide - column[0], 44, "Trainer", ORANGE)
    parts = [("Buffer", GREY), ("Environment", GREEN), ("Agent", BLUE), ("Algorithm", ORANGE), ("Model", BLUE)]
    for x, (name, fill) in zip(column, parts, strict=True):
        d.box(x, 154, wide, 64, name, fill)
    down(middle[0], 94, "add, sample")
    down(middle[1], 94, "step")
    both(middle[2], 94, "sample, learn", "log_data")
    between(0, 186, "transitions", True, back=True)
    between(1, 170, "obs", True)
    between(1, 204, "act", True, back=True)
    between(2, 170, "predict, learn", False)
    between(2, 204, "act, log_data", True, back=True)
    between(3, 170, "value, action", False)
    between(3, 204, "outputs", True, back=True)
    d.path((middle[0], 218), (middle[0], 246), (middle[2], 246), (middle[2], 218), dashed=True)
    d.words(middle[1], 262, "samples", size=11, color=FAINT)

    d.words(20, 312, "drl: the trainer has all parts; agent and algorithm share the model", bold=True, anchor="start")
    d.box(column[0], 332, column[3] + wide - column[0], 44, "Trainer", ORANGE)
    d.box(column[4], 332, wide, 44, "Log", PINK)
    between(3, 354, "yields", True)
    for x, name, fill in zip(column, *zip(parts[2], parts[1], parts[0], parts[3], strict=True), strict=False):
        d.box(x, 436, wide, 44, name, fill)
    down(middle[0], 376, "decide")
    down(middle[1], 376, "step")
    down(middle[2], 376, "add, take")
    both(middle[3], 376, "learn", "metrics, priorities")
    between(0, 448, "obs", True, back=True)
    between(0, 470, "action", True)
    between(1, 458, "transitions", True)
    between(2, 458, "batch", True)
    d.box(column[0], 540, column[3] + wide - column[0], 36, "Model", BLUE)
    both(middle[0], 480, "forward", "outputs")
    both(middle[3], 480, "forward, update", "outputs")
    d.arrow(column[4] - 20, 470, column[4] + 30, 470)
    d.words(column[4] + 36, 474, "control flow", size=12, anchor="start")
    d.arrow(column[4] - 20, 496, column[4] + 30, 496, dashed=True)
    d.words(column[4] + 36, 500, "data flow", size=12, anchor="start")
    return d


def package_of(module: str) -> str:
    parts = module.split(".")[1:]
    nested = (parts[:1] == ["engines"] and len(parts) > 1) or parts[:2] == ["runs", "folder"]
    return "/".join(parts[:2]) if nested else (parts or [""])[0]


def package_imports(root: Path) -> tuple[dict[str, int], dict[str, set[str]]]:
    """The number of files of each package, and the packages that it imports."""
    sizes: dict[str, int] = defaultdict(int)
    imports: dict[str, set[str]] = defaultdict(set)
    for path in sorted((root / "drl").glob("*/**/*.py")):
        package = package_of(".".join(path.relative_to(root).with_suffix("").parts))
        if package == "engines/__init__":
            continue
        sizes[package] += 1
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            imports[package] |= {package_of(name) for name in names if name.startswith("drl.")} - {package}
    return dict(sizes), {package: imports[package] & sizes.keys() for package in sizes}


def packages(root: Path = Path(__file__).parents[2]) -> Drawing:
    """Which package imports which: arrows that follow from others are left out."""
    sizes, imports = package_imports(root)
    reached: dict[str, set[str]] = {}

    def reach(package: str) -> set[str]:
        if package not in reached:
            reached[package] = set()  # a cycle ends here
            reached[package] = imports[package].union(*map(reach, imports[package]))
        return reached[package]

    def height(package: str, above: tuple[str, ...] = ()) -> int:
        return 1 + max((height(i, (*above, package)) for i in imports[package] if i not in above), default=-1)

    layers: dict[int, list[str]] = defaultdict(list)
    for package in sizes:
        layers[height(package)].append(package)
    wide, high, top = 132, 46, len(layers) - 1
    d = Drawing(
        20 + max(map(len, layers.values())) * (wide + 24), 60 + (top + 1) * (high + 44), "Which package imports which"
    )
    d.words(d.width / 2, 26, f"{len(sizes)} packages, {sum(sizes.values())} files")
    place = {}
    for layer, members in layers.items():
        left = (d.width - len(members) * (wide + 24) + 24) / 2
        for i, package in enumerate(sorted(members)):
            place[package] = (int(left + i * (wide + 24)), 46 + (top - layer) * (high + 44))
    for package in sizes:
        for below in sorted(imports[package]):
            if any(below in reach(other) for other in imports[package] - {below}):
                continue
            (x, y), (to_x, to_y) = place[package], place[below]
            d.path((x + wide / 2, y + high), (to_x + wide / 2, to_y))
    for package, (x, y) in place.items():
        fill = BLUE if "engines" in package else GREY if package in ("core", "algorithms") else GREEN
        d.box(x, y, wide, high, package, fill, f"{sizes[package]} files")
    return d


DIAGRAMS = (architecture, buffer_dimensions, rollout_structure, pipeline_with_buffer, four_classes, packages)


def main(folder: Path) -> None:
    for draw in DIAGRAMS:
        (folder / f"{draw.__name__}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[2]).write_text(packages(Path(sys.argv[1])).svg(), encoding="utf-8")
    else:
        main(Path(__file__).parent)
