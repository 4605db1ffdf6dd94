"""What `minitransformer evaluate` scores and prints, once evaluate.py has parsed its options."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from minitransformer import metrics
from minitransformer.cli import load_translator, named_run
from minitransformer.config import load_config
from minitransformer.data.corpus import Split
from minitransformer.data.dataset import Dataset, prepare_dataset
from minitransformer.data.readers import describe_misalignment, text_lines
from minitransformer.data.tokenizer import LONE_SURROGATE, normalize
from minitransformer.data.toy_tasks import TASKS
from minitransformer.errors import DataError, UsageError
from minitransformer.evaluation import evaluate
from minitransformer.explain.alignment import (
    aligned_pairs,
    best_of,
    measure_heads,
    save_alignment,
    table_json,
    table_lines,
)
from minitransformer.metrics import Comparison, References, Resampled
from minitransformer.run import RunFolder
from minitransformer.settings import Config
from minitransformer.storage import write_output
from minitransformer.translator import Translator


class TestSet(NamedTuple):
    """Sentences to translate, with one or more references for each."""

    name: str
    sources: list[str]
    references: References
    notes: list[str]


def score(run: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Score a run, or compare it with another; print the result and return it as data."""
    if options.compare and options.compare.resolve() == run.resolve():
        print(f"note: {run} is compared with itself", file=sys.stderr)
    translator = load_translator(run, options)
    other = load_translator(named_run(options.compare), options) if options.compare else None
    config = load_config(run / "config.yaml", options.set)
    if options.input:
        test = read_test_set(options.input, options.references or [])
    else:
        dataset = prepare_dataset(config, translator.tokenizer)
        split = requested_split(dataset, run, translator, options)
        test = split_test_set(split)
    count = f"{len(test.sources):,} pair{'s' * (len(test.sources) != 1)}"
    print(f"{run} ({translator.checkpoint}) on {test.name}: {count}")
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
    found: dict[str, Any] = {
        "run": str(run), "checkpoint": translator.checkpoint, "test_set": test.name,
        "pairs": len(test.sources), "search": str(translator.search),
    }  # fmt: skip
    if other:
        print(f"against {options.compare} ({other.checkpoint})")
        if not options.input and other.data_fingerprint != translator.data_fingerprint:
            print("  (was trained with other pairs)")
        both = (translated(translator, test), translated(other, test))
        comparisons = metrics.compare(*both, test.references, tokenizer)
        print_comparisons(comparisons)
        against = {"run": str(options.compare), "checkpoint": other.checkpoint}
        return found | {"against": against, "comparisons": as_data(comparisons)}
    if options.input:
        encoded_sources = [translator.tokenizer.encode_source(text) for text in test.sources]
        if unknown := sum(bool(each.unknown) for each in encoded_sources):
            print(f"  {unknown:,} with words or characters that training does not have")
        if cut := sum(len(each.ids) > translator.max_length for each in encoded_sources):
            print(f"  {cut:,} longer than the {translator.max_length} tokens that the model takes")
        scores = text_scores(translated(translator, test), test.references, tokenizer)
    else:
        encoded = dataset.encoded[split.name]
        evaluation = evaluate(
            translator.model, list(split), encoded, translator.tokenizer, config, translator.search
        )
        translations = [sample.translation for sample in evaluation.samples]
        scores = evaluation.row() | text_scores(translations, test.references, tokenizer)
    print_scores(scores)
    return found | {"scores": scores}


def align(run: Path, num_pairs: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure how well each head of a run aligns; print, save and return the table."""
    config = RunFolder(run).load_config()
    task = aligned_task(config, run)
    translator = load_translator(run, options)
    tokenizer = translator.tokenizer
    pairs = aligned_pairs(task, num_pairs, tokenizer, translator.max_length)
    if not pairs:
        raise DataError(f"no pair of {task} has at most {translator.max_length} tokens on a side")
    table = measure_heads(translator.model, pairs, tokenizer.start_id)
    words = sum(len(pair.alignment) for pair in pairs)
    counts = f"{len(pairs):,} pairs, {words:,} words"
    print(f"{run} ({translator.checkpoint}) on {task} (test): {counts}")
    print(*table_lines(table), best_of(table).caption, sep="\n")
    found = table_json(translator.checkpoint, task, len(pairs), table)
    print(f"wrote {save_alignment(run, found)}", file=sys.stderr)
    return found


def aligned_task(config: Config, run: Path) -> str:
    """Return the generated task that a run was trained on; refuse other runs."""
    task = config.data.train
    if not isinstance(task, str) or task not in TASKS:
        raise DataError(
            f"{run} was trained on {task}: gold alignments are known only for the generated tasks "
            f"({', '.join(TASKS)})"
        )
    if config.model.attention == "none":
        raise UsageError(f"{run} has no attention (model.attention is none)")
    return task


def write_json(path: Path, found: dict[str, Any]) -> None:
    text = json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False)
    write_output(path, f"{text}\n".encode())


def requested_split(
    dataset: Dataset, run: Path, translator: Translator, options: argparse.Namespace
) -> Split:
    """Return the split to score; refuse one that may now have pairs that the run trained on."""
    corpus = dataset.corpus
    name = options.split or ("test" if "test" in corpus.splits else "valid")
    is_derived = name != "test" or corpus.config.split_test > 0  # from the training file
    if is_derived and dataset.fingerprint != translator.data_fingerprint:
        raise DataError(
            f"{corpus.name} has other sentence pairs now than {run} was trained with, or "
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


def print_comparisons(comparisons: list[Comparison]) -> None:
    """Print both scores with their intervals, and the p-value of their difference."""
    for each in comparisons:
        p = "too few sentences for a p-value" if each.p is None else f"p = {each.p:.4f}"
        print(f"  {each.metric:5} {each.first} against {each.second}, {p}")
        print(f"        {each.signature}")
    print("  (mean and 95 % interval of bootstrap samples; p < 0.05: a significant difference)")


def as_data(comparisons: list[Comparison]) -> list[dict[str, Any]]:
    return [
        {
            "metric": each.metric,
            "signature": each.signature,
            "first": as_numbers(each.first),
            "second": as_numbers(each.second),
            "p": None if each.p is None else float(each.p),
        }
        for each in comparisons
    ]


def as_numbers(score: Resampled) -> dict[str, float]:
    """Return a score as numbers of Python, where sacreBLEU has some of NumPy."""
    return {name: float(value) for name, value in score._asdict().items()}
