"""Compare decoding speed with other implementations: python -m benchmarks.decoding [--beam 5]

All translate the same sentences into 14 tokens each, greedily or with a beam, on one thread, in
interleaved rounds. CTranslate2 gets this project's own weights, through `minitransformer.export`,
and should give the same translations.
"""

import argparse
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.decoding_peers import CTranslate2Decoder, Decoder, installed_decoders
from benchmarks.measuring import (
    format_quartiles,
    interleaved_rates,
    print_table,
    speedups,
    write_json,
)
from benchmarks.ours import model_config, new_model
from benchmarks.peers import import_error
from benchmarks.workload import SIZES, VOCAB_SIZE, Size, random_sources
from minitransformer.data.batching import pad
from minitransformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, SPECIALS
from minitransformer.export import write_ctranslate2
from minitransformer.model.transformer import Transformer
from minitransformer.search import SearchConfig, translate_ids

STEPS = 14
OURS = "ours"
TOKENS = [*SPECIALS, *(f"word{number}" for number in range(VOCAB_SIZE - len(SPECIALS)))]


class OurDecoder:
    """This project's search, as evaluation uses it."""

    def __init__(self, model: Transformer, beam: int) -> None:
        self.name = OURS
        self.model = model
        self.beam = beam

    def decode(self, sentences: list[list[int]], steps: int) -> list[list[int]]:
        max_lengths = [steps] * len(sentences)
        return translate_ids(
            self.model, pad(sentences), BOS_ID, max_lengths, SearchConfig(self.beam)
        )


def decoders(size: Size, folder: Path, beam: int) -> dict[str, Decoder]:
    """Build our decoder, CTranslate2 with the same weights, and the others with random ones."""
    config = model_config(size)
    torch.manual_seed(1)
    model = new_model(config).eval()
    with torch.no_grad():  # a logit of 0 is never the highest: no <EOS> before the last step
        model.head.weight[[PAD_ID, BOS_ID, EOS_ID]] = 0
    built: dict[str, Decoder] = {OURS: OurDecoder(model, beam)}
    if not import_error(("ctranslate2",)):
        for kind, quantization in (("float32", None), ("int8", "int8")):
            path = folder / f"{size.d_model}-{kind}"
            write_ctranslate2(model, config, TOKENS, TOKENS, path, quantization)
            decoder = CTranslate2Decoder(path, TOKENS, compute_type=kind, beam=beam)
            built[f"CTranslate2 {kind}"] = decoder
    return built | {name: build(size, beam) for name, build in installed_decoders(beam)[0].items()}


def decode_all(decoder: Decoder, sentences: list[list[int]], batch_size: int) -> int:
    """Decode sentences in batches, and return their number."""
    for start in range(0, len(sentences), batch_size):
        decoder.decode(sentences[start : start + batch_size], STEPS)
    return len(sentences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--json", help="write all numbers to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, reason in installed_decoders(options.beam)[1].items():
        print(f"skipped: {name} ({reason})")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES.values():
            built = decoders(size, Path(folder), options.beam)
            sentences = sorted(random_sources(256, seed=3), key=len)
            compare_translations(built, sentences[::16])
            for batch_size, count in ((64, 256), (1, 24)):
                sample = sentences[:: 256 // count]
                workloads: dict[str, Callable[[], int]] = {
                    name: functools.partial(decode_all, decoder, sample, batch_size)
                    for name, decoder in built.items()
                }
                batches = f"batches of {batch_size}" if batch_size > 1 else "one at a time"
                title = f"{size.name}, {batches}"
                results[title] = measure(title, workloads, options.rounds)
    if options.json:
        write_json(options.json, {"sentences per second": results})


def compare_translations(built: dict[str, Decoder], sentences: list[list[int]]) -> None:
    """Print how many translations of ours and of CTranslate2 with the same weights are equal."""
    if other := built.get("CTranslate2 float32"):
        ours, theirs = (each.decode(sentences, STEPS) for each in (built[OURS], other))
        equal = sum(map(list.__eq__, ours, theirs))
        print(f"\nours and CTranslate2 float32 agree on {equal} of {len(sentences)} translations")


def measure(
    title: str, workloads: dict[str, Callable[[], int]], rounds: int
) -> dict[str, list[float]]:
    """Measure sentences per second, print them as a table, and return them."""
    for workload in workloads.values():
        workload()  # a warm-up
    rates = interleaved_rates(workloads, rounds)
    print(f"\n{title}, sentences a second, median (quartiles) of {rounds}:\n")
    print_table(
        ("", "sentences a second", "ours, times as fast"),
        (
            (
                name,
                format_quartiles(rates[name], 0),
                format_quartiles(speedups(rates, OURS, name), 2),
            )
            for name in workloads
        ),
    )
    return rates


if __name__ == "__main__":
    main()
