"""A user's project: a type checker reports each line that ends with `# wrong`, and no other. None of them is run."""

import numpy as np

import drl


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


def arguments() -> None:
    drl.train("ppo", env=3)  # wrong
    drl.train("ppo", preset=0.5)  # wrong
    drl.make_vec_env("CartPole-v1", num_envs="8")  # wrong


def results() -> float:
    run = drl.train("ppo")
    run.agent.act(np.zeros(4), exploer=True)  # wrong
    run.agent.predict()  # wrong
    run.folder.rmtree()  # wrong
    return run.evaluation["mean_return"]  # wrong
