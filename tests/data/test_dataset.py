"""A dataset is encoded once and cached, and its tokenizer is trained on the training split."""

import multiprocessing
import os
import random

import numpy
import pytest

from minitransformer.data import dataset as dataset_module
from minitransformer.data.dataset import SentencesBuilder, prepare_dataset
from minitransformer.data.tokenizer import EOS_ID, UNK_ID, PairTokenizer
from minitransformer.errors import CheckpointError, DataError
from minitransformer.settings import Config, DataConfig, FiltersConfig, ModelConfig, TokenizerConfig
from tests.support.corpus_files import counts
from tests.support.small_runs import same_bits, trainer_for, weights

KINDS = {"words": {"kind": "words"}, "bpe": {"kind": "bpe", "vocab_size": 300}}


@pytest.fixture
def low_cache_threshold(monkeypatch):
    monkeypatch.setattr(dataset_module, "MIN_CACHED_PAIRS", 10)


def config_for(folder, *, filters=None, tokenizer=None, max_length=64, **data) -> Config:
    return Config(
        data=DataConfig(train=str(folder / "pairs.tsv"), cache=str(folder / "cache"), **data),
        filters=FiltersConfig(**filters or {}),
        tokenizer=TokenizerConfig(**tokenizer or {}),
        model=ModelConfig(max_length=max_length),
    )


def write(folder, count=40) -> None:
    generator = random.Random(1)
    rows = [" ".join(generator.choices("abcdefgh", k=5)) for _ in range(count)]
    content = "".join(f"{row}\t{row[::-1]}\n" for row in rows) + "\n"
    (folder / "pairs.tsv").write_text(content)


def ids_of(dataset, split="train") -> list:
    return list(dataset.encoded[split])


@pytest.mark.parametrize("kind", ["words", "bpe"])
def test_large_corpus_is_encoded_once_and_memory_mapped(
    kind, low_cache_threshold, tmp_path, monkeypatch
):
    write(tmp_path)
    config = config_for(tmp_path, tokenizer=KINDS[kind], split_valid=5)
    first = prepare_dataset(config)
    assert "is kept for next time" in first.notes[0]
    monkeypatch.setattr(dataset_module, "load_corpus", None)  # the corpus must not be read again
    second = prepare_dataset(config)
    assert "is taken from" in second.notes[0]
    for split in ("train", "valid"):
        assert ids_of(first, split) == ids_of(second, split)
        assert list(first.corpus.splits[split]) == list(second.corpus.splits[split])
        assert first.corpus.splits[split].report == second.corpus.splits[split].report
        assert isinstance(second.encoded[split].sources.ids, numpy.memmap)
    assert first.fingerprint == second.fingerprint
    assert first.tokenizer.to_files() == second.tokenizer.to_files()


@pytest.mark.parametrize(
    "change",
    [
        {"filters": {"duplicate": "skip"}}, {"tokenizer": {"min_frequency": 2}},
        {"tokenizer": {"joint": True}}, {"tokenizer": KINDS["bpe"]}, {"max_length": 63},
        {"limit": 30}, {"split_valid": 3}, {"split_seed": 2}, {"columns": (2, 1)},
    ],
)  # fmt: skip
def test_dataset_is_encoded_again_when_a_setting_changes(change, low_cache_threshold, tmp_path):
    write(tmp_path)
    prepare_dataset(config_for(tmp_path))
    assert "is kept for next time" in prepare_dataset(config_for(tmp_path, **change)).notes[0]
    assert "is taken from" in prepare_dataset(config_for(tmp_path)).notes[0]


def test_dataset_is_encoded_again_when_the_file_changes(low_cache_threshold, tmp_path):
    write(tmp_path)
    before = prepare_dataset(config_for(tmp_path))
    write(tmp_path, count=41)
    after = prepare_dataset(config_for(tmp_path))
    assert "is kept for next time" in after.notes[0]
    assert len(after.encoded["train"]) == 41
    assert before.fingerprint != after.fingerprint


@pytest.mark.parametrize("name", ["train.source.ids.npy", "train.kept.npy", "meta.json",
                                  "tokenizer/source.tsv"])  # fmt: skip
@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_damaged_cache_is_rebuilt(name, damage, low_cache_threshold, tmp_path):
    write(tmp_path)
    expected = ids_of(prepare_dataset(config_for(tmp_path)))
    (copy,) = (tmp_path / "cache").iterdir()
    content = bytearray((copy / name).read_bytes())
    if damage == "delete":
        (copy / name).unlink()
    elif damage == "cut":
        (copy / name).write_bytes(content[:-3])
    else:
        content[-3] ^= 1
        (copy / name).write_bytes(content)
    again = prepare_dataset(config_for(tmp_path))
    assert "is kept for next time" in again.notes[0]
    assert ids_of(again) == expected


def test_small_corpora_and_an_empty_setting_are_not_cached(
    low_cache_threshold, tmp_path, monkeypatch
):
    write(tmp_path)
    config = Config(data=DataConfig(train=str(tmp_path / "pairs.tsv"), cache=""))
    assert prepare_dataset(config).notes == []
    monkeypatch.setattr(dataset_module, "MIN_CACHED_PAIRS", 41)
    assert prepare_dataset(config_for(tmp_path)).notes == []
    assert not (tmp_path / "cache").exists()


def test_unwritable_cache_is_not_an_error(low_cache_threshold, tmp_path):
    write(tmp_path)
    (tmp_path / "cache").write_text("a file is in the way")
    dataset = prepare_dataset(config_for(tmp_path))
    assert "is not kept" in dataset.notes[0]
    assert len(dataset.encoded["train"]) == 40


def test_run_resumed_with_the_cache_gives_the_same_bits(low_cache_threshold, tmp_path):
    write(tmp_path)
    changes = (
        f"data.train={tmp_path / 'pairs.tsv'}", f"data.cache={tmp_path / 'cache'}",
        "training.schedule=constant",
    )  # fmt: skip
    uninterrupted = trainer_for(tmp_path / "uninterrupted", *changes)
    uninterrupted.fit()
    trainer_for(tmp_path / "parts", *changes, "training.steps=5").fit()
    resumed = trainer_for(tmp_path / "parts", *changes)
    assert any("is taken from" in note for note in resumed.notes)
    resumed.fit()
    assert same_bits(weights(uninterrupted), weights(resumed))


def test_given_tokenizer_replaces_the_cached_one(low_cache_threshold, tmp_path):
    write(tmp_path)
    config = config_for(tmp_path)
    prepare_dataset(config)
    other = PairTokenizer.train([("a b", "b a")], config)
    assert len(prepare_dataset(config, other).tokenizer.source) == len(other.source)
    assert len(prepare_dataset(config).tokenizer.source) == 8 + 4


def test_changed_data_needs_a_fresh_run_with_a_new_tokenizer(low_cache_threshold, tmp_path):
    write(tmp_path)
    changes = (f"data.train={tmp_path / 'pairs.tsv'}", f"data.cache={tmp_path / 'cache'}")
    trainer_for(tmp_path / "run", *changes).fit()
    (tmp_path / "pairs.tsv").write_text("x y\tz\n" * 20)
    with pytest.raises(CheckpointError, match="other sentence pairs"):
        trainer_for(tmp_path / "run", *changes)
    fresh = trainer_for(tmp_path / "run", *changes, fresh=True)
    assert set(fresh.tokenizer.source.ids) == {"x", "y"}


def prepare_in_process(config: Config, start, found) -> None:
    dataset_module.MIN_CACHED_PAIRS = 10
    start.wait()
    found.put(prepare_dataset(config).notes)


def test_several_processes_can_fill_the_cache_at_once(tmp_path):
    write(tmp_path)
    context = multiprocessing.get_context("forkserver")
    for attempt in range(5):
        config = config_for(tmp_path, split_seed=attempt)
        start, found = context.Event(), context.SimpleQueue()
        processes = [
            context.Process(target=prepare_in_process, args=(config, start, found))
            for _ in range(3)
        ]
        for process in processes:
            process.start()
        start.set()
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0, 0, 0]
        notes = [note for _ in processes for note in found.get()]
        assert all("kept for next time" in note or "taken from" in note for note in notes), notes
    assert not list((tmp_path / "cache").glob(".*"))


def test_cache_left_by_a_killed_process_is_removed(low_cache_threshold, tmp_path):
    write(tmp_path)
    old = tmp_path / "cache" / ".abc.1.part"
    old.mkdir(parents=True)
    os.utime(old, (0, 0))
    assert "is kept for next time" in prepare_dataset(config_for(tmp_path)).notes[0]
    assert not old.exists()


def test_tokenizer_is_trained_on_the_training_split_only(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a b\tc d\n")
    (tmp_path / "valid.tsv").write_text("a x\tc d\ny\tz z z\n")
    for kind in ("words", "bpe"):
        dataset = prepare_dataset(
            config_for(tmp_path, valid=str(tmp_path / "valid.tsv"), tokenizer=KINDS[kind])
        )
        assert not {"x", "y", "z", "▁x", "▁y", "▁z"} & set(dataset.tokenizer.source.ids)
        assert counts(dataset.corpus.splits["valid"]) == {"unknown": (2, 1)}


def test_unknown_rate_is_reported_and_can_be_filtered(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a b\tc d\n")
    (tmp_path / "valid.tsv").write_text("a x\tc d\na b\tc d\n")
    valid = {"valid": str(tmp_path / "valid.tsv")}
    dataset = prepare_dataset(config_for(tmp_path, **valid))
    (line,) = [line for line in dataset.corpus.splits["valid"].report.lines() if "training" in line]
    assert "25.0% of all source and 0.0% of all target tokens" in line
    skipped = prepare_dataset(config_for(tmp_path, filters={"unknown": "skip"}, **valid))
    assert len(skipped.encoded["valid"]) == len(skipped.corpus.splits["valid"]) == 1
    with pytest.raises(DataError, match=r"filters\.unknown is error"):
        prepare_dataset(config_for(tmp_path, filters={"unknown": "error"}, **valid))


def test_held_out_pairs_of_unknown_words_only_are_kept_and_counted(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a b\tc d\n")
    (tmp_path / "valid.tsv").write_text("x y\tz\n")
    dataset = prepare_dataset(config_for(tmp_path, valid=str(tmp_path / "valid.tsv")))
    assert ids_of(dataset, "valid") == [([UNK_ID, UNK_ID], [UNK_ID, EOS_ID])]
    assert (
        "100.0% of all source and 100.0% of all target"
        in dataset.corpus.splits["valid"].report.lines()[0]
    )


def test_far_too_long_sentences_are_dropped(tmp_path):
    (tmp_path / "pairs.tsv").write_bytes(b"a\tb\n" + b"x" * 10_000_000 + b"\ty\n")
    for kind in ("words", "bpe"):
        dataset = prepare_dataset(config_for(tmp_path, tokenizer=KINDS[kind]))
        assert counts(dataset.corpus.train) == {"too_long": (1, 2)}
        assert dataset.corpus.train.first(9) == [("a", "b")]


@pytest.mark.parametrize(("size", "width"), [(100, 2), (2**16, 2), (2**16 + 1, 4)])
def test_ids_have_the_smallest_dtype_for_their_vocabulary(size, width):
    builder = SentencesBuilder(size)
    builder.add([size - 1, 5])
    builder.add([7])
    sentences = builder.build()
    assert sentences.ids.itemsize == width
    assert [sentences.sentence(index) for index in range(2)] == [[size - 1, 5], [7]]
    assert sentences.lengths().tolist() == [2, 1]


def test_report_names_the_first_line_of_a_defect(tmp_path):
    long, longer = "x " * 70, "x" * 10_000
    (tmp_path / "pairs.tsv").write_text(f"a\tb\n{long}\ty\nc\td\n{longer}\ty\n")
    assert counts(prepare_dataset(config_for(tmp_path)).corpus.train) == {"too_long": (2, 2)}
