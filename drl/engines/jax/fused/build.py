"""From names and configs to a fused learner and the agents that act with what it learns."""

from collections.abc import Sequence
from typing import Any

from drl.core.configs import ModelConfig, QModelConfig
from drl.core.errors import BadInput
from drl.core.seeding import Seeds
from drl.engines.jax.build import build_learner
from drl.engines.jax.fused.clock import Budget
from drl.engines.jax.fused.episodes import FusedEpisodes
from drl.engines.jax.fused.learner import FusedLearner
from drl.engines.jax.fused.off_policy import FusedOffPolicy
from drl.engines.jax.fused.on_policy import FusedOnPolicy
from drl.engines.jax.worlds.world_contract import JaxWorld

# The one place where an algorithm's name becomes its program.
PROGRAMS: dict[str, Any] = {
    "ppo": FusedOnPolicy,
    "a2c": FusedOnPolicy,
    "reinforce": FusedEpisodes,
    "dqn": FusedOffPolicy,
}


def build_fused(
    algorithm: str,
    world: JaxWorld,
    configs: tuple[ModelConfig | QModelConfig, Any],
    seeds: Sequence[int],
    num_envs: int,
    budget: Budget,
    normalise_obs: bool = False,
    normalise_reward: bool = False,
) -> tuple[FusedLearner, list[Any]]:
    """One program for all seeds, and an agent for each."""
    specs = (world.obs_spec, world.action_spec)
    made = [build_learner(algorithm, specs, configs, Seeds(seed), normalise_obs) for seed in seeds]
    normalised = {"normalise_obs": normalise_obs, "normalise_reward": normalise_reward}
    if algorithm == "dqn":
        if any(normalised.values()):
            raise BadInput("dqn in one program takes observations as they are; use --world-engine sync to normalise")
        normalised = {}
    program = PROGRAMS[algorithm](world, made[0][1].pure, num_envs, budget, **normalised)
    params = [agent.brain.params for agent, _ in made]
    keys = [Seeds(seed).integer("fused") for seed in seeds]
    return FusedLearner(program, params, keys), [agent for agent, _ in made]
