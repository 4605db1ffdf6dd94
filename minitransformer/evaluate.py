"""Score a trained run on a split or on files, or compare it with another run.

python -m minitransformer.evaluate runs/tiny --split valid
"""

if __name__ == "__main__":
    from minitransformer.command_line import end_on_interrupt

    end_on_interrupt()

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

from minitransformer import metrics
from minitransformer.command_line import (
    add_search_options,
    add_weights_options,
    check_search_options,
    load_translator,
    raise_on_interrupt,
    run_command,
)
from minitransformer.config import load_config
from minitransformer.data.corpus import Split
from minitransformer.data.dataset import Dataset, prepare_dataset
from minitransformer.data.readers import describe_misalignment, text_lines
from minitransformer.data.tokenizer import LONE_SURROGATE, normalize
from minitransformer.errors import DataError, UsageError
from minitransformer.evaluation import evaluate
from minitransformer.metrics import References
from minitransformer.translator import Translator


class TestSet(NamedTuple):
    """Sentences to translate, with one or more references for each."""

    name: str
    sources: list[str]
    references: References
    notes: list[str]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m minitransformer.evaluate",
        description="Score a trained run on a split of the corpus that its config names, or on "
        "files; compare it with another run.",
    )
    parser.add_argument("run", type=Path, help="a run's folder, such as runs/tiny")
    parser.add_argument("--split", choices=("train", "valid", "test"), help="default: test")
    parser.add_argument(
        "--input", type=Path, metavar="FILE",
        help="score on these sentences instead, one per line; without --references, tab-separated "
        "references follow each sentence",
    )  # fmt: skip
    parser.add_argument(
        "--references", type=Path, nargs="+", action="extend", metavar="FILE",
        help="translations of --input, line by line; each file is one more reference",
    )  # fmt: skip
    parser.add_argument(
        "--compare", type=Path, metavar="RUN",
        help="another run: print both scores and the p-value of their difference",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="change a data.… or evaluation.… setting, such as data.test=other.tsv (repeatable)",
    )  # fmt: skip
    add_weights_options(parser)
    add_search_options(parser)
    options = parser.parse_args(arguments)
    if options.references and not options.input:
        raise UsageError("--references goes with --input")
    if options.input and options.split:
        raise UsageError("--split or --input: choose one of them")
    check_search_options(options)
    for change in options.set:
        if not change.startswith(("data.", "evaluation.")):
            raise UsageError(f"--set {change}: only data.… and evaluation.… can be changed here")
        if change.startswith(("evaluation.average_checkpoints", "evaluation.best_metric")):
            raise UsageError(f"--set {change}: use --average or --checkpoint instead")
    return options


def main(arguments: list[str]) -> int:
    raise_on_interrupt()
    options = parse(arguments)
    translator = load_translator(options.run, options)
    other = load_translator(options.compare, options) if options.compare else None
    config = load_config(options.run / "config.yaml", options.set)
    if options.input:
        test = read_test_set(options.input, options.references or [])
    else:
        dataset = prepare_dataset(config, translator.tokenizer)
        split = requested_split(dataset, translator, options)
        test = split_test_set(split)
    count = f"{len(test.sources):,} pair{'s' * (len(test.sources) != 1)}"
    print(f"{options.run} ({translator.checkpoint}) on {test.name}: {count}")
    print(f"  search: {translator.search}")
    for line in test.notes:
        print(f"  {line}")
    if not options.input and split.name != "train":
        learned = {normalize(pair.source) for pair in dataset.corpus.train}
        if seen := sum(normalize(source) in learned for source in test.sources):
            print(f"  {seen:,} whose source is among the training pairs, too")
        if dataset.fingerprint != translator.data_fingerprint:
            print("  (counted in today's training pairs; the run was trained with others)")
    tokenizer = config.evaluation.bleu_tokenizer
    if other:
        print(f"against {options.compare} ({other.checkpoint})")
        if not options.input and other.data_fingerprint != translator.data_fingerprint:
            print("  (was trained with other pairs)")
        print_comparison(translator, other, test, tokenizer)
    elif options.input:
        encoded_sources = [translator.tokenizer.encode_source(text) for text in test.sources]
        if unknown := sum(bool(each.unknown) for each in encoded_sources):
            print(f"  {unknown:,} with words or characters that training does not have")
        if cut := sum(len(each.ids) > translator.max_length for each in encoded_sources):
            print(f"  {cut:,} longer than the {translator.max_length} tokens that the model takes")
        print_scores(text_scores(translated(translator, test), test.references, tokenizer))
    else:
        encoded = dataset.encoded[split.name]
        found = evaluate(
            translator.model, list(split), encoded, translator.tokenizer, config, translator.search
        )
        translations = [sample.translation for sample in found.samples]
        print_scores(found.row() | text_scores(translations, test.references, tokenizer))
    return 0


def requested_split(dataset: Dataset, translator: Translator, options: argparse.Namespace) -> Split:
    """Return the split to score; refuse one that may now have pairs that the run trained on."""
    name, corpus = options.split or "test", dataset.corpus
    is_derived = name != "test" or corpus.config.split_test > 0  # from the training file
    if is_derived and dataset.fingerprint != translator.data_fingerprint:
        raise DataError(
            f"{corpus.name} has other sentence pairs now than {options.run} was trained with, or "
            "is split differently; give pairs to score as --input FILE"
        )
    if name not in corpus.splits:
        raise DataError(
            f"{corpus.name} has no {name} split (there: {', '.join(corpus.splits)}); choose "
            "another, or give pairs as --input FILE or with --split test --set data.test=FILE"
        )
    return corpus.splits[name]


def split_test_set(split: Split) -> TestSet:
    pairs = list(split)
    name = split.source.name
    return TestSet(
        name if name.endswith(f"({split.name})") else f"{name} ({split.name})",
        [pair.source for pair in pairs],
        [[normalize(pair.target)] for pair in pairs],
        split.report.lines(),
    )


def read_test_set(source: Path, references: list[Path]) -> TestSet:
    """Read sentences and references from aligned files, or from the columns of one file."""
    rows = [[field.strip() for field in line.split("\t")] for line in read_utf8_lines(source)]
    if not rows:
        raise DataError(f"{source} is empty")
    for path in references:
        lines = read_utf8_lines(path)
        if len(lines) != len(rows):
            raise DataError(describe_misalignment(source, path))
        for row, line in zip(rows, lines, strict=True):
            row.append(line.strip())
    for number, row in enumerate(rows, start=1):
        for path, text in zip([source, *references], row, strict=False):
            if not text:
                raise DataError(f"{path}, line {number}: no text")
        if references and len(row) != 1 + len(references):
            raise DataError(
                f"{source}, line {number}: a tab, although references are in --references"
            )
        if not references and not any(row[1:]):
            raise DataError(
                f"{source}, line {number}: no reference after a tab; "
                "give a file of them as --references"
            )
    sources = [row[0] for row in rows]
    return TestSet(source.name, sources, [[text for text in row[1:] if text] for row in rows], [])


def read_utf8_lines(path: Path) -> list[str]:
    """Return a file's lines, normalized; refuse bytes that are not UTF-8."""
    lines = list(text_lines(path))
    for number, line in enumerate(lines, start=1):
        if not line.isascii() and LONE_SURROGATE.search(line):
            raise DataError(f"{path}, line {number}: not UTF-8")
    return [normalize(line) for line in lines]


def translated(translator: Translator, test: TestSet) -> list[str]:
    return [translation.text for translation in translator.translate(test.sources)]


def text_scores(translations: list[str], references: References, tokenizer: str) -> dict[str, Any]:
    """Return BLEU, BLEU of lowercased text, and chrF."""
    cased = metrics.bleu(translations, references, tokenizer)
    lower = metrics.bleu(translations, references, tokenizer, lowercase=True)
    chrf = metrics.chrf(translations, references)
    return {
        "bleu": cased.value,
        "bleu_details": cased.details,
        "bleu_signature": cased.signature,
        "bleu_lowercase": lower.value,
        "bleu_lowercase_signature": lower.signature,
        "chrf": chrf.value,
        "chrf_signature": chrf.signature,
    }


def print_scores(scores: dict[str, Any]) -> None:
    for name, value in scores.items():
        shown = f"{value:.4f}" if isinstance(value, float) else value
        if value is None:
            shown = "- (no reference has four words)" if name.startswith("bleu") else "-"
        print(f"  {name:24} {shown}")


def print_comparison(
    translator: Translator, other: Translator, test: TestSet, tokenizer: str
) -> None:
    """Print both scores with their intervals, and the p-value of their difference."""
    both = (translated(translator, test), translated(other, test))
    for each in metrics.compare(*both, test.references, tokenizer):
        p = "too few sentences for a p-value" if each.p is None else f"p = {each.p:.4f}"
        print(f"  {each.metric:5} {each.first} against {each.second}, {p}")
        print(f"        {each.signature}")
    print("  (mean and 95 % interval of bootstrap samples; p < 0.05: a significant difference)")


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(sys.argv[1:])))
