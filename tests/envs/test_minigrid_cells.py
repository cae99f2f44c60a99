"""MiniGrid's image is categories, not pixels. Agents from before `OneHotCells` see pixels, as they were trained."""

import numpy as np
import pytest

import drl
from drl.agents.evaluation import evaluate
from drl.agents.load_agent import load_agent
from drl.cli.train import read_experiment
from drl.core.errors import BadInput, EnvFailed
from drl.core.specs import ObsSpec
from drl.envs.make_vec_env import make_env, make_vec_env

pytestmark = pytest.mark.filterwarnings("ignore:the part 'mission'")
EMPTY = "MiniGrid-Empty-5x5-v0"
CELL = 11 + 6 + 4  # objects, colors, states


@pytest.mark.default("torch-settings0-shape0")
@pytest.mark.parametrize(
    ("engine", "settings", "shape"),
    [("torch", {}, (7 * 7 * CELL + 4,)), ("jax", {}, (7 * 7 * CELL + 4,)), ("torch", {"wrappers": []}, ())],
)
def test_a_new_agent_sees_cells_and_an_old_one_pixels(tmp_path, engine, settings, shape):
    sizes = {"total_timesteps": 256, "num_envs": 4, "rollout_length": 64, "evaluation_episodes": 2}
    quiet = {"results_dir": str(tmp_path), "video": False, "plots": False, "tensorboard": False, "console": False}
    run = drl.train("ppo", EMPTY, engine=engine, vectorization="sync", **sizes, **quiet, **settings)
    agent = load_agent(run.folder)
    assert agent.obs_spec.shape == shape  # () has a field for each part
    assert len(evaluate(agent, episodes=2).episodes) == 2
    assert len(evaluate(agent, "MiniGrid-Empty-6x6-v0", episodes=2).episodes) == 2  # seen in the same way
    env = make_env(EMPTY)
    obs, _ = env.reset(seed=1)
    assert env.action_space.contains(np.int64(agent.act(obs)))  # the environment's own observation


@pytest.mark.parametrize(("wrapper", "width"), [("FullyObsWrapper", 5 * 5 * CELL + 4), ("ImgObsWrapper", 7 * 7 * CELL)])
def test_cells_after_other_wrappers(wrapper, width):
    with make_vec_env(EMPTY, 2, wrappers=[wrapper, "OneHotCells"]) as envs:
        obs = envs.reset()
    assert obs.shape == (2, width)
    assert set(np.unique(obs)) == {0.0, 1.0}
    assert (obs.sum(axis=1) == round(3 * width / CELL)).all()


def test_pixels_are_no_cells():
    with pytest.raises(EnvFailed, match="key 'image': an observation is 100 in entry 0"):
        make_vec_env(EMPTY, wrappers=["RGBImgObsWrapper", "OneHotCells"], vectorization="sync").reset()
    with pytest.raises(BadInput, match="expected MiniGrid's image of cells"):
        make_vec_env("CartPole-v1", wrappers=["OneHotCells"])


@pytest.mark.parametrize(
    ("flags", "wrappers"),
    [
        (["--env", EMPTY], ("OneHotCells",)),
        (["--env", "minigrid:BabyAI-GoToRedBall-v0"], ("OneHotCells",)),
        (["--env", EMPTY, "--wrapper", "ImgObsWrapper"], ("ImgObsWrapper",)),
        (["--env", EMPTY, "--vectorization", "envpool"], ()),
        (["--env", "CartPole-v1"], ()),
    ],
)
def test_which_runs_see_cells(flags, wrappers):
    run = read_experiment("ppo", flags)[0].run
    assert run.wrappers == wrappers
    assert run.env_config.wrappers == wrappers


def test_an_array_of_categories_has_columns_for_each_entry():
    spec = ObsSpec("multi_discrete", box_shape=(1, 2), sizes=(3, 2), starts=(1, 0))
    assert spec.encode(np.array([[[1, 1]], [[3, 0]]])).tolist() == [[1, 0, 0, 0, 1], [0, 0, 1, 1, 0]]
