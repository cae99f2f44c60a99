"""A user's project: a type checker reports each line that ends with `# wrong`, and no other. None of them is run."""

import numpy as np

import drl
from drl.torch import DQN, QAgent, QModel


def names() -> None:
    from drl import NoSuchThing  # wrong

    drl.trian("ppo")  # wrong
    NoSuchThing()


def settings() -> None:
    drl.train("ppo", learning_rat=1e-3)  # wrong
    drl.train("ppo", total_timesteps="many")  # wrong
    drl.train("ppo", engine="tensorflow")  # wrong
    drl.train("ppo", hidden_sizes=64)  # wrong
    drl.train("ppo", learning_rate=lambda: 1e-3)  # wrong
    drl.train("ppo", num_seeds=3)  # wrong
    drl.train_seeds("ppo", seeds="1 2 3")  # wrong
    drl.search("ppo", n_trails=20)  # wrong
    drl.make_trainer("dqn", buffer_size=10_000)  # wrong
    drl.make_trainer("dqn", results_dir="here")  # wrong


def arguments() -> None:
    drl.train("ppo", env=3)  # wrong
    drl.train("ppo", preset=0.5)  # wrong
    drl.make_vec_env("CartPole-v1", num_envs="8")  # wrong


def parts_by_hand() -> None:
    envs = drl.make_vec_env("CartPole-v1")
    model = QModel.build(envs, dueling="yes")  # wrong
    QModel.build(envs, num_critics=2)  # wrong
    buffer = drl.ReplayBuffer(envs, size=50_000)  # wrong
    learner = DQN(model, envs, drl.DQNConfig(doubl=True))  # wrong
    trainer = drl.Trainer(envs, QAgent(model, envs), learner, buffer)
    for log in trainer(1000):
        print(log.env_stesp)  # wrong
    trainer.trian()  # wrong


def results() -> float:
    run = drl.train("ppo")
    run.agent.act(np.zeros(4), exploer=True)  # wrong
    run.agent.predict()  # wrong
    run.folder.rmtree()  # wrong
    return run.evaluation["mean_return"]  # wrong
