"""Environments that get into trouble."""

import os
import time
from pathlib import Path

import gymnasium as gym


class Troubled(gym.Wrapper):
    """At its 50th step in a process, the next trouble of those that `folder/troubles` lists; "always" stays there."""

    def __init__(self, env, folder=""):
        super().__init__(env)
        self.folder, self.steps = Path(folder), 0

    def step(self, action):
        self.steps += 1
        trouble = self._trouble() if self.steps == 50 else ""
        if trouble in ("raise", "always"):
            raise RuntimeError("out of order")
        if trouble == "exit":
            os._exit(3)
        if trouble == "hang":
            time.sleep(60)
        obs, reward, *rest = self.env.step(action)
        return obs, float("nan") if trouble == "nan" else reward, *rest

    def _trouble(self):
        file = self.folder / "troubles"
        first, *others = file.read_text().split() if file.exists() else [""]
        if first != "always":
            file.write_text(" ".join(others) or "none")
        return first
