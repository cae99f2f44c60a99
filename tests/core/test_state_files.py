import json
import os

import numpy as np
import pytest

from drl.core.agent_files import find_agent, read_agent, write_agent
from drl.core.errors import BadInput, UnusableFile
from drl.core.safe_files import remove_drafts, write_atomically
from drl.core.seeding import Seeds, generator_state
from drl.core.state_files import read_state, write_state


def test_nested_state_comes_back_as_it_was(tmp_path):
    state = {
        "array": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "scalar": np.float64(0.1),
        "none": None,
        "list": [1, "two", {"deep": np.zeros((0, 2), np.float32)}],
        "rng": generator_state(Seeds(3).generator("x")),  # has 128-bit integers
        "flags": np.array([True, False]),
        "number": np.array(7.5),
    }
    write_state(tmp_path / "c", state)
    again = read_state(tmp_path / "c")
    np.testing.assert_array_equal(again["array"], state["array"])
    assert again["array"].dtype == np.uint8
    assert again["list"][2]["deep"].shape == (0, 2)
    assert again["rng"] == state["rng"]
    assert (again["scalar"], again["none"], again["number"]) == (0.1, None, 7.5)


@pytest.mark.parametrize("position", [10, 200, -1])
def test_one_flipped_bit_is_found(tmp_path, position):
    write_state(tmp_path, {"x": np.arange(100.0)})
    path = tmp_path / "arrays.safetensors"
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(UnusableFile, match="damaged"):
        read_state(tmp_path)


def test_a_half_written_state_is_refused(tmp_path):
    write_state(tmp_path, {"x": np.arange(3.0)})
    (tmp_path / "state.json").write_text('{"format": 1, "che')
    with pytest.raises(UnusableFile, match="not valid JSON"):
        read_state(tmp_path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "file"
    write_atomically(file, b"old")

    def full(*_):
        assert file.read_bytes() == b"old"  # a reader in the middle of it
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(file, b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_an_agent_is_replaced_in_one_piece(tmp_path):
    names = ("engine", "variant", "architecture", "distribution", "obs_spec", "action_spec", "normalizer", "notes")
    card = {name: {} for name in names} | {"engine": "torch", "variant": "q_value"}
    write_agent(tmp_path / "agent", card, {"w": np.zeros(3)})
    write_agent(tmp_path / "agent", card, {"w": np.ones(3)})
    assert len(list((tmp_path / "agent").iterdir())) == 2
    np.testing.assert_array_equal(read_agent(tmp_path)[1]["w"], np.ones(3))
    assert find_agent(tmp_path / "agent" / "card.json") == tmp_path / "agent"


def test_a_card_has_a_checksum_of_its_own_since_format_3(tmp_path):
    names = ("architecture", "distribution", "obs_spec", "action_spec", "normalizer", "notes")
    card = {name: {} for name in names} | {"engine": "torch", "variant": "q_value"}
    write_agent(tmp_path, card, {"w": np.zeros(3)})
    path = tmp_path / "card.json"
    written = json.loads(path.read_text())
    for change in ({"engine": "jax"}, {"content_checksum": "0"}):
        path.write_text(json.dumps(written | change, indent=2) + "\n")
        with pytest.raises(UnusableFile, match="damaged"):
            read_agent(tmp_path)
    path.write_text(json.dumps(written))  # other spaces
    with pytest.raises(UnusableFile, match="damaged"):
        read_agent(tmp_path)
    del written["content_checksum"]
    path.write_text(json.dumps(written, indent=2) + "\n")
    with pytest.raises(UnusableFile, match="damaged"):
        read_agent(tmp_path)
    path.write_text(json.dumps(written | {"format": 2}))
    with pytest.raises(UnusableFile, match="has format 2, this drl reads format 3"):
        read_agent(tmp_path)


def test_a_killed_process_leaves_no_drafts_for_ever(tmp_path):
    (tmp_path / ".card.json.0123456789abcdef.part").touch()
    (tmp_path / ".keep").touch()
    remove_drafts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".keep"]


def test_what_is_not_an_agent_is_said_so(tmp_path):
    with pytest.raises(BadInput, match="does not exist"):
        find_agent(tmp_path / "nothing")
    with pytest.raises(BadInput, match="holds no agent"):
        find_agent(tmp_path)
    (tmp_path / "card.json").write_text('{"format": 99}')
    with pytest.raises(UnusableFile, match="format 99"):
        read_agent(tmp_path)
