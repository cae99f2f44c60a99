"""A2C on Acrobot: short rollouts, one gradient step each, normalized observations.

python experiments/acrobot_a2c.py [--engine jax] [--steps 500000] [--seed 1] [--results-dir results]
"""

from dataclasses import asdict, dataclass

import drl

ENV = "Acrobot-v1"


@dataclass(frozen=True)
class Settings:
    engine: str = "torch"  # torch · jax
    steps: int = 500_000  # environment steps
    seed: int = 1
    results_dir: str = "results"


def main(settings: Settings) -> None:
    engine = drl.engine(settings.engine)
    with drl.make_vec_env(ENV, num_envs=16, seed=settings.seed) as envs:
        model = engine.PolicyValueModel.build(envs)
        agent = engine.PolicyAgent(model, envs, drl.obs_normalizer(envs.obs_spec))
        a2c = engine.A2C(model, envs, drl.A2CConfig(rollout_length=8, learning_rate=7e-4, learning_rate_end=0.0))
        trainer = drl.Trainer(envs, agent, a2c)

        run = drl.Run.create("acrobot_a2c_by_hand", asdict(settings), settings.results_dir, settings.seed)
        logs = drl.progress(drl.track(trainer(settings.steps), run.trackers()), settings.steps)
        for _ in drl.stop_at(logs, mean_return=-80.0):
            pass
    print(drl.finish_run(run, agent, ENV).report())


if __name__ == "__main__":
    drl.run_script(main, Settings)
