"""Files that are whole or absent: written aside, synced, renamed in; read back by checksum."""

import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

from minitransformer.errors import CheckpointError


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


MOST_JSON = 2**24  # bytes of a state.json, which has a few hundred
MOST_TOKENIZER = 2**27  # bytes of a vocabulary; one of a million pieces has half of it
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def sync_folder(path: Path) -> None:
    """Make a folder's list of names survive a power cut."""
    if os.name == "nt":  # Windows has no such call for folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, content: bytes) -> None:
    """Write a new file and make sure that it has reached the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_all(file: FileIO, content: bytes) -> None:
    """Write through no buffer, which would try once more when a file on a full disk is closed."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def replace_file(path: Path, content: bytes) -> None:
    """Put a file in place of an older one; a reader sees the old or the new, never a part."""
    aside = path.with_name(f".{path.name}.part")
    try:
        write_file(aside, content)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    os.replace(aside, path)
    sync_folder(path.parent)


def replace_folder(path: Path, files: dict[str, bytes]) -> None:
    """Make a folder with these files appear at once, in place of what stood there before."""
    aside = path.with_name(f".{path.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        for name, content in files.items():
            write_file(aside / name, content)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)  # the disk may be full: leave no part of it
        raise
    sync_folder(aside)
    if path.exists():  # a damaged step that is taken again
        shutil.rmtree(path)
    aside.rename(path)
    sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Make a folder disappear at once; what a kill leaves of it goes by another name."""
    aside = path.with_name(f".{path.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    with suppress(OSError):
        path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def require_space(
    needed: int, folder: Path, what: str, advice: Callable[[], str]
) -> Iterator[None]:
    """Refuse to begin what does not fit; what turns out not to fit is told in the same words."""

    def refusal(why: str) -> CheckpointError:
        needs = f"it needs {needed:,} bytes, " * bool(needed)
        free = f"{free_bytes(folder):,} bytes are free"
        return CheckpointError(f"{folder}: no room for {what} ({why}): {needs}{free}; {advice()}")

    if free_bytes(folder) < needed:
        raise refusal(os.strerror(errno.ENOSPC))
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise refusal(str(error.strerror)) from None


def free_bytes(folder: Path) -> int:
    """The room where a folder is, or will be."""
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    usage = shutil.disk_usage(existing)
    return usage.free if usage.total else 2**62  # some drives do not tell


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def file_checksum(path: Path) -> str:
    """The checksum of a file's content, which may be larger than memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_with_checksum(data: dict[str, Any]) -> bytes:
    """JSON that carries a checksum of its own content."""
    text = json.dumps(data, sort_keys=True)
    return json.dumps({"sha256": checksum(text.encode()), "content": data}, indent=1).encode()


def read_json_with_checksum(content: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(content)
        data: dict[str, Any] = document["content"]
        is_whole = checksum(json.dumps(data, sort_keys=True).encode()) == document["sha256"]
        is_whole = is_whole and isinstance(data, dict)
    except (ValueError, KeyError, TypeError, RecursionError):
        is_whole = False
    if not is_whole:
        raise CheckpointError(f"{where}: damaged (its checksum does not match)")
    return data


def read_own_file(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes; links are refused, too."""
    try:
        # A link could lead out of the folder.
        return read_regular_file(path, most, follow_links=False)
    except (OSError, ValueError) as error:
        why = "a link, not a file of its own" if path.is_symlink() else None
        raise CheckpointError(f"{path}: {why or getattr(error, 'strerror', error)}") from None
