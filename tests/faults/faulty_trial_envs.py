"""An environment that does something bad to the first process that plays in it for a while."""

import os
import signal
import time
from pathlib import Path

import gymnasium as gym

from drl.games.probes import MatchEnv


def spin():
    while True:
        pass


def throw(error):
    raise error


FAULTS = {
    "raise": lambda: throw(RuntimeError("the environment broke")),
    "memory": lambda: throw(MemoryError("no memory")),
    "exit": lambda: throw(SystemExit(3)),
    "interrupt": lambda: throw(KeyboardInterrupt()),
    "os._exit": lambda: os._exit(7),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "abort": os.abort,
    "hang": lambda: time.sleep(3600),
    "spin": spin,
}


class FaultyTrial(MatchEnv):
    def __init__(self, folder, fault, always=False, render_mode=None):
        super().__init__()
        self.folder, self.fault, self.always, self.steps = Path(folder), fault, always, 0

    def step(self, action):
        self.steps += 1
        if self.steps == 20:
            try:
                (self.folder / "done").touch(exist_ok=self.always)
            except FileExistsError:
                pass
            else:
                FAULTS[self.fault]()
        return super().step(action)


if "FaultyTrial-v0" not in gym.registry:  # pytest may have imported this file under another name
    gym.register("FaultyTrial-v0", entry_point=FaultyTrial)
