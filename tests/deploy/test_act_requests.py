"""What a client may send: wrong requests get one clear line, and none takes much more memory than its body."""

import json
import tracemalloc

import numpy as np
import pytest

from drl.deploy.act_requests import RefusedRequest, read_request
from tests.deploy.tiny_agents import make_agent

WRONG = [  # agent, body, what the line says
    ("ppo", b"", "the body is not JSON"),
    ("ppo", b"\xff\xfe", "the body is not JSON"),
    ("ppo", b"[1, 2, 3, 4]", 'expected a JSON object with "obs"'),
    ("ppo", b'"obs"', 'expected a JSON object with "obs"'),
    ("ppo", b'{"obs": [1, 2, 3, 4], "batch": []}', 'expected a JSON object with "obs"'),
    ("ppo", b'{"obs": [1, 2, 3, 4], "seed": 1}', "unknown key 'seed'"),
    ("ppo", b'{"obs": [1, 2, 3]}', "obs has the shape [3]; expected [4]"),
    ("ppo", b'{"obs": [[1, 2, 3, 4]]}', "obs has the shape [1, 4]; expected [4]"),
    ("ppo", b'{"obs": 1}', "obs has the shape []; expected [4]"),
    ("ppo", b'{"obs": null}', "expected [4]"),
    ("ppo", b'{"obs": {}}', "expected [4]"),
    ("ppo", b'{"obs": [1, 2, 3, "4"]}', "expected numbers"),
    ("ppo", b'{"obs": [1, 2, 3, null]}', "expected numbers"),
    ("ppo", b'{"obs": [true, true, false, true]}', "obs has True; expected numbers"),
    ("ppo", b'{"obs": [true, 0, 0, 1.5]}', "obs has True; expected numbers"),
    ("ppo", b'{"obs": [1, 2, {}, 3]}', "obs has {}; expected numbers"),
    ("ppo", b'{"obs": "abcd"}', "obs has the shape []; expected [4]"),
    ("ppo", b'{"batch": [[1, 2, 3, 4], "abcd"]}', "obs is not an array of numbers of the shape [4]"),
    ("ppo", b'{"batch": [[1, 2, 3, 4], {"0": 1}]}', "obs is not an array of numbers of the shape [4]"),
    ("ppo", b'{"batch": [[1, 2, 3, 4], [[1], [2], [3], [4]]]}', "obs is not an array of numbers of the shape [4]"),
    ("ppo", b'{"obs": [1, 2, 3, [4]]}', "obs is not an array of numbers of the shape [4]"),
    ("ppo", b'{"obs": [1, 2, 3, NaN]}', "the body has a NaN; expected finite numbers"),
    ("ppo", b'{"obs": [1, 2, 3, -Infinity]}', "the body has a -Infinity"),
    ("ppo", b'{"obs": [1, 2, 3, 1e999]}', "a number that is not finite"),
    ("ppo", b'{"obs": [1, 2, 3, 1e39]}', "a number that is not finite"),
    ("ppo", b'{"obs": [1, 2, 3, ' + b"9" * 400 + b"]}", "expected numbers"),
    ("ppo", b'{"obs": [1, 2, 3.5, ' + b"9" * 400 + b"]}", "expected numbers"),
    ("ppo", b'{"obs": ' + b"9" * 5000 + b"}", "the body is not JSON"),
    ("ppo", b'{"obs": ' + b"[" * 100_000 + b"}", "nested too deeply"),
    ("ppo", b'{"obs": ' + b"[" * 70 + b"1" + b"]" * 70 + b"}", "obs is not an array of numbers"),
    ("ppo", b'{"batch": []}', "batch is []; expected a list of observations"),
    ("ppo", b'{"batch": 3}', "batch is 3; expected a list of observations"),
    ("ppo", b'{"batch": [[1, 2, 3, 4], [1, 2]]}', "obs is not an array of numbers of the shape [4]"),
    ("ppo", b'{"obs": [1, 2, 3, 4], "action_mask": [1, 1]}', "the actions are a Box"),
    ("ppo", b'{"obs": [1, 2, 3, 4], "rnn_state": [1]}', "this agent is not recurrent"),
    ("ppo_gru", b'{"obs": [1, 2, 3, 4], "rnn_state": [1]}', "rnn_state has the shape [1]; expected [12]"),
    (
        "ppo_gru",
        b'{"obs": [1, 2, 3, 4], "rnn_state": [' + b"true, " * 11 + b"1]}",
        "rnn_state has True; expected numbers",
    ),
    ("q", b'{"obs": 1, "action_mask": ["1", 1, 1, 1, 1]}', "action_mask has '1'; expected numbers"),
    ("q", b'{"obs": "1"}', "obs has '1'; expected numbers"),
    ("ppo_gru", b'{"batch": [[1, 2, 3, 4]], "rnn_state": []}', "expected a list with one for each of the 1"),
    ("q", b'{"obs": 6}', "an observation is 6 in entry 0; its space has 6 values from 0 there"),
    ("q", b'{"obs": -1}', "an observation is -1"),
    ("q", b'{"obs": 1.5}', "obs has a fraction; expected whole numbers"),
    ("q", b'{"obs": true}', "expected numbers"),
    ("q", b'{"obs": 1, "action_mask": [0, 0, 0, 0, 0]}', "action_mask leaves no legal action"),
    ("q", b'{"obs": 1, "action_mask": [1, 1]}', "action_mask has the shape [2]; expected [5]"),
    ("q", b'{"obs": 1, "action_mask": [2, 1, 1, 1, 1]}', "expected true or false for each choice"),
    ("q", b'{"batch": [1, 2], "action_mask": [1, 1, 1, 1, 1]}', "expected a list with one for each of the 2"),
    ("ppo_seeing", b'{"obs": [1]}', "obs is [1]; expected an object with the keys camera, goal, speed"),
    ("ppo_seeing", b'{"obs": {"camera": []}}', "obs has the keys 'camera'; expected an object with the keys camera"),
    ("ppo_seeing", b'{"obs": {"camera": [], "goal": 2, "speed": [0, 0], "x": 1}}', "expected an object with the keys"),
    ("ppo_seeing", b'{"obs": {"camera": [], "goal": 2, "speed": [0, 0]}}', "obs.camera has the shape [0]; expected"),
]


@pytest.mark.parametrize(("name", "body", "line"), WRONG)
def test_wrong_input_gets_one_clear_line(name, body, line):
    with pytest.raises(RefusedRequest) as refused:
        read_request(make_agent(name), body, 256)
    assert refused.value.status == 422
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_a_constant_is_named_in_a_line_of_its_own(constant):
    with pytest.raises(RefusedRequest) as refused:
        read_request(make_agent("ppo"), f'{{"obs": [1, 2, 3, {constant}]}}'.encode(), 256)
    assert str(refused.value) == f"the body has a {constant}; expected finite numbers"


def test_booleans_are_for_bits_and_masks():
    bits = {"far": [[0, 0], [0, 0]], "flags": [[True, False, 1], 3], "kind": [1, -1], "pixels": [0] * 5}
    body = {"obs": bits, "action_mask": [True, False, 1, 0, True, True, True]}
    asked = read_request(make_agent("ppo_parts"), json.dumps(body).encode(), 1)
    assert asked.action_mask.tolist() == [[True, False, True, False, True, True, True]]
    bits["flags"][1] = True
    with pytest.raises(RefusedRequest, match=r"obs.flags.1 has True; expected numbers"):
        read_request(make_agent("ppo_parts"), json.dumps(body).encode(), 1)


LONG = "a" * 100_000
GREEDY = {  # what NumPy would make hundreds of megabytes of
    "texts": {"batch": [[LONG, "", "", ""], *[["", "", "", ""]] * 255]},
    "a text behind numbers": {"batch": [*[[1, 2, 3, 4]] * 255, [1, 2, 3, LONG]]},
    "texts in a mask": {"batch": [[1, 2, 3, 4]] * 256, "action_mask": [[LONG, "", "", "", ""], *[[""] * 5] * 255]},
    "texts for states": {"batch": [[1, 2, 3, 4]] * 256, "rnn_state": [[LONG] + [""] * 11, *[[""] * 12] * 255]},
}


@pytest.mark.parametrize("body", GREEDY.values(), ids=GREEDY.keys())
def test_a_request_takes_not_much_more_memory_than_its_body(body):
    agent, sent = make_agent("ppo_gru"), json.dumps(body).encode()
    tracemalloc.start()
    try:
        with pytest.raises(RefusedRequest, match="expected numbers"):
            read_request(agent, sent, 256)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * len(sent)


def test_pixels_outside_of_their_type_are_refused():
    agent = make_agent("q_cnn")
    row = np.zeros((40, 44, 3), int).tolist()
    for value, line in ((256, "outside of 0 to 255"), (-1, "outside of 0 to 255"), (0.5, "has a fraction")):
        row[0][0][0] = value
        with pytest.raises(RefusedRequest, match=line):
            read_request(agent, json.dumps({"obs": row}).encode(), 8)
