"""Train other projects' models, from their own packages, at the same sizes on the same batches.

All use ReLU, fused Adam, and dropout 0.1 where their own defaults or guides have dropout. Otherwise
they keep their own defaults: torch.nn.Transformer and JoeyNMT also apply dropout inside the blocks;
JoeyNMT smooths labels; the first does not tie its embeddings.
B batch, T target, V vocabulary.
"""

import importlib
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.torch_model import Embedding, TorchModel
from benchmarks.workload import MAX_LENGTH, VOCAB_SIZE, Size
from minitransformer.data.batching import Batch
from minitransformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, SPECIALS, UNK_ID

DROPOUT = 0.1
LABEL_SMOOTHING = 0.1
LEARNING_RATE = 5e-4
MAX_POSITIONS = MAX_LENGTH + 2  # with <BOS> and <EOS>


class PeerTrainer:
    """A model with its optimizer and its loss function."""

    def __init__(self, name: str, model: nn.Module, loss: Callable[[Batch], Tensor]) -> None:
        self.name = name
        self.model = model.train()
        self.loss = loss
        self.optimizer = torch.optim.Adam(
            model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-9, fused=True
        )

    def step(self, batch: Batch) -> None:
        """Train on a batch."""
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(batch).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def tutorial_model(size: Size) -> TorchModel:
    """Return the model of PyTorch's tutorial: post-norm, nothing tied, Xavier initialisation."""
    source, target = (
        Embedding(VOCAB_SIZE, size.d_model, dropout=DROPOUT, max_length=MAX_POSITIONS)
        for _ in range(2)
    )
    transformer = nn.Transformer(
        size.d_model, size.heads, size.layers, size.layers, size.d_ff, DROPOUT, batch_first=True
    )
    model = TorchModel(source, target, transformer, nn.Linear(size.d_model, VOCAB_SIZE))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    return model


def tutorial_trainer(size: Size) -> PeerTrainer:
    """Return a trainer of the tutorial's model, with cross-entropy on padded logits."""
    model = tutorial_model(size)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD_ID)

    def loss(batch: Batch) -> Tensor:
        logits = model(batch.source, batch.target_input)  # [B, T, V]
        return criterion(logits.flatten(0, 1), batch.target_output.flatten())

    return PeerTrainer("torch.nn.Transformer", model, loss)


def marian_model(size: Size) -> Any:
    """Return a MarianMTModel with random weights."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=VOCAB_SIZE, d_model=size.d_model, max_position_embeddings=MAX_POSITIONS,
        encoder_layers=size.layers, decoder_layers=size.layers,
        encoder_ffn_dim=size.d_ff, decoder_ffn_dim=size.d_ff,
        encoder_attention_heads=size.heads, decoder_attention_heads=size.heads,
        activation_function="relu", dropout=DROPOUT, attn_implementation="sdpa",
        pad_token_id=PAD_ID, eos_token_id=EOS_ID, decoder_start_token_id=BOS_ID,
        forced_eos_token_id=None,
    )  # fmt: skip
    return MarianMTModel(config)


def marian_trainer(size: Size) -> PeerTrainer:
    """Return a trainer of MarianMT, with the loss that the model returns."""
    model = marian_model(size)

    def loss(batch: Batch) -> Tensor:
        output = model(
            input_ids=batch.source,
            attention_mask=batch.source != PAD_ID,
            decoder_input_ids=batch.target_input,
            labels=batch.target_output.masked_fill(batch.target_output == PAD_ID, -100),
            use_cache=False,
        )
        return output.loss

    return PeerTrainer("Hugging Face MarianMT", model, loss)


def joey_model(size: Size) -> Any:
    """Return a JoeyNMT model with random weights."""
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    logging.getLogger("joeynmt.model").setLevel(logging.WARNING)
    specials = SimpleNamespace(
        unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None,
        unk_id=0, pad_id=1, bos_id=BOS_ID, eos_id=EOS_ID, lang_tags=[],
    )  # fmt: skip
    words = [str(number) for number in range(len(SPECIALS), VOCAB_SIZE)]
    vocabulary = Vocabulary(words, specials)
    # JoeyNMT accepts no other order of these two when it builds a vocabulary.
    vocabulary.pad_index, vocabulary.unk_index = PAD_ID, UNK_ID
    side = {
        "type": "transformer",
        "num_layers": size.layers,
        "num_heads": size.heads,
        "hidden_size": size.d_model,
        "ff_size": size.d_ff,
        "dropout": DROPOUT,
        "embeddings": {"embedding_dim": size.d_model, "scale": True, "dropout": DROPOUT},
    }
    config = {"tied_embeddings": True, "tied_softmax": True, "encoder": side, "decoder": side}
    model = build_model(config, vocabulary, vocabulary)
    model.loss_function = ("crossentropy", LABEL_SMOOTHING)
    return model


def joey_trainer(size: Size) -> PeerTrainer:
    """Return a trainer of JoeyNMT, with its own loss per target token."""
    model = joey_model(size)

    def loss(batch: Batch) -> Tensor:
        is_source, is_target = batch.source != PAD_ID, batch.target_output != PAD_ID
        summed, *_ = model(
            return_type="loss",
            src=batch.source,
            src_mask=is_source[:, None],
            src_length=is_source.sum(dim=1),
            trg_input=batch.target_input,
            trg=batch.target_output,
            trg_mask=is_target[:, None],
        )
        return summed / batch.num_target_tokens

    return PeerTrainer("JoeyNMT", model, loss)


def x_transformers_trainer(size: Size) -> PeerTrainer:
    """Return a trainer of an XTransformer, with cross-entropy on its logits."""
    from x_transformers import XTransformer

    side = {
        "num_tokens": VOCAB_SIZE,
        "max_seq_len": MAX_POSITIONS,
        "depth": size.layers,
        "heads": size.heads,
        "attn_dim_head": size.d_model // size.heads,
        "ff_mult": size.d_ff / size.d_model,
        "ff_custom_activation": nn.ReLU(),
        "emb_dropout": DROPOUT,
    }
    sides = {f"{prefix}_{key}": value for prefix in ("enc", "dec") for key, value in side.items()}
    model = XTransformer(dim=size.d_model, tie_token_emb=True, **sides)

    def loss(batch: Batch) -> Tensor:
        # Its own loss, on transposed logits and one more position, takes 1.6 times as long a step.
        is_source = batch.source != PAD_ID
        memory = model.encoder(batch.source, mask=is_source, return_embeddings=True)
        logits = model.decoder.net(batch.target_input, context=memory, context_mask=is_source)
        return functional.cross_entropy(
            logits.flatten(0, 1), batch.target_output.flatten(), ignore_index=PAD_ID
        )

    return PeerTrainer("x-transformers", model, loss)


class Peer(NamedTuple):
    """A function that builds a trainer, and the modules that it imports."""

    build: Callable[[Size], PeerTrainer]
    modules: tuple[str, ...]


PEERS = {
    "torch.nn.Transformer": Peer(tutorial_trainer, ()),
    "Hugging Face MarianMT": Peer(marian_trainer, ("transformers",)),
    "JoeyNMT": Peer(joey_trainer, ("joeynmt.model", "joeynmt.search")),
    "x-transformers": Peer(x_transformers_trainer, ("x_transformers",)),
}


def import_error(modules: tuple[str, ...]) -> str:
    """Return the message of the first failing import, or "" if all modules can be imported."""
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError as error:
        return str(error)
    return ""


def installed_peers() -> tuple[dict[str, Callable[[Size], PeerTrainer]], dict[str, str]]:
    """Return the peers that can be built, and the errors of those that cannot."""
    errors = {name: import_error(peer.modules) for name, peer in PEERS.items()}
    usable = {name: peer.build for name, peer in PEERS.items() if not errors[name]}
    return usable, {name: error for name, error in errors.items() if error}
