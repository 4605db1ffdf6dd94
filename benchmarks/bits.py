"""Compare the trained bits of two commits: python -m benchmarks.bits --against COMMIT

Trains the same small runs with the code of a commit and with that of this work tree, on this
machine, and compares the values of all tensors of their last checkpoints, weights and optimizer.
Names of tensors and settings may have changed in between, values may not.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
OLD_RUNS = ROOT / "tests" / "fixtures" / "run-format-1"
# Settings that earlier commits call otherwise: the present name, then the earlier one.
RENAMED: dict[str, str] = {}

# What shapes a model and its training is stated here, so that configs/ and defaults may change.
BASE: dict[str, Any] = {
    "data.source": "en-es",
    "data.limit": 60,
    "tokenizer.kind": "words",
    "tokenizer.words": "unicode",
    "tokenizer.joint": False,
    "tokenizer.min_frequency": 1,
    "tokenizer.max_size": 0,
    "model.kind": "transformer",
    "model.d_model": 24,
    "model.num_heads": 2,
    "model.num_encoder_layers": 2,
    "model.num_decoder_layers": 2,
    "model.d_ff": 32,
    "model.norm": "pre",
    "model.position": "sinusoidal",
    "model.max_length": 64,
    "model.scale_scores": True,
    "model.attention_output": True,
    "model.bias": True,
    "model.head_bias": True,
    "model.activation": "relu",
    "model.dropout": 0.1,
    "model.inner_dropout": 0.1,
    "model.share_embeddings": "none",
    "model.scale_embeddings": True,
    "model.embedding_std": 0.3,
    "model.start_token": "eos",
    "model.source_end": False,
    "model.cell": "gru",
    "model.bidirectional": False,
    "model.attention": "dot",
    "training.steps": 12,
    "training.seed": 1,
    "training.processes": 1,
    "training.threads": 1,
    "training.precision": "float32",
    "training.batch_tokens": 90,
    "training.accumulate": 1,
    "training.learning_rate": 0.01,
    "training.schedule": "cosine",
    "training.warmup_steps": 3,
    "training.beta1": 0.9,
    "training.beta2": 0.999,
    "training.weight_decay": 0.1,
    "training.clip_norm": 1.0,
    "training.label_smoothing": 0.1,
    "training.consistency": 0.0,
    "training.train_only": [],
    "training.save_every": 5,
    "evaluation.every": 6,
    "evaluation.best_metric": "none",
    "logging.tensorboard": False,
}
TINY = {
    "data.limit": 0, "model.d_model": 64, "model.num_heads": 1, "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1, "model.d_ff": 0, "model.norm": "none", "model.bias": False,
    "model.attention_output": False, "model.scale_embeddings": False, "model.dropout": 0.0,
    "model.inner_dropout": 0.0, "training.steps": 40, "training.batch_tokens": 900,
    "training.warmup_steps": 0, "training.weight_decay": 0.3, "training.label_smoothing": 0.0,
    "training.save_every": 20, "evaluation.every": 20,
}  # fmt: skip
RECURRENT = {
    "model.kind": "recurrent", "model.num_heads": 1, "model.d_ff": 0, "model.norm": "none",
    "model.position": "none", "model.scale_embeddings": False,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": TINY,
    "tiny-bn": TINY | {"data.source": "en-bn"},
    "tiny-rnn": TINY | RECURRENT | {"model.scale_scores": False},
    "pre-norm": {},
    "post-norm, gelu": {"model.norm": "post", "model.activation": "gelu"},
    "no norm, scores not scaled": {"model.norm": "none", "model.scale_scores": False},
    "rotary": {"model.position": "rotary"},
    "learned positions, <BOS>": {"model.position": "learned", "model.start_token": "bos"},
    "no positions, source with <EOS>": {"model.position": "none", "model.source_end": True},
    "head tied": {"model.share_embeddings": "target", "model.head_bias": False},
    "all embeddings tied": {"model.share_embeddings": "all", "tokenizer.joint": True},
    "dropout outside": {"model.dropout": 0.3, "model.inner_dropout": 0.0},
    "dropout inside": {"model.dropout": 0.0, "model.inner_dropout": 0.3},
    "accumulation": {"training.accumulate": 3},
    "R-Drop": {"training.consistency": 0.5},
    "part of it trained": {"training.train_only": ["decoder", "head"]},
    "bf16": {"training.precision": "bf16"},
    "GRU": RECURRENT,
    "bidirectional LSTM": RECURRENT | {
        "model.cell": "lstm", "model.bidirectional": True, "model.attention": "multiplicative",
    },
    "BPE": {"tokenizer.kind": "bpe", "tokenizer.max_size": 120},
    "two processes": {"training.processes": 2},
    "three processes, accumulation": {"training.processes": 3, "training.accumulate": 2},
}  # fmt: skip


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the trained bits of two commits.")
    parser.add_argument("--against", default="HEAD", metavar="COMMIT", help="default: HEAD")
    parser.add_argument("--only", action="append", metavar="RUN", help="a run (repeatable)")
    parser.add_argument("--at-once", type=int, default=2, help="trainings side by side")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all hashes")
    return parser.parse_args(arguments)


def flat(sections: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the settings of a config by their dotted keys."""
    return {
        f"{name}.{key}": value for name, keys in sections.items() for key, value in keys.items()
    }


def clone(commit: str, folder: Path) -> None:
    """Check a commit out into a folder, or end with what git says."""
    for command in (
        ["git", "clone", "--quiet", ROOT, folder],
        ["git", "-C", folder, "checkout", "--quiet", commit],
    ):
        if subprocess.run(command, check=False).returncode:
            sys.exit(1)


class Tree:
    """The code of one commit, driven with its own names of settings."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.keys = flat(yaml.safe_load((root / "configs/tiny.yaml").read_text("utf-8"))).keys()

    def key(self, key: str) -> str:
        """Return the key that a setting has in this tree."""
        earlier = RENAMED.get(key, key)
        present = {old: new for new, old in RENAMED.items()}.get(key, key)
        found = next((each for each in (key, earlier, present) if each in self.keys), None)
        if found is None:
            sys.exit(f"{self.root}/configs/tiny.yaml has no '{key}': add it to RENAMED")
        return found

    def hashes(self, name: str) -> Counter[str]:
        """Train a run, or continue an old one, and return the hashes of its tensors."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        if name in VARIANTS:
            settings = BASE | VARIANTS[name]
        else:
            shutil.copytree(OLD_RUNS / name, folder / "run")
            settings = flat(yaml.safe_load((folder / "run/config.yaml").read_text("utf-8")))
            settings["training.steps"] += 12
        config: dict[str, dict[str, Any]] = {}
        for key, value in settings.items():
            section, _, own = self.key(key).partition(".")
            config.setdefault(section, {})[own] = value
        (folder / "own.yaml").write_text(json.dumps(config), encoding="utf-8")  # is YAML, too
        command = [sys.executable, self.root / "train.py", "--config", "own.yaml", "--run", "run"]
        result = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": str(self.root)},
        )  # fmt: skip
        if result.returncode:
            sys.exit(f"{self.root}, {name}: exit code {result.returncode}\n{result.stderr}")
        return tensor_hashes(max((folder / "run/checkpoints").glob("step-*")))


def tensor_hashes(checkpoint: Path) -> Counter[str]:
    """Return a hash of type, shape and values for each tensor of a checkpoint's files."""
    found: Counter[str] = Counter()
    for path in sorted(checkpoint.glob("*.safetensors")):
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")  # the format: a header's length, a header
        for name, tensor in json.loads(content[8:start]).items():
            if name != "__metadata__":
                first, last = (start + offset for offset in tensor["data_offsets"])
                what = f"{tensor['dtype']} {tensor['shape']} ".encode()
                found[hashlib.sha256(what + content[first:last]).hexdigest()] += 1
    return found


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    runs = [*VARIANTS, *sorted(path.parent.name for path in OLD_RUNS.glob("*/config.yaml"))]
    if unknown := set(options.only or ()) - set(runs):
        sys.exit(f"no run {', '.join(unknown)} (there: {', '.join(runs)})")
    with tempfile.TemporaryDirectory(prefix="bits-") as name:
        folder = Path(name)
        clone(options.against, folder / "commit")
        trees = [Tree(folder / "commit", folder / "then"), Tree(ROOT, folder / "now")]
        with ThreadPoolExecutor(options.at_once) as pool:
            pending = {
                name: [pool.submit(tree.hashes, name) for tree in trees]
                for name in options.only or runs
            }
            found = {name: [each.result() for each in both] for name, both in pending.items()}
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    differing = 0
    for name, (then, now) in found.items():
        same = (then & now).total()
        differing += then != now
        print(f"{name:32} {same} of {max(then.total(), now.total())} tensors are the same")
    print(f"{differing} of {len(found)} runs differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
