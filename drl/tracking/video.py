"""Frames to an mp4 that every browser plays."""

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from drl.core.errors import BadInput
from drl.core.specs import Array


def write_video(path: str | Path, frames: Iterable[Array], fps: float = 30.0) -> Path:
    """Write `frames` (each `[H, W, 3]` uint8, all of one size) as H.264; they may come from a generator.

    An odd height or width is padded by repeating the last row or column, because 4:2:0 colour needs even sizes;
    nothing is rescaled. The file appears under its name only when it is complete.
    """
    path = Path(path)
    if path.suffix != ".mp4":
        raise BadInput(f"got the video path {str(path)!r}; expected a name that ends in .mp4")
    if not fps > 0:
        raise BadInput(f"got fps={fps}; expected a number above zero, such as fps=30")
    stream = iter(frames)
    first = next(stream, None)
    if first is None:
        raise BadInput("got no frames to write; was the world made with render_mode='rgb_array'?")
    shape = _checked(first, 0, None).shape
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.stem}.draft.mp4")
    writer = _open_writer(draft, (shape[1] + shape[1] % 2, shape[0] + shape[0] % 2), fps)
    try:
        try:
            for i, frame in enumerate(chain([first], stream)):
                writer.send(_even(_checked(frame, i, shape)))
        finally:
            writer.close()
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _checked(frame: Any, index: int, shape: tuple[int, ...] | None) -> Array:
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        given = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise BadInput(f"frame {index} is {given}; expected a uint8 array of shape (height, width, 3)")
    if shape is not None and frame.shape != shape:
        raise BadInput(f"frame {index} has shape {frame.shape} but the first had {shape}; expected one size")
    if not frame.size:
        raise BadInput(f"frame {index} has shape {frame.shape}; expected at least one pixel")
    return frame


def _even(frame: Array) -> Array:
    height, width, _ = frame.shape
    return np.ascontiguousarray(np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))


def _open_writer(path: Path, size: tuple[int, int], fps: float) -> Any:
    try:
        import imageio_ffmpeg  # type: ignore[import-untyped]

        writer = imageio_ffmpeg.write_frames(
            str(path),
            size,
            fps=fps,
            codec="libx264",
            pix_fmt_out="yuv420p",
            macro_block_size=1,  # sizes are even already; the default of 16 would rescale
            output_params=["-movflags", "+faststart"],  # playback starts before the file has loaded
            ffmpeg_log_level="error",
        )
        writer.send(None)
    except (ImportError, RuntimeError) as error:
        raise BadInput(f"videos need ffmpeg ({error}); install it with: pip install imageio-ffmpeg") from error
    return writer
