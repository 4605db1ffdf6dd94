"""Damage the newest checkpoint of a run, as a failing disk or a user may."""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from minitransformer.errors import CheckpointError
from minitransformer.run import RunFolder

FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


def valid_steps(run: Path) -> list[int]:
    """Return the steps of the checkpoints that can be resumed from, newest first."""
    folder, steps = RunFolder(run), []
    for step in folder.steps():
        try:
            folder.load(step, for_training=True)
        except CheckpointError:
            continue
        steps.append(step)
    return steps


def newest_checkpoint(run: Path) -> Path:
    """Return the folder of the newest checkpoint that can be resumed from."""
    return RunFolder(run).step_path(valid_steps(run)[0])


def flip_bit(run: Path, random: Random) -> None:
    # Not in state.json, where one kind of whitespace may become another, which does no harm.
    path = newest_checkpoint(run) / random.choice(FILES[:2])
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def truncate_file(run: Path, random: Random) -> None:
    path = newest_checkpoint(run) / random.choice(FILES)
    path.write_bytes(path.read_bytes()[: random.randrange(path.stat().st_size)])


def delete_file(run: Path, random: Random) -> None:
    (newest_checkpoint(run) / random.choice(FILES)).unlink()


def delete_checkpoint(run: Path, random: Random) -> None:
    shutil.rmtree(newest_checkpoint(run))


def copy_older_file(run: Path, random: Random) -> None:
    """Replace a file by that of an older checkpoint, which is valid by itself."""
    older = RunFolder(run).step_path(valid_steps(run)[1])
    name = random.choice(FILES)
    shutil.copy(older / name, newest_checkpoint(run) / name)


def overwrite_last(run: Path, random: Random) -> None:
    content = random.choice([b"", b"step-9999999", b"../../elsewhere", b"\xff\x00"])
    (run / "checkpoints" / "last").write_bytes(content)


def add_partial_checkpoint(run: Path, random: Random) -> None:
    """Add the folder of a save that was interrupted."""
    part = run / "checkpoints" / f".step-{random.randrange(50):06d}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    (part / random.choice(FILES)).write_bytes(random.randbytes(1000))


DAMAGES: list[Callable[[Path, Random], None]] = [
    flip_bit,
    truncate_file,
    delete_file,
    delete_checkpoint,
    copy_older_file,
    overwrite_last,
    add_partial_checkpoint,
]
