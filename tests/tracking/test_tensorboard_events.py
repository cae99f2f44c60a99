import subprocess
import sys
import textwrap

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drl.core.log import Log
from drl.tracking.tensorboard_events import TensorBoardTracker


def log(step: int) -> Log:
    return Log(10 * step, step, step, learn={"loss": 1 / step}, recent={"mean_ep_return": np.float64(step)})


def scalars(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(s.step, s.value) for s in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_events_read_back_equal_the_logs(tmp_path):
    tracker = TensorBoardTracker(tmp_path / "tensorboard")
    for step in (1, 2, 4):
        tracker.write(log(step))
    tracker.close()
    tracker.close()
    assert scalars(tmp_path / "tensorboard") == {
        "episodes": [(10, 1), (20, 2), (40, 4)],
        "learning_steps": [(10, 1), (20, 2), (40, 4)],
        "learn/loss": [(10, 1.0), (20, 0.5), (40, 0.25)],
        "recent/mean_ep_return": [(10, 1), (20, 2), (40, 4)],
    }


def test_a_resumed_run_replaces_the_steps_it_lives_again(tmp_path, monkeypatch):
    clock = iter(range(1_000_000, 2_000_000))
    monkeypatch.setattr("time.time", lambda: next(clock))  # file names hold whole seconds, and order the files
    for steps in ([1, 2, 3, 4], [3, 4, 5]):
        tracker = TensorBoardTracker(tmp_path)
        for step in steps:
            tracker.write(log(step))
        tracker.close()
    assert [step for step, _ in scalars(tmp_path)["learn/loss"]] == [10, 20, 30, 40, 50]


def test_nothing_heavy_is_imported():
    script = """
        import sys
        import drl.tracking.console, drl.tracking.files, drl.tracking.guarded, drl.tracking.plots, drl.tracking.video
        import drl.tracking.report, drl.tracking.tensorboard_events
        heavy = {"torch", "jax", "matplotlib", "rich", "tensorboard", "imageio_ffmpeg"} & set(sys.modules)
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


def test_a_folder_that_cannot_be_made_raises_at_the_first_log(tmp_path):
    (tmp_path / "tensorboard").write_text("a file is in the way")
    tracker = TensorBoardTracker(tmp_path / "tensorboard")
    with pytest.raises(Exception, match="tensorboard"):
        tracker.write(log(1))
