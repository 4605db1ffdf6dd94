"""Measure what loading a large corpus takes: python -m benchmarks.large_corpus [--pairs 1000000]

Generates sentence pairs in a temporary folder, then loads them in a process of its own: once to
read, filter and encode them, and once more from the cache.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy

VOCAB_SIZE = 30_000  # of each side, drawn by Zipf's law
MEAN_LENGTH = 10


def generate(path: Path, pairs: int) -> None:
    """Write pairs of 1 to 30 words; the target has one word for each word of the source."""
    random = numpy.random.RandomState(1)
    weights = 1 / numpy.arange(1, VOCAB_SIZE + 1)
    sources = [f"word{number}" for number in range(VOCAB_SIZE)]
    targets = [f"palabra{number}" for number in range(VOCAB_SIZE)]
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, pairs, 10_000):
            lengths = random.poisson(MEAN_LENGTH, size=min(10_000, pairs - start)).clip(1, 30)
            ids = random.choice(VOCAB_SIZE, size=lengths.sum(), p=weights / weights.sum())
            for sentence in numpy.split(ids, lengths.cumsum()[:-1]):
                source = " ".join(sources[id] for id in sentence)
                file.write(f"{source}\t{' '.join(targets[id] for id in sentence)}\n")


def peak_bytes() -> int:
    """Return this process's peak resident memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def current_bytes() -> int:
    """Return this process's resident memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def load(source: str, cache: str, kind: str) -> dict[str, float]:
    """Load a corpus as train.py does, and return the time and memory of that."""
    import torchtext.vocab  # noqa: F401 - imported first, so that its memory is not counted

    from minitransformer.data.batching import BatchStream
    from minitransformer.data.dataset import prepare_dataset
    from minitransformer.settings import Config, DataConfig, TokenizerConfig

    config = Config(
        data=DataConfig(train=source, cache=cache),
        tokenizer=TokenizerConfig(
            kind=kind, vocab_size=8000 * (kind == "bpe"), joint=kind == "bpe"
        ),
    )
    before = current_bytes()
    start_time = time.perf_counter()
    dataset = prepare_dataset(config)
    seconds = time.perf_counter() - start_time
    train = dataset.encoded["train"]
    loaded, peak = current_bytes() - before, peak_bytes() - before
    stream = BatchStream(train, batch_tokens=4000, seed=1, start_id=dataset.tokenizer.start_id)
    for _ in stream.order:
        stream.next()
    return {
        "pairs": len(train),
        "seconds": seconds,
        "ids": sum(each.nbytes for side in (train.sources, train.targets) for each in side),
        "loaded": loaded,
        "peak": peak,
        "epoch": current_bytes() - before,
    }


def load_in_subprocess(*arguments: str) -> dict[str, float]:
    """Run `load` in a process of its own."""
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.large_corpus", "--load", *arguments],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    measured: dict[str, float] = json.loads(result.stdout)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--load", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        print(json.dumps(load(*options.load)))
        return
    print("| tokenizer | loading | pairs a second | token ids, bytes a pair "
          "| memory after loading | at its peak | after an epoch |")  # fmt: skip
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder) / "pairs.tsv", options.pairs)
        for kind in ("words", "bpe"):
            for title in ("first time", "again"):
                measured = load_in_subprocess(f"{folder}/pairs.tsv", f"{folder}/cache", kind)
                pairs = measured["pairs"]
                print(
                    f"| {kind} | {title} | {pairs / measured['seconds']:,.0f} "
                    f"| {measured['ids'] / pairs:.0f} | {measured['loaded'] / pairs:.0f} "
                    f"| {measured['peak'] / pairs:.0f} | {measured['epoch'] / pairs:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
