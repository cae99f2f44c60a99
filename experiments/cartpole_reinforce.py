"""REINFORCE on CartPole, every part made by hand: environment, backbone, head, model, agent, algorithm, trainer,
stages.

python experiments/cartpole_reinforce.py [--steps 500000] [--seed 1] [--results-dir results] [--engine jax]

With JAX (extra `jax`) environment, episodes and update are one compiled program; without it the same parts come from
the PyTorch engine. The logs come out of the same kind of generator either way.
"""

import importlib.util
from dataclasses import asdict, dataclass
from typing import Any

from drl.cli.entry import run_script
from drl.core.algorithms.reinforce_record import ReinforceConfig
from drl.core.configs import ModelConfig
from drl.core.errors import BadInput
from drl.core.seeding import Seeds
from drl.core.specs import Distribution
from drl.core.transition import RolloutBatch
from drl.experiment.evaluation import evaluate
from drl.experiment.run_folder import Run
from drl.experiment.stages import progress, track
from drl.experiment.watch import film
from drl.tracking.files import JsonlTracker
from drl.tracking.plots import plot_run
from drl.trainer.trainer import Trainer, TrainerConfig

ENV, HIDDEN = "CartPole-v1", (64, 64)
MODEL = ModelConfig(hidden_sizes=HIDDEN)  # what the parts below amount to: it goes on the agent's card
CONFIG = ReinforceConfig(episodes_per_step=4, baseline="value", learning_rate=3e-3, learning_rate_end=0.0)


@dataclass(frozen=True)
class Settings:
    steps: int = 500_000  # environment steps
    seed: int = 1
    results_dir: str = "results"
    engine: str = "auto"  # auto (jax if it is installed) · jax · torch


def build_jax(settings: Settings) -> Any:
    """The compiled program: four environments play an episode each, then it learns from them."""
    from drl.engines.jax.agents import PolicyAgent
    from drl.engines.jax.algorithms.reinforce import PureReinforce
    from drl.engines.jax.backbones import MLP
    from drl.engines.jax.envs import make_jax_env
    from drl.engines.jax.fused.counters import Budget
    from drl.engines.jax.fused.fused_episodes import FusedEpisodes
    from drl.engines.jax.fused.fused_learner import FusedLearner
    from drl.engines.jax.fused.fused_trainer import SeedBatch
    from drl.engines.jax.model_state import ModelState
    from drl.engines.jax.models import LogitsHead, Model, PolicyValueModel, ValueHead
    from drl.engines.jax.start import start_jax

    start_jax()
    seeds, env = Seeds(settings.seed), make_jax_env(ENV)
    dist = Distribution.on(env.action_spec)
    backbone = MLP(env.obs_spec.shape, hidden_sizes=HIDDEN)
    actor = Model(backbone, LogitsHead(backbone.features, dist.num_params))
    critic = Model(backbone, ValueHead(backbone.features))  # the same shape, but parameters of its own
    model = PolicyValueModel(actor, critic, config=MODEL)  # configuration; its parameters are apart from it
    params = model.init(seeds.generator("init"))
    agent = PolicyAgent(ModelState(model, params), env.obs_spec, env.action_spec)
    reinforce = PureReinforce(model, dist, CONFIG)
    program = FusedEpisodes(env, reinforce, num_envs=4, budget=Budget(settings.steps))
    learner = FusedLearner(program, [params], [seeds.integer("fused")])
    return SeedBatch(learner, [agent], TrainerConfig(total_timesteps=settings.steps)).trainers[0]


def build_torch(settings: Settings) -> Trainer[RolloutBatch]:
    """The same with one environment that Gymnasium steps."""
    import torch

    from drl.buffers.episode_buffer import EpisodeBuffer
    from drl.engines.torch.agents import PolicyAgent
    from drl.engines.torch.algorithms.reinforce import Reinforce
    from drl.engines.torch.backbones import MLP
    from drl.engines.torch.models import LogitsHead, Model, PolicyValueModel, ValueHead
    from drl.envs.make_vec_env import make_vec_env

    torch.set_num_threads(1)  # a second thread costs such a small network more than it gives
    seeds, envs = Seeds(settings.seed), make_vec_env(ENV, num_envs=1, seed=settings.seed)
    generator = torch.Generator().manual_seed(seeds.integer("init"))
    shape, specs = envs.obs_spec.shape, (envs.obs_spec, envs.action_spec)
    backbones = [MLP(shape, hidden_sizes=HIDDEN, generator=generator) for _ in range(2)]
    logits = Distribution.on(envs.action_spec).num_params
    actor = Model(backbones[0], LogitsHead(backbones[0].features, logits, generator))
    model = PolicyValueModel(actor, Model(backbones[1], ValueHead(backbones[1].features, generator)), MODEL)
    agent = PolicyAgent(model, *specs, rng=seeds.generator("exploration"))
    buffer = EpisodeBuffer(CONFIG.episodes_per_step, envs.num_envs, *specs)
    reinforce = Reinforce(model, envs, CONFIG)
    return Trainer(envs, agent, reinforce, buffer, TrainerConfig(total_timesteps=settings.steps))


BUILDERS = {"jax": build_jax, "torch": build_torch}


def main(settings: Settings) -> None:
    engine = settings.engine
    if engine == "auto":
        engine = "jax" if importlib.util.find_spec("jax") else "torch"
    if engine not in BUILDERS:
        raise BadInput(f"engine is {engine!r}; expected 'auto', 'jax' or 'torch'")
    print(f"engine: {engine}" + ("" if engine == "jax" else " (JAX: pip install 'drl-workshop[jax]')"))
    trainer = BUILDERS[engine](settings)
    agent = trainer.agent

    run = Run.create("cartpole_reinforce_by_hand", asdict(settings), settings.results_dir, settings.seed)
    for _ in progress(track(trainer(), [JsonlTracker(run.folder / "metrics.jsonl")]), settings.steps):
        pass

    agent.save(run.folder / "agent", env=ENV)
    plot_run(run.folder)
    film(agent, ENV, run.folder / "videos" / "final_agent.mp4", seed=100)
    run.note(status="finished")
    summary = evaluate(agent, ENV, 20, seed=100).summary()
    print(f"evaluation {summary['mean_return']:.1f} ± {summary['std_return']:.1f}; agent, plots, video: {run.folder}")


if __name__ == "__main__":
    run_script(main, Settings)
