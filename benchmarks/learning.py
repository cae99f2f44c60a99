"""Learning results: train with the presets, several seeds, and evaluate deterministically.

    python benchmarks/learning.py ppo CartPole-v1 --goal 475 --seeds 20 [--first-seed 1000] [--workers 2]
    python benchmarks/learning.py ppo CartPole-v1 --goal 475 --engine jax --seeds 100 --at-once
    python benchmarks/learning.py ppo CartPole-v1 --goal 475 --seeds 100 --cluster auto [--cpus-per-run 1]
    python benchmarks/learning.py dqn FrozenLake-v1 --episodes 1000 --record

Prints one row for `benchmarks/RESULTS.md`: how many seeds reached the goal and the worst of them, not the mean alone.
Everything after the environment that is not a flag of this script goes
to `drl train`. `--record` keeps the result with the preset, for `drl list presets` and `make zoo`.
"""

import argparse
import concurrent.futures
import datetime
import functools
import shlex
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from drl.envs.env_config import EnvConfig
    from drl.runs.folder.finished import Finished

QUIET = ["--quiet", "--no-plots", "--no-video", "--no-tensorboard", "--evaluate-every", "0"]
# What may differ from a preset in a record: where it is computed, and the budget, which the table shows.
ALLOWED_IN_RECORDS = {"--engine", "--vectorization", "--total-timesteps"}


def train_and_evaluate(
    algorithm: str, env: str, flags: list[str], seeds: list[int], episodes: int
) -> list[dict[str, float]]:
    """Quiet runs in a temporary folder, then evaluations on environments they never saw. Several seeds: in one
    program."""
    from drl.cli.train import read_experiment
    from drl.runs.launch import train, train_seeds

    with tempfile.TemporaryDirectory() as folder:
        quiet = ["--results-dir", folder, *QUIET]
        never = ["--checkpoint-every", "0", "--keep-checkpoints", "0"]
        numbers = ["--seed", str(seeds[0]), "--num-seeds", str(len(seeds))]
        experiment, _ = read_experiment(algorithm, ["--env", env, *numbers, *quiet, *never, *flags])
        started, cpu_started = time.perf_counter(), time.process_time()
        finished = train_seeds(experiment, console=False) if len(seeds) > 1 else [train(experiment)]
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    times = {"seconds": seconds, "cpu_seconds": cpu_seconds}
    env_config = experiment.run.env_config
    return [scores(each, env_config, seed, episodes) | times for seed, each in zip(seeds, finished, strict=True)]


def scores(finished: "Finished", env: "EnvConfig", seed: int, episodes: int) -> dict[str, float]:
    """What a run reached, and on environments it never saw."""
    from drl.agents.evaluation import evaluate
    from drl.tracking.files import read_metrics

    summary = evaluate(finished.agent, env, episodes, seed=10_000 + seed).summary()
    found = {"evaluation": summary["mean_return"], "success": summary.get("success_rate", float("nan"))}
    if finished.log is not None:
        recent, env_steps = finished.log.recent.get("mean_ep_return"), finished.log.env_steps
    else:  # the run was lost after its last log, and went on elsewhere
        last = read_metrics(finished.folder / "metrics.jsonl")[-1]
        recent, env_steps = last.get("recent/mean_ep_return"), int(last["env_steps"])
    return found | {"training": float("nan") if recent is None else recent, "env_steps": env_steps}


def scores_of_a_node(finished: "Finished", env: "EnvConfig", seed: int, episodes: int) -> dict[str, float]:
    """The same with times: of all processes of the run, and of this one."""
    seconds = sum(float(str(each)) for each in finished.metrics.get("time/time_elapsed", []) if each is not None)
    return scores(finished, env, seed, episodes) | {"seconds": seconds, "cpu_seconds": time.process_time()}


def on_cluster(arguments: argparse.Namespace, flags: list[str], seeds: list[int]) -> list[dict[str, float]]:
    """A run for each seed on the nodes of a cluster."""
    from drl.cli.train import read_experiment
    from drl.runs.cluster_runs import train_on_cluster
    from drl.runs.many_runs import RunJob
    from drl.settings.scaling import ScalingConfig
    from drl.tracking.jobs import JobTable

    given = (arguments.cluster, arguments.cpus_per_run, arguments.gpus_per_run)
    scaling, jobs, results = ScalingConfig(cluster=given[0], cpus_per_run=given[1], gpus_per_run=given[2]), [], {}
    with tempfile.TemporaryDirectory() as folder, JobTable() as table:
        for seed in seeds:
            words = ["--env", arguments.env, "--seed", str(seed), "--results-dir", folder, *QUIET]
            experiment, _ = read_experiment(arguments.algorithm, [*words, "--keep-checkpoints", "1", *flags])
            about = {"env": experiment.run.env_config, "seed": seed, "episodes": arguments.episodes}
            jobs.append(RunJob(f"seed {seed}", experiment, after=functools.partial(scores_of_a_node, **about)))
        table.begin(f"{len(seeds)} seeds", len(seeds))
        for job, answer in train_on_cluster(jobs, scaling, table):
            if answer.result is None:
                raise SystemExit(f"{job.name}: {answer.error or answer.status}")
            results[job.name] = answer.result
            table.advance(f"{job.name}: {answer.result['evaluation']:.2f}")
    return [results[f"seed {seed}"] for seed in seeds]


def record(arguments: argparse.Namespace, flags: list[str], results: list[dict[str, float]]) -> None:
    """Keep the result in the file of `--record`."""
    import drl
    from drl.cli.train import read_experiment
    from drl.settings.preset_records import Record, keep_record, score_summary, settings_digest

    experiment, _ = read_experiment(arguments.algorithm, ["--env", arguments.env, *flags])
    scores = {arguments.first_seed + number: result["evaluation"] for number, result in enumerate(results)}
    words = ["python", "benchmarks/learning.py", arguments.algorithm, arguments.env, "--seeds", str(arguments.seeds)]
    words += ["--first-seed", str(arguments.first_seed)] if arguments.first_seed else []
    words += ["--episodes", str(arguments.episodes), *flags, *(["--at-once"] if arguments.at_once else [])]
    shipped = read_experiment(arguments.algorithm, ["--env", arguments.env])[0].to_flat()
    chosen = {name: experiment.to_flat()[name] for name in ("total_timesteps", "vectorization")}
    keep_record(
        Record(
            algorithm=arguments.algorithm,
            env=arguments.env,
            engine=experiment.run.engine,
            steps=int(results[0]["env_steps"]),
            command=shlex.join(words),
            settings=settings_digest(arguments.algorithm, arguments.env),
            provenance="benchmarks/learning.py",
            changes={name: value for name, value in chosen.items() if value != shipped[name]},
            episodes=arguments.episodes,
            cpu_minutes=round(float(np.median([result["cpu_seconds"] for result in results])) / 60, 2),
            version=drl.__version__,
            date=datetime.date.today().isoformat(),
            **score_summary(scores),
        ),
        arguments.record,
    )


def main() -> None:
    from drl.settings.preset_records import RECORDS, decimals
    from drl.settings.presets import preset_path

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm")
    parser.add_argument("env")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0, help="take seeds on which no choice was based")
    parser.add_argument("--goal", type=float, help="evaluation return that counts as reached")
    parser.add_argument("--episodes", type=int, default=100, help="evaluation episodes per seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--at-once", action="store_true", help="all seeds in one program; for --engine jax")
    parser.add_argument("--cluster", help="local, auto or the address of a Ray cluster; see docs/scaling.md")
    parser.add_argument("--cpus-per-run", type=float, default=1.0)
    parser.add_argument("--gpus-per-run", type=float, default=0.0)
    parser.add_argument("--record", nargs="?", type=Path, const=RECORDS, help="keep the result (in this file)")
    arguments, flags = parser.parse_known_args()
    if arguments.record:
        changed = [flag for flag in flags if flag.startswith("--") and flag.partition("=")[0] not in ALLOWED_IN_RECORDS]
        if changed or not preset_path(arguments.algorithm, arguments.env).is_file():
            reason = f"without {' '.join(changed)}" if changed else "and this pair has none"
            parser.error(f"--record keeps results of a preset as it is, {reason}")

    if arguments.cluster is not None and arguments.at_once:
        parser.error("--at-once is one program, and --cluster a process for each seed; give one of them")
    seeds = list(range(arguments.first_seed, arguments.first_seed + arguments.seeds))
    groups = [seeds] if arguments.at_once else [[seed] for seed in seeds]
    if arguments.cluster is not None:
        results = on_cluster(arguments, flags, seeds)
    else:
        with concurrent.futures.ProcessPoolExecutor(arguments.workers) as pool:
            work = (arguments.algorithm, arguments.env, flags)
            futures = [pool.submit(train_and_evaluate, *work, group, arguments.episodes) for group in groups]
            results = [result for future in futures for result in future.result()]
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
