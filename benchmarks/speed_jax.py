"""Speed of the JAX engine against rejax, on the same work: one process, alternating, pinned to one core, CPU time.

    python benchmarks/speed_jax.py [--only ppo,rollout,dqn] [--rounds 7]

`ppo`: CartPole-v1, 8 environments × 128 steps, 4 epochs × 4 minibatches, 64-64 tanh, separate actor and critic.
`rollout`: the same with a single update on the whole rollout: playing is most of the work.
`dqn`: 10 environments, an update of batch 128 for every 10 steps, 64-64, replay of 10 000.

Four contestants where the environment is inside the program: rejax, its training loop as one compiled scan; ours as one
such scan; ours in chunks, as training runs it; and the same through the trainer, which makes a log of every learning
step. rejax 0.1 was written for gymnax before 1.0, so its environment's step is given back in the old form.
"""

import argparse
from collections.abc import Callable
from typing import Any

from alternating import need, pin_to_one_core, race

PPO = {"rollout_length": 128, "epochs": 4, "minibatches": 4, "learning_rate": 2.5e-4, "value_clip": 0.2}
WORK: dict[str, tuple[str, int, int, dict[str, Any]]] = {  # algorithm, environments, learning steps a round, settings
    "ppo": ("ppo", 8, 100, PPO),
    "rollout": ("ppo", 8, 200, PPO | {"epochs": 1, "minibatches": 1}),
    "dqn": ("dqn", 10, 50, {"batch_size": 128, "train_every": 10, "capacity": 10_000, "updates_per_log": 100}),
}
SHARED_DQN: dict[str, Any] = {"warmup": 1000, "tau": 1.0, "target_every": 50, "learning_rate": 2.5e-4}


def rejax_scan(name: str) -> Callable[[], None]:
    import gymnax
    import jax
    import rejax

    algorithm, num_envs, rounds, settings = WORK[name]
    env, params = gymnax.make("CartPole-v1")

    class OldForm(type(env)):  # type: ignore[misc]
        """The environment with a step that says `done`, as before gymnax 1.0."""

        def step(self, *arguments: Any) -> Any:
            obs, state, reward, terminated, truncated, info = super().step(*arguments)
            return obs, state, reward, terminated | truncated, info

    common = {"env": OldForm(), "env_params": params, "num_envs": num_envs, "gamma": 0.99}
    if algorithm == "ppo":
        sizes = {"num_steps": settings["rollout_length"], "num_epochs": settings["epochs"]}
        sizes |= {"num_minibatches": settings["minibatches"], "agent_kwargs": {"activation": "tanh"}}
        trained = rejax.PPO.create(**common, **sizes, max_grad_norm=0.5, learning_rate=settings["learning_rate"])
    else:
        sizes = {"batch_size": settings["batch_size"], "buffer_size": settings["capacity"], "num_epochs": 1}
        sizes |= {"fill_buffer": SHARED_DQN["warmup"], "target_update_freq": 500, "polyak": 0.0, "ddqn": False}
        rate = {"learning_rate": SHARED_DQN["learning_rate"], "agent_kwargs": {"activation": "relu"}}
        trained = rejax.DQN.create(**common, **sizes, **rate, max_grad_norm=10.0, eps_start=0.05)
        rounds *= settings["updates_per_log"]
    state = trained.init_state(jax.random.PRNGKey(0))

    @jax.jit
    def run(state: Any) -> Any:
        return jax.lax.scan(lambda now, _: (trained.train_iteration(now), None), state, None, rounds)[0]

    def train() -> None:
        nonlocal state
        state = jax.block_until_ready(run(state))

    return train


def ours(name: str) -> tuple[dict[str, Callable[[], None]], int]:
    """Our three contestants and the environment steps of one round."""
    import jax

    from drl.algorithms.ppo import PPOConfig
    from drl.core.configs import ModelConfig
    from drl.engines.jax.envs import make_jax_env
    from drl.engines.jax.fused.fused_stats import Budget
    from drl.engines.jax.fused.fused_trainer import SeedBatch, build_fused
    from drl.settings.experiment import Experiment
    from drl.trainer.trainer import TrainerConfig

    algorithm, num_envs, rounds, settings = WORK[name]
    if algorithm == "ppo":
        configs: Any = (ModelConfig(), PPOConfig(**settings, entropy_coef=0.01))
    else:
        flat = settings | SHARED_DQN | {"algorithm": "dqn", "hidden_sizes": [64, 64]}
        flat |= {"optimizer": "adam", "amsgrad": False, "weight_decay": 0.0, "loss": "squared"}
        flat |= {"epsilon_start": 0.05, "epsilon_end": 0.05}
        dqn = Experiment.from_flat(flat, "benchmark")
        configs = (dqn.model, dqn.learner, dqn.buffer, dqn.exploration)

    def build() -> Any:
        return build_fused(algorithm, make_jax_env("CartPole-v1"), configs, [0], num_envs, Budget(None, None))

    whole, chunked = build()[0], build()[0]
    program = whole.program

    @jax.jit
    def scan(carry: Any) -> Any:
        return jax.lax.scan(lambda now, _: program.learn_step(now), carry, None, rounds)

    state = jax.tree.map(lambda leaf: leaf[0], whole.carry)

    def one_scan() -> None:
        nonlocal state
        state, _ = jax.block_until_ready(scan(state))

    def in_chunks() -> None:
        left = rounds
        while left:
            chunked.advance(count := min(left, chunked.preferred))
            left -= count

    learner, agents = build()
    trainer = SeedBatch(learner, agents, TrainerConfig()).trainers[0]

    def through_the_trainer() -> None:
        for _ in range(rounds):
            trainer.step()

    contestants = {"drl, one scan": one_scan, "drl, chunks": in_chunks, "drl, trainer and logs": through_the_trainer}
    return contestants, rounds * program.steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="ppo,rollout,dqn")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    need("gymnax", "jax", "rejax")
    pin_to_one_core()
    from drl.engines.jax.devices import start_jax

    start_jax()
    for name in arguments.only.split(","):
        contestants, steps = ours(name)
        contestants = {"rejax": rejax_scan(name)} | contestants
        for train in contestants.values():
            train()  # compile
        race(contestants, steps, arguments.rounds, f"{name}: steps per CPU second")


if __name__ == "__main__":
    main()
