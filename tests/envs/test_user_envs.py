"""Environments and wrappers that are the user's own: objects, classes in modules and files, and names of wrappers."""

import functools
import sys

import gymnasium as gym
import numpy as np
import pytest

from drl.core.errors import BadInput
from drl.core.network_parts import name_of
from drl.envs.env_config import EnvConfig, as_config, check_trusted, given_vector, without_vector
from drl.envs.env_names import find_object, split_wrapper
from drl.envs.make_vec_env import make_env, make_vec_env

FILE = '''
import gymnasium as gym
import numpy as np
from pathlib import Path
import beside

assert Path(__file__).name == "my_line.py"


class Line(gym.Env):
    """Walk right to the end."""

    def __init__(self, length=3):
        self.length = length
        self.observation_space = gym.spaces.Box(0, length, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.x = max(0, self.x + 2 * int(action) - 1)
        return np.array([self.x], np.float32), beside.REWARD, self.x >= self.length, False, {}


class Double(gym.RewardWrapper):
    def __init__(self, env, factor=2):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return reward * self.factor
'''


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A user's file with an environment and a wrapper, in the current folder."""
    (tmp_path / "my_line.py").write_text(FILE)
    (tmp_path / "beside.py").write_text("REWARD = 1.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    return "my_line.py"


def rewards(envs, steps=3):
    with envs:
        envs.reset()
        return [float(envs.step(np.ones(envs.num_envs, int)).reward[0]) for _ in range(steps)]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_class_in_a_file_with_its_wrapper(file, vectorization):
    wrappers = (f"{file}:Double:factor=3", "TimeLimit:max_episode_steps=2")
    config = EnvConfig(env=f"{file}:Line", env_kwargs={"length": 9}, wrappers=wrappers)
    with make_vec_env(config, num_envs=2, vectorization=vectorization) as envs:
        envs.reset()
        steps = [envs.step(np.ones(2, int)) for _ in range(2)]
    assert [step.reward.tolist() for step in steps] == [[3.0, 3.0], [3.0, 3.0]]
    assert steps[1].truncated.all()  # the outer wrapper is the last one


def test_a_class_in_a_module(file):
    assert rewards(make_vec_env("my_line:Line", env_kwargs={"length": 2})) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("env", "wrappers", "message"),
    [
        ("my_line.py:Missing", (), "my_line.py neither registers nor defines an environment 'Missing'"),
        ("other.py:Line", (), "there is no file other.py"),
        ("my_line.py:Line", ("Missing",), "unknown wrapper 'Missing'"),
        ("my_line.py:Line", ("my_line.py:Missing",), "defines no class or function of that name"),
        ("my_line.py:Line", ("TimeLimit",), "max_episode_steps"),
        ("my_line.py:Line", ("my_line.py:Line",), "cannot wrap"),
        ("my_line.py:Line", (":k=2",), "expected NAME"),
        ("python:nobody", (), "pass it again"),
    ],
)
def test_bad_names_are_named(file, env, wrappers, message):
    with pytest.raises(BadInput, match=message):
        make_vec_env(env, wrappers=wrappers)


def test_a_class_a_function_and_an_environment_to_copy(file):
    line = find_object("my_line:Line")
    whole = [1.0, 1.0, 1.0]
    assert rewards(make_vec_env(line)) == whole
    assert rewards(make_vec_env(lambda: line(length=2), num_envs=3)) == whole
    assert rewards(make_vec_env(functools.partial(line, length=2))) == whole
    assert rewards(make_vec_env(line(length=2), num_envs=2)) == whole
    assert rewards(make_vec_env(lambda: line(), vectorization="async", num_envs=2)) == whole


def test_an_environment_of_gymnasium_keeps_its_wrappers_and_arguments():
    env = gym.wrappers.TransformReward(gym.make("CartPole-v1", max_episode_steps=2), lambda reward: 5 * reward)
    with make_vec_env(env, num_envs=2) as envs:
        envs.reset()
        steps = [envs.step(np.ones(2, int)) for _ in range(2)]
    assert steps[0].reward.tolist() == [5.0, 5.0]
    assert steps[1].truncated.all()


def test_a_spec_is_its_own_config():
    assert as_config(gym.spec("CartPole-v1")).env == "CartPole-v1"
    shorter = gym.make("CartPole-v1", max_episode_steps=1).spec
    with make_vec_env(shorter) as envs:
        envs.reset()
        assert envs.step(np.array([0])).truncated.all()


def test_wrappers_as_objects():
    double = functools.partial(gym.wrappers.TransformReward, func=lambda reward: 2 * reward)
    env = make_env("CartPole-v1", wrappers=[double, gym.wrappers.TimeAwareObservation])
    obs, _ = env.reset(seed=0)
    assert obs.shape == (5,)
    assert env.step(0)[1] == 2.0
    env.close()


def test_wrappers_do_not_fit_vector_forms():
    for vectorization in ("native", "envpool"):
        with pytest.raises(BadInput, match="wrappers"):
            make_vec_env("CartPole-v1", vectorization=vectorization, wrappers=["TimeAwareObservation"])
    with make_vec_env("CartPole-v1", num_envs=16, wrappers=["TimeAwareObservation"]) as envs:
        assert envs.vectorization == "sync"  # without the wrapper it would be native


def test_a_given_vector_environment_is_stepped_as_it_is():
    vector = gym.make_vec("CartPole-v1", num_envs=3)
    config = as_config(vector)
    assert given_vector(config.env) is vector
    assert without_vector(config).env == "CartPole-v1"
    with make_vec_env(vector, num_envs=3) as envs:
        assert envs.reset().shape == (3, 4)
    for options, message in (
        ({"num_envs": 2}, "has 3"),
        ({"wrappers": ["TimeAwareObservation"]}, "wrappers is for"),
        ({"vectorization": "async"}, "vectorization is for"),
    ):
        with pytest.raises(BadInput, match=message):
            make_vec_env(vector, **{"num_envs": 3} | options)
    with pytest.raises(BadInput, match="no other can be made"):
        make_env(config.env)


def test_two_objects_of_one_name_are_kept_apart():
    one, two = (lambda: gym.make("CartPole-v1")), (lambda: gym.make("Acrobot-v1"))
    assert name_of(one) != name_of(two)
    assert name_of(one) == name_of(one)
    assert find_object(name_of(two)) is two


def test_what_cannot_be_copied_or_is_no_environment():
    class Stubborn(gym.Env):
        def __deepcopy__(self, memo):
            raise RuntimeError("only one of me")

    with pytest.raises(BadInput, match=r"only one of me.*pass a function"):
        make_vec_env(Stubborn())
    with pytest.raises(BadInput, match="env is 3; expected an id"):
        make_vec_env(3)


def test_arguments_of_a_wrapper():
    assert split_wrapper("A") == ("A", {})
    assert split_wrapper("m:A") == ("m:A", {})
    assert split_wrapper("f.py:A:k=[1, 2],name=x,rate=1e-3") == ("f.py:A", {"k": [1, 2], "name": "x", "rate": 1e-3})


def test_a_file_may_not_name_a_module_of_a_wrapper():
    check_trusted("CartPole-v1", ["TimeLimit:max_episode_steps=3", "gymnasium.wrappers:ClipReward"], "card")
    with pytest.raises(
        BadInput, match=r"names the wrapper 'evil.py:W:k=1'.*--wrapper evil.py:W:k=1 \(or add --trust\)"
    ):
        check_trusted("CartPole-v1", ["evil.py:W:k=1"], "card", "drl evaluate x")
    with pytest.raises(BadInput, match="expected a list of names"):
        check_trusted("CartPole-v1", "evil", "card")


@pytest.mark.parametrize("name", ["my_line.py", "./my_line.py", "my_line", "my_line.py:", "my_line.py:Nothing"])
def test_a_file_without_a_name_lists_its_environments(file, name):
    with pytest.raises(BadInput, match=r"my_line\.py has Line; name one, such as my_line\.py:Line$"):
        make_vec_env(name, num_envs=1)


def test_the_environments_of_a_file_are_listed_without_running_it(tmp_path, monkeypatch):
    """A config may name any file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w')\ngym.register(id='Evil-v0')\ndef make_evil(): ...\n")
    with pytest.raises(BadInput, match=r"evil\.py has Evil-v0; name one, such as evil\.py:Evil-v0$"):
        make_vec_env("evil.py", num_envs=1)
    assert not (tmp_path / "ran").exists()
    (tmp_path / "makers.py").write_text("def make_maze(): ...\ndef _private(): ...\n")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "binary.py").write_bytes(b"\xff\x00")
    said = {"makers": "has make_maze;", "empty": "defines no class or function", "binary": "cannot be read",
            "absent": "there is no file absent.py"}  # fmt: skip
    for name, words in said.items():
        with pytest.raises(BadInput, match=words):
            make_vec_env(f"{name}.py", num_envs=1)
