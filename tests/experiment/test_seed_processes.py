"""`--num-seeds` where seeds are processes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

QUIET = ["--no-plots", "--no-video", "--no-tensorboard", "--quiet", "--hidden-sizes", "8", "--evaluate-every", "0"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_every_run(tmp_path, number):
    """It is sent to the process of the command only."""
    command = [sys.executable, "-m", "drl.cli.entry", "train", "ppo", "--num-seeds", "2", "--workers", "2"]
    command += ["--total-timesteps", "100000000", "--results-dir", str(tmp_path), *QUIET]
    with subprocess.Popen(command, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:
        deadline = time.monotonic() + 120
        while len([file for file in tmp_path.rglob("metrics.jsonl") if file.stat().st_size]) < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number
    records = [json.loads(file.read_text()) for file in tmp_path.rglob("run.json")]
    expected = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
    assert [record["status"] for record in records] == [expected] * 2
    assert len(list(tmp_path.rglob("checkpoints/step_*"))) >= 2
