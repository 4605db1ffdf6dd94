import pytest

from minitransformer.data.toy_tasks import NUMBER_WORDS, TASKS, pairs_of_length, task_pairs
from tests.corpus_files import corpus_of


def named_with_neighbours_swapped(digits: list[str]) -> list[str]:
    words = [NUMBER_WORDS[int(digit)] for digit in digits]
    pairs = [words[start : start + 2][::-1] for start in range(0, len(words), 2)]
    return [word for pair in pairs for word in pair]


TARGETS = {
    "copy": lambda symbols: symbols,
    "reverse": lambda symbols: symbols[::-1],
    "substitute": named_with_neighbours_swapped,
}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_what_its_name_says_and_always_the_same(name):
    pairs = list(task_pairs(name, "train"))
    assert pairs == list(task_pairs(name, "train"))
    for source, target in pairs:
        symbols = source.split(" ")
        assert target.split(" ") == TARGETS[name](symbols)
        assert set(symbols) <= set(TASKS[name].symbols)
    lengths = {len(source.split()) for source, _ in pairs}
    assert lengths == set(range(1, TASKS[name].max_length + 1))


@pytest.mark.parametrize("name", TASKS)
def test_no_source_is_in_two_splits(name):
    sources = {
        split: {source for source, _ in task_pairs(name, split)} for split in TASKS[name].sizes
    }
    assert {split: len(each) for split, each in sources.items()} == TASKS[name].sizes
    assert len(set.union(*sources.values())) == sum(TASKS[name].sizes.values())


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("length", [1, 2, 5, 10])
def test_an_alignment_takes_every_source_index_once(name, length):
    assert sorted(TASKS[name].alignment(length)) == list(range(length))


def test_alignments_are_a_diagonal_the_other_one_and_neither():
    assert [task.alignment(5) for task in TASKS.values()] == [
        [0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1, 0, 3, 2, 4],
    ]  # fmt: skip


def test_a_task_is_a_corpus_like_any_other():
    corpus = corpus_of(train="reverse", limit=3)
    assert len(corpus.train) == 3
    assert list(corpus.splits) == ["train", "valid", "test"]


def test_pairs_of_any_length_can_be_made():
    pairs = pairs_of_length("reverse", 15, 20, seed=1)
    assert len(pairs) == 20
    assert all(len(source.split()) == 15 and target == source[::-1] for source, target in pairs)
    assert pairs != pairs_of_length("reverse", 15, 20, seed=2)
