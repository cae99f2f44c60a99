"""PPO on CartPole, every part put together by hand.

python experiments/cartpole_ppo.py [--steps 50000] [--seed 1] [--results-dir results]
python experiments/cartpole_ppo.py --resume results/cartpole_ppo_by_hand/RUN    # a killed run continues exactly
"""

from dataclasses import asdict, dataclass

import torch

from drl.buffers.rollout_buffer import RolloutBuffer
from drl.cli.entry import run_script
from drl.core.algorithms.ppo_record import PPOConfig
from drl.core.configs import ModelConfig
from drl.core.contracts import Tracker
from drl.core.seeding import Seeds
from drl.engines.torch.agents import PolicyAgent
from drl.engines.torch.algorithms.ppo import PPO
from drl.engines.torch.backbones import MLP
from drl.engines.torch.models import LogitsHead, Model, PolicyValueModel, ValueHead
from drl.envs.make_vec_env import make_vec_env
from drl.experiment.evaluation import evaluate
from drl.experiment.run_folder import Run, find_run
from drl.experiment.stages import checkpoint_every, evaluate_every, progress, track
from drl.experiment.watch import film
from drl.tracking.files import CsvTracker, JsonlTracker
from drl.tracking.plots import plot_run
from drl.trainer.trainer import Trainer, TrainerConfig


@dataclass(frozen=True)
class Settings:
    steps: int = 50_000  # environment steps
    seed: int = 1
    results_dir: str = "results"
    resume: str | None = None  # a run to continue, with the other settings as they were


def main(settings: Settings) -> None:
    seeds = Seeds(settings.seed)
    config = PPOConfig(rollout_length=128, epochs=10, minibatches=8, learning_rate=1e-3, learning_rate_end=0.0)
    with make_vec_env("CartPole-v1", num_envs=8, seed=settings.seed) as envs:
        init = torch.Generator().manual_seed(seeds.integer("init"))
        model = PolicyValueModel(
            actor=Model(MLP((4,), hidden_sizes=(64, 64), generator=init), LogitsHead(64, 2, init)),
            critic=Model(MLP((4,), hidden_sizes=(64, 64), generator=init), ValueHead(64, init)),
            config=ModelConfig(hidden_sizes=(64, 64)),  # what these parts amount to: it goes on the agent's card
        )
        agent = PolicyAgent(model, envs.obs_spec, envs.action_spec, rng=seeds.generator("exploration"))
        ppo = PPO(model, envs, config, seeds.generator("learner"))
        buffer = RolloutBuffer(config.rollout_length, envs.num_envs, envs.obs_spec, envs.action_spec)
        trainer = Trainer(envs, agent, ppo, buffer, TrainerConfig(total_timesteps=settings.steps))

        if settings.resume:
            run = Run.reopen(find_run(settings.resume))
            if (state := run.checkpoints.load_newest()) is not None:
                trainer.load_state_dict(state)
        else:
            run = Run.create("cartpole_ppo_by_hand", asdict(settings), settings.results_dir, settings.seed)
        trackers: list[Tracker] = [JsonlTracker(run.folder / "metrics.jsonl"), CsvTracker(run.folder / "progress.csv")]
        logs = trainer()
        logs = evaluate_every(logs, 10_000, lambda: evaluate(agent, "CartPole-v1", 10, settings.seed).summary())
        logs = track(logs, trackers)  # before the checkpoint of the same step
        logs = checkpoint_every(
            logs, 10_000, lambda log: run.checkpoints.save(log.env_steps, trainer.state_dict(), keep=2)
        )
        logs = progress(logs, settings.steps)
        for log in logs:
            if log.evaluation:
                print(f"{log.env_steps:7,} steps: evaluation {log.evaluation['mean_return']:.1f}")

    agent.save(run.folder / "agent", env="CartPole-v1")
    plot_run(run.folder)
    film(agent, "CartPole-v1", run.folder / "videos" / "final_agent.mp4", settings.seed)
    run.note(status="finished")
    print(f"agent, plots and video: {run.folder}")


if __name__ == "__main__":
    run_script(main, Settings)
