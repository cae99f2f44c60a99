"""Compare an exported agent with the agent before a file is written: on random observations and its golden pairs."""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from drl.core.errors import BadInput, plural, shown
from drl.core.golden_pairs import GoldenInputs
from drl.core.normalize import ObsNormalizer
from drl.core.specs import MASK_KEY, ActionSpec, Array, ObsSpec, RawObs
from drl.deploy.policy_graph import PolicyGraph, port_name, raw_dtype

CHECKED = 1000  # observations
MOST_NUMBERS = 30_000_000  # of all observations together, so fewer of them if they are large
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
    values = agent.outputs(encoded)
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


def sample_inputs(graph: PolicyGraph, rows: int, rng: np.random.Generator) -> dict[str, Array]:
    """Observations of the space and masks that leave a choice. Numbers without bounds are normal, around what the
    normalizer has seen."""
    inputs = {
        port_name(path): _sample_leaf(path, leaf, graph, rows, rng) for path, leaf in graph.obs_spec.leaves.items()
    }
    if graph.masked:
        inputs[MASK_KEY] = _sample_masks(graph, rows, rng)
    return inputs


def affordable(spec: ObsSpec, rows: int) -> int:
    """As many of the rows as fit into `MOST_NUMBERS`."""
    size = sum(math.prod(leaf.shape) for leaf in spec.leaves.values())
    return max(1, min(rows, MOST_NUMBERS // max(size, 1)))


def raw_observations(spec: ObsSpec, inputs: dict[str, Array], path: str = "") -> RawObs:
    """A batch as the environment gives it: arrays, in a dict or tuple where the space is one."""
    if not spec.parts:
        return inputs[port_name(path)]
    names = spec.keys or tuple(str(number) for number in range(len(spec.parts)))
    pairs = zip(names, spec.parts, strict=True)
    children = {name: raw_observations(part, inputs, f"{path}.{name}".lstrip(".")) for name, part in pairs}
    return children if spec.kind == "dict" else tuple(children.values())


def golden_inputs(graph: PolicyGraph, golden: GoldenInputs | None) -> dict[str, Array] | None:
    """The observations of an agent's golden pairs, raw again; None: it has none."""
    if golden is None:
        return None
    inputs = {}
    for path, leaf in graph.obs_spec.leaves.items():
        whole = golden.obs
        if path:
            whole = whole[path] if graph.obs_spec.is_structured else whole[:, graph.obs_spec.columns(path)]
        inputs[port_name(path)] = _decode_leaf(leaf, whole)
    if graph.masked:
        legal = np.ones((len(golden.obs), graph.action_spec.num_choices), bool)
        inputs[MASK_KEY] = legal if golden.action_mask is None else golden.action_mask.astype(bool)
    return inputs


def _decode_leaf(leaf: ObsSpec, encoded: Array) -> Array:
    """The inverse of the encoding of a part without parts."""
    shape = (len(encoded), *leaf.box_shape)
    if leaf.kind in ("discrete", "multi_discrete"):
        ends, starts = np.cumsum(leaf.sizes)[:-1], np.array(leaf.starts or (0,) * len(leaf.sizes))
        values = [part.argmax(axis=1) for part in np.split(encoded, ends, axis=1)]
        return (np.stack(values, axis=1) + starts).reshape(shape)
    pixels = encoded * 255.0 if leaf.dtype == "uint8" and encoded.dtype != np.uint8 else encoded  # part of a vector
    array = pixels.reshape(len(encoded), *leaf.shape)
    array = np.moveaxis(array, 1, 3) if leaf.channels_last else array.reshape(shape)
    dtype = np.dtype(raw_dtype(leaf))
    return np.ascontiguousarray(array if dtype.kind == "f" else np.rint(array)).astype(dtype)


def _sample_leaf(path: str, leaf: ObsSpec, graph: PolicyGraph, rows: int, rng: np.random.Generator) -> Array:
    shape, dtype = (rows, *leaf.box_shape), np.dtype(raw_dtype(leaf))
    if leaf.kind in ("discrete", "multi_discrete"):
        starts = np.array(leaf.starts or (0,) * len(leaf.sizes))
        return (starts + rng.integers(leaf.sizes, size=(rows, len(leaf.sizes)))).reshape(shape)
    if leaf.kind == "multi_binary" or dtype.kind in "bu":
        most = 2 if leaf.kind == "multi_binary" or dtype.kind == "b" else 256
        return rng.integers(most, size=shape).astype(dtype)
    mean, deviation = _seen(path, graph.obs_spec, graph.normalizer)
    drawn = mean + deviation * rng.normal(size=(rows, *leaf.shape)) * (1.0 if dtype.kind == "f" else 10.0)
    return drawn.reshape(shape).astype(dtype)


def _seen(path: str, spec: ObsSpec, normalizer: ObsNormalizer | None) -> tuple[Array, Array]:
    """Mean and deviation of a part of the observation, by the normalizer; 0 and 1 without one."""
    if normalizer is None:
        return np.zeros(()), np.ones(())
    stats = normalizer.running_stats[path if path in normalizer.running_stats else ""]
    mean, deviation = stats.mean, np.sqrt(stats.variance)
    if spec.parts and not spec.is_structured:
        columns, shape = spec.columns(path), spec.leaves[path].shape
        return mean[columns].reshape(shape), deviation[columns].reshape(shape)
    return mean, deviation


def _sample_masks(graph: PolicyGraph, rows: int, rng: np.random.Generator) -> Array:
    """Each choice is legal or not; in every entry of the action at least one is."""
    spec = graph.action_spec
    parts = []
    for size in spec.sizes or (2,) * spec.entries:
        part = rng.random((rows, size)) < 0.6
        part[np.arange(rows), rng.integers(size, size=rows)] = True
        parts.append(part)
    return np.concatenate(parts, axis=1)
