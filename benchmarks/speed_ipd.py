"""Speed of the iterated Prisoner's Dilemma: N games in one NumPy program against N single games in a loop.

    python benchmarks/speed_ipd.py [--environments 1024] [--rounds 7]

Random moves, the uniform pool of all named opponents, games that end by chance, resets and infos included. One process,
alternating, pinned to one core, CPU time; the median round counts.
"""

import argparse
from collections.abc import Callable

import numpy as np
from alternating import pin_to_one_core, race

from drl.envs.make_vec_env import make_vec_env
from drl.games.ipd import IteratedPrisonersDilemmaEnv, IteratedPrisonersDilemmaVectorEnv

STEPS = 100  # of every environment, per contestant and round


def singles(actions: np.ndarray) -> Callable[[], None]:
    envs = [IteratedPrisonersDilemmaEnv() for _ in range(actions.shape[1])]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)

    def play() -> None:
        for row in actions.tolist():
            for env, action in zip(envs, row, strict=True):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()

    return play


def vector(actions: np.ndarray) -> Callable[[], None]:
    env = IteratedPrisonersDilemmaVectorEnv(actions.shape[1])
    env.reset(seed=0)

    def play() -> None:
        for row in actions:
            env.step(row)

    return play


def native(actions: np.ndarray) -> Callable[[], None]:
    envs = make_vec_env("IteratedPrisonersDilemma-v0", actions.shape[1], vectorization="native")
    envs.reset()

    def play() -> None:
        for row in actions:
            envs.step(row)

    return play


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    pin_to_one_core()
    actions = np.random.default_rng(0).integers(2, size=(STEPS, arguments.envs))
    contestants = {"single games": singles(actions), "vector form": vector(actions)}
    contestants["make_vec_env native"] = native(actions)
    for run in contestants.values():
        run()  # warm up
    title = f"Iterated Prisoner's Dilemma, {arguments.envs:,} environments; environment steps per CPU second"
    race(contestants, STEPS * arguments.envs, arguments.rounds, title)


if __name__ == "__main__":
    main()
