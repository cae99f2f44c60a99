"""Ids of well-known packages, without their module in front."""

import re
import subprocess
import sys

import gymnasium as gym
import pytest

from drl.core.errors import BadInput, MissingExtra
from drl.envs.env_config import check_trusted, find_spec
from drl.envs.env_names import FAMILIES


@pytest.mark.parametrize("family", FAMILIES[1:], ids=lambda family: family.package)
def test_the_pattern_covers_every_id_of_the_package(family):
    """In a process of its own, so that the ids are those of this package alone. Gymnasium's own do not match. (ale_py
    has more ids, of older versions.)"""
    pytest.importorskip(family.package)
    code = f"""
import gymnasium as gym
own = set(gym.registry)
import {family.package}
gym.register_envs({family.package})
print(*own, "|", *(set(gym.registry) - own))
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    before, after = (part.split() for part in run.stdout.split("|"))
    assert after
    assert [name for name in after if not re.match(family.ids, name)] == []
    assert [name for name in before if re.match(family.ids, name)] == []


def test_an_id_imports_its_package():
    code = "from drl.envs.env_config import find_spec; print(find_spec('MiniGrid-Empty-5x5').id)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "MiniGrid-Empty-5x5-v0"


def test_a_class_of_the_users_own_needs_no_package(monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text("def FetchReachMine():\n    pass\n")
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    assert find_spec(f"{tmp_path / 'mine.py'}:FetchReachMine").id == "FetchReachMine"


@pytest.mark.parametrize("name", ["minigrid.py:World", "drl.games/evil.py:World", "./drl.py:World"])
def test_a_file_with_the_name_of_a_known_package_is_not_trusted(name):
    with pytest.raises(BadInput, match="runs its code"):
        check_trusted(name, [], "card")
    with pytest.raises(BadInput, match="runs its code"):
        check_trusted("CartPole-v1", [name], "card")


@pytest.mark.parametrize(
    ("env_id", "package", "extra"),
    [
        ("ALE/Pong-v5", "ale_py", "atari"),
        ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"),
        ("highway-v0", "highway_env", "highway"),
        ("PointMaze_UMaze-v3", "gymnasium_robotics", "robotics"),
        ("FetchReach-v4", "gymnasium_robotics", "robotics"),
    ],
)
def test_a_missing_package_names_its_extra(monkeypatch, env_id, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(gym.registry, env_id, raising=False)
    with pytest.raises(MissingExtra, match=rf"pip install 'drl-workshop\[{extra}\]'"):
        find_spec(env_id)
