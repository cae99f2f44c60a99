"""Speed of DQN against Stable-Baselines3: the same work, one process, alternating, pinned to one core, CPU time.

    python benchmarks/speed_dqn.py [--rounds 5] [--compile]
    python benchmarks/speed_dqn.py --atari [--rounds 1]

CartPole-v1: one environment, one update of batch 128 per step, 128-128 ReLU, Adam, Huber, target copied every 500
updates. Each round lets every contestant take 1000 steps; the median round counts. Pong (`--atari`): the Nature CNN,
batch 32, an update every 4 steps, 4 frames, a replay of 10 000, target copied every 1000 updates; 400 steps a round.
Both step the same preprocessed game; Stable-Baselines3 stacks and stores it its way.
"""

import argparse
from collections.abc import Callable
from typing import Any

from alternating import pin_to_one_core, race

PONG = "ALE/Pong-v5"
WARMUP = 500  # steps before the first update
# Stable-Baselines3 counts the target's interval in environment steps, we in updates.
SETTINGS: dict[str, dict[str, int]] = {
    "CartPole-v1": {"batch_size": 128, "train_every": 1, "capacity": 100_000, "target_every": 500, "steps": 1000},
    PONG: {"batch_size": 32, "train_every": 4, "capacity": 10_000, "target_every": 1000, "steps": 400},
}


def stable_baselines(env_id: str) -> Callable[[], None]:
    from stable_baselines3 import DQN
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

    from drl.envs.make_vec_env import make_env

    work = SETTINGS[env_id]
    atari = env_id == PONG
    env: Any = DummyVecEnv([lambda: make_env(env_id)])
    if atari:
        env = VecFrameStack(env, 4, channels_order="first")
    model = DQN(
        "CnnPolicy" if atari else "MlpPolicy",
        env,
        learning_rate=1e-4,
        buffer_size=work["capacity"],
        learning_starts=WARMUP,
        batch_size=work["batch_size"],
        tau=1.0,
        gamma=0.99,
        train_freq=work["train_every"],
        gradient_steps=1,
        optimize_memory_usage=False,
        target_update_interval=work["target_every"] * work["train_every"],
        exploration_initial_eps=0.05,
        exploration_final_eps=0.05,
        max_grad_norm=10.0,
        policy_kwargs=None if atari else {"net_arch": [128, 128]},
        device="cpu",
        seed=0,
    )

    def train() -> None:
        model.learn(work["steps"], reset_num_timesteps=False)

    return train


def ours(env_id: str, compiled: bool) -> Callable[[], None]:
    from drl.algorithms.dqn import DQNConfig
    from drl.buffers.replay_buffer import ReplayBuffer
    from drl.core.configs import EpsilonGreedyConfig, QModelConfig, ReplayConfig
    from drl.core.seeding import Seeds
    from drl.engines.numpy.exploration import EpsilonGreedy
    from drl.engines.torch.build import build_learner
    from drl.envs.make_vec_env import make_vec_env
    from drl.trainer.trainer import Trainer

    work = SETTINGS[env_id]
    stack = 4 if env_id == PONG else 1
    envs = make_vec_env(env_id, 1, seed=0, frame_stack=stack, env_kwargs={"clip_reward": False} if stack > 1 else None)
    sizes: dict[str, Any] = {name: work[name] for name in ("batch_size", "train_every", "capacity", "target_every")}
    config = DQNConfig(
        tau=1.0, target_every=sizes.pop("target_every"), optimizer="adam", amsgrad=False, weight_decay=0.0
    )
    replay = ReplayConfig(warmup=WARMUP, updates_per_log=work["steps"] // work["train_every"], **sizes)
    agent, learner = build_learner("dqn", envs, (QModelConfig(), config), Seeds(0), compile_update=compiled)
    rarely = EpsilonGreedyConfig(epsilon_start=0.05, epsilon_schedule="constant")
    agent.exploration = EpsilonGreedy(rarely, envs.action_spec)
    trainer = Trainer(envs, agent, learner, ReplayBuffer(envs, replay))

    def train() -> None:
        trainer.step()

    return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="5, with --atari 1")
    parser.add_argument("--compile", action="store_true", help="also race the compiled update (half a minute to build)")
    parser.add_argument("--atari", action="store_true", help="Pong instead of CartPole")
    arguments = parser.parse_args()
    pin_to_one_core()
    import torch

    torch.set_num_threads(1)
    env_id = PONG if arguments.atari else "CartPole-v1"
    contestants = {"Stable-Baselines3": stable_baselines(env_id), "drl": ours(env_id, False)}
    if arguments.compile:
        contestants["drl --compile"] = ours(env_id, True)
    steps = SETTINGS[env_id]["steps"]
    for train in contestants.values():
        train()  # warm up
        if steps < WARMUP:
            train()
    work = SETTINGS[env_id]
    title = f"DQN, {env_id}, batch {work['batch_size']}, train every {work['train_every']}; steps per CPU second"
    race(contestants, steps, arguments.rounds or (1 if arguments.atari else 5), title)


if __name__ == "__main__":
    main()
