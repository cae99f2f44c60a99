"""Checks of the trained agent in a few episodes: actions, values, normalizer."""

from typing import NamedTuple

import numpy as np

from drl.agents.agent_env import EnvOptions, open_vec_env
from drl.agents.evaluation import check_fit, own_stream
from drl.core.contracts import Agent
from drl.core.errors import plural
from drl.core.specs import Array
from drl.doctor.findings import PROBLEM, Finding, Series
from drl.doctor.run_records import RunRecords, last_fifth
from drl.doctor.update_checks import has_vanished
from drl.envs.env_config import EnvConfig

ONE_ACTION = 0.99  # share of steps
SATURATED = 0.9  # share of all action entries at a bound
BEYOND = 1.5  # times the largest possible return
CLIPPED = 0.5  # share of an entry's normalized numbers at the normalizer's limit
NUM_ENVS = 4


class AgentPlay(NamedTuple):
    """Observations and actions of the agent without exploration."""

    agent: Agent
    obs: Array  # [M, …] encoded
    actions: Array  # [M, …] in the policy's units
    rewards: Array  # [M]
    policy: Array | None  # [M, choices] probabilities of discrete actions
    values: Array | None  # [M] predicted values


def play_agent(agent: Agent, config: EnvConfig, steps: int, seed: int, vectorization: str) -> AgentPlay:
    """Let the agent play `steps` steps in a few parallel environments."""
    options: EnvOptions = {"vectorization": vectorization}
    seen: list[tuple[Array, Array, Array, Array | None, Array | None]] = []
    with open_vec_env(config, NUM_ENVS, seed, seeds_stream="evaluation", **options) as envs, own_stream(agent, seed):
        check_fit(agent, envs.obs_spec, envs.action_spec, config.env)
        obs = envs.reset()
        agent.begin()
        for _ in range(-(-steps // NUM_ENVS)):
            thoughts = agent.explain_encoded(obs, envs.action_mask)
            values = thoughts.get("value")
            if values is None and "q" in thoughts:
                values = thoughts["q"].max(axis=-1)
            action = agent.decide(obs, False, envs.action_mask)
            step = envs.step(agent.action_spec.to_env(action))
            policy = thoughts.get("policy") if agent.action_spec.kind == "discrete" else None
            seen.append((obs.copy(), action, step.reward, policy, values))
            obs = step.obs
            if agent.recurrent:
                agent.begin(step.over)
    all_obs, actions, rewards, policies, all_values = zip(*seen, strict=True)
    return AgentPlay(
        agent, *(np.concatenate(each) for each in (all_obs, actions, rewards)), *map(_joined, (policies, all_values))
    )


def _joined(parts: tuple[Array | None, ...]) -> Array | None:
    there = [part for part in parts if part is not None]
    return np.concatenate(there) if len(there) == len(parts) else None


def unused_actions(run: RunRecords, play: AgentPlay) -> Finding | None:
    """The agent almost always takes the same action."""
    spec = play.agent.action_spec
    if run.early or run.improved or spec.kind != "discrete" or spec.sizes[0] < 2:
        return None
    taken = np.bincount(play.actions.astype(int).ravel(), minlength=spec.sizes[0]) / play.actions.size
    shares = taken if play.policy is None else play.policy.mean(axis=0)
    if shares.max() < ONE_ACTION:
        return None
    seen = f"the agent takes action {shares.argmax()} in {shares.max():.1%} of {plural(len(play.actions), 'step')}"
    change = run.advice("--entropy-coef 0.01", "a larger --epsilon-decay", run.slower)
    series = Series("share of the steps", np.arange(len(shares)), shares, over="action")
    return Finding("unused-actions", PROBLEM, f"{seen}, out of {len(shares)} actions", change, series)


def saturated_actions(run: RunRecords, play: AgentPlay) -> Finding | None:
    """Most continuous actions are at a bound."""
    gradients = run.learned("actor_grad_norm")
    stuck = gradients is not None and has_vanished(gradients)  # the return may have risen a little by chance
    if run.early or (run.improved and not stuck) or play.agent.action_spec.kind != "box":
        return None
    share = float((np.abs(play.actions) >= 0.99).mean())
    if share < SATURATED:
        return None
    why = "the actor's gradient is 0" if stuck else "the return has not risen"
    seen = f"{share:.0%} of the entries of the agent's actions are at a bound, and {why}"
    change = run.advice(run.slower, "a smaller --actor-learning-rate", "--normalize-obs")
    counts, edges = np.histogram(np.clip(play.actions, -1.0, 1.0), bins=21, range=(-1.0, 1.0))
    series = Series("share of the entries", (edges[1:] + edges[:-1]) / 2, counts / counts.sum(), over="action")
    return Finding("saturated-actions", PROBLEM, seen, change, series)


def values_beyond_returns(run: RunRecords, play: AgentPlay) -> Finding | None:
    """Values exceed the return of any sequence of rewards."""
    if run.settings.get("normalize_reward") or run.setting("reward_scale", 1.0) != 1.0 or run.early:
        return None
    gamma, means = run.setting("gamma", 0.99), run.series("rollout/mean_reward")
    largest = float(max(np.abs(play.rewards).max(), 0.0 if means is None else np.abs(means.y).max()))
    allowed = largest / (1.0 - gamma) if gamma < 1 else float(np.nanmax(np.abs(run.returns)))
    heat, mood = run.series("learn/temperature"), run.series("learn/entropy")
    if heat is not None and mood is not None:  # soft values contain future entropy
        allowed += float(heat.y.max() * np.abs(mood.y).max()) / max(1.0 - gamma, 1e-3)
    learned = run.learned("mean_q", allowed)
    expected = float(np.percentile(np.abs(play.values), 90)) if play.values is not None else 0.0
    if learned is not None:
        expected = max(expected, float(np.abs(last_fifth(learned.y)).mean()))
    if expected <= BEYOND * allowed or allowed == 0:
        return None
    seen = (
        f"the agent predicts {expected:.4g}; rewards of at most {largest:.3g} with gamma {gamma:g} allow {allowed:.4g}"
    )
    double = () if run.settings.get("double") else ("--double",)
    change = run.advice(*double, "--num-critics 2", "a smaller --tau", run.slower)
    return Finding("values-beyond-returns", PROBLEM, seen, change, learned)


def stale_normalizer(run: RunRecords, play: AgentPlay) -> Finding | None:
    """Observations are outside the range that the normalizer has seen."""
    normalizer = play.agent.normalizer
    if normalizer is None or play.obs.dtype.names:
        return None
    outside = np.abs(normalizer(play.obs)).reshape(len(play.obs), -1) >= normalizer.clip - 1e-3
    shares = outside.mean(axis=0)
    if normalizer.count and shares.max() < CLIPPED:
        return None
    entry = int(shares.argmax())
    seen = (
        f"the normalizer clips {shares[entry]:.0%} of the numbers in entry {entry}: they are far from the training data"
    )
    change = "train longer with --normalize-obs, and evaluate in the training environment"
    series = Series("share that is clipped", np.arange(len(shares)), shares, over="entry of the observation")
    return Finding("stale-normalizer", PROBLEM, seen, change, series)


AGENT = (values_beyond_returns, unused_actions, saturated_actions, stale_normalizer)
