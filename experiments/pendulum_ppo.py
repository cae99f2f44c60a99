"""PPO on Pendulum: continuous actions, scaled rewards.

python experiments/pendulum_ppo.py [--engine jax] [--steps 150000] [--seed 1] [--results-dir results]
"""

from dataclasses import asdict, dataclass

import drl

ENV = "Pendulum-v1"


@dataclass(frozen=True)
class Settings:
    engine: str = "torch"  # torch · jax
    steps: int = 150_000  # environment steps
    seed: int = 1
    results_dir: str = "results"


def main(settings: Settings) -> None:
    engine = drl.engine(settings.engine)
    config = drl.PPOConfig(
        rollout_length=512, epochs=10, minibatches=32, gamma=0.9, learning_rate=1e-3, learning_rate_end=0.0
    )
    with drl.make_vec_env(ENV, num_envs=4, seed=settings.seed) as envs:
        model = engine.PolicyValueModel.build(envs)
        agent = engine.PolicyAgent(model, envs)
        ppo = engine.PPO(model, envs, config)
        trainer = drl.Trainer(envs, agent, ppo, reward_scaler=drl.RewardScaler(envs.num_envs, config.gamma))

        run = drl.Run.create("pendulum_ppo_by_hand", asdict(settings), settings.results_dir, settings.seed)
        for log in drl.track(trainer(settings.steps), run.trackers()):
            if log.learning_steps % 10 == 0:
                print(f"{log.env_steps:7,} steps: mean return {log.get('mean_ep_return', float('nan')):8.1f}")
    print(drl.finish_run(run, agent, ENV).report())


if __name__ == "__main__":
    drl.run_script(main, Settings)
