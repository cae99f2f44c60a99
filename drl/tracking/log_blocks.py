"""The numbers of one log as titled blocks of text, the same for every algorithm.

Fields that do not apply and blocks without fields are left out.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from drl.core.log import Log

COUNTS = ("rollout_len", "episodes_count", "timesteps_count", "rollouts_count", "total_timesteps", "gradient_steps")
IN_ROLLOUT = ("mean_clipped_ratio", "approx_kl")  # update metrics shown with the rollout
# Order of update metrics; other names follow.
LEARNING = (
    "loss", "policy_loss", "actor_loss", "value_loss", "critic_loss", "entropy", "temperature", "explained_variance",
    "clip_fraction", "mean_q", "mean_error", "grad_norm", "actor_grad_norm", "critic_grad_norm",
)  # fmt: skip
MOST_SHOWN = 12  # numbers of an info, and of your own; files have all of them
SETTINGS = ("learning_rate", "epsilon", "noise_sigma")  # current values of schedules, shown with the updates


class Block(NamedTuple):
    """One block of the console."""

    title: str
    fields: dict[str, str]  # name → displayed text


def blocks(
    log: Log, total_timesteps: int | None = None, window: int | None = None, times: Mapping[str, float] | None = None
) -> list[Block]:
    """Return the blocks of one log. `times` are additional durations in seconds, such as the time left.

    >>> log = Log(env_steps=2048, episodes=3, learning_steps=1, rollout={"mean_reward": 1.0}, learn={"loss": 0.5})
    >>> [(block.title, list(block.fields)) for block in blocks(log)]  # doctest: +NORMALIZE_WHITESPACE
    [('ROLLOUT STATISTICS', ['mean_reward']),
     ('TRAINER STATISTICS', ['episodes_count', 'timesteps_count', 'rollouts_count']),
     ('LEARNING', ['loss'])]
    """
    rollout = log.learn | log.rollout | log.time
    names = ("mean_ep_len", "mean_ep_return", "mean_reward", *IN_ROLLOUT, "rollout_len", "time_elapsed")
    counters = {
        "episodes_count": log.episodes,
        "timesteps_count": log.env_steps,
        "rollouts_count": log.learning_steps,
    }
    if total_timesteps is not None:
        counters["total_timesteps"] = total_timesteps
    trainer = counters | log.trainer | log.time
    shown = (*counters, "total_timesteps", "clip_range", "steps_per_second")
    others = sorted(set(log.learn) - set(LEARNING) - set(IN_ROLLOUT)) + sorted(set(log.trainer) - set(shown))
    episodes = log.recent.get("window", window)
    recent = "RECENT EPISODES" if episodes is None else f"RECENT {int(episodes)} EPISODES"
    found = [
        Block("ROLLOUT STATISTICS", _shown(rollout, names)),
        Block(recent, _shown(log.recent, ("mean_ep_len", "mean_ep_return", "terminated_rate", "success_rate"))),
        Block(
            "TRAINER STATISTICS", _shown(trainer, shown) | {name: clock(each) for name, each in (times or {}).items()}
        ),
        Block("LEARNING", _shown(log.trainer | log.learn, (*LEARNING, *SETTINGS, *others))),
        Block("EVALUATION", _shown(log.evaluation, tuple(log.evaluation))),
        Block("INFO", _shown(log.info, tuple(log.info)[:MOST_SHOWN])),
        Block("CUSTOM", _shown(log.custom, tuple(log.custom)[:MOST_SHOWN])),
    ]
    return [block for block in found if block.fields]


def _shown(values: Mapping[str, float], names: tuple[str, ...]) -> dict[str, str]:
    return {name: number(name, values[name]) for name in names if name in values}


def number(name: str, value: float) -> str:
    """Format a number as short as readable."""
    if not math.isfinite(value):
        return str(float(value))
    if name in COUNTS or isinstance(value, int):
        return f"{int(value):,}"
    if name == "time_elapsed":
        return f"{value:,.2f} s"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}" if size < 1e9 else f"{value:.3e}"
    if size >= 10 or size == 0:
        return f"{value:.2f}"
    if size >= 1:
        return f"{value:.3f}"
    return f"{value:.4f}" if size >= 0.001 else f"{value:.2e}"


def clock(seconds: float) -> str:
    """
    >>> clock(3725.4)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def plain_text(found: list[Block]) -> str:
    """Format blocks as aligned text, for files and pipes."""
    width = max([18, *(len(name) for block in found for name in block.fields)]) + 2
    parts = []
    for block in found:
        lines = [f"  {name + ':':<{width}}{value:>13}" for name, value in block.fields.items()]
        parts.append("\n".join([block.title, "-" * 35, *lines]))
    return "=" * 35 + "\n" + "\n\n".join(parts) + "\n" + "=" * 35 + "\n"
