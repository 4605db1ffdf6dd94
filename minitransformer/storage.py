"""Atomic files: written under another name, fsynced, renamed; checksums for reading them back.

Python's library has no such function; the package atomicwrites is no longer maintained, and has
none for folders.
"""

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

MAX_JSON_BYTES = 2**24  # of a state.json, which has a few hundred
MAX_TOKENIZER_BYTES = 2**27  # of a vocabulary; a million pieces take half of it
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def replace_file(path: Path, content: bytes) -> None:
    """Write a file or replace one; readers see the old or the new content, never a part."""
    aside = path.with_name(f".{path.name}.part")
    try:
        write_file(aside, content)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    os.replace(aside, path)
    sync_folder(path.parent)


def write_output(path: Path, content: bytes) -> None:
    """Write a file that a user has named, whole or not at all; raises OSError with its name."""
    try:
        if path.exists() and not path.is_file():  # a device or a pipe
            path.write_bytes(content)
        else:
            replace_file(path.resolve(), content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def replace_folder(path: Path, files: dict[str, bytes]) -> None:
    """Write a folder of files or replace one; it appears with all of them at once."""
    aside = path.with_name(f".{path.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        for name, content in files.items():
            write_file(aside / name, content)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)  # the disk may be full
        raise
    sync_folder(aside)
    if path.exists():  # a damaged step that was trained again
        shutil.rmtree(path)
    aside.rename(path)
    sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Rename a folder, then delete it: a kill in between leaves no half-deleted folder behind."""
    aside = path.with_name(f".{path.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    with suppress(OSError):
        path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def write_file(path: Path, content: bytes) -> None:
    """Write a file and fsync it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_all(file: FileIO, content: bytes) -> None:
    """Write without a buffer, which would write again when a file on a full disk is closed."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def sync_folder(path: Path) -> None:
    """Fsync a folder, so that its list of names survives a power cut."""
    if os.name == "nt":  # Windows has no such call for folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def require_space(
    needed: int, folder: Path, what: str, advice: Callable[[], str]
) -> Iterator[None]:
    """Raise CheckpointError if the disk does not have enough space, before or during the block."""

    def refusal(why: str) -> CheckpointError:
        needs = f"it needs {needed:,} bytes, " * bool(needed)
        free = f"{free_bytes(folder):,} bytes are free"
        return CheckpointError(f"{folder}: no space for {what} ({why}): {needs}{free}; {advice()}")

    if free_bytes(folder) < needed:
        raise refusal(os.strerror(errno.ENOSPC))
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise refusal(str(error.strerror)) from None


def free_bytes(folder: Path) -> int:
    """Return the free space where a folder is, or will be."""
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    usage = shutil.disk_usage(existing)
    return usage.free if usage.total else 2**62  # some drives do not say


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def file_checksum(path: Path) -> str:
    """Return the checksum of a file, which may be larger than memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_with_checksum(data: dict[str, Any]) -> bytes:
    """Return JSON that holds a checksum of its own content."""
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


def read_own_file(path: Path, max_bytes: int) -> bytes:
    """Read a file of a run; raises CheckpointError for links, pipes, devices and larger files."""
    try:
        return read_regular_file(path, max_bytes, follow_links=False)
    except (OSError, ValueError) as error:
        why = "a symbolic link, which a run must not contain" if path.is_symlink() else None
        raise CheckpointError(f"{path}: {why or getattr(error, 'strerror', error)}") from None
