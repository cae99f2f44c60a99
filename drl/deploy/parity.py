"""Does an exported agent act as the agent does? Compared on random observations before a file is written."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from drl.core.errors import BadInput, plural, shown
from drl.core.specs import MASK_KEY, ActionSpec, Array
from drl.deploy.policy_graph import PolicyGraph
from drl.deploy.sampled_inputs import affordable, raw_observations, sample_inputs

CHECKED = 1000  # observations
TOLERANCE = 1e-5  # of outputs; see `_difference`
CHUNKS = (1, 3, 60)  # sizes of the first batches: one file serves all; the later ones have `LARGE` rows
LARGE = 234
EPISODES = 25  # at once, of a recurrent agent

Inputs = dict[str, Array]  # by name
Run = Callable[[Inputs], Inputs]  # an exported agent: inputs → outputs


class Parity(NamedTuple):
    """How close an exported agent is to the agent."""

    rows: int  # random observations
    golden: int  # observations of the agent's golden pairs
    largest: float  # difference of an output; 0 also where a file gives discrete actions only
    ties: int  # actions that differ because the agent's own values of both are equal up to rounding

    def __str__(self) -> str:
        golden = f" and {plural(self.golden, 'golden pair')}" if self.golden else ""
        seen = plural(self.rows, "observation") + golden
        equal = "actions equal" if not self.ties else f"actions equal but for {self.ties} ties"
        return f"{seen}: {equal}" + (f", outputs within {self.largest:.1g}" if self.largest else "")


def check_parity(agent: Any, graph: PolicyGraph, run: Run, golden: Inputs | None = None) -> Parity:
    """Compare on `CHECKED` random observations and on those of golden pairs; raises where they differ. `agent` is any
    of ours, by a policy or by action values."""
    rng, rows = np.random.default_rng(0), affordable(graph.obs_spec, CHECKED)
    sample = _episodes if graph.rnn_state_size else _batches
    sequences: Iterable[list[Inputs]] = sample(graph, rows, rng)
    golden_rows = 0 if golden is None else _rows(golden)
    if golden is not None:
        sequences = chain([_one_by_one(golden) if graph.rnn_state_size else [golden]], sequences)
    seen, largest, ties = 0, 0.0, 0
    for sequence in sequences:
        agent.begin()
        rnn_state = None
        for inputs in sequence:
            if graph.rnn_state_size:
                agent.begin(inputs["reset"])
                empty = np.zeros((_rows(inputs), graph.rnn_state_size), np.float32)
                inputs = inputs | {"rnn_state": empty if rnn_state is None else rnn_state}
            given = run(inputs)
            rnn_state = given.get("new_rnn_state")
            off, tied = _compare(agent, graph, inputs, given)
            seen, largest, ties = seen + _rows(inputs), max(largest, off), ties + tied
    return Parity(seen - golden_rows, golden_rows, largest, ties)


def _compare(agent: Any, graph: PolicyGraph, inputs: Inputs, given: Inputs) -> tuple[float, int]:
    """The largest difference of an output, and how many actions differ by a tie."""
    raw, mask = raw_observations(graph.obs_spec, inputs), inputs.get(MASK_KEY)
    encoded = graph.obs_spec.encode(raw)
    values = agent.dist_params(encoded) if graph.distribution else agent.q_values(encoded)
    expected = {"action": agent.act(raw, action_mask=mask), graph.answer_name: values}
    if graph.rnn_state_size:
        expected["new_rnn_state"] = agent.rnn_state[:, : graph.rnn_state_size]
    ties = 0
    if graph.action_spec.kind != "box":
        ties = _count_ties(graph, given["action"], expected.pop("action"), values, mask)
    names = expected.keys() & given.keys()  # a C file gives actions only
    off = [_difference(name, given[name], expected[name], graph.action_spec) for name in names]
    return max(off, default=0.0), ties


def _batches(graph: PolicyGraph, rows: int, rng: np.random.Generator) -> Iterator[list[Inputs]]:
    sizes = iter(CHUNKS)
    while rows:
        size = min(rows, next(sizes, LARGE))
        yield [sample_inputs(graph, size, rng)]
        rows -= size


def _episodes(graph: PolicyGraph, rows: int, rng: np.random.Generator) -> Iterator[list[Inputs]]:
    """Steps of several episodes, which begin anew at times."""
    count = min(rows, EPISODES)
    yield [
        sample_inputs(graph, count, rng) | {"reset": rng.random(count) < (0.1 if step else 1.0)}
        for step in range(rows // count)
    ]


def _one_by_one(inputs: Inputs) -> list[Inputs]:
    """The steps of one episode."""
    steps = [{name: array[i : i + 1] for name, array in inputs.items()} for i in range(_rows(inputs))]
    return [step | {"reset": np.array([i == 0])} for i, step in enumerate(steps)]


def _rows(inputs: Inputs) -> int:
    return len(next(iter(inputs.values())))


def _difference(name: str, given: Array, expected: Array, spec: ActionSpec) -> float:
    """The largest difference; raises beyond `TOLERANCE`. It is relative where numbers are above 1: to the width of an
    action's bounds, and to the largest output of the observation, since both are sums that large numbers cancel in."""
    if given.shape != expected.shape:
        raise BadInput(f"the export gives {name} {given.shape}, the agent {expected.shape}; nothing is written")
    off, scale = np.abs(given.astype(np.float64) - expected).reshape(len(given), -1), np.abs(expected)
    scale = scale.reshape(off.shape) if name == "action" else scale.max(axis=1, keepdims=True)
    if name == "action":
        width = np.array(spec.high) - np.array(spec.low)
        scale = np.maximum(scale, np.where(np.isfinite(width), width, 0.0))
    largest = float((off / np.maximum(1.0, scale)).max(initial=0.0))
    if not largest <= TOLERANCE:  # also where it is NaN
        raise BadInput(f"the export differs from the agent by {largest:.2g} in {name}; nothing is written")
    return largest


def _count_ties(graph: PolicyGraph, given: Array, expected: Array, values: Array, mask: Array | None) -> int:
    """How many rows have another action. Only one that the agent itself values the same, up to rounding, may be."""
    if given.shape != expected.shape:
        raise BadInput(f"the export gives actions {given.shape}, the agent {expected.shape}; nothing is written")
    other = np.flatnonzero((given != expected).reshape(len(given), -1).any(axis=1))
    spec = graph.action_spec
    sizes = spec.sizes or (2,) * spec.entries
    if not spec.sizes:  # bits: their logit against 0
        values = np.stack([np.zeros_like(values), values], axis=-1).reshape(len(values), -1)
    values = values if mask is None else np.where(mask, values, -np.inf)
    chosen = given.reshape(len(given), -1).astype(np.int64) - np.array(spec.starts or 0)
    for row in other:
        scale = np.abs(values[row], where=np.isfinite(values[row]), out=np.ones(values.shape[1])).max()
        for entry, end in enumerate(np.cumsum(sizes)):
            part, choice = values[row, end - sizes[entry] : end], chosen[row, entry]
            if not 0 <= choice < len(part) or not part.max() - part[choice] <= TOLERANCE * max(1.0, scale):
                own, others = (shown(np.asarray(action).tolist()) for action in (expected[row], given[row]))
                raise BadInput(f"the export acts {others} where the agent acts {own}; nothing is written")
    return len(other)
