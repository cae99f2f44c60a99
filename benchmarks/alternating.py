"""How every speed here is measured: one process, one core, alternating, CPU time, the median round counts."""

import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable


def pin_to_one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def race(contestants: dict[str, Callable[[], None]], work: float, rounds: int, title: str) -> None:
    """Let each contestant do `work` units `rounds` times and print units per CPU second. The first one is the peer.

    Contestants come warmed up.
    """
    speeds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            started = time.process_time()
            run()
            speeds[name].append(work / (time.process_time() - started))
    peer = next(iter(contestants))
    print(title)
    for name, measured in speeds.items():
        middle = statistics.median(measured)
        spread = f"{min(measured):,.0f}-{max(measured):,.0f}"
        print(f"  {name:24} {middle:8,.0f}   ({spread})   {middle / statistics.median(speeds[peer]):.2f} × {peer}")


def need(*packages: str) -> None:
    """End with exit code 2 and the command that installs them if one of these packages is missing."""
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        print(
            f"missing: {', '.join(missing)}; install with: pip install -c constraints.txt -e '.[bench]'",
            file=sys.stderr,
        )
        sys.exit(2)
