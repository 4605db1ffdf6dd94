"""Batches keep to their token limit and order, and ranks divide them without loss."""

import numpy
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitransformer.data.batching import BatchStream, epoch_order, make_batch, pad
from minitransformer.data.dataset import EncodedPair, EncodedSplit, SentencesBuilder
from minitransformer.data.tokenizer import EOS_ID, PAD_ID

lengths = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60)


def lengths_of(sizes):
    return tuple(numpy.array(side, dtype=numpy.int32) for side in zip(*sizes, strict=True))


def pairs_of(sizes) -> EncodedSplit:
    sources, targets = SentencesBuilder(100), SentencesBuilder(100)
    for source, target in sizes:
        sources.add([7] * source)
        targets.add([8] * (target - 1) + [EOS_ID])
    return EncodedSplit(sources.build(), targets.build())


def as_lists(order) -> list[list[int]]:
    return [batch.tolist() for batch in order]


def stream(sizes, seed=3, batch_tokens=40) -> BatchStream:
    return BatchStream(pairs_of(sizes), batch_tokens=batch_tokens, seed=seed, start_id=EOS_ID)


@given(lengths, st.integers(1, 200), st.integers(0, 2**60), st.integers(0, 9))
def test_epoch_has_every_pair_once_and_no_batch_is_too_large(sizes, tokens, seed, epoch):
    order = epoch_order(lengths_of(sizes), batch_tokens=tokens, seed=seed, epoch=epoch)
    assert sorted(index for batch in order for index in batch) == list(range(len(sizes)))
    for batch in order:
        widest = max(max(sizes[index]) for index in batch)
        assert len(batch) == 1 or len(batch) * widest <= tokens


@given(lengths, st.integers(0, 2**60))
def test_epoch_order_depends_only_on_seed_and_epoch(sizes, seed):
    first, second = (
        epoch_order(lengths_of(sizes), batch_tokens=40, seed=seed, epoch=4) for _ in range(2)
    )
    assert as_lists(first) == as_lists(second)


def test_epoch_order_differs_by_epoch_and_seed():
    sizes = [(3, 3)] * 40
    orders = {
        str(as_lists(epoch_order(lengths_of(sizes), batch_tokens=12, seed=seed, epoch=epoch)))
        for seed in (1, 2)
        for epoch in (0, 1, 2)
    }
    assert len(orders) == 6


def test_batches_have_sentences_of_similar_lengths():
    sizes = [(length, length) for length in range(1, 21) for _ in range(8)]
    order = epoch_order(lengths_of(sizes), batch_tokens=100, seed=1, epoch=0)
    real = sum(2 * length for length, _ in sizes)
    padded = sum(2 * len(batch) * max(sizes[index][0] for index in batch) for batch in order)
    assert real / padded > 0.9


def test_decoder_input_is_the_target_shifted_right():
    batch = make_batch([EncodedPair([5, 6], [7, 8, EOS_ID]), EncodedPair([5], [9, EOS_ID])], EOS_ID)
    assert batch.source.tolist() == [[5, 6], [5, PAD_ID]]
    assert batch.target_input.tolist() == [[EOS_ID, 7, 8], [EOS_ID, 9, PAD_ID]]
    assert batch.target_output.tolist() == [[7, 8, EOS_ID], [9, EOS_ID, PAD_ID]]
    assert batch.num_target_tokens == 5


def test_padding_goes_at_the_end():
    assert pad([[1, 2], [3]]).tolist() == [[1, 2], [3, PAD_ID]]
    assert pad([[1]]).dtype == torch.long


def test_stream_resumes_in_mid_epoch():
    sizes = [(length % 9 + 1, length % 7 + 1) for length in range(50)]
    undivided = stream(sizes)
    batches, positions = [], []
    for _ in range(40):
        positions.append((undivided.epoch, undivided.index))
        batches.append(undivided.next())
    assert positions[-1][0] >= 2
    for start, (epoch, index) in enumerate(positions):
        resumed = stream(sizes)
        resumed.move_to(epoch=epoch, index=index)
        for expected in batches[start : start + 3]:
            assert all(map(torch.equal, resumed.next(), expected))


@given(lengths)
def test_stream_batches_equal_make_batch(sizes):
    batches = stream(sizes)
    for indices in list(batches.order):
        expected = make_batch([batches.pairs[index] for index in indices.tolist()], EOS_ID)
        assert all(map(torch.equal, batches.next(), expected))


@given(lengths, st.integers(2, 5), st.integers(1, 60))
def test_ranks_divide_each_batch_without_loss_or_duplicates(sizes, world_size, tokens):
    pairs = pairs_of(sizes)
    undivided, *ranks = (
        BatchStream(
            pairs, batch_tokens=tokens, seed=3, start_id=EOS_ID, rank=rank, world_size=processes
        )
        for rank, processes in [(0, 1), *((rank, world_size) for rank in range(world_size))]
    )
    for indices in list(undivided.order):
        batch = undivided.next()
        parts = [stream.next() for stream in ranks]
        assert sum(part.num_target_tokens for part in parts) == batch.num_target_tokens
        rows = [
            (source[source != PAD_ID].tolist(), target[target != PAD_ID].tolist())
            for part in parts
            for source, target in zip(part.source, part.target_output, strict=True)
            if (target != PAD_ID).any()
        ]
        assert sorted(rows) == sorted(pairs[index] for index in indices.tolist())
        assert {stream.index for stream in ranks} == {undivided.index}
