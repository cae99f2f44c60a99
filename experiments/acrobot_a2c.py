"""A2C on Acrobot: a short rollout, one gradient step, observations normalized.

python experiments/acrobot_a2c.py [--steps 500000] [--seed 1] [--results-dir results]
"""

from dataclasses import asdict, dataclass

from drl.buffers.rollout_buffer import RolloutBuffer
from drl.cli.entry import run_script
from drl.core.algorithms.a2c_record import A2CConfig
from drl.core.configs import ModelConfig
from drl.core.seeding import Seeds
from drl.engines.torch.build import build_learner
from drl.envs.make_vec_env import make_vec_env
from drl.experiment.evaluation import evaluate
from drl.experiment.run_folder import Run
from drl.experiment.stages import progress, stop_at, track
from drl.tracking.files import JsonlTracker
from drl.tracking.plots import plot_run
from drl.trainer.trainer import Trainer, TrainerConfig


@dataclass(frozen=True)
class Settings:
    steps: int = 500_000  # environment steps
    seed: int = 1
    results_dir: str = "results"


def main(settings: Settings) -> None:
    config = A2CConfig(rollout_length=8, learning_rate=7e-4, learning_rate_end=0.0)
    with make_vec_env("Acrobot-v1", num_envs=16, seed=settings.seed) as envs:
        specs = (envs.obs_spec, envs.action_spec)
        agent, a2c = build_learner("a2c", specs, (ModelConfig(), config), Seeds(settings.seed), normalize_obs=True)
        buffer = RolloutBuffer(config.rollout_length, envs.num_envs, *specs)
        trainer = Trainer(envs, agent, a2c, buffer, TrainerConfig(total_timesteps=settings.steps))

        run = Run.create("acrobot_a2c_by_hand", asdict(settings), settings.results_dir, settings.seed)
        logs = progress(track(trainer(), [JsonlTracker(run.folder / "metrics.jsonl")]), settings.steps)
        for _ in stop_at(logs, env_steps=settings.steps, mean_return=-80.0):
            pass

    agent.save(run.folder / "agent", env="Acrobot-v1")
    plot_run(run.folder)
    run.note(status="finished")
    summary = evaluate(agent, "Acrobot-v1", 20, seed=100).summary()
    print(f"evaluation {summary['mean_return']:.1f} ± {summary['std_return']:.1f}; agent and plots: {run.folder}")


if __name__ == "__main__":
    run_script(main, Settings)
