"""Golden pairs: observations with an agent's actions, stored on its card. Loading the agent checks that it still acts
the same, on another machine, in another engine or version.

Actions are greedy, in the environment's units. The network's outputs (logits, means, action values) are stored beside
them: small differences in them are normal, and a tie may fall either way.
"""

import base64
import math
from typing import NamedTuple, Protocol

import numpy as np

from drl.core.specs import NUMBERS, ActionSpec, Array, Distribution, DType, ObsSpec, PlainDict, PlainValue, RawObs

MOST_PAIRS = 64  # pairs that a card may have
ALIKE = 1e-4  # largest difference of continuous actions and their means, relative to their scale
CLEAR = 1e-4  # margin of a choice, relative to the scale of the outputs, from which on it must not change
DRIFT = 1e-3  # largest difference of logits and action values, relative to their scale


class GoldenInputs(NamedTuple):
    """Independent observations; for a recurrent agent, one sequence."""

    obs: Array  # [N, …] encoded
    action_mask: Array | None = None  # [N, choices] legal actions


class GoldenPairs(NamedTuple):
    """Observations and an agent's actions."""

    inputs: GoldenInputs
    action: Array  # [N, …] in the environment's units
    outputs: Array | None = None  # [N, P] parameters of the policy's distribution, or action values


class Acting(Protocol):
    """The part of an agent that maps encoded observations to actions."""

    obs_spec: ObsSpec
    action_spec: ActionSpec
    recurrent: bool  # whether it has an `rnn_state`; then `begin` must be called when episodes begin
    rnn_state: Array | None  # [N, S] of N environments; evaluation replaces it temporarily
    golden_inputs: GoldenInputs | None  # observations whose actions are stored with it; None: random ones

    @property
    def distribution(self) -> Distribution | None:
        """The distribution of its policy; None: it acts by action values."""

    def decide(self, obs: Array, explore: bool = False, action_mask: Array | None = None) -> Array:
        """Return actions in the policy's units for a batch of encoded observations."""

    def outputs(self, obs: Array) -> Array | None:
        """Return distribution parameters or action values for a batch of encoded observations; None: it has neither."""


class InputSampler:
    """Samples a few observations of an evaluation, evenly spread over its steps."""

    def __init__(self, most: int):
        self.most: int = most
        self.every: int = 1
        self.steps: int = 0
        self.kept: list[tuple[Array, Array | None]] = []  # of every `every`-th step

    def see(self, obs: Array, action_mask: Array | None) -> None:
        """Add a step of N environments; at most one of the observations is kept."""
        if len(self.kept) == 2 * self.most:
            self.kept, self.every = self.kept[::2], 2 * self.every
        if self.steps % self.every == 0:
            env = len(self.kept) % len(obs)
            self.kept.append((obs[env].copy(), None if action_mask is None else action_mask[env].copy()))
        self.steps += 1

    def inputs(self) -> GoldenInputs:
        """Return the sample."""
        places = np.linspace(0, len(self.kept) - 1, min(self.most, len(self.kept))).round().astype(int)
        obs, masks = zip(*(self.kept[place] for place in places), strict=True)
        return GoldenInputs(np.stack(obs), None if masks[0] is None else np.stack(masks))


def pairs_for(obs_spec: ObsSpec) -> int:
    """Return the number of pairs of an agent: fewer if its observations are large."""
    return 16 if obs_spec.dtype.itemsize * math.prod(obs_spec.shape) <= 4096 else 8


def sample_obs(obs_spec: ObsSpec, rows: int) -> Array:
    """Return random encoded observations, the same at every call; numbers of a box are standard normal."""
    return obs_spec.encode(_raw(obs_spec, rows, np.random.default_rng(0)))


def _raw(spec: ObsSpec, rows: int, rng: np.random.Generator) -> RawObs:
    if spec.parts:
        parts = [_raw(part, rows, rng) for part in spec.parts]
        return dict(zip(spec.keys, parts, strict=True)) if spec.kind == "dict" else tuple(parts)
    if spec.sizes:
        values = rng.integers(spec.sizes, size=(rows, len(spec.sizes))) + np.asarray(spec.starts or 0)
        return values[:, 0] if spec.kind == "discrete" else values.reshape(rows, *spec.box_shape)
    if spec.kind == "multi_binary":
        return rng.integers(2, size=(rows, *spec.box_shape))
    if spec.dtype == np.uint8:
        return rng.integers(256, size=(rows, *spec.box_shape)).astype(np.uint8)
    return rng.normal(size=(rows, *spec.box_shape)).astype(np.float32)


def make_pairs(agent: Acting) -> GoldenPairs | None:
    """Make pairs of the agent's `golden_inputs`, or of random observations; None if its actions or outputs are not
    finite."""
    inputs = agent.golden_inputs or GoldenInputs(sample_obs(agent.obs_spec, pairs_for(agent.obs_spec)))
    action, outputs = _answer(agent, inputs)
    finite = np.isfinite(action).all() and (outputs is None or np.isfinite(outputs).all())
    return GoldenPairs(inputs, action, outputs) if finite else None


def _answer(agent: Acting, inputs: GoldenInputs) -> tuple[Array, Array | None]:
    """Return actions and outputs. No random number is drawn, and the agent's `rnn_state` is restored."""
    rows = len(inputs.obs)
    remembered, agent.rnn_state = agent.rnn_state, None
    actions, outputs = [], []
    try:
        for step in [slice(i, i + 1) for i in range(rows)] if agent.recurrent else [slice(rows)]:
            obs, mask = inputs.obs[step], None if inputs.action_mask is None else inputs.action_mask[step]
            if (output := agent.outputs(obs)) is not None:
                outputs.append(np.asarray(output, np.float32))
            actions.append(agent.action_spec.to_env(agent.decide(obs, False, mask)))
    finally:
        agent.rnn_state = remembered
    spec, joined = agent.action_spec, np.concatenate(outputs) if outputs else None
    if joined is not None and spec.kind != "box" and joined.shape != (rows, _num_outputs(spec)):
        joined = None  # a user's agent whose outputs are not one number per choice
    return np.concatenate(actions), joined


def pairs_to_json(pairs: GoldenPairs) -> PlainDict:
    """Convert pairs to plain data for an agent's card; numbers are base64, bit by bit."""
    obs, mask = pairs.inputs
    arrays: dict[str, Array | None] = {f"obs.{name}": obs[name] for name in obs.dtype.names or ()} or {"obs": obs}
    arrays |= {"action": pairs.action, "action_mask": mask, "outputs": pairs.outputs}
    return {
        name: {
            "dtype": array.dtype.newbyteorder("<").str,
            "shape": list(array.shape),
            "data": base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode(),
        }
        for name, array in arrays.items()
        if array is not None
    }


def pairs_from_json(plain: PlainValue, obs_spec: ObsSpec, action_spec: ActionSpec) -> GoldenPairs:
    """Read what `pairs_to_json` wrote; anything else is a `ValueError`, a `TypeError` or a `KeyError`."""
    arrays = {name: _array(packed) for name, packed in plain.items()}
    action = arrays["action"]
    rows = len(action)
    if not 1 <= rows <= MOST_PAIRS:
        raise ValueError(f"there are {rows} pairs")
    obs = np.empty((rows, *obs_spec.shape), obs_spec.dtype)
    if obs.dtype.names:
        for name in obs.dtype.names:
            obs[name] = _shaped(arrays[f"obs.{name}"], obs[name].shape, obs[name].dtype)
    else:
        obs[...] = _shaped(arrays["obs"], obs.shape, obs.dtype)
    mask, outputs = arrays.get("action_mask"), arrays.get("outputs")
    if mask is not None:
        mask = _shaped(mask, (rows, action_spec.num_choices)).astype(bool)
    if outputs is not None:
        box = action_spec.kind == "box"
        outputs = _shaped(outputs, (rows, outputs.shape[-1] if box else _num_outputs(action_spec)))
    return GoldenPairs(GoldenInputs(obs, mask), _shaped(action, (rows, *action_spec.shape)), outputs)


def _array(packed: PlainDict) -> Array:
    dtype = np.dtype(packed["dtype"])
    if dtype.kind not in NUMBERS:
        raise ValueError(f"numbers of type {dtype}")
    array = np.frombuffer(base64.b64decode(packed["data"], validate=True), dtype).reshape(packed["shape"])
    if not np.isfinite(array).all():
        raise ValueError("a number is not finite")
    return array


def _shaped(array: Array, shape: tuple[int, ...], dtype: DType | None = None) -> Array:
    if array.shape != shape or dtype not in (None, array.dtype):
        raise ValueError(f"an array is {array.dtype} of shape {array.shape}; expected {dtype or ''} {shape}")
    return array


def _num_outputs(spec: ActionSpec) -> int:
    """Return the number of outputs of a network that chooses: one per choice or bit."""
    return sum(spec.sizes) or spec.entries


def difference(agent: Acting, pairs: GoldenPairs) -> str | None:
    """Describe how an agent acts differently from its pairs; None: it acts the same."""
    try:
        action, outputs = _answer(agent, pairs.inputs)
    except Exception as error:  # a user's model can raise anything
        return f"it raises {type(error).__name__}: {' '.join(str(error).split())[:100]}"
    rows, spec = len(action), agent.action_spec
    if not (np.isfinite(action).all() and (outputs is None or np.isfinite(outputs).all())):
        return "an action or an output of the network is not a finite number"
    before, now = (array.reshape(rows, -1).astype(np.float64) for array in (pairs.action, action))
    drift, scale = np.zeros((rows, 1)), np.ones(1)
    if pairs.outputs is not None and outputs is not None:
        if outputs.shape != pairs.outputs.shape:
            return f"its network has {outputs.shape[1]} outputs and had {pairs.outputs.shape[1]}"
        # Logits and means have a natural unit; action values are as large as the rewards.
        smallest = 0.1 if agent.distribution is None else 1.0
        scale = np.maximum(np.abs(pairs.outputs).max(axis=0), smallest)
        drift = np.abs(outputs - pairs.outputs) / scale
    if spec.kind == "box":
        width = np.asarray(spec.high, np.float64) - np.asarray(spec.low, np.float64)
        units = np.maximum(np.abs(before).max(axis=0), np.where(np.isfinite(width), width / 2, 1.0))
        other = np.abs(now - before) > ALIKE * units
    else:
        other = (now != before) & (_margins(spec, pairs) > CLEAR * scale.max())
    if other.any():
        return f"{np.count_nonzero(other.any(axis=1))} of {rows} actions differ"
    if drift.max() > (ALIKE if spec.kind == "box" else DRIFT):
        return f"the network's outputs differ by up to {drift.max():.2g} of their scale"
    return None


def _margins(spec: ActionSpec, pairs: GoldenPairs) -> Array:
    """Return how far the outputs are from another choice, for each entry of the actions `[N, entries]`."""
    outputs, mask = pairs.outputs, pairs.inputs.action_mask
    if outputs is None:
        return np.full((len(pairs.action), spec.entries), np.inf)
    if spec.kind == "multi_binary":
        free = True if mask is None else mask.reshape(len(mask), -1, 2).all(axis=2)
        return np.where(free, np.abs(outputs), np.inf)
    legal = outputs if mask is None else np.where(mask, outputs, -np.inf)
    margins = []
    for part in np.split(legal, np.cumsum(spec.sizes)[:-1], axis=1):
        ranked = np.sort(np.pad(part, ((0, 0), (1, 0)), constant_values=-np.inf), axis=1)  # also for a single choice
        margins.append(np.where(np.isneginf(ranked[:, -2]), np.inf, ranked[:, -1] - ranked[:, -2]))
    return np.stack(margins, axis=1)
