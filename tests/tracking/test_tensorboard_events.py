import io
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS

from drl.core.log import Log
from drl.tracking.guarded import Ending, TrackerFailed, guard
from drl.tracking.tensorboard_events import TensorBoardTracker
from drl.tracking.video import write_video


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
        import drl.report.board, drl.tracking.tensorboard_events
        heavy = {"torch", "jax", "matplotlib", "rich", "tensorboard", "imageio_ffmpeg"} & set(sys.modules)
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


def test_a_folder_that_cannot_be_made_raises_at_the_first_log(tmp_path):
    (tmp_path / "tensorboard").write_text("a file is in the way")
    tracker = TensorBoardTracker(tmp_path / "tensorboard")
    with pytest.raises(Exception, match="tensorboard"):
        tracker.write(log(1))


def test_hyperparameters_the_final_result_and_the_video_arrive(tmp_path):
    frames = np.zeros((40, 30, 640, 3), np.uint8)
    frames[:, :, :320] = np.arange(40, dtype=np.uint8)[:, None, None, None] * 5
    write_video(tmp_path / "videos" / "final_agent.mp4", frames, fps=20)
    settings = {"algorithm": "ppo", "gamma": 0.9, "num_envs": 8, "quiet": True, "hidden_sizes": [64], "name": None}
    tracker = TensorBoardTracker(tmp_path / "tensorboard", settings)
    tracker.write(log(1))
    tracker.finish(Ending(tmp_path, "finished", {"mean_return": 21.5}))
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    stored = events.PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(stored["_hparams_/session_start_info"])
    known = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert known == {"algorithm": "ppo", "gamma": 0.9, "num_envs": 8.0, "quiet": True, "hidden_sizes": "[64]"}
    end = metadata.parse_session_end_info_plugin_data(stored["_hparams_/session_end_info"])
    assert end.status == STATUS_SUCCESS
    assert [(scalar.step, scalar.value) for scalar in events.Scalars("final/mean_return")] == [(10, 21.5)]
    (image,) = events.Images("videos/final_agent")
    assert (image.width, image.height) == (320, 15)
    with Image.open(io.BytesIO(image.encoded_image_string)) as gif:
        assert (gif.format, gif.size, gif.n_frames) == ("GIF", (320, 15), 20)  # 2 seconds at 10 frames


def test_a_run_that_was_stopped_is_no_success(tmp_path):
    tracker = TensorBoardTracker(tmp_path / "tensorboard", {"gamma": 0.9})
    tracker.write(log(1))
    tracker.finish(Ending(tmp_path, "interrupted"))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    end = metadata.parse_session_end_info_plugin_data(
        events.PluginTagToContent("hparams")["_hparams_/session_end_info"]
    )
    assert end.status == STATUS_FAILURE


def test_a_broken_video_costs_its_own_output_only(tmp_path):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "final_agent.mp4").write_bytes(b"not a video")
    tracker = guard(TensorBoardTracker(tmp_path / "tensorboard"))
    tracker.write(log(1))
    with pytest.warns(TrackerFailed, match="ffmpeg could not read"):
        tracker.finish(Ending(tmp_path, "finished", {"mean_return": 1.0}))
    assert scalars(tmp_path / "tensorboard")["final/mean_return"] == [(10, 1.0)]
