"""Checks of returns: no reward, constant returns, a collapse, an evaluation far from training."""

import math

import numpy as np

from drl.doctor.findings import ADVICE, PROBLEM, Finding, Series
from drl.doctor.run_records import RunRecords, first_fifth, is_better, last_fifth
from drl.tracking.curves import trailing_mean

SAME = 50  # episodes with equal returns
FALL = 0.5  # lost share of the gain
SURE = 5.0  # standard errors
FIRST = 20  # episodes at the start of a run
MANY_UPDATES, MANY_STEPS = 1000, 20_000  # progress is expected after either
APART = 0.5  # share of the range of returns between training and evaluation


def no_reward(run: RunRecords) -> Finding | None:
    """No episode had a reward."""
    if run.early:
        return None
    returns, rewards = run.returns, run.series("rollout/mean_reward")
    if np.any(returns != 0) or (rewards is not None and np.any(rewards.y != 0)):
        return None
    seen = f"all {len(returns):,} episodes have a return of 0: there is nothing to learn from"
    change = f"check the reward with drl doctor ENV; also reward progress; {_explore(run)}"
    return Finding("no-reward", PROBLEM, seen, change, rewards)


def constant_return(run: RunRecords) -> Finding | None:
    """All episodes have the same return."""
    returns = run.returns
    if len(returns) < SAME or np.ptp(returns) != 0 or returns[0] == 0 or run.solved:
        return None
    seen = f"all {len(returns):,} episodes have the same return, {returns[0]:g}: no action was better than another"
    change = f"{_explore(run)}; also reward progress; start episodes nearer to the goal"
    return Finding("constant-return", PROBLEM, seen, change, run.smooth_returns())


def _explore(run: RunRecords) -> str:
    return "explore more: " + run.advice("--entropy-coef 0.05", "a larger --epsilon-decay", "a larger --noise-sigma")


def collapse(run: RunRecords) -> Finding | None:
    """The return was much better earlier."""
    count = len(run.returns)
    if run.early or count < SAME:
        return None
    smooth, window = run.smooth_returns(), max(10, count // 10)
    curve = smooth.y[window - 1 :]
    best = int(np.nanargmax(curve))
    high, first, last = float(curve[best]), float(curve[0]), float(curve[-1])
    error = float(np.nanstd(run.returns[best : best + window])) / math.sqrt(window)
    error += float(np.nanstd(run.returns[-window:])) / math.sqrt(window)
    gained, lost = high - min(first, last), high - last
    if high - first < SURE * error or lost < FALL * gained or lost <= SURE * error:
        return None
    seen = f"the return fell from {high:.4g} (mean of {window} episodes) to {last:.4g}; it began at {first:.4g}"
    slower = run.advice(run.slower, "--learning-rate-schedule linear", "--target-kl 0.02")
    change = f"{slower}; the best agent is saved: drl evaluate RUN --which best"
    return Finding("collapse", PROBLEM, seen, change, smooth)


def truncated_episodes(run: RunRecords) -> Finding | None:
    """More and more episodes are truncated while the return does not rise: the agent learns to stall."""
    if run.early or run.improved:
        return None
    cut = 1.0 - run.terminated.astype(float)
    before, after = first_fifth(cut).mean(), last_fifth(cut).mean()
    if before > 0.5 or after < 0.9:
        return None
    seen = f"{after:.0%} of episodes are truncated now ({before:.0%} at first), and the return has not risen"
    change = "a small cost per step in the reward, or a longer --wrapper TimeLimit:max_episode_steps=…"
    share = Series("share that is truncated", run.smooth_returns().x, trailing_mean(cut, max(10, len(cut) // 10)))
    return Finding("truncated-episodes", PROBLEM, seen, change, share)


def evaluation_apart(run: RunRecords) -> Finding | None:
    """Evaluation and training differ by more than chance."""
    evaluations = run.evaluations()
    if run.early or not evaluations:
        return None
    row, numbers = evaluations[-1]
    try:
        mean, deviation, episodes = (float(numbers[name]) for name in ("mean_return", "std_return", "episodes"))
        trained, window = float(row["recent/mean_ep_return"]), int(row["recent/window"])
    except (KeyError, TypeError, ValueError):
        return None
    recent = run.returns[-window:] if row is run.rows[-1] else run.returns
    span = float(np.nanpercentile(run.returns, 95) - np.nanpercentile(run.returns, 5))
    error = math.sqrt(deviation**2 / max(episodes, 1) + float(np.nanvar(recent)) / max(window, 1))
    if trained - mean < max(APART * span, 3 * error, 1e-9):
        return None
    seen = f"the evaluation reached {mean:.4g} ± {deviation:.2g}, the last {window} episodes of training {trained:.4g}"
    memory = run.advice("--frame-stack 4", "--recurrent gru")
    change = (
        f"the agent may observe too little ({memory}) and depend on random actions; then drl evaluate RUN --sampled is "
        "as good as training; if not, the environment or the normalizer differs"
    )
    x, y = np.array([row["env_steps"] for row, _ in evaluations]), [each["mean_return"] for _, each in evaluations]
    return Finding("evaluation-below-training", PROBLEM, seen, change, Series("evaluation/mean_return", x, np.array(y)))


def no_progress(run: RunRecords) -> Finding | None:
    """The whole budget is used without a better return. Only for runs without other findings."""
    returns, first = run.returns, run.returns[:FIRST]
    if run.early or run.used < 1.0 or run.improved or run.begins_trained or len(returns) < SAME:
        return None
    if (run.updates < MANY_UPDATES and run.env_steps < MANY_STEPS) or np.ptp(returns) == 0:
        return None
    evaluated = [numbers.get("mean_return") for _, numbers in run.evaluations()[-1:]]  # without exploration
    enough = float(np.nanmean(first) + 3 * np.nanstd(first) / math.sqrt(FIRST))
    if is_better(first, last_fifth(returns)) or any(isinstance(x, float) and x > enough for x in evaluated):
        return None
    before, after = (float(np.nanmean(part(returns))) for part in (first_fifth, last_fifth))
    seen = f"the return has not risen over the whole budget: {before:.4g} at first, {after:.4g} at the end"
    change = (
        "drl doctor ENV checks whether actions affect observations and rewards; if they do, try a larger "
        "--total-timesteps or a preset's settings; nothing is wrong if no policy can be better than the first one"
    )
    return Finding("no-progress", ADVICE, seen, change, run.smooth_returns())


RETURNS = (no_reward, constant_return, collapse, truncated_episodes, evaluation_apart)
