import gc
import warnings

import imageio.v2 as imageio
import numpy as np
import pytest

from drl.core.errors import BadInput
from drl.tracking.video import write_video


def read_back(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # imageio's reader leaves its pipes to the garbage collector
        reader = imageio.get_reader(path, "FFMPEG")
        found = np.stack([reader.get_data(i) for i in range(reader.count_frames())]), reader.get_meta_data()
        reader.close()
        del reader
        gc.collect()
    return found


def frames(count, height, width):
    for i in range(count):
        frame = np.zeros((height, width, 3), np.uint8)
        frame[:, : width // 2] = (200, 30 + i, 30)
        yield frame


@pytest.mark.default("size1-stored1")
@pytest.mark.parametrize(("size", "stored"), [((64, 96), (64, 96)), ((45, 71), (46, 72)), ((1, 1), (2, 2))])
def test_read_back_count_size_and_color(tmp_path, size, stored):
    path = write_video(tmp_path / "videos" / "episode.mp4", frames(7, *size), fps=15)
    video, meta = read_back(path)
    assert video.shape == (7, *stored, 3)
    if size[0] > 1:
        np.testing.assert_allclose(video[0, 20, 10], (200, 30, 30), atol=12)
        np.testing.assert_allclose(video[0, 20, -1], (0, 0, 0), atol=12)
    assert (meta["fps"], meta["codec"]) == (15, "h264")
    assert meta["pix_fmt"].startswith("yuv420p")
    assert [p.name for p in path.parent.iterdir()] == ["episode.mp4"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "no frames"),
        ([np.zeros((8, 8, 3), np.float32)], "frame 0 is float32"),
        ([np.zeros((8, 8), np.uint8)], r"frame 0 is uint8 \(8, 8\)"),
        ([np.zeros((8, 8, 4), np.uint8)], "height, width, 3"),
        ([None, None], "no frames|NoneType"),
        ([np.zeros((8, 8, 3), np.uint8), np.zeros((8, 10, 3), np.uint8)], "frame 1 has shape"),
    ],
)
def test_bad_frames_are_named_and_leave_no_file(tmp_path, given, words):
    with pytest.raises(BadInput, match=words):
        write_video(tmp_path / "x.mp4", given)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_renderer_leaves_the_old_video(tmp_path):
    path = tmp_path / "x.mp4"
    path.write_bytes(b"old")

    def broken():
        yield from frames(2, 16, 16)
        raise RuntimeError("renderer died")

    with pytest.raises(RuntimeError, match="renderer died"):
        write_video(path, broken())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_bad_settings(tmp_path):
    with pytest.raises(BadInput, match=r"\.mp4"):
        write_video(tmp_path / "x.gif", frames(1, 8, 8))
    with pytest.raises(BadInput, match="fps=0"):
        write_video(tmp_path / "x.mp4", frames(1, 8, 8), fps=0)


def test_ffmpeg_failing_is_an_error_with_its_words(tmp_path, monkeypatch):
    fake = tmp_path / "ffmpeg"
    fake.write_text("#!/bin/sh\necho no space left >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr("drl.tracking.video._ffmpeg", lambda: str(fake))
    with pytest.raises(OSError, match=r"exit code 3\): no space left"):
        write_video(tmp_path / "x.mp4", frames(50, 200, 200))
    assert list(tmp_path.iterdir()) == [fake]
