"""Reading a whole file, after making sure that there is an end to it."""

import errno
import os
import stat
from pathlib import Path


def read_regular_file(path: Path, max_bytes: int, *, follow_links: bool = True) -> bytes:
    """Return a file's content; raises OSError for pipes, devices and more than `max_bytes`."""
    extra = getattr(os, "O_NONBLOCK", 0)  # without it, opening a pipe waits for its writer
    if not follow_links:
        extra |= getattr(os, "O_NOFOLLOW", 0)
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | extra)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if status.st_size > max_bytes:
            raise OSError(errno.EINVAL, f"larger than {max_bytes:,} bytes", str(path))
        return file.read(status.st_size)
