"""Inputs of an exported agent, to compare it with the agent itself: random ones, and those of its golden pairs."""

import math

import numpy as np

from drl.core.golden_pairs import GoldenInputs
from drl.core.normalize import ObsNormalizer
from drl.core.specs import MASK_KEY, Array, ObsSpec, RawObs
from drl.deploy.policy_graph import PolicyGraph, port_name, raw_dtype

MOST_NUMBERS = 30_000_000  # of all observations together, so fewer of them if they are large


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
