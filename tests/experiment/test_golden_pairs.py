"""Golden pairs: an agent that acts differently from when it was saved is noticed, one that does not never is."""

import base64
import json
import shutil

import numpy as np
import pytest
import torch

from drl.agents.evaluation import evaluate
from drl.agents.load_agent import load_agent
from drl.cli.entry import main
from drl.core.agent_files import read_agent, write_agent
from drl.core.errors import UnusableFile
from drl.core.golden_pairs import (
    GoldenInputs,
    InputSampler,
    difference,
    make_pairs,
    pairs_from_json,
    pairs_to_json,
    sample_obs,
)
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.core.state_files import read_state
from drl.core.variants import VARIANTS, agent_in, maker_in
from drl.runs import session
from drl.runs.launch import resume, train
from drl.settings.experiment import Experiment

VECTOR, IMAGE = ObsSpec("box", (3,)), ObsSpec("box", (1, 72, 72), "uint8")
TREE = ObsSpec("dict", keys=("a", "b", "c"), parts=(ObsSpec("discrete", sizes=(3,), starts=(5,)), VECTOR, IMAGE))
ACTIONS = {
    "discrete": ActionSpec("discrete", sizes=(4,), starts=(1,)),
    "multi_discrete": ActionSpec("multi_discrete", sizes=(2, 3), shape=(2,)),
    "multi_binary": ActionSpec("multi_binary", shape=(3,), dtype="int8"),
    "box": ActionSpec("box", shape=(2,), low=(-2.0, -np.inf), high=(2.0, np.inf), dtype="float32"),
}
RUN = {
    "algorithm": "ppo", "env": "CartPole-v1", "num_envs": 2, "rollout_length": 32, "total_timesteps": 128,
    "hidden_sizes": [8], "evaluation_episodes": 2, "evaluate_every": 64, "quiet": True, "plots": False, "video": False,
    "tensorboard": False, "name": "golden", "license": "mit",
}  # fmt: skip


def make(variant="policy_value", obs_spec=VECTOR, spec=ACTIONS["discrete"], **config):
    """An agent with opinions."""
    kind = VARIANTS[variant]
    generator = torch.Generator().manual_seed(0)
    model = maker_in(kind, "torch")(obs_spec, spec, kind.config(**{"hidden_sizes": (8,)} | config), generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return agent_in(kind, "torch")(model, EnvSpecs(obs_spec, spec))


def rewrite(folder, **changes):
    """Change entries of a card, as its author could; None removes one."""
    card, arrays = read_agent(folder)
    gone = {key for key, value in changes.items() if value is None} | {"content_checksum"}
    card = {key: value for key, value in (card | changes).items() if key not in gone}
    write_agent(folder, card, arrays)


def change(folder, name, index, amount):
    """Add to one weight."""
    card, arrays = read_agent(folder)
    arrays[name] = arrays[name].copy()
    arrays[name][index] += amount
    card.pop("content_checksum")
    write_agent(folder, card, arrays)


def stored(folder):
    """The pairs on a card."""
    card, _ = read_agent(folder)
    specs = ObsSpec.from_json(card["obs_spec"]), ActionSpec.from_json(card["action_spec"])
    return pairs_from_json(card["golden_pairs"], *specs)


def last_bias(folder):
    _, arrays = read_agent(folder)
    return next(
        name for name in arrays if name.startswith(("model.actor.head", "model.head")) and name.endswith("bias")
    )


AGENTS = [
    *((f"policy {kind}", {"spec": spec}) for kind, spec in ACTIONS.items()),
    ("policy only", {"variant": "policy_only"}),
    ("action values", {"variant": "q_value"}),
    ("noisy c51", {"variant": "q_value", "noisy": True, "distributional": "c51", "v_max": 1000.0}),
    ("tanh gaussian", {"spec": ACTIONS["box"], "distribution": "tanh_gaussian"}),
    ("actor-critic", {"variant": "deterministic_actor_critic", "spec": ACTIONS["box"]}),
    ("gru", {"recurrent": "gru", "recurrent_size": 6}),
    ("lstm", {"recurrent": "lstm", "recurrent_size": 6, "spec": ACTIONS["box"]}),
    ("image", {"obs_spec": IMAGE, "cnn_features": 8}),
    ("image and vectors", {"obs_spec": TREE, "cnn_features": 8}),
]


@pytest.mark.parametrize("options", [options for _, options in AGENTS], ids=[name for name, _ in AGENTS])
def test_every_kind_of_agent_proves_itself_and_one_changed_weight_is_noticed(tmp_path, options):
    agent = make(**options)
    agent.save(tmp_path)
    assert len(stored(tmp_path).action) == (8 if agent.obs_spec in (IMAGE, TREE) else 16)
    load_agent(tmp_path, strict=True)
    change(tmp_path, last_bias(tmp_path), 0, 0.5)
    with pytest.warns(UserWarning, match=r"acts differently from its golden pairs: .*same versions") as said:
        load_agent(tmp_path)
    assert len(said) == 1
    with pytest.raises(UnusableFile, match="golden pairs"):
        load_agent(tmp_path, strict=True)


@pytest.mark.parametrize(
    "options",
    [{"spec": spec} for spec in ACTIONS.values()] + [{"variant": "q_value", "dueling": True}, {"obs_spec": IMAGE}],
    ids=[*ACTIONS, "action values", "image"],
)
def test_other_engines_act_alike(tmp_path, options):
    make(**options, **({"cnn_features": 8} if "obs_spec" in options else {})).save(tmp_path)
    for engine in ("torch", "jax", *(() if "obs_spec" in options else ("numpy",))):
        load_agent(tmp_path, engine=engine, strict=True)
    change(tmp_path, last_bias(tmp_path), 0, 2.0)
    with pytest.raises(UnusableFile, match="saved with engine torch; here engine jax"):
        load_agent(tmp_path, engine="jax", strict=True)


def test_a_flipped_choice_is_noticed_by_its_action(tmp_path):
    agent = make()
    agent.save(tmp_path)
    change(tmp_path, last_bias(tmp_path), 2, 1000.0)
    changed = int((stored(tmp_path).action != 3).sum())  # the actions begin at 1
    assert changed > 0
    with pytest.warns(UserWarning, match=f"{changed} of 16 actions differ"):
        load_agent(tmp_path)


def pairs_with(outputs, action, spec, mask=None):
    agent = make(spec=spec)
    obs = np.zeros((len(outputs), 3), np.float32)
    pairs = make_pairs(agent)._replace(
        inputs=GoldenInputs(obs, mask), action=np.array(action), outputs=np.array(outputs, np.float32)
    )
    agent.dist_params = lambda obs: now  # what this machine computes
    now = pairs.outputs.copy()
    return agent, pairs, now


def test_a_tie_may_fall_either_way_and_a_clear_choice_may_not():
    spec = ActionSpec("discrete", sizes=(3,))
    agent, pairs, now = pairs_with([[1.0, 1.00001, 0.0], [5.0, 0.0, 0.0]], [1, 0], spec)
    assert difference(agent, pairs) is None
    now[0] = [1.00001, 1.0, 0.0]  # another action, by rounding
    assert difference(agent, pairs) is None
    now[1] = [-5.0, 0.0, 0.0]
    assert difference(agent, pairs) == "1 of 2 actions differ"


def test_margins_count_legal_choices_only():
    spec = ActionSpec("discrete", sizes=(3,))
    mask = np.array([[True, True, False]])
    agent, pairs, now = pairs_with([[1.0, 0.99999, 9.0]], [0], spec, mask)
    now[0, 1] = 1.00001
    assert difference(agent, pairs) is None, "a tie between the legal ones"
    agent, pairs, now = pairs_with([[2.0, 1.0, 2.00001]], [0], spec, mask)
    pairs.outputs[0, 1], now[0, :2] = 1.999, [1.999, 2.0]
    assert difference(agent, pairs) == "1 of 1 actions differ"


def test_bits_and_several_entries_have_margins_of_their_own():
    binary = ActionSpec("multi_binary", shape=(2,), dtype="int8")
    agent, pairs, now = pairs_with([[0.00001, 2.0]], [[1, 1]], binary)
    now[0, 0] = -0.00001
    assert difference(agent, pairs) is None
    now[0, 1] = -2.0
    assert difference(agent, pairs) == "1 of 1 actions differ"
    several = ActionSpec("multi_discrete", sizes=(1, 2), shape=(2,))
    agent, pairs, now = pairs_with([[3.0, 1.0, 1.00001]], [[0, 1]], several)
    now[0, 1:] = [1.00001, 1.0]
    assert difference(agent, pairs) is None


def test_continuous_actions_are_compared_relative_to_their_range():
    spec = ActionSpec("box", shape=(1,), low=(-100.0,), high=(100.0,), dtype="float32")
    agent, pairs, now = pairs_with([[0.5, -1.0]], [[50.0]], spec)
    now[0, 0] = 0.50005
    assert difference(agent, pairs) is None
    now[0, 0] = 0.5005
    assert difference(agent, pairs) == "1 of 1 actions differ"
    now[:] = [[0.5, -1.01]]  # the same action, another deviation
    assert difference(agent, pairs) == "the network's outputs differ by up to 0.01 of their scale"


def test_saving_leaves_no_trace_in_the_agent():
    agent = make(recurrent="lstm", recurrent_size=6)
    agent.act(np.ones((2, 3), np.float32), explore=True)
    state, remembered = agent.rng.bit_generator.state, agent.rnn_state
    make_pairs(agent)
    assert agent.rng.bit_generator.state == state
    assert agent.rnn_state is remembered


def test_random_observations_are_in_their_space():
    obs = sample_obs(TREE, 50)
    assert obs.dtype == TREE.dtype
    np.testing.assert_array_equal(obs["a"].sum(axis=1), 1)
    assert obs["c"].max() > 200
    np.testing.assert_array_equal(obs, sample_obs(TREE, 50))
    many = ObsSpec("multi_discrete", (2,), sizes=(2, 3), starts=(1, 0))
    assert (sample_obs(many, 9).sum(axis=1) == 2).all()
    assert set(np.unique(sample_obs(ObsSpec("multi_binary", (4,)), 9))) == {0.0, 1.0}


def test_an_evaluation_gives_observations_from_all_of_it_with_their_masks():
    sampler = InputSampler(4)
    for step in range(100):
        sampler.see(np.full((2, 1), step), np.full((2, 3), step % 2 == 0))
    obs, mask = sampler.inputs()
    assert obs[:, 0].tolist() == [0, 32, 64, 96]
    sampler = InputSampler(4)
    for step in range(7):
        sampler.see(np.full((1, 1), step), None)
    assert sampler.inputs().obs[:, 0].tolist() == [0, 2, 4, 6]
    assert mask.all()
    agent = make("policy_only", ObsSpec("box", (1,)), ActionSpec("discrete", sizes=(4,)))
    inputs = evaluate(agent, "drl/LegalMoves-v0", 8).inputs
    assert inputs.action_mask.shape == (len(inputs.obs), 4)
    agent.golden_inputs = inputs
    again = pairs_from_json(pairs_to_json(make_pairs(agent)), agent.obs_spec, agent.action_spec)
    np.testing.assert_array_equal(again.inputs.action_mask, inputs.action_mask)
    assert difference(agent, again) is None


def test_a_model_that_cannot_act_on_random_observations_is_saved_without_pairs(tmp_path):
    agent = make("policy_only")

    def refuse(obs):
        raise IndexError("not a word")

    agent.dist_params = refuse
    with pytest.warns(UserWarning, match="has no golden pairs, because it cannot act on them: IndexError: not a word"):
        agent.save(tmp_path)
    load_agent(tmp_path)


NUMBERS = {"dtype": "<f4", "shape": [16, 3], "data": base64.b64encode(bytes(4 * 16 * 3)).decode()}
NAN = base64.b64encode(np.full((16, 3), np.nan, np.float32).tobytes()).decode()


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("action", None),
        ("action", NUMBERS),
        ("obs", NUMBERS | {"shape": [12, 4]}),
        ("obs", NUMBERS | {"shape": [10**9, 10**9]}),
        ("obs", NUMBERS | {"data": "!"}),
        ("obs", NUMBERS | {"data": NAN}),
        ("obs", NUMBERS | {"dtype": "O"}),
        ("obs", NUMBERS | {"dtype": "<i4"}),
        ("obs", [1, 2]),
        ("outputs", NUMBERS),
        ("action_mask", NUMBERS),
    ],
)
def test_pairs_that_do_not_fit_are_refused(tmp_path, name, packed):
    make().save(tmp_path)
    pairs = read_agent(tmp_path)[0]["golden_pairs"] | {name: packed}
    rewrite(tmp_path, golden_pairs={name: value for name, value in pairs.items() if value is not None})
    with pytest.raises(UnusableFile, match=r"the golden pairs of .* do not fit its spaces"):
        load_agent(tmp_path)


def test_an_agent_of_an_earlier_version_loads_in_silence(tmp_path):
    make().save(tmp_path)
    rewrite(tmp_path, golden_pairs=None, versions=None)
    assert load_agent(tmp_path).golden_inputs is None
    with pytest.raises(UnusableFile, match="has no golden pairs: nothing shows that it acts as it did"):
        load_agent(tmp_path, strict=True)


@pytest.mark.filterwarnings("default")
def test_versions_on_a_card_are_printed_in_one_plain_line(trained, tmp_path, capsys):
    agent = tmp_path / "agent"
    load_agent(trained).save(agent)
    change(agent, last_bias(agent), 0, 9.0)
    rewrite(agent, versions={"drl": "\x1b[31mred\ndrl: all good"})
    assert main(["evaluate", str(agent), "--episodes", "1"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "\x1b" not in line


def run(folder, **settings):
    return train(Experiment.from_flat(RUN | {"results_dir": str(folder)} | settings, "test"), console=False).folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run(tmp_path_factory.mktemp("golden"))


def test_a_run_stores_met_observations_and_its_record(trained):
    card, obs = read_agent(trained)[0], stored(trained).inputs.obs
    assert np.abs(obs).max() < 5, "observations of CartPole"
    assert len(np.unique(obs, axis=0)) == len(obs) > 4
    notes = card["notes"]
    assert (notes["env"], notes["algorithm"], notes["seed"], notes["env_steps"]) == ("CartPole-v1", "ppo", 0, 128)
    assert notes["license"] == "mit"
    assert notes["evaluation"] == json.loads((trained / "run.json").read_text())["final_evaluation"]
    assert {"drl", "python", "platform", "numpy", "torch"} <= card["versions"].keys()
    for which in ("final", "best", "best-evaluated"):
        if which == "final" or (trained / "models" / f"{which.replace('-', '_')}_agent").exists():
            load_agent(trained, which=which, strict=True)


def test_two_runs_of_one_seed_have_the_same_card(trained, tmp_path):
    again = run(tmp_path)
    assert (again / "agent" / "card.json").read_bytes() == (trained / "agent" / "card.json").read_bytes()
    assert (again / "agent" / "README.md").read_bytes() == (trained / "agent" / "README.md").read_bytes()


def test_a_resumed_run_goes_on_with_the_observations_of_its_last_evaluation(tmp_path, monkeypatch):
    folder = run(tmp_path, checkpoint_every=64, keep_checkpoints=9)
    for newer in sorted((folder / "checkpoints").glob("step_*"))[1:]:
        shutil.rmtree(newer)
    at_checkpoint = read_state(folder / "checkpoints" / "step_000000000064", None)["golden_inputs"]

    def fail(*_, **__):
        raise RuntimeError("no more evaluations")

    monkeypatch.setattr(session, "evaluate", fail)
    with pytest.raises(RuntimeError, match="no more"):
        resume(folder)
    card, _ = read_agent(folder)
    assert "evaluation" not in card["notes"], "saved before the evaluation that failed"
    np.testing.assert_array_equal(stored(folder).inputs.obs, at_checkpoint[0])


@pytest.mark.filterwarnings("default")
def test_commands_warn_or_refuse(trained, tmp_path, capsys):
    agent = tmp_path / "agent"
    load_agent(trained).save(agent)
    assert main(["evaluate", str(agent), "--episodes", "1"]) == 0
    assert "warning" not in capsys.readouterr().err
    change(agent, last_bias(agent), 0, 9.0)
    assert main(["evaluate", str(agent), "--episodes", "1"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"drl: warning: {agent} acts differently from its golden pairs")
    assert main(["evaluate", str(agent), "--episodes", "1", "--strict"]) == 3
    assert main(["convert", str(agent), "--engine", "jax", "--strict", "--out", str(tmp_path / "x")]) == 3
    assert not (tmp_path / "x").exists()


def test_a_converted_agent_keeps_its_observations(trained, tmp_path):
    assert main(["convert", str(trained), "--engine", "jax", "--out", str(tmp_path / "jax")]) == 0
    np.testing.assert_array_equal(stored(tmp_path / "jax").inputs.obs, stored(trained).inputs.obs)
    load_agent(tmp_path / "jax", strict=True)


@pytest.mark.parametrize("spec", [ACTIONS["discrete"], ACTIONS["box"]], ids=["discrete", "box"])
def test_numbers_that_are_not_finite_are_noticed(spec):
    agent = make(spec=spec)
    pairs = make_pairs(agent)
    assert difference(agent, pairs) is None
    with torch.no_grad():
        next(agent.model.parameters()).fill_(float("nan"))
    assert difference(agent, pairs) == "an action or an output of the network is not a finite number"
