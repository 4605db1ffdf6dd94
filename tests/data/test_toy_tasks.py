"""Toy tasks generate correct and reproducible pairs, disjoint splits and their alignments."""

import pytest

from minitransformer.data.toy_tasks import NUMBER_WORDS, TASKS, pairs_of_length, task_pairs
from tests.support.corpus_files import corpus_of


def swapped_number_words(digits: list[str]) -> list[str]:
    words = [NUMBER_WORDS[int(digit)] for digit in digits]
    pairs = [words[start : start + 2][::-1] for start in range(0, len(words), 2)]
    return [word for pair in pairs for word in pair]


TARGETS = {
    "copy": lambda symbols: symbols,
    "reverse": lambda symbols: symbols[::-1],
    "substitute": swapped_number_words,
}


@pytest.mark.parametrize("name", TASKS)
def test_task_pairs_are_correct_and_reproducible(name):
    pairs = list(task_pairs(name, "train"))
    assert pairs == list(task_pairs(name, "train"))
    for source, target in pairs:
        symbols = source.split(" ")
        assert target.split(" ") == TARGETS[name](symbols)
        assert set(symbols) <= set(TASKS[name].symbols)
    lengths = {len(source.split()) for source, _ in pairs}
    assert lengths == set(range(1, TASKS[name].max_length + 1))


@pytest.mark.parametrize("name", TASKS)
def test_task_splits_share_no_source(name):
    sources = {
        split: {source for source, _ in task_pairs(name, split)} for split in TASKS[name].sizes
    }
    assert {split: len(each) for split, each in sources.items()} == TASKS[name].sizes
    assert len(set.union(*sources.values())) == sum(TASKS[name].sizes.values())


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("length", [1, 2, 5, 10])
def test_task_alignment_is_a_permutation(name, length):
    assert sorted(TASKS[name].alignment(length)) == list(range(length))


def test_task_alignment_of_five_symbols_is_the_expected_one():
    assert [task.alignment(5) for task in TASKS.values()] == [
        [0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1, 0, 3, 2, 4],
    ]  # fmt: skip


def test_task_loads_as_a_corpus():
    corpus = corpus_of(train="reverse", limit=3)
    assert len(corpus.train) == 3
    assert list(corpus.splits) == ["train", "valid", "test"]


def test_pairs_of_length_have_that_length():
    pairs = pairs_of_length("reverse", 15, 20, seed=1)
    assert len(pairs) == 20
    assert all(len(source.split()) == 15 and target == source[::-1] for source, target in pairs)
    assert pairs != pairs_of_length("reverse", 15, 20, seed=2)
