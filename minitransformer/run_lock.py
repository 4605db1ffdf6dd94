"""One training at a time in a run's folder, by a lock that dies with its process."""

import contextlib
import os
from pathlib import Path

from minitransformer.errors import CheckpointError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


class RunLock:
    """The lock of a folder, which is made if there is none, and unmade if nothing came of it."""

    def __init__(self, folder: Path) -> None:
        self.made = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        self.complaint = ""
        path = folder / LOCK
        while True:
            # Not through a link, and for the owner alone.
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            self.file = os.fdopen(os.open(path, flags, 0o600), "r+")
            self.take(folder)
            # Whoever held it may have removed it since it was opened here.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self.file.fileno()), path.stat()):
                    break
            self.file.close()
        self.file.truncate(0)
        self.file.write(f"{os.getpid()}\n")
        self.file.flush()

    def take(self, folder: Path) -> None:
        if fcntl is None:
            self.complaint = "this system has no locks: start only one training in a folder"
            return
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

    def release(self, folder: Path) -> None:
        """Give the folder free, wherever it has been moved to."""
        with contextlib.suppress(OSError):
            (folder / LOCK).unlink()
        self.file.close()
        for each in self.made:
            with contextlib.suppress(OSError):
                each.rmdir()  # only if it is still empty
