"""One training at a time in a run's folder, by a lock that dies with its process."""

import contextlib
import os
from pathlib import Path
from typing import TextIO

from minitransformer.errors import CheckpointError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
TRIES = 100


class RunLock:
    """The lock of a folder, which is made if there is none, and unmade if nothing came of it."""

    def __init__(self, folder: Path) -> None:
        self.made = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        self.complaint = ""
        self.file: TextIO | None = None
        if fcntl is None:
            self.complaint = "this system has no locks: start only one training in a folder"
            return
        # Whoever held it may remove it between its opening and its locking here.
        for _ in range(TRIES):
            # Not through a link, and for the owner alone.
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            self.file = os.fdopen(os.open(folder / LOCK, flags, 0o600), "r+")
            self.take(folder)
            if self.is_at(folder):
                break
            self.file.close()
        assert self.file is not None
        try:
            os.truncate(self.file.fileno(), 0)
            os.write(self.file.fileno(), f"{os.getpid()}\n".encode())
        except OSError:  # the disk may be full
            self.release(folder)
            raise

    def take(self, folder: Path) -> None:
        assert self.file is not None
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with self.file:
                number = self.file.read(20).strip()
            who = f"process {number}" if number.isdecimal() else "another process"
            raise CheckpointError(
                f"{folder} is being trained by {who}; wait for it, stop it, "
                "or choose another folder with --run"
            ) from None
        except OSError as error:  # some network drives have none
            self.complaint = f"{folder} cannot be locked ({error.strerror}): train it only once"

    def is_at(self, folder: Path) -> bool:
        """Is this the lock that others would find there?"""
        assert self.file is not None
        try:
            return os.path.samestat(os.fstat(self.file.fileno()), (folder / LOCK).stat())
        except FileNotFoundError:
            return False

    def release(self, folder: Path) -> None:
        """Give the folder free, wherever it has been moved to."""
        if self.file is not None:
            with contextlib.suppress(OSError):
                if self.is_at(folder):  # and not one that another process has made since
                    (folder / LOCK).unlink()
            self.file.close()
        for each in self.made:
            with contextlib.suppress(OSError):
                each.rmdir()  # only if it is still empty
