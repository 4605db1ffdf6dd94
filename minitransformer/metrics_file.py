"""metrics.jsonl: one JSON object per evaluation and split, cut back when a run goes back."""

import json
import os
from pathlib import Path
from typing import Any

from minitransformer.storage import write_all


def append_rows(path: Path, rows: list[dict[str, Any]]) -> int:
    """Add a line per row, make sure that they reach the disk, and return the file's length."""
    content = b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            write_all(file, content)
            os.fsync(file.fileno())
        except OSError:  # all of them or none
            os.truncate(path, before)
            raise
        return file.tell()


def cut_rows(path: Path, length: int) -> str | None:
    """Take back lines written after a checkpoint; returns a complaint if some are missing."""
    size = path.stat().st_size if path.exists() else 0
    if size < length:
        path.touch()
        return f"{path} lacks lines that it had; it goes on from here"
    os.truncate(path, length)
    return None
