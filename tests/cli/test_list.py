"""`drl list` offers what can be made here."""

import importlib.util

import pytest

from drl.cli.entry import main


@pytest.mark.parametrize(
    ("missing", "hidden", "need"),
    [
        ("Box2D", "LunarLander-v3", "needs Box2D: pip install 'drl-workshop[box2d]'"),
        ("mujoco", "Ant-v5", "needs mujoco: pip install 'drl-workshop[mujoco]'"),
        ("ale_py", "ALE/NAME", "needs ale_py: pip install 'drl-workshop[atari]'"),
        ("brax", "brax:NAME", "needs brax: pip install 'drl-workshop[brax]'"),
    ],
)
def test_what_lacks_a_package_is_shown_with_all(missing, hidden, need, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    assert main(["list", "envs"]) == 0
    names = capsys.readouterr().out.split()
    assert hidden not in names
    assert "CartPole-v1" in names
    assert main(["list", "envs", "--all"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.split()[0] == hidden)
    assert line.split(maxsplit=1)[1] == need


def test_presets_for_every_environment_are_named(capsys):
    assert main(["list", "presets"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].strip() == "for every environment: ppo: --preset clip"
