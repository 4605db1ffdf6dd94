"""The sentences that are looked at again and again while a run learns."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

import torch

from minitransformer.data.corpus import Pair
from minitransformer.data.words import normalize
from minitransformer.decoding import Translator
from minitransformer.explain.attention_view import AttentionView, pass_views
from minitransformer.explain.reasons import device_of
from minitransformer.explain.stage_reading import stages_of
from minitransformer.explain.stages import Labels
from minitransformer.model.trace import record
from minitransformer.search import evaluating, most_probable

MOST_SEARCHED = 100_000  # pairs of a split in which the right translation is looked for


@dataclass(frozen=True)
class Probe:
    """A sentence, and its right translation where the corpus has one."""

    source: str
    target: str = ""


def choose_probes(
    wanted: int | tuple[str, ...], splits: Mapping[str, Iterable[Pair]]
) -> list[Probe]:
    """The sentences that a config names, or the first so many held-out pairs."""
    if isinstance(wanted, int):
        return [Probe(*pair) for pair in islice(splits.get("valid", splits["train"]), wanted)]
    names = {normalize(source) for source in wanted}
    known: dict[str, str] = {}
    for split in ("valid", "train"):
        for pair in islice(splits.get(split, ()), MOST_SEARCHED):
            source = normalize(pair.source)
            if source in names:
                known.setdefault(source, pair.target)
    return [Probe(source, known.get(normalize(source), "")) for source in wanted]


@torch.no_grad()
def probe_views(translator: Translator, probe: Probe) -> list[AttentionView]:
    """Every attention over a probe and its right translation, given token by token.

    Given, so that the rows stay the same while the model learns; without a right translation the
    model's own is taken.
    """
    tokenizer, model = translator.tokenizer, translator.model
    encoded = tokenizer.encode_source(probe.source)
    places = translator.fit(list(range(len(encoded.ids))))
    source, ids = [encoded.tokens[n] for n in places], [encoded.ids[n] for n in places]
    if probe.target:
        target = tokenizer.encode_target(probe.target)
        tokens, target_ids = target.tokens, target.ids
    else:
        translation = translator.translate([probe.source])[0]
        tokens, target_ids = translation.tokens, [choice.id for choice in translation.choices]
    length = min(len(tokens), translator.max_length)
    fed = [tokenizer.target.tokens[tokenizer.start_id], *tokens][:length]
    fed_ids = [tokenizer.start_id, *target_ids][:length]
    with evaluating(model), record(model) as tensors:
        memory = model.encode(torch.tensor([ids], device=device_of(model)))
        logits = model.decode(torch.tensor([fed_ids], device=device_of(model)), memory)
    best = most_probable(logits[0].softmax(-1), 1)[1][:, 0].tolist()
    mask = memory.mask[0, 0]
    encoder = stages_of(
        model.encoder, "encoder", tensors, Labels(source, ids, source, source, mask)
    )
    decoder = stages_of(model.decoder, "decoder", tensors, Labels(fed, fed_ids, fed, source, mask))
    produced = [tokenizer.target.tokens[id] for id in best]
    return [*pass_views(encoder, []), *pass_views(decoder, produced)]
