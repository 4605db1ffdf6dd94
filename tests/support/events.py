"""Read the events of a run with TensorBoard's own reader."""

from pathlib import Path
from typing import NamedTuple

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

CLOCK = {"train/tokens_per_second"}  # depends on the wall clock


class Point(NamedTuple):
    tag: str
    step: int
    value: object  # a number, or the bytes of an image, a text or a plugin


def points(path: Path) -> list[Point]:
    """Return everything in an event file, in order."""
    found = []
    for event in LegacyEventFileLoader(str(path)).Load():
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            if kind == "simple_value":
                content = value.simple_value
            elif kind == "image":
                content = value.image.encoded_image_string
            elif kind == "tensor":
                content = value.tensor.string_val[0]
            else:
                content = value.metadata.plugin_data.content
            found.append(Point(value.tag, event.step, content))
    return found


def series(path: Path) -> dict[str, dict[int, object]]:
    """Return values by tag and step; fail if a tag has two values at one step."""
    found: dict[str, dict[int, object]] = {}
    for tag, step, value in points(path):
        assert step not in found.setdefault(tag, {}), f"duplicate {tag} at {step}"
        found[tag][step] = value
    return found


def everything_without_clock(run: Path) -> dict[str, object]:
    """Return what TensorBoard shows of a run: events, walk-throughs and embeddings."""
    events = {
        str(path.relative_to(run)): [point for point in points(path) if point.tag not in CLOCK]
        for path in sorted(run.rglob("events.out.tfevents*"))
    }
    projector = [run / "projector_config.pbtxt", *sorted((run / "projector").glob("*"))]
    return {**events, **{path.name: path.read_bytes() for path in projector}}
