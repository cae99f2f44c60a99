"""Scripts that put a run together by hand: short, equal to `drl.make_trainer` log for log, and they learn."""

import pytest

import drl
from drl.agents.evaluation import evaluate

ENGINES = pytest.mark.parametrize("engine", ["torch", "jax"])
# As a user writes them; the tests set engine and budget, and read the logs.
SCRIPTS = {
    "ppo": """
import drl
from drl.{engine} import PPO, PolicyAgent, PolicyValueModel

envs = drl.make_vec_env("CartPole-v1", num_envs=8, seed=1)
model = PolicyValueModel.build(envs, hidden_sizes=(32, 32))
agent = PolicyAgent(model, envs)
ppo = PPO(model, envs, drl.PPOConfig(rollout_length=64, learning_rate=2e-3, epochs=8))
trainer = drl.Trainer(envs, agent, ppo)
for log in trainer({steps}):
    logs.append(log)
""",
    "dqn": """
import drl
from drl.{engine} import DQN, QAgent, QModel

envs = drl.make_vec_env("CartPole-v1", num_envs=4, seed=1)
model = QModel.build(envs, hidden_sizes=(64, 64), dueling=True)
agent = QAgent(model, envs)
dqn = DQN(model, envs, drl.DQNConfig(double=True, learning_rate=1e-3))
buffer = drl.ReplayBuffer(envs, warmup=500, train_every=2, n_step=3)
trainer = drl.Trainer(envs, agent, dqn, buffer)
for log in trainer({steps}):
    logs.append(log)
""",
    "sac": """
import drl
from drl.{engine} import SAC, ActorCritic, PolicyAgent

envs = drl.make_vec_env("Pendulum-v1", seed=1)
model = ActorCritic.build(envs, hidden_sizes=(32, 32))
agent = PolicyAgent(model, envs)
sac = SAC(model, envs, drl.SACConfig(learning_rate=2e-3))
trainer = drl.Trainer(envs, agent, sac, drl.ReplayBuffer(envs, warmup=400))
for log in trainer({steps}):
    logs.append(log)
""",
    "reinforce": """
import drl
from drl.{engine} import PolicyAgent, PolicyValueModel, Reinforce

envs = drl.make_vec_env("CartPole-v1", num_envs=4, seed=1)
model = PolicyValueModel.build(envs, hidden_sizes=(32, 32))
agent = PolicyAgent(model, envs)
reinforce = Reinforce(model, envs, drl.ReinforceConfig(episodes_per_step=4, learning_rate=5e-3))
trainer = drl.Trainer(envs, agent, reinforce)
for log in trainer({steps}):
    logs.append(log)
""",
}
SETTINGS = {
    "ppo": {"num_envs": 8, "rollout_length": 64, "learning_rate": 2e-3, "epochs": 8, "hidden_sizes": [32, 32]},
    "dqn": {
        "num_envs": 4, "hidden_sizes": [64, 64], "dueling": True, "double": True, "learning_rate": 1e-3,
        "warmup": 500, "train_every": 2, "n_step": 3,
    },
    "sac": {"num_envs": 1, "hidden_sizes": [32, 32], "learning_rate": 2e-3, "warmup": 400},
    "reinforce": {"num_envs": 4, "hidden_sizes": [32, 32], "episodes_per_step": 4, "learning_rate": 5e-3},
}  # fmt: skip
ENVS = {"ppo": "CartPole-v1", "dqn": "CartPole-v1", "sac": "Pendulum-v1", "reinforce": "CartPole-v1"}
FEW_STEPS = {"ppo": 1536, "dqn": 1000, "sac": 550, "reinforce": 600}


def run(algorithm, engine, steps):
    """The logs of a script and the agent that it trains."""
    names = {"logs": []}
    exec(SCRIPTS[algorithm].format(engine=engine, steps=steps), names)
    names["envs"].close()
    return names["logs"], names["agent"]


def numbers(log):
    return {name: value for name, value in log.flat().items() if not name.startswith("time/")}


@pytest.mark.parametrize("algorithm", SCRIPTS)
def test_a_script_has_at_most_twelve_lines_and_two_imports(algorithm):
    lines = [line for line in SCRIPTS[algorithm].splitlines() if line]
    assert len(lines) <= 12
    assert sum("import" in line for line in lines) == 2


@pytest.mark.default("sac-torch", "dqn-jax", "ppo-torch", "reinforce-torch")
@ENGINES
@pytest.mark.parametrize("algorithm", SCRIPTS)
def test_parts_by_hand_give_the_logs_of_make_trainer(algorithm, engine):
    """The same seed and settings: the same numbers in every log, to the last bit."""
    by_hand, _ = run(algorithm, engine, FEW_STEPS[algorithm])
    choices = {"engine": engine, "vectorization": "sync", "preset": False, "seed": 1}
    if engine == "torch":
        choices["compile"] = "off"
    settings = SETTINGS[algorithm] | choices | {"total_timesteps": FEW_STEPS[algorithm]}
    with drl.make_trainer(algorithm, env=ENVS[algorithm], **settings) as trainer:
        made = [numbers(log) for log in trainer()]
    assert by_hand[-1].learn
    assert len(made) > 1
    assert [numbers(log) for log in by_hand] == made


@pytest.mark.slow
@ENGINES
@pytest.mark.parametrize(
    ("algorithm", "steps", "least"),
    [("ppo", 25_000, 300), ("dqn", 15_000, 100), ("sac", 4_500, -500), ("reinforce", 60_000, 250)],
)
def test_parts_by_hand_learn(algorithm, engine, steps, least):
    """A random policy gets 22 in CartPole and −1,200 in Pendulum."""
    _, agent = run(algorithm, engine, steps)
    assert evaluate(agent, ENVS[algorithm], 20, seed=1000).summary()["mean_return"] >= least
