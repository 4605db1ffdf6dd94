"""The runs of a folder, for commands that take the last one."""

from pathlib import Path

from minitransformer.checkpoint import RunFolder


def runs_newest_first(folder: Path) -> list[Path]:
    """The runs in a folder that have a checkpoint, the most recently saved first."""
    if not folder.is_dir():
        return []
    saved = {
        path: run.step_path(run.steps()[0]).stat().st_mtime
        for path in folder.iterdir()
        if (run := RunFolder(path)).has_started
    }
    return sorted(saved, key=lambda path: saved[path], reverse=True)
