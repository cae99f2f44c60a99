"""Frames as mp4 videos that browsers play, and small GIFs of these videos."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np

from drl.core.errors import BadInput
from drl.core.safe_files import draft_of
from drl.core.specs import Array

GIF_FPS, GIF_WIDTH, GIF_SECONDS, GIF_BYTES = 10, 320, 20, 4_000_000  # limits of a GIF


def write_video(path: str | Path, frames: Iterable[Array], fps: float = 30.0) -> Path:
    """Write `frames` (each `[H, W, 3]` uint8, all of one size) as H.264. `frames` may be a generator.

    An odd height or width is padded by repeating the last row or column, because 4:2:0 color needs even sizes.
    Nothing is rescaled. The file appears under its name only when it is complete.
    """
    path = Path(path)
    if path.suffix != ".mp4":
        raise BadInput(f"got the video path {str(path)!r}; expected a name that ends in .mp4")
    if not fps > 0:
        raise BadInput(f"got fps={fps}; expected a number above zero, such as fps=30")
    stream = iter(frames)
    first = next(stream, None)
    if first is None:
        raise BadInput("got no frames to write; was the environment made with render_mode='rgb_array'?")
    shape = _checked(first, 0, None).shape
    height, width = shape[0] % 2, shape[1] % 2  # rows and columns to add
    padded = (
        np.ascontiguousarray(np.pad(_checked(frame, i, shape), ((0, height), (0, width), (0, 0)), mode="edge"))
        for i, frame in enumerate(chain([first], stream))
    )
    with draft_of(path, suffix=".mp4") as draft:
        _encode(draft, padded, (shape[1] + width, shape[0] + height), fps)
    return path


def _checked(frame: object, index: int, shape: tuple[int, ...] | None) -> Array:
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        given = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise BadInput(f"frame {index} is {given}; expected a uint8 array of shape (height, width, 3)")
    if shape is not None and frame.shape != shape:
        raise BadInput(f"frame {index} has shape {frame.shape} but the first had {shape}; expected one size")
    if not frame.size:
        raise BadInput(f"frame {index} has shape {frame.shape}; expected at least one pixel")
    return frame


def _encode(path: Path, frames: Iterable[Array], size: tuple[int, int], fps: float) -> None:
    """Pipe raw frames into ffmpeg, wait for it and check its exit code, for example after a full disk."""
    with tempfile.TemporaryFile() as messages:  # a pipe could fill up and block
        command = [_ffmpeg(), "-y", "-loglevel", "error"]
        command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{size[0]}x{size[1]}", "-r", str(fps), "-i", "-"]
        command += ["-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart", str(path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=messages)
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # ffmpeg exited early; its exit code is checked below
                for frame in frames:
                    process.stdin.write(frame.data)
                process.stdin.close()
            code = process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()
        if code != 0:
            messages.seek(0)
            text = messages.read().decode(errors="replace")
            raise OSError(f"ffmpeg could not write {path} (exit code {code}): {text}")


def gif_of(video: Path) -> bytes:
    """Convert the beginning of a video into a small animated GIF."""
    filters = f"fps={GIF_FPS},scale='min({GIF_WIDTH},iw)':-1,split[a][b];[a]palettegen[p];[b][p]paletteuse"
    command = [_ffmpeg(), "-loglevel", "error", "-t", str(GIF_SECONDS), "-i", str(video), "-vf", filters, "-f", "gif"]
    made = subprocess.run([*command, "-fs", str(GIF_BYTES), "-"], capture_output=True, stdin=subprocess.DEVNULL)
    if made.returncode != 0 or not made.stdout:
        text = made.stderr.decode(errors="replace").strip()
        raise OSError(f"ffmpeg could not read {video} (exit code {made.returncode}): {text}")
    return made.stdout


def _ffmpeg() -> str:
    try:
        import imageio_ffmpeg  # type: ignore[import-untyped]

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError) as error:
        raise BadInput(f"videos need ffmpeg ({error}); install it with: pip install imageio-ffmpeg") from error
