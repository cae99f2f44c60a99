"""Ids of well-known packages work without `module:` in front: their package is imported when one is asked for."""

import contextlib
import importlib
import io
import re
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from drl.core.errors import BadInput, MissingExtra
from drl.envs.faults import reason
from drl.envs.known_packages import is_installed


class Family(NamedTuple):
    """Environments of one package."""

    ids: str  # pattern of how their ids begin
    package: str  # whose import registers them
    extra: str  # of ours that installs it


FAMILIES = (
    Family(r"ALE/", "ale_py", "atari"),
    Family(r"(MiniGrid|BabyAI)-", "minigrid", "minigrid"),
    Family(
        r"(highway|merge|roundabout|parking|intersection|racetrack|exit|lane-keeping|two-way|u-turn)-",
        "highway_env",
        "highway",
    ),
    Family(
        r"(Point|Ant)Maze_|Fetch(Reach|Push|Slide|PickAndPlace)|Hand(Reach|Manipulate)|AdroitHand|FrankaKitchen",
        "gymnasium_robotics",
        "robotics",
    ),
)


def import_package_of(name: str) -> None:
    """Import the well-known package that registers this id, if there is one."""
    family = next((each for each in FAMILIES if re.match(each.ids, name)), None)
    if family is None or not is_installed(family.package):  # not one of the same name in the current folder
        return
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # Gymnasium-Robotics reports old versions of some of its ids
            gym.register_envs(importlib.import_module(family.package))
    except ImportError as error:
        raise MissingExtra(f"environment {name!r}", family.extra, error) from error
    except BaseException as error:
        raise BadInput(f"cannot import {family.package!r} for {name!r}: {reason(error)}") from error


def prepare_package_of(spec: EnvSpec) -> None:
    """Make the package of an environment work with the versions that we test with."""
    if not str(spec.entry_point).startswith("gymnasium_robotics."):
        return
    utils: Any = importlib.import_module("gymnasium_robotics.utils.mujoco_utils")
    # Version 1.4.2 asserts that a NumPy number is in a tuple of joint types. Those of MuJoCo 3.17 and 4.0 do not equal
    # NumPy's numbers, so every arm and hand fails; plain integers do.
    if isinstance(utils.mujoco, ModuleType):
        joints = {name: int(value) for name, value in utils.mujoco.mjtJoint.__members__.items()}
        utils.mujoco = SimpleNamespace(**{**vars(utils.mujoco), "mjtJoint": SimpleNamespace(**joints)})
