"""Speed of SAC and TD3 against Stable-Baselines3 and SBX: the same work, one process, alternating, one core, CPU time.

    python benchmarks/speed_sac.py [sac|td3] [--rounds 5] [--compile] [--jax] [--sbx] [--fused]

Pendulum-v1: one environment, one update of batch 256 per step, 256-256 ReLU, Adam. Each round lets every contestant
take 500 steps; the median round counts. `--jax` adds our JAX engine on the same Gymnasium environment, `--fused` with
the environment inside its program, `--sbx` Stable-Baselines3's JAX port (extra `bench`).
"""

import argparse
from collections.abc import Callable
from typing import Any

from alternating import pin_to_one_core, race

ENV = "Pendulum-v1"
STEPS, WARMUP, BATCH = 500, 500, 256
RATES = {"sac": 3e-4, "td3": 1e-3}


def peer(library: str, algorithm: str) -> Callable[[], None]:
    """Stable-Baselines3 or SBX."""
    import importlib

    options: dict[str, Any] = {"device": "cpu"} if library == "stable_baselines3" else {}
    kind = getattr(importlib.import_module(library), algorithm.upper())
    model = kind(
        "MlpPolicy",
        ENV,
        learning_rate=RATES[algorithm],
        learning_starts=WARMUP,
        batch_size=BATCH,
        buffer_size=100_000,
        policy_kwargs={"net_arch": [256, 256]},
        seed=0,
        **options,
    )

    def train() -> None:
        model.learn(STEPS, reset_num_timesteps=False)

    return train


def ours(algorithm: str, engine: str, compiled: bool = False) -> Callable[[], None]:
    from drl.algorithms import find_algorithm
    from drl.buffers.replay_buffer import ReplayBuffer
    from drl.core.network_parts import resolve
    from drl.core.seeding import Seeds
    from drl.engines.numpy.exploration import make_exploration
    from drl.envs.make_vec_env import make_vec_env
    from drl.trainer.trainer import Trainer

    record = find_algorithm(algorithm)
    envs = make_vec_env(ENV, 1, seed=0)
    configs = (record.model_config(hidden_sizes=(256, 256)), record.config(learning_rate=RATES[algorithm]))
    build_learner = resolve(f"drl.engines.{engine}.build:build_learner")
    agent, learner = build_learner(algorithm, envs, configs, Seeds(0), compile_update=compiled)
    agent.exploration = make_exploration(record.exploration(), envs.action_spec)  # type: ignore[arg-type]
    buffer = ReplayBuffer(envs, warmup=WARMUP, batch_size=BATCH, updates_per_log=STEPS)
    trainer = Trainer(envs, agent, learner, buffer)

    def train() -> None:
        trainer.step()

    return train


def fused(algorithm: str) -> Callable[[], None]:
    import jax

    from drl.algorithms import find_algorithm
    from drl.core.configs import ReplayConfig
    from drl.engines.jax.envs import make_jax_env
    from drl.engines.jax.fused.fused_stats import Budget
    from drl.engines.jax.fused.fused_trainer import build_fused

    record = find_algorithm(algorithm)
    buffer = ReplayConfig(warmup=WARMUP, batch_size=BATCH, updates_per_log=100)
    configs = (
        record.model_config(hidden_sizes=(256, 256)),
        record.config(learning_rate=RATES[algorithm]),
        buffer,
        record.exploration(),
    )
    learner, _ = build_fused(algorithm, make_jax_env(ENV), configs, [0], 1, Budget(10_000_000))

    def train() -> None:
        for _ in range(STEPS // 100):
            learner.advance(1)
        jax.block_until_ready(learner.carry)

    return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", nargs="?", default="sac", choices=list(RATES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="also race the compiled update (half a minute to build)")
    parser.add_argument("--jax", action="store_true")
    parser.add_argument("--sbx", action="store_true")
    parser.add_argument("--fused", action="store_true")
    arguments = parser.parse_args()
    pin_to_one_core()
    import torch

    torch.set_num_threads(1)
    if arguments.jax or arguments.fused or arguments.sbx:
        from drl.engines.jax.devices import start_jax

        start_jax("cpu", 1)
    algorithm = arguments.algorithm
    contestants = {
        "Stable-Baselines3": peer("stable_baselines3", algorithm),
        "drl": ours(algorithm, "torch"),
    }
    if arguments.compile:
        contestants["drl --compile"] = ours(algorithm, "torch", True)
    if arguments.sbx:
        contestants["SBX"] = peer("sbx", algorithm)
    if arguments.jax:
        contestants["drl, JAX engine"] = ours(algorithm, "jax")
    if arguments.fused:
        contestants["drl, one program"] = fused(algorithm)
    for train in contestants.values():
        for _ in range(3):
            train()  # warm up
    title = f"{algorithm.upper()}, {ENV}, one update of batch {BATCH} per step; steps per CPU second"
    race(contestants, STEPS, arguments.rounds, title)


if __name__ == "__main__":
    main()
