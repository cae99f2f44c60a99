"""Speed of PPO against Stable-Baselines3: the same work, one process, alternating, pinned to one core, CPU time.

    python benchmarks/speed_ppo.py [--rounds 5] [--compile] [--jax]

Work: CartPole-v1, 8 environments × 128 steps per rollout, 4 epochs × 4 minibatches, 64-64 tanh, separate actor and
critic, Adam, float32. Each round lets every contestant train for 20 rollouts; the median round counts.
"""

import argparse
import importlib
from collections.abc import Callable

from alternating import pin_to_one_core, race

ROLLOUTS, STEPS, ENVS = 20, 128, 8


def stable_baselines() -> Callable[[], None]:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", ENVS, seed=0),
        n_steps=STEPS,
        batch_size=ENVS * STEPS // 4,
        n_epochs=4,
        learning_rate=2.5e-4,
        ent_coef=0.01,
        device="cpu",
        seed=0,
    )

    def train() -> None:
        model.learn(ROLLOUTS * STEPS * ENVS, reset_num_timesteps=False)

    return train


def ours(vectorization: str, compiled: bool, engine: str = "torch") -> Callable[[], None]:
    from drl.algorithms.ppo import PPOConfig
    from drl.core.configs import ModelConfig
    from drl.core.seeding import Seeds
    from drl.envs.make_vec_env import make_vec_env
    from drl.trainer.trainer import Trainer

    build_learner = importlib.import_module(f"drl.engines.{engine}.build").build_learner
    envs = make_vec_env("CartPole-v1", ENVS, seed=0, vectorization=vectorization)
    config = PPOConfig(rollout_length=STEPS, epochs=4, minibatches=4, learning_rate=2.5e-4, entropy_coef=0.01)
    agent, learner = build_learner("ppo", envs, (ModelConfig(), config), Seeds(0), compile_update=compiled)
    trainer = Trainer(envs, agent, learner)

    def train() -> None:
        for _ in range(ROLLOUTS):
            trainer.step()

    return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="also race the compiled update (half a minute to build)")
    parser.add_argument("--jax", action="store_true", help="also race the JAX engine, stepping the same environments")
    arguments = parser.parse_args()
    pin_to_one_core()
    import torch

    torch.set_num_threads(1)
    contestants = {"Stable-Baselines3": stable_baselines()}
    contestants |= {"drl": ours("sync", False), "drl, native": ours("native", False)}
    if arguments.compile:
        contestants["drl --compile"] = ours("sync", True)
        contestants["drl --compile, native"] = ours("native", True)
    if arguments.jax:
        from drl.engines.jax.devices import start_jax

        start_jax()
        contestants["drl, JAX engine"] = ours("sync", True, "jax")
    for train in contestants.values():
        train()  # warm up
    title = "PPO, CartPole-v1, 8 × 128, 4 epochs × 4 minibatches; environment steps per CPU second"
    race(contestants, ROLLOUTS * STEPS * ENVS, arguments.rounds, title)


if __name__ == "__main__":
    main()
