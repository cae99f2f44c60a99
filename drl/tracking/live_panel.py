"""Layout of the live panel: a box per block, or a paragraph per block on a small terminal."""

from typing import TYPE_CHECKING

from drl.tracking.log_blocks import Block

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

COLUMNS, ROWS = 100, 40  # smallest terminal for boxes
# Fields that the compact form shows, by the first word of the block's title; other blocks show all fields.
MOST_WANTED: dict[str, tuple[str, ...]] = {
    "ROLLOUT": (),
    "TRAINER": ("timesteps_count", "total_timesteps", "episodes_count", "clip_range", "steps_per_second"),
    "EVALUATION": ("mean_return", "std_return", "success_rate", "episodes"),
}


def draw(found: list[Block], status: "RenderableType", columns: int, rows: int) -> "Group":
    """Lay out the blocks above the status for a terminal of this size."""
    from rich.columns import Columns
    from rich.console import Group

    if columns < COLUMNS or rows < ROWS:
        return Group(*_compact(found), status)
    height = max(len(block.fields) for block in found) + 2
    return Group(Columns([_box(block, height) for block in found], padding=(0, 1)), status)


def _box(block: Block, height: int) -> "RenderableType":
    from rich import box
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, value in block.fields.items():
        table.add_row(name, value)
    title = Text(block.title, style="bold cyan")
    return Panel(table, title=title, box=box.ROUNDED, border_style="dim", width=38, height=height)


def _compact(found: list[Block]) -> "list[RenderableType]":
    """Return a paragraph per block, with its most important fields."""
    from rich.text import Text

    everything = {name: value for block in found for name, value in block.fields.items()}
    lines: list[RenderableType] = []
    for block in found:
        fields, word = block.fields, block.title.split()[0]
        if word in MOST_WANTED:
            fields = {name: fields[name] for name in MOST_WANTED[word] if name in fields}
        if word == "LEARNING" and "approx_kl" in everything:
            fields = {"approx_kl": everything["approx_kl"]} | fields
        if fields:
            pairs = "  ".join(f"{name}={value}" for name, value in fields.items())  # a name stays with its value
            lines.append(Text.assemble((block.title, "bold cyan"), "  ", pairs))
    return lines
