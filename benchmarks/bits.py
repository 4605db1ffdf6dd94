"""Compare the trained bits of two commits: python -m benchmarks.bits --compare COMMIT

Trains the same small runs with the code of a commit and with that of this work tree, on this
machine, and compares the values of all tensors of their last checkpoints, weights and optimizer.
Names of tensors and settings may have changed in between, values may not. Settings are stated here
by their present names.
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

from minitransformer.config import flatten, rename_settings
from minitransformer.settings import RENAMED

ROOT = Path(__file__).parent.parent
OLD_RUNS = ROOT / "tests" / "fixtures" / "run-format-1"
EARLIER_NAMES = {new: old for old, renaming in RENAMED.items() for new in renaming.keys}

INNER_DROPOUT = {
    "model.self_attention_dropout": 0.1, "model.cross_attention_dropout": 0.1,
    "model.activation_dropout": 0.1,
}  # fmt: skip
# What shapes a model and its training is stated here, so that configs/ and defaults may change.
BASE: dict[str, Any] = {
    "data.train": "en-es",
    "data.limit": 60,
    "tokenizer.kind": "words",
    "tokenizer.words": "unicode",
    "tokenizer.joint": False,
    "tokenizer.min_frequency": 1,
    "tokenizer.vocab_size": 0,
    "model.kind": "transformer",
    "model.d_model": 24,
    "model.num_heads": 2,
    "model.num_encoder_layers": 2,
    "model.num_decoder_layers": 2,
    "model.d_ff": 32,
    "model.norm": "pre",
    "model.positional_encoding": "sinusoidal",
    "model.max_length": 64,
    "model.scale_scores": True,
    "model.output_projection": True,
    "model.bias": True,
    "model.head_bias": True,
    "model.activation": "relu",
    "model.dropout": 0.1,
    **INNER_DROPOUT,
    "model.tie_embeddings": "none",
    "model.scale_embeddings": True,
    "model.embedding_std": 0.3,
    "model.decoder_start_token": "eos",
    "model.source_eos": False,
    "model.cell": "gru",
    "model.bidirectional": False,
    "model.attention": "dot",
    "training.steps": 12,
    "training.seed": 1,
    "training.processes": 1,
    "training.threads": 1,
    "training.precision": "float32",
    "training.batch_tokens": 90,
    "training.gradient_accumulation": 1,
    "training.learning_rate": 0.01,
    "training.schedule": "cosine",
    "training.warmup_steps": 3,
    "training.beta1": 0.9,
    "training.beta2": 0.999,
    "training.weight_decay": 0.1,
    "training.clip_norm": 1.0,
    "training.label_smoothing": 0.1,
    "training.rdrop_alpha": 0.0,
    "training.trainable": [],
    "training.save_every": 5,
    "evaluation.every": 6,
    "evaluation.best_metric": "none",
    "logging.tensorboard": False,
}
TINY = {
    "data.limit": 0, "model.d_model": 64, "model.num_heads": 1, "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1, "model.d_ff": 0, "model.norm": "none", "model.bias": False,
    "model.output_projection": False, "model.scale_embeddings": False, "model.dropout": 0.0,
    **dict.fromkeys(INNER_DROPOUT, 0.0), "training.steps": 40, "training.batch_tokens": 900,
    "training.warmup_steps": 0, "training.weight_decay": 0.3, "training.label_smoothing": 0.0,
    "training.save_every": 20, "evaluation.every": 20,
}  # fmt: skip
RECURRENT = {
    "model.kind": "recurrent", "model.num_heads": 1, "model.d_ff": 0, "model.norm": "none",
    "model.positional_encoding": "none", "model.scale_embeddings": False,
    "model.self_attention_dropout": 0.0, "model.activation_dropout": 0.0,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": TINY,
    "tiny-bn": TINY | {"data.train": "en-bn"},
    "tiny-rnn": TINY | RECURRENT | {"model.scale_scores": False},
    "pre-norm": {},
    "post-norm, gelu": {"model.norm": "post", "model.activation": "gelu"},
    "no norm, scores not scaled": {"model.norm": "none", "model.scale_scores": False},
    "rotary": {"model.positional_encoding": "rotary"},
    "learned positions, <BOS>": {
        "model.positional_encoding": "learned", "model.decoder_start_token": "bos",
    },
    "no positions, source with <EOS>": {
        "model.positional_encoding": "none", "model.source_eos": True,
    },
    "head tied": {"model.tie_embeddings": "target", "model.head_bias": False},
    "all embeddings tied": {"model.tie_embeddings": "all", "tokenizer.joint": True},
    "dropout outside": {"model.dropout": 0.3, **dict.fromkeys(INNER_DROPOUT, 0.0)},
    "dropout inside": {"model.dropout": 0.0, **dict.fromkeys(INNER_DROPOUT, 0.3)},
    "accumulation": {"training.gradient_accumulation": 3},
    "R-Drop": {"training.rdrop_alpha": 1.0},
    "part of it trained": {"training.trainable": ["decoder", "head"]},
    "bf16": {"training.precision": "bf16"},
    "GRU": RECURRENT,
    "bidirectional LSTM": RECURRENT | {
        "model.cell": "lstm", "model.bidirectional": True, "model.attention": "multiplicative",
    },
    "BPE": {"tokenizer.kind": "bpe", "tokenizer.vocab_size": 120},
    "two processes": {"training.processes": 2},
    "three processes, accumulation": {"training.processes": 3, "training.gradient_accumulation": 2},
}  # fmt: skip


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the trained bits of two commits.")
    parser.add_argument("--compare", default="HEAD", metavar="COMMIT", help="default: HEAD")
    parser.add_argument("--only", action="append", metavar="RUN", help="a run (repeatable)")
    parser.add_argument("--at-once", type=int, default=2, help="trainings side by side")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all hashes")
    return parser.parse_args(arguments)


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
        self.keys = flatten(yaml.safe_load((root / "configs/tiny.yaml").read_text("utf-8"))).keys()

    def config(self, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return settings as the sections of a config, by the names that this tree has for them."""
        config: dict[str, dict[str, Any]] = {}
        for key, value in settings.items():
            own = key if key in self.keys else EARLIER_NAMES.get(key)
            if own not in self.keys:
                sys.exit(f"{self.root}/configs/tiny.yaml has no '{key}'")
            if own == "training.consistency":
                value /= 2
            section, _, name = own.partition(".")
            keys = config.setdefault(section, {})
            # Several settings of today were one rate; where a kind of model has none, it is 0.
            keys[name] = max(keys[name], value) if name in keys else value
        return config

    def hashes(self, name: str) -> Counter[str]:
        """Train a run, or continue an old one, and return the hashes of its tensors."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        if name in VARIANTS:
            settings = BASE | VARIANTS[name]
        else:
            shutil.copytree(OLD_RUNS / name, folder / "run")
            saved = yaml.safe_load((folder / "run/config.yaml").read_text("utf-8"))
            settings = flatten(rename_settings(saved, name))
            settings["training.steps"] += 12
        config = json.dumps(self.config(settings))  # is YAML, too
        (folder / "own.yaml").write_text(config, encoding="utf-8")
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
        clone(options.compare, folder / "commit")
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
