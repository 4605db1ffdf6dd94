"""python -m minitransformer.worked [NAME | --file FILE] [--json | --html FILE | ...]"""

if __name__ == "__main__":
    from minitransformer.command_line import end_on_interrupt

    end_on_interrupt()

import argparse
import sys
from pathlib import Path

from minitransformer.command_line import raise_on_interrupt, run_command
from minitransformer.errors import UsageError, did_you_mean


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m minitransformer.worked",
        description="Check attention examples that were calculated by hand: every printed number "
        "is computed again with this project's own functions. Without a name: check all examples "
        "and show the counts.",
    )
    parser.add_argument("name", nargs="?", help="an example, such as lets-go")
    parser.add_argument("--file", type=Path, help="check a sheet of your own, in the same format")
    parser.add_argument(
        "--run", type=Path,
        help="the trained run on which a procedure without numbers is checked "
        "(default for school: runs/tiny-bn)",
    )  # fmt: skip
    parser.add_argument(
        "--operations", action="store_true", help="list the operations that formulas may call"
    )
    form = parser.add_mutually_exclusive_group()
    for name in ("json", "markdown", "latex"):
        form.add_argument(f"--{name}", action="store_true", help=f"print {name}")
    form.add_argument(
        "--html", type=Path, metavar="FILE",
        help="write a page; without a name, of all examples with an index",
    )  # fmt: skip
    form.add_argument(
        "--weights", type=Path, metavar="FILE.safetensors",
        help="write the weights of a sheet's model, for training.init_from",
    )  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    if options.name and options.file:
        raise UsageError("give the name of an example or --file, not both")
    if options.run and not (options.name or options.file):
        raise UsageError("--run goes with the name of a procedure, such as school")
    if options.weights and not (options.name or options.file):
        raise UsageError("--weights goes with the name of a sheet with a model, such as lets-go")
    if options.name and Path(options.name).is_file():
        raise UsageError(f"{options.name} is a file: check it with --file {options.name}")

    # Imported here: usage errors are found without torch, whose import takes seconds.
    from minitransformer.checkpoint import tensor_bytes
    from minitransformer.worked import documents, report
    from minitransformer.worked.engine import check_sheet
    from minitransformer.worked.formulas import operations_text
    from minitransformer.worked.reader import SHIPPED, load_sheet, load_shipped
    from minitransformer.worked.sheet_model import run_tensors, sheet_weights

    raise_on_interrupt()
    if options.operations:
        print(operations_text())
        return 0
    if options.name and options.name not in SHIPPED:
        raise UsageError(
            f"there is no example '{options.name}'{did_you_mean(options.name, SHIPPED)} "
            f"(available: {', '.join(SHIPPED)})"
        )
    if options.file or options.name:
        sheet = load_sheet(options.file) if options.file else load_shipped(options.name)
        if options.weights:
            tensors = {name: tensor.float() for name, tensor in sheet_weights(sheet).items()}
            options.weights.write_bytes(tensor_bytes(tensors))
            print(f"wrote {options.weights}")
            return 0
        checked = [check_sheet(sheet, run_tensors(sheet, options.run))]
    else:
        checked = [check_sheet(load_shipped(name)) for name in SHIPPED]
    is_list = not (options.file or options.name)
    if options.json:
        output = documents.list_json(checked) if is_list else documents.sheet_json(checked[0])
    elif options.markdown:
        output = "\n\n".join(documents.sheet_markdown(each) for each in checked)
    elif options.latex:
        output = documents.latex_document(checked)
    elif options.html:
        options.html.write_text(documents.html_page(checked), encoding="utf-8", newline="\n")
        output = f"wrote {options.html}"
    else:
        output = report.list_text(checked) if is_list else report.sheet_text(checked[0])
    print(output)
    return 0 if all(each.is_explained for each in checked) else 1


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(sys.argv[1:])))
