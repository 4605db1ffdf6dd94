"""Damage to the newest checkpoint of a run, as disks and people do it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from minitransformer.errors import CheckpointError
from minitransformer.run import RunFolder

FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


def whole_steps(run: Path) -> list[int]:
    """The steps that can be gone back to, newest first."""
    folder, found = RunFolder(run), []
    for step in folder.steps():
        try:
            folder.load(step, for_training=True)
        except CheckpointError:
            continue
        found.append(step)
    return found


def newest(run: Path) -> Path:
    return RunFolder(run).step_path(whole_steps(run)[0])


def flip_a_bit(run: Path, random: Random) -> None:
    path = newest(run) / random.choice(FILES[:2])  # in state.json, a blank may become another one
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def cut_short(run: Path, random: Random) -> None:
    path = newest(run) / random.choice(FILES)
    path.write_bytes(path.read_bytes()[: random.randrange(path.stat().st_size)])


def delete_a_file(run: Path, random: Random) -> None:
    (newest(run) / random.choice(FILES)).unlink()


def delete_all(run: Path, random: Random) -> None:
    shutil.rmtree(newest(run))


def swap_files(run: Path, random: Random) -> None:
    """One file of an older step, which is whole in itself."""
    older = RunFolder(run).step_path(whole_steps(run)[1])
    name = random.choice(FILES)
    shutil.copy(older / name, newest(run) / name)


def damage_last(run: Path, random: Random) -> None:
    content = random.choice([b"", b"step-9999999", b"../../elsewhere", b"\xff\x00"])
    (run / "checkpoints" / "last").write_bytes(content)


def leave_a_part(run: Path, random: Random) -> None:
    """Half of a save that nobody finished."""
    part = run / "checkpoints" / f".step-{random.randrange(50):06d}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    (part / random.choice(FILES)).write_bytes(random.randbytes(1000))


DAMAGES: dict[str, Callable[[Path, Random], None]] = {
    "bit": flip_a_bit,
    "cut": cut_short,
    "file": delete_a_file,
    "folder": delete_all,
    "swap": swap_files,
    "last": damage_last,
    "part": leave_a_part,
}
