"""The interactive prompt: a sentence in, its translation out, until Ctrl-D."""

import contextlib
import sys

from minitransformer.decoding import Translator
from minitransformer.line_translation import RUNNERS_UP, remarks, score_fields


def run_prompt(translator: Translator, *, scores: bool) -> None:
    """Translate what is typed; Ctrl-C clears the line, the arrow keys bring lines back."""
    with contextlib.suppress(ImportError):  # there is none on some systems
        import readline  # noqa: F401 - input() uses it once it is loaded
    source = translator.tokenizer.source
    hint = f"of the {len(source.ids)} known words, such as {', '.join(list(source.ids)[:8])}"
    print(
        f"Type a sentence{f' {hint}' if source.token_name == 'word' else ''}.\n"
        "Ctrl-C clears the line, Ctrl-D leaves.",
        file=sys.stderr,
    )
    while True:
        try:
            text = input("> ")
        except KeyboardInterrupt:
            print()
            continue
        except EOFError:
            print()
            return
        if not text.strip():
            continue
        translation = translator.translate([text], runners_up=RUNNERS_UP if scores else 0)[0]
        for remark in remarks(translation, translator):
            print(f"  ({remark})", file=sys.stderr)
        print(translation.text)
        if scores:
            for field in score_fields(translation, translator):
                print(f"  {field}")
