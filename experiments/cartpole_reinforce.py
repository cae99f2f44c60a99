"""REINFORCE on CartPole: a network made of backbones and heads, with a value baseline.

python experiments/cartpole_reinforce.py [--engine jax] [--steps 500000] [--seed 1] [--results-dir results]
"""

from dataclasses import asdict, dataclass

import drl


@dataclass(frozen=True)
class Settings:
    engine: str = "torch"  # torch · jax
    steps: int = 500_000  # environment steps
    seed: int = 1
    results_dir: str = "results"


def main(settings: Settings) -> None:
    engine = drl.engine(settings.engine)

    def network(obs_spec: drl.ObsSpec, action_spec: drl.ActionSpec) -> object:
        actor = engine.Model(engine.MLP(obs_spec.shape, hidden_sizes=(64, 64)), engine.LogitsHead(64, 2))
        critic = engine.Model(engine.MLP(obs_spec.shape, hidden_sizes=(64, 64)), engine.ValueHead(64))
        return engine.PolicyValueModel(actor, critic, config=drl.ModelConfig(hidden_sizes=(64, 64)))

    with drl.make_vec_env("CartPole-v1", num_envs=4, seed=settings.seed) as envs:
        model = engine.build_model(network, envs)
        agent = engine.PolicyAgent(model, envs)
        config = drl.ReinforceConfig(episodes_per_step=4, baseline="value", learning_rate=3e-3, learning_rate_end=0.0)
        trainer = drl.Trainer(envs, agent, engine.Reinforce(model, envs, config))

        run = drl.Run.create("cartpole_reinforce_by_hand", asdict(settings), settings.results_dir, settings.seed)
        for _ in drl.progress(drl.track(trainer(settings.steps), run.trackers()), settings.steps):
            pass
    print(drl.finish_run(run, agent, "CartPole-v1").report())


if __name__ == "__main__":
    drl.run_script(main, Settings)
