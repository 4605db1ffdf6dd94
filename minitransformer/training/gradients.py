"""The gradient of a step: over its batches and all processes, normalised by all of their tokens."""

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import nn

from minitransformer.data.batching import Batch
from minitransformer.data.tokens import EOS_ID, PAD_ID
from minitransformer.metrics import Sum
from minitransformer.model.encoder_decoder import EncoderDecoder
from minitransformer.model.head_loss import HeadLoss, head_loss
from minitransformer.seeding import mix
from minitransformer.settings import TrainingConfig
from minitransformer.training.distributed import Ranks


class Fit(NamedTuple):
    """How well a model did on the batches that it learns from, dropout on."""

    loss: Sum  # without label smoothing, so that it compares with a held-out loss
    accuracy: Sum


class Objective(nn.Module):
    """A model together with what it is to become better at."""

    def __init__(self, model: EncoderDecoder, config: TrainingConfig) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = config.label_smoothing
        self.consistency = config.consistency
        self.precision = config.precision

    def forward(self, batch: Batch) -> HeadLoss:
        """The summed loss over the labels that are not padding; nothing else reaches the head."""
        is_label = batch.target_output != PAD_ID  # [B, T]
        labels = batch.target_output[is_label]  # [N]
        if self.consistency:  # every sentence twice: dropout leaves out other values of each
            batch = Batch(*(torch.cat((ids, ids)) for ids in batch))
            is_label = torch.cat((is_label, is_label))
        with torch.autocast(
            batch.source.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16"
        ):
            memory = self.model.encode(batch.source)
            states = self.model.decode_states(batch.target_input, memory)  # [B, T, D]
            return head_loss(
                states[is_label], self.model.head, labels, self.label_smoothing, self.consistency
            )


def settle(objective: nn.Module, device: torch.device) -> None:
    """Let the exchange between processes find its order, on a batch without labels.

    DistributedDataParallel sorts the gradients anew after its first pass. Sums over three and more
    processes depend on that order, and a run that is continued must not differ from a whole one.
    """
    id, nothing = torch.tensor([[EOS_ID]]), torch.tensor([[PAD_ID]])
    result: HeadLoss = objective(Batch(id, id, nothing).to(device))
    result.objective.backward()  # type: ignore[no-untyped-call]
    objective.zero_grad()


def add_gradients(
    objective: nn.Module,
    batches: list[Batch],
    ranks: Ranks,
    *,
    seed: int,
    step: int,
) -> Fit:
    """Add the gradient of a step's batches to the parameters of every process."""
    (tokens,) = ranks.totals(sum(batch.num_target_tokens for batch in batches))
    loss = right = 0.0
    objective.train()
    for micro_batch, batch in enumerate(batches):
        # From what is computed, not from what ran before: no random state needs saving.
        torch.manual_seed(mix(seed, step, ranks.rank << 32 | micro_batch))
        is_last = micro_batch == len(batches) - 1
        with nullcontext() if is_last else ranks.without_exchange(objective):
            result: HeadLoss = objective(batch)
            # The exchange takes the mean over processes, whose token counts differ.
            (result.objective * (ranks.world_size / tokens)).backward()  # type: ignore[no-untyped-call]
        loss += float(result.loss)
        right += int(result.num_right)
    loss, right = ranks.totals(loss, right)
    return Fit(Sum(loss, int(tokens)), Sum(right, int(tokens)))
