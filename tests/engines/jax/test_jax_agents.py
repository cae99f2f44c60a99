"""Models and agents: widths, files, and crossing from engine to engine."""

import json
import subprocess
import sys
from dataclasses import dataclass

import engine_twins as twins
import numpy as np
import pytest
import torch

from drl.agents.load_agent import load_agent
from drl.cli.entry import main
from drl.core.configs import EpsilonGreedyConfig, ModelConfig, QModelConfig
from drl.core.errors import BadInput, UnusableFile
from drl.core.normalize import ObsNormalizer
from drl.core.specs import EnvSpecs, ObsSpec
from drl.engines.jax.agents import PolicyAgent, QAgent
from drl.engines.jax.backbones import MLP
from drl.engines.jax.model_state import ModelState
from drl.engines.jax.models import (
    LogitsHead,
    Model,
    PolicyValueModel,
    QHead,
    ValueHead,
    make_policy_model,
    make_q_value_model,
)
from drl.engines.numpy.exploration import EpsilonGreedy
from drl.engines.torch import agents as torch_agents

TREE = ObsSpec("dict", keys=("a", "b"), parts=(ObsSpec("discrete", sizes=(3,)), twins.VECTOR))
POLICIES = [
    ("mlp", twins.VECTOR, {}),
    ("shared", twins.VECTOR, {"shared": True, "hidden_sizes": (16,), "activation": "relu"}),
    ("linear-dict", TREE, {"hidden_sizes": ()}),
    ("grid", twins.GRID, {"hidden_sizes": (8,)}),
    ("flat image", twins.IMAGE, {"hidden_sizes": (8,), "backbone": "mlp"}),
]
CONVOLUTIONS = [
    ("cnn", twins.IMAGE, {"cnn_features": 16, "shared": True}),
    ("conv1d", twins.SEQUENCE, {"backbone": "conv1d", "hidden_sizes": (8,)}),
]


def encoded(spec, count):
    return twins.draw_obs(np.random.default_rng(1), spec, count)


def normalizer_for(spec):
    if len(spec.shape) != 1:
        return None
    normalizer = ObsNormalizer(spec.shape)
    normalizer.update(np.random.default_rng(1).normal(2.0, 3.0, (100, *spec.shape)))
    return normalizer


def assert_same_agent(one, two, obs, exact):
    """The same actions, greedy and drawn from the same stream, and the same thoughts."""
    if one.action_spec.kind == "box":
        np.testing.assert_allclose(one.decide(obs), two.decide(obs), atol=1e-4)
    else:
        np.testing.assert_array_equal(one.decide(obs), two.decide(obs))
    if exact:
        one.rng, two.rng = np.random.default_rng(5), np.random.default_rng(5)
        np.testing.assert_array_equal(one.decide(obs, explore=True), two.decide(obs, explore=True))
    assert one.has_value == two.has_value
    thoughts = two.explain_encoded(obs)
    for name, values in one.explain_encoded(obs).items():
        np.testing.assert_allclose(thoughts[name], values, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("variant", ["policy_value", "policy_only"])
@pytest.mark.parametrize("kind", twins.ACTIONS)
@pytest.mark.parametrize(("obs_spec", "config"), [p[1:] for p in POLICIES], ids=[p[0] for p in POLICIES])
def test_policies_cross_over(tmp_path, obs_spec, config, kind, variant):
    spec, config = twins.ACTIONS[kind], ModelConfig(**config)
    model, model_state = twins.make_twins(variant, obs_spec, spec, config, scale=0.3)
    ours = PolicyAgent(model_state, EnvSpecs(obs_spec, spec), normalizer_for(obs_spec))
    theirs = torch_agents.PolicyAgent(model, EnvSpecs(obs_spec, spec), normalizer_for(obs_spec))
    ours.save(tmp_path / "jax", env="Somewhere-v0")
    theirs.save(tmp_path / "torch")
    obs = encoded(obs_spec, 1000)
    for folder in ("jax", "torch"):
        for engine in ("jax", "torch", "numpy"):
            exact = engine != "torch" or len(obs_spec.shape) == 1  # then all of them act in NumPy
            assert_same_agent(ours, load_agent(tmp_path / folder, engine=engine), obs, exact)
    cards = [json.loads((tmp_path / folder / "card.json").read_text()) for folder in ("jax", "torch")]
    assert [card.pop("engine") for card in cards] == ["jax", "torch"]
    cards[0].pop("notes")
    differing = {key for key in cards[0] if cards[0][key] != cards[1][key]}
    assert differing <= {"weights", "checksum", "golden_pairs", "content_checksum"}  # outputs differ in their last bits


@pytest.mark.parametrize(("obs_spec", "config"), [p[1:] for p in CONVOLUTIONS], ids=[p[0] for p in CONVOLUTIONS])
def test_convolutions_cross_over(tmp_path, obs_spec, config):
    spec = twins.ACTIONS["categorical"]
    model, model_state = twins.make_twins("policy_value", obs_spec, spec, ModelConfig(**config), scale=0.05)
    PolicyAgent(model_state, EnvSpecs(obs_spec, spec)).save(tmp_path / "jax")
    torch_agents.PolicyAgent(model, EnvSpecs(obs_spec, spec)).save(tmp_path / "torch")
    obs = encoded(obs_spec, 100)
    agents = [load_agent(tmp_path / folder, engine=e) for folder, e in (("torch", "jax"), ("jax", "torch"))]
    assert_same_agent(*agents, obs, exact=False)
    with pytest.raises(BadInput, match="MLP"):
        load_agent(tmp_path / "jax", engine="numpy")


@pytest.mark.parametrize("kind", ["none", "c51", "qr"])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("noisy", [False, True])
def test_action_values_cross_over(tmp_path, kind, dueling, noisy):
    spec, obs_spec = twins.ACTIONS["categorical"], twins.VECTOR
    config = QModelConfig(distributional=kind, dueling=dueling, noisy=noisy, num_atoms=7, v_max=5.0, hidden_sizes=(16,))
    model, model_state = twins.make_twins("q_value", obs_spec, spec, config)
    specs = EnvSpecs(obs_spec, spec)
    ours, theirs = QAgent(model_state, specs), torch_agents.QAgent(model, specs)
    ours.save(tmp_path / "jax")
    theirs.save(tmp_path / "torch")
    obs = encoded(obs_spec, 1000)
    for folder in ("jax", "torch"):
        for engine in ("jax", "torch", "numpy"):
            loaded = load_agent(tmp_path / folder, engine=engine)
            for each in (loaded, ours):
                each.exploration = EpsilonGreedy(EpsilonGreedyConfig(epsilon_start=0.3), spec)
            assert_same_agent(ours, loaded, obs, exact=not noisy)
            if noisy and engine != "torch":  # torch draws its noise from a stream of its own
                ours.rng, loaded.rng = np.random.default_rng(3), np.random.default_rng(3)
                np.testing.assert_allclose(ours.q_values(obs, noisy=True), loaded.q_values(obs, noisy=True), rtol=1e-5)
                assert not np.allclose(ours.q_values(obs, noisy=True), ours.q_values(obs, noisy=True))


def test_a_numpy_agent_needs_no_framework(tmp_path):
    spec, obs_spec = twins.ACTIONS["categorical"], twins.VECTOR
    _, model_state = twins.make_twins("policy_value", obs_spec, spec, ModelConfig())
    agent = PolicyAgent(model_state, EnvSpecs(obs_spec, spec))
    agent.save(tmp_path)
    with pytest.raises(BadInput, match="unknown engine 'jaxx'"):
        load_agent(tmp_path, engine="jaxx")
    with pytest.raises(BadInput, match="of your own"):
        load_agent(tmp_path, model=Own(), engine="numpy")
    for option, blocked in (("engine='numpy'", ()), ("", ("torch", "jax"))):
        hide = "".join(f"sys.modules[{name!r}] = None; " for name in blocked)
        code = (
            f"import sys; import importlib.util as u; find = u.find_spec; "
            f"u.find_spec = lambda name, *rest: None if name in {blocked!r} else find(name, *rest); {hide}"
            f"import drl, numpy as np; agent = drl.load_agent({str(tmp_path)!r}, {option}); "
            "print(agent.act(np.ones((3, 3), np.float32)).tolist(), type(agent).__name__); "
            "assert not {'torch', 'jax'} & {name for name, module in sys.modules.items() if module is not None}"
        )
        shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        assert shown.strip() == f"{agent.act(np.ones((3, 3), np.float32)).tolist()} NumpyPolicyAgent"


def test_a_missing_jax_is_named():
    code = (
        "import importlib.util as u; find = u.find_spec; "
        "u.find_spec = lambda name, *rest: None if name == 'jax' else find(name, *rest); import drl.engines.jax.build"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "drl-workshop[jax]" in ended.stderr


def test_plain_state_dicts_for_pytorch_users(tmp_path):
    spec = twins.ACTIONS["gaussian"]
    for shared in (False, True):
        config = ModelConfig(shared=shared, hidden_sizes=(8,))
        model, model_state = twins.make_twins("policy_value", twins.VECTOR, spec, config)
        agent = PolicyAgent(model_state, EnvSpecs(twins.VECTOR, spec))
        agent.save_policy_net(tmp_path / "pi.pth")
        agent.save_value_net(tmp_path / "v.pth")
        for part, name in ((model.actor, "pi.pth"), (model.critic, "v.pth")):
            written, expected = torch.load(tmp_path / name, weights_only=True), part.state_dict()
            assert written.keys() == expected.keys()
            assert all(torch.equal(written[key], expected[key]) for key in expected)


def test_widths_that_do_not_fit_are_named():
    with pytest.raises(BadInput, match="gives 8 features but head expects 16"):
        Model(MLP((3,), hidden_sizes=(8,)), ValueHead(16))
    with pytest.raises(BadInput, match="same one"):
        PolicyValueModel(Model(MLP((3,), (8,)), LogitsHead(8, 4)), Model(MLP((3,), (9,)), ValueHead(9)), shared=True)


def test_what_a_model_cannot_be_is_refused():
    spec = twins.ACTIONS
    with pytest.raises(BadInput, match="36 × 36"):
        make_policy_model(twins.VECTOR, spec["categorical"], ModelConfig(backbone="cnn"))
    with pytest.raises(BadInput, match="longer than 4"):
        make_policy_model(ObsSpec("box", (4, 2)), spec["categorical"], ModelConfig(backbone="conv1d"))
    with pytest.raises(BadInput, match="Discrete"):
        make_q_value_model(twins.VECTOR, spec["gaussian"], QModelConfig())
    with pytest.raises(BadInput, match="recurrent is 'gru'"):
        make_policy_model(twins.VECTOR, spec["categorical"], ModelConfig(recurrent="gru"))
    with pytest.raises(BadInput, match="device 'mps'"):
        ModelState(None, {}, "mps")


def test_weights_are_orthogonal_and_come_from_the_stream_alone():
    model = make_policy_model(twins.IMAGE, twins.ACTIONS["categorical"], ModelConfig())
    one, two = (model.init(np.random.default_rng(7)) for _ in range(2))
    assert all((one[name] == two[name]).all() for name in one)
    torch_model = twins.make_twins("policy_only", twins.IMAGE, twins.ACTIONS["categorical"], ModelConfig(), scale=0)[0]
    for name, theirs in twins.torch_arrays(torch_model).items():
        assert one[name].shape == theirs.shape
        np.testing.assert_allclose(np.linalg.norm(one[name]), np.linalg.norm(theirs), rtol=1e-4)
    weight = one["backbone.backbone.0.weight"].reshape(32, -1)
    np.testing.assert_allclose(weight @ weight.T, 2 * np.eye(32), atol=1e-5)


@pytest.mark.parametrize("obs", [twins.VECTOR, twins.IMAGE], ids=["vector", "image"])
def test_action_values_begin_with_uniform_weights_and_biases_in_both_engines(obs):
    spec, config = twins.ACTIONS["categorical"], QModelConfig(dueling=True)
    ours = make_q_value_model(obs, spec, config).init(np.random.default_rng(7))
    theirs = twins.torch_arrays(twins.make_twins("q_value", obs, spec, config, scale=0)[0])
    assert ours.keys() == theirs.keys()
    for name in ours:
        inputs = ours[name.replace("bias", "weight")][0].size
        for array in (ours[name], theirs[name]):
            assert abs(array).max() <= inputs**-0.5
            assert array.size < 50 or array.std() == pytest.approx((3 * inputs) ** -0.5, rel=0.3)  # of a uniform one


@dataclass(frozen=True)
class Own:
    """A user's model with nothing of ours in it."""

    def init(self, rng):
        return {"matrix": rng.normal(size=(3, 5)).astype(np.float32)}

    def apply(self, params, obs):
        answer = obs @ params["matrix"]
        return answer[:, :4], answer[:, 4]

    def policy(self, params, obs):
        return self.apply(params, obs)[0]

    def value(self, params, obs):
        return self.apply(params, obs)[1]


def test_a_q_value_model_composed_by_hand_is_no_stranger(tmp_path):
    spec, obs = twins.ACTIONS["categorical"], encoded(twins.VECTOR, 20)
    config = QModelConfig(hidden_sizes=(8,))
    model = Model(MLP(twins.VECTOR.shape, (8,), "relu"), QHead(8, spec.sizes[0]), config)
    agent = QAgent(ModelState(model, model.init(np.random.default_rng(0))), EnvSpecs(twins.VECTOR, spec))
    agent.save(tmp_path)
    np.testing.assert_array_equal(load_agent(tmp_path, engine="jax").act(obs), agent.act(obs))


def test_a_model_of_ones_own(tmp_path):
    spec, obs = twins.ACTIONS["categorical"], encoded(twins.VECTOR, 20)
    agent = PolicyAgent(ModelState(Own(), Own().init(np.random.default_rng(0))), EnvSpecs(twins.VECTOR, spec))
    assert agent.value(obs).shape == (20,)
    agent.save(tmp_path)
    for engine in ("jax", "numpy"):
        with pytest.raises(BadInput, match="model of"):
            load_agent(tmp_path, engine=engine)
    np.testing.assert_array_equal(load_agent(tmp_path, model=Own()).act(obs), agent.act(obs))
    with pytest.raises(UnusableFile, match="does not fit"):
        load_agent(tmp_path, model=make_policy_model(twins.VECTOR, spec, ModelConfig()))


@pytest.mark.parametrize(
    ("key", "value"), [("variant", "foo"), ("obs_spec", {}), ("architecture", {"hidden_sizes": [4], "depth": 3})]
)
def test_a_card_that_makes_no_sense_is_an_unusable_file(tmp_path, key, value):
    _, model_state = twins.make_twins("policy_value", twins.VECTOR, twins.ACTIONS["categorical"], ModelConfig())
    PolicyAgent(model_state, EnvSpecs(twins.VECTOR, twins.ACTIONS["categorical"])).save(tmp_path)
    card = json.loads((tmp_path / "card.json").read_text())
    (tmp_path / "card.json").write_text(json.dumps(card | {key: value}))
    for engine in ("jax", "torch", "numpy"):
        with pytest.raises(UnusableFile):
            load_agent(tmp_path, engine=engine)


def test_a_policy_only_agent_has_no_value(tmp_path):
    spec = twins.ACTIONS["categorical"]
    model = make_policy_model(twins.VECTOR, spec, ModelConfig())
    agent = PolicyAgent(ModelState(model, model.init(np.random.default_rng(0))), EnvSpecs(twins.VECTOR, spec))
    for call in (lambda: agent.value(encoded(twins.VECTOR, 1)), lambda: agent.save_value_net(tmp_path / "v.pth")):
        with pytest.raises(BadInput, match="policy-only"):
            call()


def test_convert(tmp_path, capsys):
    spec = twins.ACTIONS["gaussian"]
    model, _ = twins.make_twins("policy_value", twins.VECTOR, spec, ModelConfig())
    agent = torch_agents.PolicyAgent(model, EnvSpecs(twins.VECTOR, spec), normalizer_for(twins.VECTOR))
    agent.save(tmp_path / "run" / "agent", env="Somewhere-v0", env_steps=7)
    assert main(["convert", str(tmp_path / "run"), "--engine", "jax"]) == 0
    out = tmp_path / "run" / "agent-jax"
    assert capsys.readouterr().out.strip() == str(out)
    card = json.loads((out / "card.json").read_text())
    assert card["engine"] == "jax"
    assert card["notes"] == {"env": "Somewhere-v0", "env_steps": 7}
    assert isinstance(load_agent(out), PolicyAgent)
    assert main(["convert", str(tmp_path / "run"), "--engine", "jax"]) == 2
    assert "not overwritten" in capsys.readouterr().err
    assert main(["convert", str(out), "--engine", "torch", "--out", str(tmp_path / "back")]) == 0
    obs = encoded(twins.VECTOR, 50)
    np.testing.assert_array_equal(load_agent(tmp_path / "back").act(obs), agent.act(obs))
    assert main(["convert", str(out), "--engine", "numpy"]) == 2
