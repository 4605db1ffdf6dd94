"""minitransformer export --to exported"""

import argparse
import sys
from pathlib import Path

from minitransformer.cli import (
    Parser,
    add_run_option,
    add_weights_options,
    check_weights_options,
    chosen_run,
    raise_on_interrupt,
)
from minitransformer.errors import UsageError

MOVED = {"--ctranslate2": "was renamed to --to"}
USAGE = """# CTranslate2 reads and writes the run's tokens:

import ctranslate2
from minitransformer import Translator

tokenizer = Translator.load({run!r}).tokenizer
source, target = tokenizer.source, tokenizer.target
translator = ctranslate2.Translator({folder!r})
ids = source.encode("Let's go", end=False).ids
result = translator.translate_batch(
    [[source.tokens[id] for id in ids]], beam_size=1,
    max_input_length={length}, min_decoding_length=0, max_decoding_length={length},
)
print(target.decode(target.tokens.index(token) for token in result[0].hypotheses[0]))"""


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        "export",
        "Write a trained run's weights for CTranslate2, a faster engine that needs no torch.",
        MOVED,
    )
    add_run_option(parser)
    parser.add_argument(
        "--to", type=Path, metavar="FOLDER", help="what to write: a new folder or an earlier export"
    )
    parser.add_argument(
        "--int8", action="store_true", help="quantize the matrices to 8-bit integers"
    )
    add_weights_options(parser)
    options = parser.parse(arguments)
    check_weights_options(options)
    if options.to is None:
        raise UsageError("name the folder to write, such as --to exported")
    if options.to.is_file():
        raise UsageError(f"--to {options.to}: a file, not a folder")
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)

    from minitransformer.export import write_ctranslate2
    from minitransformer.run import RunFolder
    from minitransformer.translator import Translator

    raise_on_interrupt()
    run, folder, kind = chosen_run(options), options.to, "int8" if options.int8 else "float32"
    translator = Translator.load(run, checkpoint=options.checkpoint, average=options.average)
    config, tokenizer = RunFolder(run).load_config().model, translator.tokenizer
    source, target = tokenizer.source.tokens, tokenizer.target.tokens
    write_ctranslate2(translator.model, config, source, target, folder, kind)
    size = (folder / "model.bin").stat().st_size
    done = f"exported {run} ({translator.checkpoint}) to {folder}: {kind}, {size:,} bytes"
    print(done, file=sys.stderr)
    print(USAGE.format(run=str(run), folder=str(folder), length=config.max_length))
    return 0
