"""What any model owes to order, padding and later tokens, and whether it can learn."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from minitransformer.config import dropout_rates
from minitransformer.data.batching import Batch, make_batch, pad
from minitransformer.data.dataset import EncodedPair, EncodedSplit
from minitransformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, SPECIALS, UNK_ID, PairTokenizer
from minitransformer.doctor.findings import FAILED, OK, WARNING, Finding, judged, shown
from minitransformer.errors import ModelError
from minitransformer.model.base import EncoderDecoder, build_model
from minitransformer.model.loss import TrainingLoss, cross_entropy
from minitransformer.model.trace import record
from minitransformer.search import TokenScore, eval_mode, greedy
from minitransformer.settings import Config
from minitransformer.training.optimizer import AdamW
from minitransformer.training.trainer import Callback, Trainer

LOOKED_AT = 200  # of a corpus's pairs, from the first on
PAIRS = 6
LONGEST = 16  # tokens; whatever is wrong with a model shows in short sentences, too
ROUNDING = 1e-5  # by which sums in another order may differ, as a share of the largest logit


class Patient(NamedTuple):
    """A model, and the sentences that it is examined with."""

    model: EncoderDecoder
    batch: Batch
    start_id: int
    config: Config


def few_pairs(encoded: EncodedSplit, count: int = PAIRS) -> list[EncodedPair]:
    """Short pairs of different lengths, no source twice; where all are long, their beginnings."""
    pairs = encoded[:LOOKED_AT]
    short = [pair for pair in pairs if max(map(len, pair)) <= LONGEST] or list(map(begun, pairs))
    distinct = {tuple(pair.source): pair for pair in reversed(short)}
    by_length = sorted(distinct.values(), key=lambda pair: max(map(len, pair)))
    if len(by_length) <= count:
        return by_length
    return [by_length[place * (len(by_length) - 1) // (count - 1)] for place in range(count)]


def begun(pair: EncodedPair) -> EncodedPair:
    return EncodedPair(pair.source[:LONGEST], [*pair.target[: LONGEST - 1], EOS_ID])


def drawn_pairs(source_size: int, target_size: int, count: int = PAIRS) -> list[EncodedPair]:
    """Pairs of words drawn by chance, for a run whose corpus is not at hand."""
    generator = torch.Generator().manual_seed(0)

    def words(length: int, size: int) -> list[int]:
        first = min(len(SPECIALS), size - 1)
        drawn: list[int] = torch.randint(first, size, (length,), generator=generator).tolist()
        return drawn

    lengths = range(2, 2 + count)
    return [
        EncodedPair(words(length, source_size), [*words(length, target_size), EOS_ID])
        for length in lengths
    ]


def padded_batch(pairs: list[EncodedPair], start_id: int, max_length: int) -> Batch:
    """The pairs as training reads them, with padding even where all are of one length."""
    batch = make_batch(pairs, start_id)
    longer = (min(2, max(0, max_length - ids.shape[1])) for ids in batch)
    sides = zip(batch, longer, strict=True)
    return Batch(*(functional.pad(ids, (0, more), value=PAD_ID) for ids, more in sides))


@contextmanager
def training(model: EncoderDecoder) -> Iterator[None]:
    """Dropout on for a while; afterwards the model's mode is what it was."""
    was_training = model.training
    model.train()
    try:
        yield
    finally:
        model.train(was_training)


def unpadded(row: Tensor) -> Tensor:
    """A row by itself, without its padding: [T] -> [1, T']."""
    return row[row != PAD_ID][None]


def rounding(logits: Tensor) -> float:
    """By how much numbers may differ that were summed in another order."""
    return ROUNDING * max(1.0, float(logits.abs().max()))


def worse(one: float, other: Tensor) -> float:
    """The larger of two differences; not-a-number is worse than any."""
    value = float(other)
    return one if value <= one or math.isnan(one) else value


def with_more_digits(patient: Patient) -> Patient:
    """A copy of the same model in float64."""
    model, batch = (
        copy.deepcopy(patient.model).cpu().double(),
        patient.batch.to(torch.device("cpu")),
    )
    return patient._replace(model=model, batch=batch)


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
    with eval_mode(model), torch.no_grad():
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
    with eval_mode(model), torch.no_grad():
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
    with eval_mode(model), torch.no_grad():
        # Without positions the encoder's states only change places, which attention cannot notice.
        logits, otherwise = (model(each, start) for each in (source, turned(source)))
        others = source % (len(model.encoder.embedding.weight) - 1) + 1
        noticed = float((model(others, start) - logits).abs().max())
    moved, least = float((logits - otherwise).abs().max()), 1e-12 * float(logits.abs().max())
    which = "whose inner words stand" if is_recurrent else "read"
    told = f"a source {which} backwards moves logits by {shown(moved)}"
    if settings.positional_encoding == "none" and not is_recurrent:
        return Finding(name, OK, f"{told} (model.positional_encoding is none)")
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
    with eval_mode(model), torch.no_grad(), record(model) as tensors:
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


TOKENS = 8  # at most so many are produced
CACHE = {
    "transformer": "a cached token must stand at its true place and see all keys before it",
    "recurrent": "the cache must carry the state of every layer on, row by row, from token to "
    "token",
}


def cached_as_uncached(patient: Patient) -> Finding:
    """Decoding from a cache gives the tokens and probabilities of decoding all at once."""
    model, batch, start_id, config = patient
    max_lengths = [min(TOKENS, config.model.max_length)] * len(batch.source)
    target = batch.target_input[:, :TOKENS]
    largest = 0.0
    with eval_mode(model), torch.no_grad():
        memory = model.encode(batch.source)
        logits = model.decode(target, memory)
        forced = logits.log_softmax(dim=-1)  # [B, T, V]
        cache = model.new_cache(memory)
        for place in range(target.shape[1]):
            cached = model.decode(target[:, place : place + 1], memory, cache)
            whole = model.decode(target[:, : place + 1], memory)
            for each in (cached, whole):
                gap = each[:, -1].log_softmax(dim=-1) - forced[:, place]
                largest = worse(largest, gap.abs().max())
        produced = greedy(model, batch.source, start_id=start_id, max_lengths=max_lengths)
        read = pad([[start_id, *(choice.id for choice in row[:-1])] for row in produced])
        once_more = model.decode(read.to(target), memory)
    others = other_choices(produced, once_more.log_softmax(dim=-1), rounding(once_more))
    count = sum(map(len, produced))
    return judged(
        "cached, uncached",
        others == 0 and largest <= rounding(logits),
        f"{count - others} of {count} tokens the same, log-probabilities differ by "
        f"{shown(largest)}",
        CACHE[config.model.kind],
    )


def other_choices(produced: list[list[TokenScore]], forced: Tensor, tolerance: float) -> int:
    """How many tokens a search took that are not the most probable ones, or not as probable."""
    forced = forced.clone()
    forced[..., [PAD_ID, BOS_ID]] = -torch.inf  # never labels, so never answers
    wrong = 0
    for row, choices in enumerate(produced):
        for place, choice in enumerate(choices):
            own = float(forced[row, place, choice.id])
            is_best = float(forced[row, place].max()) - own <= tolerance
            log_probability = float(torch.tensor(choice.probability).log())
            wrong += not (is_best and abs(log_probability - own) <= tolerance)
    return wrong


def same_twice(patient: Patient) -> Finding:
    """A model that was left in training mode translates a sentence the same way every time."""
    model, batch, start_id, config = patient
    dropout = max(dropout_rates(config.model).values())
    max_lengths = [min(TOKENS, config.model.max_length)] * len(batch.source)
    with torch.random.fork_rng(devices=[]), training(model):
        first, second = (
            greedy(model, batch.source, start_id=start_id, max_lengths=max_lengths)
            for _ in range(2)
        )
    same = sum(are_same(one, other) for one, other in zip(first, second, strict=True))
    return judged(
        "same twice",
        same == len(first),
        f"{same} of {len(first)} sentences come out the same again (dropout {dropout:g})",
        "dropout must be off when decoding: model.eval(), and back to model.train() afterwards",
    )


def are_same(some: list[TokenScore], others: list[TokenScore]) -> bool:
    """The same tokens, and as probable."""
    return [one.id for one in some] == [other.id for other in others] and all(
        abs(one.probability - other.probability) <= ROUNDING
        for one, other in zip(some, others, strict=True)
    )


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
    with eval_mode(model):
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
    with eval_mode(model), torch.no_grad():
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
        model=replace(
            config.model,
            dropout=0.0,
            self_attention_dropout=0.0,
            cross_attention_dropout=0.0,
            activation_dropout=0.0,
        ),  # fmt: skip,
        training=replace(config.training, label_smoothing=0.0, rdrop_alpha=0.0, weight_decay=0.0),
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


# Where several fail, the first says best what is wrong.
CHECKS = (
    decoder_input,
    finite_everywhere,
    attention_rows,
    no_look_ahead,
    no_neighbours,
    word_order,
    cached_as_uncached,
    same_twice,
)
SUMMED_OTHERWISE = (no_neighbours, cached_as_uncached)  # the same numbers, in another order


def new_patient(
    model: EncoderDecoder, pairs: list[EncodedPair], tokenizer: PairTokenizer, config: Config
) -> Patient:
    """A model with a batch of these pairs, where the model is."""
    batch = padded_batch(pairs, tokenizer.start_id, config.model.max_length)
    device = next(model.parameters()).device
    return Patient(model, batch.to(device), tokenizer.start_id, config)


def quick_checks(patient: Patient, *, is_fresh: bool) -> list[Finding]:
    """Everything that can be measured without training; leaves the model as it was."""
    findings = [check(patient) for check in CHECKS]
    for place, check in enumerate(CHECKS):
        if check in SUMMED_OTHERWISE and findings[place].verdict == FAILED:
            in_float64, kind = check(with_more_digits(patient)), patient.config.model.kind
            findings[place] = unless_rounded(findings[place], in_float64, kind)
    return [*findings, start_loss(patient)] if is_fresh else findings


def unless_rounded(finding: Finding, in_float64: Finding, kind: str) -> Finding:
    """A failure that more digits make go away is not a mistake in the model."""
    if in_float64.verdict == FAILED:
        return finding
    return Finding(
        finding.name,
        WARNING,
        f"{finding.measured}, in float32 alone",
        "scores or logits are so large that few digits are left: model.embedding_std, "
        f"model.scale_scores{', model.norm' * (kind == 'transformer')}?",
    )


class CheckModel(Callback):
    """Refuse to train a model that fails a check; warnings become notes of the run.

    Rank 0 checks the model; an error is raised on all ranks.
    """

    def on_start(self, trainer: Trainer) -> None:
        with trainer.ranks.propagate_errors():
            if trainer.ranks.is_first and not trainer.is_finished:
                self.check(trainer)

    def check(self, trainer: Trainer) -> None:
        pairs = few_pairs(trainer.encoded["train"])
        patient = new_patient(trainer.model, pairs, trainer.tokenizer, trainer.config)
        is_fresh = trainer.state.step == 0 and not trainer.config.training.init_from
        findings = quick_checks(patient, is_fresh=is_fresh)
        for finding in findings:
            if finding.verdict == FAILED:
                raise ModelError(f"the model fails a check; {finding.sentence()}")
        trainer.notes += [each.sentence() for each in findings if each.verdict == WARNING]
