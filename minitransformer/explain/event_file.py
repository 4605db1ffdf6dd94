"""TensorBoard's event file: appended to while a run goes on, cut back when it goes back."""

import io
import os
import time
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from minitransformer.storage import sync_folder, write_all

HEADER, FOOTER = 12, 4  # bytes around a record: its length and two checksums


def event_record(step: int, summary: Any = None, **fields: Any) -> bytes:
    """One event as it stands in a file."""
    event = Event(wall_time=time.time(), step=step, summary=summary, **fields)
    content = io.BytesIO()
    RecordWriter(content).write(event.SerializeToString())
    return content.getvalue()


def file_opening() -> bytes:
    """The record that every event file begins with."""
    return event_record(0, file_version="brain.Event:2")


class EventFile:
    """The event file of a run, which may have been longer than its last checkpoint knows."""

    def __init__(self, path: Path, length: int) -> None:
        path.touch()
        self.complaint = ""
        if path.stat().st_size < length:
            self.complaint = f"{path} lacks events that it had; it goes on from here"
            length = whole_records(path)  # half a record would make the rest unreadable
        os.truncate(path, length)
        self.file = path.open("ab", buffering=0)
        self.waiting: list[bytes] = []
        self.is_new = self.file.tell() == 0
        if self.is_new:
            self.waiting.append(file_opening())
            sync_folder(path.parent)

    def add(self, step: int, *summaries: Any) -> None:
        self.waiting += [event_record(step, summary) for summary in summaries]

    def flush(self) -> None:
        """Let a TensorBoard that is open see what there is."""
        content, self.waiting = b"".join(self.waiting), []
        write_all(self.file, content)

    def sync(self) -> int:
        """Make sure that everything has reached the disk, and return the file's length."""
        self.flush()
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        self.flush()
        self.file.close()


def whole_records(path: Path) -> int:
    """The length of a file up to its last whole record."""
    size, end = path.stat().st_size, 0
    with path.open("rb") as file:
        while len(header := file.read(HEADER)) == HEADER:
            after = end + HEADER + int.from_bytes(header[:8], "little") + FOOTER
            if after > size:
                break
            end = file.seek(after)
    return end
