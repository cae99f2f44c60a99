"""The first document: strict roles. Environment, Model in three variants, Agent, Trainer; and who refuses whom."""

import numpy as np
import pytest
import torch
from torch import nn

import drl
from drl.algorithms import ALGORITHMS, class_in
from drl.algorithms.a2c import A2CConfig
from drl.algorithms.dqn import DQNConfig
from drl.algorithms.ppo import PPOConfig
from drl.algorithms.reinforce import ReinforceConfig
from drl.core.configs import ModelConfig, QModelConfig
from drl.core.errors import BadInput
from drl.core.seeding import Seeds
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.core.variants import VARIANTS, agent_in, maker_in
from drl.engines.jax import agents as jax_agents
from drl.engines.jax.model_state import ModelState
from drl.engines.torch import agents as torch_agents
from drl.engines.torch import build as torch_build
from drl.envs.make_vec_env import make_vec_env
from drl.trainer.trainer import Trainer

SPECS = EnvSpecs(ObsSpec("box", (4,)), ActionSpec("discrete", sizes=(2,)), num_envs=2)
MODELS = {"policy_value": ModelConfig(), "policy_only": ModelConfig(), "q_value": QModelConfig()}
CONFIGS = {"ppo": PPOConfig(), "a2c": A2CConfig(), "reinforce": ReinforceConfig(), "dqn": DQNConfig()}
NEEDS = {"ppo": "policy_value", "a2c": "policy_value", "reinforce": "policy_value", "dqn": "q_value"}
ENGINES = ("torch", "jax")


def make_model(engine, variant):
    model = maker_in(VARIANTS[variant], engine)(SPECS.obs_spec, SPECS.action_spec, MODELS[variant])
    return model if engine == "torch" else ModelState(model, model.init(np.random.default_rng(0)))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("variant", MODELS)
def test_a_model_answers_as_its_variant_says(engine, variant):
    obs, model = np.zeros((3, 4), np.float32), make_model(engine, variant)
    answer = model(torch.from_numpy(obs)) if engine == "torch" else model.model.apply(model.params, obs)
    if variant == "policy_value":
        assert [tuple(part.shape) for part in answer] == [(3, 2), (3,)]
    else:
        assert tuple(answer.shape) == (3, 2)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("variant", MODELS)
@pytest.mark.parametrize("algorithm", CONFIGS)
def test_an_algorithm_takes_the_variant_it_needs_and_no_other(engine, algorithm, variant):
    build, model = class_in(ALGORITHMS[algorithm], engine, SPECS.action_spec), make_model(engine, variant)
    if variant == NEEDS[algorithm]:
        build(model, SPECS, CONFIGS[algorithm])
        return
    wanted, found = NEEDS[algorithm].replace("_", "-"), variant.replace("_", "-")
    with pytest.raises(
        BadInput, match=f"{build.__name__} needs a {wanted} model; this is a {found} model; build it with"
    ):
        build(model, SPECS, CONFIGS[algorithm])


POLICIES = "policy-value, policy-only, actor-critic or deterministic actor-critic"


@pytest.mark.parametrize("engine", ENGINES)
def test_an_agent_takes_models_it_can_act_with(engine):
    agents = {name: agent_in(variant, engine) for name, variant in VARIANTS.items()}
    with pytest.raises(BadInput, match=f"PolicyAgent needs a {POLICIES} model; this is a q-value model"):
        agents["policy_value"](make_model(engine, "q_value"), SPECS)
    with pytest.raises(BadInput, match="QAgent needs a q-value model; this is a policy-only model"):
        agents["q_value"](make_model(engine, "policy_only"), SPECS)


class OwnModule(nn.Module):
    """A user's own: answers with as many arrays of these shapes as are given."""

    def __init__(self, *shapes):
        super().__init__()
        self.shapes = shapes
        self.layers = nn.ModuleList(nn.Linear(4, int(np.prod(shape, dtype=int))) for shape in shapes)

    def forward(self, obs):
        answers = [layer(obs).reshape(-1, *shape) for layer, shape in zip(self.layers, self.shapes, strict=True)]
        return answers[0] if len(answers) == 1 else tuple(answers)


def test_a_module_of_the_users_own_is_known_by_its_answer():
    policy_agent, q_agent = torch_agents.PolicyAgent, torch_agents.QAgent
    assert policy_agent(OwnModule((2,), ()), SPECS).variant == "policy_value"
    assert policy_agent(OwnModule((2,)), SPECS).variant == "policy_only"
    assert q_agent(OwnModule((2,)), SPECS).variant == "q_value"
    with pytest.raises(BadInput, match=r"with \[\[2, 2\], \[2, 1\]\]; expected .* and \[2\] values"):
        policy_agent(OwnModule((2,), (1,)), SPECS)  # a column of values would broadcast without a word
    with pytest.raises(BadInput, match=r"with \[2, 3\]; expected \[2, 2\] distribution parameters"):
        policy_agent(OwnModule((3,)), SPECS)
    with pytest.raises(BadInput, match=r"\[2, 2\] action values"):
        q_agent(OwnModule((2,), ()), SPECS)


class OwnJaxModel:
    """The same for the JAX engine: a linear policy without a critic."""

    def init(self, rng):
        return {"weight": rng.normal(size=(4, 2)).astype(np.float32)}

    def apply(self, params, obs):
        return obs @ params["weight"]

    policy = apply


def test_a_trainer_refuses_an_agent_that_its_algorithm_cannot_teach():
    with make_vec_env("CartPole-v1", 2) as envs:
        model = OwnModule((2,))
        agent = torch_agents.PolicyAgent(model, SPECS)
        with pytest.raises(BadInput, match="PPO needs a policy-value model; this is a policy-only model"):
            Trainer(envs, agent, class_in(ALGORITHMS["ppo"], "torch", SPECS.action_spec)(model, SPECS))
        with pytest.raises(BadInput, match="DQN needs a q-value model; this is a policy-only model"):
            Trainer(envs, agent, class_in(ALGORITHMS["dqn"], "torch", SPECS.action_spec)(model, SPECS))
        own = OwnJaxModel()
        model_state = ModelState(own, own.init(np.random.default_rng(0)))
        agent = jax_agents.PolicyAgent(model_state, SPECS)
        with pytest.raises(BadInput, match="A2C needs a policy-value model; this is a policy-only model"):
            Trainer(envs, agent, class_in(ALGORITHMS["a2c"], "jax", SPECS.action_spec)(model_state, SPECS))


def test_the_roles_do_not_know_what_is_not_theirs():
    """An agent owns no optimizer and no algorithm; it survives training and is deployed alone."""
    with make_vec_env("CartPole-v1", 2, seed=1) as envs:
        configs = (ModelConfig(hidden_sizes=(8,)), PPOConfig(rollout_length=16))
        agent, ppo = torch_build.build_learner("ppo", envs, configs, Seeds(0))
        trainer = Trainer(envs, agent, ppo)
        trainer.step()
    assert not {"optimizer", "algorithm", "world", "learn"} & set(dir(agent))
    assert not {"world", "buffer", "agent"} & set(vars(ppo))
    assert agent.act(np.zeros(4, np.float32)) in (0, 1)


def test_ppo_learns_the_prisoners_dilemma(tmp_path):
    """`experiments/train_ppo_ipd.py` at a tiny size is run by tests/test_scripts.py; here through the front door."""
    from drl.runs import launch
    from drl.settings.experiment import Experiment

    flat = {"env": "IteratedPrisonersDilemma-v0", "env_kwargs": ["opponents=tit_for_tat"], "total_timesteps": 1024}
    small = {"num_envs": 8, "rollout_length": 16, "hidden_sizes": [8], "results_dir": str(tmp_path), "quiet": True}
    finished = launch.train(Experiment.from_flat(flat | small | {"video": False, "evaluation_episodes": 2}, "test"))
    assert finished.status == "finished"
    assert drl.load_agent(finished.folder).action_spec.sizes == (2,)
