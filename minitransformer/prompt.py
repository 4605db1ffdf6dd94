"""The interactive prompt: translates sentences; colon commands explain the last one."""

import contextlib
import sys
from collections.abc import Iterable
from dataclasses import replace

from minitransformer.errors import UsageError, UserError, did_you_mean
from minitransformer.explain.checking import check
from minitransformer.explain.interventions import NOTHING, Experiment, head_of
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
  :walk                   how the last sentence was translated, a block per token
  :full                   the same with every stage
  :attention              the attention of every token, layer by layer
  :why                    how each token's probability changes without each source word
  :why words              the same for whole words, where tokens are subwords;
                          also :attention words
  :hide 2                 hide the second source token (again: show it)
  :head cross.0.0 off     switch off a head: encoder, decoder or cross (the only one
                          of a recurrent model); layer and head are counted from 0
  :position off           switch off the positional encoding
  :force Vamos            make the translation begin with this
  :reset                  undo all of these
  :help                   this list; Ctrl-D leaves"""


def run_prompt(translator: Translator, *, scores: bool) -> None:
    """Answer typed lines; Ctrl-C clears the line, the arrow keys recall earlier lines."""
    with contextlib.suppress(ImportError):  # some systems have none
        import readline  # noqa: F401 - input() uses it once it is loaded
    source = translator.tokenizer.source
    hint = f"of the {len(source.ids)} known words, such as {', '.join(list(source.ids)[:6])}"
    print(
        f"Type a sentence{f' {hint}' if source.token_name == 'word' else ''}.\n"
        "Then :walk shows how it was translated, and :help what else there is.\n"
        "Ctrl-C clears the line, Ctrl-D leaves.",
        file=sys.stderr,
    )
    if translator.search.beam > 1:
        print(
            "Translations are by beam search; :walk and the others explain greedy ones.",
            file=sys.stderr,
        )
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
        if name not in COMMANDS:
            hint = did_you_mean(name, COMMANDS).replace("'", "':", 1)
            raise UsageError(f"no command ':{name}'{hint or '; :help lists them'}")
        if arguments and name in ("walk", "full", "reset"):
            raise UsageError(f"unexpected '{' '.join(arguments)}': :{name} has no arguments")
        getattr(self, name)(arguments)

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
        hidden = {number for number in self.experiment.hidden if number <= self.num_words()}
        self.experiment = replace(self.experiment, hidden=frozenset(hidden))
        if self.experiment != NOTHING:
            self.compare(self.walked(self.experiment))

    def num_words(self) -> int:
        """Return how many words of the sentence the model reads."""
        tokenizer = self.translator.tokenizer
        ids = self.translator.truncate(tokenizer.encode_source(self.sentence).ids)
        return len(ids) - tokenizer.source_eos

    def walked(self, experiment: Experiment) -> Walkthrough:
        if not self.sentence:
            raise UsageError("type a sentence first")
        return walk_through(self.translator, self.sentence, experiment=experiment)

    def walk(self, arguments: list[str]) -> None:
        walk = self.walked(self.experiment)
        show([*self.renderer.compact(walk), self.renderer.checked(check(walk))])

    def full(self, arguments: list[str]) -> None:
        walk = self.walked(self.experiment)
        show([*self.renderer.full(walk), self.renderer.checked(check(walk))])

    def attention(self, arguments: list[str]) -> None:
        merges = merges_subwords(arguments)
        walk = self.walked(self.experiment)
        if not walk.has_attention:
            raise UsageError(NO_ATTENTION)
        show(self.renderer.attention(walk, by_words=merges))

    def why(self, arguments: list[str]) -> None:
        lines = self.renderer.words if merges_subwords(arguments) else self.renderer.why
        show(lines(self.walked(self.experiment)))

    def help(self, arguments: list[str]) -> None:
        print(HELP)

    def reset(self, arguments: list[str]) -> None:
        self.change(NOTHING)

    def hide(self, arguments: list[str]) -> None:
        self.walked(NOTHING)
        most = self.num_words()
        if arguments not in [[str(number)] for number in range(1, most + 1)]:
            name = self.translator.tokenizer.source.token_name
            raise UsageError(f"give the number of a source {name}, from 1 to {most}: :hide 1")
        hidden = self.experiment.hidden ^ {int(arguments[0])}
        self.change(replace(self.experiment, hidden=hidden))

    def head(self, arguments: list[str]) -> None:
        if len(arguments) != 2 or arguments[1] not in ("on", "off"):
            raise UsageError("give a head and on or off: :head cross.0.0 off")
        name, switch = arguments
        head_of(self.translator.model, name)
        self.change(self.experiment.with_head(name, is_on=switch == "on"))

    def position(self, arguments: list[str]) -> None:
        if arguments not in (["on"], ["off"]):
            raise UsageError("give on or off: :position off")
        model = self.translator.model
        if not model.rotary and model.encoder.embedding.positions is None:
            raise UsageError("this model has no positions (model.positional_encoding is none)")
        self.change(replace(self.experiment, positions_off=arguments == ["off"]))

    def force(self, arguments: list[str]) -> None:
        text, target = " ".join(arguments), self.translator.tokenizer.target
        if not text:
            raise UsageError("give the beginning of the translation: :force Vamos")
        if unknown := target.encode(text, end=False).unknown:
            hint = did_you_mean(unknown[0], target.ids)
            raise UsageError(f"the target has no {target.unknown_name} '{unknown[0]}'{hint}")
        self.change(replace(self.experiment, forced=text))

    def change(self, experiment: Experiment) -> None:
        """Run an experiment and show what it changed."""
        now = self.walked(experiment)  # raises before anything is changed
        is_change = experiment != self.experiment
        self.experiment = experiment
        if not is_change:
            print(f"  {str(experiment) or 'nothing is changed'}, as before")
        elif experiment == NOTHING:
            how = " (greedy)" * (self.translator.search.beam > 1)
            print(f"  nothing is changed any more\n  {now.translation}{how}")
        else:
            self.compare(now)

    def compare(self, now: Walkthrough) -> None:
        """Show the translation before and after, with the probabilities of its tokens."""
        print(f"  {now.experiment}")
        show(self.renderer.change(self.walked(NOTHING), now))


def merges_subwords(arguments: list[str]) -> bool:
    """Return whether the argument "words" is given; refuse others."""
    if arguments and arguments != ["words"]:
        raise UsageError(f"unexpected '{' '.join(arguments)}'; the only argument is: words")
    return bool(arguments)


def show(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
