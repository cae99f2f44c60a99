"""An exported agent acts as the agent: every kind of model, every target, any number of rows."""

import errno
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from drl import __version__
from drl.agents.load_agent import load_agent
from drl.cli.entry import main
from drl.core.agent_files import read_agent
from drl.core.errors import BadInput
from drl.core.golden_pairs import GoldenInputs
from drl.deploy.c_export import find_compiler
from drl.deploy.export_agent import TARGETS, export_agent, gives_masks
from drl.deploy.policy_graph import PolicyGraph, check_parity, golden_inputs, raw_observations, sample_inputs
from drl.deploy.torch_export import TorchPolicy
from tests.deploy.tiny_agents import IMAGE, KINDS, PARTS, SEEING, make_agent, save_tiny

QUICK = {("onnx", "ppo_lstm"), ("onnx", "ppo_parts"), ("torch-export", "ppo_seeing"), ("jax-export", "q_rainbow")}
QUICK |= {("jax-export", "ppo_seeing"), ("jax-export", "ppo_gru"), ("jax-export", "ppo_lstm"), ("onnx", "q_rainbow")}


def cases():
    for to, name in ((to, name) for to in TARGETS for name in KINDS):
        if to == "c" and KINDS[name].not_c:
            continue  # refused; see below
        slow = to != "c" and (to, name) not in QUICK
        yield pytest.param(to, name, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.default("onnx-q_rainbow", "torch-export-ppo_seeing", "jax-export-ppo_lstm", "c-*")
@pytest.mark.parametrize(("to", "name"), cases())
def test_a_file_acts_as_the_agent(to, name, tmp_path):
    if to == "c" and find_compiler() is None:
        pytest.skip("there is no C compiler (cc, gcc or clang)")
    folder = save_tiny(name, tmp_path, env="CartPole-v1")
    exported = export_agent(folder, to, masked=KINDS[name].masked)
    assert exported.path == tmp_path / f"agent{TARGETS[to].suffix}"
    assert exported.path.stat().st_size > 0
    assert exported.parity.rows == 1000
    assert exported.parity.golden > 0
    assert exported.parity.ties == 0
    assert exported.parity.largest < 1e-5


@pytest.mark.parametrize("name", KINDS)
def test_the_module_acts_as_the_agent(name):
    """What the files are made of, without making them: encoding, normalizer, network, masks and units."""
    agent, kind = make_agent(name), KINDS[name]
    policy = TorchPolicy(agent, kind.masked)

    def run(inputs):
        with torch.no_grad():
            return {k: v.numpy() for k, v in policy({k: torch.from_numpy(v) for k, v in inputs.items()}).items()}

    encoded = agent.obs_spec.encode(
        raw_observations(agent.obs_spec, sample_inputs(policy.graph, 5, np.random.default_rng(2)))
    )
    parity = check_parity(agent, policy.graph, run, golden_inputs(policy.graph, GoldenInputs(encoded)))
    assert (parity.rows, parity.golden, parity.ties) == (1000, 5, 0)
    inputs = sample_inputs(policy.graph, 3, np.random.default_rng(0))
    state = {"rnn_state": np.ones((3, policy.graph.rnn_state_size), np.float32), "reset": np.ones(3, bool)}
    outputs = run(inputs | (state if policy.graph.rnn_state_size else {}))
    assert {k: (v.dtype.name, v.shape[1:]) for k, v in outputs.items()} == {
        port.name: (port.dtype, port.shape) for port in policy.graph.outputs
    }


def test_noisy_layers_are_their_means_also_after_exploring():
    agent = make_agent("q_rainbow")
    obs = np.ones((4, 4), np.float32)
    agent.act(obs, explore=True)
    with torch.no_grad():
        given = TorchPolicy(agent)({"obs": torch.from_numpy(obs)})["q_values"].numpy()
    np.testing.assert_allclose(given, agent.q_values(obs), atol=1e-5)


@pytest.mark.parametrize("spec", [PARTS, SEEING, IMAGE])
def test_encoding_is_that_of_the_spec(spec):
    graph = PolicyGraph(spec, KINDS["q"].action, None, None)
    inputs = sample_inputs(graph, 20, np.random.default_rng(0))
    expected = spec.encode(raw_observations(spec, inputs))
    seen = spec.encode_leaves({path: inputs["obs" + (f".{path}" if path else "")] for path in spec.leaves})
    for path in expected.dtype.names or [""]:
        np.testing.assert_array_equal(seen[path] if path else seen, expected[path] if path else expected)


@pytest.mark.parametrize("name", ["q", "ppo_parts", "ppo_seeing", "q_cnn"])
def test_golden_pairs_become_raw_again(name):
    graph = PolicyGraph.of(make_agent(name), masked=True)
    inputs = sample_inputs(graph, 7, np.random.default_rng(0))
    encoded = graph.obs_spec.encode(raw_observations(graph.obs_spec, inputs))
    again = golden_inputs(graph, GoldenInputs(encoded, inputs["action_mask"]))
    assert again.keys() == inputs.keys()
    for port in graph.inputs:
        assert again[port.name].dtype == port.dtype
        np.testing.assert_allclose(again[port.name], inputs[port.name], rtol=1e-6)
    assert golden_inputs(graph, None) is None


def test_golden_pairs_in_the_file_are_checked(tmp_path):
    """A difference that only they would show is found."""
    agent = make_agent("ppo_gru")
    policy, golden = TorchPolicy(agent), GoldenInputs(np.full((4, 4), 77.0, np.float32))

    def run(inputs):
        with torch.no_grad():
            outputs = {k: v.numpy() for k, v in policy({k: torch.from_numpy(v) for k, v in inputs.items()}).items()}
        return outputs | {"dist_params": outputs["dist_params"] + (inputs["obs"][:, :1] == 77.0)}

    assert check_parity(agent, policy.graph, run).golden == 0
    with pytest.raises(BadInput, match="differs from the agent"):
        check_parity(agent, policy.graph, run, golden_inputs(policy.graph, golden))


@pytest.mark.full
def test_an_onnx_file_alone_is_enough(tmp_path):
    """onnxruntime, the file and a raw observation: nothing of ours."""
    import onnx
    import onnxruntime

    agent = load_agent(folder := save_tiny("q_rainbow", tmp_path, env="CartPole-v1"))
    path = export_agent(folder, "onnx", tmp_path / "policy.onnx").path
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    about = {prop.key: prop.value for prop in model.metadata_props}
    assert (about["env"], about["drl_version"]) == ("CartPole-v1", __version__)
    assert about["agent_checksum"] == read_agent(folder)[0]["checksum"]
    assert json.loads(about["obs_space"]) == agent.obs_spec.to_json()
    assert json.loads(about["action_space"]) == agent.action_spec.to_json()
    assert [axis.dim_param or axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim] == [
        "batch",
        4,
    ]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for rows in (1, 2, 33):
        obs = np.random.default_rng(rows).normal(2.0, 3.0, size=(rows, 4)).astype(np.float32)
        (action,) = session.run(["action"], {"obs": obs})
        np.testing.assert_array_equal(action, agent.act(obs))


def test_a_jax_agent_becomes_a_torch_file_and_the_reverse(tmp_path):
    trained = save_tiny("ppo", tmp_path / "by_jax", engine="jax")
    assert read_agent(trained)[0]["engine"] == "jax"
    assert export_agent(trained, "torch-export").parity.largest < 1e-5


def test_a_torch_file_alone_is_enough(tmp_path):
    folder = save_tiny("ppo", tmp_path)
    path = export_agent(folder, "torch-export").path
    about = {"drl.json": ""}
    policy = torch.export.load(path, extra_files=about).module()
    obs = torch.zeros(2, 4)
    np.testing.assert_allclose(policy({"obs": obs})["action"].detach(), load_agent(folder).act(obs.numpy()), atol=1e-5)
    assert json.loads(about["drl.json"])["drl_version"] == __version__


def test_a_file_that_acts_differently_is_not_written(tmp_path, monkeypatch):
    folder = save_tiny("q", tmp_path)
    made = TARGETS["c"].make

    def broken(*arguments):
        whole = made(*arguments)
        return whole._replace(run=lambda inputs: {"action": (whole.run(inputs)["action"] + 1) % 5})

    monkeypatch.setitem(TARGETS, "c", TARGETS["c"]._replace(make=broken))
    with pytest.raises(BadInput, match=r"the export acts \d where the agent acts \d; nothing is written"):
        export_agent(folder, "c")
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]


def test_outputs_that_differ_are_refused_and_ties_are_not():
    agent = make_agent("ppo")
    graph = PolicyGraph.of(agent)

    def run(off):
        def outputs(inputs):
            encoded = agent.obs_spec.encode(inputs["obs"])
            return {"action": agent.act(inputs["obs"]), "dist_params": agent.dist_params(encoded) * (1 + off)}

        return outputs

    assert check_parity(agent, graph, run(1e-6)).largest == pytest.approx(1e-6, rel=0.5)
    for off in (1e-4, np.nan):
        with pytest.raises(BadInput, match=r"differs from the agent by .* in dist_params"):
            check_parity(agent, graph, run(off))

    agent = make_agent("q")
    agent.model.head.advantage.weight.data[1] = agent.model.head.advantage.weight.data[0]
    agent.model.head.advantage.bias.data[1] = agent.model.head.advantage.bias.data[0]

    def swapped(inputs):
        action = agent.act(inputs["obs"])
        return {"action": np.where(action < 2, 1 - action, action)}

    assert check_parity(agent, PolicyGraph.of(agent), swapped).ties > 0


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.not_c])
def test_a_c_file_refuses_what_is_not_an_mlp_by_name(name, tmp_path):
    with pytest.raises(BadInput, match=rf"{KINDS[name].not_c}.*a C file is for MLPs .*--to onnx"):
        export_agent(save_tiny(name, tmp_path), "c")
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]


def test_a_c_file_says_how_to_use_it_and_when_it_was_not_checked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("drl.deploy.c_export.find_compiler", lambda: None)
    folder = save_tiny("sac", tmp_path, env="CartPole-v1")
    assert main(["export", str(folder), "--to", "c", "--out", str(tmp_path / "policy.c")]) == 0
    assert "not compared with the agent: there is no C compiler" in capsys.readouterr().out
    source = (tmp_path / "policy.c").read_text()
    comment = source[: source.index("*/")]
    assert "void drl_act(const float *obs, float *action);" in comment
    assert "env: CartPole-v1\n" in comment


@pytest.mark.parametrize("name", ["*/ int bad; /*", "*\\\n/ int bad; /*", "*??/\n/ int bad; /*", "a\r*/\x00é"])
def test_a_card_cannot_write_code_into_a_c_file(name, tmp_path):
    source = export_agent(save_tiny("sac", tmp_path, env=name), "c").path.read_text()
    assert source.count("*/") == source.count("/*") == 1
    (line,) = re.findall(r" \* env: (.*)\n", source)
    assert set(line) <= set("_/ aintbd-")


def test_masks_are_found_in_the_environment(tmp_path):
    masked = save_tiny("sac_discrete", tmp_path / "a", env="drl/LegalMoves-v0")
    assert gives_masks(load_agent(masked)) is True
    plain = save_tiny("q", tmp_path / "b", env="CartPole-v1")
    assert gives_masks(load_agent(plain)) is False
    unknown = save_tiny("q", tmp_path / "c", env="Nowhere-v0")
    assert gives_masks(load_agent(unknown)) is None
    with pytest.warns(UserWarning, match=r"unknown whether .* masks actions.*; add --action-mask on if it does"):
        assert "action_mask" not in export_agent(unknown, "c", masked=None).interface[0]
    assert "action_mask" in export_agent(masked, "c", masked=None).interface[0]


OWN = "my_own_games:Masked-v0"  # code of the user's own, which a card cannot have run


@pytest.mark.parametrize("env", [OWN, "drl/LegalMoves-v0", "CartPole-v1"])
@pytest.mark.parametrize("masked", [True, False])
def test_golden_pairs_tell_whether_there_are_masks(env, masked, tmp_path, monkeypatch):
    """Without the environment, which may be missing or not trusted."""
    monkeypatch.setattr("drl.deploy.export_agent.open_vec_env", lambda *_, **__: pytest.fail("it made the environment"))
    agent = make_agent("sac_discrete")
    legal = np.ones((3, 5), bool)
    legal[:, 0] = False
    agent.golden_inputs = GoldenInputs(np.ones((3, 4), np.float32), legal if masked else None)
    agent.save(tmp_path / "agent", env=env)
    assert gives_masks(load_agent(tmp_path / "agent")) is masked
    assert ("action_mask" in export_agent(tmp_path / "agent", "c", masked=None).interface[0]) is masked


def test_an_environment_that_is_not_trusted_is_not_called_missing(tmp_path):
    folder = save_tiny("q", tmp_path, env=OWN)
    with pytest.warns(UserWarning, match="code of your own, which an export does not run") as said:
        export_agent(folder, "c", masked=None)
    assert "cannot be made" not in str(said[0].message)


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path, capsys, monkeypatch):
    folder = save_tiny("q", tmp_path, env="CartPole-v1")
    monkeypatch.setattr("drl.deploy.export_agent.load_agent", lambda *_, **__: pytest.fail("it began"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afile").touch()
    (tmp_path / "loose").symlink_to("nothing")
    wrong = {
        "afile/x.c": "afile is not a folder; choose another --out",
        "afile": "afile exists and is not overwritten; choose another --out",
        "loose": "loose exists and is not overwritten; choose another --out",
        "x" * 300: "cannot be written (File name too long); choose another --out",
    }
    if Path("/proc/self").exists():
        wrong["/proc/x.c"] = "/proc/x.c cannot be written ("
    for out, message in wrong.items():
        assert main(["export", str(folder), "--to", "c", "--out", out]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["afile", "agent", "loose"]


@pytest.mark.parametrize("disk", ["full", "taken"])
def test_a_write_that_fails_is_one_line_and_leaves_nothing(disk, tmp_path, capsys, monkeypatch):
    """Also if another process writes the file while the export is made."""
    folder, path = save_tiny("q", tmp_path, env="CartPole-v1"), tmp_path / "x.c"
    made = TARGETS["c"].make

    def meanwhile(*arguments):
        if disk == "taken":
            path.write_bytes(b"theirs")
        else:
            monkeypatch.setattr("os.fsync", full)
        return made(*arguments)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setitem(TARGETS, "c", TARGETS["c"]._replace(make=meanwhile))
    assert main(["export", str(folder), "--to", "c", "--out", str(path)]) == 2
    why = {"full": "No space left on device", "taken": "File exists"}[disk]
    assert capsys.readouterr().err == f"drl: {path} cannot be written ({why}); choose another --out\n"
    left = {each.name: each.read_bytes() for each in tmp_path.iterdir() if each.is_file()}
    assert left == ({"x.c": b"theirs"} if disk == "taken" else {})


def test_the_command(tmp_path, capsys):
    folder = save_tiny("q_quantiles", tmp_path, env="CartPole-v1")
    assert main(["export", str(folder), "--to", "c", "--action-mask", "on"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == str(tmp_path / "agent.c")
    assert said[1].strip() == "int drl_act(const float *obs, const unsigned char *action_mask)"
    assert "1,000 observations and 16 golden pairs: actions equal" in said[2]
    before = (tmp_path / "agent.c").read_bytes()
    wrong = {
        ("--to", "c"): "exists and is not overwritten; choose another --out",
        ("--to", "tflite"): "cannot export to 'tflite'; expected one of",
        ("--to", "onx"): "did you mean 'onnx'?",
        ("--to", "c", "--action-mask", "maybe"): "--action-mask is 'maybe'; expected auto, on or off",
        (): "--to",
    }
    for words, message in wrong.items():
        assert main(["export", str(folder), *words]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert (tmp_path / "agent.c").read_bytes() == before
    box = save_tiny("td3", tmp_path / "box")
    assert main(["export", str(box), "--to", "c", "--action-mask", "on"]) == 2
    assert "actions are a Box" in capsys.readouterr().err


@pytest.mark.full
def test_the_examples_of_the_documentation_run(tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[2].joinpath("docs", "deploy.md").read_text()
    blocks = re.findall(r"```(python|c)\n(.*?)```", page, flags=re.DOTALL)
    assert [language for language, _ in blocks] == ["python", "python", "python", "c"]
    folder = save_tiny("q_vector", tmp_path, env="CartPole-v1")
    for to in TARGETS:
        export_agent(folder, to)
    monkeypatch.chdir(tmp_path)
    for language, block in blocks:
        if language == "python":
            exec(compile(block, "docs/deploy.md", "exec"), {})
    said = capsys.readouterr().out
    assert said.count("[") == 3
    assert "CartPole-v1" in said
    if compiler := find_compiler():
        Path("main.c").write_text(blocks[3][1])
        subprocess.run([compiler, "-O2", "main.c", "agent.c", "-lm", "-o", "main"], check=True)
        seen = np.array([0.0, 0.1, 0.0, -0.1], np.float32)
        answer = subprocess.run(["./main"], check=True, capture_output=True, text=True).stdout
        assert int(answer) == load_agent(folder).act(seen)


def test_a_missing_extra_is_named(tmp_path, monkeypatch, capsys):
    folder = save_tiny("q", tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["export", str(folder), "--to", "onnx"]) == 2
    assert "pip install 'drl-workshop[export]'" in capsys.readouterr().err
