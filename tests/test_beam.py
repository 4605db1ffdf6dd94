"""Beam search equals an exhaustive search and an uncached one, and scores by teacher forcing."""

import itertools

import pytest
import torch

from minitransformer import Translator
from minitransformer.data.batching import pad
from minitransformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from minitransformer.search import GREEDY_SEARCH, SearchConfig, beam_search, greedy
from tests.support.variants import VARIANTS, build, ids

WORDS = [id for id in range(11) if id not in (PAD_ID, BOS_ID, EOS_ID)]  # of the toy vocabulary
SOME = ["minimal", "pre-norm", "rotary", "gru", "gru-none", "lstm-bidirectional"]


def teacher_forced(model, source, targets: list[tuple[int, ...]]) -> dict[tuple[int, ...], float]:
    """Return the log probability of each target under teacher forcing."""
    found = {}
    for length in {len(target) for target in targets}:
        equal = [target for target in targets if len(target) == length]
        ids = torch.tensor(equal)
        starts = torch.full((len(ids), 1), EOS_ID)
        with torch.no_grad():
            logits = model(source.expand(len(ids), -1), torch.cat((starts, ids[:, :-1]), dim=1))
        values = logits.double().log_softmax(-1).gather(2, ids[..., None]).sum((1, 2))
        found.update(zip(equal, values.tolist(), strict=True))
    return found


def all_outputs(limit: int) -> list[tuple[int, ...]]:
    """Return all possible outputs: words up to <EOS>, or as many words as the limit."""
    ended = [
        (*words, EOS_ID)
        for length in range(limit)
        for words in itertools.product(WORDS, repeat=length)
    ]
    return ended + list(itertools.product(WORDS, repeat=limit))


@pytest.mark.parametrize(
    ("name", "length_penalty"),
    [("minimal", 0.0), ("minimal", 1.0), ("pre-norm", 0.6), ("post-norm", 2.0), ("gru", 1.0),
     ("lstm-bidirectional", 0.6)],
)  # fmt: skip
def test_beam_of_unlimited_width_is_an_exhaustive_search(name, length_penalty):
    model, limit = build(VARIANTS[name]), 3
    source = ids(1, 4)
    scores = {
        target: total / len(target) ** length_penalty
        for target, total in teacher_forced(model, source, all_outputs(limit)).items()
    }
    expected = sorted(scores, key=lambda ids: (ids[-1] == EOS_ID, scores[ids]), reverse=True)
    (found,) = beam_search(
        model,
        source,
        start_id=EOS_ID,
        max_lengths=[limit],
        width=1000,
        length_penalty=length_penalty,
    )
    assert len(found) == len(expected) == 1 + 8 + 64 + 512
    assert [each.ids for each in found[:30]] == expected[:30]
    assert {each.ids for each in found} == set(expected)
    for hypothesis in found[:50]:
        assert hypothesis.score(length_penalty) == pytest.approx(scores[hypothesis.ids], abs=1e-5)


def uncached_beam_search(
    model, source, limit: int, width: int
) -> list[tuple[tuple[int, ...], float]]:
    """Search without cache or batch: run all prefixes again at each step and keep the best."""
    unfinished: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    finished: list[tuple[tuple[int, ...], float]] = []
    while unfinished:
        longer = []
        fed = torch.tensor([[EOS_ID, *prefix] for prefix, _ in unfinished])
        logits = model(source.expand(len(fed), -1), fed)[:, -1].detach()
        for (prefix, total), values in zip(
            unfinished, logits.log_softmax(-1).tolist(), strict=True
        ):
            longer += [((*prefix, id), total + values[id]) for id in (*WORDS, EOS_ID)]
        longer.sort(key=lambda each: -each[1])
        kept = longer[: width - len(finished)]
        is_finished = [each[0][-1] == EOS_ID or len(each[0]) == limit for each in kept]
        finished += list(itertools.compress(kept, is_finished))
        unfinished = [each for each, ended in zip(kept, is_finished, strict=True) if not ended]
    return finished


@pytest.mark.parametrize("name", VARIANTS)
def test_batched_beam_equals_uncached_search(name):
    model = build(VARIANTS[name])
    sources = [ids(1, 1 + 2 * seed, seed=seed)[0].tolist() for seed in range(4)]
    max_lengths = [4, 5, 6, 3]
    together = beam_search(
        model, pad(sources), start_id=EOS_ID, max_lengths=max_lengths, width=3, length_penalty=0.0
    )
    for source, limit, found in zip(sources, max_lengths, together, strict=True):
        expected = uncached_beam_search(model, torch.tensor([source]), limit, 3)
        expected.sort(key=lambda each: (each[0][-1] != EOS_ID, -each[1]))
        assert [each.ids for each in found] == [each[0] for each in expected]
        totals = [each[1] for each in expected]
        assert [each.total for each in found] == pytest.approx(totals, abs=1e-5)


@pytest.mark.parametrize("name", SOME)
def test_beam_scores_equal_teacher_forcing(name):
    model = build(VARIANTS[name])
    source = ids(4, 5)
    found = beam_search(
        model, source, start_id=EOS_ID, max_lengths=[6] * 4, width=5, length_penalty=1.0
    )
    for row, hypotheses in enumerate(found):
        totals = teacher_forced(model, source[row : row + 1], [each.ids for each in hypotheses])
        for each in hypotheses:
            assert each.total == pytest.approx(totals[each.ids], abs=1e-5)
            assert sum(each.log_probabilities) == pytest.approx(each.total, abs=1e-9)


@pytest.mark.parametrize("name", SOME)
def test_beam_of_one_is_greedy(name):
    model = build(VARIANTS[name])
    source = ids(5, 6)
    found = beam_search(
        model, source, start_id=EOS_ID, max_lengths=[7] * 5, width=1, length_penalty=1.0
    )
    expected = greedy(model, source, start_id=EOS_ID, max_lengths=[7] * 5)
    for [hypothesis], choices in zip(found, expected, strict=True):
        assert list(hypothesis.ids) == [choice.id for choice in choices]


def test_beam_never_produces_pad_bos_or_duplicates():
    model = build(VARIANTS["minimal"])
    with torch.no_grad():
        model.head.bias[[PAD_ID, BOS_ID]] = 100.0
    for hypotheses in beam_search(
        model, ids(8, 4), start_id=EOS_ID, max_lengths=[5] * 8, width=4, length_penalty=1.0
    ):
        found = [each.ids for each in hypotheses]
        assert len(set(found)) == 4
        assert not {id for each in found for id in each} & {PAD_ID, BOS_ID}


def test_beam_ranks_truncated_hypotheses_after_finished_ones():
    model = build(VARIANTS["minimal"])
    with torch.no_grad():  # 7 is likely, <EOS> less so, and the rest unlikely
        model.head.weight.zero_()
        model.head.bias.zero_()
        model.head.bias[7] = 9.0
        model.head.bias[EOS_ID] = 4.0
    (found,) = beam_search(
        model, ids(1, 4), start_id=EOS_ID, max_lengths=[20], width=3, length_penalty=1.0
    )
    assert found[0].ids[-1] == EOS_ID
    assert found[-1].ids == (7,) * 20
    assert found[-1].score(1.0) > found[0].score(1.0)


def test_beam_score_is_exact_where_probabilities_underflow(tiny):
    translator = Translator.load(tiny.path)
    with torch.no_grad():
        translator.model.head.weight.mul_(3000)
    translator.search = SearchConfig(beam=4)
    (translation,) = translator.translate(["I go to school"])
    source = pad([translation.source.ids])
    (found,) = beam_search(
        translator.model, source, start_id=translator.tokenizer.start_id, max_lengths=[64], width=4,
        length_penalty=1.0,
    )  # fmt: skip
    scores = [translation.score, *(each.score for each in translation.others)]
    assert scores == [each.score(1.0) for each in found]
    assert min(scores) < -100


@pytest.mark.parametrize("name", ["tiny", "tiny_rnn"])
def test_translator_returns_all_hypotheses_of_its_beam(name, request):
    translator = Translator.load(request.getfixturevalue(name).path)
    assert translator.search == GREEDY_SEARCH
    greedily = translator.translate(["Let's go", "", "I go to school"])
    translator.search = SearchConfig(beam=4, length_penalty=1.0)
    found = translator.translate(["Let's go", "", "I go to school"])
    assert [each.text for each in found] == ["Vamos", "", "Voy a la escuela"]
    assert [len(each.others) for each in found] == [3, 0, 3]
    for one, other in zip(found, greedily, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-5)  # both scores are the best
        scores = [one.score, *(each.score for each in one.others)]
        assert scores == sorted(scores, reverse=True)
    single = [translator.translate([text])[0].text for text in ("Let's go", "I go to school")]
    assert single == ["Vamos", "Voy a la escuela"]
