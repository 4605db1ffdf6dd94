"""Decode with other projects' models, from their own packages, with random weights.

None of them ever chooses <EOS>, so that all translations are of the same length.
B batch, S source, T target, V vocabulary.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmarks.peers import PEERS, import_error, joey_model, marian_model, tutorial_model
from benchmarks.workload import Size
from minitransformer.data.batching import pad
from minitransformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID


class Decoder(Protocol):
    """Generates exactly `steps` tokens for each source; the sources are one batch."""

    name: str

    def decode(self, sources: list[list[int]], steps: int) -> list[list[int]]: ...


class TutorialDecoder:
    """torch.nn.Transformer in the tutorial's loop, which recomputes the prefix for each token."""

    def __init__(self, size: Size, beam: int) -> None:
        assert beam == 1
        self.name = "torch.nn.Transformer"
        self.model = tutorial_model(size).eval()

    @torch.inference_mode()
    def decode(self, sources: list[list[int]], steps: int) -> list[list[int]]:
        source = pad(sources)  # [B, S]
        memory = self.model.encode(source)
        target = torch.full((len(sources), 1), BOS_ID)  # [B, T]
        for _ in range(steps):
            last = self.model.decode(target, memory, source)[:, -1]
            logits = self.model.generator(last)  # [B, V]
            logits[:, EOS_ID] = -torch.inf
            target = torch.cat([target, logits.argmax(dim=1, keepdim=True)], dim=1)
        return target[:, 1:].tolist()


class MarianDecoder:
    """Hugging Face's generate() with its key-value cache."""

    def __init__(self, size: Size, beam: int) -> None:
        self.name = "Hugging Face MarianMT"
        self.model = marian_model(size).eval()
        with torch.no_grad():  # a logit of 0 is never the highest; masking would cost time
            self.model.model.shared.weight[[PAD_ID, BOS_ID, EOS_ID]] = 0
        self.beam = beam

    @torch.inference_mode()
    def decode(self, sources: list[list[int]], steps: int) -> list[list[int]]:
        source = pad(sources)
        target = self.model.generate(
            input_ids=source,
            attention_mask=source != PAD_ID,
            max_new_tokens=steps,
            num_beams=self.beam,
            do_sample=False,
            use_cache=True,
        )
        return target[:, 1:].tolist()


class JoeyDecoder:
    """JoeyNMT's own greedy or beam search, which has no cache."""

    def __init__(self, size: Size, beam: int) -> None:
        self.name = "JoeyNMT"
        self.model = joey_model(size).eval()
        self.beam = beam

    @torch.inference_mode()
    def decode(self, sources: list[list[int]], steps: int) -> list[list[int]]:
        from joeynmt.search import beam_search, greedy

        source = pad(sources)
        is_source = source != PAD_ID
        memory, hidden, *_ = self.model(
            return_type="encode",
            src=source,
            src_length=is_source.sum(dim=1),
            src_mask=is_source[:, None],
        )
        options: dict[str, Any] = {
            "model": self.model,
            "encoder_output": memory,
            "encoder_hidden": hidden,
            "src_mask": is_source[:, None],
            "max_output_length": steps,
            "min_output_length": steps,
        }
        if self.beam == 1:
            target, *_ = greedy(**options)
        else:
            target, *_ = beam_search(**options, beam_size=self.beam, alpha=1.0, n_best=1)
        return target.tolist()


class CTranslate2Decoder:
    """CTranslate2 with a folder of exported weights, whose vocabulary is `tokens`."""

    def __init__(
        self,
        folder: str | Path,
        tokens: Sequence[str],
        *,
        compute_type: str = "float32",
        threads: int = 1,
        beam: int = 1,
    ) -> None:
        import ctranslate2

        self.name = f"CTranslate2 {compute_type}"
        self.translator = ctranslate2.Translator(
            str(folder), device="cpu", compute_type=compute_type, intra_threads=threads,
            inter_threads=1,
        )  # fmt: skip
        self.tokens = tokens
        self.ids = {token: id for id, token in enumerate(tokens)}
        self.beam = beam

    def decode(self, sources: list[list[int]], steps: int) -> list[list[int]]:
        results = self.translator.translate_batch(
            # CTranslate2 adds the <EOS> itself.
            [[self.tokens[id] for id in source[:-1]] for source in sources],
            beam_size=self.beam,
            min_decoding_length=steps,
            max_decoding_length=steps,
        )
        return [[self.ids[token] for token in result.hypotheses[0]] for result in results]


DECODERS: dict[str, Callable[[Size, int], Decoder]] = {
    "torch.nn.Transformer": TutorialDecoder,
    "Hugging Face MarianMT": MarianDecoder,
    "JoeyNMT": JoeyDecoder,
}


def installed_decoders(
    beam: int,
) -> tuple[dict[str, Callable[[Size, int], Decoder]], dict[str, str]]:
    """Return the decoders that can be built, and why the others cannot."""
    reasons = {name: import_error(PEERS[name].modules) for name in DECODERS}
    if beam > 1:
        reasons["torch.nn.Transformer"] = "its tutorial has no beam search"
    usable = {name: build for name, build in DECODERS.items() if not reasons[name]}
    return usable, {name: reason for name, reason in reasons.items() if reason}
