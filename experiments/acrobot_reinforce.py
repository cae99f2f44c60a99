"""REINFORCE on Acrobot in JAX: observations normalized inside the compiled program, three baselines to choose from.

python experiments/acrobot_reinforce.py [--baseline value] [--steps 1000000] [--seed 1] [--results-dir results]
"""

from dataclasses import asdict, dataclass

from drl.cli.entry import run_script
from drl.core.algorithms.reinforce_record import ReinforceConfig
from drl.core.configs import ModelConfig
from drl.experiment.evaluation import evaluate
from drl.experiment.run_folder import Run
from drl.experiment.stages import progress, track
from drl.experiment.watch import film
from drl.tracking.files import JsonlTracker
from drl.tracking.plots import plot_run
from drl.trainer.trainer import TrainerConfig


@dataclass(frozen=True)
class Settings:
    baseline: str = "value"  # none · mean · value
    steps: int = 1_000_000  # environment steps
    seed: int = 1
    results_dir: str = "results"


def main(settings: Settings) -> None:
    from drl.engines.jax.envs import make_jax_env
    from drl.engines.jax.fused.build_fused import build_fused
    from drl.engines.jax.fused.counters import Budget
    from drl.engines.jax.fused.fused_trainer import SeedBatch
    from drl.engines.jax.start import start_jax

    start_jax()
    config = ReinforceConfig(
        episodes_per_step=16, baseline=settings.baseline, learning_rate=3e-3, learning_rate_end=0.0, entropy_coef=0.01
    )
    envs, budget = make_jax_env("Acrobot-v1"), Budget(settings.steps)
    configs = (ModelConfig(hidden_sizes=(64, 64)), config)
    learner, (agent,) = build_fused("reinforce", envs, configs, [settings.seed], 16, budget, normalize_obs=True)
    trainer = SeedBatch(learner, [agent], TrainerConfig(total_timesteps=settings.steps)).trainers[0]

    run = Run.create("acrobot_reinforce_by_hand", asdict(settings), settings.results_dir, settings.seed)
    logs = progress(track(trainer(), [JsonlTracker(run.folder / "metrics.jsonl")]), settings.steps)
    for _ in logs:
        pass

    agent.save(run.folder / "agent", env="Acrobot-v1")
    plot_run(run.folder)
    film(agent, "Acrobot-v1", run.folder / "videos" / "final_agent.mp4", seed=100)
    run.note(status="finished")
    summary = evaluate(agent, "Acrobot-v1", 20, seed=100).summary()
    print(f"evaluation {summary['mean_return']:.1f} ± {summary['std_return']:.1f}; agent, plots, video: {run.folder}")


if __name__ == "__main__":
    run_script(main, Settings)
