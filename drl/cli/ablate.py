"""`drl ablate ALGORITHM --env ID …`: add or remove one switch at a time over seeds; writes a table and a plot."""

from typing import Any

from drl.algorithms import ALGORITHMS
from drl.cli.train import read_experiment, take_flag
from drl.core.errors import BadInput

USAGE = "usage: drl ablate ALGORITHM --env ID [--seeds 5] [--workers 2] [--episodes 50] [any flag of drl train]"


def main(arguments: list[str]) -> int:
    """Run `drl ablate`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        print(f"algorithms: {', '.join(name for name, record in ALGORITHMS.items() if record.switches)}")
        return 0 if arguments else 2
    algorithm, flags = arguments[0], list(arguments[1:])
    numbers: dict[str, Any] = {
        name: number for name in ("seeds", "workers", "episodes") if (number := _whole(flags, f"--{name}")) is not None
    }
    experiment, _ = read_experiment(algorithm, flags)

    from drl.analysis.ablation import ablate

    ablate(experiment, **numbers, console=True)
    return 0


def _whole(flags: list[str], name: str) -> int | None:
    value = take_flag(flags, name)
    try:
        return None if value is None else int(value)
    except ValueError:
        raise BadInput(f"{name} is {value!r:.80}; expected a whole number of at least 1") from None
