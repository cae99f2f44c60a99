"""REINFORCE on LunarLander, which Gymnasium steps (extra `box2d`); the update is compiled.

python experiments/lunarlander_reinforce.py [--engine torch] [--steps 500000] [--seed 1] [--results-dir results]
"""

from dataclasses import asdict, dataclass

import drl

ENV = "LunarLander-v3"


@dataclass(frozen=True)
class Settings:
    engine: str = "jax"  # torch · jax
    steps: int = 500_000  # environment steps
    seed: int = 1
    results_dir: str = "results"


def main(settings: Settings) -> None:
    engine = drl.engine(settings.engine)
    config = drl.ReinforceConfig(episodes_per_step=16, learning_rate=3e-3, learning_rate_end=0.0, entropy_coef=0.01)
    with drl.make_vec_env(ENV, num_envs=8, seed=settings.seed) as envs:
        model = engine.PolicyValueModel.build(envs, hidden_sizes=(128, 128))
        agent = engine.PolicyAgent(model, envs)
        trainer = drl.Trainer(envs, agent, engine.Reinforce(model, envs, config))

        run = drl.Run.create("lunarlander_reinforce_by_hand", asdict(settings), settings.results_dir, settings.seed)
        for _ in drl.progress(drl.track(trainer(settings.steps), run.trackers()), settings.steps):
            pass
    print(drl.finish_run(run, agent, ENV).report())


if __name__ == "__main__":
    drl.run_script(main, Settings)
