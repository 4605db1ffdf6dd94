"""Which heads look at what a word comes of: known answers, and what pictures make of them."""

import json
import shutil

import pytest
import torch

from minitransformer.command_line import run_command
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
    as_json,
    best_of,
    judged_heads,
    main,
    measure,
    remember,
    remembered,
)
from minitransformer.model.trace import tap
from minitransformer.translator import Translator
from tests.processes import Running, run
from tests.small_runs import small_config, trainer_for
from tests.variants import RECURRENTS, build

COMMAND = "minitransformer/explain/alignment.py"
PLACES = 32  # of the hand-made model; a head's width


def words(*sizes: int) -> list[Word]:
    """Words of so many tokens each, one after the other."""
    places = iter(range(sum(sizes)))
    return [Word("w", [next(places) for _ in range(size)]) for size in sizes]


def pair_of(source: list[Word], target: list[Word], alignment: list[int]) -> AlignedPair:
    return AlignedPair(EncodedPair([], []), source, target, alignment)


def test_a_row_is_judged_for_what_it_is_fed_and_for_what_it_produces():
    weights = torch.tensor(
        [[[0.1, 0.8, 0.1, 0.0], [0.7, 0.2, 0.1, 0.0], [0.0, 0.3, 0.7, 0.0], [0.0, 0.0, 0.1, 0.9]]]
    )  # the last column is the end marker's, the last row produces it
    found = judged_heads(weights, pair_of(words(1, 1, 1), words(1, 1, 1), [1, 0, 2]))
    assert found[PRODUCED].right.tolist() == [3, 3]  # the head, and the mean of one head
    assert found[PRODUCED].weight.tolist() == pytest.approx([2.2, 2.2])
    # Row 1 is fed the first token, which comes of place 1, and looks at 0; row 2 the second,
    # and looks at 2; row 3 the third, and looks at 2 but for the end marker.
    assert found[FED].right.tolist() == [1, 1]
    assert found[FED].weight.tolist() == pytest.approx([0.2 + 0.0 + 0.1] * 2)


def test_pieces_are_judged_as_the_words_that_they_make_up():
    weights = torch.tensor(
        [[[0.3, 0.3, 0.4, 0.0], [0.3, 0.3, 0.4, 0.0], [0.0, 0.1, 0.9, 0.0], [0.0, 0.0, 0.0, 1.0]]]
    )
    found = judged_heads(weights, pair_of(words(2, 1), words(2, 1), [0, 1]))
    assert found[PRODUCED].right.tolist() == [2, 2]  # 0.6 beats 0.4, though no piece does
    assert found[PRODUCED].weight.tolist() == pytest.approx([1.5, 1.5])


def test_padding_changes_nothing():
    weights = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(1)).softmax(-1)
    pair = pair_of(words(1, 1), words(1, 2), [1, 0])
    padded = torch.nn.functional.pad(weights, (0, 3, 0, 2))
    for labelling, tally in judged_heads(weights, pair).items():
        again = judged_heads(padded, pair)[labelling]
        assert again.right.equal(tally.right)
        assert again.weight.allclose(tally.weight)


@pytest.fixture(scope="module")
def hand_made(tmp_path_factory):
    """Two heads on places alone: the first looks at its own, the second at the one before."""
    trainer = trainer_for(
        tmp_path_factory.mktemp("copy") / "run", "data.train=copy",
        "model.d_model=64", "model.num_heads=2",
        "model.positional_encoding=learned", "model.max_length=32", "model.source_eos=true",
        "model.decoder_start_token=bos",
    )  # fmt: skip
    model = trainer.model.eval()
    one_hot = torch.eye(PLACES)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for side in (model.encoder, model.decoder):
            side.embedding.positions.table[:PLACES, :PLACES] = one_hot
        cross = model.decoder.layers[0].cross_attention
        own, before = one_hot, one_hot.roll(-1, dims=0)  # place 1 becomes 0
        before[-1], before[0, 0] = 0, 1  # nothing stands before the first
        cross.query.weight[:, :PLACES] = 60 * torch.cat((own, before))
        # A key also answers to the next place, half as loud, so that no row is undecided.
        key = one_hot + 0.5 * one_hot.roll(1, dims=0)
        cross.key.weight[:, :PLACES] = torch.cat((key, key))
    return trainer


def test_a_hand_made_model_gives_exactly_the_table_that_it_was_made_for(hand_made):
    tokenizer = hand_made.tokenizer
    pairs = aligned_pairs("copy", 70, tokenizer, 32)  # more than one batch
    assert len(pairs) == 70
    table = measure(hand_made.model, pairs, tokenizer.start_id)
    first = len(pairs) / sum(len(pair.alignment) for pair in pairs)  # a word of each sentence
    found = {(each.layer, each.head, each.labelling): each.right for each in table}
    assert found == pytest.approx(
        {
            (0, 0, PRODUCED): 1.0,
            (0, 0, FED): first,  # the last one, whose row looks at the end marker
            (0, 1, FED): 1.0,
            (0, 1, PRODUCED): first,  # nothing stands before the first one
            (0, None, FED): 1.0,  # where both heads agree a little
            (0, None, PRODUCED): first,
        }
    )
    best = best_of(table)
    assert (best.layer, best.right) == (0, 1.0)
    assert best.head is not None  # a single head is surer than the mean


def test_the_attention_of_a_recurrent_model_is_one_head_of_layer_0():
    model = build(RECURRENTS["gru-unscaled"])
    pairs = [
        AlignedPair(EncodedPair([5] * length, [6] * length + [EOS_ID]),
                    words(*[1] * length), words(*[1] * length), list(range(length)))
        for length in (2, 4)
    ]  # fmt: skip
    attention = model.decoder.attention

    def look_at_the_same_place(states, memory):
        weights = torch.eye(states.shape[1], memory.states.shape[1]).expand(len(states), 1, -1, -1)
        tap(attention, weights=weights)
        return torch.cat((states, states), dim=-1)

    attention.forward = look_at_the_same_place
    table = measure(model, pairs, BOS_ID)
    found = {(each.layer, each.head, each.labelling): each.right for each in table}
    assert found == pytest.approx(
        {(0, head, way): {PRODUCED: 1.0, FED: 0.0}[way] for head in (0, None) for way in LABELLINGS}
    )


def test_a_run_without_attention_is_refused_in_one_line(tmp_path, capsys):
    config = small_config("data.train=copy", "model.kind=recurrent", "model.attention=none")
    (tmp_path / "config.yaml").write_text(config_to_yaml(config))
    assert run_command(lambda: main([str(tmp_path)])) == 2
    expected = f"error: {tmp_path} has no attention (model.attention is none): nothing in it looks"
    assert capsys.readouterr().err == f"{expected}\n"


def test_pairs_that_the_model_cannot_take_are_left_out(hand_made):
    pairs = aligned_pairs("copy", 50, hand_made.tokenizer, 6)
    assert len(pairs) == 50
    assert max(len(pair.alignment) for pair in pairs) == 5


@pytest.fixture(scope="module")
def substitute_run(tmp_path_factory):
    """A run of pieces that has learnt next to nothing."""
    folder = tmp_path_factory.mktemp("alignment")
    (folder / "valid.tsv").write_text("3 1\tone three\n")  # a thousand would take long
    path = folder / "run"
    trainer_for(
        path, "data.train=substitute", f"data.valid={folder / 'valid.tsv'}", "training.steps=2",
        "model.num_heads=2", "model.num_decoder_layers=2",
        "model.source_eos=true", "tokenizer.kind=bpe", "tokenizer.vocab_size=25",
        "model.max_length=24",
    ).fit()  # fmt: skip
    return path


@pytest.mark.slow
def test_the_command_prints_a_table_and_remembers_the_best(substitute_run, tmp_path):
    told = run(COMMAND, substitute_run, "--pairs", 20, "--json", "t.json", folder=tmp_path)
    assert told.code == 0, told.err
    assert told.err == f"wrote {substitute_run / 'alignment.json'}\n"
    lines = told.out.splitlines()
    checkpoint = Translator.load(substitute_run).checkpoint
    assert f"({checkpoint}) on substitute (test): 20 pairs, " in lines[0]
    assert [line.split()[:2] for line in lines[3:-1]] == [
        [layer, head] for layer in "01" for head in ("0", "1", "mean")
    ]
    data = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    table = [HeadAlignment(**each) for each in data["table"]]
    assert len(table) == 12
    best = remembered(substitute_run, checkpoint)
    assert best == best_of(table) == HeadAlignment(**data["best"])
    assert lines[-1] == best.caption


@pytest.mark.slow
def test_pictures_begin_with_the_best_head(substitute_run, tmp_path):
    moved, checkpoint = tmp_path / "moved", Translator.load(substitute_run).checkpoint
    shutil.copytree(substitute_run, moved)
    for head, labelling in ((1, PRODUCED), (None, FED)):
        best = HeadAlignment(1, head, labelling, 0.987, 0.9)
        remember(moved, as_json(checkpoint, "substitute", 9, [best]))
        for words in ([], ["--merge-subwords"]):
            told = run("translate.py", "--run", "moved", "--attention", "maps.svg", *words, "3 1 4",
                       folder=tmp_path)  # fmt: skip
            assert told.code == 0, told.err
            svg = (tmp_path / "maps.svg").read_text(encoding="utf-8")
            name = "mean of all heads" if head is None else "head 1"
            caption = f"aligns best: layer 1, {name}, rows = token {labelling} (98.7% right)"
            assert svg.count(caption) == 1
            assert svg.index(caption) < svg.index("self-attention, encoder layer 0")
            unit = "whole word" if words else "token"
            assert f"rows: {unit} {labelling}; columns: source" in svg
            assert ("whole word" in svg) == bool(words)


def test_a_best_head_of_another_checkpoint_is_left_aside_with_a_note(tmp_path, capsys):
    assert remembered(tmp_path, "step-000012") is None
    assert capsys.readouterr().err == ""
    remember(tmp_path, as_json("step-000009", "copy", 9, [HeadAlignment(0, 0, FED, 1, 1)]))
    assert remembered(tmp_path, "step-000012") is None
    assert "is about step-000009, this is step-000012; measure it with" in capsys.readouterr().err
    (tmp_path / "alignment.json").write_text("{}")
    assert remembered(tmp_path, "step-000009") is None
    assert "damaged" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_with_an_alignment_goes_on_and_is_moved_aside(tmp_path):
    path = tmp_path / "run"
    trainer_for(path, "training.steps=3").fit()
    remember(path, as_json("step-000003", "copy", 9, [HeadAlignment(0, 0, FED, 1, 1)]))
    assert trainer_for(path, "training.steps=6").fit() == 0
    trainer_for(path, "training.steps=3", fresh=True).fit()
    assert (tmp_path / "run.old-1" / "alignment.json").exists()
    assert not (path / "alignment.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        ([], 1, "trained on en-es: what comes of what is known only for the generated tasks "
                "(copy, reverse, substitute)"),
        (["--pairs", 0], 2, "--pairs 0: at least 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_one_line(tmp_path, arguments, code, complaint):
    trainer_for(tmp_path / "run", "training.steps=1").fit()
    told = run(COMMAND, "run", *arguments, folder=tmp_path)
    assert told.code == code
    assert complaint in told.err
    assert len(told.err.splitlines()) == 1
    assert not (tmp_path / "run" / "alignment.json").exists()


@pytest.mark.slow
def test_a_trained_model_looks_at_the_token_that_it_is_about_to_translate(tmp_path):
    trained = Running("train.py", "--config", "substitute.yaml", "--run", "run", "--set",
                      "logging.tensorboard=false", folder=tmp_path).finish(600)  # fmt: skip
    assert trained.code == 0, trained.err
    scores = run("minitransformer/evaluate.py", "run", folder=tmp_path).out
    assert float(scores.split("exact_match")[1].split()[0]) >= 0.99
    assert run(COMMAND, "run", folder=tmp_path).code == 0
    best = remembered(tmp_path / "run", "step-002000")
    assert best.labelling == PRODUCED
    assert best.right > 0.9
