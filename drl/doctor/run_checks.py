"""Checks of a run's records: settings that prevent learning, returns, update metrics.

Settings come first because they are causes, losses and gradients last because they are usually symptoms.
"""

import math

import gymnasium as gym
import numpy as np

from drl.core.specs import ActionSpec
from drl.doctor.findings import ADVICE, PROBLEM, Finding, Series
from drl.doctor.run_records import RunRecords, first_fifth, halves, is_better, last_fifth
from drl.envs.env_names import split_wrapper
from drl.tracking.curves import trailing_mean

# Settings
LATE = 0.5  # share of the budget before the first update
SMALL_REPLAY = 0.1  # share of all steps in the buffer
LEAST_CAPACITY = 5000
MOST_UPDATES = 8.0  # per environment step, for networks without layer normalization
LEAST_SAMPLES = 1.0  # times that a transition is sampled
SHORT_LIMIT = 0.2  # share of the environment's own time limit
SHORT_HORIZON = 0.1  # share of an episode
GONE = 0.01  # share of the largest learning rate that counts as zero
HIGH_EPSILON = 0.5

# Returns
SAME = 50  # episodes with equal returns
FALL = 0.5  # lost share of the gain
SURE = 5.0  # standard errors
FIRST = 20  # episodes at the start of a run
MANY_UPDATES, MANY_STEPS = 1000, 20_000  # progress is expected after either
APART = 0.5  # share of the range of returns between training and evaluation

# Update metrics
LARGE_KL, HUGE_KL = 0.1, 1.0  # mean per learning step; LARGE_KL counts in a tenth of them, and at least twice
SURE_ROWS = 3  # learning steps that suffice for clear faults
TINY_KL = 1e-7
MUCH_CLIPPED = 0.5
DEAD, UNIFORM = 0.02, 0.995  # shares of the maximum entropy
THIN, WIDE = 0.02, 3.0  # standard deviations of a Gaussian, in units in which [−1, 1] spans the bounds
LOG_OF_NORMAL = 0.5 * math.log(2 * math.pi * math.e)  # entropy of a normal distribution of deviation 1
EXPLAINS_NOTHING = 0.02  # 90 % quantile of explained_variance, after this much training of the critic:
CRITIC_UPDATES, CRITIC_EPISODES = 400, 50
EXPLODED, VANISHED = 1000.0, 1e-7  # gradient norms: relative to the first ones, absolute
GROWN = 100.0  # growth of the loss beyond the growth of the returns
HOT = 10.0  # times the initial temperature


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
    if not isinstance(wrappers, list) or not len(run.episodes.lengths):
        return None
    spec = gym.registry.get(str(env))
    own = (spec.max_episode_steps if spec else None) or 0
    for text in wrappers:
        name, arguments = split_wrapper(text) if isinstance(text, str) else ("", {})
        limit = arguments.get("max_episode_steps")
        if name.rpartition(":")[2] != "TimeLimit" or not isinstance(limit, int):
            continue
        truncated = 1.0 - run.episodes.terminated.mean()
        if truncated >= 0.9 and (limit < SHORT_LIMIT * own or limit <= 10):
            seen = f"{truncated:.0%} of episodes are cut off after {limit} steps" + (
                f"; {env} has {own}" if own else ""
            )
            return Finding("short-time-limit", PROBLEM, seen, f"--wrapper TimeLimit:max_episode_steps={own or 1000}")
    return None


def short_discount(run: RunRecords) -> Finding | None:
    """The discount horizon is a small part of an episode."""
    gamma = run.setting("gamma", 0.99)
    if gamma >= 0.9 or not len(run.episodes.lengths):
        return None
    horizon, length = 1.0 / (1.0 - gamma), float(run.episodes.lengths.mean())
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
    cut = 1.0 - run.episodes.terminated.astype(float)
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


def kl_spikes(run: RunRecords) -> Finding | None:
    """Updates change the policy too much."""
    kl = run.learned("approx_kl", LARGE_KL, rows=SURE_ROWS)
    if kl is None:
        return None
    large, largest = float((kl.y > LARGE_KL).mean()), float(kl.y.max())
    often = large >= 0.1 and (kl.y > LARGE_KL).sum() >= 2 and len(kl.y) >= run.least_rows
    if not often and largest < HUGE_KL:
        return None
    seen = f"approx_kl is above {LARGE_KL} in {large:.0%} of the learning steps, up to {largest:.3g}: the policy jumps"
    return Finding("kl-spikes", PROBLEM, seen, run.advice(run.slower, "fewer --epochs", "--target-kl 0.02"), kl)


def much_clipped(run: RunRecords) -> Finding | None:
    """Most ratios are clipped."""
    clipped = run.learned("clip_fraction", MUCH_CLIPPED)
    if clipped is None or (mean := float(halves(clipped)[1].mean())) <= MUCH_CLIPPED:
        return None
    seen = f"{mean:.0%} of the ratios are clipped in the second half: most samples have no effect"
    change = run.advice("--clip-range 0.2", run.slower, "fewer --epochs")
    return Finding("clip-fraction", PROBLEM, seen, change, clipped)


def frozen_policy(run: RunRecords) -> Finding | None:
    """Updates hardly change the policy."""
    kl = run.learned("approx_kl")
    if kl is None or run.improved or kl.y.max() > 1e-3 or (median := float(np.median(kl.y))) > TINY_KL:
        return None
    seen = f"the median approx_kl is {median:.2g}: the policy does not change"
    change = f"a larger --learning-rate (it is {run.setting('learning_rate', math.nan):g}), such as 3e-4"
    return Finding("frozen-policy", PROBLEM, seen, change, kl)


def entropy(run: RunRecords) -> Finding | None:
    """The policy is deterministic too early, or stays random."""
    series, spec = run.learned("entropy"), run.action_spec
    if series is None or spec is None or run.series("learn/temperature") is not None:
        return None
    last = float(last_fifth(series.y).mean())
    if spec.kind == "box":
        first = math.exp(min(float(series.y[0]) / spec.entries, 50.0) - LOG_OF_NORMAL)
        deviation = math.exp(min(last / spec.entries, 50.0) - LOG_OF_NORMAL)
        dead, exploded = deviation < THIN, deviation > WIDE
        seen = f"the policy's standard deviation is {deviation:.3g}; initially it was {first:.3g}"
    else:
        most = _most_entropy(spec)
        dead, exploded = last < DEAD * most, last > UNIFORM * most
        seen = f"the entropy is {last:.3g}; the maximum for these actions is {most:.3g}"
    if dead and not run.improved:
        change = run.advice(f"--entropy-coef 0.01 (it is {run.setting('entropy_coef', 0.0):g})", run.slower)
        return Finding("dead-entropy", PROBLEM, f"{seen}, and the return has not risen", change, series)
    if not exploded or (spec.kind != "box" and run.improved) or frozen_policy(run) is not None:
        return None
    if (coefficient := run.setting("entropy_coef", 0.0)) or spec.kind == "box":
        width = ("--log-std-init 0",) if spec.kind == "box" else ()
        change = run.advice(f"a smaller --entropy-coef (it is {coefficient:g})", *width)
        return Finding("exploding-entropy", PROBLEM, f"{seen}: its actions are random", change, series)
    change = "check that rewards distinguish good from bad actions; a larger --learning-rate"
    return Finding("uniform-policy", PROBLEM, f"{seen}: it has learned no preference", change, series)


def _most_entropy(spec: ActionSpec) -> float:
    return sum(math.log(size) for size in spec.sizes or (2,) * spec.entries)


def critic_explains_nothing(run: RunRecords) -> Finding | None:
    """The critic's values do not follow the returns."""
    fit = run.learned("explained_variance", 0.0)
    if fit is None or run.updates < CRITIC_UPDATES or len(run.returns) < CRITIC_EPISODES or np.ptp(run.returns) == 0:
        return None
    best = float(np.percentile(halves(fit)[1], 90))
    if best > EXPLAINS_NOTHING:
        return None
    seen = f"explained_variance is below {best:.3g} in 90 % of the second half: the critic predicts nothing"
    change = run.advice("--value-coef 0.5", "--normalize-reward", "a larger --critic-learning-rate")
    return Finding("critic-explains-nothing", PROBLEM, seen, change, fit)


def hot(run: RunRecords) -> Finding | None:
    """SAC's temperature rises without a better return."""
    temperature = run.learned("temperature")
    if temperature is None:
        return None
    first, last = float(temperature.y[0]), float(last_fifth(temperature.y).mean())
    if last < HOT * max(first, 1e-3) or run.improved:
        return None
    seen = f"the temperature rose from {first:.3g} to {last:.3g}: entropy outweighs the reward"
    change = run.advice("a lower --target-entropy", "--no-learn-temperature")
    return Finding("exploding-temperature", PROBLEM, seen, change, temperature)


def growing_loss(run: RunRecords) -> Finding | None:
    """A loss grows more than the returns."""
    for name in ("loss", "value_loss", "critic_loss"):
        losses = run.learned(name)
        if losses is None or not len(run.returns):
            continue
        first, last = float(np.median(first_fifth(losses.y))), float(np.median(last_fifth(losses.y)))
        returns = np.abs(run.returns) + 1e-3
        expected = max(1.0, float(np.mean(last_fifth(returns)) / np.mean(first_fifth(returns)))) ** 2
        if first > 0 and last > GROWN * expected * first:
            seen = f"{name} grew from {first:.3g} to {last:.3g}; the returns explain a factor of {expected:.3g}"
            change = run.advice(run.slower, "a smaller --tau", "--max-grad-norm 1", "--normalize-reward")
            return Finding("growing-loss", PROBLEM, seen, change, losses)
    return None


def gradients(run: RunRecords) -> Finding | None:
    """Gradients explode or vanish."""
    for name in ("grad_norm", "critic_grad_norm", "actor_grad_norm"):
        norms = run.learned(name)
        if norms is None:
            continue
        first, last = float(np.median(first_fifth(norms.y))), halves(norms)[1]
        if last.max() > EXPLODED * max(first, VANISHED):
            seen = f"{name} reached {last.max():.3g}; the first ones were about {first:.3g}"
            change = run.advice(run.slower, "--max-grad-norm 0.5", "--normalize-reward")
            return Finding("exploding-gradients", PROBLEM, seen, change, norms)
        if has_vanished(norms):
            seen = f"the median {name} of the second half is {np.median(last):.2g}: learning has stopped"
            change = f"{run.advice(run.slower, '--activation tanh')}; check that rewards differ: drl doctor ENV"
            return Finding("zero-gradients", PROBLEM, seen, change, norms)
    return None


def has_vanished(norms: Series) -> bool:
    """Whether most gradients of the second half are 0."""
    return bool(np.median(halves(norms)[1]) < VANISHED)


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
RETURNS = (no_reward, constant_return, collapse, truncated_episodes, evaluation_apart)
UPDATES = (kl_spikes, much_clipped, frozen_policy, entropy, critic_explains_nothing, hot)
LOSSES = (growing_loss, gradients)  # last, because they are usually symptoms
