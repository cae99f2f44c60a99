"""Scalars for TensorBoard, written with its own event writer: neither torch nor TensorFlow is needed."""

import time
from pathlib import Path
from typing import Any

from drl.core.log import Log


class TensorBoardTracker:
    """Every number of a log under the tag `group/name`, at step `env_steps`.

    View with `tensorboard --logdir results`.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self._writer: Any = None

    def write(self, log: Log) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._writer is None:
            self._open(log.env_steps)
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in log.flat().items() if tag != "env_steps"]
        self._writer.add_event(Event(wall_time=time.time(), step=log.env_steps, summary=Summary(value=values)))

    def close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def _open(self, env_steps: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        continues = any(self.folder.glob("events.out.tfevents.*"))
        self._writer = EventFileWriter(str(self.folder), flush_secs=5)
        if continues:  # a resumed run lives some steps again: this makes viewers forget the first life of those
            start = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=env_steps, session_log=start))
