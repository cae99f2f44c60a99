"""Speed of the iterated Prisoner's Dilemma: N games in one NumPy program against N single games in a loop.

    python benchmarks/speed_ipd.py [--worlds 1024] [--rounds 7]

Random moves, the uniform pool of all named opponents, games that end by chance, resets and infos included. One process,
alternating, pinned to one core, CPU time; the median round counts.
"""

import argparse
from collections.abc import Callable

import numpy as np
from alternating import pin_to_one_core, race

from drl.envs.ipd import IteratedPrisonersDilemmaEnv, IteratedPrisonersDilemmaVectorEnv
from drl.envs.make import make_world

STEPS = 100  # of every world, per contestant and round


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
    world = make_world("IteratedPrisonersDilemma-v0", actions.shape[1], engine="native")
    world.reset()

    def play() -> None:
        for row in actions:
            world.step(row)

    return play


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    pin_to_one_core()
    actions = np.random.default_rng(0).integers(2, size=(STEPS, arguments.worlds))
    contestants = {"single games": singles(actions), "vector form": vector(actions)}
    contestants["make_world native"] = native(actions)
    for run in contestants.values():
        run()  # warm up
    title = f"Iterated Prisoner's Dilemma, {arguments.worlds:,} worlds; world-steps per CPU second"
    race(contestants, STEPS * arguments.worlds, arguments.rounds, title)


if __name__ == "__main__":
    main()
