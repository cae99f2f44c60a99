"""Schedules against their closed forms, and the settings that name them."""

import math
import sys
from dataclasses import replace

import pytest

from drl.algorithms import ALGORITHMS
from drl.algorithms.ppo import PPOConfig
from drl.core.configs import ActionNoiseConfig, EpsilonGreedyConfig, PolicyNoiseConfig
from drl.core.errors import BadInput
from drl.core.network_parts import function_modules, import_plugins
from drl.core.schedules import Constant, epsilon_schedule, register_schedule, schedule_of

TIMES = (0.0, 0.1, 0.25, 0.5, 0.9, 1.0)


def warm_up(progress):
    """To 2e-3 in the first tenth, then down to 0."""
    return 2e-3 * min(progress / 0.1, (1 - progress) / 0.9)


FORMS = {
    "constant": lambda start, end, share: start,
    "linear": lambda start, end, share: (1 - share) * start + share * end,
    "cosine": lambda start, end, share: end + (start - end) * math.cos(math.pi * share / 2) ** 2,
}


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("end", [None, 1e-4])
def test_every_rate_follows_its_closed_form(kind, end):
    ends = {} if kind == "constant" else {"learning_rate_end": end, "clip_range_end": end, "entropy_coef_end": end}
    kinds = {f"{rate}_schedule": kind for rate in ("learning_rate", "clip_range", "entropy_coef")}
    config = PPOConfig(learning_rate=1e-3, clip_range=0.3, entropy_coef=0.02, **ends, **kinds)
    for rate, start in (("learning_rate", 1e-3), ("clip_range", 0.3), ("entropy_coef", 0.02)):
        for share in TIMES:
            expected = FORMS[kind](start, end or 0.0, share)
            assert schedule_of(config, rate)(share) == pytest.approx(expected, rel=1e-12, abs=1e-18)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_without_a_schedule_an_end_means_linear(algorithm):
    """As before there were schedules."""
    kind = ALGORITHMS[algorithm].config
    assert schedule_of(kind(), "learning_rate") == Constant(kind().learning_rate)
    assert schedule_of(kind(learning_rate=1e-3, learning_rate_end=0.0), "learning_rate")(0.25) == 7.5e-4


def test_epsilon_and_noise_count_environment_steps():
    settings = {"epsilon_start": 0.8, "epsilon_end": 0.2, "epsilon_decay": 100}
    epsilon = {kind: EpsilonGreedyConfig(epsilon_schedule=kind, **settings) for kind in ("linear", "cosine")}
    for kind, config in epsilon.items():
        steps = [epsilon_schedule(config, False, 1)(step) for step in (0, 25, 100, 1000)]
        assert steps == pytest.approx([FORMS[kind](0.8, 0.2, share) for share in (0, 0.25, 1, 1)])
    assert epsilon_schedule(EpsilonGreedyConfig(epsilon_schedule="constant"), False, 1)(10**6) == 0.9
    halved = EpsilonGreedyConfig(epsilon_schedule=lambda share: 1 - share / 2, epsilon_decay=100)
    assert [epsilon_schedule(halved, False, 1)(step) for step in (0, 50, 200)] == [1.0, 0.75, 0.5]
    noise = ActionNoiseConfig(noise_sigma=0.4, noise_sigma_schedule="cosine", noise_decay=200)
    assert schedule_of(noise, "noise_sigma", 200)(100) == pytest.approx(0.2)


def test_a_function_gives_the_values():
    config = PPOConfig(learning_rate_schedule=warm_up, clip_range=lambda progress: 0.2 - 0.1 * progress)
    assert config.learning_rate_schedule == f"{__name__}:warm_up"
    assert (config.learning_rate, config.clip_range) == (2e-3, 0.2), "the largest values"
    for share in TIMES:
        assert schedule_of(config, "learning_rate")(share) == warm_up(share)
        assert schedule_of(config, "clip_range")(share) == 0.2 - 0.1 * share
    assert replace(config, gamma=0.9) == PPOConfig(
        gamma=0.9, learning_rate_schedule=warm_up, clip_range_schedule=config.clip_range_schedule
    )


def test_equal_functions_have_equal_names_and_others_do_not():
    """JAX keeps a program per config: two lambdas must not share one."""
    one, two = (lambda progress: 0.1), (lambda progress: 0.2)
    first, second, again = (PPOConfig(clip_range_schedule=each) for each in (one, two, one))
    assert first == again != second


def test_noise_of_a_function_is_not_quiet():
    assert PolicyNoiseConfig().quiet
    config = PolicyNoiseConfig(noise_sigma_schedule=lambda share: 0.3 * share)
    assert (config.quiet, config.noise_sigma) == (False, 0.3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate_schedule": "exponential"}, "learning_rate_schedule is 'exponential'"),
        ({"learning_rate_schedule": 3}, "learning_rate_schedule is 3; expected a name or a function"),
        ({"learning_rate_schedule": "constant", "learning_rate_end": 0.0}, "learning_rate_end is 0.0, but"),
        ({"learning_rate_schedule": warm_up, "learning_rate_end": 0.0}, "learning_rate_end is 0.0, but"),
        ({"learning_rate_schedule": warm_up, "learning_rate": 1e-4}, "largest value of its schedule .* is 0.002"),
        ({"learning_rate_schedule": "cosine", "learning_rate": warm_up}, "leave learning_rate_schedule out"),
        ({"learning_rate_schedule": lambda progress: -progress}, "is -0.01 at 0.01 of the time"),
        ({"learning_rate_schedule": lambda progress: math.nan}, "is nan at 0.0"),
        ({"learning_rate_schedule": lambda progress: 1 / progress}, "fails at 0.0.*ZeroDivisionError"),
        ({"learning_rate_schedule": lambda progress: 0.0}, "learning_rate is 0.0; expected a number above 0"),
        ({"learning_rate_schedule": "__main__:f"}, "a function of the script that began this"),
        ({"learning_rate_schedule": "math:cos"}, "learning_rate_schedule is 'math:cos'.*--plugins math"),
    ],
)
def test_what_cannot_be_honoured_is_refused(settings, message):
    with pytest.raises(BadInput, match=message):
        PPOConfig(**settings)


def test_epsilon_of_a_function_is_a_probability():
    with pytest.raises(BadInput, match=r"epsilon_start is 2\.0; expected a number from 0 to 1"):
        EpsilonGreedyConfig(epsilon_schedule=lambda share: 2.0 * share)


def test_registered_names():
    register_schedule("half_and_half", lambda progress: 0.2 if progress < 0.5 else 0.1)
    config = PPOConfig(clip_range_schedule="half_and_half")
    assert [schedule_of(config, "clip_range")(share) for share in (0.4, 0.6)] == [0.2, 0.1]
    for name in ("half_and_half", "linear", "auto", "exponential"):
        with pytest.raises(BadInput, match=r"there is a schedule|not a valid name"):
            register_schedule(name, lambda progress: 0.3)


def test_a_plugin_is_searched_for_its_own_functions_only(tmp_path, monkeypatch):
    (tmp_path / "plugin_of_rates.py").write_text("from math import cos\n\ndef slow(progress):\n    return 1e-4\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"learning_rate_schedule": "plugin_of_rates:slow", "env": "module:Id", "seed": 1, "activation": "tanh"}
    assert function_modules(settings) == ["plugin_of_rates"]
    with pytest.raises(BadInput, match="--plugins plugin_of_rates"):
        PPOConfig(learning_rate_schedule="plugin_of_rates:slow")
    assert "plugin_of_rates" not in sys.modules, "a name does not import"
    import_plugins(["plugin_of_rates"])
    assert PPOConfig(learning_rate_schedule="plugin_of_rates:slow").learning_rate == 1e-4
    assert function_modules(settings) == []
    with pytest.raises(BadInput, match="plugin_of_rates:cos"):
        PPOConfig(learning_rate_schedule="plugin_of_rates:cos")
