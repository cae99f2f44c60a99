"""Build a fused learner and its agents from names and configs."""

from collections.abc import Sequence

from drl.core.algorithms import find_algorithm
from drl.core.configs import Config
from drl.core.errors import BadInput
from drl.core.network_parts import resolve
from drl.core.seeding import Seeds
from drl.core.start_weights import Start
from drl.engines.jax.agents import JaxAgent
from drl.engines.jax.build import build_learner
from drl.engines.jax.envs.jax_env import JaxEnv
from drl.engines.jax.fused.counters import Budget, Setup, check_traceable
from drl.engines.jax.fused.fused_learner import FusedLearner


def build_fused(
    algorithm: str,
    env: JaxEnv,
    configs: Sequence[Config],  # of the model, the algorithm, and optionally its buffer and exploration
    seeds: Sequence[int],
    num_envs: int,
    budget: Budget,
    normalize_obs: bool = False,
    normalize_reward: bool = False,
    start: Start | None = None,  # weights to begin with
) -> tuple[FusedLearner, list[JaxAgent]]:
    """One program for all seeds, and one agent per seed."""
    record = find_algorithm(algorithm)
    if record.fused is None:
        raise BadInput(f"{algorithm} cannot be compiled together with its environment; use --vectorization sync")
    model, config, *rest = configs
    buffer, exploration = rest or (record.buffer.config(), record.exploration())
    if getattr(buffer, "checkpoint_rows", None) is not None:
        raise BadInput("checkpoint_rows is not for a compiled program, whose whole state is stored; leave it out")
    check_traceable(config)
    check_traceable(exploration)
    made = [build_learner(algorithm, env, (model, config), Seeds(seed), normalize_obs, start=start) for seed in seeds]
    setup = Setup(env, num_envs, budget, buffer, exploration, normalize_obs, normalize_reward)
    program = resolve(record.fused).make(made[0][1].pure, setup)  # type: ignore[attr-defined]
    params = [agent.model_state.params for agent, _ in made]
    keys = [Seeds(seed).integer("fused") for seed in seeds]
    return FusedLearner(program, params, keys), [agent for agent, _ in made]
