"""PPO's preset on the iterated Prisoner's Dilemma: against each named opponent alone, and against the pool of all.

    python benchmarks/learning_ipd.py [--seeds 5] [--workers 2] [--only tit_for_tat,all] [--games 2000]

Games end with probability 0.05 after each round. A value is the expected return of a game: the mean over `--games`
games against each opponent, actions without exploration, in which round t counts 0.95^t instead of ending by chance.
`best` is exact: the best reply to a single opponent; against the pool, the best play by someone who is told the
opponent. The best reply that remembers one round is the bar to pass there. Prints rows for RESULTS.md.
"""

import argparse
import concurrent.futures
import tempfile
import time
from typing import Any

import numpy as np

ENV = "IteratedPrisonersDilemma-v0"
SINGLE_STEPS = 1_000_000  # against one opponent; against the pool the preset's own budget counts


def train_and_value(opponents: str, seed: int, games: int, flags: list[str]) -> tuple[float, float, int, Any]:
    """Value of the trained agent, seconds, environment steps and what it earns per opponent, for one seed."""
    import torch

    from drl.cli.train import read_experiment
    from drl.games.ipd.ipd_rules import Rules
    from drl.games.ipd.tournament import observe_behavior
    from drl.runs.launch import train

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        quiet = ["--results-dir", folder, "--quiet", "--no-plots", "--no-video", "--no-tensorboard"]
        never = ["--evaluate-every", "0", "--checkpoint-every", "0", "--keep-checkpoints", "0"]
        budget = [] if opponents == "all" else ["--total-timesteps", str(SINGLE_STEPS)]
        envs = ["--env", ENV, "--env-kwargs", f"opponents={opponents}", "--seed", str(seed)]
        experiment, _ = read_experiment("ppo", [*envs, *quiet, *never, *budget, *flags])
        started = time.perf_counter()
        finished = train(experiment, console=False)
        seconds = time.perf_counter() - started
    assert finished.log is not None
    rules = Rules()
    seen = observe_behavior(finished.agent, opponents, rules, games, seed=10_000 + seed)
    return seen.payoff * rules.expected_rounds, seconds, finished.log.env_steps, seen.payoffs / seen.best


def main() -> None:
    from drl.games.ipd import NAMED
    from drl.games.ipd.exact_values import best_memory_one_reply, upper_bound

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--games", type=int, default=2000)
    parser.add_argument("--only", default=",".join([*NAMED, "all"]))
    arguments, flags = parser.parse_known_args()
    print("| ppo against | steps | seeds | value | worst seed | best | share | worst share | time | wanted |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    with concurrent.futures.ProcessPoolExecutor(arguments.workers) as pool:
        for opponents in arguments.only.split(","):
            jobs = [
                pool.submit(train_and_value, opponents, seed, arguments.games, flags) for seed in range(arguments.seeds)
            ]
            results = [job.result() for job in jobs]
            value = np.array([result[0] for result in results])
            best, wanted = upper_bound(opponents), "≥ 97 %"
            if opponents == "all":
                wanted = f"> {best_memory_one_reply(opponents)[1]:.2f}, the best memory-1 reply"
            print(
                f"| {opponents} | {results[0][2]:,} | {arguments.seeds} | **{value.mean():.2f}** ± {value.std():.2f} "
                f"| {value.min():.2f} | {best:.2f} | {value.mean() / best:.1%} | {value.min() / best:.1%} "
                f"| {np.median([result[1] for result in results]):.0f} s | {wanted} |",
                flush=True,
            )
            if opponents == "all":
                shares = np.mean([result[3] for result in results], axis=0)
                told = " · ".join(f"{name} {share:.0%}" for name, share in zip(NAMED, shares, strict=True))
                print(f"\nOf the best reply to each opponent, on average: {told}")


if __name__ == "__main__":
    main()
