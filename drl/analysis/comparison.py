"""`compare`: algorithms over environments and seeds, with intervals, and who is better than whom."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from drl.analysis.aggregates import AGGREGATES, optimality_gap, performance_profile
from drl.analysis.reference_scores import Normalization, choose_normalization
from drl.analysis.resampling import DRAWS, Estimate, draw_runs, estimate, in_chunks, interval
from drl.analysis.run_scores import ScoreTable
from drl.analysis.versus import Contestant, Versus, all_against_all
from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.core.state_files import PlainDict

PROFILE_POINTS, PROFILE_DRAWS = 101, 2000
GAP = "optimality gap"


class Profile(NamedTuple):
    """The share of runs above each threshold, with its interval."""

    share: Array
    low: Array | None  # None with a single run
    high: Array | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of `compare`."""

    envs: list[str]
    normalization: Normalization
    score_is: str
    contestants: dict[str, Contestant]  # normalized
    returns: dict[str, dict[str, float]]  # label → environment → mean return
    aggregates: dict[str, dict[str, Estimate]]  # label → name → estimate
    thresholds: Array
    profiles: dict[str, Profile]
    pairs: list[Versus]
    left_out: list[str]
    notes: list[str]

    def to_json(self) -> PlainDict:
        """Everything, as plain data."""
        versus = [asdict(pair) | {"winner": pair.winner, "answer": pair.sentence()} for pair in self.pairs]
        for pair in versus:
            pair |= {name: pair[name]._asdict() for name in ("probability", "iqm_difference")}
        return {
            "envs": self.envs,
            "score": self.score_is,
            "normalization": self.normalization.words,
            "intervals": f"95 %, percentile, stratified bootstrap of {DRAWS:,} draws ({PROFILE_DRAWS:,} for profiles)",
            "runs": {
                label: {
                    env: [{"seed": seed, "score": float(score)} for seed, score in zip(seeds, scores, strict=True)]
                    for env, seeds, scores in zip(self.envs, each.seeds, each.scores.T, strict=True)
                }
                for label, each in self.contestants.items()
            },
            "mean_returns": self.returns,
            "aggregates": {
                label: {name: value._asdict() for name, value in each.items()}
                for label, each in self.aggregates.items()
            },
            "thresholds": self.thresholds.tolist(),
            "profiles": {
                label: {name: None if ends is None else ends.tolist() for name, ends in each._asdict().items()}
                for label, each in self.profiles.items()
            },
            "pairs": versus,
            "left_out": self.left_out,
            "notes": self.notes,
        }


def compare(table: ScoreTable, normalize: str = "auto", seed: int = 0) -> Comparison:
    """Compare the algorithms of a table over the environments that all of them have. The answer depends on nothing but
    the scores: the draws come from `seed`."""
    labels, notes = list(table.scores), list(table.notes)
    envs = sorted(set.intersection(*(set(by_env) for by_env in table.scores.values())))
    if not envs:
        had = "; ".join(f"{label}: {', '.join(by_env)}" for label, by_env in table.scores.items())
        raise BadInput(f"the algorithms share no environment ({had}); nothing can be compared")
    others = sorted({env for by_env in table.scores.values() for env in by_env} - set(envs))
    notes += [f"{env} is left out: not every algorithm has it" for env in others]
    pooled = {env: [s for label in labels for s in table.scores[label][env].values()] for env in envs}
    normalization = choose_normalization(normalize, pooled)
    contestants = {label: _contestant(label, table.scores[label], envs, normalization, notes) for label in labels}
    aggregates = dict(AGGREGATES)
    if normalization.target is not None:
        aggregates[GAP] = partial(optimality_gap, target=normalization.target)
    else:
        notes.append("no optimality gap: no target is known for this environment")
    every = np.concatenate([each.scores.ravel() for each in contestants.values()])
    thresholds = np.linspace(every.min() - 0.02 * np.ptp(every), every.max(), PROFILE_POINTS)
    estimates, profiles = dict[str, dict[str, Estimate]](), dict[str, Profile]()
    for label, each in contestants.items():
        drawn = draw_runs(np.random.default_rng(seed), *each.scores.shape)
        estimates[label] = {name: estimate(function, (each.scores, drawn)) for name, function in aggregates.items()}
        profiles[label] = _profile(each.scores, drawn[:PROFILE_DRAWS], thresholds)
    return Comparison(
        envs=envs,
        normalization=normalization,
        score_is=table.score_is,
        contestants=contestants,
        returns={
            label: {env: float(np.mean(list(table.scores[label][env].values()))) for env in envs} for label in labels
        },
        aggregates=estimates,
        thresholds=thresholds,
        profiles=profiles,
        pairs=all_against_all(contestants, seed=seed),
        left_out=table.left_out,
        notes=notes,
    )


def _contestant(
    label: str,
    scores: Mapping[str, Mapping[int, float]],
    envs: Sequence[str],
    normalization: Normalization,
    notes: list[str],
) -> Contestant:
    """As many runs in every environment; the seeds that all of them have come first."""
    runs = min(len(scores[env]) for env in envs)
    seeds = []
    for env in envs:
        preferred = sorted(scores[env], key=lambda seed: (not all(seed in scores[other] for other in envs), seed))
        seeds.append(tuple(sorted(preferred[:runs])))
        if unused := sorted(preferred[runs:]):
            listed = ", ".join(map(str, unused))
            notes.append(f"{label}: seeds {listed} of {env} are left out, so that every environment has {runs} runs")
    columns = [
        normalization(env, np.array([scores[env][seed] for seed in of_env]))
        for env, of_env in zip(envs, seeds, strict=True)
    ]
    return Contestant(np.stack(columns, axis=1), tuple(seeds))


def _profile(scores: Array, drawn: Array, thresholds: Array) -> Profile:
    share = performance_profile(scores, thresholds)
    if len(scores) < 2:
        return Profile(share, None, None)
    low, high = interval(in_chunks(partial(performance_profile, thresholds=thresholds), (scores, drawn)))
    return Profile(share, low, high)
