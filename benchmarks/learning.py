"""Learning results: train with the presets, several seeds, and evaluate deterministically.

    python benchmarks/learning.py ppo CartPole-v1 --goal 475 --seeds 20 [--first-seed 1000] [--workers 2]
    python benchmarks/learning.py ppo CartPole-v1 --goal 475 --engine jax --seeds 100 --at-once
    python benchmarks/learning.py dqn FrozenLake-v1 --episodes 1000 --record

Prints one row for `benchmarks/RESULTS.md`: how many seeds reached the goal and the worst of them, not the mean alone.
Everything after the environment that is not a flag of this script goes
to `drl train`. `--record` keeps the result with the preset, for `drl list presets` and `make zoo`.
"""

import argparse
import concurrent.futures
import datetime
import shlex
import tempfile
import time
from pathlib import Path

import numpy as np

# What may differ from a preset in a record: where it is computed, and the budget, which the table shows.
ALLOWED_IN_RECORDS = {"--engine", "--vectorization", "--total-timesteps"}


def train_and_evaluate(
    algorithm: str, env: str, flags: list[str], seeds: list[int], episodes: int
) -> list[dict[str, float]]:
    """Quiet runs in a temporary folder, then evaluations on environments they never saw. Several seeds: in one
    program."""
    from drl.cli.train import read_experiment
    from drl.experiment.evaluation import evaluate
    from drl.experiment.launch import train, train_seeds

    with tempfile.TemporaryDirectory() as folder:
        quiet = ["--results-dir", folder, "--quiet", "--no-plots", "--no-video", "--no-tensorboard"]
        never = ["--evaluate-every", "0", "--checkpoint-every", "0", "--keep-checkpoints", "0"]
        numbers = ["--seed", str(seeds[0]), "--num-seeds", str(len(seeds))]
        experiment, _ = read_experiment(algorithm, ["--env", env, *numbers, *quiet, *never, *flags])
        started, cpu_started = time.perf_counter(), time.process_time()
        finished = train_seeds(experiment, console=False) if len(seeds) > 1 else [train(experiment)]
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    results = []
    for seed, each in zip(seeds, finished, strict=True):
        assert each.log is not None
        summary = evaluate(each.agent, experiment.run.env_config, episodes, seed=10_000 + seed).summary()
        training_return = each.log.recent.get("mean_ep_return", float("nan"))
        steps = {"env_steps": each.log.env_steps, "seconds": seconds, "cpu_seconds": cpu_seconds}
        scores = {"evaluation": summary["mean_return"], "success": summary.get("success_rate", float("nan"))}
        results.append(scores | {"training": training_return} | steps)
    return results


def decimals(mean: float) -> int:
    """Digits after the point that a score is given with."""
    return 1 if abs(mean) >= 10 else 3


def record(arguments: argparse.Namespace, flags: list[str], results: list[dict[str, float]]) -> None:
    """Keep the result in the file of `--record`."""
    import drl
    from drl.cli.train import read_experiment
    from drl.experiment.preset_records import Record, keep_record, settings_digest

    experiment, _ = read_experiment(arguments.algorithm, ["--env", arguments.env, *flags])
    evaluation = np.array([result["evaluation"] for result in results])
    words = ["python", "benchmarks/learning.py", arguments.algorithm, arguments.env, "--seeds", str(arguments.seeds)]
    words += ["--first-seed", str(arguments.first_seed)] if arguments.first_seed else []
    words += ["--episodes", str(arguments.episodes), *flags, *(["--at-once"] if arguments.at_once else [])]
    digits = decimals(evaluation.mean())
    keep_record(
        Record(
            algorithm=arguments.algorithm,
            env=arguments.env,
            engine=experiment.run.engine,
            steps=int(results[0]["env_steps"]),
            seeds=len(results),
            first_seed=arguments.first_seed,
            mean=round(float(evaluation.mean()), digits),
            worst=round(float(evaluation.min()), digits),
            command=shlex.join(words),
            settings=settings_digest(arguments.algorithm, arguments.env),
            std=round(float(evaluation.std()), digits) if len(results) > 1 else None,
            episodes=arguments.episodes,
            cpu_minutes=round(float(np.median([result["cpu_seconds"] for result in results])) / 60, 2),
            version=drl.__version__,
            date=datetime.date.today().isoformat(),
        ),
        arguments.record,
    )


def main() -> None:
    from drl.experiment.preset_records import RECORDS
    from drl.experiment.presets import preset_path

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm")
    parser.add_argument("env")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0, help="take seeds on which no choice was based")
    parser.add_argument("--goal", type=float, help="evaluation return that counts as reached")
    parser.add_argument("--episodes", type=int, default=100, help="evaluation episodes per seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--at-once", action="store_true", help="all seeds in one program; for --engine jax")
    parser.add_argument("--record", nargs="?", type=Path, const=RECORDS, help="keep the result (in this file)")
    arguments, flags = parser.parse_known_args()
    if arguments.record:
        changed = [flag for flag in flags if flag.startswith("--") and flag.partition("=")[0] not in ALLOWED_IN_RECORDS]
        if changed or not preset_path(arguments.algorithm, arguments.env).is_file():
            reason = f"without {' '.join(changed)}" if changed else "and this pair has none"
            parser.error(f"--record keeps results of a preset as it is, {reason}")

    seeds = list(range(arguments.first_seed, arguments.first_seed + arguments.seeds))
    groups = [seeds] if arguments.at_once else [[seed] for seed in seeds]
    with concurrent.futures.ProcessPoolExecutor(arguments.workers) as pool:
        work = (arguments.algorithm, arguments.env, flags)
        jobs = [pool.submit(train_and_evaluate, *work, group, arguments.episodes) for group in groups]
        results = [result for job in jobs for result in job.result()]
    evaluation = np.array([result["evaluation"] for result in results])
    training = np.array([result["training"] for result in results])
    seconds = np.array([result["seconds"] for result in results])
    success = np.array([result["success"] for result in results])
    digits = decimals(evaluation.mean())
    goal = "–" if arguments.goal is None else f"{(evaluation >= arguments.goal).sum()} of {len(evaluation)}"
    print(
        f"| {arguments.algorithm} | {arguments.env} | {int(results[0]['env_steps']):,} | **{goal}** "
        f"| {evaluation.mean():.{digits}f} ± {evaluation.std():.{digits}f} | {evaluation.min():.{digits}f} "
        f"| {training.mean():.1f} ± {training.std():.1f} | {np.median(seconds):.0f} s |"
        + ("" if np.isnan(success).any() else f" success {success.mean():.1%}, worst seed {success.min():.1%} |")
    )
    if arguments.record:
        record(arguments, flags, results)


if __name__ == "__main__":
    main()
