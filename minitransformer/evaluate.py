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
    run_command,
    take_interrupts,
)
from minitransformer.config import load_config
from minitransformer.data.corpus import Split
from minitransformer.data.dataset import Dataset, prepare_dataset
from minitransformer.data.readers import describe_misalignment, text_lines
from minitransformer.data.tokenizer import (
    LONE_SURROGATE,
    normalize,
)
from minitransformer.errors import DataError, UsageError
from minitransformer.evaluation import evaluate
from minitransformer.metrics import References
from minitransformer.translator import Translator


class TestSet(NamedTuple):
    """Sentences to translate, and what is right for each of them."""

    name: str
    sources: list[str]
    references: References
    remarks: list[str]


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
        help="score on these sentences instead, one a line; without --references, all that stands "
        "behind a sentence after tabs is right",
    )  # fmt: skip
    parser.add_argument(
        "--references", type=Path, nargs="+", action="extend", metavar="FILE",
        help="their translations, line by line; several files are several references",
    )  # fmt: skip
    parser.add_argument(
        "--against", type=Path, metavar="RUN",
        help="another run: both scores, and whether chance explains the difference",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="look elsewhere, such as data.test=other.tsv (repeatable)",
    )  # fmt: skip
    add_weights_options(parser)
    add_search_options(parser)
    options = parser.parse_args(arguments)
    if options.references and not options.input:
        raise UsageError("--references are the translations of an --input")
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
    take_interrupts()
    options = parse(arguments)
    translator = load_translator(options.run, options)
    other = load_translator(options.against, options) if options.against else None
    config = load_config(options.run / "config.yaml", options.set)
    if options.input:
        test = read_files(options.input, options.references or [])
    else:
        dataset = prepare_dataset(config, translator.tokenizer)
        split = asked_split(dataset, translator, options)
        test = of_split(split)
    count = f"{len(test.sources):,} pair{'s' * (len(test.sources) != 1)}"
    print(f"{options.run} ({translator.checkpoint}) on {test.name}: {count}")
    print(f"  search: {translator.search}")
    for line in test.remarks:
        print(f"  {line}")
    if not options.input and split.name != "train":
        learned = {normalize(pair.source) for pair in dataset.corpus.train}
        if seen := sum(normalize(source) in learned for source in test.sources):
            print(f"  {seen:,} whose source is among the training pairs, too")
        if dataset.fingerprint != translator.data_fingerprint:
            print("  (training pairs as they are now; it was trained with others)")
    tokenizer = config.evaluation.bleu_tokenizer
    if other:
        print(f"against {options.against} ({other.checkpoint})")
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


def asked_split(dataset: Dataset, translator: Translator, options: argparse.Namespace) -> Split:
    """The split that was asked for; refuses one that is another than the run was judged by."""
    name, corpus = options.split or "test", dataset.corpus
    is_cut = name != "test" or corpus.config.split_test > 0  # and may now be what was trained on
    if is_cut and dataset.fingerprint != translator.data_fingerprint:
        raise DataError(
            f"{corpus.name} has other sentence pairs now than {options.run} was trained with, or "
            "is split otherwise; name pairs to score as --input FILE"
        )
    if name not in corpus.splits:
        raise DataError(
            f"{corpus.name} has no {name} split (there: {', '.join(corpus.splits)}); choose "
            "another, or name pairs as --input FILE or with --split test --set data.test=FILE"
        )
    return corpus.splits[name]


def of_split(split: Split) -> TestSet:
    pairs = list(split)
    name = split.source.name
    return TestSet(
        name if name.endswith(f"({split.name})") else f"{name} ({split.name})",
        [pair.source for pair in pairs],
        [[normalize(pair.target)] for pair in pairs],
        split.report.lines(),
    )


def read_files(source: Path, references: list[Path]) -> TestSet:
    """Sentences and their references from aligned files, or from the columns of one."""
    rows = [[field.strip() for field in line.split("\t")] for line in whole_lines(source)]
    if not rows:
        raise DataError(f"{source} is empty")
    for path in references:
        lines = whole_lines(path)
        if len(lines) != len(rows):
            raise DataError(describe_misalignment(source, path))
        for row, line in zip(rows, lines, strict=True):
            row.append(line.strip())
    for number, row in enumerate(rows, start=1):
        for path, text in zip([source, *references], row, strict=False):
            if not text:
                raise DataError(f"{path}, line {number}: nothing there")
        if references and len(row) != 1 + len(references):
            raise DataError(
                f"{source}, line {number}: a tab; references stand behind tabs or in --references"
            )
        if not references and not any(row[1:]):
            raise DataError(
                f"{source}, line {number}: no reference after a tab; "
                "name a file of them as --references"
            )
    sources = [row[0] for row in rows]
    return TestSet(source.name, sources, [[text for text in row[1:] if text] for row in rows], [])


def whole_lines(path: Path) -> list[str]:
    """A file's lines; refuses bytes that are not UTF-8."""
    lines = list(text_lines(path))
    for number, line in enumerate(lines, start=1):
        if not line.isascii() and LONE_SURROGATE.search(line):
            raise DataError(f"{path}, line {number}: not UTF-8")
    return [normalize(line) for line in lines]


def translated(translator: Translator, test: TestSet) -> list[str]:
    return [translation.text for translation in translator.translate(test.sources)]


def text_scores(translations: list[str], references: References, tokenizer: str) -> dict[str, Any]:
    """BLEU as it is and in lower case, and chrF."""
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
    """Both scores with their intervals, and how probable their difference is by chance."""
    both = (translated(translator, test), translated(other, test))
    for each in metrics.compare(*both, test.references, tokenizer):
        p = "too few sentences for a p" if each.p is None else f"p = {each.p:.4f}"
        print(f"  {each.metric:5} {each.first} against {each.second}, {p}")
        print(f"        {each.signature}")
    print("  (mean and 95 % interval of resampled tests; p < 0.05: more than chance explains)")


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(sys.argv[1:])))
