"""Evaluation with separate environments, a separate random stream and a frozen normalizer. Training is unaffected."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from drl.agents.agent_env import EnvOptions, env_for, is_env_of, open_vec_env, own_run
from drl.agents.load_agent import load_agent
from drl.core.contracts import Agent, VecEnv
from drl.core.errors import BadInput, EnvFailed, html_table, plural
from drl.core.golden_pairs import GoldenInputs, InputSampler, pairs_for
from drl.core.log import Episode
from drl.core.seeding import Seeds
from drl.core.setting_rules import check_whole
from drl.core.specs import ActionSpec, ObsSpec, PlainDict
from drl.envs.async_vec_env import PATIENCE
from drl.envs.atari import whole_games
from drl.envs.env_config import EnvLike
from drl.envs.env_names import WrapperLike
from drl.envs.spaces import EnvKwargs
from drl.runs.folder.finished import Finished
from drl.runs.folder.run_folder import find_agent_folder
from drl.trainer.trainer import rates

MOST_STEPS = 100_000  # default limit of environment steps, per episode of an evaluation
TIME_LIMIT = "--wrapper TimeLimit:max_episode_steps=1000 ends its episodes"  # what to type


class NotEvaluated(EnvFailed):
    """An evaluation exceeded its limit of environment steps."""

    def __init__(self, message: str, env_steps: int, inputs: GoldenInputs | None):
        super().__init__(message)
        self.env_steps: int = env_steps
        self.inputs: GoldenInputs | None = inputs


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Finished episodes and their summary, which a notebook shows as a table."""

    episodes: list[Episode]
    env_steps: int = 0  # of all environments, including idle ones; 0: not counted
    seconds: float | None = field(default=None, compare=False)  # wall time; not a metric
    # Some of the observations, for the agent's golden pairs.
    inputs: GoldenInputs | None = field(default=None, compare=False, repr=False)

    def summary(self) -> dict[str, float]:
        """Return means over the episodes; `success_rate` only if the environment defines success."""
        returns = np.array([episode.episode_return for episode in self.episodes])
        numbers = {
            "mean_return": float(returns.mean()),
            "std_return": float(returns.std()),
            "min_return": float(returns.min()),
            "max_return": float(returns.max()),
            "mean_length": float(np.mean([episode.length for episode in self.episodes])),
        }
        return numbers | rates(self.episodes) | {"episodes": len(self.episodes)}

    def __str__(self) -> str:
        return self.sentence() if self.episodes else "no episodes"

    def __repr__(self) -> str:
        return f"Evaluation({self})"

    def _repr_html_(self) -> str:
        summary = self.summary() if self.episodes else {"episodes": 0}
        return html_table([name.replace("_", " ") for name in summary], [list(summary.values())])

    def sentence(self) -> str:
        """Return the summary in one line."""
        means = self.summary()
        success = f", success rate {means['success_rate']:.0%}" if "success_rate" in means else ""
        count = plural(len(self.episodes), "episode")
        return (
            f"mean return {means['mean_return']:.2f} ± {means['std_return']:.2f} "
            f"(min {means['min_return']:.2f}, max {means['max_return']:.2f}), "
            f"mean length {means['mean_length']:.1f}{success}, {count}"
            + (f" ({len(self.episodes) / self.seconds:.3g} a second)" if self.seconds else "")
        )


def run_episodes(
    agent: Agent, envs: VecEnv, episodes: int, explore: bool = False, max_steps: int | None = None
) -> Evaluation:
    """Play exactly `episodes` episodes, equally many in every environment, so that short episodes are not favored.

    Raises `NotEvaluated` after `max_steps` steps of all environments together; None: 100,000 per episode.
    """
    quota = np.full(envs.num_envs, episodes // envs.num_envs)
    quota[: episodes % envs.num_envs] += 1
    finished: list[list[Episode]] = [[] for _ in range(envs.num_envs)]
    obs, vector_steps = envs.reset(), 0
    most = MOST_STEPS * episodes if max_steps is None else max_steps
    inputs = InputSampler(pairs_for(envs.obs_spec))
    agent.begin()
    while any(len(played) < share for played, share in zip(finished, quota, strict=True)):
        if vector_steps * envs.num_envs >= most:
            steps, ended = vector_steps * envs.num_envs, sum(map(len, finished))
            count = f"only {ended} of {plural(episodes, 'episode')}" if ended else "no episode"
            why = f"not evaluated, because {count} of {envs.env_id} ended in {plural(steps, 'step')}"
            raise NotEvaluated(why, steps, inputs.inputs())
        inputs.see(obs, envs.action_mask)
        step = envs.step(agent.action_spec.to_env(agent.decide(obs, explore, envs.action_mask)))
        obs, vector_steps = step.obs, vector_steps + 1
        if agent.recurrent:
            agent.begin(step.over)
        for episode in step.episodes:
            if len(finished[episode.env_index]) < quota[episode.env_index]:
                finished[episode.env_index].append(episode)
    episodes_played = [episode for by_env in finished for episode in by_env]
    return Evaluation(episodes_played, vector_steps * envs.num_envs, inputs=inputs.inputs())


def check_fit(agent: Agent, obs_spec: ObsSpec, action_spec: ActionSpec, env: str) -> None:
    """Raise unless the agent has these specs."""
    if (obs_spec, action_spec) != (agent.obs_spec, agent.action_spec):
        trained, has = (
            f"{spec.kind} actions of {', '.join(map(str, spec.sizes)) or spec.entries}"
            for spec in (agent.action_spec, action_spec)
        )
        raise BadInput(
            f"the agent does not fit {env}: it was trained on observations {agent.obs_spec.shape} and {trained}, {env} "
            f"has {obs_spec.shape} and {has}"
        )


@contextlib.contextmanager
def own_stream(agent: Agent, seed: int) -> Iterator[None]:
    """Give the agent a separate random stream and an empty `rnn_state`; restore them and its exploration afterwards, so
    that training is not affected."""
    training_stream, agent.rng = agent.rng, Seeds(seed).generator("evaluation-actions")
    remembered, agent.rnn_state = agent.rnn_state, None
    exploration = getattr(agent, "exploration", None)  # a custom agent may have none
    noise = None if exploration is None else exploration.state_dict()
    try:
        yield
    finally:
        agent.rng, agent.rnn_state = training_stream, remembered
        if exploration is not None:
            exploration.load_state_dict(noise)


def evaluate(
    agent: Agent | Finished | str | Path,
    env: EnvLike | None = None,
    episodes: int = 100,
    seed: int = 0,
    *,
    explore: bool = False,
    num_envs: int = 8,
    vectorization: str = "sync",
    frame_stack: int | None = None,
    env_kwargs: EnvKwargs | None = None,
    wrappers: Iterable[WrapperLike] | None = None,
    timeout: float = PATIENCE,
    prepare: Callable[[VecEnv], object] | None = None,
    max_steps: int | None = None,
    trust: bool = False,
) -> Evaluation:
    """Play `episodes` episodes and return them. `explore=True` explores as in training. Rewards are never clipped, and
    Atari games are played to the end, even if a lost life ended an episode in training.

    `agent` is an agent, a result of `train`, or anything that `load_agent` takes. `env` is anything that
    `make_vec_env` takes; None: the training environment. Environment arguments, wrappers and frame stack default to
    those of training. `prepare` is called with the environments before their first reset, for example to set
    attributes.
    `max_steps` limits the environment steps of all episodes together; None: 100,000 per episode. Beyond the limit,
    `NotEvaluated` is raised.
    `trust` allows importing modules named on the agent's card, which runs their code; runs that this account started
    do not need it.
    """
    check_whole("episodes", episodes)
    check_whole("seed", seed, 0)
    if max_steps is not None:
        check_whole("max_steps", max_steps)
    own: PlainDict | None = None
    if isinstance(agent, str | Path):
        own = own_run(find_agent_folder(agent)) if Path(agent).suffix != ".pth" else None
        player = load_agent(agent)
    else:
        player = agent.agent if isinstance(agent, Finished) else agent
    config = env_for(player, env, env_kwargs, wrappers, frame_stack, trust=trust or is_env_of(player, own))
    config = replace(config, env_kwargs=whole_games(config.env, config.env_kwargs))
    options: EnvOptions = {"vectorization": vectorization, "timeout": timeout}
    with open_vec_env(config, min(num_envs, episodes), seed, seeds_stream="evaluation", **options) as envs:
        check_fit(player, envs.obs_spec, envs.action_spec, config.env)
        if prepare is not None:
            prepare(envs)
        with own_stream(player, seed):
            started = time.perf_counter()
            played = run_episodes(player, envs, episodes, explore, max_steps)
            return replace(played, seconds=time.perf_counter() - started)
