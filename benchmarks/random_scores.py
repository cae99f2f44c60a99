"""The scores of a random policy, for `drl compare --normalize reference`: `python benchmarks/random_scores.py [ENV…]`.

Measures `random` in drl/analysis/reference_scores.yaml again, for all environments or those that are named: the mean
return of `--episodes` episodes with uniform actions.
"""

import argparse

import gymnasium as gym
import numpy as np
import yaml

import drl  # noqa: F401 (registers our environments)
from drl.analysis.run_scores import REFERENCE, read_references
from drl.core.safe_files import write_atomically


def random_score(env_id: str, episodes: int) -> float:
    with gym.make(env_id) as env:
        env.action_space.seed(0)
        returns = []
        for seed in range(episodes):
            env.reset(seed=seed)
            total, over = 0.0, False
            while not over:
                _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
                total, over = total + float(reward), terminated or truncated
            returns.append(total)
    return float(np.mean(returns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*")
    parser.add_argument("--episodes", type=int, default=1000)
    arguments = parser.parse_args()
    references = read_references()
    header = "".join(line for line in REFERENCE.read_text().splitlines(keepends=True) if line.startswith("#"))
    for env in arguments.envs or references:
        references[env]["random"] = float(f"{random_score(env, arguments.episodes):.4g}")
        print(env, references[env]["random"], flush=True)
    lines = [yaml.safe_dump(each, default_flow_style=True, sort_keys=False, width=1000) for each in references.values()]
    write_atomically(REFERENCE, (header + "scores:\n" + "".join(f"- {line}" for line in lines)).encode())


if __name__ == "__main__":
    main()
