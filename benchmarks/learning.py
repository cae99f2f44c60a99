"""Learning results: train with the presets, several seeds, and evaluate deterministically.

    python benchmarks/learning.py ppo CartPole-v1 --seeds 5 [--episodes 100] [--total-timesteps N] [--workers 2]

Prints one row for `benchmarks/RESULTS.md`. Everything after the environment that is not a flag of this script goes
to `drl train`.
"""

import argparse
import concurrent.futures
import tempfile
import time

import numpy as np


def train_and_evaluate(algorithm: str, env: str, flags: list[str], seed: int, episodes: int) -> dict[str, float]:
    """One seed: a quiet run in a temporary folder, then an evaluation on worlds it never saw."""
    from drl.cli.train import read_experiment
    from drl.experiment.evaluation import evaluate
    from drl.experiment.launch import train

    with tempfile.TemporaryDirectory() as folder:
        quiet = ["--results-dir", folder, "--quiet", "--no-plots", "--no-video", "--no-tensorboard"]
        never = ["--evaluate-every", "0", "--checkpoint-every", "0", "--keep-checkpoints", "0"]
        arguments = ["--env", env, "--seed", str(seed), *quiet, *never, *flags]
        experiment, _ = read_experiment(algorithm, arguments)
        started = time.perf_counter()
        finished = train(experiment)
        seconds = time.perf_counter() - started
    assert finished.log is not None
    run = experiment.run
    options = {"frame_stack": run.frame_stack, "env_kwargs": run.world_kwargs}
    summary = evaluate(finished.agent, env, episodes, seed=10_000 + seed, **options).summary()  # type: ignore[arg-type]
    training_return = finished.log.recent.get("mean_ep_return", float("nan"))
    return {"evaluation": summary["mean_return"], "training": training_return, "seconds": seconds} | {
        "env_steps": finished.log.env_steps
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm")
    parser.add_argument("env")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=100, help="evaluation episodes per seed")
    parser.add_argument("--workers", type=int, default=2)
    arguments, flags = parser.parse_known_args()

    with concurrent.futures.ProcessPoolExecutor(arguments.workers) as pool:
        jobs = [
            pool.submit(train_and_evaluate, arguments.algorithm, arguments.env, flags, seed, arguments.episodes)
            for seed in range(arguments.seeds)
        ]
        results = [job.result() for job in jobs]
    evaluation = np.array([result["evaluation"] for result in results])
    training = np.array([result["training"] for result in results])
    seconds = np.array([result["seconds"] for result in results])
    print(
        f"| {arguments.algorithm} | {arguments.env} | {int(results[0]['env_steps']):,} | {arguments.seeds} "
        f"| **{evaluation.mean():.1f}** ± {evaluation.std():.1f} | {evaluation.min():.1f} "
        f"| {training.mean():.1f} ± {training.std():.1f} | {np.median(seconds):.0f} s |"
    )


if __name__ == "__main__":
    main()
