"""How each classic mistake shows in a trained model, as one number of its own."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from minitransformer.data.batching import make_batch
from minitransformer.decoding import Translator
from minitransformer.judging import Evaluation
from minitransformer.model.trace import record
from minitransformer.search import evaluating
from minitransformer.training.trainer import Trainer

SENTENCES = 100  # held-out ones that are looked at


class Trained(NamedTuple):
    """A model after its training, and its scores before the first step and after the last."""

    trainer: Trainer
    before: dict[str, Evaluation]
    after: dict[str, Evaluation]

    @property
    def sources(self) -> list[str]:
        return [pair.source for pair in self.trainer.texts["valid"][:SENTENCES]]

    def translations(self, sources: list[str], batch_size: int = SENTENCES) -> list[str]:
        translator = Translator(self.trainer.model, self.trainer.tokenizer, self.trainer.config)
        return [each.text for each in translator.translate(sources, batch_size=batch_size)]

    def attention(self, where: str) -> Tensor:
        """The weights of the first layer's attention there, over held-out pairs."""
        pairs = self.trainer.encoded["valid"][:SENTENCES]
        batch = make_batch(pairs, self.trainer.tokenizer.start_id)
        with evaluating(self.trainer.model), torch.no_grad(), record(self.trainer.model) as tensors:
            self.trainer.model(batch.source, batch.target_input)
        return tensors[f"{where}.weights"]


class Symptom(NamedTuple):
    label: str
    measured: Callable[[Trained], str]


def share_on_the_next(trained: Trained) -> str:
    """How much the first place looks at what comes after it."""
    weights = trained.attention("decoder.layers.0.self_attention")  # [B, H, T, T]
    return f"{float(weights[:, :, 0, 1:].sum(dim=-1).mean()):.0%}"


def changed_by_a_neighbour(trained: Trained) -> str:
    """What one long sentence in the same batch does to the others."""
    sources = trained.sources
    words = " ".join(sources).split()[: trained.trainer.config.model.max_length]
    beside = trained.translations([*sources, " ".join(words)], batch_size=len(sources) + 1)
    return differing(trained.translations(sources, batch_size=1), beside[:-1])


def empty_ones(trained: Trained) -> str:
    translations = trained.translations(trained.sources)
    return f"{translations.count('')} of {len(translations)}"


def unchanged_backwards(trained: Trained) -> str:
    backwards = [" ".join(reversed(source.split())) for source in trained.sources]
    pairs = zip(trained.translations(trained.sources), trained.translations(backwards), strict=True)
    same = sum(one == other for one, other in pairs)
    return f"{same} of {len(backwards)}"


def loss_at_start(trained: Trained) -> str:
    return f"{trained.before['valid'].loss.mean:.2f}"


def sums_of_weights(trained: Trained) -> str:
    sums = trained.attention(trained.trainer.model.source_attentions()[0]).sum(dim=-1)
    low, high = f"{float(sums.min()):.2f}", f"{float(sums.max()):.2f}"
    return low if low == high else f"{low} to {high}"


def changed_by_asking_again(trained: Trained) -> str:
    trained.trainer.model.train()
    return differing(*(trained.translations(trained.sources) for _ in range(2)))


def differing(some: list[str], others: list[str]) -> str:
    count = sum(one != other for one, other in zip(some, others, strict=True))
    return f"{count} of {len(some)}"


SYMPTOMS = {
    "causal": Symptom("attention of the first place to later ones", share_on_the_next),
    "padding": Symptom("translations that change beside a long one", changed_by_a_neighbour),
    "shift": Symptom("translations that are empty", empty_ones),
    "positions": Symptom("sentences translated the same backwards", unchanged_backwards),
    "scale": Symptom("held-out loss before the first step", loss_at_start),
    "softmax": Symptom("a query's weights over the source sum to", sums_of_weights),
    "eval": Symptom("translations that change when asked again", changed_by_asking_again),
}
