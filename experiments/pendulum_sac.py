"""SAC on Pendulum: continuous actions, two critics, a tuned temperature.

python experiments/pendulum_sac.py [--engine jax] [--steps 20000] [--seed 1] [--results-dir results]
"""

from dataclasses import asdict, dataclass

import drl

ENV = "Pendulum-v1"


@dataclass(frozen=True)
class Settings:
    engine: str = "torch"  # torch · jax
    steps: int = 20_000  # environment steps
    seed: int = 1
    results_dir: str = "results"


def main(settings: Settings) -> None:
    engine = drl.engine(settings.engine)
    with drl.make_vec_env(ENV, num_envs=1, seed=settings.seed) as envs:
        model = engine.ActorCritic.build(envs, hidden_sizes=(64, 64))
        agent = engine.PolicyAgent(model, envs)
        sac = engine.SAC(model, envs, drl.SACConfig(learning_rate=1e-3))
        buffer = drl.ReplayBuffer(envs, capacity=20_000, warmup=500, batch_size=256)
        trainer = drl.Trainer(envs, agent, sac, buffer)

        run = drl.Run.create("pendulum_sac_by_hand", asdict(settings), settings.results_dir, settings.seed)
        for log in drl.track(trainer(settings.steps), run.trackers()):
            if log.learning_steps % 20 == 0:
                print(f"{log.env_steps:7,} steps: mean return {log.get('mean_ep_return', float('nan')):8.1f}")
    print(drl.finish_run(run, agent, ENV).report())


if __name__ == "__main__":
    drl.run_script(main, Settings)
