"""minitransformer worked list | show NAME | check FILE | operations"""

import argparse
import textwrap
from pathlib import Path

from minitransformer.cli import Parser, check_output, raise_on_interrupt
from minitransformer.errors import UsageError, did_you_mean, printable_word

COMMAND = "minitransformer worked"
ACTIONS = ("list", "show", "check", "operations")
DOCUMENTS = (".html", ".md", ".tex", ".json")
WEIGHTS = ".safetensors"
EXAMPLE = """\
A sheet of your own is YAML, such as:

  given:
    X: [[1, 0], [0, 2]]
    W_Q: [[1, 1], [0, 1]]
  steps:
    - name: Q
      compute: times(X, W_Q)
      printed: [[1, 1], [0, 2]]"""
MOVED = {
    "--file": f"was replaced by: {COMMAND} check FILE",
    "--operations": f"was replaced by: {COMMAND} operations",
    "--html": "was replaced by --to page.html",
    "--markdown": "was replaced by --to sheet.md",
    "--latex": "was replaced by --to sheet.tex",
    "--json": "was replaced by --to sheet.json",
    "--weights": f"was replaced by --to weights{WEIGHTS}",
}


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        "worked",
        "Check attention examples that were calculated by hand: every printed number is computed "
        "again with this project's own functions. list: check all examples and count their values. "
        "show NAME: one of them, step by step. check FILE: a sheet of your own. operations: what "
        "its formulas may call.",
        MOVED,
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = textwrap.fill(str(parser.description), 79), EXAMPLE
    parser.add_argument("action", nargs="?", default="list", help=" | ".join(ACTIONS))
    parser.add_argument("name", nargs="?", metavar="NAME or FILE", help="as in: show lets-go")
    parser.add_argument(
        "--to", type=Path, metavar="FILE",
        help=f"write FILE instead: {', '.join(DOCUMENTS)}; {WEIGHTS} for the weights of a sheet "
        "with a model, for training.init_from",
    )  # fmt: skip
    parser.add_argument(
        "--run", type=Path,
        help="for a sheet in words, such as school: the trained run to check it on (default: "
        "the run of its config, runs/tiny-bn)",
    )  # fmt: skip
    options = parser.parse(arguments)
    check(options)
    return options


def check(options: argparse.Namespace) -> None:
    """Refuse what does not go together, before torch is loaded."""
    action, name = options.action, options.name
    if action not in ACTIONS:
        meant = "check" if Path(action).suffix in (".yaml", ".yml") else "show"
        hint = did_you_mean(action, ACTIONS) or f": did you mean {COMMAND} {meant} {action}?"
        raise UsageError(f"there is no action '{printable_word(action)}'{hint}")
    takes_name = action in ("show", "check")
    if takes_name and not name:
        what = "an example, such as lets-go" if action == "show" else "a file, such as my.yaml"
        raise UsageError(f"{COMMAND} {action}: name {what}")
    if name and not takes_name:
        raise UsageError(f"unexpected '{printable_word(name)}': {action} takes no name")
    if action == "show" and Path(name).is_file():
        raise UsageError(f"{name} is a file: check it with {COMMAND} check {name}")
    if action == "check" and not Path(name).exists():
        raise UsageError(
            f"there is no file '{printable_word(name)}'; for an example: {COMMAND} show lets-go"
        )
    if options.run and not takes_name:
        raise UsageError("--run goes with show and check, of a procedure such as school")
    if action == "operations" and options.to:
        raise UsageError("--to does not go with operations")
    endings = (*DOCUMENTS, WEIGHTS) if takes_name else DOCUMENTS
    check_output(options.to, endings, [Path(name)] if action == "check" else [])


def main(arguments: list[str]) -> int:
    options = parse(arguments)

    from minitransformer.checkpoint import tensor_bytes
    from minitransformer.storage import write_output
    from minitransformer.worked import documents, report
    from minitransformer.worked.engine import check_sheet
    from minitransformer.worked.formulas import operations_text
    from minitransformer.worked.reader import SHIPPED, load_sheet, load_shipped
    from minitransformer.worked.sheet_model import run_tensors, sheet_weights

    raise_on_interrupt()
    if options.action == "operations":
        print(operations_text())
        return 0
    is_list = options.action == "list"
    if is_list:
        checked = [check_sheet(load_shipped(name)) for name in SHIPPED]
    else:
        if options.action == "show" and options.name not in SHIPPED:
            raise UsageError(
                f"there is no example '{printable_word(options.name)}'"
                f"{did_you_mean(options.name, SHIPPED)} (available: {', '.join(SHIPPED)})"
            )
        is_own = options.action == "check"
        sheet = load_sheet(Path(options.name)) if is_own else load_shipped(options.name)
        if options.to and options.to.suffix.lower() == WEIGHTS:
            tensors = {name: tensor.float() for name, tensor in sheet_weights(sheet).items()}
            write_output(options.to, tensor_bytes(tensors))
            print(f"wrote {options.to}")
            return 0
        checked = [check_sheet(sheet, run_tensors(sheet, options.run))]
    if options.to:
        if options.action == "check":
            print(report.summary(checked[0]))
        documents.write_document(options.to, checked, is_list=is_list)
        print(f"wrote {options.to}")
    else:
        print(report.list_text(checked) if is_list else report.sheet_text(checked[0]))
    return 0 if all(each.is_explained for each in checked) else 1
