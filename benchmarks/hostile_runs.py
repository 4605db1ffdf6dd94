"""Run folders that somebody tampered with: bytes, types, tensors, with checksums that are right."""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from benchmarks.hostile import NASTY, SMALL, Case, any_value, mutated, sentence
from minitransformer.checkpoint import read_tensors, tensor_bytes
from minitransformer.storage import checksum, json_with_checksum


def damaged_run_case(folder: Path, random: Random) -> Case:
    """A copy of a run with something wrong in it, and any command that reads runs."""
    name = random.choice(["words", "bpe"])
    run = folder / "damaged"
    shutil.copytree(folder / name, run)
    if random.random() < 0.5:  # one checkpoint alone: nothing to go back to
        shutil.rmtree(min((run / "checkpoints").glob("step-*")))
    step = random.choice(sorted((run / "checkpoints").glob("step-*")))
    damages = (damage_bytes, damage_state, damage_tensors, damage_tokenizer, damage_config)
    random.choice(damages)(run, step, random)
    return command_on(name, random)


def command_on(name: str, random: Random) -> Case:
    text = random.choice(["I go to school", "", "pizza"])
    page = ["--checkpoint", "all", "--walkthrough", "o.html", "I go"]
    train = ["--config", f"{name}/config.yaml", "--run", "damaged", *SMALL[2:]]
    translate = ["--run", "damaged"]
    return random.choice(
        [
            Case("train.py", [*train, "--set", "training.steps=5"], codes=(0, 1)),
            Case("train.py", [*train, "--fresh"], codes=(0, 1)),
            Case("translate.py", [*translate, text], codes=(0, 1)),
            Case("translate.py", [*translate, "--checkpoint", "best", text], codes=(0, 1)),
            Case("translate.py", [*translate, "--average", "2", text], codes=(0, 1)),
            Case("translate.py", [*translate, "--beam", "2", text], codes=(0, 1)),
            Case("translate.py", [*translate, "--walkthrough", "I go"], codes=(0, 1)),
            Case("translate.py", [*translate, *page], codes=(0, 1)),
            Case("minitransformer.evaluate", ["damaged", "--split", "valid"], codes=(0, 1)),
            Case("minitransformer.evaluate", [name, "--split", "valid", "--compare", "damaged"],
                 codes=(0, 1)),
            Case("minitransformer.doctor", ["--run", "damaged"], codes=(0, 1)),
            Case("minitransformer.export", ["damaged", "--ctranslate2", "out"], codes=(0, 1, 2)),
        ]
    )  # fmt: skip


def damage_bytes(run: Path, step: Path, random: Random) -> None:
    path = random.choice(sorted(each for each in run.rglob("*") if each.is_file()))
    what = random.random()
    if what < 0.1:
        path.unlink()
    elif what < 0.15:
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(mutated(path.read_bytes(), random))


def replaced_somewhere(data: Any, random: Random) -> Any:
    """Nested data with one value of another kind."""
    if isinstance(data, dict) and data and random.random() < 0.85:
        key = random.choice(sorted(data))
        rest = {name: value for name, value in data.items() if name != key}
        if random.random() < 0.1:
            return rest
        return {**rest, key: replaced_somewhere(data[key], random)}
    return any_value(random)


def damage_state(run: Path, step: Path, random: Random) -> None:
    """Values of other kinds under a right checksum."""
    content = json.loads((step / "state.json").read_bytes())["content"]
    for _ in range(random.randint(1, 2)):
        content = replaced_somewhere(content, random)
    document = json_with_checksum(content)
    (step / "state.json").write_bytes(document)


def damage_tensors(run: Path, step: Path, random: Random) -> None:
    """Tensors of other shapes, types, names or values under right checksums."""
    name = random.choice(["model.safetensors", "optimizer.safetensors"])
    tensors = read_tensors(step / name)
    key = random.choice(sorted(tensors))
    tensor = tensors.pop(key)
    kind = random.choice(["shape", "scalar", "dtype", "name", "lost", "value", "more", "all"])
    if kind == "all":
        tensors = {}
    elif kind == "more":
        tensors |= {key: tensor, "nonsense": torch.ones(2)}
    elif kind != "lost":
        other = f"{key}.x" if kind == "name" else key
        tensors[other] = other_tensor(tensor, kind, random)
    (step / name).write_bytes(tensor_bytes(tensors))
    change_state(step, "files", {name: checksum((step / name).read_bytes())})


def other_tensor(tensor: Tensor, kind: str, random: Random) -> Tensor:
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


def change_state(step: Path, key: str, values: dict[str, str]) -> None:
    content = json.loads((step / "state.json").read_bytes())["content"]
    content[key] |= values
    (step / "state.json").write_bytes(json_with_checksum(content))


def damage_tokenizer(run: Path, step: Path, random: Random) -> None:
    """A vocabulary with something done to it, under right checksums in every step."""
    path = random.choice(sorted((run / "tokenizer").iterdir()))
    content = path.read_bytes()
    if path.suffix == ".json" and random.random() < 0.5:
        content = json.dumps(replaced_somewhere(json.loads(content), random)).encode()
    elif random.random() < 0.5:
        lines = content.splitlines(keepends=True)
        random.shuffle(lines)
        content = b"".join(lines[: random.randint(0, len(lines))])
    else:
        content = mutated(content, random)
    path.write_bytes(content)
    for each in (run / "checkpoints").glob("step-*"):
        change_state(each, "tokenizer", {path.name: checksum(content)})


def damage_config(run: Path, step: Path, random: Random) -> None:
    """One setting of another value, or text that is no config any more."""
    path = run / "config.yaml"
    lines = path.read_bytes().splitlines(keepends=True)
    places = [n for n, line in enumerate(lines) if line.startswith(b"  ") and b": " in line]
    place = random.choice(places)
    value = random.choice(
        [json.dumps(any_value(random)), "8", "bpe", "words", "pre", "true", "0.5", sentence(random)]
    )
    lines[place] = lines[place].partition(b":")[0] + f": {value}\n".encode("utf-8", "replace")
    if random.random() < 0.3:
        lines.insert(place, random.choice(NASTY))
    path.write_bytes(b"".join(lines))
