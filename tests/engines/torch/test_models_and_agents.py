import numpy as np
import pytest
import torch
from torch import nn

from drl.agents.load_agent import load_agent
from drl.core.configs import ModelConfig, QModelConfig
from drl.core.errors import BadInput, UnusableFile
from drl.core.normalize import ObsNormalizer
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.engines.torch.agents import PolicyAgent, QAgent, policy_views
from drl.engines.torch.backbones import MLP
from drl.engines.torch.models import (
    LogitsHead,
    Model,
    PolicyValueModel,
    ValueHead,
    make_policy_model,
    make_policy_value_model,
    make_q_value_model,
)

VECTOR = ObsSpec("box", (3,))
IMAGE = ObsSpec("box", (2, 36, 40), "uint8")
SEQUENCE = ObsSpec("box", (10, 5))
TREE = ObsSpec("dict", keys=("a", "b"), parts=(ObsSpec("discrete", sizes=(3,)), VECTOR))
ACTIONS = [
    ActionSpec("discrete", sizes=(4,), starts=(1,)),
    ActionSpec("multi_discrete", sizes=(2, 3), shape=(2,)),
    ActionSpec("multi_binary", shape=(3,), dtype="int8"),
    ActionSpec("box", shape=(2,), low=(-2.0, -np.inf), high=(2.0, np.inf), dtype="float32"),
]
SPECS = EnvSpecs(VECTOR, ACTIONS[0])


def observations(spec, count):
    rng = np.random.default_rng(0)
    if spec.kind == "dict":
        return {"a": rng.integers(3, size=count), "b": rng.normal(size=(count, 3)).astype(np.float32)}
    if spec.dtype == "uint8":
        return rng.integers(256, size=(count, *spec.shape)).astype(np.uint8)
    return rng.normal(size=(count, *spec.shape)).astype(np.float32)


def make_agent(obs_spec, action_spec, seed=0, normalizer=None, **config):
    generator = torch.Generator().manual_seed(seed)
    model = make_policy_value_model(obs_spec, action_spec, ModelConfig(**config), generator)
    with torch.no_grad():
        for parameter in model.parameters():  # a fresh policy head is nearly flat: give it opinions
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return PolicyAgent(model, EnvSpecs(obs_spec, action_spec), normalizer, np.random.default_rng(0))


@pytest.mark.parametrize("action_spec", ACTIONS, ids=lambda s: s.kind)
@pytest.mark.parametrize("obs_spec", [VECTOR, TREE], ids=["vector", "dict"])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_numpy_policy_equals_torch(action_spec, obs_spec, activation):
    agent = make_agent(obs_spec, action_spec, activation=activation)
    assert policy_views(agent.model) is not None
    encoded = obs_spec.encode(observations(obs_spec, 7))
    with torch.no_grad():
        expected = agent.model(torch.from_numpy(encoded))[0].numpy()
    np.testing.assert_allclose(agent.dist_params(encoded), expected, atol=2e-6)
    with torch.no_grad():  # in-place training must be seen, and so must parameters that moved
        for parameter in agent.model.parameters():
            parameter.mul_(1.5)
        expected = agent.model(torch.from_numpy(encoded))[0].numpy()
    np.testing.assert_allclose(agent.dist_params(encoded), expected, atol=5e-6)
    for parameter in agent.model.parameters():
        parameter.data = parameter.data.clone() * 0.5
    with torch.no_grad():
        expected = agent.model(torch.from_numpy(encoded))[0].numpy()
    np.testing.assert_allclose(agent.dist_params(encoded), expected, atol=2e-6)


@pytest.mark.parametrize("action_spec", ACTIONS, ids=lambda s: s.kind)
@pytest.mark.parametrize(
    ("obs_spec", "config"),
    [
        (VECTOR, {}),
        (VECTOR, {"shared": True, "hidden_sizes": (16,), "activation": "relu"}),
        (TREE, {"hidden_sizes": ()}),
        (IMAGE, {"cnn_features": 32}),
        (IMAGE, {"hidden_sizes": (32,), "backbone": "mlp"}),
        (SEQUENCE, {"backbone": "conv1d"}),
    ],
    ids=["mlp", "shared", "linear-dict", "cnn", "flat-image", "conv1d"],
)
def test_saved_agent_acts_the_same_when_loaded(tmp_path, obs_spec, action_spec, config):
    agent = make_agent(obs_spec, action_spec, **config)
    if obs_spec is VECTOR:
        agent.normalizer = ObsNormalizer((3,))
        agent.normalizer.update(np.random.default_rng(1).normal(2.0, 3.0, (100, 3)))
    agent.save(tmp_path / "agent", env="Somewhere-v0")
    loaded = load_agent(tmp_path)
    obs = observations(obs_spec, 50)
    np.testing.assert_array_equal(loaded.act(obs), agent.act(obs))
    loaded.rng = np.random.default_rng(5)
    agent.rng = np.random.default_rng(5)
    np.testing.assert_array_equal(loaded.act(obs, explore=True), agent.act(obs, explore=True))
    one = {k: v[0] for k, v in obs.items()} if isinstance(obs, dict) else obs[0]
    np.testing.assert_allclose(loaded.act(one), agent.act(obs)[0], rtol=1e-5)


def test_actions_are_in_the_envs_units():
    agent = make_agent(VECTOR, ACTIONS[0])
    assert set(agent.act(observations(VECTOR, 200), explore=True)) <= {1, 2, 3, 4}
    box = make_agent(VECTOR, ACTIONS[3]).act(observations(VECTOR, 200), explore=True)
    assert box.dtype == np.float32
    assert abs(box[:, 0]).max() <= 2.0
    assert box.shape == (200, 2)


def test_low_temperature_is_greedy():
    agent = make_agent(VECTOR, ACTIONS[0])
    agent.temperature = 1e-4
    obs = observations(VECTOR, 50)
    np.testing.assert_array_equal(agent.act(obs, explore=True), agent.act(obs))


def test_widths_that_do_not_fit_are_named():
    with pytest.raises(BadInput, match="gives 8 features but head expects 16"):
        Model(MLP((3,), hidden_sizes=(8,)), ValueHead(16))


@pytest.mark.parametrize("obs_spec", [ObsSpec("box", (3, 20, 20), "uint8"), VECTOR])
def test_a_cnn_wants_images(obs_spec):
    with pytest.raises(BadInput, match="36 × 36"):
        make_policy_model(obs_spec, ACTIONS[0], ModelConfig(backbone="cnn"))


def test_q_values_want_discrete_actions():
    assert make_q_value_model(VECTOR, ACTIONS[0], QModelConfig())(torch.zeros(2, 3)).shape == (2, 4)
    with pytest.raises(BadInput, match="Discrete"):
        make_q_value_model(VECTOR, ACTIONS[3], QModelConfig())


def test_initialization_comes_from_the_generator_alone():
    models = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        models.append(make_policy_value_model(VECTOR, ACTIONS[0], ModelConfig(), torch.Generator().manual_seed(7)))
    for one, two in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, two)


class Own(nn.Module):
    """A user's model with nothing of ours in it."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 5)

    def forward(self, obs):
        out = self.net(obs)
        return out[:, :4], out[:, 4]


def test_a_model_of_ones_own(tmp_path):
    agent = PolicyAgent(Own(), SPECS, rng=np.random.default_rng(0))
    obs = observations(VECTOR, 20)
    agent.save(tmp_path)
    with pytest.raises(BadInput, match="model of your own"):
        load_agent(tmp_path)
    np.testing.assert_array_equal(load_agent(tmp_path, model=Own()).act(obs), agent.act(obs))
    with pytest.raises(UnusableFile, match="does not fit"):
        load_agent(tmp_path, model=nn.Linear(3, 4))


@pytest.mark.parametrize(
    "config", [ModelConfig(hidden_sizes=(8, 4), activation="relu", shared=True), ModelConfig(), None]
)
def test_a_hand_composed_model_is_known_by_the_config_it_is_given(tmp_path, config):
    backbone = MLP((3,), hidden_sizes=(8, 4), activation="relu")
    model = PolicyValueModel(Model(backbone, LogitsHead(4, 4)), Model(backbone, ValueHead(4)), config)
    agent, obs = PolicyAgent(model, SPECS), observations(VECTOR, 9)
    agent.save(tmp_path)
    if config is None or not config.shared:  # no config, or that of another model
        with pytest.raises(BadInput, match="model of your own"):
            load_agent(tmp_path)
        return
    np.testing.assert_array_equal(load_agent(tmp_path).act(obs), agent.act(obs))
    model.actor.head = torch.nn.Sequential(torch.nn.Linear(4, 4))  # no longer what the config says
    agent.save(tmp_path)
    with pytest.raises(BadInput, match="model of your own"):
        load_agent(tmp_path)


def test_plain_state_dicts_for_pytorch_users(tmp_path):
    agent = make_agent(VECTOR, ACTIONS[0])
    agent.save_policy_net(tmp_path / "pi.pth")
    agent.save_value_net(tmp_path / "v.pth")
    other = make_agent(VECTOR, ACTIONS[0], seed=9)
    other.model.actor.load_state_dict(torch.load(tmp_path / "pi.pth", weights_only=True))
    other.model.critic.load_state_dict(torch.load(tmp_path / "v.pth", weights_only=True))
    obs = observations(VECTOR, 9)
    np.testing.assert_array_equal(other.act(obs), agent.act(obs))
    np.testing.assert_array_equal(other.value(obs), agent.value(obs))


def test_a_policy_only_agent_has_no_value(tmp_path):
    agent = PolicyAgent(make_policy_model(VECTOR, ACTIONS[0], ModelConfig()), SPECS)
    for call in (lambda: agent.value(observations(VECTOR, 1)), lambda: agent.save_value_net(tmp_path / "v.pth")):
        with pytest.raises(BadInput, match="policy-only"):
            call()
    agent.save(tmp_path)
    assert not load_agent(tmp_path).has_value


class Shifted(Model):
    """A user's own forward on top of our parts."""

    def forward(self, obs):
        return super().forward(obs) + torch.tensor([100.0, 0, 0, 0])


def spoiled_models():
    normed = make_policy_model(VECTOR, ACTIONS[0], ModelConfig())
    normed.backbone.insert(1, nn.LayerNorm(64))
    backbone = MLP((3,), hidden_sizes=(8,))
    yield "LayerNorm in the MLP", normed
    yield "subclassed Model", Shifted(backbone, LogitsHead(8, 4))
    yield "subclassed actor", PolicyValueModel(Shifted(backbone, LogitsHead(8, 4)), Model(backbone, ValueHead(8)))


@pytest.mark.parametrize(("name", "model"), spoiled_models(), ids=lambda x: x if isinstance(x, str) else "")
def test_the_numpy_path_never_ignores_a_users_own_code(name, model):
    agent = PolicyAgent(model, SPECS)
    obs = observations(VECTOR, 5)
    with torch.no_grad():
        answer = model(torch.from_numpy(obs))
    expected = answer[0] if isinstance(answer, tuple) else answer
    np.testing.assert_allclose(agent.dist_params(obs), expected.numpy(), atol=1e-5)


def test_a_part_put_in_later_is_seen():
    agent = make_agent(VECTOR, ACTIONS[0])
    obs = observations(VECTOR, 5)
    agent.dist_params(obs)
    agent.model.actor.head = LogitsHead(64, 4)
    agent.model.actor.backbone[0] = nn.Linear(3, 64)
    with torch.no_grad():
        expected = agent.model(torch.from_numpy(obs))[0].numpy()
    np.testing.assert_allclose(agent.dist_params(obs), expected, atol=1e-5)


def test_batch_norm_is_refused():
    model = make_policy_model(VECTOR, ACTIONS[0], ModelConfig())
    model.backbone.append(nn.BatchNorm1d(64))
    with pytest.raises(BadInput, match="LayerNorm"):
        PolicyAgent(model, SPECS)


def test_a_users_value_is_found_by_looking():
    agent = PolicyAgent(Own(), SPECS)
    assert agent.has_value
    assert agent.value(observations(VECTOR, 3)).shape == (3,)


@pytest.mark.parametrize(
    ("key", "value"), [("variant", "foo"), ("obs_spec", {}), ("architecture", {"hidden_sizes": [4], "depth": 3})]
)
def test_a_card_that_makes_no_sense_is_an_unusable_file(tmp_path, key, value):
    import json

    make_agent(VECTOR, ACTIONS[0]).save(tmp_path)
    card = json.loads((tmp_path / "card.json").read_text())
    (tmp_path / "card.json").write_text(json.dumps(card | {key: value}))
    with pytest.raises(UnusableFile):
        load_agent(tmp_path)


def test_saving_leaves_the_global_stream_alone(tmp_path):
    agent = make_agent(VECTOR, ACTIONS[0])
    before = torch.random.get_rng_state()
    agent.save(tmp_path)
    assert torch.equal(before, torch.random.get_rng_state())


def test_an_observation_of_the_wrong_shape_is_named():
    with pytest.raises(BadInput, match=r"shape \(4,\); expected \(3,\)"):
        make_agent(VECTOR, ACTIONS[0]).act(np.zeros(4, np.float32))


def explaining_agent(obs_spec, action_spec):
    model = make_policy_value_model(obs_spec, action_spec, ModelConfig(), torch.Generator().manual_seed(0))
    return PolicyAgent(model, EnvSpecs(obs_spec, action_spec))


@pytest.mark.parametrize("action_spec", ACTIONS, ids=lambda s: s.kind)
@pytest.mark.parametrize("obs_spec", [VECTOR, TREE, IMAGE], ids=["vector", "dict", "image"])
def test_explain_takes_what_act_takes(obs_spec, action_spec):
    """One raw observation or many; what it gives belongs to the greedy action."""
    agent = explaining_agent(obs_spec, action_spec)
    many = observations(obs_spec, 5)
    one = {name: values[2] for name, values in many.items()} if obs_spec.kind == "dict" else many[2]
    all_of_them, single = agent.explain(many), agent.explain(one)
    assert set(single) == set(all_of_them) == {"policy", "value"}
    for name, values in all_of_them.items():
        assert len(values) == 5
        np.testing.assert_allclose(single[name], values[2], rtol=1e-5, atol=1e-6)
    assert np.ndim(single["value"]) == 0
    if action_spec.kind == "discrete":
        assert single["policy"].sum() == pytest.approx(1.0)
        assert agent.act(one) == 1 + single["policy"].argmax()  # its actions begin at 1


def test_explain_takes_masks():
    """As an argument, or in the observation."""
    config = QModelConfig(hidden_sizes=(8,))
    action_spec = ACTIONS[0]
    agent = explaining_agent(TREE, action_spec)
    many, mask = observations(TREE, 2), np.array([[1, 0, 1, 0], [0, 0, 0, 1]], np.int8)
    for explained in (agent.explain(many, mask), agent.explain(many | {"action_mask": mask})):
        assert (explained["policy"] > 0).tolist() == (mask > 0).tolist()
    model = make_q_value_model(VECTOR, action_spec, config, torch.Generator().manual_seed(0))
    agent = QAgent(model, EnvSpecs(VECTOR, action_spec))
    obs = observations(VECTOR, 2)
    assert np.isneginf(agent.explain(obs, mask)["q"]).tolist() == (mask == 0).tolist()
    assert agent.explain(obs[0])["q"].shape == (4,)
