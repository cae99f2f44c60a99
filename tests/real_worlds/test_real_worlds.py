"""One tiny training and one evaluation on environments of many packages, by the command that a user types first.

`make real-worlds` installs every package; here, what is not installed is skipped. docs/environments.md has the table.
"""

import importlib.util
import json
from typing import NamedTuple

import pytest

from drl.cli.entry import main

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("default"),
]  # other packages warn, and we do about text that is left out


class World(NamedTuple):
    algorithm: str
    env: str
    package: str = "gymnasium"  # that must be installed
    extra: str = ""  # of ours that installs it
    flags: tuple[str, ...] = ()


def short(steps: int) -> tuple[str, ...]:
    return ("--wrapper", f"TimeLimit:max_episode_steps={steps}")


MINIGRID, HIGHWAY = ("minigrid", "minigrid"), ("highway_env", "highway")
ROBOTICS, GAMES = ("gymnasium_robotics", "robotics"), ("mpe2", "pettingzoo")
TRAFFIC = ("--env-kwargs", "config={duration: 4, vehicles_count: 5, lanes_count: 2}")
ODD = "tests.real_worlds.odd_worlds:OddWorld"

WORLDS = [
    World("ppo", "MiniGrid-Empty-5x5-v0", *MINIGRID),
    World("dqn", "MiniGrid-Empty-5x5-v0", *MINIGRID),
    World("ppo", "MiniGrid-Empty-5x5-v0", *MINIGRID, ("--wrapper", "FlatObsWrapper")),
    World("ppo", "BabyAI-GoToObj-v0", *MINIGRID),
    World("ppo", "highway-v0", *HIGHWAY, TRAFFIC),
    World("dqn", "highway-fast-v0", *HIGHWAY, TRAFFIC),
    World("sac", "parking-v0", *HIGHWAY, ("--her", "future", *short(8))),
    World("ppo", "PointMaze_UMaze-v3", *ROBOTICS, short(8)),
    World("sac", "PointMaze_UMaze-v3", *ROBOTICS, ("--her", "future", *short(8))),
    World("ppo", "FetchReach-v4", *ROBOTICS),
    World("sac", "FetchReach-v4", *ROBOTICS, ("--her", "future")),
    World("ppo", "HandReach-v3", *ROBOTICS, short(8)),
    World("ppo", "AdroitHandDoor-v1", *ROBOTICS, short(8)),
    World("ppo", "FrankaKitchen-v1", *ROBOTICS, short(2)),
    World("dqn", "CliffWalking-v1", flags=short(20)),
    World("ppo", "Taxi", flags=short(20)),
    World("ppo", "FrozenLake-v1"),
    World("ppo", "Blackjack-v1"),
    World("dqn", "Blackjack-v1"),
    World("ppo", "CarRacing-v3", "Box2D", "box2d", (*short(8), "--cnn-features", "16", "--total-timesteps", "32")),
    World("ppo", ODD),
    World("dqn", ODD),
    World("ppo", "pettingzoo:mpe2.simple_spread_v3", *GAMES),
    World("dqn", "pettingzoo:mpe2.simple_spread_v3", *GAMES),
    World("sac", "pettingzoo:mpe2.simple_spread_v3", *GAMES, ("--env-kwargs", "continuous_actions=true")),
    World("ppo", "pettingzoo:classic.rps_v2", *GAMES),
    World("ppo", "pettingzoo:butterfly.knights_archers_zombies_v11", *GAMES, ("--env-kwargs", "max_cycles=40")),
    World("ppo", "pettingzoo:drl.games.ipd.self_play", *GAMES),
]
ROLLOUT = ("--rollout-length", "16", "--minibatches", "2", "--epochs", "1")
REPLAY = ("--warmup", "16", "--batch-size", "8", "--capacity", "500")
LEAN = ("--num-envs", "2", "--vectorization", "sync", "--total-timesteps", "64", "--evaluation-episodes", "1")
LEAN += ("--evaluate-every", "0", "--no-video", "--no-plots", "--no-tensorboard", "--quiet", "--threads", "1")


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: " ".join([world.algorithm, world.env, *world.flags[:2]]))
def test_trains_and_is_evaluated(world, tmp_path, capsys):
    if importlib.util.find_spec(world.package) is None:
        pytest.skip(f"needs pip install 'drl-workshop[{world.extra}]'")
    learner = ROLLOUT if world.algorithm == "ppo" else REPLAY
    command = ["train", world.algorithm, "--env", world.env, *learner, *LEAN, *world.flags]
    assert main([*command, "--results-dir", str(tmp_path)]) == 0, capsys.readouterr().err
    (run,) = tmp_path.glob("*/*")
    assert main(["evaluate", str(run), "--episodes", "1", "--trust"]) == 0, capsys.readouterr().err
    assert "mean return" in capsys.readouterr().out


@pytest.mark.parametrize("space", ["text", "graph", "sequence", "nested graph"])
def test_what_cannot_be_learned_from_says_which_wrapper_helps(space, tmp_path, capsys):
    command = ["train", "ppo", "--env", ODD, "--env-kwargs", f"space={space}", "--results-dir", str(tmp_path)]
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot use observation space" in line
    assert "gymnasium.wrappers.TransformObservation" in line
    assert list(tmp_path.iterdir()) == []


def test_text_that_is_left_out_is_said_once(tmp_path, capsys):
    command = ["train", "ppo", "--env", ODD, *ROLLOUT, *LEAN, "--evaluate-every", "32", "--results-dir", str(tmp_path)]
    assert main(command) == 0
    assert capsys.readouterr().err.count("'hint' of the observation is text and is left out") == 1


@pytest.mark.filterwarnings("ignore:not evaluated, because")
def test_a_run_whose_evaluation_does_not_end_is_finished(tmp_path, capsys):
    command = ["train", "ppo", "--env", "CliffWalking-v1", *ROLLOUT, *LEAN, "--eval-max-steps", "50", "--no-quiet"]
    assert main([*command, "--evaluate-every", "32", "--results-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "not evaluated, because no episode of CliffWalking-v1 ended in 50 steps; `drl evaluate" in said
    assert "--wrapper TimeLimit:max_episode_steps=1000" in said
    (record,) = tmp_path.rglob("run.json")
    noted = json.loads(record.read_text())
    assert noted["status"] == "finished"
    assert noted["not_evaluated"] in said
    assert "golden_pairs" in json.loads((record.parent / "agent" / "card.json").read_text())
    assert main(["fork", str(record.parent), "--set", "total_timesteps=96", "quiet=true"]) == 0
    assert main(["evaluate", str(record.parent), "--episodes", "1", "--max-steps", "50"]) == 5
    said = capsys.readouterr().err
    assert (
        "not evaluated, because no episode of CliffWalking-v1 ended in 50 steps; --max-steps 500 plays longer" in said
    )
    assert (
        main(["evaluate", str(record.parent), "--wrapper", "TimeLimit:max_episode_steps=9", "--max-steps", "90"]) == 5
    )
    assert "only 8 of 10 episodes" in capsys.readouterr().err
    assert main(["evaluate", str(record.parent), "--wrapper", "TimeLimit:max_episode_steps=9"]) == 0
