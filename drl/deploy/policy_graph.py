"""An agent as one pure function of named arrays: raw observations in, actions in the environment's units out.

`ObsSpec`, `ObsNormalizer` and `ActionSpec` encode, scale and decode the arrays of any library. An engine adds its
network and the mode of its distributions. The action is the mode of the policy, as in evaluation. `check_parity`
compares an exported file with its agent on random observations and on those of its golden pairs.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from drl.core.contracts import Agent
from drl.core.errors import BadInput, plural, shown
from drl.core.golden_pairs import Acting, GoldenInputs, sample_obs
from drl.core.normalize import ObsNormalizer
from drl.core.specs import MASK_KEY, ActionSpec, AnyArray, Array, ArrayLibrary, Distribution, ObsSpec, RawObs
from drl.engines.numpy.acting import PolicyActor, QActor
from drl.engines.numpy.distributions import masked_argmax

RAW = {"discrete": "int64", "multi_discrete": "int64", "multi_binary": "int8"}  # as Gymnasium samples them
TENSORS = ("float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool")
CHUNKS = (1, 3, 60, 234, 234, 234, 234)  # compared batches: one file must accept every size
CHECKED = sum(CHUNKS)  # compared random observations
MOST_NUMBERS = 30_000_000  # limit for all compared observations together
EPISODES = 25  # parallel episodes of a recurrent agent
TOLERANCE = 1e-5  # of outputs; see `_difference`

Named = dict[str, AnyArray]
Inputs = dict[str, Array]  # by name
Run = Callable[[Inputs], Inputs]  # an exported agent: inputs → outputs
Mode = Callable[[Distribution, AnyArray, AnyArray | None], AnyArray]  # an engine's `mode`
# (encoded observations, rnn_state or None) → (distribution parameters or action values, the new rnn_state or None)
Answer = Callable[[AnyArray, AnyArray | None], tuple[AnyArray, AnyArray | None]]


class Port(NamedTuple):
    """An input or output; its arrays have one more axis in front, the batch."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} [{', '.join(map(str, ('batch', *self.shape)))}]"


@dataclass(frozen=True)
class PolicyGraph:
    """Everything of an agent but its network."""

    obs_spec: ObsSpec
    action_spec: ActionSpec
    normalizer: ObsNormalizer | None
    distribution: Distribution | None  # of its policy; None: it acts by action values
    masked: bool = False  # whether `action_mask` is an input
    rnn_state_size: int = 0  # of a recurrent agent: numbers that it carries from step to step

    @classmethod
    def of(cls, agent: object, masked: bool = False, rnn_state_size: int = 0) -> "PolicyGraph":
        """The graph of a loaded agent."""
        if not isinstance(agent, PolicyActor | QActor):
            raise BadInput(f"{type(agent).__name__} acts neither by a policy nor by action values; it has no export")
        if masked and not agent.action_spec.num_choices:
            raise BadInput("--action-mask on is for actions with choices; this agent's actions are a Box")
        return cls(agent.obs_spec, agent.action_spec, agent.normalizer, agent.distribution, masked, rnn_state_size)

    @property
    def inputs(self) -> list[Port]:
        """Ports of the raw observation, the action mask and the recurrent state."""
        ports = [Port(port_name(path), raw_dtype(leaf), leaf.box_shape) for path, leaf in self.obs_spec.leaves.items()]
        if self.masked:
            ports.append(Port(MASK_KEY, "bool", (self.action_spec.num_choices,)))
        if self.rnn_state_size:
            ports += [Port("rnn_state", "float32", (self.rnn_state_size,)), Port("reset", "bool", ())]
        return ports

    @property
    def outputs(self) -> list[Port]:
        """Ports of the action, the network's outputs and the recurrent state."""
        spec = self.action_spec
        width = self.distribution.num_params if self.distribution else spec.sizes[0]
        ports = [Port("action", "int64" if spec.kind == "discrete" else spec.dtype, spec.shape)]
        ports.append(Port(self.answer_name, "float32", (width,)))
        return ports + ([Port("new_rnn_state", "float32", (self.rnn_state_size,))] if self.rnn_state_size else [])

    @property
    def answer_name(self) -> str:
        """Name of the network's outputs."""
        return "dist_params" if self.distribution else "q_values"

    def act(self, arrays: ArrayLibrary, mode: Mode, inputs: Named, answer: Answer) -> Named:
        """The outputs by name. Where `reset` is True an episode begins with a zero rnn_state."""
        rnn_state = None
        if self.rnn_state_size:
            rnn_state = arrays.xp.where(inputs["reset"][:, None], 0.0, inputs["rnn_state"])
        answered, after = answer(self._encoded(arrays, inputs), rnn_state)
        mask = inputs[MASK_KEY] if self.masked else None
        if self.distribution is None:
            best = masked_argmax(answered, mask, arrays.xp)
        else:
            best = mode(self.distribution, answered, mask)
        action = arrays.cast(self.action_spec.to_env(best, arrays), self.outputs[0].dtype)
        outputs = {"action": action, self.answer_name: answered}
        return outputs | ({} if after is None else {"new_rnn_state": after})

    def _encoded(self, arrays: ArrayLibrary, inputs: Named) -> AnyArray:
        """Observations as the network takes them: encoded and normalized."""
        leaves, normalizer = self.obs_spec.leaves, self.normalizer
        encoded = self.obs_spec.encode_leaves({path: inputs[port_name(path)] for path in leaves}, arrays)
        if not self.obs_spec.is_structured:
            return encoded if normalizer is None else normalizer.scaled(encoded, "", arrays)
        for path, leaf in leaves.items():
            if not leaf.is_image:
                encoded[path] = arrays.cast(encoded[path], "float32")
        if normalizer is not None:
            encoded |= {path: normalizer.scaled(encoded[path], path, arrays) for path in normalizer.scales}
        return encoded


def port_name(path: str) -> str:
    """The input for a part of the observation: `obs`, or `obs.camera.left` in a Dict."""
    return f"obs.{path}" if path else "obs"


def raw_dtype(leaf: ObsSpec) -> str:
    """The type of a part of the observation as the environment gives it; unsigned types beyond uint8 are int64."""
    return RAW.get(leaf.kind, leaf.box_dtype if leaf.box_dtype in TENSORS else "int64")


def masks_in_training(agent: Acting) -> bool | None:
    """Whether the golden pairs of an evaluation have masks. None: the agent has no pairs, or those of random
    observations, which never have masks."""
    golden = agent.golden_inputs
    if not agent.action_spec.num_choices:
        return False
    if golden is None:
        return None
    if golden.action_mask is not None:
        return True
    return None if np.array_equal(golden.obs, sample_obs(agent.obs_spec, len(golden.obs))) else False


def raw_observations(spec: ObsSpec, inputs: Inputs, path: str = "") -> RawObs:
    """A batch as the environment gives it: arrays, in a dict or tuple where the space is one."""
    if not spec.parts:
        return inputs[port_name(path)]
    pairs = zip(spec.keys or map(str, range(len(spec.parts))), spec.parts, strict=True)
    children = {name: raw_observations(part, inputs, f"{path}.{name}".lstrip(".")) for name, part in pairs}
    return children if spec.kind == "dict" else tuple(children.values())


def sample_inputs(graph: PolicyGraph, rows: int, rng: np.random.Generator) -> Inputs:
    """Observations of the space, and masks with a legal choice for each entry of the action. Numbers without bounds are
    normal, with the normalizer's mean and deviation."""
    inputs = {
        port_name(path): _sample_leaf(path, leaf, graph, rows, rng) for path, leaf in graph.obs_spec.leaves.items()
    }
    if graph.masked:
        parts = []
        for size in graph.action_spec.sizes or (2,) * graph.action_spec.entries:
            part = rng.random((rows, size)) < 0.6
            part[np.arange(rows), rng.integers(size, size=rows)] = True
            parts.append(part)
        inputs[MASK_KEY] = np.concatenate(parts, axis=1)
    return inputs


def _sample_leaf(path: str, leaf: ObsSpec, graph: PolicyGraph, rows: int, rng: np.random.Generator) -> Array:
    shape, dtype = (rows, *leaf.box_shape), np.dtype(raw_dtype(leaf))
    if leaf.sizes:
        drawn = rng.integers(leaf.sizes, size=(rows, len(leaf.sizes))) + np.array(leaf.starts or 0)
        return drawn.reshape(shape)
    if leaf.kind == "multi_binary" or dtype.kind in "bu":
        most = 2 if leaf.kind == "multi_binary" or dtype.kind == "b" else 256
        return rng.integers(most, size=shape).astype(dtype)
    mean, deviation = np.zeros(()), np.ones(())
    if graph.normalizer is not None:
        stats = graph.normalizer.running_stats
        moments = stats[path if path in stats else ""]
        mean, deviation = moments.mean, np.sqrt(moments.variance)
        if graph.obs_spec.parts and not graph.obs_spec.is_structured:
            columns = graph.obs_spec.columns(path)
            mean, deviation = mean[columns].reshape(leaf.shape), deviation[columns].reshape(leaf.shape)
    numbers = mean + deviation * rng.normal(size=(rows, *leaf.shape)) * (1.0 if dtype.kind == "f" else 10.0)
    return numbers.reshape(shape).astype(dtype)


def golden_inputs(graph: PolicyGraph, golden: GoldenInputs | None) -> Inputs | None:
    """The raw observations and masks of an agent's golden pairs; None if it has none."""
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
    """Invert the encoding of a leaf space."""
    shape = (len(encoded), *leaf.box_shape)
    if leaf.sizes:
        values = [part.argmax(axis=1) for part in np.split(encoded, np.cumsum(leaf.sizes)[:-1], axis=1)]
        return (np.stack(values, axis=1) + np.array(leaf.starts or 0)).reshape(shape)
    pixels = encoded * 255.0 if leaf.dtype == "uint8" and encoded.dtype != np.uint8 else encoded  # part of a vector
    array = pixels.reshape(len(encoded), *leaf.shape)
    array = np.moveaxis(array, 1, 3) if leaf.channels_last else array.reshape(shape)
    dtype = np.dtype(raw_dtype(leaf))
    return np.ascontiguousarray(array if dtype.kind == "f" else np.rint(array)).astype(dtype)


class Parity(NamedTuple):
    """How close an exported agent is to the agent."""

    rows: int  # random observations
    golden: int  # observations of the agent's golden pairs
    largest: float  # difference of an output; 0 also where a file gives discrete actions only
    ties: int  # actions that differ because the agent's own values of both are equal up to rounding

    def __str__(self) -> str:
        golden = f" and {plural(self.golden, 'golden pair')}" if self.golden else ""
        equal = "actions equal" if not self.ties else f"actions equal but for {self.ties} ties"
        off = f", outputs within {self.largest:.1g}" if self.largest else ""
        return f"{plural(self.rows, 'observation')}{golden}: {equal}{off}"


def check_parity(agent: Agent, graph: PolicyGraph, run: Run, golden: Inputs | None = None) -> Parity:
    """Compare on `CHECKED` random observations and on those of golden pairs; raise where they differ."""
    rows, golden_rows, largest, ties = 0, 0 if golden is None else _rows(golden), 0.0, 0
    for sequence in _sequences(graph, golden):
        agent.begin()
        rnn_state = np.zeros((_rows(sequence[0]), graph.rnn_state_size), np.float32)
        for inputs in sequence:
            if graph.rnn_state_size:
                agent.begin(inputs["reset"])
                inputs = inputs | {"rnn_state": rnn_state}
            outputs = run(inputs)
            rnn_state = outputs.get("new_rnn_state", rnn_state)
            off, tied = _compare(agent, graph, inputs, outputs)
            rows, largest, ties = rows + _rows(inputs), max(largest, off), ties + tied
    return Parity(rows - golden_rows, golden_rows, largest, ties)


def affordable(spec: ObsSpec) -> int:
    """The number of random observations to compare: `CHECKED`, or fewer if they are large."""
    size = sum(math.prod(leaf.shape) for leaf in spec.leaves.values())
    return max(1, min(CHECKED, MOST_NUMBERS // max(size, 1)))


def _sequences(graph: PolicyGraph, golden: Inputs | None) -> Iterator[list[Inputs]]:
    """Inputs step by step, golden pairs first: for a recurrent agent episodes, else sequences of one step."""
    rng, rows = np.random.default_rng(0), affordable(graph.obs_spec)
    if not graph.rnn_state_size:
        if golden is not None:
            yield [golden]
        for start, size in zip(np.cumsum((0, *CHUNKS)).tolist(), CHUNKS, strict=False):
            if start < rows:
                yield [sample_inputs(graph, min(size, rows - start), rng)]
        return
    if golden is not None:
        steps = [{name: array[i : i + 1] for name, array in golden.items()} for i in range(_rows(golden))]
        yield [step | {"reset": np.array([i == 0])} for i, step in enumerate(steps)]
    count = min(rows, EPISODES)
    yield [
        sample_inputs(graph, count, rng) | {"reset": rng.random(count) < (0.1 if step else 1.0)}
        for step in range(rows // count)
    ]


def _rows(inputs: Inputs) -> int:
    return len(next(iter(inputs.values())))


def _compare(agent: Agent, graph: PolicyGraph, inputs: Inputs, outputs: Inputs) -> tuple[float, int]:
    """The largest difference of an output, and how many actions differ by a tie."""
    assert isinstance(agent, PolicyActor | QActor)
    raw, mask = raw_observations(graph.obs_spec, inputs), inputs.get(MASK_KEY)
    encoded = graph.obs_spec.encode(raw)
    values = agent.dist_params(encoded) if isinstance(agent, PolicyActor) else agent.q_values(encoded)
    expected = {"action": agent.act(raw, action_mask=mask), graph.answer_name: values}
    if agent.rnn_state is not None and graph.rnn_state_size:
        expected["new_rnn_state"] = agent.rnn_state[:, : graph.rnn_state_size]
    largest, ties = 0.0, 0
    for name in expected.keys() & outputs.keys():  # a C file gives actions only
        ours, theirs = expected[name], outputs[name]
        if theirs.shape != ours.shape:
            raise BadInput(f"the export gives {name} {theirs.shape}, the agent {ours.shape}; nothing is written")
        if name == "action" and graph.action_spec.kind != "box":
            ties = _count_ties(graph.action_spec, theirs, ours, values, mask)
        else:
            largest = max(largest, _difference(name, theirs, ours, graph.action_spec))
    return largest, ties


def _difference(name: str, theirs: Array, ours: Array, spec: ActionSpec) -> float:
    """The largest difference; raises beyond `TOLERANCE`. It is relative where numbers are above 1: to the width of an
    action's bounds, and to the largest output of the observation, since both are sums that large numbers cancel in."""
    off, scale = np.abs(theirs.astype(np.float64) - ours).reshape(len(theirs), -1), np.abs(ours)
    scale = scale.reshape(off.shape) if name == "action" else scale.max(axis=1, keepdims=True)
    if name == "action":
        width = np.array(spec.high) - np.array(spec.low)
        scale = np.maximum(scale, np.where(np.isfinite(width), width, 0.0))
    largest = float((off / np.maximum(1.0, scale)).max(initial=0.0))
    if not largest <= TOLERANCE:  # also where it is NaN
        raise BadInput(f"the export differs from the agent by {largest:.2g} in {name}; nothing is written")
    return largest


def _count_ties(spec: ActionSpec, theirs: Array, ours: Array, values: Array, mask: Array | None) -> int:
    """The number of rows with another action; raises unless the agent itself values both the same, up to rounding."""
    sizes = spec.sizes or (2,) * spec.entries
    if not spec.sizes:  # bits: their logit against 0
        values = np.stack([np.zeros_like(values), values], axis=-1).reshape(len(values), -1)
    values = values if mask is None else np.where(mask, values, -np.inf)
    chosen = theirs.reshape(len(theirs), -1).astype(np.int64) - np.array(spec.starts or 0)
    other = np.flatnonzero((theirs != ours).reshape(len(theirs), -1).any(axis=1))
    for row in other:
        slack = TOLERANCE * max(1.0, np.abs(values[row][np.isfinite(values[row])]).max(initial=0.0))
        for part, choice in zip(np.split(values[row], np.cumsum(sizes)[:-1]), chosen[row], strict=True):
            if not 0 <= choice < len(part) or not part.max() - part[choice] <= slack:
                act, expected = (shown(np.asarray(action).tolist()) for action in (theirs[row], ours[row]))
                raise BadInput(f"the export acts {act} where the agent acts {expected}; nothing is written")
    return len(other)
