"""Logarithmic axes with several readable ticks."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS = ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 4, 5, 6, 7, 8, 9))  # within a decade, from few to many
MOST = 6


def log_ticks(low: float, high: float) -> list[float]:
    """Return up to six round numbers from `low` to `high`.

    >>> log_ticks(1e-4, 1e-2), log_ticks(1e-4, 2e-3), log_ticks(16, 100)
    ([0.0001, 0.0003, 0.001, 0.003, 0.01], [0.0001, 0.0002, 0.0005, 0.001, 0.002], [20.0, 50.0, 100.0])
    >>> log_ticks(1e-12, 1.0)
    [1e-12, 1e-09, 1e-06, 0.001, 1.0]
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    inside = []
    for steps in STEPS:
        every = [float(f"{step}e{decade}") for decade in decades for step in steps]
        inside.append([tick for tick in every if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)])
    few = [ticks for ticks in inside if len(ticks) <= MOST]
    return max(few, key=len) if few else inside[0][:: -(-len(inside[0]) // MOST)]


def tick_text(value: float) -> str:
    """
    >>> [tick_text(value) for value in (3e-4, 1e-3, 0.01, 0.5, 1.0, 500.0, 20_000.0, 1e6)]
    ['3e-4', '1e-3', '1e-2', '0.5', '1', '500', '2e4', '1e6']
    """
    if 0.1 <= value < 10_000:
        return f"{value:g}"
    digits, power = f"{value:.3e}".split("e")
    return f"{float(digits):g}e{int(power)}"


def make_log(ax: "Axes", low: float, high: float) -> None:
    """Make the x axis logarithmic, from `low` to `high`."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ax.set_xscale("log")
    ax.xaxis.set_major_locator(FixedLocator(log_ticks(low, high)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    edge = (high / low) ** 0.04 if high > low else 1.1
    ax.set_xlim(low / edge, high * edge)
