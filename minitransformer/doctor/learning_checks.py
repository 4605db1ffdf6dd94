"""Whether a model can learn: gradients that are numbers, a fair start, one batch by heart."""

import math
from dataclasses import replace

import torch

from minitransformer.data.batching import Batch
from minitransformer.data.encoding import EncodedPair
from minitransformer.data.tokenizer import PairTokenizer
from minitransformer.data.tokens import EOS_ID, PAD_ID, UNK_ID
from minitransformer.doctor.findings import FAILED, OK, WARNING, Finding, judged, shown
from minitransformer.doctor.patient import Patient, padded_batch
from minitransformer.model.base import build_model
from minitransformer.model.loss import TrainingLoss, cross_entropy
from minitransformer.search import evaluating
from minitransformer.settings import Config
from minitransformer.training.optimizer import AdamW

BAND = 1.5  # logits of spread σ cost σ²/2 more than ln V; on few labels, chance adds to it
LEARNT = 0.1  # a loss that means: by heart
STEPS, WARMUP = 300, 10


def finite_everywhere(patient: Patient) -> Finding:
    """Sentences of one token and of unknown words alone give numbers, forward and backward."""
    model, batch, start_id, config = patient
    source = batch.source.new_tensor([[UNK_ID, PAD_ID], [UNK_ID, UNK_ID], [EOS_ID, PAD_ID]])
    labels = batch.source.new_tensor([[EOS_ID, PAD_ID], [UNK_ID, EOS_ID], [EOS_ID, PAD_ID]])
    read = source.new_tensor([[start_id, PAD_ID], [start_id, UNK_ID], [start_id, PAD_ID]])
    longest = min(2, config.model.max_length)
    hard = Batch(*(ids[:, :longest] for ids in (source, read, labels)))
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            return Finding(
                "finite",
                FAILED,
                f"{name} holds values that are no numbers",
                "a training that diverged, or a damaged file of weights",
            )
    wrong = []
    training_loss = TrainingLoss(model, config.training)
    with evaluating(model):
        for kind, each in (("of one token or unknown words", hard), ("of the corpus", batch)):
            result = training_loss(*each)
            # Not backward(): no gradient may be left behind for a training that comes next.
            found = torch.autograd.grad(result.objective, list(trained.values()), allow_unused=True)
            if not result.loss.isfinite():
                wrong.append(f"the loss of sentences {kind} is {shown(float(result.loss))}")
            wrong += [
                f"sentences {kind} give {name} a gradient that is no number"
                for name, gradient in zip(trained, found, strict=True)
                if gradient is not None and not gradient.isfinite().all()
            ]
    return judged(
        "finite",
        not wrong,
        wrong[0] if wrong else "one token, unknown words: loss and gradients are numbers",
        "weights or embeddings so large that their products overflow"
        if config.model.attention == "none"
        else "a softmax over nothing but -inf: every query needs a key, and <UNK> is not padding",
    )


def start_loss(patient: Patient) -> Finding:
    """A model that knows nothing yet should find all tokens about equally probable."""
    model, (source, read, labels) = patient.model, patient.batch
    with evaluating(model), torch.no_grad():
        logits = model(source, read)  # [B, T, V]
    # A head that is the embedding finds the token just read probable before it has learnt anything.
    is_tied = model.head.weight is model.decoder.embedding.weight
    if is_tied:
        logits = logits.scatter(2, read[..., None], -torch.inf)
        labels = labels.masked_fill(labels == read, PAD_ID)
    count, vocabulary = int((labels != PAD_ID).sum()), model.head.out_features
    loss = float(cross_entropy(logits, labels, ignore_index=PAD_ID)) / count
    fair = math.log(vocabulary)
    return Finding(
        "loss at start",
        OK if abs(loss - fair) <= BAND else WARNING,
        f"{loss:.2f}, ln {vocabulary:,} = {fair:.2f}" + ", the token just read apart" * is_tied,
        "the first logits are too large: model.embedding_std, model.scale_embeddings?"
        if loss > fair
        else "it knows answers before it has learnt any: does the decoder read them?",
    )


def one_batch_by_heart(
    pairs: list[EncodedPair], tokenizer: PairTokenizer, config: Config
) -> Finding:
    """A fresh model must be able to learn a few pairs by heart; what cannot, cannot learn more."""
    name = "one batch by heart"
    batch = padded_batch(pairs, tokenizer.start_id, config.model.max_length)
    # What makes a training careful is in the way of learning by heart.
    config = replace(
        config,
        model=replace(config.model, dropout=0.0, inner_dropout=0.0),
        training=replace(config.training, label_smoothing=0.0, consistency=0.0, weight_decay=0.0),
    )
    losses: list[float] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        model = build_model(config.model, len(tokenizer.source), len(tokenizer.target), PAD_ID)
        training_loss = TrainingLoss(model.train(), config.training)
        optimizer = AdamW(model, config.training)
        for step in range(1, STEPS + 1):
            result = training_loss(*batch)
            (result.objective / batch.num_target_tokens).backward()
            losses.append(float(result.loss) / batch.num_target_tokens)
            without = [each for each, weight in optimizer.trained.items() if weight.grad is None]
            if without or not losses[-1] >= LEARNT:  # or not a number
                break
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step(config.training.learning_rate * min(1.0, step / WARMUP))
    if without:
        measured = f"{len(without)} of {len(optimizer.trained)} weights get no gradient"
        return Finding(
            name, FAILED, f"{measured}, the first of them {without[0]}",
            "something on the way from the loss is detached, or computed without gradients",
        )  # fmt: skip
    count = f"{len(pairs)} pair{'s' * (len(pairs) != 1)}"
    return judged(
        name,
        losses[-1] < LEARNT,
        f"{count}: loss {losses[0]:.2f} → {shown(losses[-1])} in {len(losses)} steps",
        "training.learning_rate far too high or too low, or a model too narrow (model.d_model)",
    )
