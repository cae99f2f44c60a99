"""Checks of a run's records and of its agent's play.

Settings come first because they are causes, losses and gradients last because they are usually symptoms.
"""

import math
from collections.abc import Iterator

import gymnasium as gym
import numpy as np

from drl.core.errors import plural
from drl.doctor.findings import ADVICE, PROBLEM, Finding, Series
from drl.doctor.run_records import AgentPlay, RunRecords, first_fifth, is_better, last_fifth, last_half
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

# The agent's play
ONE_ACTION = 0.99  # share of steps
SATURATED = 0.9  # share of all action entries at a bound
BEYOND = 1.5  # times the largest possible return
CLIPPED = 0.5  # share of an entry's normalized numbers at the normalizer's limit


def run_findings(run: RunRecords, play: AgentPlay | None) -> Iterator[Finding]:
    """Yield findings, causes first. `play` is None if the agent cannot play."""
    checks = (_replay, _horizon, _schedules, _returns, _evaluations, _policy_updates, _entropy, _critic)
    for check in checks:
        yield from check(run)
    if play is not None:
        yield from _values(run, play)
        yield from _actions(run, play)
        yield from _normalizer(play)
    yield from _losses(run)
    yield from _gradients(run)


def _replay(run: RunRecords) -> Iterator[Finding]:
    """Check the error of a failed run, the warmup, the replay buffer and the replay ratio."""
    if run.record.get("status") == "failed":
        error = str(run.record.get("error", "unknown"))[:300]
        change = "read error.txt in the run's folder; drl replay RUN --episode crash replays the episode"
        if error.startswith("NonFinite"):
            change = run.advice(run.slower, "--max-grad-norm 0.5", "--normalize-reward")
        yield Finding("failed", PROBLEM, error, change)
    budget, warmup = run.setting("total_timesteps", 0.0), run.setting("warmup", 0.0)
    if budget and warmup >= LATE * budget:
        seen = f"the first update comes after {warmup:,.0f} of {budget:,.0f} environment steps"
        change = f"--warmup {max(int(budget / 50), 100)}, or a larger --total-timesteps"
        yield Finding("late-learning", PROBLEM, seen, change)
    capacity = run.setting("capacity", 0.0)
    if capacity and capacity < min(LEAST_CAPACITY, SMALL_REPLAY * run.env_steps):
        seen = f"the replay buffer holds the last {capacity:,.0f} of {run.env_steps:,} steps, a few similar episodes"
        yield Finding("small-replay", PROBLEM, seen, "--capacity 100000")
    rounds, batch = run.setting("train_every", 0.0), run.setting("batch_size", 0.0)
    if not rounds or not batch:
        return
    updates = run.setting("gradient_steps", 1.0) / rounds  # per environment step
    if updates > MOST_UPDATES and not run.settings.get("layer_norm") and not run.settings.get("batch_renorm"):
        seen = f"{updates:g} updates per environment step: critics overfit the few transitions in the buffer"
        yield Finding("replay-ratio-high", PROBLEM, seen, run.advice("fewer --gradient-steps", "--layer-norm"))
    elif updates * batch < LEAST_SAMPLES:
        seen = f"{updates:.3g} updates of {batch:.0f} rows per step: a transition is drawn {updates * batch:.2g} times"
        yield Finding("replay-ratio-low", PROBLEM, seen, "a smaller --train-every, or more --gradient-steps")


def _horizon(run: RunRecords) -> Iterator[Finding]:
    """Check time limits of wrappers and the discount."""
    if not len(run.episodes.lengths):
        return
    wrappers, env = run.settings.get("wrappers"), run.settings.get("env")
    spec = gym.registry.get(str(env))
    own = (spec.max_episode_steps if spec else None) or 0
    truncated = 1.0 - run.episodes.terminated.mean()
    for text in wrappers if isinstance(wrappers, list) else ():
        name, arguments = split_wrapper(text) if isinstance(text, str) else ("", {})
        limit = arguments.get("max_episode_steps")
        if name.rpartition(":")[2] != "TimeLimit" or not isinstance(limit, int):
            continue
        if truncated >= 0.9 and (limit < SHORT_LIMIT * own or limit <= 10):
            seen = f"{truncated:.0%} of episodes are cut off after {limit} steps" + (
                f"; {env} has {own}" if own else ""
            )
            change = f"--wrapper TimeLimit:max_episode_steps={own or 1000}"
            yield Finding("short-time-limit", PROBLEM, seen, change)
            break
    gamma, length = run.setting("gamma", 0.99), float(run.episodes.lengths.mean())
    if gamma < 0.9 and (horizon := 1.0 / (1.0 - gamma)) < SHORT_HORIZON * length:
        seen = f"gamma is {gamma:g}: the agent looks {horizon:.3g} steps ahead, and an episode has {length:.3g}"
        yield Finding("short-discount", PROBLEM, seen, "--gamma 0.99")


def _schedules(run: RunRecords) -> Iterator[Finding]:
    """Check for a learning rate of almost 0 for a long time, and an ε that stays high."""
    rate = run.series("trainer/learning_rate")
    if rate is not None and rate.y[0] > 0:
        gone = rate.y <= GONE * rate.y.max()
        if (share := float(gone.mean())) >= 0.3 and gone[-1]:
            seen = f"the learning rate was below 1 % of its highest value in {share:.0%} of the learning steps"
            change = "--learning-rate-schedule linear, which ends with the budget, or constant"
            yield Finding("learning-rate-gone", PROBLEM, seen, change, rate)
    epsilon = run.series("trainer/epsilon", HIGH_EPSILON)
    if epsilon is not None and run.used >= 0.9 and epsilon.y[-1] > HIGH_EPSILON:
        seen = f"{epsilon.y[-1]:.0%} of actions are random at the end of the budget"
        change = f"--epsilon-schedule linear --epsilon-decay {max(int(run.env_steps / 5), 1)} --epsilon-end 0.05"
        yield Finding("high-epsilon", PROBLEM, seen, change, epsilon)


def _returns(run: RunRecords) -> Iterator[Finding]:
    """Check for returns that are 0 or constant, that collapse, or that end in more and more truncations."""
    returns, count, smooth = run.returns, len(run.returns), run.smooth_returns()
    explore = "explore more: " + run.advice("--entropy-coef 0.05", "a larger --epsilon-decay", "a larger --noise-sigma")
    rewards = run.series("rollout/mean_reward")
    if not run.early and not np.any(returns != 0) and (rewards is None or not np.any(rewards.y != 0)):
        seen = f"all {count:,} episodes have a return of 0: there is nothing to learn from"
        change = f"check the reward with drl doctor ENV; also reward progress; {explore}"
        yield Finding("no-reward", PROBLEM, seen, change, rewards)
    if count >= SAME and np.ptp(returns) == 0 and returns[0] != 0 and not run.solved:
        seen = f"all {count:,} episodes have the same return, {returns[0]:g}: no action was better than another"
        change = f"{explore}; also reward progress; start episodes nearer to the goal"
        yield Finding("constant-return", PROBLEM, seen, change, smooth)
    window = max(10, count // 10)
    if not run.early and count >= SAME:
        curve = smooth.y[window - 1 :]
        best = int(np.nanargmax(curve))
        high, first, last = float(curve[best]), float(curve[0]), float(curve[-1])
        error = float(np.nanstd(returns[best : best + window]) + np.nanstd(returns[-window:])) / math.sqrt(window)
        gained, lost = high - min(first, last), high - last
        if high - first >= SURE * error and lost >= FALL * gained and lost > SURE * error:
            seen = f"the return fell from {high:.4g} (mean of {window} episodes) to {last:.4g}; it began at {first:.4g}"
            slower = run.advice(run.slower, "--learning-rate-schedule linear", "--target-kl 0.02")
            change = f"{slower}; the best agent is saved: drl evaluate RUN --which best"
            yield Finding("collapse", PROBLEM, seen, change, smooth)
    if run.early or run.improved:
        return
    cut = 1.0 - run.episodes.terminated.astype(float)
    before, after = first_fifth(cut).mean(), last_fifth(cut).mean()
    if before <= 0.5 and after >= 0.9:
        seen = f"{after:.0%} of episodes are truncated now ({before:.0%} at first), and the return has not risen"
        change = "a small cost per step in the reward, or a longer --wrapper TimeLimit:max_episode_steps=…"
        share = Series("share that is truncated", smooth.x, trailing_mean(cut, window))
        yield Finding("truncated-episodes", PROBLEM, seen, change, share)


def _evaluations(run: RunRecords) -> Iterator[Finding]:
    """Check whether evaluation and training differ by more than chance."""
    evaluations = run.evaluations()
    if run.early or not evaluations:
        return
    row, numbers = evaluations[-1]
    try:
        mean, deviation, episodes = (float(numbers[name]) for name in ("mean_return", "std_return", "episodes"))
        trained, window = float(row["recent/mean_ep_return"]), int(row["recent/window"])
    except (KeyError, TypeError, ValueError):
        return
    recent = run.returns[-window:] if row is run.rows[-1] else run.returns
    span = float(np.nanpercentile(run.returns, 95) - np.nanpercentile(run.returns, 5))
    error = math.sqrt(deviation**2 / max(episodes, 1) + float(np.nanvar(recent)) / max(window, 1))
    if trained - mean < max(APART * span, 3 * error, 1e-9):
        return
    seen = f"the evaluation reached {mean:.4g} ± {deviation:.2g}, the last {window} episodes of training {trained:.4g}"
    memory = run.advice("--frame-stack 4", "--recurrent gru")
    change = (
        f"the agent may observe too little ({memory}) and depend on random actions; then drl evaluate RUN --sampled is "
        "as good as training; if not, the environment or the normalizer differs"
    )
    x, y = np.array([row["env_steps"] for row, _ in evaluations]), [each["mean_return"] for _, each in evaluations]
    yield Finding("evaluation-below-training", PROBLEM, seen, change, Series("evaluation/mean_return", x, np.array(y)))


def no_progress(run: RunRecords) -> Iterator[Finding]:
    """Check whether the whole budget is used without a better return. Only for runs without other findings."""
    returns, first = run.returns, run.returns[:FIRST]
    begins_trained = run.settings.get("from_agent") or run.record.get("forked_from")
    if run.early or run.used < 1.0 or run.improved or begins_trained or len(returns) < SAME:
        return
    if (run.updates < MANY_UPDATES and run.env_steps < MANY_STEPS) or np.ptp(returns) == 0:
        return
    evaluated = [numbers.get("mean_return") for _, numbers in run.evaluations()[-1:]]  # without exploration
    enough = float(np.nanmean(first) + 3 * np.nanstd(first) / math.sqrt(FIRST))
    if is_better(first, last_fifth(returns)) or any(isinstance(x, float) and x > enough for x in evaluated):
        return
    before, after = (float(np.nanmean(part(returns))) for part in (first_fifth, last_fifth))
    seen = f"the return has not risen over the whole budget: {before:.4g} at first, {after:.4g} at the end"
    change = (
        "drl doctor ENV checks whether actions affect observations and rewards; if they do, try a larger "
        "--total-timesteps or a preset's settings; nothing is wrong if no policy can be better than the first one"
    )
    yield Finding("no-progress", ADVICE, seen, change, run.smooth_returns())


def _policy_updates(run: RunRecords) -> Iterator[Finding]:
    """Check for updates that change the policy too much or hardly at all."""
    kl = run.learned("approx_kl", LARGE_KL, rows=SURE_ROWS)
    if kl is not None:
        large, largest = kl.y > LARGE_KL, float(kl.y.max())
        often = large.mean() >= 0.1 and large.sum() >= 2 and len(kl.y) >= run.least_rows
        if often or largest >= HUGE_KL:
            share = f"{large.mean():.0%} of the learning steps, up to {largest:.3g}"
            change = run.advice(run.slower, "fewer --epochs", "--target-kl 0.02")
            seen = f"approx_kl is above {LARGE_KL} in {share}: the policy jumps"
            yield Finding("kl-spikes", PROBLEM, seen, change, kl)
    clipped = run.learned("clip_fraction", MUCH_CLIPPED)
    if clipped is not None and (mean := float(last_half(clipped).mean())) > MUCH_CLIPPED:
        seen = f"{mean:.0%} of the ratios are clipped in the second half: most samples have no effect"
        change = run.advice("--clip-range 0.2", run.slower, "fewer --epochs")
        yield Finding("clip-fraction", PROBLEM, seen, change, clipped)
    if _is_frozen(run) and (kl := run.learned("approx_kl")) is not None:
        seen = f"the median approx_kl is {np.median(kl.y):.2g}: the policy does not change"
        change = f"a larger --learning-rate (it is {run.setting('learning_rate', math.nan):g}), such as 3e-4"
        yield Finding("frozen-policy", PROBLEM, seen, change, kl)


def _is_frozen(run: RunRecords) -> bool:
    kl = run.learned("approx_kl")
    return kl is not None and not run.improved and kl.y.max() <= 1e-3 and bool(np.median(kl.y) <= TINY_KL)


def _entropy(run: RunRecords) -> Iterator[Finding]:
    """Check for a policy that is deterministic too early, or stays random."""
    series, spec = run.learned("entropy"), run.action_spec
    if series is None or spec is None or run.series("learn/temperature") is not None:
        return
    last = float(last_fifth(series.y).mean())
    if spec.kind == "box":
        entropies = np.array([float(series.y[0]), last]) / spec.entries
        initially, deviation = np.exp(np.minimum(entropies, 50.0) - LOG_OF_NORMAL).tolist()
        dead, exploded = deviation < THIN, deviation > WIDE
        seen = f"the policy's standard deviation is {deviation:.3g}; initially it was {initially:.3g}"
    else:
        most = sum(math.log(size) for size in spec.sizes or (2,) * spec.entries)
        dead, exploded = last < DEAD * most, last > UNIFORM * most
        seen = f"the entropy is {last:.3g}; the maximum for these actions is {most:.3g}"
    coefficient = run.setting("entropy_coef", 0.0)
    if dead and not run.improved:
        change = run.advice(f"--entropy-coef 0.01 (it is {coefficient:g})", run.slower)
        yield Finding("dead-entropy", PROBLEM, f"{seen}, and the return has not risen", change, series)
    elif not exploded or (spec.kind != "box" and run.improved) or _is_frozen(run):
        return
    elif coefficient or spec.kind == "box":
        width = ("--log-std-init 0",) if spec.kind == "box" else ()
        change = run.advice(f"a smaller --entropy-coef (it is {coefficient:g})", *width)
        yield Finding("exploding-entropy", PROBLEM, f"{seen}: its actions are random", change, series)
    else:
        change = "check that rewards distinguish good from bad actions; a larger --learning-rate"
        yield Finding("uniform-policy", PROBLEM, f"{seen}: it has learned no preference", change, series)


def _critic(run: RunRecords) -> Iterator[Finding]:
    """Check for values that do not follow the returns, and for SAC's temperature."""
    fit, returns = run.learned("explained_variance", 0.0), run.returns
    trained = run.updates >= CRITIC_UPDATES and len(returns) >= CRITIC_EPISODES and np.ptp(returns) != 0
    if fit is not None and trained and (best := float(np.percentile(last_half(fit), 90))) <= EXPLAINS_NOTHING:
        seen = f"explained_variance is below {best:.3g} in 90 % of the second half: the critic predicts nothing"
        change = run.advice("--value-coef 0.5", "--normalize-reward", "a larger --critic-learning-rate")
        yield Finding("critic-explains-nothing", PROBLEM, seen, change, fit)
    temperature = run.learned("temperature")
    if temperature is not None and not run.improved:
        first, last = float(temperature.y[0]), float(last_fifth(temperature.y).mean())
        if last >= HOT * max(first, 1e-3):
            seen = f"the temperature rose from {first:.3g} to {last:.3g}: entropy outweighs the reward"
            change = run.advice("a lower --target-entropy", "--no-learn-temperature")
            yield Finding("exploding-temperature", PROBLEM, seen, change, temperature)


def _losses(run: RunRecords) -> Iterator[Finding]:
    """Check for the first loss that grows more than the returns explain."""
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
            yield Finding("growing-loss", PROBLEM, seen, change, losses)
            return


def _gradients(run: RunRecords) -> Iterator[Finding]:
    """Check for the first gradient that explodes or vanishes."""
    for name in ("grad_norm", "critic_grad_norm", "actor_grad_norm"):
        norms = run.learned(name)
        if norms is None:
            continue
        first, last = float(np.median(first_fifth(norms.y))), last_half(norms)
        if last.max() > EXPLODED * max(first, VANISHED):
            seen = f"{name} reached {last.max():.3g}; the first ones were about {first:.3g}"
            change = run.advice(run.slower, "--max-grad-norm 0.5", "--normalize-reward")
            yield Finding("exploding-gradients", PROBLEM, seen, change, norms)
            return
        if np.median(last) < VANISHED:
            seen = f"the median {name} of the second half is {np.median(last):.2g}: learning has stopped"
            change = f"{run.advice(run.slower, '--activation tanh')}; check that rewards differ: drl doctor ENV"
            yield Finding("zero-gradients", PROBLEM, seen, change, norms)
            return


def _values(run: RunRecords, play: AgentPlay) -> Iterator[Finding]:
    """Check for values that exceed the return of any sequence of rewards."""
    if run.settings.get("normalize_reward") or run.setting("reward_scale", 1.0) != 1.0 or run.early:
        return
    gamma, means = run.setting("gamma", 0.99), run.series("rollout/mean_reward")
    largest = float(max(np.abs(play.rewards).max(), 0.0 if means is None else np.abs(means.y).max()))
    allowed = largest / (1.0 - gamma) if gamma < 1 else float(np.nanmax(np.abs(run.returns)))
    temperature, entropy = run.series("learn/temperature"), run.series("learn/entropy")
    if temperature is not None and entropy is not None:  # soft values contain future entropy
        allowed += float(temperature.y.max() * np.abs(entropy.y).max()) / max(1.0 - gamma, 1e-3)
    learned = run.learned("mean_q", allowed)
    expected = float(np.percentile(np.abs(play.values), 90)) if play.values is not None else 0.0
    if learned is not None:
        expected = max(expected, float(np.abs(last_fifth(learned.y)).mean()))
    if expected <= BEYOND * allowed or allowed == 0:
        return
    limit = f"rewards of at most {largest:.3g} with gamma {gamma:g} allow {allowed:.4g}"
    double = () if run.settings.get("double") else ("--double",)
    change = run.advice(*double, "--num-critics 2", "a smaller --tau", run.slower)
    yield Finding("values-beyond-returns", PROBLEM, f"the agent predicts {expected:.4g}; {limit}", change, learned)


def _actions(run: RunRecords, play: AgentPlay) -> Iterator[Finding]:
    """Check for discrete actions that are never taken, and continuous ones that are at a bound."""
    spec, gradients = play.agent.action_spec, run.learned("actor_grad_norm")
    # A return that has risen a little by chance does not excuse an actor without gradients.
    stuck = gradients is not None and bool(np.median(last_half(gradients)) < VANISHED)
    if not run.early and not run.improved and spec.kind == "discrete" and spec.sizes[0] >= 2:
        taken = np.bincount(play.actions.astype(int).ravel(), minlength=spec.sizes[0]) / play.actions.size
        shares = taken if play.policy is None else play.policy.mean(axis=0)
        if shares.max() >= ONE_ACTION:
            often = f"{shares.max():.1%} of {plural(len(play.actions), 'step')}"
            seen = f"the agent takes action {shares.argmax()} in {often}, out of {len(shares)} actions"
            change = run.advice("--entropy-coef 0.01", "a larger --epsilon-decay", run.slower)
            series = Series("share of the steps", np.arange(len(shares)), shares, over="action")
            yield Finding("unused-actions", PROBLEM, seen, change, series)
    if run.early or (run.improved and not stuck) or spec.kind != "box":
        return
    if (share := float((np.abs(play.actions) >= 0.99).mean())) >= SATURATED:
        why = "the actor's gradient is 0" if stuck else "the return has not risen"
        seen = f"{share:.0%} of the entries of the agent's actions are at a bound, and {why}"
        change = run.advice(run.slower, "a smaller --actor-learning-rate", "--normalize-obs")
        counts, edges = np.histogram(np.clip(play.actions, -1.0, 1.0), bins=21, range=(-1.0, 1.0))
        series = Series("share of the entries", (edges[1:] + edges[:-1]) / 2, counts / counts.sum(), over="action")
        yield Finding("saturated-actions", PROBLEM, seen, change, series)


def _normalizer(play: AgentPlay) -> Iterator[Finding]:
    """Check for observations outside the range of the normalizer's data."""
    normalizer = play.agent.normalizer
    if normalizer is None or play.obs.dtype.names:
        return
    outside = np.abs(normalizer(play.obs)).reshape(len(play.obs), -1) >= normalizer.clip - 1e-3
    shares = outside.mean(axis=0)
    if not normalizer.count or shares.max() >= CLIPPED:
        share = f"{shares.max():.0%} of the numbers in entry {shares.argmax()}"
        seen = f"the normalizer clips {share}: they are far from the training data"
        change = "train longer with --normalize-obs, and evaluate in the training environment"
        series = Series("share that is clipped", np.arange(len(shares)), shares, over="entry of the observation")
        yield Finding("stale-normalizer", PROBLEM, seen, change, series)
