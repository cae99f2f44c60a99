"""An environment drawn in a process of its own is the same environment, and finds an OpenGL that works."""

import gc
import os
import sys
import types

import gymnasium as gym
import numpy as np
import pytest

from drl.core.errors import BadInput, EnvFailed
from drl.envs.env_config import EnvConfig
from drl.envs.make_vec_env import make_env
from drl.envs.rendered_env import RenderedEnv, open_gl_libraries


class NeedsOpenGL(gym.Env):
    """It looks like one that MuJoCo draws, with a single OpenGL library that works."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012
    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)

    def __init__(self, works, mask=False, render_mode=None):
        self.works, self.mask, self.render_mode, self.steps = works, mask, render_mode, 0
        sys.modules.setdefault("mujoco", types.ModuleType("mujoco"))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {"action_mask": np.array([True, False])} if self.mask else {"far": lambda: 0}

    def step(self, action):
        return np.ones(1, np.float32), 1.0, True, False, {"generator": (_ for _ in ())}  # it cannot be sent

    def render(self):
        print("noise")
        if os.environ.get("MUJOCO_GL") == "egl" != self.works:
            os.abort()
        if os.environ.get("MUJOCO_GL") != self.works:
            raise RuntimeError("no such library")
        return np.full((4, 4, 3), 9, np.uint8)


gym.register("NeedsOpenGL-v0", NeedsOpenGL)


@pytest.fixture(autouse=True)
def _no_screen(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1"])
def test_it_is_the_same_environment(env_id):
    plain = make_env(env_id, "rgb_array")
    with RenderedEnv(env_id) as env:
        assert env.metadata["render_fps"] == plain.metadata["render_fps"]
        np.testing.assert_array_equal(env.reset(seed=3)[0], plain.reset(seed=3)[0])
        for action in (0, 1, 1):
            one, two = env.step(np.int64(action)), plain.step(action)
            np.testing.assert_array_equal(one[0], two[0])
            assert one[1:4] == two[1:4]
            np.testing.assert_array_equal(env.render(), plain.render())
    plain.close()


def test_stacks_masks_and_infos():
    with RenderedEnv(EnvConfig(env="CartPole-v1", frame_stack=3), timeout=1e300) as env:
        assert env.reset(seed=0)[0].shape == (12,)
    with RenderedEnv(EnvConfig(env="NeedsOpenGL-v0", env_kwargs={"works": "egl", "mask": True})) as env:
        _, info = env.reset(seed=0)
        assert info["action_mask"].tolist() == [True, False]
        assert env.step(np.int64(0))[4] == {}, "what cannot be sent is left behind"


def test_what_cannot_be_drawn(capfd):
    with RenderedEnv("drl/Recall-v0") as env:
        assert env.render_mode is None
    with pytest.raises(BadInput, match="knows no environment"):
        RenderedEnv("CartPoole-v1")
    with pytest.raises(EnvFailed, match="cannot be drawn: cannot make 'CartPole-v1' with env_kwargs="):
        RenderedEnv(EnvConfig(env="CartPole-v1", env_kwargs={"wheels": 3}))
    gc.collect()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("works", ["egl", "osmesa"])
def test_an_open_gl_that_works_is_found(works, capfd):
    with RenderedEnv(EnvConfig(env="NeedsOpenGL-v0", env_kwargs={"works": works})) as env:
        env.reset(seed=0)
        assert env.render().max() == 9
    assert capfd.readouterr() == ("", "")


def test_without_open_gl_the_error_says_what_to_install(monkeypatch):
    kwargs = {"works": "glfw"}
    with pytest.raises(EnvFailed, match=r"egl: its process died .*; osmesa: RuntimeError: no such .*install libegl1"):
        RenderedEnv(EnvConfig(env="NeedsOpenGL-v0", env_kwargs=kwargs))
    monkeypatch.setenv("MUJOCO_GL", "wgl")
    with pytest.raises(EnvFailed, match=r"\(wgl: RuntimeError"):
        RenderedEnv(EnvConfig(env="NeedsOpenGL-v0", env_kwargs=kwargs))


def test_which_open_gl_is_tried(monkeypatch):
    assert open_gl_libraries() == ["egl", "osmesa"]
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert open_gl_libraries() == [None, "egl", "osmesa"]
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    assert open_gl_libraries() == ["osmesa"], "the user's choice"


def test_mujoco_is_drawn():
    pytest.importorskip("mujoco")
    try:
        env = RenderedEnv("InvertedPendulum-v5")
    except EnvFailed as error:
        pytest.skip(str(error))
    with env:
        env.reset(seed=0)
        assert env.render().std() > 1
