"""Train torch.nn.Transformer with the sizes and the training settings of a config.

Dimensions, norm, activation, tying and dropout rates are the config's, and so are batches,
learning-rate schedule, label smoothing, optimizer and clipping. Two things differ: the initial
weights are torch's, except for embeddings of N(0, 1/√D), without which tied ones do not train; and
the search recomputes the whole prefix for each token.
B batch, S source, T target, N labels, V vocabulary, D width.
"""

import time
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.torch_model import Embedding, TorchModel
from minitransformer.checkpoint import copy_into, model_tensors
from minitransformer.data.batching import Batch, BatchStream, fold_in, pad
from minitransformer.data.dataset import Dataset, EncodedPair
from minitransformer.data.tokenizer import EOS_ID, PAD_ID, PairTokenizer
from minitransformer.errors import ConfigError, DataError
from minitransformer.evaluation import batches_by_length
from minitransformer.run import RunFolder, TrainerState, regular_checkpoints
from minitransformer.search import top_tokens
from minitransformer.settings import Config
from minitransformer.training.optimizer import AdamW, learning_rate


def build(config: Config, tokenizer: PairTokenizer) -> TorchModel:
    """Return a freshly initialised model."""
    shape = config.model
    require_torch_support(config)
    with warnings.catch_warnings():  # pre-norm cannot use nested tensors
        warnings.filterwarnings("ignore", message="enable_nested_tensor is True")
        transformer = nn.Transformer(
            d_model=shape.d_model, nhead=shape.num_heads, dim_feedforward=shape.d_ff,
            num_encoder_layers=shape.num_encoder_layers,
            num_decoder_layers=shape.num_decoder_layers, dropout=shape.dropout,
            activation=shape.activation, norm_first=shape.norm == "pre", bias=shape.bias,
            batch_first=True,
        )  # fmt: skip
    # nn.Transformer has one rate for all dropouts; those inside the blocks have their own here.
    for layer in (*transformer.encoder.layers, *transformer.decoder.layers):
        layer.dropout.p = shape.activation_dropout
        layer.self_attn.dropout = shape.self_attention_dropout
        if isinstance(layer, nn.TransformerDecoderLayer):
            layer.multihead_attn.dropout = shape.cross_attention_dropout
    source, target = (
        Embedding(len(side), shape.d_model, dropout=shape.dropout, max_length=shape.max_length)
        for side in (tokenizer.source, tokenizer.target)
    )
    for embedding in (source, target):
        nn.init.normal_(embedding.tokens.weight, std=shape.d_model**-0.5)
    head = nn.Linear(shape.d_model, len(tokenizer.target), bias=shape.head_bias)
    if shape.tie_embeddings in ("target", "all"):
        head.weight = target.tokens.weight
    if shape.tie_embeddings == "all":
        source.tokens.weight = target.tokens.weight
    return TorchModel(source, target, transformer, head)


def require_torch_support(config: Config) -> None:
    """Raise ConfigError for settings that torch.nn.Transformer or this training do not support."""
    shape, training = config.model, config.training
    requirements = {
        "model.kind is transformer": shape.kind == "transformer",
        "model.norm is pre or post": shape.norm != "none",
        "model.d_ff is not 0": shape.d_ff > 0,
        "model.positional_encoding is sinusoidal": shape.positional_encoding == "sinusoidal",
        "model.output_projection is true": shape.output_projection,
        "model.scale_scores is true": shape.scale_scores,
        "model.scale_embeddings is true": shape.scale_embeddings,
        "training.rdrop_alpha is 0": training.rdrop_alpha == 0,
        "training.precision is float32": training.precision == "float32",
        "training.patience is 0": training.patience == 0,
        "training.init_from and trainable are empty": not (
            training.init_from or training.trainable
        ),
    }
    if unmet := [name for name, is_met in requirements.items() if not is_met]:
        raise ConfigError(f"torch.nn.Transformer can only be compared if {'; '.join(unmet)}")


def summed_loss(model: TorchModel, batch: Batch, label_smoothing: float) -> Tensor:
    """Return the cross-entropy summed over the labels of a batch."""
    is_label = batch.target_output != PAD_ID  # [B, T]
    memory = model.encode(batch.source)  # [B, S, D]
    states = model.decode(batch.target_input, memory, batch.source)[is_label]  # [N, D]
    labels = batch.target_output[is_label]  # [N]
    return functional.cross_entropy(
        model.generator(states), labels, label_smoothing=label_smoothing, reduction="sum"
    )


class BaselineTrainer:
    """Trains the baseline in a run folder, and resumes an interrupted run."""

    def __init__(self, config: Config, run: RunFolder, dataset: Dataset) -> None:
        self.config, self.settings = config, config.training
        self.run_folder = run
        self.state = TrainerState(data_fingerprint=dataset.fingerprint)
        torch.manual_seed(self.settings.seed)
        self.model = build(config, dataset.tokenizer)
        self.optimizer = AdamW(self.model, self.settings)
        self.stream = BatchStream(
            dataset.encoded["train"],
            batch_tokens=self.settings.batch_tokens,
            seed=self.settings.seed,
            start_id=dataset.tokenizer.start_id,
        )
        if not run.has_started:
            run.create(config, dataset.tokenizer)
            return
        checkpoint = run.load_newest([], for_training=True)
        if checkpoint.state.data_fingerprint != self.state.data_fingerprint:
            raise DataError(
                f"{run.path} was begun with other sentence pairs; choose another --runs"
            )
        self.state = checkpoint.state
        copy_into(model_tensors(self.model), checkpoint.model, str(checkpoint.path))
        self.optimizer.load(checkpoint.optimizer)
        self.stream.move_to(epoch=self.state.epoch, index=self.state.batch_index)

    def fit(self) -> None:
        """Train to the last step."""
        while self.state.step < self.settings.steps:
            start_time = time.perf_counter()
            self.step()
            self.state.seconds += time.perf_counter() - start_time
            if regular_checkpoints([self.state.step], self.config):
                self.save()
        self.model.eval()

    def step(self) -> None:
        """Take one optimizer step."""
        settings, number = self.settings, self.state.step + 1
        self.model.train()
        batches = [self.stream.next() for _ in range(settings.gradient_accumulation)]
        tokens = sum(batch.num_target_tokens for batch in batches)
        # A seed for each step, so that resuming needs no saved random state.
        torch.manual_seed(fold_in(settings.seed, number))
        for batch in batches:
            (summed_loss(self.model, batch, settings.label_smoothing) / tokens).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip_norm or float("inf"))
        self.optimizer.step(learning_rate(number, settings))
        self.state.step = number
        self.state.epoch, self.state.batch_index = self.stream.epoch, self.stream.index

    def save(self) -> None:
        """Save a checkpoint."""
        self.run_folder.save_checkpoint(
            self.state, model_tensors(self.model), self.optimizer.state, self.config
        )


def translate(
    model: TorchModel, sources: list[list[int]], start_id: int, max_length: int, batch_size: int
) -> list[list[int]]:
    """Return greedy translations without <EOS>, from batches of similar length."""
    translations: dict[int, list[int]] = {}
    for indices in batches_by_length([EncodedPair(ids, []) for ids in sources], batch_size):
        rows = greedy(model, pad([sources[index] for index in indices]), start_id, max_length)
        translations.update(zip(indices, rows, strict=True))
    return [translations[index] for index in range(len(sources))]


@torch.inference_mode()
def greedy(model: TorchModel, source: Tensor, start_id: int, max_length: int) -> list[list[int]]:
    """Decode greedily, without a cache, until each row has an <EOS> or the maximum length."""
    memory = model.encode(source)  # [B, S, D]
    target = torch.full((len(source), 1), start_id)  # [B, T]
    is_done = torch.zeros(len(source), dtype=torch.bool)
    while target.shape[1] <= max_length and not is_done.all():
        logits = model.generator(model.decode(target, memory, source)[:, -1])  # [B, V]
        ids = top_tokens(logits, 1)[1][:, 0].masked_fill(is_done, PAD_ID)
        is_done |= ids == EOS_ID
        target = torch.cat([target, ids[:, None]], dim=1)
    return [[id for id in row if id not in (EOS_ID, PAD_ID)] for row in target[:, 1:].tolist()]
