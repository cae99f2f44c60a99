"""An environment that breaks in the way it is asked to: `--env tests.faults.broken_envs:Broken-v0 --env-kwargs how=…`.

It has a form for each vectorization: a Gymnasium environment, a vector environment and a fake EnvPool pool.
"""

import ctypes
import faulthandler
import os
import signal
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

EPISODE = 7  # steps


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Odd(BaseException):
    """Not an `Exception`."""


def hang_with_the_interpreter_locked():
    ctypes.PyDLL(None).sleep(1000)


def hang():
    time.sleep(1000)


def spin():
    while True:
        pass


def die_of(number):
    def die():
        faulthandler.disable()  # pytest's
        os.kill(os.getpid(), number)

    return die


def thrower(error):
    def throw():
        raise error

    return throw


def press_ctrl_c_twice():
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)


# What a call does instead of its work, by name.
DEEDS = {
    "raise": thrower(ValueError("the wheel came off")),
    "unprintable": thrower(Unprintable()),
    "base": thrower(Odd("the wheel came off")),
    "exit": lambda: sys.exit(3),
    "exit0": lambda: sys.exit(),
    "keyboard": thrower(KeyboardInterrupt()),
    "ctrl_c": press_ctrl_c_twice,
    "generator": thrower(GeneratorExit()),
    "stop": thrower(StopIteration()),
    "recursion": thrower(RecursionError("too deep")),
    "memory": thrower(MemoryError()),
    "missing": thrower(FileNotFoundError("no such level")),
    "pipe": thrower(BrokenPipeError("the simulator is gone")),
    "timeout": thrower(TimeoutError("the simulator is slow")),
    "assert": thrower(AssertionError()),
    "long": thrower(ValueError("line\n" * 10_000)),
    "hang": hang,
    "spin": spin,
    "locked": hang_with_the_interpreter_locked,
    "die": lambda: os._exit(7),
    "die0": lambda: os._exit(0),
    "abort": die_of(signal.SIGABRT),
    "segfault": die_of(signal.SIGSEGV),
    "killed": die_of(signal.SIGKILL),
}
# What takes the place of a value, by name.
VALUES = {
    "none": None,
    "text": "1.5",
    "word": "high",
    "nan": np.nan,
    "inf": np.inf,
    "two": np.ones(2),
    "list": [1.0, 2.0],
    "dict": {},
    "object": object(),
    "number": 2,
    "complex": 1j,
}
GOOD = np.array([0.5, -0.5], np.float32)
OBS = {
    "none": None,
    "text": "high",
    "nan": np.array([0.5, np.nan], np.float32),
    "inf": np.array([np.inf, 0.5], np.float32),
    "minus_inf": np.array([0.5, -np.inf]),
    "shape": np.zeros(3, np.float32),
    "deep": np.zeros((2, 2), np.float32),
    "scalar": 0.5,
    "empty": np.zeros(0, np.float32),
    "words": np.array(["1.5", "2.5"]),
    "nothings": np.array([None, None]),
    "dict": {},
}
DICTS = {
    "missing": {"place": GOOD},
    "empty": {},
    "none": None,
    "array": GOOD,
    "part_none": {"place": GOOD, "speed": None},
    "part_nan": {"place": GOOD, "speed": np.array([np.nan, 0.0], np.float32)},
    "part_inf": {"place": GOOD, "speed": np.array([0.0, np.inf], np.float32)},
    "part_shape": {"place": GOOD, "speed": np.zeros(3, np.float32)},
    "swapped": {"place": np.zeros(3, np.float32), "speed": np.zeros(1, np.float32)},
    "part_word": {"place": GOOD, "speed": np.array(["a", "b"])},
}
RESULTS = {"none": None, "short": (GOOD, 1.0, False, False), "long": (GOOD, 1.0, False, False, {}, 0), "text": "abcde"}
FIRSTS = {"none": None, "short": (GOOD,), "long": (GOOD, {}, 0), "bare": GOOD}


def spaces_of(continuous, keys):
    box = spaces.Box(-10.0, 10.0, (2,), np.float32)
    observation = spaces.Dict(place=box, speed=box) if keys else box
    return observation, spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else spaces.Discrete(2)


class Fault:
    """`how` is PLACE or PLACE:NAME: where it breaks (step, reset, reward, obs, …), and how."""

    def __init__(self, how, at):
        self.place, _, self.name = how.partition(":")
        self.at, self.steps = at, 0

    def deed(self, place):
        if self.place == place:
            DEEDS[self.name]()

    def first(self, keys):
        """What `reset` returns."""
        self.deed("reset")
        good = {"place": GOOD, "speed": GOOD} if keys else GOOD.copy()
        table = {"first": FIRSTS, "reset_obs": DICTS if keys else OBS, "reset_info": VALUES}.get(self.place)
        if table is None:
            return good, {}
        value = table[self.name]
        return {"first": value, "reset_obs": (value, {}), "reset_info": (good, value)}[self.place]

    def result(self, keys, ended):
        """What `step` returns."""
        self.steps += 1
        good = {"place": GOOD, "speed": GOOD} if keys else GOOD.copy()
        result = {"obs": good, "reward": 1.0, "terminated": False, "truncated": ended, "info": {}}
        if self.steps >= self.at:
            self.deed("step")
            if self.place == "result":
                return RESULTS[self.name]
            if self.place in result:
                table = {"obs": DICTS if keys else OBS}.get(self.place, VALUES)
                result[self.place] = table[self.name]
        return tuple(result.values())


class Broken(gym.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, how="never", at=3, continuous=False, keys=False, pids=None, render_mode=None):
        self.fault, self.keys, self.render_mode = Fault(how, at), keys, render_mode
        if pids:  # a folder: the name of a file in it is the number of a process
            (Path(pids) / str(os.getpid())).touch()
        self.fault.deed("make")
        self._deed_of_worker("worker")
        self.observation_space, self.action_space = spaces_of(continuous, keys)
        if how == "space:obs":
            self.observation_space = spaces.Graph(spaces.Discrete(2), None)
        if how == "space:action":
            self.action_space = spaces.Text(3)

    def _deed_of_worker(self, place):
        if os.getpid() != FIRST_PROCESS:
            self.fault.deed(place)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = 0
        return self.fault.first(self.keys)

    def step(self, action):
        self.length += 1
        return self.fault.result(self.keys, self.length >= EPISODE)

    def render(self):
        self.fault.deed("render")
        return "a picture" if self.fault.place == "picture" else np.zeros((8, 8, 3), np.uint8)

    def close(self):
        self.fault.deed("close")
        self._deed_of_worker("worker_close")


class BrokenVector(VectorEnv):
    """The same as a vector environment that leaves resets to us. Its last environment breaks."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self, num_envs=2, how="never", at=3, continuous=False, keys=False):
        self.num_envs, self.keys = num_envs, keys
        self.faults = [Fault("never", at) for _ in range(num_envs - 1)] + [Fault(how, at)]
        self.faults[-1].deed("make")
        self.single_observation_space, self.single_action_space = spaces_of(continuous, keys)
        self.lengths = np.zeros(num_envs, int)

    def reset(self, *, seed=None, options=None):
        self.lengths[(options or {}).get("reset_mask", np.ones(self.num_envs, bool))] = 0
        rows = [fault.first(self.keys) for fault in self.faults]
        if not (isinstance(rows[-1], tuple) and len(rows[-1]) == 2):
            return rows[-1]
        return self._batch([row[0] for row in rows]), rows[-1][1]

    def step(self, action):
        self.lengths += 1
        rows = [f.result(self.keys, n >= EPISODE) for f, n in zip(self.faults, self.lengths.tolist(), strict=True)]
        if not (isinstance(rows[-1], tuple) and len(rows[-1]) == 5):
            return rows[-1]
        obs, *columns, infos = zip(*rows, strict=True)
        return self._batch(obs), *(_array(column) for column in columns), infos[-1]

    def _batch(self, rows):
        if self.keys and isinstance(rows[-1], dict):
            return {key: _array([row[key] for row in rows]) for key in rows[-1]}
        return _array(rows) if not self.keys else rows[-1]

    def close_extras(self, **kwargs):
        self.faults[-1].deed("close")


def _array(rows):
    try:
        return np.array(list(rows))
    except ValueError:  # rows of different shapes
        return list(rows)


class BrokenPool(BrokenVector):
    """The same with EnvPool's protocol: `reset` takes the indices of environments."""

    def reset(self, env_id=None):
        which = np.arange(self.num_envs) if env_id is None else env_id
        self.lengths[which] = 0
        if env_id is None:
            answer = super().reset()
            return (answer[0], {"env_id": which}) if isinstance(answer, tuple) and len(answer) == 2 else answer
        good = {"place": GOOD, "speed": GOOD} if self.keys else GOOD
        return self._batch([good] * len(which)), {"env_id": which}


FIRST_PROCESS = os.getpid()
if "Broken-v0" not in gym.registry:  # pytest imports this file under several names
    gym.register("Broken-v0", Broken, vector_entry_point=BrokenVector)
