"""Long runs: memory grows by less than 0.5 MB in 1,000 updates."""

import subprocess
import sys

import pytest
from fault_cases import LONG

KIND = "soak"
LIMIT = 0.5  # MB per 1,000 updates
WORK = {  # settings, updates per log, logs
    "100k DQN updates": (
        {"algorithm": "dqn", "warmup": 500, "batch_size": 32, "updates_per_log": 500, "capacity": 2000},
        500,
        200,
    ),
    "2k PPO updates": ({"algorithm": "ppo", "rollout_length": 64, "minibatches": 2, "epochs": 2}, 4, 500),
    "500 fused chunks": (
        {"algorithm": "ppo", "engine": "jax", "rollout_length": 64, "minibatches": 2, "epochs": 2},
        4,
        500,
    ),
}
SCRIPT = """
import sys
from drl.runs.building import open_trainer
from drl.settings.experiment import Experiment

settings, per_log, logs = eval(sys.argv[1])
whole = {"env": "CartPole-v1", "num_envs": 4, "hidden_sizes": [32, 32], "total_timesteps": 10**9, "compile": "off"}

def megabytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6

with open_trainer(Experiment.from_flat(whole | settings, "soak"), (256,)) as trainer:
    early = None
    for count, log in enumerate(trainer(), start=1):
        if count == logs // 4:
            early = megabytes()
        if count == logs:
            break
    updates = (logs - logs // 4) * per_log
    print((megabytes() - early) / updates * 1000)
"""


if LONG:

    @pytest.mark.parametrize("name", WORK)
    def test_memory_does_not_grow(name, tally):
        command = [sys.executable, "-c", SCRIPT, repr(WORK[name])]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=1500)
        assert ended.returncode == 0, ended.stderr
        assert float(ended.stdout) < LIMIT, f"{ended.stdout} MB per 1,000 updates"
        tally("soak")
