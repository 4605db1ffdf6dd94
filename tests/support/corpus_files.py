"""Write corpora in every file format, and load them."""

import csv
import json
from pathlib import Path

from minitransformer.data.corpus import Corpus, Pair, find_sources, load_corpus
from minitransformer.settings import Config, DataConfig, FiltersConfig


def corpus_of(*, filters: dict[str, str] | None = None, **data) -> Corpus:
    config = Config(data=DataConfig(**data), filters=FiltersConfig(**filters or {}))
    return load_corpus(config, find_sources(config.data))


def train_split(content: bytes, tmp_path: Path, name: str = "pairs.tsv", **settings):
    """Load the training split of a file with this content."""
    return corpus_of(train=write(content, tmp_path, name), **settings).train


def write(content: bytes, folder: Path, name: str = "pairs.tsv") -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


def counts(split) -> dict[str, tuple[int, int]]:
    """Return the count of each defect and the line where it first occurs."""
    return {name: (each.count, each.first) for name, each in split.report.defects.items()}


def write_tsv(pairs: list[Pair], folder: Path) -> str:
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8", newline="\n")
    return str(path)


def write_aligned(pairs: list[Pair], folder: Path) -> tuple[str, str]:
    for side, name in enumerate(("pairs.en", "pairs.es")):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return str(folder / "pairs.en"), str(folder / "pairs.es")


def write_csv(pairs: list[Pair], folder: Path) -> str:
    with (folder / "pairs.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("source", "target"), *pairs])
    return str(folder / "pairs.csv")


def write_jsonl(pairs: list[Pair], folder: Path) -> str:
    lines = [json.dumps({"id": 1, "source": a, "target": b}) for a, b in pairs]
    (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / "pairs.jsonl")


def write_parquet(pairs: list[Pair], folder: Path) -> str:
    import pyarrow
    import pyarrow.parquet

    columns = {"source": [a for a, _ in pairs], "target": [b for _, b in pairs]}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "pairs.parquet")
    return str(folder / "pairs.parquet")


def write_split_files(pairs: list[Pair], folder: Path) -> str:
    """Write a folder with one file per split."""
    (folder / "splits").mkdir()
    Path(write_csv(pairs, folder / "splits")).rename(folder / "splits" / "train.csv")
    return str(folder / "splits")


def write_folder(pairs: list[Pair], folder: Path) -> str:
    """Write a folder that looks like a dataset on the hub."""
    (folder / "owner" / "corpus").mkdir(parents=True)
    path = Path(write_parquet(pairs, folder / "owner" / "corpus"))
    path.rename(path.with_name("train-00000-of-00001.parquet"))
    return str(folder / "owner" / "corpus")


WRITERS = {
    "tsv": write_tsv, "aligned": write_aligned, "csv": write_csv, "jsonl": write_jsonl,
    "parquet": write_parquet, "folder": write_folder, "splits": write_split_files,
}  # fmt: skip
