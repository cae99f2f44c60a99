"""REINFORCE on CartPole in JAX, every part made by hand: world, backbone, head, model, agent, program, trainer, stages.

python experiments/cartpole_reinforce.py [--steps 500000] [--seed 1] [--results-dir results]

World, episodes and update are one compiled program; the logs come out of the same kind of generator as everywhere.
"""

from dataclasses import asdict, dataclass

import numpy as np
import tyro

from drl.core.configs import ReinforceConfig
from drl.core.seeding import Seeds
from drl.engines.jax.algorithms.reinforce import PureReinforce
from drl.engines.jax.backbones import MLP
from drl.engines.jax.brain import Brain
from drl.engines.jax.fused.clock import Budget
from drl.engines.jax.fused.episodes import FusedEpisodes
from drl.engines.jax.fused.learner import FusedLearner
from drl.engines.jax.heads import LogitsHead, ValueHead
from drl.engines.jax.models import Model, PolicyValueModel
from drl.engines.jax.policy_agent import PolicyAgent
from drl.engines.jax.start import start_jax
from drl.engines.jax.worlds import make_jax_world
from drl.experiment.evaluation import evaluate
from drl.experiment.run_folder import Run
from drl.experiment.stages import progress, stop_at, track
from drl.experiment.watch import film
from drl.tracking.files import JsonlTracker
from drl.tracking.plots import plot_run
from drl.trainer.fused_trainer import Cohort
from drl.trainer.trainer import TrainerConfig


@dataclass(frozen=True)
class Settings:
    steps: int = 500_000  # environment steps
    seed: int = 1
    results_dir: str = "results"


def main(settings: Settings) -> None:
    start_jax()
    seeds = Seeds(settings.seed)
    world = make_jax_world("CartPole-v1")

    # The brain: configuration here, parameters apart from it.
    backbone = MLP(world.obs_spec.shape, hidden=(64, 64))
    actor = Model(backbone, LogitsHead(backbone.features, world.action_spec.num_params))
    critic = Model(backbone, ValueHead(backbone.features))  # the same shape, but parameters of its own
    model = PolicyValueModel(actor, critic)
    params = model.init(seeds.generator("init"))
    print(f"{sum(np.size(array) for array in params.values()):,} parameters")

    # The student, and the lesson: a constant with pure functions.
    agent = PolicyAgent(Brain(model, params), world.obs_spec, world.action_spec)
    config = ReinforceConfig(episodes_per_step=4, baseline="value", learning_rate=3e-3, learning_rate_end=0.0)
    reinforce = PureReinforce(model, world.action_spec, config)

    # The teacher: four worlds play an episode each, then the program learns from them.
    program = FusedEpisodes(world, reinforce, num_envs=4, budget=Budget(settings.steps))
    learner = FusedLearner(program, [params], [seeds.integer("fused")])
    trainer = Cohort(learner, [agent], TrainerConfig(total_timesteps=settings.steps)).trainers[0]

    run = Run.create("cartpole_reinforce_by_hand", asdict(settings), settings.results_dir, settings.seed)
    logs = progress(track(trainer(), [JsonlTracker(run.folder / "metrics.jsonl")]), settings.steps)
    for _ in stop_at(logs, env_steps=settings.steps):
        pass

    agent.save(run.folder / "agent", env="CartPole-v1")
    plot_run(run.folder)
    film(agent, "CartPole-v1", run.folder / "videos" / "final_agent.mp4", seed=100)
    run.note(status="finished")
    summary = evaluate(agent, "CartPole-v1", 20, seed=100).summary()
    print(f"evaluation {summary['mean_return']:.1f} ± {summary['std_return']:.1f}; agent, plots, video: {run.folder}")


if __name__ == "__main__":
    main(tyro.cli(Settings))
