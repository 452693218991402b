"""How does TensorBoard follow a run? Event files in OUT/tensorboard: `tensorboard --logdir OUT`."""

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from neocpu.serve.report.trackers import Line, numbers


class TensorBoard:
    """Writes event files; needs neither TensorFlow nor torch."""

    def __init__(self, folder: Path, keys: Mapping[str, object]) -> None:
        self._writer = EventFileWriter(str(folder), flush_secs=10)
        # TensorBoard shows texts as Markdown
        rows = [f"| {key} | `{value}` |" for key, value in keys.items()]
        table = "\n".join(["| key | value |", "|---|---|", *rows])
        self._write(0, text_pb("config", table))

    def __call__(self, line: Line) -> None:
        """Write a line's numbers as scalars at its step."""
        values = [Summary.Value(tag=name, simple_value=x) for name, x in numbers(line).items()]
        self._write(line["step"], Summary(value=values))

    def close(self) -> None:
        """Write what is not yet in the file."""
        self._writer.close()

    def _write(self, step: int, summary: object) -> None:
        self._writer.add_event(Event(step=step, wall_time=time.time(), summary=summary))


def open_tracker(out: Path, keys: Mapping[str, object]) -> TensorBoard:
    """The tracker of a run."""
    return TensorBoard(out / "tensorboard", keys)
