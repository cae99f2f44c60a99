"""PPO learns to live with others: the iterated Prisoner's Dilemma against a pool of opponents.

python experiments/train_ppo_ipd.py [--opponents tit_for_tat grim] [--backbone conv1d] [--steps 3000000] [--seed 1]

`--opponents` takes names (`drl.games.ipd.NAMED`), `all`, players of the axelrod package (`axelrod:Name`) or one pool in
a JSON file. Prints what the agent earns per round, how near that is to the best possible, and when it cooperates.
"""

from dataclasses import asdict, dataclass
from typing import Any

from drl.buffers.rollout_buffer import RolloutBuffer
from drl.cli.entry import run_script
from drl.core.algorithms.ppo_record import PPOConfig
from drl.core.configs import ModelConfig
from drl.core.contracts import Tracker
from drl.core.normalize import RewardScaler
from drl.core.seeding import Seeds
from drl.engines.torch.build import build_learner
from drl.envs.make_vec_env import make_vec_env
from drl.experiment.run_folder import Run
from drl.experiment.stages import evaluate_every, progress, track
from drl.games.ipd import Rules, as_pool
from drl.games.ipd.behavior import observe_behavior
from drl.games.ipd.exact_values import best_memory_one_reply
from drl.tracking.files import CsvTracker, JsonlTracker
from drl.tracking.plots import plot_run
from drl.trainer.trainer import Trainer, TrainerConfig

ENV = "IteratedPrisonersDilemma-v0"


@dataclass(frozen=True)
class Settings:
    opponents: tuple[str, ...] = ("all",)  # who is in the pool, all equally often; a pool file has its own weights
    survival: float = 0.95  # chance that a game goes on after a round
    backbone: str = "mlp"  # mlp · conv1d
    steps: int = 3_000_000  # environment steps
    games: int = 200  # against each opponent, to evaluate the final agent; a tenth of that on the way
    seed: int = 1
    results_dir: str = "results"


def main(settings: Settings) -> None:
    opponents: Any = settings.opponents[0] if len(settings.opponents) == 1 else list(settings.opponents)
    env_kwargs = {"opponents": opponents, "survival": settings.survival}
    rules, pool = Rules(survival=settings.survival), as_pool(opponents)
    # The environment itself ends games, so the agent does not discount once more. An early end says nothing about the
    # moves before it, and is most of the noise: short traces hold less of it, many environments average it out.
    config = PPOConfig(
        rollout_length=16,
        minibatches=8,
        epochs=2,
        gamma=1.0,
        gae_lambda=0.7,
        learning_rate=1e-3,
        learning_rate_end=0.0,
        entropy_coef=0.02,
    )
    with make_vec_env(ENV, num_envs=512, seed=settings.seed, env_kwargs=env_kwargs) as envs:
        specs = (envs.obs_spec, envs.action_spec)
        model = ModelConfig(backbone=settings.backbone, hidden_sizes=(128, 128), activation="relu")
        agent, ppo = build_learner("ppo", specs, (model, config), Seeds(settings.seed))
        buffer = RolloutBuffer(config.rollout_length, envs.num_envs, *specs)
        scaler = RewardScaler(envs.num_envs, config.gamma)
        trainer = Trainer(envs, agent, ppo, buffer, TrainerConfig(total_timesteps=settings.steps), scaler)

        def evaluation() -> dict[str, float]:
            seen = observe_behavior(agent, pool, rules, max(settings.games // 10, 1), settings.seed)
            known = {} if any(pool.strategies) else {"share_of_optimum": seen.share}
            return {"payoff_per_round": seen.payoff} | known

        run = Run.create("ipd_ppo_by_hand", asdict(settings), settings.results_dir, settings.seed)
        trackers: list[Tracker] = [JsonlTracker(run.folder / "metrics.jsonl"), CsvTracker(run.folder / "progress.csv")]
        logs = track(evaluate_every(trainer(), max(settings.steps // 20, 1), evaluation), trackers)
        for _ in progress(logs, settings.steps):
            pass

    agent.save(run.folder / "agent", env=ENV, env_kwargs=env_kwargs)
    plot_run(run.folder)
    behavior = observe_behavior(agent, pool, rules, settings.games, seed=10_000 + settings.seed)
    behavior.draw(run.folder / "plots" / "behavior.png", f"PPO, {settings.backbone}, seed {settings.seed}")
    run.note(status="finished")
    print(behavior)
    if not any(pool.strategies):
        policy, value = best_memory_one_reply(pool, rules)
        shown = ", ".join(f"{p:.2f}" for p in policy)
        print(f"best memory-1 reply to the pool: {value / rules.expected_rounds:.3f} per round by ({shown})")
    print(f"agent, learning curve (plots/return.png, evaluation.png) and plots/behavior.png: {run.folder}")


if __name__ == "__main__":
    run_script(main, Settings)
