"""Generate tampered run folders: bytes, types and tensors, most with correct checksums."""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from benchmarks.hostile import FAST_RUN, NASTY, Case, mutated, random_value, sentence
from minitransformer.checkpoint import read_tensors, tensor_bytes
from minitransformer.storage import checksum, json_with_checksum


def damaged_run_case(folder: Path, random: Random) -> Case:
    """Return a command that reads a damaged copy of a run."""
    name = random.choice(["words", "bpe"])
    run = folder / "damaged"
    shutil.copytree(folder / name, run)
    if random.random() < 0.5:  # no older checkpoint to fall back to
        shutil.rmtree(min((run / "checkpoints").glob("step-*")))
    step = random.choice(sorted((run / "checkpoints").glob("step-*")))
    damages = (damage_bytes, damage_state, damage_tensors, damage_tokenizer, damage_config)
    random.choice(damages)(run, step, random)
    return random_command(name, random)


def random_command(name: str, random: Random) -> Case:
    """Return a random command that reads the damaged copy."""
    text = random.choice(["I go to school", "", "pizza"])
    page = ["--checkpoint", "all", "--to", "o.html", "I go"]
    train = ["--config", f"{name}/config.yaml", "--run", "damaged", *FAST_RUN[2:]]  # not its steps
    translate = ["--run", "damaged"]
    return random.choice(
        [
            Case("train", [*train, "--set", "training.steps=5"], codes=(0, 1)),
            Case("train", [*train, "--fresh"], codes=(0, 1)),
            Case("translate", [*translate, text], codes=(0, 1)),
            Case("translate", [*translate, "--checkpoint", "best", text], codes=(0, 1)),
            Case("translate", [*translate, "--average", "2", text], codes=(0, 1)),
            Case("translate", [*translate, "--beam", "2", text], codes=(0, 1)),
            Case("explain", [*translate, "I go"], codes=(0, 1)),
            Case("explain", [*translate, *page], codes=(0, 1)),
            Case("evaluate", ["--run", "damaged", "--split", "valid"], codes=(0, 1)),
            Case("evaluate", ["--run", name, "--split", "valid", "--compare", "damaged"],
                 codes=(0, 1)),
            Case("doctor", ["--run", "damaged"], codes=(0, 1)),
            Case("export", ["--run", "damaged", "--to", "out"], codes=(0, 1, 2)),
        ]
    )  # fmt: skip


def damage_bytes(run: Path, step: Path, random: Random) -> None:
    """Mutate or delete a file, or replace it by a folder."""
    path = random.choice(sorted(each for each in run.rglob("*") if each.is_file()))
    draw = random.random()
    if draw < 0.1:
        path.unlink()
    elif draw < 0.15:
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(mutated(path.read_bytes(), random))


def replace_random_value(data: Any, random: Random) -> Any:
    """Return nested data with one value replaced or missing."""
    if isinstance(data, dict) and data and random.random() < 0.85:
        key = random.choice(sorted(data))
        rest = {name: value for name, value in data.items() if name != key}
        if random.random() < 0.1:
            return rest
        return {**rest, key: replace_random_value(data[key], random)}
    return random_value(random)


def damage_state(run: Path, step: Path, random: Random) -> None:
    """Replace values of state.json, and correct its checksum."""
    content = json.loads((step / "state.json").read_bytes())["content"]
    for _ in range(random.randint(1, 2)):
        content = replace_random_value(content, random)
    (step / "state.json").write_bytes(json_with_checksum(content))


def damage_tensors(run: Path, step: Path, random: Random) -> None:
    """Change, rename, add or remove tensors, and correct the checksums."""
    name = random.choice(["model.safetensors", "optimizer.safetensors"])
    tensors = read_tensors(step / name)
    key = random.choice(sorted(tensors))
    tensor = tensors.pop(key)
    kind = random.choice(["shape", "scalar", "dtype", "name", "missing", "value", "extra", "empty"])
    if kind == "empty":
        tensors = {}
    elif kind == "extra":
        tensors |= {key: tensor, "nonsense": torch.ones(2)}
    elif kind != "missing":
        new_key = f"{key}.x" if kind == "name" else key
        tensors[new_key] = altered_tensor(tensor, kind, random)
    (step / name).write_bytes(tensor_bytes(tensors))
    update_state(step, "files", {name: checksum((step / name).read_bytes())})


def altered_tensor(tensor: Tensor, kind: str, random: Random) -> Tensor:
    """Return a tensor with another shape, type or value."""
    if kind == "shape":
        return random.choice([tensor.flatten()[:-1], tensor[None], tensor.reshape(-1, 1)])
    if kind == "scalar":
        return torch.tensor(1.0)
    if kind == "dtype":
        return tensor.to(random.choice([torch.float64, torch.float16, torch.int64, torch.bool]))
    if kind == "value":
        value = random.choice([float("nan"), float("inf"), -1e38, -5.0])
        flat = tensor.flatten().clone()
        flat[random.randrange(len(flat))] = value
        return flat.reshape(tensor.shape)
    return tensor


def update_state(step: Path, key: str, values: dict[str, str]) -> None:
    """Update a dictionary in state.json, and correct its checksum."""
    content = json.loads((step / "state.json").read_bytes())["content"]
    content[key] |= values
    (step / "state.json").write_bytes(json_with_checksum(content))


def damage_tokenizer(run: Path, step: Path, random: Random) -> None:
    """Damage a vocabulary, and correct its checksum in every checkpoint."""
    path = random.choice(sorted((run / "tokenizer").iterdir()))
    content = path.read_bytes()
    if path.suffix == ".json" and random.random() < 0.5:
        content = json.dumps(replace_random_value(json.loads(content), random)).encode()
    elif random.random() < 0.5:
        lines = content.splitlines(keepends=True)
        random.shuffle(lines)
        content = b"".join(lines[: random.randint(0, len(lines))])
    else:
        content = mutated(content, random)
    path.write_bytes(content)
    for each in (run / "checkpoints").glob("step-*"):
        update_state(each, "tokenizer", {path.name: checksum(content)})


def damage_config(run: Path, step: Path, random: Random) -> None:
    """Replace the value of a setting, and sometimes insert a line that is no YAML."""
    path = run / "config.yaml"
    lines = path.read_bytes().splitlines(keepends=True)
    settings = [n for n, line in enumerate(lines) if line.startswith(b"  ") and b": " in line]
    index = random.choice(settings)
    other = json.dumps(random_value(random))
    value = random.choice([other, "8", "bpe", "words", "pre", "true", "0.5", sentence(random)])
    lines[index] = lines[index].partition(b":")[0] + f": {value}\n".encode("utf-8", "replace")
    if random.random() < 0.3:
        lines.insert(index, random.choice(NASTY))
    path.write_bytes(b"".join(lines))
