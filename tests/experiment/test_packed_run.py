"""An experiment for another process: the user's objects go with it."""

import pickle
import subprocess
import sys

from drl.runs.extras import Extras
from drl.runs.many_runs import pack
from drl.settings.experiment import Experiment

FILE = """
import gymnasium as gym


class Line(gym.Env):
    observation_space, action_space = gym.spaces.Discrete(3), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 1, {}


class Plain(gym.Wrapper):
    by = 2
"""
OTHER = """
import pickle, sys
from drl.envs.make_vec_env import make_env
experiment, extras = pickle.loads(sys.stdin.buffer.read()).unpack()
env = make_env(experiment.run.env_config)
print(env.reset()[0], env.by, type(env.unwrapped).__name__, extras.model)
"""


def test_files_need_not_be_on_the_other_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "my_line.py"
    file.write_text(FILE)
    experiment = Experiment.from_flat({"env": "my_line.py:Line", "wrappers": ["my_line.py:Plain"]}, "test")
    sent = pickle.dumps(pack(experiment, Extras("more")))
    file.unlink()
    out = subprocess.run([sys.executable, "-c", OTHER], input=sent, capture_output=True, check=True).stdout
    assert out.decode().split() == ["1", "2", "Line", "more"]
