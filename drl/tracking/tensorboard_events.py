"""Scalars, hyperparameters and videos for TensorBoard, written with its own event writer.

Needs neither torch nor TensorFlow.
"""

import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

from drl.core.log import Log
from drl.core.specs import PlainDict
from drl.tracking.guarded import Ending
from drl.tracking.video import gif_of

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
    from tensorboard.summary.writer.event_file_writer import EventFileWriter


class TensorBoardTracker:
    """Logs every number under the tag `group/name`, at step `env_steps`. `settings` appear as hyperparameters on the
    HParams page. `finish()` adds the final evaluation, by which that page compares runs, and the videos as GIFs.

    View with `tensorboard --logdir results`.
    """

    def __init__(self, folder: str | Path, settings: PlainDict | None = None):
        self.folder: Path = Path(folder)
        self.settings: PlainDict = settings or {}
        self._writer: EventFileWriter | None = None
        self._env_steps = 0  # of the last log

    def write(self, log: Log) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._writer is None:
            self._writer = self._open(log.env_steps)
            if self.settings:
                self._add(_session_start(self.settings))
        self._env_steps = log.env_steps
        values = {tag: value for tag, value in log.flat().items() if tag != "env_steps"}
        self._add(*(Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()))

    def flush(self) -> None:
        """Write buffered events."""
        if self._writer is not None:
            self._writer.flush()

    def finish(self, ending: Ending) -> None:
        """Add the final evaluation, hyperparameters and videos."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        try:
            if self._writer is not None:
                results = {f"final/{name}": value for name, value in (ending.evaluation or {}).items()}
                self._add(*(Summary.Value(tag=tag, simple_value=value) for tag, value in results.items()))
                self._add(*(_video(path) for path in sorted((ending.folder / "videos").glob("*.mp4"))))
                if self.settings:
                    self._add(_session_end(ending.status))
        finally:
            self.close()

    def close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def _add(self, *values: "Summary.Value") -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        assert self._writer is not None
        self._writer.add_event(Event(wall_time=time.time(), step=self._env_steps, summary=Summary(value=values)))

    def _open(self, env_steps: int) -> "EventFileWriter":
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        continues = any(self.folder.glob("events.out.tfevents.*"))
        writer = EventFileWriter(str(self.folder), flush_secs=5)
        if continues:  # a resumed run repeats some steps; this makes TensorBoard drop the old ones
            start = SessionLog(status=SessionLog.START)
            writer.add_event(Event(wall_time=time.time(), step=env_steps, session_log=start))
        return writer


def _session_start(settings: PlainDict) -> "Summary.Value":
    """Return a run's entry on the HParams page, which takes numbers, bools and strings; other values become strings."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

    start = SessionStartInfo(start_time_secs=time.time())
    for name, value in settings.items():
        if isinstance(value, bool):
            start.hparams[name].bool_value = value
        elif isinstance(value, int | float):
            start.hparams[name].number_value = value
        elif value is not None:
            start.hparams[name].string_value = str(value)
    return _hparams("session_start_info", HParamsPluginData(session_start_info=start))


def _session_end(status: str) -> "Summary.Value":
    from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

    end = SessionEndInfo(status=STATUS_SUCCESS if status == "finished" else STATUS_FAILURE, end_time_secs=time.time())
    return _hparams("session_end_info", HParamsPluginData(session_end_info=end))


def _hparams(name: str, content: "HParamsPluginData") -> "Summary.Value":
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata

    about = metadata.create_summary_metadata(content)
    return Summary.Value(tag=f"_hparams_/{name}", metadata=about, tensor=metadata.NULL_TENSOR)


def _video(path: Path) -> "Summary.Value":
    """Return the video as a GIF, which TensorBoard plays on its Images page."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    gif = gif_of(path)
    width, height = struct.unpack("<HH", gif[6:10])
    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=gif)
    return Summary.Value(tag=f"videos/{path.stem}", image=image)
