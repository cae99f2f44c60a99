"""Specs say what Gymnasium's spaces say, also after a trip through JSON."""

import json

import numpy as np
import pytest
from gymnasium import spaces

from drl.core.errors import BadInput
from drl.core.specs import ActionSpec, ObsSpec
from drl.envs.spaces import action_spec, collate, encode_fresh, obs_spec

OBSERVATIONS = {
    "box": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "box float64 matrix": spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
    "box of ints": spaces.Box(-5, 5, (4,), np.int32),
    "scalar box": spaces.Box(0.0, 1.0, (), np.float32),
    "image": spaces.Box(0, 255, (5, 4, 3), np.uint8),
    "discrete": spaces.Discrete(4),
    "discrete from -2": spaces.Discrete(4, start=-2),
    "multi_discrete": spaces.MultiDiscrete([2, 5, 3]),
    "multi_discrete with starts": spaces.MultiDiscrete([2, 5], start=[1, -3]),
    "multi_discrete matrix": spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[0, 1], [2, 3]]),
    "multi_binary": spaces.MultiBinary(5),
    "multi_binary matrix": spaces.MultiBinary((2, 3)),
    "dict": spaces.Dict(b=spaces.Discrete(3, start=2), a=spaces.Box(-1, 1, (2, 2)), c=spaces.MultiBinary(2)),
    "nested": spaces.Tuple(
        [
            spaces.Dict(x=spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, ())]), y=spaces.MultiDiscrete([2, 2])),
            spaces.Box(-9, 9, (2, 2), np.int8),
        ]
    ),
}


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_encoding_is_gymnasiums_flatten(name):
    space = OBSERVATIONS[name]
    space.seed(0)
    spec = obs_spec(space)
    samples = [space.sample() for _ in range(20)]
    encoded = spec.encode(collate(spec, samples))
    assert encoded.shape == (20, *spec.shape)
    assert encoded.dtype == spec.dtype
    for row, sample in zip(encoded, samples, strict=True):
        expected = np.moveaxis(sample, 2, 0).ravel() if name == "image" else spaces.utils.flatten(space, sample)
        assert np.allclose(row.ravel(), expected)
        assert np.array_equal(spec.encode_one(sample), row)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_observation_specs_survive_json(name):
    spec = obs_spec(OBSERVATIONS[name])
    assert ObsSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_encode_fresh_shares_no_memory(name):
    space = OBSERVATIONS[name]
    spec = obs_spec(space)
    batch = collate(spec, [space.sample() for _ in range(3)])
    encoded = encode_fresh(spec, batch, 3)
    kept = encoded.copy()
    _scribble(batch)
    assert np.array_equal(encoded, kept)


def _scribble(batch):
    if isinstance(batch, np.ndarray):
        batch[...] = 0
        return
    for part in batch.values() if isinstance(batch, dict) else batch:
        _scribble(part)


ACTIONS = {
    "discrete": spaces.Discrete(3),
    "discrete from 5": spaces.Discrete(3, start=5),
    "multi_discrete": spaces.MultiDiscrete([2, 3], start=[0, 4]),
    "multi_discrete matrix": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "multi_binary": spaces.MultiBinary((2, 2)),
    "box": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)),
    "box float64 matrix": spaces.Box(-0.1, 0.3, (2, 2), np.float64),
    "half-open box": spaces.Box(np.float32([0.0, -np.inf, -1.0]), np.float32([np.inf, 1.0, 1.0])),
    "unbounded box": spaces.Box(-np.inf, np.inf, (2,), np.float32),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_every_policy_action_lands_in_the_space(name):
    space = ACTIONS[name]
    spec = action_spec(space)
    rng = np.random.default_rng(0)
    if spec.kind == "box":
        action = rng.normal(0, 3, (200, spec.entries)).astype(np.float32)
    elif spec.kind == "multi_binary":
        action = rng.integers(0, 2, (200, spec.entries))
    else:
        action = np.stack([rng.integers(0, size, 200) for size in spec.sizes], axis=1)
        action = action[:, 0] if spec.kind == "discrete" else action
    in_env = spec.to_env(action)
    for row in in_env:
        assert space.contains(row)
    if space.dtype is not None and spec.kind != "discrete":
        assert in_env.dtype == space.dtype


@pytest.mark.parametrize("name", ["box", "box float64 matrix"])
def test_both_bounds_are_reached_exactly(name):
    space = ACTIONS[name]
    spec = action_spec(space)
    ends = spec.to_env(np.stack([np.full(spec.entries, -1.0), np.full(spec.entries, 1.0)]).astype(np.float32))
    assert np.array_equal(ends[0], space.low)
    assert np.array_equal(ends[1], space.high)


@pytest.mark.parametrize("name", ACTIONS)
def test_action_specs_survive_json(name):
    spec = action_spec(ACTIONS[name])
    assert ActionSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2)), spaces.Dict(a=spaces.Text(3))])
def test_other_observation_spaces_are_refused_by_name(space):
    with pytest.raises(BadInput, match=r"(Text|Sequence).*expected Box"):
        obs_spec(space)


@pytest.mark.parametrize("space", [spaces.Box(0, 5, (2,), np.int64), spaces.Tuple([spaces.Discrete(2)])])
def test_other_action_spaces_are_refused_by_name(space):
    with pytest.raises(BadInput, match=r"(Box|Tuple).*expected Discrete"):
        action_spec(space)


def test_bytes_inside_a_dict_are_divided_by_255():
    """As a model does with an image that stands alone; a vector beside it keeps its numbers."""
    space = spaces.Dict(image=spaces.Box(0, 255, (2, 2), np.uint8), speed=spaces.Box(-9, 9, (1,)))
    obs = {"image": np.full((1, 2, 2), 255, np.uint8), "speed": np.array([[7.0]], np.float32)}
    np.testing.assert_array_equal(obs_spec(space).encode(obs), [[1, 1, 1, 1, 7]])
