"""The verb forms and translations of the shipped corpora follow their grammar."""

import unicodedata
from collections import Counter

import pytest

from minitransformer.data.corpus import Pair
from minitransformer.data.tokenizer import split_words
from tests.support.corpus_files import corpus_of

NAMES = ("en-es", "en-bn")
FIRST_LINES = 36  # contain every word, for the lesson on memorizing a tiny corpus

# Subject: Spanish words (none if the verb form implies it), index of the verb form.
SPANISH_SUBJECTS = {
    "I": ("", 0), "You": ("", 1), "He": ("Él", 2), "She": ("Ella", 2), "We": ("", 3),
    "They": ("Ellos", 4), "Ana": ("Ana", 2), "Pedro": ("Pedro", 2),
    "My brother": ("Mi hermano", 2), "The children": ("Los niños", 4), "Let's": ("", 3),
}  # fmt: skip
SPANISH_VERBS = {
    "go": "voy vas va vamos van", "eat": "como comes come comemos comen",
    "drink": "bebo bebes bebe bebemos beben", "read": "leo lees lee leemos leen",
    "buy": "compro compras compra compramos compran",
    "have": "tengo tienes tiene tenemos tienen", "live": "vivo vives vive vivimos viven",
}  # fmt: skip
BANGLA_SUBJECTS = {
    "I": ("আমি", 0), "You": ("তুমি", 1), "He": ("সে", 2), "She": ("সে", 2), "We": ("আমরা", 0),
    "They": ("তারা", 2), "Rahim": ("রহিম", 2), "Mina": ("মিনা", 2),
    "My brother": ("আমার ভাই", 2), "The girl": ("মেয়েটি", 2), "Let's": ("চলো", 0),
}  # fmt: skip
BANGLA_VERBS = {
    "go": "যাই যাও যায়", "eat": "খাই খাও খায়", "drink": "খাই খাও খায়", "read": "পড়ি পড়ো পড়ে",
    "write": "লিখি লেখো লেখে", "buy": "কিনি কেনো কেনে", "watch": "দেখি দেখো দেখে",
    "live": "থাকি থাকো থাকে",
}  # fmt: skip
THIRD_PERSON = {"He", "She", "Ana", "Pedro", "Rahim", "Mina", "My brother", "The girl"}


def nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def all_pairs(name: str) -> list[Pair]:
    corpus = corpus_of(train=name)
    return [*corpus.train, *corpus.splits["valid"]]


def parse(source: str, subjects, verbs) -> tuple[str, str, str]:
    """Split an English sentence into subject, base verb and rest, and check its agreement."""
    subject = max((each for each in subjects if source.startswith(f"{each} ")), key=len)
    verb, _, rest = source.removeprefix(f"{subject} ").partition(" ")
    inflected = {base: base + ("es" if base in ("go", "watch") else "s") for base in verbs}
    inflected["have"] = "has"
    base = next(each for each in verbs if verb in (each, inflected[each]))
    assert verb == (inflected[base] if subject in THIRD_PERSON else base), source
    return subject, base, rest


def test_spanish_verbs_agree_and_objects_have_one_translation():
    objects: dict[tuple[str, str], set[str]] = {}
    for source, target in all_pairs("en-es"):
        subject, base, rest = parse(source, SPANISH_SUBJECTS, SPANISH_VERBS)
        words, person = SPANISH_SUBJECTS[subject]
        form = SPANISH_VERBS[base].split()[person]
        start = f"{words} {form}" if words else form.capitalize()
        assert f"{target} ".startswith(f"{start} "), (source, target)
        objects.setdefault((base, rest), set()).add(target.removeprefix(start).strip())
    assert all(len(translations) == 1 for translations in objects.values())
    assert objects["go", "to school"] == {"a la escuela"}


def test_bangla_verbs_agree_and_objects_have_one_translation():
    objects: dict[tuple[str, str], set[str]] = {}
    for source, target in all_pairs("en-bn"):
        subject, base, rest = parse(source, BANGLA_SUBJECTS, BANGLA_VERBS)
        words, person = BANGLA_SUBJECTS[subject]
        form = nfc(BANGLA_VERBS[base].split()[person])
        words = nfc(words)
        assert target.startswith(f"{words} "), (source, target)
        assert target.endswith(f" {form}"), (source, target)
        objects.setdefault((base, rest), set()).add(
            target.removeprefix(words).removesuffix(form).strip()
        )
    assert all(len(translations) == 1 for translations in objects.values())
    assert objects["go", "to school"] == {"স্কুলে"}


@pytest.mark.parametrize("name", NAMES)
def test_corpus_is_large_enough_and_has_one_target_per_source(name):
    corpus = corpus_of(train=name)
    assert len(corpus.train) >= 200
    assert len(corpus.splits["valid"]) >= 40
    assert all(split.report.defects == {} for split in corpus.splits.values())
    sources = Counter(pair.source for pair in all_pairs(name))
    assert max(sources.values()) == 1


@pytest.mark.parametrize("name", NAMES)
def test_held_out_sentences_are_new_combinations_of_known_words(name):
    corpus = corpus_of(train=name)
    assert not {pair.target for pair in corpus.splits["valid"]} & {
        pair.target for pair in corpus.train
    }
    for side in (0, 1):
        known = {word for pair in corpus.train for word in split_words(pair[side])}
        for pair in corpus.splits["valid"]:
            assert set(split_words(pair[side])) <= known, pair


@pytest.mark.parametrize("name", NAMES)
def test_first_lines_contain_every_word(name):
    pairs = list(corpus_of(train=name).train)
    for side in (0, 1):
        every = {word for pair in pairs for word in split_words(pair[side])}
        first = {word for pair in pairs[:FIRST_LINES] for word in split_words(pair[side])}
        assert first == every


def test_sentences_of_the_source_material_are_in_training():
    assert Pair("Let's go", "Vamos") in corpus_of(train="en-es").train
    bangla = corpus_of(train="en-bn").train
    assert Pair("I go to school", "আমি স্কুলে যাই") in bangla


@pytest.mark.parametrize("name", NAMES)
def test_every_sentence_is_nfc_with_single_spaces(name):
    for pair in all_pairs(name):
        for text in pair:
            assert text == nfc(text)
            assert text == " ".join(text.split())
