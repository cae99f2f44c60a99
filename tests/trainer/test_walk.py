"""How far a reader walks: one whole iteration, collecting included, and the update alone, traced through our files."""

import sys
from pathlib import Path

import pytest

from drl.envs.make_vec_env import make_vec_env
from drl.runs.building import build_trainer
from drl.settings.experiment import Experiment

ROOT = str(Path(__file__).parents[2] / "drl")
SETTINGS = {
    "ppo": {"env": "CartPole-v1", "rollout_length": 128},
    "dqn": {"env": "CartPole-v1", "warmup": 64, "batch_size": 32, "updates_per_log": 200},
    "sac": {"env": "Pendulum-v1", "warmup": 64, "batch_size": 32, "updates_per_log": 500},
}
MOST = {"ppo": (14, 6), "dqn": (14, 6), "sac": (15, 7)}  # files, stack


class Walk:
    """Files of ours that a call enters, and how deep their calls lie within each other."""

    def __init__(self):
        self.files, self.depth, self.deepest = set(), 0, 0

    def __call__(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(ROOT) or frame.f_code.co_name.startswith("<"):
            return None
        self.files.add(frame.f_code.co_filename.removeprefix(ROOT + "/"))
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)
        return self._inside

    def _inside(self, frame, event, arg):
        if event == "return":
            self.depth -= 1
        return self._inside

    def follow(self, call, *arguments):
        sys.settrace(self)
        try:
            return call(*arguments)
        finally:
            sys.settrace(None)


def trainer_of(algorithm, envs):
    flat = {"algorithm": algorithm, "num_envs": envs.num_envs} | SETTINGS[algorithm]
    trainer = build_trainer(Experiment.from_flat(flat, "test"), envs)
    trainer.step()  # the first step also resets, and looks at the model
    return trainer


@pytest.mark.parametrize("algorithm", SETTINGS)
def test_an_iteration_goes_through_few_files_and_a_flat_stack(algorithm):
    files, stack = MOST[algorithm]
    with make_vec_env(SETTINGS[algorithm]["env"], 4, seed=1) as envs:
        trainer, walk = trainer_of(algorithm, envs), Walk()
        log = walk.follow(trainer.step)
    assert log.finished, "an episode ended meanwhile, so that resets are part of the walk"
    assert len(walk.files) <= files, sorted(walk.files)
    assert walk.deepest <= stack


@pytest.mark.parametrize("algorithm", SETTINGS)
def test_an_update_goes_through_at_most_8_files(algorithm):
    with make_vec_env(SETTINGS[algorithm]["env"], 4, seed=1) as envs:
        trainer, walk = trainer_of(algorithm, envs), Walk()
        while not trainer.buffer.ready:
            trainer._add(trainer.collector.step(trainer.env_steps))
        walk.follow(trainer.algorithm.learn, trainer.buffer.take(), 0.0)
    assert len(walk.files) <= 8, sorted(walk.files)
    assert walk.deepest <= 7
