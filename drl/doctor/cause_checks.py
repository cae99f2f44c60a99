"""Checks of settings that prevent learning. They come first because they find causes, not symptoms."""

import gymnasium as gym

from drl.doctor.findings import PROBLEM, Finding
from drl.doctor.run_records import RunRecords
from drl.envs.env_names import split_wrapper

LATE = 0.5  # share of the budget before the first update
SMALL_REPLAY = 0.1  # share of all steps in the buffer
LEAST_CAPACITY = 5000
MOST_UPDATES = 8.0  # per environment step, for networks without layer normalization
LEAST_SAMPLES = 1.0  # times that a transition is sampled
SHORT_LIMIT = 0.2  # share of the environment's own time limit
SHORT_HORIZON = 0.1  # share of an episode
GONE = 0.01  # share of the largest learning rate that counts as zero
HIGH_EPSILON = 0.5


def failed(run: RunRecords) -> Finding | None:
    """The run ended with an error."""
    if run.record.get("status") != "failed":
        return None
    error = str(run.record.get("error", "unknown"))[:300]
    change = "read error.txt in the run's folder; drl replay RUN --episode crash replays the episode"
    if error.startswith("NonFinite"):
        change = run.advice(run.slower, "--max-grad-norm 0.5", "--normalize-reward")
    return Finding("failed", PROBLEM, error, change)


def late_learning(run: RunRecords) -> Finding | None:
    """Most of the budget is used before the first update."""
    budget, warmup = run.setting("total_timesteps", 0.0), run.setting("warmup", 0.0)
    if not budget or warmup < LATE * budget:
        return None
    seen = f"the first update comes after {warmup:,.0f} of {budget:,.0f} environment steps"
    return Finding(
        "late-learning", PROBLEM, seen, f"--warmup {max(int(budget / 50), 100)}, or a larger --total-timesteps"
    )


def small_replay(run: RunRecords) -> Finding | None:
    """The replay buffer holds only a few episodes."""
    capacity = run.setting("capacity", 0.0)
    if not capacity or capacity >= LEAST_CAPACITY or capacity >= SMALL_REPLAY * run.env_steps:
        return None
    seen = f"the replay buffer holds the last {capacity:,.0f} of {run.env_steps:,} steps, a few similar episodes"
    return Finding("small-replay", PROBLEM, seen, "--capacity 100000")


def replay_ratio(run: RunRecords) -> Finding | None:
    """Too many or too few updates per environment step."""
    rounds, batch = run.setting("train_every", 0.0), run.setting("batch_size", 0.0)
    if not rounds or not batch:
        return None
    updates = run.setting("gradient_steps", 1.0) / rounds  # per environment step
    if updates > MOST_UPDATES and not run.settings.get("layer_norm") and not run.settings.get("batch_renorm"):
        seen = f"{updates:g} updates per environment step: critics overfit the few transitions in the buffer"
        return Finding("replay-ratio-high", PROBLEM, seen, run.advice("fewer --gradient-steps", "--layer-norm"))
    if updates * batch < LEAST_SAMPLES:
        seen = f"{updates:.3g} updates of {batch:.0f} rows per step: a transition is drawn {updates * batch:.2g} times"
        return Finding("replay-ratio-low", PROBLEM, seen, "a smaller --train-every, or more --gradient-steps")
    return None


def short_time_limit(run: RunRecords) -> Finding | None:
    """A wrapper truncates episodes much earlier than the environment does."""
    wrappers, env = run.settings.get("wrappers"), run.settings.get("env")
    if not isinstance(wrappers, list) or not len(run.lengths):
        return None
    spec = gym.registry.get(str(env))
    own = (spec.max_episode_steps if spec else None) or 0
    for text in wrappers:
        name, arguments = split_wrapper(text) if isinstance(text, str) else ("", {})
        limit = arguments.get("max_episode_steps")
        if name.rpartition(":")[2] != "TimeLimit" or not isinstance(limit, int):
            continue
        truncated = 1.0 - run.terminated.mean()
        if truncated >= 0.9 and (limit < SHORT_LIMIT * own or limit <= 10):
            seen = f"{truncated:.0%} of episodes are cut off after {limit} steps" + (
                f"; {env} has {own}" if own else ""
            )
            return Finding("short-time-limit", PROBLEM, seen, f"--wrapper TimeLimit:max_episode_steps={own or 1000}")
    return None


def short_discount(run: RunRecords) -> Finding | None:
    """The discount horizon is a small part of an episode."""
    gamma = run.setting("gamma", 0.99)
    if gamma >= 0.9 or not len(run.lengths):
        return None
    horizon, length = 1.0 / (1.0 - gamma), float(run.lengths.mean())
    if horizon >= SHORT_HORIZON * length:
        return None
    seen = f"gamma is {gamma:g}: the agent looks {horizon:.3g} steps ahead, and an episode has {length:.3g}"
    return Finding("short-discount", PROBLEM, seen, "--gamma 0.99")


def learning_rate_gone(run: RunRecords) -> Finding | None:
    """The learning rate was almost 0 for a long time."""
    rate = run.series("trainer/learning_rate")
    if rate is None or rate.y[0] <= 0:
        return None
    gone = rate.y <= GONE * rate.y.max()
    share = float(gone.mean())
    if share < 0.3 or not gone[-1]:
        return None
    seen = f"the learning rate was below 1 % of its highest value in {share:.0%} of the learning steps"
    change = "--learning-rate-schedule linear, which ends with the budget, or constant"
    return Finding("learning-rate-gone", PROBLEM, seen, change, rate)


def high_epsilon(run: RunRecords) -> Finding | None:
    """Many actions are still random at the end."""
    epsilon = run.series("trainer/epsilon", HIGH_EPSILON)
    if epsilon is None or run.used < 0.9 or epsilon.y[-1] <= HIGH_EPSILON:
        return None
    seen = f"{epsilon.y[-1]:.0%} of actions are random at the end of the budget"
    change = f"--epsilon-schedule linear --epsilon-decay {max(int(run.env_steps / 5), 1)} --epsilon-end 0.05"
    return Finding("high-epsilon", PROBLEM, seen, change, epsilon)


CAUSES = (
    failed,
    late_learning,
    small_replay,
    replay_ratio,
    short_time_limit,
    short_discount,
    learning_rate_gone,
    high_epsilon,
)
