"""`drl ablate ALGORITHM --env ID …`: add and remove each switch alone, over several seeds: a table and a plot."""

from drl.cli.train import read_experiment, take_flag
from drl.core.algorithms import ALGORITHMS
from drl.core.errors import BadInput
from drl.core.size_limits import check_size

USAGE = "usage: drl ablate ALGORITHM --env ID [--seeds 5] [--workers 2] [--episodes 50] [any flag of drl train]"


def main(arguments: list[str]) -> int:
    """Run `drl ablate`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        print(f"algorithms: {', '.join(name for name, record in ALGORITHMS.items() if record.switches)}")
        return 0 if arguments else 2
    algorithm, flags = arguments[0], list(arguments[1:])
    numbers = {name: _whole(flags, f"--{name}", default) for name, default in (("seeds", 5), ("episodes", 50))}
    workers = _whole(flags, "--workers", 0)
    experiment, _ = read_experiment(algorithm, flags)

    from drl.experiment.ablation import ablate

    ablate(experiment, seeds=numbers["seeds"], workers=workers or None, episodes=numbers["episodes"], console=True)
    return 0


def _whole(flags: list[str], name: str, default: int) -> int:
    value = take_flag(flags, name)
    if value is None:
        return default
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise BadInput(f"{name} is {value[:80]!r}; expected a whole number of at least 1")
    check_size({"--seeds": "num_seeds"}.get(name, name.removeprefix("--")), number)
    return number
