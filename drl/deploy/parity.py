"""Does an exported agent act as the agent does? Compared on random observations before a file is written."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from drl.core.errors import BadInput
from drl.core.specs import MASK_KEY, ActionSpec, Array
from drl.deploy.policy_graph import PolicyGraph
from drl.deploy.sampled_inputs import affordable, raw_observations, sample_inputs

CHECKED = 1000  # observations
TOLERANCE = 1e-5  # of outputs; see `_difference`
CHUNKS = (1, 3, 60)  # sizes of the first batches: one file serves all; the later ones have `LARGE` rows
LARGE = 234
EPISODES = 25  # at once, of a recurrent agent

Run = Callable[[dict[str, Array]], dict[str, Array]]  # an exported agent: inputs → outputs, by name


class Parity(NamedTuple):
    """How close an exported agent is to the agent."""

    rows: int  # observations
    largest: float  # difference of an output
    ties: int  # actions that differ because the agent's own values of both are equal up to rounding

    def __str__(self) -> str:
        equal = "actions equal" if not self.ties else f"actions equal but for {self.ties} ties"
        return f"{self.rows:,} observations: {equal}, outputs within {self.largest:.1g}"


def check_parity(agent: Any, graph: PolicyGraph, run: Run, rows: int = CHECKED) -> Parity:
    """Compare on `rows` observations; raises where they differ. `agent` is any of ours, by a policy or values."""
    rng = np.random.default_rng(0)
    steps = _episodes(graph, rows, rng) if graph.rnn_state_size else _batches(graph, rows, rng)
    seen, largest, ties, rnn_state = 0, 0.0, 0, None
    agent.begin()
    for inputs in steps:
        count = len(next(iter(inputs.values())))
        if graph.rnn_state_size:
            rnn_state = np.zeros((count, graph.rnn_state_size), np.float32) if rnn_state is None else rnn_state
            inputs["rnn_state"] = rnn_state
            agent.begin(inputs["reset"])
        raw, mask = raw_observations(graph.obs_spec, inputs), inputs.get(MASK_KEY)
        encoded = graph.obs_spec.encode(raw)
        values = agent.dist_params(encoded) if graph.distribution else agent.q_values(encoded)
        action = agent.act(raw, action_mask=mask)
        expected = {"action": action, graph.answer_name: values}
        if graph.rnn_state_size:
            expected["new_rnn_state"] = agent.rnn_state[:, : graph.rnn_state_size]
        given = run(inputs)
        rnn_state = given.get("new_rnn_state")
        for name, array in expected.items():
            if name in given and (name != "action" or graph.action_spec.kind == "box"):
                largest = max(largest, _difference(name, given[name], array, graph.action_spec))
        if graph.action_spec.kind != "box":
            ties += _count_ties(graph, given["action"], action, values, mask)
        seen += count
    return Parity(seen, largest, ties)


def _batches(graph: PolicyGraph, rows: int, rng: np.random.Generator) -> Iterator[dict[str, Array]]:
    left, sizes = affordable(graph.obs_spec, rows), iter(CHUNKS)
    while left:
        size = min(left, next(sizes, LARGE))
        yield sample_inputs(graph, size, rng)
        left -= size


def _episodes(graph: PolicyGraph, rows: int, rng: np.random.Generator) -> Iterator[dict[str, Array]]:
    """Steps of several episodes, which begin anew at times."""
    for step in range(max(1, affordable(graph.obs_spec, rows) // EPISODES)):
        inputs = sample_inputs(graph, EPISODES, rng)
        yield inputs | {"reset": rng.random(EPISODES) < (0.1 if step else 1.0)}


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
        for entry, end in enumerate(np.cumsum(sizes)):
            part = values[row, end - sizes[entry] : end]
            best, own = part.max(), part[chosen[row, entry]]
            if not best - own <= TOLERANCE * max(1.0, np.abs(values[row][np.isfinite(values[row])]).max()):
                raise BadInput(
                    f"the export acts {shown_action(given[row])} where the agent acts {shown_action(expected[row])}; "
                    "nothing is written"
                )
    return len(other)


def shown_action(action: Array) -> str:
    return str(np.asarray(action).tolist())[:80]
