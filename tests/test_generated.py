import pytest

from minitransformer.data.generated import TASKS, pairs_of_length, task_pairs
from tests.corpus_files import corpus_of


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_what_its_name_says_and_always_the_same(name):
    pairs = list(task_pairs(name, "train"))
    assert pairs == list(task_pairs(name, "train"))
    for source, target in pairs:
        symbols = source.split(" ")
        assert target.split(" ") == (symbols if name == "copy" else symbols[::-1])
        assert set(symbols) <= set(TASKS[name].symbols)
    lengths = {len(source.split()) for source, _ in pairs}
    assert lengths == set(range(1, TASKS[name].longest + 1))


@pytest.mark.parametrize("name", TASKS)
def test_no_source_is_in_two_splits(name):
    sources = {
        split: {source for source, _ in task_pairs(name, split)} for split in TASKS[name].sizes
    }
    assert {split: len(each) for split, each in sources.items()} == TASKS[name].sizes
    assert len(set.union(*sources.values())) == sum(TASKS[name].sizes.values())


def test_a_task_is_a_corpus_like_any_other():
    corpus = corpus_of(source="reverse", limit=3)
    assert len(corpus.train) == 3
    assert list(corpus.splits) == ["train", "valid", "test"]


def test_pairs_of_any_length_can_be_made():
    pairs = pairs_of_length("reverse", 15, 20, seed=1)
    assert len(pairs) == 20
    assert all(len(source.split()) == 15 and target == source[::-1] for source, target in pairs)
    assert pairs != pairs_of_length("reverse", 15, 20, seed=2)
