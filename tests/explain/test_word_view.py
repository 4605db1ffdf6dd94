"""Subwords are merged into words in attention maps and in occlusion."""

import math

import pytest
import torch

from minitransformer.cli.prompt import Prompt
from minitransformer.data.tokenizer import (
    BOS_ID,
    PAD_ID,
    UNK_ID,
    BpeTokenizer,
    Word,
    WordTokenizer,
    split_words,
)
from minitransformer.explain.attention_maps import (
    AttentionView,
    SentenceWords,
    attention_views,
    merge_subwords,
    produced_words,
    views_by_words,
    words_of_walk,
)
from minitransformer.explain.interventions import log_probabilities
from minitransformer.explain.rendering import TextRenderer
from minitransformer.explain.walkthrough import walk_through
from minitransformer.settings import TokenizerConfig
from minitransformer.translator import Translator
from tests.support.attention_views import cross_view, masked_view
from tests.support.small_runs import trainer_for

TEXTS = ["Let's go to school.", "¿Qué pasa? (I go) 3.14", "আমি স্কুলে যাই।", "go a-b x"]


@pytest.fixture(scope="module")
def bpe() -> BpeTokenizer:
    return BpeTokenizer.train(TEXTS, TokenizerConfig(kind="bpe", vocab_size=45, min_frequency=1))


@pytest.mark.parametrize("text", [*TEXTS, "school schools", "...", "Żółć пасха go"])
def test_words_of_subwords_are_those_of_the_word_tokenizer(bpe, text):
    encoded = bpe.encode(text, end=True)
    words = bpe.words_of(encoded.ids, encoded.tokens)
    assert [word.text for word in words] == [*split_words(text), "<EOS>"]
    assert [index for word in words for index in word.indices] == list(range(len(encoded.ids)))
    assert len(words) < len(encoded.ids)


def test_words_of_never_merges_special_tokens_or_splits_pieces(bpe):
    go = bpe.ids["▁go"]
    words = bpe.words_of([BOS_ID, go, PAD_ID, bpe.ids["o"]], ["<BOS>", "▁go", "(▁t)", "o"])
    assert [word.text for word in words] == ["<BOS>", "go", "(▁t)", "o"]
    assert bpe.words_of([go], ["▁5€"]) == [Word("5€", [0])]  # two words in one subword
    assert bpe.words_of([go, go], ["▁", "▁"]) == [Word("▁", [0]), Word("▁", [1])]
    assert bpe.words_of([], []) == []
    unknown = bpe.words_of([go, UNK_ID, bpe.ids["o"], UNK_ID], ["▁go", "<UNK>", "o", "<UNK>"])
    assert unknown == [Word("go<UNK>o<UNK>", [0, 1, 2, 3])]


def test_words_of_a_word_tokenizer_are_its_tokens():
    tokenizer = WordTokenizer.train(["I go"], TokenizerConfig())
    encoded = tokenizer.encode("I go now", end=True)
    assert tokenizer.words_of(encoded.ids, encoded.tokens) == [
        Word("I", [0]), Word("go", [1]), Word("now", [2]), Word("<EOS>", [3]),
    ]  # fmt: skip


# "▁a ▁sch ool" was translated to "▁es cue la <EOS>".
WORDS = SentenceWords(
    source=[Word("a", [0]), Word("school", [1, 2])],
    fed=[Word("<BOS>", [0]), Word("escuela", [1, 2, 3])],
    produced=[Word("escuela", [0, 1, 2]), Word("<EOS>", [3])],
)
FED, NEW = ["<BOS>", "▁es", "cue", "la"], ["▁es", "cue", "la", "<EOS>"]


def test_merge_subwords_adds_columns_and_averages_rows():
    view = cross_view(FED, NEW, ["▁a", "▁sch", "ool"], heads=2)
    merged = merge_subwords(view, WORDS)
    assert (merged.queries, merged.produced) == (["<BOS>", "escuela"], ["escuela", "<EOS>"])
    assert merged.keys == ["a", "school"]
    columns = torch.stack((view.weights[..., 0], view.weights[..., 1:].sum(-1)), dim=-1)
    expected = torch.stack((columns[:, :3].mean(1), columns[:, 3]), dim=1)
    assert merged.weights.allclose(expected)
    assert merged.weights.sum(-1).allclose(torch.ones(2, 2))
    by_fed = merge_subwords(view, WORDS, rows_by_fed=True)
    assert (by_fed.queries, by_fed.produced) == (merged.queries, merged.produced)
    assert by_fed.weights.allclose(
        torch.stack((columns[:, 0], columns[:, 1:].mean(1)), dim=1)
    )  # the same labels, but other rows are averaged


def test_merge_subwords_keeps_later_words_masked():
    merged = merge_subwords(masked_view(FED, NEW), WORDS)
    assert merged.queries == merged.keys == ["<BOS>", "escuela"]
    assert merged.produced == ["escuela", "<EOS>"]
    assert merged.allowed.tolist() == [[True, False], [True, True]]
    first = (1 / 2 + 1 / 3 + 1 / 4) / 3
    assert torch.tensor([[[1, 0], [first, 1 - first]]]).allclose(merged.weights)


def test_merge_subwords_merges_both_axes_of_the_encoder():
    tokens = ["▁a", "▁sch", "ool"]
    weights = torch.tensor([[[0.5, 0.3, 0.2], [0.2, 0.4, 0.4], [0.6, 0.2, 0.2]]])
    view = AttentionView(
        "encoder.layers.0.self_attention", "self-attention", tokens, [], tokens, weights,
        torch.ones(3, 3, dtype=torch.bool),
    )  # fmt: skip
    merged = merge_subwords(view, WORDS)
    assert (merged.queries, merged.keys, merged.produced) == (["a", "school"], ["a", "school"], [])
    assert merged.weights.allclose(torch.tensor([[[0.5, 0.5], [0.4, 0.6]]]))


@pytest.fixture(scope="module")
def walk(bpe_run):
    return walk_through(Translator.load(bpe_run), "I go home")


def test_views_by_words_has_every_attention_of_a_walk(walk):
    views = views_by_words(walk)
    assert [view.name for view in views] == [view.name for view in attention_views(walk)]
    cross = views[-1]
    assert cross.keys == ["I", "go", "home", "<EOS>"]
    assert cross.queries[1:] == cross.produced[:-1]  # each row was fed the previous word
    assert views_by_words(walk, rows_by_fed=True)[-1].queries[0] == "<EOS>"


def test_produced_words_sum_the_occlusion_of_their_pieces(walk):
    words = words_of_walk(walk)
    fed, new = ([getattr(step, name) for step in walk.steps] for name in ("fed_id", "produced_id"))
    hidden = [
        [PAD_ID if index in word.indices else id for index, id in enumerate(walk.source_ids)]
        for word in words.source
    ]
    chosen = log_probabilities(walk.model, [walk.source_ids, *hidden], fed, new)
    for word, found in zip(words.produced, produced_words(walk), strict=True):
        values = chosen[:, word.indices].sum(-1)
        assert found.why == pytest.approx((values[1:] - values[0]).tolist(), abs=1e-5)
        assert math.log(found.probability) == pytest.approx(float(values[0]), abs=1e-4)
        assert sum(found.attention) == pytest.approx(1, abs=1e-5)
        assert found.steps == [index + 1 for index in word.indices]


def test_view_words_shows_for_each_step_the_word_it_belongs_to(walk):
    for word in produced_words(walk):
        for step in word.steps:
            [line] = [line for line in TextRenderer().words(walk, step) if line.startswith("Why ")]
            assert line.startswith(f"Why {word.text} (step")


def test_produced_words_cannot_occlude_the_only_source_word(tmp_path):
    trainer = trainer_for(tmp_path, "tokenizer.kind=bpe", "tokenizer.vocab_size=60")
    translator = Translator(trainer.model.eval(), trainer.tokenizer, trainer.config)
    for word in produced_words(walk_through(translator, "school")):
        assert (word.attention, word.why) == (pytest.approx([1.0]), [None])


def test_prompt_shows_whole_words(bpe_run, capsys):
    prompt = Prompt(Translator.load(bpe_run), scores=False)
    prompt.answer("I go home")
    prompt.answer(":attention words")
    assert "3 home" in capsys.readouterr().out
    prompt.answer(":why words")
    assert "without a whole word" in " ".join(capsys.readouterr().out.split())
