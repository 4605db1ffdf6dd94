"""Checks of a model: causality, padding, word order, caching, and whether it can learn.

B batch, T target length, V vocabulary.
"""

import copy
import math
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from minitransformer.config import dropout_rates
from minitransformer.data.batching import Batch, make_batch, pad
from minitransformer.data.dataset import EncodedPair, EncodedSplit
from minitransformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, SPECIALS, UNK_ID, PairTokenizer
from minitransformer.doctor.report import FAILED, OK, WARNING, CheckResult, format_number
from minitransformer.errors import ModelError
from minitransformer.model.base import EncoderDecoder, build_model
from minitransformer.model.loss import TrainingLoss, cross_entropy
from minitransformer.model.trace import record
from minitransformer.search import TokenScore, eval_mode, greedy
from minitransformer.settings import Config
from minitransformer.training.optimizer import AdamW
from minitransformer.training.trainer import Callback, Trainer

NUM_PAIRS = 6
NUM_CANDIDATES = 200  # the first pairs of a corpus, from which these are chosen
MAX_TOKENS = 16  # of a sentence: a broken model fails on short ones, too
MAX_NEW_TOKENS = 8  # of a translation

RELATIVE_ROUNDING = 1e-5  # how much summing in another order may change the largest logit
# Logits of standard deviation s raise the initial loss by s²/2 above ln V; few labels add noise.
MAX_LOSS_DIFFERENCE = 1.5
OVERFITTED_LOSS, OVERFITTING_STEPS, OVERFITTING_WARMUP = 0.1, 300, 10

ADVICE = {  # the usual cause of a failure, by kind of model
    "causality": {
        "transformer": "the causal mask must set scores above the diagonal to -inf before the "
        "softmax",
        "recurrent": "the decoder must read from left to right, each state computed from the "
        "one before",
    },
    "padding": {
        "transformer": "padding must be masked in every attention: encoder self-attention, decoder "
        "self-attention and cross-attention",
        "recurrent": "padding must leave the encoder's state unchanged in both directions, and "
        "must be masked in the attention",
    },
    "word order": {
        "transformer": "positional encodings must be added to the embeddings, or rotate queries "
        "and keys",
        "recurrent": "each state of the encoder must be computed from the one before",
    },
    "ignored source": {
        "transformer": "the output does not depend on the source: are all embeddings equal, or "
        "weights zero?",
        "recurrent": "the output does not depend on the source: are all embeddings equal, weights "
        "zero, or is the decoder not initialized with the encoder's final state?",
    },
    "cache": {
        "transformer": "with a cache, each token needs its own position in the sentence and the "
        "keys of all earlier tokens",
        "recurrent": "the cache must carry the state of every layer and row from token to token",
    },
    "rounding": {
        "transformer": "scores or logits are too large for float32: check model.embedding_std, "
        "model.scale_scores, model.norm",
        "recurrent": "scores or logits are too large for float32: check model.embedding_std, "
        "model.scale_scores",
    },
}


class CheckContext(NamedTuple):
    """A model, and the batch that it is checked with."""

    model: EncoderDecoder
    batch: Batch
    start_id: int
    config: Config

    def advice(self, problem: str) -> str:
        return ADVICE[problem][self.config.model.kind]

    def in_float64(self) -> "CheckContext":
        """Return a copy on the CPU with the same weights in float64."""
        model = copy.deepcopy(self.model).cpu().double()
        return self._replace(model=model, batch=self.batch.to(torch.device("cpu")))

    def max_lengths(self) -> list[int]:
        return [min(MAX_NEW_TOKENS, self.config.model.max_length)] * len(self.batch.source)


class CheckModel(Callback):
    """Refuse to train a model that fails a check; warnings become notes of the run."""

    def on_start(self, trainer: Trainer) -> None:
        with trainer.ranks.propagate_errors():
            if trainer.is_finished or not trainer.ranks.is_first:
                return
            pairs = sample_pairs(trainer.encoded["train"])
            context = make_context(trainer.model, pairs, trainer.tokenizer, trainer.config)
            is_fresh = trainer.state.step == 0 and not trainer.config.training.init_from
            results = quick_checks(context, is_fresh=is_fresh)
            for result in results:
                if result.status == FAILED:
                    raise ModelError(f"the model fails a check; {result.sentence()}")
            trainer.notes += [each.sentence() for each in results if each.status == WARNING]


def quick_checks(context: CheckContext, *, is_fresh: bool) -> list[CheckResult]:
    """Run all checks that need no training; the model and the random state stay unchanged."""
    results = []
    for check in (  # if several fail, the first is closest to the cause
        check_decoder_input,
        check_finite,
        check_attention,
        check_causality,
        check_padding,
        check_word_order,
        check_cache,
        check_determinism,
    ):
        result = check(context)
        # These two compare sums that are computed in another order.
        if result.status == FAILED and check in (check_padding, check_cache):
            in_float64 = check(context.in_float64())
            if in_float64.status != FAILED:
                measured = f"{result.measured}, in float32 only"
                advice = context.advice("rounding")
                result = CheckResult(result.name, WARNING, measured, advice)
        results.append(result)
    return [*results, check_initial_loss(context)] if is_fresh else results


def make_context(
    model: EncoderDecoder, pairs: list[EncodedPair], tokenizer: PairTokenizer, config: Config
) -> CheckContext:
    """Return a context with a batch of these pairs, on the model's device."""
    batch = padded_batch(pairs, tokenizer.start_id, config.model.max_length)
    device = next(model.parameters()).device
    return CheckContext(model, batch.to(device), tokenizer.start_id, config)


def sample_pairs(encoded: EncodedSplit) -> list[EncodedPair]:
    """Return short pairs of different lengths and sources, truncated if all pairs are long."""
    pairs = encoded[:NUM_CANDIDATES]
    short = [pair for pair in pairs if max(map(len, pair)) <= MAX_TOKENS] or [
        EncodedPair(source[:MAX_TOKENS], [*target[: MAX_TOKENS - 1], EOS_ID])
        for source, target in pairs
    ]
    distinct = {tuple(pair.source): pair for pair in reversed(short)}
    by_length = sorted(distinct.values(), key=lambda pair: max(map(len, pair)))
    if len(by_length) <= NUM_PAIRS:
        return by_length
    last = len(by_length) - 1
    return [by_length[number * last // (NUM_PAIRS - 1)] for number in range(NUM_PAIRS)]


def random_pairs(source_size: int, target_size: int) -> list[EncodedPair]:
    """Return pairs of random tokens, for a run whose corpus is not available."""
    generator = torch.Generator().manual_seed(0)

    def tokens(length: int, vocab_size: int) -> list[int]:
        first = min(len(SPECIALS), vocab_size - 1)
        ids: list[int] = torch.randint(first, vocab_size, (length,), generator=generator).tolist()
        return ids

    return [
        EncodedPair(tokens(length, source_size), [*tokens(length, target_size), EOS_ID])
        for length in range(2, 2 + NUM_PAIRS)
    ]


def padded_batch(pairs: list[EncodedPair], start_id: int, max_length: int) -> Batch:
    """Return the pairs as a batch with some padding, even if all have the same length."""

    def with_padding(ids: Tensor) -> Tensor:
        more = min(2, max(0, max_length - ids.shape[1]))
        return functional.pad(ids, (0, more), value=PAD_ID)

    return Batch(*map(with_padding, make_batch(pairs, start_id)))


def without_padding(row: Int[Tensor, " length"]) -> Int[Tensor, "1 tokens"]:
    """Return a row as a batch of its own."""
    return row[row != PAD_ID][None]


def rounding(logits: Tensor) -> float:
    """Return how much log-probabilities may differ that are summed in another order."""
    return RELATIVE_ROUNDING * max(1.0, float(logits.abs().max()))


def check_decoder_input(context: CheckContext) -> CheckResult:
    """Check that the decoder's input is the start token and all labels but the last."""
    _, target_input, labels = context.batch
    is_label = labels != PAD_ID  # [B, T]
    start = labels.new_full((len(labels), 1), context.start_id)
    expected = torch.cat((start, labels[:, :-1]), dim=1).masked_fill(~is_label, PAD_ID)
    is_shown = (target_input == labels) & (expected != labels)
    num_right, num_shown, count = (
        int((is_label & mask).sum()) for mask in (target_input == expected, is_shown, is_label)
    )
    return CheckResult(
        "decoder input",
        OK if torch.equal(target_input, expected) else FAILED,
        f"{num_right} of {count} tokens are the previous label"
        + f", {num_shown} are the label itself" * (num_shown > 0),
        "the target must be shifted: the start token first, then all labels but the last",
    )


def check_finite(context: CheckContext) -> CheckResult:
    """Check that loss and gradients are finite, also for one-token sentences and unknown words."""
    model, batch, start_id, config = context
    name = "finite values"
    for parameter_name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return CheckResult(
                name, FAILED, f"{parameter_name} has NaN or infinite values",
                "training diverged, or the file of weights is damaged",
            )  # fmt: skip

    def ids(rows: list[list[int]]) -> Tensor:
        return batch.source.new_tensor(rows)[:, : config.model.max_length]

    short = Batch(
        source=ids([[UNK_ID, PAD_ID], [UNK_ID, UNK_ID], [EOS_ID, PAD_ID]]),
        target_input=ids([[start_id, PAD_ID], [start_id, UNK_ID], [start_id, PAD_ID]]),
        target_output=ids([[EOS_ID, PAD_ID], [UNK_ID, EOS_ID], [EOS_ID, PAD_ID]]),
    )
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    training_loss = TrainingLoss(model, config.training)
    problems = []
    with eval_mode(model):
        for kind, each in (("one token or unknown words", short), ("the corpus", batch)):
            result = training_loss(*each)
            if not result.loss.isfinite():
                loss = format_number(float(result.loss))
                problems.append(f"the loss of sentences of {kind} is {loss}")
            # Not backward(): a training that follows must not find gradients.
            gradients = torch.autograd.grad(
                result.objective, list(trained.values()), allow_unused=True
            )
            problems += [
                f"the gradient of {parameter_name} for sentences of {kind} has NaN or Inf"
                for parameter_name, gradient in zip(trained, gradients, strict=True)
                if gradient is not None and not gradient.isfinite().all()
            ]
    return CheckResult(
        name,
        FAILED if problems else OK,
        problems[0]
        if problems
        else "loss and gradients, also for one-token sentences and unknown words",
        "weights or embeddings are so large that their products overflow"
        if config.model.attention == "none"
        else "a softmax over -inf alone gives NaN: every query needs a key, and <UNK> is not "
        "padding",
    )


def check_attention(context: CheckContext) -> CheckResult:
    """Check that each query's weights sum to 1 over its keys and are 0 on padding."""
    model, batch, _, config = context
    name = "attention weights"
    with eval_mode(model), torch.no_grad(), record(model) as tensors:
        model(batch.source, batch.target_input)
    weights = {path: each for path, each in tensors.items() if path.endswith(".weights")}
    if not weights:
        status = OK if config.model.attention == "none" else FAILED
        return CheckResult(
            name, status, "the model has no attention", "model.attention asks for it"
        )
    errors, on_padding = [], []
    for path, each in weights.items():
        is_decoder_self_attention = path.startswith("decoder") and "self_attention" in path
        keys = batch.target_input if is_decoder_self_attention else batch.source
        errors.append((each.sum(dim=-1) - 1).abs().max())
        on_padding.append(each.masked_fill((keys != PAD_ID)[:, None, None, :], 0).abs().max())
    error, padding_weight = (float(torch.stack(each).max()) for each in (errors, on_padding))
    is_normalized = error <= RELATIVE_ROUNDING
    return CheckResult(
        name,
        OK if is_normalized and padding_weight == 0 else FAILED,
        f"each row sums to 1 within {format_number(error)}, "
        f"the largest weight on padding is {format_number(padding_weight)}",
        context.advice("padding")
        if is_normalized
        else "the softmax must be over the keys, which are the last dimension of the scores",
    )


def check_causality(context: CheckContext) -> CheckResult:
    """Check that logits do not depend on later target tokens."""
    model, batch = context.model, context.batch
    name = "causality"
    lengths = (batch.target_input != PAD_ID).sum(dim=1)
    row = int(lengths.argmax())
    length = int(lengths[row])
    if length < 2:
        return CheckResult(name, OK, "all targets have one token, which has no later ones")
    first_changed = torch.arange(1, length, device=lengths.device)[:, None]
    positions = torch.arange(length, device=lengths.device)
    is_earlier = positions < first_changed  # [T - 1, T]
    target = batch.target_input[row, :length].expand(length - 1, -1)
    others = target % (model.head.out_features - 1) + 1  # neither the same token nor padding
    changed = torch.where(is_earlier, target, others)
    with eval_mode(model), torch.no_grad():
        memory = model.encode(batch.source[row].expand(length - 1, -1))
        logits = model.decode(target, memory)
        difference = (model.decode(changed, memory) - logits).abs().amax(dim=2)  # [T - 1, T]
    earlier, later = (float(difference[mask].max()) for mask in (is_earlier, ~is_earlier))
    if later == 0:
        return CheckResult(
            name, WARNING, "replacing target tokens changes no logits, not even later ones",
            "the decoder ignores its input: are all embeddings equal, or weights zero?",
        )  # fmt: skip
    return CheckResult(
        name,
        OK if earlier <= 1e-6 * float(logits.abs().max()) else FAILED,
        f"replacing tokens changes earlier logits by {format_number(earlier)} "
        f"(later ones by {format_number(later)})",
        context.advice("causality"),
    )


def check_padding(context: CheckContext) -> CheckResult:
    """Check that padding and the other rows of a batch do not change a sentence's logits."""
    model, batch = context.model, context.batch
    differences = []
    with eval_mode(model), torch.no_grad():
        logits = model(batch.source, batch.target_input)
        in_batch = logits.log_softmax(dim=-1)  # [B, T, V]
        for row, (source, target) in enumerate(zip(batch.source, batch.target_input, strict=True)):
            alone = model(without_padding(source), without_padding(target)).log_softmax(dim=-1)[0]
            differences.append((in_batch[row, : len(alone)] - alone).abs().max())
    largest = float(torch.stack(differences).max())
    return CheckResult(
        "padding",
        OK if largest <= rounding(logits) else FAILED,
        f"log-probabilities alone and in a padded batch differ by {format_number(largest)}",
        context.advice("padding"),
    )


def check_word_order(context: CheckContext) -> CheckResult:
    """Check that reversing a source changes logits, unless the model is to have no positions."""
    settings = context.config.model
    is_recurrent = settings.kind == "recurrent"
    name = "word order"

    def reverse(source: Int[Tensor, "batch source"]) -> Int[Tensor, "batch source"]:
        if not is_recurrent:
            return source.flip(1)
        # The last token always matters to a recurrent encoder: it and the first one stay.
        return torch.cat((source[:, :1], source[:, 1:-1].flip(1), source[:, 1:][:, -1:]), dim=1)

    rows = [without_padding(row) for row in context.batch.source]
    source = max(rows, key=lambda row: int((row != reverse(row)).sum())).cpu()
    if torch.equal(source, reverse(source)):
        reason = "no sentence has two different inner tokens"
        return CheckResult(name, OK, reason if is_recurrent else "all sentences are palindromes")
    # In float64: the positions of a new model may change digits that float32 does not have.
    model = context.in_float64().model
    if is_recurrent:  # whose states must depend on the order without positional encodings
        model.encoder.embedding.positions = None
    start = source.new_tensor([[context.start_id]])
    others = source % (len(model.encoder.embedding.weight) - 1) + 1  # neither the same nor padding
    with eval_mode(model), torch.no_grad():
        logits, of_reversed, of_others = (
            model(each, start) for each in (source, reverse(source), others)
        )
    changed, replaced = (float((each - logits).abs().max()) for each in (of_reversed, of_others))
    smallest = 1e-12 * float(logits.abs().max())
    what = "the inner tokens of a source" if is_recurrent else "a source"
    measured = f"reversing {what} changes logits by {format_number(changed)}"
    if settings.positional_encoding == "none" and not is_recurrent:
        return CheckResult(name, OK, f"{measured} (model.positional_encoding is none)")
    if replaced <= smallest:
        measured += f", replacing all tokens by {format_number(replaced)}"
        return CheckResult(name, WARNING, measured, context.advice("ignored source"))
    status = OK if changed > smallest else FAILED
    return CheckResult(name, status, measured, context.advice("word order"))


def check_cache(context: CheckContext) -> CheckResult:
    """Check that decoding with a cache gives the tokens and probabilities of decoding without."""
    model, batch, start_id, _ = context
    target = batch.target_input[:, :MAX_NEW_TOKENS]
    differences = []
    with eval_mode(model), torch.no_grad():
        memory = model.encode(batch.source)
        logits = model.decode(target, memory)
        log_probabilities = logits.log_softmax(dim=-1)  # [B, T, V]
        cache = model.new_cache(memory)
        for position in range(target.shape[1]):
            cached = model.decode(target[:, position : position + 1], memory, cache)
            uncached = model.decode(target[:, : position + 1], memory)
            differences += [
                (each[:, -1].log_softmax(dim=-1) - log_probabilities[:, position]).abs().max()
                for each in (cached, uncached)
            ]
        produced = greedy(model, batch.source, start_id=start_id, max_lengths=context.max_lengths())
        inputs = pad([[start_id, *(token.id for token in row[:-1])] for row in produced])
        logits_of_produced = model.decode(inputs.to(target), memory)
    largest = float(torch.stack(differences).max())
    count = sum(map(len, produced))
    num_right = num_greedy_tokens(produced, logits_of_produced)
    return CheckResult(
        "cached decoding",
        OK if num_right == count and largest <= rounding(logits) else FAILED,
        f"{num_right} of {count} tokens are the same, log-probabilities differ by "
        f"{format_number(largest)}",
        context.advice("cache"),
    )


def num_greedy_tokens(
    produced: list[list[TokenScore]], logits: Float[Tensor, "batch target vocab"]
) -> int:
    """Return how many tokens of a search have the highest logit, and its probability."""
    tolerance = rounding(logits)
    log_probabilities = logits.log_softmax(dim=-1)
    log_probabilities[..., [PAD_ID, BOS_ID]] = -torch.inf  # which are never produced
    count = 0
    for row, tokens in enumerate(produced):
        for position, token in enumerate(tokens):
            expected = log_probabilities[row, position]
            own = float(expected[token.id])
            is_best = float(expected.max()) - own <= tolerance
            found = math.log(token.probability) if token.probability else -math.inf
            count += is_best and abs(found - own) <= tolerance
    return count


def check_determinism(context: CheckContext) -> CheckResult:
    """Check that a model in training mode translates a sentence the same way twice."""
    model, batch, start_id, config = context
    was_training = model.training
    with torch.random.fork_rng(devices=[]):
        model.train()
        try:
            first, second = (
                greedy(model, batch.source, start_id=start_id, max_lengths=context.max_lengths())
                for _ in range(2)
            )
        finally:
            model.train(was_training)
    num_same = sum(
        [token.id for token in row] == [token.id for token in other]
        and all(
            abs(one.probability - two.probability) <= RELATIVE_ROUNDING
            for one, two in zip(row, other, strict=True)
        )
        for row, other in zip(first, second, strict=True)
    )
    dropout = max(dropout_rates(config.model).values())
    return CheckResult(
        "determinism",
        OK if num_same == len(first) else FAILED,
        f"{num_same} of {len(first)} translations are the same twice (dropout {dropout:g})",
        "dropout must be off while decoding: model.eval() before it, model.train() after it",
    )


def check_initial_loss(context: CheckContext) -> CheckResult:
    """Check that a new model predicts all tokens about equally: loss near ln V."""
    model, (source, target_input, labels) = context.model, context.batch
    with eval_mode(model), torch.no_grad():
        logits = model(source, target_input)  # [B, T, V]
    # With tied weights, a new model predicts its input token: that token is left out.
    is_tied = model.head.weight is model.decoder.embedding.weight
    if is_tied:
        logits = logits.scatter(2, target_input[..., None], -torch.inf)
        labels = labels.masked_fill(labels == target_input, PAD_ID)
    count, vocab_size = int((labels != PAD_ID).sum()), model.head.out_features
    loss = float(cross_entropy(logits, labels, ignore_index=PAD_ID)) / count
    uniform = math.log(vocab_size)
    return CheckResult(
        "initial loss",
        OK if abs(loss - uniform) <= MAX_LOSS_DIFFERENCE else WARNING,
        f"{loss:.2f}, ln {vocab_size:,} = {uniform:.2f}" + ", without the input token" * is_tied,
        "the initial logits are too large: check model.embedding_std and model.scale_embeddings"
        if loss > uniform
        else "an untrained model predicts the labels: does the decoder read them?",
    )


def check_overfitting(
    pairs: list[EncodedPair], tokenizer: PairTokenizer, config: Config
) -> CheckResult:
    """Check that a new model can overfit one batch; a model that cannot will learn nothing."""
    name = "overfit one batch"
    batch = padded_batch(pairs, tokenizer.start_id, config.model.max_length)
    config = replace(  # without regularization, which prevents overfitting
        config,
        model=replace(
            config.model, dropout=0.0, self_attention_dropout=0.0, cross_attention_dropout=0.0,
            activation_dropout=0.0,
        ),
        training=replace(config.training, label_smoothing=0.0, rdrop_alpha=0.0, weight_decay=0.0),
    )  # fmt: skip
    losses: list[float] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        model = build_model(config.model, len(tokenizer.source), len(tokenizer.target), PAD_ID)
        training_loss = TrainingLoss(model.train(), config.training)
        optimizer = AdamW(model, config.training)
        for step in range(1, OVERFITTING_STEPS + 1):
            result = training_loss(*batch)
            (result.objective / batch.num_target_tokens).backward()
            losses.append(float(result.loss) / batch.num_target_tokens)
            missing = [each for each, weight in optimizer.trained.items() if weight.grad is None]
            if missing:
                count = f"{len(missing)} of {len(optimizer.trained)} parameters"
                return CheckResult(
                    name, FAILED, f"{count} get no gradient, the first is {missing[0]}",
                    "the computation of the loss is detached from them: detach() or no_grad()?",
                )  # fmt: skip
            if losses[-1] < OVERFITTED_LOSS or not math.isfinite(losses[-1]):
                break
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            warmup = min(1.0, step / OVERFITTING_WARMUP)
            optimizer.step(config.training.learning_rate * warmup)
    return CheckResult(
        name,
        OK if losses[-1] < OVERFITTED_LOSS else FAILED,
        f"{describe_count(pairs)}: loss {losses[0]:.2f} → {format_number(losses[-1])} in "
        f"{len(losses)} steps",
        "training.learning_rate is far too high or too low, or the model too small (model.d_model)",
    )


def describe_count(pairs: list[EncodedPair]) -> str:
    return f"{len(pairs)} pair{'s' * (len(pairs) != 1)}"
