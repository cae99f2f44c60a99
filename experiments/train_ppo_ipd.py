"""PPO learns to live with others: the iterated Prisoner's Dilemma against a pool of opponents.

python experiments/train_ppo_ipd.py [--opponents tit_for_tat grim] [--engine jax] [--steps 3000000] [--seed 1]
"""

from dataclasses import asdict, dataclass

import drl


@dataclass(frozen=True)
class Settings:
    opponents: tuple[str, ...] = ("all",)  # names in drl.ipd.NAMED, axelrod:Name, or one pool in a JSON file
    engine: str = "torch"  # torch · jax
    steps: int = 3_000_000  # environment steps
    seed: int = 1
    results_dir: str = "results"


def main(settings: Settings) -> None:
    engine, env = drl.engine(settings.engine), "IteratedPrisonersDilemma-v0"
    env_kwargs = {"opponents": settings.opponents[0] if len(settings.opponents) == 1 else list(settings.opponents)}
    config = drl.PPOConfig(  # games end by chance: gamma is 1, and short traces contain less of that noise
        rollout_length=16, epochs=2, minibatches=8, gamma=1.0, gae_lambda=0.7,
        learning_rate=1e-3, learning_rate_end=0.0, entropy_coef=0.02,
    )  # fmt: skip
    with drl.make_vec_env(env, num_envs=512, seed=settings.seed, env_kwargs=env_kwargs) as envs:
        model = engine.PolicyValueModel.build(envs, hidden_sizes=(128, 128), activation="relu")
        agent, ppo = engine.PolicyAgent(model, envs), engine.PPO(model, envs, config)
        trainer = drl.Trainer(envs, agent, ppo, reward_scaler=drl.RewardScaler(envs.num_envs, config.gamma))
        run = drl.Run.create("ipd_ppo_by_hand", asdict(settings), settings.results_dir, settings.seed)
        for _ in drl.progress(drl.track(trainer(settings.steps), run.trackers()), settings.steps):
            pass
    behavior = drl.ipd.observe_behavior(agent, drl.ipd.as_pool(env_kwargs["opponents"]), seed=10_000 + settings.seed)
    behavior.draw(run.folder / "plots" / "behavior.png", f"PPO, seed {settings.seed}")
    print(behavior, drl.finish_run(run, agent, env, env_kwargs).report(), sep="\n")


if __name__ == "__main__":
    drl.run_script(main, Settings)
