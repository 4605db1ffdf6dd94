"""python -m minitransformer.worked [NAME | --file FILE] [--json | --html FILE | …]"""

if __name__ == "__main__":
    from minitransformer.command_line import end_on_interrupt

    end_on_interrupt()

import argparse
import sys
from pathlib import Path

from minitransformer.command_line import run_command, take_interrupts
from minitransformer.errors import UsageError, did_you_mean


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m minitransformer.worked",
        description="Hand-calculated attention examples, re-run by our own code. "
        "Without a name: all of them, with counts.",
    )
    parser.add_argument("name", nargs="?", help="an example, such as lets-go")
    parser.add_argument("--file", type=Path, help="check a sheet of your own, in the same format")
    parser.add_argument(
        "--run", type=Path, help="the trained run that a procedure is shown on (school: tiny-bn)"
    )
    parser.add_argument(
        "--operations", action="store_true", help="list what the formulas of a sheet may call"
    )
    form = parser.add_mutually_exclusive_group()
    for name in ("json", "markdown", "latex"):
        form.add_argument(f"--{name}", action="store_true", help=f"print {name}")
    form.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page; of all of them, with an index"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    if options.name and options.file:
        raise UsageError("give the name of an example or --file, not both")
    if options.run and not (options.name or options.file):
        raise UsageError("--run goes with the name of a procedure, such as school")
    if options.name and Path(options.name).is_file():
        raise UsageError(f"{options.name} is a file: check it with --file {options.name}")

    # torch takes seconds to load, so mistakes on the command line are found before
    from minitransformer.worked import documents, pages, report
    from minitransformer.worked import documents as latex
    from minitransformer.worked.engine import work_through
    from minitransformer.worked.operations import operations_text
    from minitransformer.worked.reader import SHIPPED, load_sheet, load_shipped
    from minitransformer.worked.sheet_model import tensors_for

    take_interrupts()
    if options.operations:
        print(operations_text())
        return 0
    if options.name and options.name not in SHIPPED:
        raise UsageError(
            f"there is no example '{options.name}'{did_you_mean(options.name, SHIPPED)} "
            f"(there: {', '.join(SHIPPED)})"
        )
    if options.file or options.name:
        sheet = load_sheet(options.file) if options.file else load_shipped(options.name)
        works = [work_through(sheet, tensors_for(sheet, options.run))]
        shown = documents.sheet_json(works[0]) if options.json else report.sheet_text(works[0])
    else:
        works = [work_through(load_shipped(name)) for name in SHIPPED]
        shown = documents.list_json(works) if options.json else report.list_text(works)
    if options.markdown:
        shown = "\n\n".join(documents.sheet_markdown(worked) for worked in works)
    elif options.latex:
        shown = latex.latex_document(works)
    elif options.html:
        options.html.write_text(pages.worked_page(works), encoding="utf-8", newline="\n")
        shown = f"wrote {options.html}"
    print(shown)
    return 0 if all(each.is_explained for each in works) else 1


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(sys.argv[1:])))
