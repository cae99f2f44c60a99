"""Scalars for TensorBoard, written with its own event writer. Needs neither torch nor TensorFlow."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from drl.core.log import Log

if TYPE_CHECKING:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter


class TensorBoardTracker:
    """Logs every number under the tag `group/name`, at step `env_steps`.

    View with `tensorboard --logdir results`.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self._writer: EventFileWriter | None = None

    def write(self, log: Log) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._writer is None:
            self._writer = self._open(log.env_steps)
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in log.flat().items() if tag != "env_steps"]
        self._writer.add_event(Event(wall_time=time.time(), step=log.env_steps, summary=Summary(value=values)))

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def _open(self, env_steps: int) -> "EventFileWriter":
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        continues = any(self.folder.glob("events.out.tfevents.*"))
        writer = EventFileWriter(str(self.folder), flush_secs=5)
        if continues:  # a resumed run repeats some steps: this makes viewers drop the old ones
            start = SessionLog(status=SessionLog.START)
            writer.add_event(Event(wall_time=time.time(), step=env_steps, session_log=start))
        return writer
