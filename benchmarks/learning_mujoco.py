"""Hopper-v5 and HalfCheetah-v5: our SAC, our modern recipe and Stable-Baselines3's SAC, on the same seeds and budget.

    python benchmarks/learning_mujoco.py run CONTESTANT ENV SEED    # sb3 · sac · simba
    python benchmarks/learning_mujoco.py report                     # the table and the picture of all stored curves

Stable-Baselines3 has the settings that RL Zoo publishes for MuJoCo: its defaults with 10,000 steps before the first
update. Each curve is the mean return of ten deterministic episodes every 10,000 steps, on environments that training
does not see; the last point is the mean of 100 episodes. Curves are kept in `benchmarks/curves/`.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CURVES = Path(__file__).parent / "curves"
EVALUATION_SEED = 10_000
Curve = list[tuple[int, float]]  # environment steps, mean return


def mean_return(env_id: str, act: Callable[[Any], Any], episodes: int) -> float:
    """Of deterministic episodes with the same seeds for all contestants."""
    import gymnasium

    env = gymnasium.make(env_id)
    total = 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=EVALUATION_SEED + episode)
        over = False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total, over = total + float(reward), terminated or truncated
    env.close()
    return total / episodes


def stable_baselines(env_id: str, seed: int, steps: int, every: int) -> Curve:
    import gymnasium
    from stable_baselines3 import SAC

    model = SAC("MlpPolicy", gymnasium.make(env_id), learning_starts=10_000, seed=seed, device="cpu")

    def act(obs: Any) -> Any:
        return model.predict(obs, deterministic=True)[0]

    curve: Curve = []
    for done in range(every, steps + 1, every):
        model.learn(every, reset_num_timesteps=False)
        curve.append((done, mean_return(env_id, act, 100 if done == steps else 10)))
        print(f"sb3 {env_id} seed {seed}: {curve[-1]}", flush=True)
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("contestant", choices=["sb3"])
    run.add_argument("env")
    run.add_argument("seed", type=int)
    run.add_argument("--steps", type=int, default=100_000)
    run.add_argument("--every", type=int, default=10_000)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    started = time.process_time()
    curve = stable_baselines(arguments.env, arguments.seed, arguments.steps, arguments.every)
    CURVES.mkdir(exist_ok=True)
    name = f"{arguments.env}_{arguments.contestant}_{arguments.seed}.json"
    content = {"curve": curve, "cpu_seconds": round(time.process_time() - started)}
    (CURVES / name).write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
