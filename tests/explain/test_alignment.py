"""Attention heads are scored by gold alignments, and heatmaps show the best head first."""

import json
import shutil

import pytest
import torch

from minitransformer.cli import run_command
from minitransformer.cli.evaluate import main
from minitransformer.config import config_to_yaml
from minitransformer.data.dataset import EncodedPair
from minitransformer.data.tokenizer import BOS_ID, EOS_ID, Word
from minitransformer.explain.alignment import (
    FED,
    LABELLINGS,
    PRODUCED,
    AlignedPair,
    HeadAlignment,
    aligned_pairs,
    best_of,
    load_best_head,
    measure_heads,
    save_alignment,
    score_heads,
    table_json,
)
from minitransformer.model.trace import tap
from minitransformer.translator import Translator
from tests.support.processes import Running, run
from tests.support.small_runs import small_config, trainer_for
from tests.support.variants import RECURRENTS, build

COMMAND = ("evaluate", "--alignment", "--run")
POSITIONS = 32  # of the hand-made model; the width of a head


def words(*sizes: int) -> list[Word]:
    """Return consecutive words with these numbers of tokens."""
    indices = iter(range(sum(sizes)))
    return [Word("w", [next(indices) for _ in range(size)]) for size in sizes]


def pair_of(source: list[Word], target: list[Word], alignment: list[int]) -> AlignedPair:
    return AlignedPair(EncodedPair([], []), source, target, alignment)


def test_score_heads_counts_rows_as_fed_in_and_as_produced():
    weights = torch.tensor(
        [[[0.1, 0.8, 0.1, 0.0], [0.7, 0.2, 0.1, 0.0], [0.0, 0.3, 0.7, 0.0], [0.0, 0.0, 0.1, 0.9]]]
    )  # the last column is <EOS>, the last row produces it
    found = score_heads(weights, pair_of(words(1, 1, 1), words(1, 1, 1), [1, 0, 2]))
    assert found[PRODUCED][0].tolist() == [3, 3]  # the head, and the mean of one head
    assert found[PRODUCED][1].tolist() == pytest.approx([2.2, 2.2])
    # Row 1 is fed the first token, aligned with source 1, and attends to 0; row 2 is fed the second
    # and attends to 2; row 3 is fed the third and attends to 2, if <EOS> is ignored.
    assert found[FED][0].tolist() == [1, 1]
    assert found[FED][1].tolist() == pytest.approx([0.2 + 0.0 + 0.1] * 2)


def test_score_heads_merges_subwords():
    weights = torch.tensor(
        [[[0.3, 0.3, 0.4, 0.0], [0.3, 0.3, 0.4, 0.0], [0.0, 0.1, 0.9, 0.0], [0.0, 0.0, 0.0, 1.0]]]
    )
    found = score_heads(weights, pair_of(words(2, 1), words(2, 1), [0, 1]))
    assert found[PRODUCED][0].tolist() == [2, 2]  # 0.3 + 0.3 > 0.4
    assert found[PRODUCED][1].tolist() == pytest.approx([1.5, 1.5])


def test_score_heads_ignores_padding():
    weights = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(1)).softmax(-1)
    pair = pair_of(words(1, 1), words(1, 2), [1, 0])
    padded = torch.nn.functional.pad(weights, (0, 3, 0, 2))
    for labelling, sums in score_heads(weights, pair).items():
        assert score_heads(padded, pair)[labelling].allclose(sums)


@pytest.fixture(scope="module")
def hand_made(tmp_path_factory):
    """A trainer whose first head attends to its own position, and the second to the one before."""
    trainer = trainer_for(
        tmp_path_factory.mktemp("copy") / "run", "data.train=copy",
        "model.d_model=64", "model.num_heads=2",
        "model.positional_encoding=learned", "model.max_length=32", "model.source_eos=true",
        "model.decoder_start_token=bos",
    )  # fmt: skip
    model = trainer.model.eval()
    one_hot = torch.eye(POSITIONS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for side in (model.encoder, model.decoder):
            side.embedding.positions.table[:POSITIONS, :POSITIONS] = one_hot
        cross = model.decoder.layers[0].cross_attention
        own, before = one_hot, one_hot.roll(-1, dims=0)  # position 1 becomes 0
        before[-1], before[0, 0] = 0, 1  # the first position has none before it
        cross.query.weight[:, :POSITIONS] = 60 * torch.cat((own, before))
        # A key also matches the next position, by half, so that no row has two maxima.
        key = one_hot + 0.5 * one_hot.roll(1, dims=0)
        cross.key.weight[:, :POSITIONS] = torch.cat((key, key))
    return trainer


def test_measure_heads_gives_the_table_of_a_hand_made_model(hand_made):
    tokenizer = hand_made.tokenizer
    pairs = aligned_pairs("copy", 70, tokenizer, 32)  # more than one batch
    assert len(pairs) == 70
    table = measure_heads(hand_made.model, pairs, tokenizer.start_id)
    first = len(pairs) / sum(len(pair.alignment) for pair in pairs)  # one word per sentence
    found = {(each.layer, each.head, each.labelling): each.right for each in table}
    assert found == pytest.approx(
        {
            (0, 0, PRODUCED): 1.0,
            (0, 0, FED): first,  # only the last one, whose row attends to <EOS>
            (0, 1, FED): 1.0,
            (0, 1, PRODUCED): first,  # only the first one, which has none before it
            (0, None, FED): 1.0,  # where both heads have some weight
            (0, None, PRODUCED): first,
        }
    )
    best = best_of(table)
    assert (best.layer, best.right) == (0, 1.0)
    assert best.head is not None  # a single head has a higher weight than the mean


def test_measure_heads_takes_recurrent_attention_as_one_head():
    model = build(RECURRENTS["gru-unscaled"])
    pairs = [
        AlignedPair(EncodedPair([5] * length, [6] * length + [EOS_ID]),
                    words(*[1] * length), words(*[1] * length), list(range(length)))
        for length in (2, 4)
    ]  # fmt: skip
    attention = model.decoder.attention

    def attend_to_the_same_position(states, memory):
        weights = torch.eye(states.shape[1], memory.states.shape[1]).expand(len(states), 1, -1, -1)
        tap(attention, weights=weights)
        return torch.cat((states, states), dim=-1)

    attention.forward = attend_to_the_same_position
    table = measure_heads(model, pairs, BOS_ID)
    found = {(each.layer, each.head, each.labelling): each.right for each in table}
    assert found == pytest.approx(
        {
            (0, head, labelling): {PRODUCED: 1.0, FED: 0.0}[labelling]
            for head in (0, None)
            for labelling in LABELLINGS
        }
    )


def test_alignment_refuses_a_run_without_attention(tmp_path, capsys):
    config = small_config("data.train=copy", "model.kind=recurrent", "model.attention=none")
    (tmp_path / "config.yaml").write_text(config_to_yaml(config))
    arguments = ["--alignment", "--run", str(tmp_path)]
    assert run_command(lambda: main(arguments)) == 2
    expected = f"error: {tmp_path} has no attention (model.attention is none)"
    assert capsys.readouterr().err == f"{expected}\n"


def test_aligned_pairs_fit_the_model(hand_made):
    pairs = aligned_pairs("copy", 50, hand_made.tokenizer, 6)
    assert len(pairs) == 50
    assert max(len(pair.alignment) for pair in pairs) == 5


@pytest.fixture(scope="module")
def substitute_run(tmp_path_factory):
    """A run with subwords that was trained for two steps."""
    folder = tmp_path_factory.mktemp("alignment")
    (folder / "valid.tsv").write_text("3 1\tone three\n")  # the generated thousand take long
    path = folder / "run"
    trainer_for(
        path, "data.train=substitute", f"data.valid={folder / 'valid.tsv'}", "training.steps=2",
        "model.num_heads=2", "model.num_decoder_layers=2",
        "model.source_eos=true", "tokenizer.kind=bpe", "tokenizer.vocab_size=25",
        "model.max_length=24",
    ).fit()  # fmt: skip
    return path


@pytest.mark.slow
def test_alignment_prints_a_table_and_saves_the_best_head(substitute_run, tmp_path):
    result = run(*COMMAND, substitute_run, "--pairs", 20, "--to", "t.json", folder=tmp_path)
    assert result.code == 0, result.err
    assert result.err == f"wrote {substitute_run / 'alignment.json'}\nwrote t.json\n"
    lines = result.out.splitlines()
    checkpoint = Translator.load(substitute_run).checkpoint
    assert f"({checkpoint}) on substitute (test): 20 pairs, " in lines[0]
    assert [line.split()[:2] for line in lines[3:-1]] == [
        [layer, head] for layer in "01" for head in ("0", "1", "mean")
    ]
    data = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    table = [HeadAlignment(**each) for each in data["table"]]
    assert len(table) == 12
    best = load_best_head(substitute_run, checkpoint)
    assert best == best_of(table) == HeadAlignment(**data["best"])
    assert lines[-1] == best.caption


@pytest.mark.slow
def test_heatmaps_begin_with_the_best_head(substitute_run, tmp_path):
    moved, checkpoint = tmp_path / "moved", Translator.load(substitute_run).checkpoint
    shutil.copytree(substitute_run, moved)
    for head, labelling in ((1, PRODUCED), (None, FED)):
        best = HeadAlignment(1, head, labelling, 0.987, 0.9)
        save_alignment(moved, table_json(checkpoint, "substitute", 9, [best]))
        for options in ([], ["--merge-subwords"]):
            result = run("explain", "--run", "moved", "--to", "maps.svg", *options, "3 1 4",
                         folder=tmp_path)  # fmt: skip
            assert result.code == 0, result.err
            svg = (tmp_path / "maps.svg").read_text(encoding="utf-8")
            name = "mean of all heads" if head is None else "head 1"
            caption = f"aligns best: layer 1, {name}, rows = token {labelling} (98.7% right)"
            assert svg.count(caption) == 1
            assert svg.index(caption) < svg.index("self-attention, encoder layer 0")
            unit = "whole word" if options else "token"
            assert f"rows: {unit} {labelling}; columns: source" in svg
            assert ("whole word" in svg) == bool(options)


def test_load_best_head_ignores_another_checkpoint_with_a_note(tmp_path, capsys):
    assert load_best_head(tmp_path, "step-000012") is None
    assert capsys.readouterr().err == ""
    save_alignment(tmp_path, table_json("step-000009", "copy", 9, [HeadAlignment(0, 0, FED, 1, 1)]))
    assert load_best_head(tmp_path, "step-000012") is None
    assert (
        "was measured on step-000009, this is step-000012; measure again with"
        in capsys.readouterr().err
    )
    (tmp_path / "alignment.json").write_text("{}")
    assert load_best_head(tmp_path, "step-000009") is None
    assert "damaged" in capsys.readouterr().err


@pytest.mark.slow
def test_run_with_an_alignment_is_resumed_and_moved_aside(tmp_path):
    path = tmp_path / "run"
    trainer_for(path, "training.steps=3").fit()
    save_alignment(path, table_json("step-000003", "copy", 9, [HeadAlignment(0, 0, FED, 1, 1)]))
    assert trainer_for(path, "training.steps=6").fit() == 0
    trainer_for(path, "training.steps=3", fresh=True).fit()
    assert (tmp_path / "run.old-1" / "alignment.json").exists()
    assert not (path / "alignment.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 1, "trained on en-es: gold alignments are known only for the generated tasks "
                "(copy, reverse, substitute)"),
        (["--pairs", 0], 2, "--pairs 0: at least 1"),
    ],
)  # fmt: skip
def test_alignment_errors_are_one_line(tmp_path, arguments, code, message):
    trainer_for(tmp_path / "run", "training.steps=1").fit()
    result = run(*COMMAND, "run", *arguments, folder=tmp_path)
    assert result.code == code
    assert message in result.err
    assert len(result.err.splitlines()) == 1
    assert not (tmp_path / "run" / "alignment.json").exists()


@pytest.mark.slow
def test_trained_model_attends_to_the_token_it_translates(tmp_path):
    trained = Running("train.py", "--config", "substitute.yaml", "--run", "run", "--set",
                      "logging.tensorboard=false", folder=tmp_path).finish(600)  # fmt: skip
    assert trained.code == 0, trained.err
    scores = run("evaluate", "--run", "run", folder=tmp_path).out
    assert float(scores.split("exact_match")[1].split()[0]) >= 0.99
    assert run(*COMMAND, "run", folder=tmp_path).code == 0
    best = load_best_head(tmp_path / "run", "step-002000")
    assert best.labelling == PRODUCED
    assert best.right > 0.9
