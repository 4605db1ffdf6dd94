"""The interactive prompt: translates sentences; colon commands explain the last one."""

import contextlib
import sys
from collections.abc import Iterable
from dataclasses import replace

from minitransformer.errors import UsageError, UserError, did_you_mean, printable_word
from minitransformer.explain.checking import check
from minitransformer.explain.interventions import NOTHING, Experiment, head_of, rotary_attentions
from minitransformer.explain.rendering import TextRenderer, wants_colour
from minitransformer.explain.walkthrough import NO_ATTENTION, Walkthrough, walk_through
from minitransformer.translator import (
    NUM_ALTERNATIVES,
    Translator,
    format_token_scores,
    translation_warnings,
)

COMMANDS = (
    "walk", "full", "attention", "why", "hide", "head", "position", "force", "reset", "help",
)  # fmt: skip
HELP = """\
  :walk                   show how the last sentence was translated, token by token
  :full                   the same with every stage
  :attention              show the attention weights of every token, layer by layer
  :why                    show how each token's probability changes without each source word
  :why words              the same for whole words, where tokens are subwords;
                          also :attention words
  :hide 2                 hide the second source token; again: show it
  :head cross.0.0 off     switch a head off, or on: encoder, decoder or cross (the only one
                          of a recurrent model); layer and head are counted from 0
  :position off           switch the positional encoding off, or on
  :force Vamos            force the beginning of the translation
  :reset                  undo :hide, :head, :position and :force
  :help                   show this list; Ctrl-D quits"""


def run_prompt(translator: Translator, *, scores: bool) -> None:
    """Answer typed lines; Ctrl-C clears the line, the arrow keys recall earlier lines."""
    with contextlib.suppress(ImportError):  # some systems have none
        import readline  # noqa: F401 - input() uses it once it is loaded
    source = translator.tokenizer.source
    hint = f" of the {len(source.ids)} known words, such as {', '.join(list(source.ids)[:6])}"
    print(
        f"Type a sentence{hint if source.token_name == 'word' else ''}.\n"
        "Then :walk shows how it was translated; :help lists all commands.\n"
        "Ctrl-C clears the line, Ctrl-D quits.",
        file=sys.stderr,
    )
    if translator.search.beam > 1:
        print("Translations are by beam search; the commands explain greedy ones.", file=sys.stderr)
    prompt = Prompt(translator, scores=scores)
    while True:
        try:
            text = input("> ").strip()
            if text:
                prompt.answer(text)
        except KeyboardInterrupt:
            print()
        except EOFError:
            print()
            return
        except UserError as error:
            print(f"  ({error})", file=sys.stderr)


class Prompt:
    """Answers line by line; keeps the last sentence and the current experiment."""

    def __init__(self, translator: Translator, *, scores: bool) -> None:
        self.translator = translator
        self.scores = scores
        self.sentence = ""
        self.experiment = NOTHING
        self.renderer = TextRenderer(colour=wants_colour())

    def answer(self, line: str) -> None:
        """Translate a sentence or run a command."""
        if not line.startswith(":"):
            self.translate(line)
            return
        name, *arguments = line[1:].split() or [""]
        if name in ("quit", "exit", "q"):
            raise EOFError
        if arguments and name in ("walk", "full", "reset"):
            raise UsageError(f"unexpected '{' '.join(arguments)}': :{name} has no arguments")
        match name:
            case "walk" | "full":
                walk = self.walk()
                lines = self.renderer.full(walk) if name == "full" else self.renderer.compact(walk)
                show([*lines, self.renderer.checked(check(walk))])
            case "attention" | "why":
                by_words = arguments == ["words"]
                if arguments and not by_words:
                    raise UsageError(
                        f"unexpected '{' '.join(arguments)}'; the only argument is: words"
                    )
                walk = self.walk()
                if name == "why":
                    show(self.renderer.words(walk) if by_words else self.renderer.why(walk))
                elif walk.has_attention:
                    show(self.renderer.attention(walk, by_words=by_words))
                else:
                    raise UsageError(NO_ATTENTION)
            case "hide":
                self.hide(arguments)
            case "head":
                self.head(arguments)
            case "position":
                self.position(arguments)
            case "force":
                self.force(arguments)
            case "reset":
                self.change(NOTHING)
            case "help":
                print(HELP)
            case _:
                hint = did_you_mean(name, COMMANDS).replace("'", "':", 1)
                name = printable_word(name)
                raise UsageError(f"no command ':{name}'{hint or '; :help lists them'}")

    def translate(self, text: str) -> None:
        alternatives = NUM_ALTERNATIVES if self.scores else 0
        (translation,) = self.translator.translate([text], alternatives=alternatives)
        for warning in translation_warnings(translation, self.translator):
            print(f"  ({warning})", file=sys.stderr)
        print(translation.text)
        if self.scores:
            for field in format_token_scores(translation, self.translator):
                print(f"  {field}")
        if not translation.source.words:
            return
        self.sentence = text
        hidden = {number for number in self.experiment.hidden if number <= self.num_tokens()}
        self.experiment = replace(self.experiment, hidden=frozenset(hidden))
        if self.experiment != NOTHING:
            self.compare(self.walk())

    def num_tokens(self) -> int:
        """Return how many tokens of the sentence the model reads, without an end marker."""
        tokenizer = self.translator.tokenizer
        ids = self.translator.truncate(tokenizer.encode_source(self.sentence).ids)
        return len(ids) - tokenizer.source_eos

    def walk(self, experiment: Experiment | None = None) -> Walkthrough:
        """Return the walk-through of the last sentence, by default with the current experiment."""
        if not self.sentence:
            raise UsageError("type a sentence first")
        experiment = self.experiment if experiment is None else experiment
        return walk_through(self.translator, self.sentence, experiment=experiment)

    def hide(self, arguments: list[str]) -> None:
        if not self.sentence:
            raise UsageError("type a sentence first")
        most = self.num_tokens()
        if arguments not in [[str(number)] for number in range(1, most + 1)]:
            name = self.translator.tokenizer.source.token_name
            raise UsageError(f"give the number of a source {name}, from 1 to {most}: :hide 1")
        hidden = self.experiment.hidden ^ {int(arguments[0])}
        self.change(replace(self.experiment, hidden=hidden))

    def head(self, arguments: list[str]) -> None:
        if len(arguments) != 2 or arguments[1] not in ("on", "off"):
            raise UsageError("give a head and on or off: :head cross.0.0 off")
        name, switch = arguments
        head_of(self.translator.model, name)  # raises if there is no such head
        self.change(self.experiment.with_head(name, is_on=switch == "on"))

    def position(self, arguments: list[str]) -> None:
        if arguments not in (["on"], ["off"]):
            raise UsageError("give on or off: :position off")
        model = self.translator.model
        if not rotary_attentions(model) and model.encoder.embedding.positions is None:
            raise UsageError(
                "this model has no positional encoding (model.positional_encoding is none)"
            )
        self.change(replace(self.experiment, positions_off=arguments == ["off"]))

    def force(self, arguments: list[str]) -> None:
        text, target = " ".join(arguments), self.translator.tokenizer.target
        if not text:
            raise UsageError("give the beginning of the translation: :force Vamos")
        if unknown := target.encode(text, end=False).unknown:
            hint, word = did_you_mean(unknown[0], target.ids), printable_word(unknown[0])
            raise UsageError(f"the target vocabulary has no {target.unknown_name} '{word}'{hint}")
        self.change(replace(self.experiment, forced=text))

    def change(self, experiment: Experiment) -> None:
        """Run an experiment and show what it changed."""
        walk = self.walk(experiment)  # raises before anything is changed
        is_change = experiment != self.experiment
        self.experiment = experiment
        if not is_change:
            print("  no change" + (f": {experiment}" if str(experiment) else ""))
        elif experiment == NOTHING:
            how = " (greedy)" * (self.translator.search.beam > 1)
            print(f"  all changes undone\n  {walk.translation}{how}")
        else:
            self.compare(walk)

    def compare(self, walk: Walkthrough) -> None:
        """Show the translation before and after, with the probabilities of its tokens."""
        print(f"  {walk.experiment}")
        show(self.renderer.change(self.walk(NOTHING), walk))


def show(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
