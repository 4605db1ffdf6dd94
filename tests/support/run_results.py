"""What a run has written, apart from what depends on the wall clock."""

import json
from pathlib import Path

from minitransformer.storage import checksum


def final_hashes(run: Path) -> dict[str, str]:
    """Return the checksums of a run's last weights and optimizer state."""
    folder = run / "checkpoints" / (run / "checkpoints" / "last").read_text().strip()
    return {
        name: checksum((folder / name).read_bytes())
        for name in ("model.safetensors", "optimizer.safetensors")
    }


def metrics_without_clock(run: Path) -> list[dict]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        {key: value for key, value in row.items() if key not in ("seconds", "tokens_per_second")}
        for row in rows
    ]
