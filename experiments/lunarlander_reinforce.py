"""REINFORCE on LunarLander in JAX: an environment outside the compiled program, stepped by Gymnasium (extra `box2d`).

python experiments/lunarlander_reinforce.py [--steps 500000] [--seed 1] [--results-dir results]

The ordinary Trainer drives it, as it drives the PyTorch engine; only the builder is another.
"""

from dataclasses import asdict, dataclass

from drl.buffers.episode_buffer import EpisodeBuffer
from drl.cli.entry import run_script
from drl.core.algorithms.reinforce_record import ReinforceConfig
from drl.core.configs import ModelConfig
from drl.core.seeding import Seeds
from drl.envs.make_vec_env import make_vec_env
from drl.experiment.evaluation import evaluate
from drl.experiment.run_folder import Run
from drl.experiment.stages import progress, track
from drl.experiment.watch import film
from drl.tracking.files import JsonlTracker
from drl.tracking.plots import plot_run
from drl.trainer.trainer import Trainer, TrainerConfig


@dataclass(frozen=True)
class Settings:
    steps: int = 500_000  # environment steps
    seed: int = 1
    results_dir: str = "results"


def main(settings: Settings) -> None:
    from drl.engines.jax.build import build_learner
    from drl.engines.jax.start import start_jax

    start_jax()
    config = ReinforceConfig(episodes_per_step=16, learning_rate=3e-3, learning_rate_end=0.0, entropy_coef=0.01)
    with make_vec_env("LunarLander-v3", num_envs=8, seed=settings.seed) as envs:
        specs = (envs.obs_spec, envs.action_spec)
        configs = (ModelConfig(hidden_sizes=(128, 128)), config)
        agent, reinforce = build_learner("reinforce", specs, configs, Seeds(settings.seed))
        buffer = EpisodeBuffer(config.episodes_per_step, envs.num_envs, *specs)
        trainer = Trainer(envs, agent, reinforce, buffer, TrainerConfig(total_timesteps=settings.steps))

        run = Run.create("lunarlander_reinforce_by_hand", asdict(settings), settings.results_dir, settings.seed)
        logs = progress(track(trainer(), [JsonlTracker(run.folder / "metrics.jsonl")]), settings.steps)
        for _ in logs:
            pass

    agent.save(run.folder / "agent", env="LunarLander-v3")
    plot_run(run.folder)
    film(agent, "LunarLander-v3", run.folder / "videos" / "final_agent.mp4", seed=100)
    run.note(status="finished")
    summary = evaluate(agent, "LunarLander-v3", 20, seed=100).summary()
    print(f"evaluation {summary['mean_return']:.1f} ± {summary['std_return']:.1f}; agent, plots, video: {run.folder}")


if __name__ == "__main__":
    run_script(main, Settings)
