import pytest

from drl.experiment import stop_signals
from drl.experiment.config import Experiment
from drl.experiment.launch import train

LEAN = {"quiet": True, "plots": False, "video": False, "tensorboard": False, "compile": "off", "evaluate_every": 0}
SMALL = {
    "num_envs": 1,
    "vectorization": "sync",
    "rollout_length": 16,
    "minibatches": 1,
    "hidden_sizes": [8],
    "total_timesteps": 3200,
}


@pytest.mark.parametrize("signals", [1, 2])
def test_one_signal_ends_a_run_after_the_step_and_a_second_one_at_once(signals, tmp_path, monkeypatch):
    monkeypatch.setattr(stop_signals, "PATIENCE", 60.0)
    env = {"env": "tests.experiment.signalling_env:Signalling-v0", "env_kwargs": [f"signals={signals}"]}
    settings = {"algorithm": "ppo", "results_dir": str(tmp_path)} | LEAN | SMALL | env
    finished = train(Experiment.from_flat(settings, "test"), console=False)
    assert finished.status == "interrupted"
    assert finished.log.env_steps == 32  # the third rollout was not finished
