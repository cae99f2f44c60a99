"""The control behind every speed claim: ours and Stable-Baselines3 with the same settings, seeds and budget.

    python benchmarks/learning_control.py [--seeds 5] [--steps 500000] [--only drl-8,sb3-8]

CartPole-v1 with CleanRL's settings: 128 steps a rollout, 4 epochs × 4 minibatches, learning rate 2.5e-4 annealed to
zero, entropy 0.01, value clipping. `last 100` is the mean return of the last 100 training episodes; `average` is the
mean return of all training episodes weighted by their steps, which shows how fast it got there.
"""

import argparse
import concurrent.futures

import numpy as np

SETTINGS = {"rollout": 128, "epochs": 4, "minibatches": 4, "rate": 2.5e-4, "entropy": 0.01, "value": 0.25, "clip": 0.2}
ROWS = {
    "drl-4": ("drl", 4, "sync"),
    "drl-8": ("drl", 8, "sync"),
    "drl-8-native": ("drl", 8, "native"),
    "drl-8-envpool": ("drl", 8, "envpool"),
    "sb3-8": ("sb3", 8, ""),
}


def train_ours(num_envs: int, engine: str, seed: int, steps: int) -> list[tuple[float, int]]:
    """(return, length) of every training episode."""
    import torch

    from drl.algorithms.ppo import PPOConfig
    from drl.core.configs import ModelConfig
    from drl.core.seeding import Seeds
    from drl.engines.torch.build import build_learner
    from drl.envs.make_vec_env import make_vec_env
    from drl.runs.stages import stop_at
    from drl.trainer.trainer import Trainer, TrainerConfig

    torch.set_num_threads(1)
    config = PPOConfig(
        rollout_length=SETTINGS["rollout"],  # type: ignore[arg-type]
        epochs=SETTINGS["epochs"],  # type: ignore[arg-type]
        minibatches=SETTINGS["minibatches"],  # type: ignore[arg-type]
        learning_rate=SETTINGS["rate"],
        learning_rate_end=0.0,
        entropy_coef=SETTINGS["entropy"],
        value_coef=SETTINGS["value"],
        value_clip=SETTINGS["clip"],
    )
    with make_vec_env("CartPole-v1", num_envs, seed=seed, vectorization=engine) as envs:
        agent, learner = build_learner("ppo", envs, (ModelConfig(), config), Seeds(seed))
        trainer = Trainer(envs, agent, learner, config=TrainerConfig(total_timesteps=steps))
        logs = stop_at(trainer(), env_steps=steps)
        return [(episode.episode_return, episode.length) for log in logs for episode in log.finished]


def train_peer(num_envs: int, seed: int, steps: int) -> list[tuple[float, int]]:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    episodes: list[tuple[float, int]] = []

    class Collect(BaseCallback):
        def _on_step(self) -> bool:
            found = (info["episode"] for info in self.locals["infos"] if "episode" in info)
            episodes.extend((episode["r"], episode["l"]) for episode in found)
            return True

    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", num_envs, seed=seed),
        n_steps=int(SETTINGS["rollout"]),
        batch_size=int(num_envs * SETTINGS["rollout"] / SETTINGS["minibatches"]),
        n_epochs=int(SETTINGS["epochs"]),
        learning_rate=lambda remaining: SETTINGS["rate"] * remaining,
        ent_coef=SETTINGS["entropy"],
        vf_coef=SETTINGS["value"],
        clip_range_vf=SETTINGS["clip"],
        device="cpu",
        seed=seed,
    )
    model.learn(steps, callback=Collect())
    return episodes


def one(row: str, seed: int, steps: int) -> tuple[float, float]:
    kind, num_envs, engine = ROWS[row]
    episodes = train_ours(num_envs, engine, seed, steps) if kind == "drl" else train_peer(num_envs, seed, steps)
    returns, lengths = np.array(episodes, float).T
    return float(returns[-100:].mean()), float((returns * lengths).sum() / lengths.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default=",".join(ROWS))
    arguments = parser.parse_args()
    print("| row | environments | last 100 | worst seed | average |\n|---|---|---|---|---|")
    with concurrent.futures.ProcessPoolExecutor(arguments.workers) as pool:
        for row in arguments.only.split(","):
            jobs = [pool.submit(one, row, seed, arguments.steps) for seed in range(arguments.seeds)]
            last, average = np.array([job.result() for job in jobs]).T
            print(
                f"| {row} | {ROWS[row][1]} | **{last.mean():.1f}** ± {last.std():.1f} | {last.min():.1f} "
                f"| {average.mean():.1f} ± {average.std():.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
