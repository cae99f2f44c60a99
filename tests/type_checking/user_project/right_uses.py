"""A user's project: a type checker reports nothing here. The functions are checked, not run."""

import os
from pathlib import Path
from typing import Unpack

import gymnasium as gym
import numpy as np
import torch

import drl
from drl import jax as jax_parts
from drl import train
from drl.torch import DQN, QAgent, QModel


def a_run() -> float:
    run = train("ppo", env="CartPole-v1", total_timesteps=10_000, learning_rate=1e-3, engine="jax", quiet=True)
    return run.evaluation["mean_return"] if run.evaluation is not None else 0.0


def values_of_other_libraries(folder: Path) -> None:
    drl.train("sac", "Pendulum-v1", results_dir=folder, device=torch.device("cpu"), hidden_sizes=[64, 64])
    drl.train("dqn", seed=np.int64(3), learning_rate=np.float32(1e-3), total_timesteps=np.int32(1000), double=np.True_)
    drl.train("td3", config=folder / "td3.yaml", from_agent=folder, max_grad_norm=None, device=f"cuda:{os.getpid()}")


def functions(rate: float) -> None:
    drl.train("ppo", learning_rate=lambda time: rate * (1 - time), activation=torch.nn.GELU, init="orthogonal")
    drl.train("dqn", epsilon_schedule="linear", learning_rate_schedule=lambda time: 1e-3)


def environments() -> None:
    drl.train("ppo", env=gym.make("CartPole-v1"))
    drl.train("ppo", env=lambda: gym.make("CartPole-v1"), wrappers=[gym.wrappers.TimeAwareObservation, "NormalizeObs"])
    with drl.make_vec_env("CartPole-v1", num_envs=8, seed=1) as envs:
        drl.train("ppo", env=envs, env_kwargs=None, preset="rainbow")


def several_runs() -> list[Path]:
    return [run.folder for run in drl.train_seeds("ppo", num_seeds=3, workers=2)] + [
        run.folder for run in drl.train_seeds("ppo", seeds=range(5), preset=False)
    ]


def a_search() -> object:
    return drl.search("ppo", n_trials=20, mode="all", pruner="none", gamma=0.98, search_space={"epochs": [1, 4]})


def a_trainer() -> float:
    with drl.make_trainer("sac", env="Pendulum-v1", seed=np.int64(1), total_timesteps=2_000) as trainer:
        return [log.env_steps + log["mean_ep_return"] for log in trainer()][-1]


def parts_by_hand() -> None:
    envs = drl.make_vec_env("CartPole-v1", num_envs=8, seed=1)
    model = QModel.build(envs, hidden_sizes=(128, 128), dueling=True, seed=1)
    dqn = DQN(model, envs, drl.DQNConfig(double=True))
    trainer = drl.Trainer(envs, QAgent(model, envs), dqn, drl.ReplayBuffer(envs, capacity=np.int64(50_000)))
    for log in trainer(50_000):
        print(log["mean_ep_return"])


def parts_by_hand_in_jax() -> None:
    envs = drl.make_vec_env("CartPole-v1", num_envs=8, seed=1)
    state = jax_parts.PolicyValueModel.build(envs, hidden_sizes=[64, 64], activation="relu")
    learner = jax_parts.PPO(state, envs)
    trainer = drl.Trainer(envs, jax_parts.PolicyAgent(state, envs), learner, drl.RolloutBuffer(envs, 128))
    print(next(iter(trainer(1000))).env_steps)


def an_agent(folder: str) -> np.ndarray:
    agent = drl.load_agent(folder)
    return agent.act(np.zeros(4, np.float32), explore=True)


def a_wrapper_around_train(**settings: Unpack[drl.Settings]) -> Path:
    settings.setdefault("gamma", 0.99)
    return drl.train("my_algorithm", config={"my_setting": 3}, **settings).folder
