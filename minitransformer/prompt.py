"""The interactive prompt: a sentence in, its translation out; colon commands look inside it."""

import contextlib
import sys
from collections.abc import Iterable
from dataclasses import replace

from minitransformer.errors import UsageError, UserError, did_you_mean
from minitransformer.explain.checking import check
from minitransformer.explain.interventions import NOTHING, Experiment, head_of
from minitransformer.explain.terminal import View, wants_colour
from minitransformer.explain.walkthrough import NO_ATTENTION, Walkthrough, walk_through
from minitransformer.translator import ALTERNATIVES, Translator, remarks, score_fields

HELP = """\
  :walk                   how the last sentence was translated, a block per token
  :full                   the same with every stage
  :attention              where every token looked, layer by layer
  :why                    what each token is worth without each source word
  :why words              the same of whole words where tokens are pieces of them;
                          :attention words, too
  :hide 2                 take the second source token out (again: put it back)
  :head cross.0.0 off     switch off a head: encoder, decoder or cross (a recurrent
                          model has this one); layer and head are counted from 0
  :position off           leave the positions away
  :force Vamos            make the translation begin so
  :reset                  undo all of these
  :help                   this list; Ctrl-D leaves"""


class Prompt:
    """Answers one line after the other; remembers the last sentence and what was changed."""

    def __init__(self, translator: Translator, *, scores: bool) -> None:
        self.translator = translator
        self.scores = scores
        self.sentence = ""
        self.experiment = NOTHING
        self.view = View(colour=wants_colour())

    def answer(self, line: str) -> None:
        """Translate a sentence, or carry out a command."""
        if not line.startswith(":"):
            self.translate(line)
            return
        name, *words = line[1:].split() or [""]
        if name in ("quit", "exit", "q"):
            raise EOFError
        commands = {
            "walk": self.walk, "full": self.full, "attention": self.attention, "why": self.why,
            "hide": self.hide, "head": self.head, "position": self.position, "force": self.force,
            "reset": self.reset, "help": self.help,
        }  # fmt: skip
        if name not in commands:
            meant = did_you_mean(name, commands).replace("'", "':", 1)
            raise UsageError(f"no command ':{name}'{meant or '; :help lists them'}")
        commands[name](words)

    def translate(self, text: str) -> None:
        translation = self.translator.translate(
            [text], alternatives=ALTERNATIVES if self.scores else 0
        )[0]
        for remark in remarks(translation, self.translator):
            print(f"  ({remark})", file=sys.stderr)
        print(translation.text)
        if self.scores:
            for field in score_fields(translation, self.translator):
                print(f"  {field}")
        if not translation.source.words:
            return
        self.sentence = text
        hidden = {place for place in self.experiment.hidden if place <= self.num_words()}
        self.experiment = replace(self.experiment, hidden=frozenset(hidden))
        if self.experiment != NOTHING:
            self.compare(self.walked(self.experiment))

    def num_words(self) -> int:
        """How many words of the sentence the model takes."""
        return len(self.translator.fit(self.translator.tokenizer.encode_source(self.sentence).ids)
                   ) - self.translator.tokenizer.source_eos  # fmt: skip

    def walked(self, experiment: Experiment) -> Walkthrough:
        if not self.sentence:
            raise UsageError("type a sentence first")
        return walk_through(self.translator, self.sentence, experiment=experiment)

    def walk(self, words: list[str]) -> None:
        expect_nothing(words)
        walk = self.walked(self.experiment)
        show([*self.view.compact(walk), self.view.checked(check(walk))])

    def full(self, words: list[str]) -> None:
        expect_nothing(words)
        walk = self.walked(self.experiment)
        show([*self.view.full(walk), self.view.checked(check(walk))])

    def attention(self, words: list[str]) -> None:
        is_asked = by_words(words)
        walk = self.walked(self.experiment)
        if not walk.has_attention:
            raise UsageError(NO_ATTENTION)
        show(self.view.attention(walk, by_words=is_asked))

    def why(self, words: list[str]) -> None:
        told = self.view.words if by_words(words) else self.view.why
        show(told(self.walked(self.experiment)))

    def help(self, words: list[str]) -> None:
        print(HELP)

    def reset(self, words: list[str]) -> None:
        expect_nothing(words)
        self.change(NOTHING)

    def hide(self, words: list[str]) -> None:
        self.walked(NOTHING)
        most = self.num_words()
        if words not in [[str(number)] for number in range(1, most + 1)]:
            name = self.translator.tokenizer.source.token_name
            raise UsageError(f"name a source {name} by its place, from 1 to {most}: :hide 1")
        self.change(replace(self.experiment, hidden=self.experiment.hidden ^ {int(words[0])}))

    def head(self, words: list[str]) -> None:
        if len(words) != 2 or words[1] not in ("on", "off"):
            raise UsageError("name a head and on or off: :head cross.0.0 off")
        head_of(self.translator.model, words[0])
        self.change(self.experiment.with_head(words[0], is_on=words[1] == "on"))

    def position(self, words: list[str]) -> None:
        if words not in (["on"], ["off"]):
            raise UsageError("say on or off: :position off")
        model = self.translator.model
        if not model.rotary and model.encoder.embedding.positions is None:
            raise UsageError("this model has no positions (model.positional_encoding is none)")
        self.change(replace(self.experiment, positions_off=words == ["off"]))

    def force(self, words: list[str]) -> None:
        text, target = " ".join(words), self.translator.tokenizer.target
        if not text:
            raise UsageError("say how the translation must begin: :force Vamos")
        if unknown := target.encode(text, end=False).unknown:
            meant = did_you_mean(unknown[0], target.ids)
            raise UsageError(f"the target has no {target.unknown_name} '{unknown[0]}'{meant}")
        self.change(replace(self.experiment, forced=text))

    def change(self, experiment: Experiment) -> None:
        """Carry an experiment out, and show what it changed."""
        now = self.walked(experiment)  # complains before anything is changed
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
        """The translation as it was and as it becomes, and what its tokens are worth."""
        print(f"  {now.experiment}")
        show(self.view.change(self.walked(NOTHING), now))


def by_words(words: list[str]) -> bool:
    """Should pieces be put together?"""
    if words and words != ["words"]:
        raise UsageError(f"'{' '.join(words)}' is too much; behind it may stand: words")
    return bool(words)


def expect_nothing(words: list[str]) -> None:
    if words:
        raise UsageError(f"this command stands alone; '{' '.join(words)}' is too much")


def show(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


def run_prompt(translator: Translator, *, scores: bool) -> None:
    """Answer what is typed; Ctrl-C clears the line, the arrow keys bring lines back."""
    with contextlib.suppress(ImportError):  # there is none on some systems
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
            "Translations are a beam's; :walk and the others look at greedy ones.", file=sys.stderr
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
