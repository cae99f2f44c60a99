"""PPO on CartPole, with evaluations and checkpoints. `--resume RUN` continues a killed run exactly.

python experiments/cartpole_ppo.py [--engine jax] [--steps 50000] [--seed 1] [--resume RUN]
"""

from dataclasses import asdict, dataclass

import drl


@dataclass(frozen=True)
class Settings:
    engine: str = "torch"  # torch · jax
    steps: int = 50_000  # environment steps
    seed: int = 1
    results_dir: str = "results"
    resume: str | None = None  # a run to continue, with the same settings


def main(settings: Settings) -> None:
    engine = drl.engine(settings.engine)
    with drl.make_vec_env("CartPole-v1", num_envs=8, seed=settings.seed) as envs:
        model = engine.PolicyValueModel.build(envs, hidden_sizes=(64, 64))
        config = drl.PPOConfig(epochs=10, minibatches=8, learning_rate=1e-3, learning_rate_end=0.0)
        agent, ppo = engine.PolicyAgent(model, envs), engine.PPO(model, envs, config)
        trainer = drl.Trainer(envs, agent, ppo, config=drl.TrainerConfig(total_timesteps=settings.steps))
        if settings.resume:
            run = drl.Run.reopen(settings.resume)
            run.load(trainer)
        else:
            run = drl.Run.create("cartpole_ppo_by_hand", asdict(settings), settings.results_dir, settings.seed)
        logs = drl.evaluate_every(trainer(), 10_000, lambda: drl.evaluate(agent, "CartPole-v1", 10).summary())
        logs = drl.track(logs, run.trackers())  # before the checkpoint of the same step
        for _ in drl.checkpoint_every(logs, 10_000, lambda log: run.save(trainer)):
            pass
    print(drl.finish_run(run, agent, "CartPole-v1").report())


if __name__ == "__main__":
    drl.run_script(main, Settings)
