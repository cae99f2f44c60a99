"""Resuming and the cost of checkpoints, with real commands in processes of their own.

    python benchmarks/resume.py kills ppo       # killed five times at random moments, against the undisturbed run
    python benchmarks/resume.py cost dqn        # with and without checkpoints, in turn

Work: ppo (CartPole-v1, 1,000,000 steps), dqn (CartPole-v1, 100,000 steps), pong (DQN, 100,000 transitions, one update
every 64 steps, so that it takes minutes and checkpoints weigh more than they usually do). Flags that this script does
not know go to `drl train`.
"""

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WORK = {
    "ppo": "ppo --env CartPole-v1 --total-timesteps 1000000",
    "dqn": "dqn --env CartPole-v1 --total-timesteps 100000",
    "pong": "dqn --env ALE/Pong-v5 --frame-stack 4 --num-envs 1 --vectorization sync --total-timesteps 100000 "
    "--capacity 100000 --warmup 1000 --train-every 64 --updates-per-log 50 --batch-size 32 --evaluation-episodes 1",
}
LEAN = "--quiet --no-plots --no-video --no-tensorboard --evaluate-every 0"


def start(words: list[str]) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "drl.cli.entry", *words], env=environment, stdout=subprocess.DEVNULL)


def run_in(folder: Path) -> Path:
    return next(folder.rglob("run.json")).parent


def digest(run: Path) -> tuple[list[dict[str, Any]], str]:
    """The metrics without their clock, and the name of the weights, which holds their checksum."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    plain = [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]
    return plain, next((run / "agent").glob("weights-*")).name


def kills(words: list[str], folder: Path, count: int) -> str:
    began = time.monotonic()
    start([*words, "--results-dir", str(folder / "whole")]).wait()
    seconds, rng = time.monotonic() - began, random.Random(0)
    for number in range(count + 1):
        runs = list((folder / "killed").rglob("run.json"))
        process = start(["resume", str(runs[0].parent)] if runs else [*words, "--results-dir", str(folder / "killed")])
        if number == count:
            process.wait()
            break
        time.sleep(rng.uniform(5.0, 5.0 + 0.3 * seconds))
        process.send_signal(signal.SIGKILL)
        process.wait()
    whole, killed = run_in(folder / "whole"), run_in(folder / "killed")
    resumed = json.loads((killed / "run.json").read_text()).get("resumed", [])
    steps = ", ".join(f"{each['env_steps']:,}" for each in resumed)
    same = "equal" if digest(whole) == digest(killed) else "DIFFERENT"
    how = ", ".join(sorted({each["resumed"] for each in resumed}))
    return f"killed {count} times, resumed at {steps} ({how}): metrics and weights {same}; {seconds:.0f} s undisturbed"


def cost(words: list[str], folder: Path, rounds: int) -> str:
    spent: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(rounds):
        for name in ("with", "without") if number % 2 else ("without", "with"):
            where = folder / f"{name}{number}"
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            none = ["--keep-checkpoints", "0"] if name == "without" else []
            start([*words, *none, "--results-dir", str(where)]).wait()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    same = "equal" if digest(run_in(folder / "with0")) == digest(run_in(folder / "without0")) else "DIFFERENT"
    stored = [path for path in (run_in(folder / "with0") / "checkpoints").rglob("*") if path.is_file()]
    megabytes = sum(path.stat().st_size for path in stored) / 1e6
    median = {name: sorted(times)[len(times) // 2] for name, times in spent.items()}
    share = median["with"] / median["without"] - 1
    times = "; ".join(f"{name} {', '.join(f'{t:.1f}' for t in each)} s" for name, each in spent.items())
    return f"checkpoints cost {share:+.1%} of CPU time ({times}); {megabytes:.1f} MB on disk; metrics {same}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kills", "cost"))
    parser.add_argument("work", choices=WORK)
    parser.add_argument("--count", type=int, default=5, help="of kills, or rounds")
    arguments, flags = parser.parse_known_args()
    words = ["train", *WORK[arguments.work].split(), *LEAN.split(), *flags]
    with tempfile.TemporaryDirectory() as folder:
        measure = kills if arguments.what == "kills" else cost
        print(f"{arguments.work}: {measure(words, Path(folder), arguments.count)}")


if __name__ == "__main__":
    main()
