"""Learning results of the flat command line: `main.py`'s flags, several seeds.

    python benchmarks/learning_flat.py [--seeds 5] [--until 450] [--episodes 100] [flags of main.py]

Prints one row per seed and their mean for `benchmarks/RESULTS.md`. `--until` ends a run as soon as the mean return of
the last 100 episodes has reached it. `--episodes` is how many the final agent is evaluated on, without exploration.
"""

import argparse
import concurrent.futures
import tempfile
from dataclasses import replace

import numpy as np


def train_and_evaluate(flags: list[str], seed: int, until: float | None, episodes: int) -> dict[str, float]:
    from drl.agents.evaluation import evaluate
    from drl.cli.flat import Flags, experiment_of, make_parser
    from drl.runs.launch import train

    experiment = experiment_of(
        Flags(**make_parser().parse([*flags, "--seed", str(seed), "--wandb_disable", "--quiet"]))
    )
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"results_dir": folder, "stop_at_return": until, "plots": False, "video": False, "tensorboard": False}
        never = {"evaluate_every": 0, "checkpoint_every": 0, "keep_checkpoints": 0}
        run = replace(experiment.run, **quiet, **never)  # type: ignore[arg-type]
        finished = train(replace(experiment, run=run))
    assert finished.log is not None
    log = finished.log
    summary = evaluate(finished.agent, run.env, episodes, seed=10_000 + seed).summary()
    training = log.recent["mean_ep_return"]
    return {
        "episodes": log.episodes,
        "steps": log.env_steps,
        "training": training,
        "evaluation": summary["mean_return"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--until", type=float)
    parser.add_argument("--episodes", type=int, default=100, help="evaluation episodes per seed")
    parser.add_argument("--workers", type=int, default=2)
    arguments, flags = parser.parse_known_args()
    print("| seed | episodes | steps | last 100 training episodes | evaluation |")
    print("|---|---|---|---|---|")
    with concurrent.futures.ProcessPoolExecutor(arguments.workers) as pool:
        seeds = range(arguments.seeds)
        jobs = [pool.submit(train_and_evaluate, flags, seed, arguments.until, arguments.episodes) for seed in seeds]
        rows = []
        for seed, job in enumerate(jobs):
            rows.append(row := job.result())
            print(f"| {seed} | " + " | ".join(_shown(value) for value in row.values()) + " |", flush=True)
    mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    print("| mean | " + " | ".join(_shown(value) for value in mean.values()) + " |")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value > 1000 or value == int(value) else f"{value:.2f}"


if __name__ == "__main__":
    main()
