"""PPO on Pendulum: continuous actions, scaled rewards. The parts come from the builders, the loop is yours.

python experiments/pendulum_ppo.py [--steps 150000] [--seed 1] [--results-dir results]
"""

from dataclasses import asdict, dataclass

from drl.buffers.rollout_buffer import RolloutBuffer
from drl.cli.entry import run_script
from drl.core.algorithms.ppo_record import PPOConfig
from drl.core.configs import ModelConfig
from drl.core.normalize import RewardScaler
from drl.core.seeding import Seeds
from drl.engines.torch.build import build_learner
from drl.envs.make_vec_env import make_vec_env
from drl.experiment.evaluation import evaluate
from drl.experiment.run_folder import Run
from drl.experiment.stages import track
from drl.tracking.files import JsonlTracker
from drl.tracking.plots import plot_run
from drl.trainer.trainer import Trainer, TrainerConfig


@dataclass(frozen=True)
class Settings:
    steps: int = 150_000  # environment steps
    seed: int = 1
    results_dir: str = "results"


def main(settings: Settings) -> None:
    config = PPOConfig(
        rollout_length=512, epochs=10, minibatches=32, gamma=0.9, learning_rate=1e-3, learning_rate_end=0.0
    )
    with make_vec_env("Pendulum-v1", num_envs=4, seed=settings.seed) as envs:
        specs = (envs.obs_spec, envs.action_spec)
        agent, ppo = build_learner("ppo", specs, (ModelConfig(), config), Seeds(settings.seed))
        buffer = RolloutBuffer(config.rollout_length, envs.num_envs, *specs)
        scaler = RewardScaler(envs.num_envs, config.gamma)
        trainer = Trainer(envs, agent, ppo, buffer, TrainerConfig(total_timesteps=settings.steps), scaler)

        run = Run.create("pendulum_ppo_by_hand", asdict(settings), settings.results_dir, settings.seed)
        logs = track(trainer(), [JsonlTracker(run.folder / "metrics.jsonl")])
        for log in logs:
            if log.learning_steps % 10 == 0 and log.recent:
                print(f"{log.env_steps:7,} steps: mean return {log.recent['mean_ep_return']:8.1f}")

    agent.save(run.folder / "agent", env="Pendulum-v1")
    plot_run(run.folder)
    run.note(status="finished")
    summary = evaluate(agent, "Pendulum-v1", 20, seed=100).summary()
    print(f"evaluation {summary['mean_return']:.1f} ± {summary['std_return']:.1f}; agent and plots: {run.folder}")


if __name__ == "__main__":
    run_script(main, Settings)
