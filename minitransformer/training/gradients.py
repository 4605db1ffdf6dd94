"""The gradient of a step: from one batch or several, normalised by all of their tokens."""

from typing import NamedTuple

import torch

from minitransformer.data.batching import Batch
from minitransformer.data.tokens import PAD_ID
from minitransformer.metrics import Sum, correct_tokens, summed_loss
from minitransformer.model.transformer import Transformer
from minitransformer.seeding import mix
from minitransformer.settings import TrainingConfig


class Fit(NamedTuple):
    """How well a model did on the batches that it learns from, dropout on."""

    loss: Sum  # without label smoothing, so that it compares with a held-out loss
    accuracy: Sum


def add_gradients(
    model: Transformer,
    batches: list[Batch],
    config: TrainingConfig,
    device: torch.device,
    *,
    step: int,
) -> Fit:
    """Add the gradient of a step's batches to the model's parameters."""
    tokens = sum(batch.num_target_tokens for batch in batches)
    loss = accuracy = Sum(0, 0)
    model.train()
    for micro_batch, batch in enumerate(batches):
        # From what is computed, not from what ran before: no random state needs saving.
        torch.manual_seed(mix(config.seed, step, micro_batch))
        batch = batch.to(device)
        logits = model(batch.source, batch.target_input)
        objective = summed_loss(logits, batch.target_output, PAD_ID, config.label_smoothing)
        (objective / tokens).backward()  # type: ignore[no-untyped-call]
        logits, plain = logits.detach(), objective.detach()
        if config.label_smoothing:
            plain = summed_loss(logits, batch.target_output, PAD_ID)
        loss += Sum(float(plain), batch.num_target_tokens)
        accuracy += correct_tokens(logits.argmax(dim=-1), batch.target_output, PAD_ID)
    return Fit(loss, accuracy)
