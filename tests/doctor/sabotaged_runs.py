"""Tiny runs that are really trained, with one setting that spoils them each, and healthy ones beside them."""

from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from drl.runs.launch import train
from drl.settings.experiment import Experiment
from tests.doctor.broken_envs import Walk

QUICK = {
    "quiet": True, "plots": False, "video": False, "tensorboard": False, "evaluate_every": 0, "checkpoint_every": 0,
    "compile": "off", "evaluation_episodes": 5, "record_episodes": False, "hidden_sizes": [32], "num_checkpoints": 1,
    "engine": "torch", "vectorization": "sync", "seed": 1,
}  # fmt: skip
PPO = {
    "algorithm": "ppo", "env": "CartPole-v1", "total_timesteps": 8192, "num_envs": 8, "rollout_length": 32,
    "learning_rate": 2e-3, "minibatches": 4, "epochs": 4,
}  # fmt: skip
DQN = {
    "algorithm": "dqn", "env": "CartPole-v1", "total_timesteps": 3000, "num_envs": 1, "warmup": 200, "batch_size": 32,
    "train_every": 4, "updates_per_log": 20, "learning_rate": 2e-3, "tau": 0.05, "epsilon_decay": 1000,
    "epsilon_schedule": "linear",
}  # fmt: skip
TD3 = {
    "algorithm": "td3", "env": "Pendulum-v1", "total_timesteps": 6000, "num_envs": 4, "warmup": 400, "batch_size": 32,
    "train_every": 8, "updates_per_log": 20, "learning_rate": 1e-3,
}  # fmt: skip
SHORT_PPO, SHORT_DQN = PPO | {"total_timesteps": 2048}, DQN | {"total_timesteps": 1500}  # for wrong settings
HERE = "tests.doctor.sabotaged_runs"


def rate_gone_early(share):
    return 2e-3 if share < 0.1 else 0.0


def rate_rises(share):
    return 2e-3 if share < 0.7 else 0.5


class NoReward(gym.RewardWrapper):
    def reward(self, reward):
        return 0.0


class Fails(Walk):
    def reward(self):
        if self.time == 12:
            raise ZeroDivisionError("the wheel came off")
        return self.speed


class MixedStrategy(Walk):
    """Rewards an action that differs from the one before, which is not seen: only a random policy does well."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.last = 0
        return self.obs(), {}

    def step(self, action):
        self.time += 1
        differs, self.last = float(action != self.last), action
        return self.obs(), differs, False, self.time >= 20, {}

    def obs(self):
        return np.zeros(1, np.float32)


# What is wrong → the settings, and the finding that names it.
SABOTAGED = {
    "huge learning rate": (PPO | {"learning_rate": 1.0}, "kl-spikes"),
    "huge entropy bonus": (PPO | {"entropy_coef": 10.0}, "exploding-entropy"),
    "short discount": (SHORT_PPO | {"gamma": 0.3}, "short-discount"),
    "time limit of 3 steps": (SHORT_PPO | {"wrappers": ["TimeLimit:max_episode_steps=3"]}, "short-time-limit"),
    "no reward": (PPO | {"wrappers": [f"{HERE}:NoReward"]}, "no-reward"),
    "tiny learning rate": (PPO | {"learning_rate": 1e-9}, "frozen-policy"),
    "rate gone early": (SHORT_PPO | {"learning_rate_schedule": rate_gone_early}, "learning-rate-gone"),
    "rate rises at the end": (PPO | {"learning_rate": 0.5, "learning_rate_schedule": rate_rises}, "collapse"),
    "tiny clip range": (PPO | {"clip_range": 0.001, "learning_rate": 0.01, "epochs": 8}, "clip-fraction"),
    "no value loss": (PPO | {"value_coef": 0.0}, "critic-explains-nothing"),
    "policy collapses": (PPO | {"algorithm": "a2c", "learning_rate": 0.3}, "dead-entropy"),
    "only random does well": (PPO | {"env": f"{HERE}:MixedStrategy"}, "evaluation-below-training"),
    "wide Gaussian": (PPO | {"env": "Pendulum-v1", "entropy_coef": 1.0, "log_std_init": 1.5}, "exploding-entropy"),
    "epsilon fixed at 1": (SHORT_DQN | {"epsilon_start": 1.0, "epsilon_schedule": "constant"}, "high-epsilon"),
    "tiny buffer": (SHORT_DQN | {"capacity": 64}, "small-replay"),
    "many updates": (
        DQN | {"total_timesteps": 250, "warmup": 100, "epsilon_decay": 100, "gradient_steps": 40},
        "replay-ratio-high",
    ),
    "few updates": (SHORT_DQN | {"train_every": 200}, "replay-ratio-low"),
    "learns late": (SHORT_DQN | {"warmup": 1000}, "late-learning"),
    "values run away": (
        DQN | {"learning_rate": 0.1, "tau": 1.0, "max_grad_norm": None, "train_every": 2},
        "values-beyond-returns",
    ),
    "saturated tanh": (TD3 | {"learning_rate": 1.0, "train_every": 4}, "saturated-actions"),
}
HEALTHY = {
    "ppo CartPole": PPO,
    "ppo CartPole, the preset's rates": PPO | {"learning_rate": 1e-3, "learning_rate_end": 0.0, "epochs": 6},
    "ppo Acrobot": PPO | {"env": "Acrobot-v1", "normalize_obs": True},
    "ppo Pendulum": PPO | {"env": "Pendulum-v1", "gamma": 0.95},
    "ppo FrozenLake": PPO | {"env": "FrozenLake-v1", "entropy_coef": 0.01},
    "ppo Taxi": PPO | {"env": "Taxi-v4", "normalize_reward": True},
    "ppo IPD": PPO | {"env": "IteratedPrisonersDilemma-v0"},
    "ppo MovieRec": PPO | {"env": "MovieRec-v1"},
    "a2c CartPole": PPO | {"algorithm": "a2c"},
    "dqn CartPole": DQN | {"train_every": 1, "learning_rate": 1e-3, "tau": 0.01, "hidden_sizes": [64]},
    "sac Pendulum": TD3 | {"algorithm": "sac", "total_timesteps": 4800, "train_every": 4},
    "very short": PPO | {"total_timesteps": 512},
}


def train_tiny(settings: dict[str, object], folder: Path) -> Path:
    """The folder of a run."""
    known = {"a2c": ("minibatches", "epochs")}.get(str(settings["algorithm"]), ())
    kept = {name: value for name, value in settings.items() if name not in known}
    experiment = Experiment.from_flat(QUICK | {"results_dir": str(folder)} | kept, "test")
    return train(experiment, console=False).folder
