"""Greedy decoding equals uncached decoding for every model, batch and limit."""

import math

import pytest
import torch

from minitransformer import Translator
from minitransformer.data.batching import pad
from minitransformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from minitransformer.errors import CheckpointError, UsageError
from minitransformer.search import greedy, top_tokens
from tests.support.small_runs import trainer_for
from tests.support.variants import VARIANTS, build, ids

SENTENCES = [
    "Let's go", "I go to school", "The children live in a small house", "You eat bread",
    "My brother has a red car", "Ana reads an old book", "We drink tea", "He buys flowers",
]  # fmt: skip


def greedy_without_cache(model, source, start_id: int, limit: int) -> list[int]:
    """Decode greedily by running the whole target again for each token."""
    target = [start_id]
    with torch.no_grad():
        while len(target) <= limit and (len(target) == 1 or target[-1] != EOS_ID):
            logits = model(source, torch.tensor([target]))[0, -1]
            logits[[PAD_ID, BOS_ID]] = float("-inf")
            target.append(int(logits.argmax()))
    return target[1:]


@pytest.mark.parametrize("name", VARIANTS)
def test_cached_greedy_equals_uncached_greedy(name):
    model = build(VARIANTS[name])
    for seed in range(2):
        source = ids(1, 3 + 2 * seed, seed=seed)
        (choices,) = greedy(model, source, start_id=EOS_ID, max_lengths=[7])
        assert [choice.id for choice in choices] == greedy_without_cache(model, source, EOS_ID, 7)


@pytest.mark.parametrize("name", VARIANTS)
def test_greedy_probabilities_equal_teacher_forcing(name):
    model = build(VARIANTS[name])
    source = ids(3, 5)
    for row, choices in enumerate(greedy(model, source, start_id=EOS_ID, max_lengths=[6] * 3)):
        produced = [choice.id for choice in choices]
        logits = model(source[row : row + 1], torch.tensor([[EOS_ID, *produced[:-1]]]))
        forced = logits[0].log_softmax(-1)[torch.arange(len(produced)), produced]
        found = torch.tensor([choice.probability for choice in choices]).log()
        torch.testing.assert_close(found, forced.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_translation_does_not_depend_on_its_batch(name):
    model = build(VARIANTS[name])
    sources = [ids(1, 1 + seed % 7, seed=seed)[0].tolist() for seed in range(64)]
    max_lengths = [4 + seed % 3 for seed in range(64)]
    together = greedy(model, pad(sources), start_id=EOS_ID, max_lengths=max_lengths)
    for row in range(0, 64, 13):
        (single,) = greedy(
            model, pad([sources[row]]), start_id=EOS_ID, max_lengths=[max_lengths[row]]
        )
        assert [choice.id for choice in single] == [choice.id for choice in together[row]]


def test_row_ends_at_eos_or_at_its_own_limit():
    model = build(VARIANTS["minimal"])
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
        model.head.bias[7] = 5.0
    produced = greedy(model, ids(3, 4), start_id=EOS_ID, max_lengths=[2, 5, 1])
    assert [[choice.id for choice in row] for row in produced] == [[7] * 2, [7] * 5, [7]]
    with torch.no_grad():
        model.head.bias[EOS_ID] = 9.0
    produced = greedy(model, ids(3, 4), start_id=EOS_ID, max_lengths=[2, 5, 1])
    assert [[choice.id for choice in row] for row in produced] == [[EOS_ID]] * 3


def test_greedy_never_produces_pad_or_bos():
    model = build(VARIANTS["minimal"])
    with torch.no_grad():
        model.head.bias[[PAD_ID, BOS_ID]] = 100.0
    for row in greedy(model, ids(8, 4), start_id=EOS_ID, max_lengths=[5] * 8):
        assert not {choice.id for choice in row} & {PAD_ID, BOS_ID}


def test_alternatives_are_the_next_most_probable_tokens():
    model = build(VARIANTS["pre-norm"])
    source = ids(1, 4)
    (choices,) = greedy(model, source, start_id=EOS_ID, max_lengths=[1], alternatives=3)
    probabilities = model(source, torch.tensor([[EOS_ID]]))[0, -1].softmax(-1)
    probabilities[[PAD_ID, BOS_ID]] = -1
    best = probabilities.topk(4)
    assert [choices[0].id, *(id for id, _ in choices[0].alternatives)] == best.indices.tolist()
    found = [choices[0].probability, *(value for _, value in choices[0].alternatives)]
    assert found == pytest.approx(best.values.tolist(), abs=1e-6)


def test_alternatives_are_limited_by_a_small_vocabulary():
    model = build(VARIANTS["minimal"])
    for choices in greedy(model, ids(2, 5), start_id=EOS_ID, max_lengths=[4, 4], alternatives=50):
        for choice in choices:
            named = {choice.id, *(id for id, _ in choice.alternatives)}
            assert named == set(range(11)) - {PAD_ID, BOS_ID}
            assert min(probability for _, probability in choice.alternatives) >= 0


@pytest.mark.parametrize("name", ["shared-all", "lstm-bidirectional"])
def test_decoding_disables_dropout_and_restores_the_mode(name):
    model = build(VARIANTS[name]).train()
    source = ids(2, 5)
    first, second = (greedy(model, source, start_id=EOS_ID, max_lengths=[6, 6]) for _ in range(2))
    assert first == second
    assert model.training


@pytest.mark.parametrize("name", ["tiny", "tiny_rnn"])
def test_batch_size_does_not_change_translations_of_a_trained_model(name, request):
    translator = Translator.load(request.getfixturevalue(name).path)
    expected = [translator(sentence) for sentence in SENTENCES]
    assert expected[0] == "Vamos"
    for batch_size in (1, 3, 64):
        for texts in (SENTENCES, SENTENCES[::-1] * 9):
            translations = translator.translate(texts, batch_size=batch_size)
            by_source = dict(zip(SENTENCES, expected, strict=True))
            assert [each.text for each in translations] == [by_source[text] for text in texts]


def test_empty_input_gives_empty_output(tiny):
    translator = Translator.load(tiny.path)
    assert [each.text for each in translator.translate(["", "  ", "Let's go", "\t"])] == [
        "", "", "Vamos", "",
    ]  # fmt: skip
    assert translator.translate([]) == []


def test_too_long_sentence_is_truncated_and_reported(tiny):
    translator = Translator.load(tiny.path)
    (translation,) = translator.translate(["go " * 100])
    assert translation.num_truncated == 100 - translator.max_length


def test_short_sentence_may_have_a_long_translation(tmp_path):
    data = tmp_path / "own.tsv"
    long = " ".join(f"w{number}" for number in range(40))
    data.write_text(f"Hi\t{long}\n")
    trainer = trainer_for(
        tmp_path / "run",
        f"data.train={data}",
        "training.steps=60",
        "evaluation.every=60",
        "model.dropout=0",
        "model.self_attention_dropout=0",
        "model.cross_attention_dropout=0",
        "model.activation_dropout=0",
        "model.d_model=32",
    )
    trainer.fit()
    (translation,) = Translator.load(tmp_path / "run").translate(["Hi"])
    assert translation.text == long
    assert translation.is_finished


def test_load_refuses_unknown_checkpoints_and_devices(tiny):
    with pytest.raises(UsageError, match="checkpoint 'bset': choose last, best or a step"):
        Translator.load(tiny.path, checkpoint="bset")
    with pytest.raises(UsageError, match="device 'abacus': choose auto, cuda, mps, cpu"):
        Translator.load(tiny.path, device="abacus")


def test_load_refuses_a_folder_that_is_not_a_run(tmp_path):
    with pytest.raises(CheckpointError, match="is not a run folder"):
        Translator.load(tmp_path)


def test_load_refuses_a_missing_best_checkpoint(tiny):
    with pytest.raises(CheckpointError, match="has no best checkpoint"):
        Translator.load(tiny.path, checkpoint="best")


def test_probabilities_are_optional():
    model, source = build(VARIANTS["minimal"]), ids(3, 5)
    with_probabilities, without = (
        greedy(model, source, start_id=EOS_ID, max_lengths=[6] * 3, probabilities=each)
        for each in (True, False)
    )
    assert [[choice.id for choice in row] for row in with_probabilities] == [
        [choice.id for choice in row] for row in without
    ]
    assert all(0 < choice.probability < 1 for row in with_probabilities for choice in row)
    assert all(math.isnan(choice.probability) for row in without for choice in row)


@pytest.mark.parametrize("vocabulary", [12, 300, 5000])
def test_top_tokens_takes_the_first_of_equals(vocabulary):
    assert (PAD_ID, UNK_ID, BOS_ID) == (0, 1, 2)
    best, ids = top_tokens(torch.zeros(20, vocabulary), 1)
    assert ids.flatten().tolist() == [UNK_ID] * 20
    assert best.flatten().tolist() == [0.0] * 20
