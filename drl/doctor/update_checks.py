"""Checks of update metrics: KL, clipping, entropy, critics, gradients, losses."""

import math

import numpy as np

from drl.core.specs import ActionSpec
from drl.doctor.findings import PROBLEM, Finding, Series
from drl.doctor.run_records import RunRecords, first_fifth, halves, last_fifth

LARGE_KL, HUGE_KL = 0.1, 1.0  # mean per learning step; LARGE_KL counts in a tenth of them, and at least twice
SURE_ROWS = 3  # learning steps that suffice for clear faults
TINY_KL = 1e-7
MUCH_CLIPPED = 0.5
DEAD, UNIFORM = 0.02, 0.995  # shares of the maximum entropy
THIN, WIDE = 0.02, 3.0  # standard deviations of a Gaussian, in units in which [−1, 1] spans the bounds
EXPLAINS_NOTHING = 0.02  # 90 % quantile of explained_variance, after this much training of the critic:
CRITIC_UPDATES, CRITIC_EPISODES = 400, 50
EXPLODED, VANISHED = 1000.0, 1e-7  # gradient norms: relative to the first ones, absolute
GROWN = 100.0  # growth of the loss beyond the growth of the returns
HOT = 10.0  # times the initial temperature


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


LOG_OF_NORMAL = 0.5 * math.log(2 * math.pi * math.e)  # entropy of a normal distribution of deviation 1


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


def has_vanished(norms: Series) -> bool:
    """Whether most gradients of the second half are 0."""
    return bool(np.median(halves(norms)[1]) < VANISHED)


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


UPDATES = (kl_spikes, much_clipped, frozen_policy, entropy, critic_explains_nothing, hot)
LOSSES = (growing_loss, gradients)  # last, because they are usually symptoms
