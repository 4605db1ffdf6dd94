"""Decoding speed beside other implementations: python -m benchmarks.decoding [--beam 5]

Greedy or beam translation of the same sentences into 14 tokens each, one thread, in turns.
CTranslate2 gets this project's own weights, through `minitransformer.export`, and must say the
same words.
"""

import argparse
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.decoding_peers import CTranslate2Decoder, Decoder, installed_decoders
from benchmarks.measuring import interleaved, print_table, ratios, with_quartiles, write_json
from benchmarks.ours import model_config, new_model
from benchmarks.peers import why_not
from benchmarks.workload import SIZES, VOCABULARY, Size, sources
from minitransformer.data.batching import pad
from minitransformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, SPECIALS
from minitransformer.export import write_ctranslate2
from minitransformer.model.transformer import Transformer
from minitransformer.search import SearchConfig, translate_ids

STEPS = 14
OURS = "ours"
TOKENS = [*SPECIALS, *(f"word{number}" for number in range(VOCABULARY - len(SPECIALS)))]


class OurDecoder:
    """This project's search, as it scores a split."""

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
    """Ours, CTranslate2 with the same weights, and the others with random ones."""
    config = model_config(size)
    torch.manual_seed(1)
    model = new_model(config).eval()
    with torch.no_grad():  # a logit of 0 is never the highest of so many: all say equally much
        model.head.weight[[PAD_ID, BOS_ID, EOS_ID]] = 0
    chosen: dict[str, Decoder] = {OURS: OurDecoder(model, beam)}
    if not why_not(("ctranslate2",)):
        for kind, quantization in (("float32", None), ("int8", "int8")):
            place = folder / f"{size.d_model}-{kind}"
            write_ctranslate2(model, config, TOKENS, TOKENS, place, quantization)
            decoder = CTranslate2Decoder(place, TOKENS, compute_type=kind, beam=beam)
            chosen[f"CTranslate2 {kind}"] = decoder
    return chosen | {name: build(size, beam) for name, build in installed_decoders(beam)[0].items()}


def turn(decoder: Decoder, sentences: list[list[int]], batch: int) -> int:
    for start in range(0, len(sentences), batch):
        decoder.decode(sentences[start : start + batch], STEPS)
    return len(sentences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--json", help="a file for all numbers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, why in installed_decoders(options.beam)[1].items():
        print(f"left out: {name} ({why})")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES.values():
            chosen = decoders(size, Path(folder), options.beam)
            sentences = sorted(sources(256, seed=3), key=len)
            compare_words(chosen, sentences[::16])
            for batch, count in ((64, 256), (1, 24)):
                turns: dict[str, Callable[[], int]] = {
                    name: functools.partial(turn, decoder, sentences[:: 256 // count], batch)
                    for name, decoder in chosen.items()
                }
                title = f"{size.name}, {f'batches of {batch}' if batch > 1 else 'one at a time'}"
                found[title] = show(title, turns, options.rounds)
    if options.json:
        write_json(options.json, {"sentences per second": found})


def compare_words(chosen: dict[str, Decoder], sentences: list[list[int]]) -> None:
    """The same weights say the same words."""
    if other := chosen.get("CTranslate2 float32"):
        ours, theirs = (each.decode(sentences, STEPS) for each in (chosen[OURS], other))
        same = sum(map(list.__eq__, ours, theirs))
        print(f"\nours and CTranslate2 float32 say the same: {same} of {len(sentences)}")


def show(title: str, turns: dict[str, Callable[[], int]], rounds: int) -> dict[str, list[float]]:
    for each in turns.values():
        each()  # what happens once only is not counted
    rates = interleaved(turns, rounds)
    print(f"\n{title}, sentences a second, median (quartiles) of {rounds}:\n")
    print_table(
        ("", "sentences a second", "ours is so many times as fast"),
        (
            (name, with_quartiles(rates[name], 0), with_quartiles(ratios(rates, OURS, name), 2))
            for name in turns
        ),
    )
    return rates


if __name__ == "__main__":
    main()
