"""From names and configs to a fused learner and the agents that act with what it learns."""

from collections.abc import Sequence
from typing import Any

from drl.core.configs import ModelConfig, QModelConfig
from drl.core.errors import BadInput
from drl.core.seeding import Seeds
from drl.engines.jax.build import build_learner
from drl.engines.jax.envs.jax_env import JaxEnv
from drl.engines.jax.fused.counters import Budget
from drl.engines.jax.fused.fused_episodes import FusedEpisodes
from drl.engines.jax.fused.fused_learner import FusedLearner
from drl.engines.jax.fused.fused_off_policy import FusedOffPolicy
from drl.engines.jax.fused.fused_on_policy import FusedOnPolicy

# The one place where an algorithm's name becomes its program.
PROGRAMS: dict[str, Any] = {
    "ppo": FusedOnPolicy,
    "a2c": FusedOnPolicy,
    "reinforce": FusedEpisodes,
    "dqn": FusedOffPolicy,
}


def build_fused(
    algorithm: str,
    env: JaxEnv,
    configs: tuple[ModelConfig | QModelConfig, Any],
    seeds: Sequence[int],
    num_envs: int,
    budget: Budget,
    normalize_obs: bool = False,
    normalize_reward: bool = False,
) -> tuple[FusedLearner, list[Any]]:
    """One program for all seeds, and an agent for each."""
    specs = (env.obs_spec, env.action_spec)
    made = [build_learner(algorithm, specs, configs, Seeds(seed), normalize_obs) for seed in seeds]
    normalized = {"normalize_obs": normalize_obs, "normalize_reward": normalize_reward}
    if algorithm == "dqn":
        if any(normalized.values()):
            raise BadInput("dqn in one program takes observations as they are; use --vectorization sync to normalize")
        normalized = {}
    program = PROGRAMS[algorithm](env, made[0][1].pure, num_envs, budget, **normalized)
    params = [agent.model_state.params for agent, _ in made]
    keys = [Seeds(seed).integer("fused") for seed in seeds]
    return FusedLearner(program, params, keys), [agent for agent, _ in made]
