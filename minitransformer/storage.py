"""Files that are whole or absent: written aside, synced, renamed in; read back by checksum."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from minitransformer.errors import CheckpointError


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


def replace_file(path: Path, content: bytes) -> None:
    """Put a file in place of an older one; a reader sees the old or the new, never a part."""
    aside = path.with_name(f".{path.name}.part")
    write_file(aside, content)
    os.replace(aside, path)
    sync_folder(path.parent)


def replace_folder(path: Path, files: dict[str, bytes]) -> None:
    """Make a folder with these files appear at once, in place of what stood there before."""
    aside = path.with_name(f".{path.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for name, content in files.items():
        write_file(aside / name, content)
    sync_folder(aside)
    if path.exists():  # a damaged step that is taken again
        shutil.rmtree(path)
    aside.rename(path)
    sync_folder(path.parent)


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
    except (ValueError, KeyError, TypeError, RecursionError):
        is_whole = False
    if not is_whole:
        raise CheckpointError(f"{where}: damaged (its checksum does not match)")
    return data


def read_tensors(path: Path, expected_checksum: str | None = None) -> dict[str, Tensor]:
    """Tensors of a safetensors file; nothing in it is ever executed."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    if expected_checksum is not None and checksum(content) != expected_checksum:
        raise CheckpointError(f"{path}: damaged (its checksum does not match)")
    try:
        return bytes_to_tensors(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: not a safetensors file ({error})") from None


def tensor_bytes(tensors: dict[str, Tensor]) -> bytes:
    return tensors_to_bytes({name: tensor.contiguous() for name, tensor in tensors.items()})


def bytes_to_tensors(content: bytes) -> dict[str, Tensor]:
    return tensors_from_bytes(content)
