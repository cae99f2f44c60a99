"""REINFORCE on Acrobot. With JAX, environments, episodes and updates are one compiled program.

python experiments/acrobot_reinforce.py [--engine torch] [--steps 1000000] [--seed 1] [--results-dir results]
"""

from dataclasses import asdict, dataclass

import drl

ENV = "Acrobot-v1"


@dataclass(frozen=True)
class Settings:
    engine: str = "jax"  # torch · jax
    steps: int = 1_000_000  # environment steps
    seed: int = 1
    results_dir: str = "results"


def main(settings: Settings) -> None:
    engine, budget = drl.engine(settings.engine), drl.TrainerConfig(total_timesteps=settings.steps)
    config = drl.ReinforceConfig(episodes_per_step=16, learning_rate=3e-3, learning_rate_end=0.0, entropy_coef=0.01)
    with drl.make_vec_env(ENV, num_envs=16, seed=settings.seed) as envs:
        model = engine.PolicyValueModel.build(envs, hidden_sizes=(64, 64))
        agent = engine.PolicyAgent(model, envs, drl.obs_normalizer(envs.obs_spec))
        reinforce = engine.Reinforce(model, envs, config)
        if settings.engine == "jax":
            trainer = engine.compile_trainer(ENV, agent, reinforce, envs.num_envs, budget, seed=settings.seed)
        else:
            trainer = drl.Trainer(envs, agent, reinforce, config=budget)

        run = drl.Run.create("acrobot_reinforce_by_hand", asdict(settings), settings.results_dir, settings.seed)
        for _ in drl.progress(drl.track(trainer(), run.trackers()), settings.steps):
            pass
    print(drl.finish_run(run, agent, ENV).report())


if __name__ == "__main__":
    drl.run_script(main, Settings)
