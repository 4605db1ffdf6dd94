"""Multi30k is scored as in the literature."""

import os
from pathlib import Path

import pytest

from minitransformer.config import load_config
from minitransformer.data.readers import text_lines
from minitransformer.metrics import bleu
from tests.support.processes import ROOT

TEST_FILE = os.environ.get("MULTI30K_TOK_TEST", "")  # German, or English, a tab and German


def test_multi30k_bleu_does_not_tokenize_the_captions():
    config = load_config(ROOT / "configs" / "multi30k-tok.yaml")
    score = bleu(["ein hund ."], [["ein hund läuft ."]], config.evaluation.bleu_tokenizer)
    assert score.signature.startswith("nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|")
    assert "hyp_len = 3 ref_len = 4" in score.details


@pytest.mark.skipif(
    not TEST_FILE, reason="MULTI30K_TOK_TEST does not name Multi30k's tokenized test set of 2016"
)
def test_multi30k_references_of_2016_have_12103_words():
    tokenizer = load_config(ROOT / "configs" / "multi30k-tok.yaml").evaluation.bleu_tokenizer
    references = [line.split("\t")[-1] for line in text_lines(Path(TEST_FILE))]
    assert len(references) == 1000
    score = bleu(references, [[text] for text in references], tokenizer)
    assert "ref_len = 12103" in score.details
