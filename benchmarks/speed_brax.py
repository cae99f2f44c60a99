"""Speed of PPO in one program with environments of Brax: compilation and learning, CPU time, pinned to one core.

    python benchmarks/speed_brax.py brax:inverted_pendulum brax:halfcheetah [--backend generalized] [--num-envs 64]

Rollouts of 64 steps, 4 epochs × 8 minibatches, 64-64 tanh, separate actor and critic. Nothing is taken from the cache.
"""

import argparse
import os
import statistics
import tempfile
import time

from alternating import pin_to_one_core

PPO = {"rollout_length": 64, "epochs": 4, "minibatches": 8}


def measure(env_id: str, backend: str, num_envs: int, rounds: int) -> str:
    from drl.algorithms.ppo import PPOConfig
    from drl.core.configs import ModelConfig
    from drl.engines.jax.envs import make_jax_env
    from drl.engines.jax.fused.fused_stats import Budget
    from drl.engines.jax.fused.fused_trainer import build_fused

    begun = time.process_time()
    env = make_jax_env(env_id, {"backend": backend})
    configs = (ModelConfig(), PPOConfig(**PPO))  # type: ignore[arg-type]
    learner, _ = build_fused("ppo", env, configs, [0], num_envs, Budget(None, None))
    learner.advance(1)
    ready, seconds = time.process_time() - begun, []
    for _ in range(rounds):
        begun = time.process_time()
        learner.advance(1)
        seconds.append(time.process_time() - begun)
    speed = learner.program.steps / statistics.median(seconds)
    return f"{env_id} {backend}, {num_envs} environments: ready after {ready:.0f} s, then {speed:,.0f} steps per second"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="+")
    parser.add_argument("--backend", default="generalized")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    pin_to_one_core()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["DRL_CACHE_DIR"] = cache
        from drl.engines.jax.devices import start_jax

        start_jax()
        for env_id in arguments.envs:
            print(measure(env_id, arguments.backend, arguments.num_envs, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
