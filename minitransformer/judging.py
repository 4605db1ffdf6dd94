"""What a model says of sentence pairs: each label with every earlier token given, and on its own.

B batch, T target, N labels, C chunk, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from minitransformer.data.batching import Batch, make_batch
from minitransformer.data.encoding import EncodedPair
from minitransformer.data.tokens import PAD_ID
from minitransformer.decoding import evaluating, greedy
from minitransformer.metrics import summed_loss
from minitransformer.model.head_loss import rows_at_a_time
from minitransformer.model.transformer import Transformer


class Judged(NamedTuple):
    """What a model said of one batch: plain numbers, which another process can send."""

    places: list[int]
    loss: float
    predicted: list[list[int]]  # where every earlier token is given
    produced: list[list[int]]


def batches_by_length(encoded: Sequence[EncodedPair], size: int) -> list[list[int]]:
    """Places of pairs, those of similar length together."""
    by_length = sorted(range(len(encoded)), key=lambda place: len(encoded[place].source))
    return [by_length[start : start + size] for start in range(0, len(by_length), size)]


def judge(
    model: Transformer,
    encoded: Sequence[EncodedPair],
    batches: list[list[int]],
    start_id: int,
    max_length: int,
) -> list[Judged]:
    """What a model says of each batch, with every earlier token given and on its own."""
    device = next(model.parameters()).device
    judged = []
    for places in batches:
        batch = make_batch([encoded[place] for place in places], start_id).to(device)
        lengths = [len(encoded[place].target) for place in places]
        loss, predicted = teacher_forced(model, batch)
        # No output beyond this can be right, and early models run on and on.
        limits = [min(2 * length + 10, max_length) for length in lengths]
        produced = greedy(
            model, batch.source, start_id=start_id, limits=limits, probabilities=False
        )
        judged.append(
            Judged(
                places,
                loss,
                [ids.tolist() for ids in torch.split(predicted, lengths)],
                [[choice.id for choice in choices] for choices in produced],
            )
        )
    return judged


def teacher_forced(model: Transformer, batch: Batch) -> tuple[float, Int[Tensor, " labels"]]:
    """The summed loss and the predicted ids of all labels, when every earlier token is given."""
    is_label = batch.target_output != PAD_ID  # [B, T]
    labels = batch.target_output[is_label]  # [N]
    with evaluating(model), torch.inference_mode():
        states = model.decode_states(batch.target_input, model.encode(batch.source))[is_label]
        loss, predicted = 0.0, []
        rows = rows_at_a_time(model.head.weight)
        for chunk, label in zip(torch.split(states, rows), torch.split(labels, rows), strict=True):
            logits = model.head(chunk)  # [C, V]
            loss += float(summed_loss(logits, label, PAD_ID))
            predicted.append(logits.argmax(dim=-1))
    return loss, torch.cat(predicted)
