"""What any model owes to order, padding and later tokens, measured on a batch of real pairs.

B batch, T target, V vocabulary.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from minitransformer.data.tokens import PAD_ID
from minitransformer.doctor.findings import OK, WARNING, Finding, judged, shown
from minitransformer.doctor.patient import (
    ROUNDING,
    Patient,
    rounding,
    unpadded,
    with_more_digits,
    worse,
)
from minitransformer.model.trace import record
from minitransformer.search import evaluating

# What usually causes a failure, by the kind of model.
PADDING = {
    "transformer": "padding must be hidden from all attention: of the encoder, of the decoder, and "
    "across",
    "recurrent": "padding must leave the encoder's states as they were, in both directions, and be "
    "hidden from attention",
}
LATER = {
    "transformer": "the causal mask hides what is later: -inf above the diagonal, before the "
    "softmax",
    "recurrent": "the decoder reads from left to right alone, each state made of the one before",
}
ORDER = {
    "transformer": "positions must be added to the embeddings, or rotate queries and keys",
    "recurrent": "each of the encoder's states must be made of the one before it",
}
UNNOTICED = {
    "transformer": "the source is not noticed at all: all embeddings equal, or weights of zeros?",
    "recurrent": "the source is not noticed at all: all embeddings equal, weights of zeros, or a "
    "decoder that does not begin where the encoder ends?",
}


def decoder_input(patient: Patient) -> Finding:
    """The decoder reads each token one place after it was to be predicted, never at its place."""
    _, read, labels = patient.batch
    is_label = labels != PAD_ID  # [B, T]
    start = labels.new_full((len(labels), 1), patient.start_id)
    expected = torch.cat((start, labels[:, :-1]), dim=1).masked_fill(~is_label, PAD_ID)
    right, answers, count = (
        int((is_label & which).sum())
        for which in (read == expected, (read == labels) & (expected != labels), is_label)
    )
    told = f"{right} of {count} tokens are the label before"
    return judged(
        "decoder's input",
        torch.equal(read, expected),
        told + f", {answers} are the label itself" * (answers > 0),
        "the target must be shifted: the start token first, then all labels but the last",
    )


def no_look_ahead(patient: Patient) -> Finding:
    """Logits never depend on later target tokens."""
    name, (model, batch) = "no look ahead", patient[:2]
    lengths = (batch.target_input != PAD_ID).sum(dim=1)
    row = int(lengths.argmax())
    length = int(lengths[row])
    if length < 2:
        return Finding(name, OK, "targets of one token: nothing comes later")
    places = torch.arange(1, length, device=lengths.device)[:, None]  # the first changed token
    columns = torch.arange(length, device=lengths.device)
    target = batch.target_input[row, :length].expand(length - 1, -1)
    others = target % (model.head.out_features - 1) + 1  # neither the same nor padding
    changed = torch.where(columns < places, target, others)
    source = batch.source[row].expand(length - 1, -1)
    with evaluating(model), torch.no_grad():
        memory = model.encode(source)
        before, after = model.decode(target, memory), model.decode(changed, memory)
    moved = (after - before).abs().amax(dim=2)  # [places, T]
    leak, seen = (float(moved[which].max()) for which in (columns < places, columns >= places))
    if seen == 0:
        return Finding(
            name, WARNING, "other target tokens change nothing at all, not even what follows them",
            "the decoder ignores what it reads: all embeddings equal, or weights of zeros?",
        )  # fmt: skip
    return judged(
        name,
        leak <= 1e-6 * float(before.abs().max()),
        f"other tokens move earlier logits by {shown(leak)} (later ones by {shown(seen)})",
        LATER[patient.config.model.kind],
    )


def no_neighbours(patient: Patient) -> Finding:
    """Padding and the other rows of a batch change nothing."""
    model, batch = patient[:2]
    largest = 0.0
    with evaluating(model), torch.no_grad():
        logits = model(batch.source, batch.target_input)
        together = logits.log_softmax(dim=-1)  # [B, T, V]
        for row, (source, target) in enumerate(zip(batch.source, batch.target_input, strict=True)):
            alone = model(unpadded(source), unpadded(target)).log_softmax(dim=-1)[0]
            largest = worse(largest, (together[row, : len(alone)] - alone).abs().max())
    return judged(
        "padding, neighbours",
        largest <= rounding(logits),
        f"alone and padded among others, log-probabilities differ by {shown(largest)}",
        PADDING[patient.config.model.kind],
    )


def word_order(patient: Patient) -> Finding:
    """The order of the source's words matters, but to a Transformer without positions."""
    name, batch, settings = "word order", patient.batch, patient.config.model
    is_recurrent = settings.kind == "recurrent"
    # What a recurrent encoder reads last is heard even where it forgets all else.
    turned = inner_backwards if is_recurrent else backwards
    rows = [unpadded(row) for row in batch.source]
    source = max(rows, key=lambda row: int((row != turned(row)).sum()))
    if torch.equal(source, turned(source)):
        none = "has two different inner words" if is_recurrent else "reads otherwise backwards"
        return Finding(name, OK, f"no sentence {none}")
    # A fresh model may notice places only in digits that float32 does not have.
    model = with_more_digits(patient).model
    if is_recurrent:  # which must notice them by itself
        model.encoder.embedding.positions = None
    source = source.cpu()
    start = source.new_tensor([[patient.start_id]])
    with evaluating(model), torch.no_grad():
        # Without positions the encoder's states only change places, which attention cannot notice.
        logits, otherwise = (model(each, start) for each in (source, turned(source)))
        others = source % (len(model.encoder.embedding.weight) - 1) + 1
        noticed = float((model(others, start) - logits).abs().max())
    moved, least = float((logits - otherwise).abs().max()), 1e-12 * float(logits.abs().max())
    which = "whose inner words stand" if is_recurrent else "read"
    told = f"a source {which} backwards moves logits by {shown(moved)}"
    if settings.position == "none" and not is_recurrent:
        return Finding(name, OK, f"{told} (model.position is none)")
    if noticed <= least:
        return Finding(
            name,
            WARNING,
            f"{told}, and one of other words by {shown(noticed)}",
            UNNOTICED[settings.kind],
        )
    return judged(name, moved > least, told, ORDER[settings.kind])


def backwards(source: Int[Tensor, "batch source"]) -> Int[Tensor, "batch source"]:
    return source.flip(1)


def inner_backwards(source: Int[Tensor, "batch source"]) -> Int[Tensor, "batch source"]:
    """The first and the last word stay where they are."""
    return torch.cat((source[:, :1], source[:, 1:-1].flip(1), source[:, 1:][:, -1:]), dim=1)


def attention_rows(patient: Patient) -> Finding:
    """Each query's weights sum to 1 over its keys, with nothing on padding."""
    name, (model, batch), settings = "attention", patient[:2], patient.config.model
    with evaluating(model), torch.no_grad(), record(model) as tensors:
        model(batch.source, batch.target_input)
    rows = {path: each for path, each in tensors.items() if path.endswith(".weights")}
    if not rows:
        is_meant = settings.attention == "none"
        return judged(name, is_meant, "the model has no attention", "model.attention asks for one")
    farthest = hidden = 0.0
    for path, weights in rows.items():
        farthest = worse(farthest, (weights.sum(dim=-1) - 1).abs().max())
        is_own = path.startswith("decoder") and "self_attention" in path
        keys = batch.target_input if is_own else batch.source
        is_token = (keys != PAD_ID)[:, None, None, :]
        hidden = worse(hidden, weights.masked_fill(is_token, 0).abs().max())
    is_axis = farthest <= ROUNDING
    return judged(
        name,
        is_axis and hidden == 0,
        f"weights sum to 1 within {shown(farthest)}, the largest on padding is {shown(hidden)}",
        PADDING[settings.kind]
        if is_axis
        else "the softmax goes over the last axis, which is that of the keys",
    )
