"""Double DQN with dueling networks on CartPole: a replay buffer and ε-greedy exploration.

python experiments/cartpole_dqn.py [--engine jax] [--steps 50000] [--seed 1] [--results-dir results]
"""

from dataclasses import asdict, dataclass

import drl

ENV = "CartPole-v1"


@dataclass(frozen=True)
class Settings:
    engine: str = "torch"  # torch · jax
    steps: int = 50_000  # environment steps
    seed: int = 1
    results_dir: str = "results"


def main(settings: Settings) -> None:
    engine = drl.engine(settings.engine)
    with drl.make_vec_env(ENV, num_envs=4, seed=settings.seed) as envs:
        model = engine.QModel.build(envs, hidden_sizes=(256, 256), dueling=True)
        exploration = drl.EpsilonGreedyConfig(epsilon_end=0.04, epsilon_decay=8_000, epsilon_schedule="linear")
        agent = engine.QAgent(model, envs, exploration=exploration)
        config = drl.DQNConfig(double=True, learning_rate=1e-3, learning_rate_end=0.0, tau=1.0, target_every=128)
        dqn = engine.DQN(model, envs, config)
        buffer = drl.ReplayBuffer(envs, capacity=10_000, warmup=1_024, train_every=256, gradient_steps=128, n_step=3)
        trainer = drl.Trainer(envs, agent, dqn, buffer)

        run = drl.Run.create("cartpole_dqn_by_hand", asdict(settings), settings.results_dir, settings.seed)
        for _ in drl.progress(drl.track(trainer(settings.steps), run.trackers()), settings.steps):
            pass
    print(drl.finish_run(run, agent, ENV).report())


if __name__ == "__main__":
    drl.run_script(main, Settings)
