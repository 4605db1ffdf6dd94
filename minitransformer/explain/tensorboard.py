"""What a run writes for TensorBoard, while it trains and when it is done."""

import shutil
import sys

import regex

from minitransformer.config import config_to_yaml
from minitransformer.decoding import Translator
from minitransformer.errors import did_you_mean
from minitransformer.explain import fonts, summaries
from minitransformer.explain.attention_view import AttentionView, attention_views
from minitransformer.explain.event_file import EventFile, event_record, file_opening
from minitransformer.explain.pictures import attention_picture
from minitransformer.explain.probes import choose_probes, probe_views
from minitransformer.explain.projector import write_projector
from minitransformer.explain.terminal_view import View
from minitransformer.explain.walkthrough import DecodingStep, Walkthrough, walk_through
from minitransformer.judging import Evaluation
from minitransformer.line_translation import printable, without_controls
from minitransformer.metrics import perplexity
from minitransformer.storage import replace_folder
from minitransformer.training.trainer import Trainer
from minitransformer.training.watcher import StepReport, Watcher

SMALL_MODEL = 8  # whose vectors can be read; of a wider one, the walk-through is told in short
MOST_STEPS = 50  # of a walk that are drawn: a model that does not find its end goes on for long
MOST_PICTURES = 150  # of a walk; beyond, only the last layer is drawn


class TensorBoard(Watcher):
    """Writes a run's events as it goes; a run that goes back takes them back."""

    def on_start(self, trainer: Trainer) -> None:
        self.translator = Translator(trainer.model, trainer.tokenizer, trainer.config)
        self.probes = choose_probes(trainer.config.logging.probes, trainer.corpus.splits)
        self.tokens, self.seconds = 0, 0.0  # since the last time they were written
        self.events = EventFile(trainer.run_folder.events, trainer.state.event_bytes)
        if self.events.is_new:
            layout = summaries.chart_layout("valid" in trainer.texts)
            self.events.add(0, *summaries.hyperparameters(trainer.config), layout)
        if self.events.is_new or trainer.has_other_settings:
            config = summaries.preformatted(config_to_yaml(trainer.config))
            self.events.add(trainer.state.step, summaries.text("config", config))
        for note in self.notes(trainer):
            print(f"note: {note}", file=sys.stderr)

    def notes(self, trainer: Trainer) -> list[str]:
        """What somebody who opens TensorBoard should know."""
        found = [self.events.complaint]
        if self.events.is_new and trainer.state.step:
            found.append(
                f"TensorBoard shows this run from step {trainer.state.step} on; "
                "earlier steps were not written"
            )
        if self.probes:
            words = [*trainer.tokenizer.target.tokens, *(probe.source for probe in self.probes)]
            found.append(fonts.missing_note(without_controls(word) for word in words))
        if isinstance(trainer.config.logging.probes, tuple):
            source = trainer.tokenizer.source
            found += [
                f"logging.probes: unknown {source.unknown_name} '{printable(word)}'"
                f"{did_you_mean(word, source.ids)}"
                for probe in self.probes
                for word in trainer.tokenizer.encode_source(probe.source).unknown
            ]
        return [note for note in found if note]

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        self.tokens += report.loss.count
        self.seconds += report.seconds
        step = trainer.state.step
        if step % trainer.config.logging.every:
            return
        values = {
            "train/loss": report.loss.mean,
            "train/perplexity": perplexity(report.loss.mean),
            "train/accuracy": report.accuracy.mean,
            "train/learning_rate": report.learning_rate,
            "train/gradient_norm": report.gradient_norm,
            "train/tokens_per_second": self.tokens / self.seconds,
        }
        self.events.add(step, summaries.scalars(values))
        self.events.flush()
        self.tokens, self.seconds = 0, 0.0

    def on_evaluation(self, trainer: Trainer, evaluations: dict[str, Evaluation]) -> None:
        step = trainer.state.step
        self.events.add(step, summaries.evaluation_scalars(evaluations))
        for split, evaluation in evaluations.items():
            samples = evaluation.samples[: trainer.config.evaluation.samples]
            if samples:
                table = summaries.samples_table(samples)
                self.events.add(step, summaries.text(f"samples/{split}", table))
        all_views = [probe_views(self.translator, probe) for probe in self.probes]
        if all_views:
            self.events.add(step, summaries.entropies(all_views))
        for number, (probe, views) in enumerate(zip(self.probes, all_views, strict=True), start=1):
            for view in views:
                tag = f"attention/{number} {short(probe.source)}/{view.where}/layer-{view.layer}"
                self.events.add(step, summaries.image(tag, attention_picture(view)))
        self.events.flush()

    def on_save(self, trainer: Trainer) -> None:
        trainer.state.event_bytes = self.events.sync()

    def on_end(self, trainer: Trainer, exit_code: int) -> None:
        if exit_code == 0:
            self.finish(trainer)
        self.events.sync()
        self.events.close()

    def finish(self, trainer: Trainer) -> None:
        """What is worth writing once, after the last checkpoint; again, if that was cut off."""
        folder = trainer.run_folder.path
        shutil.rmtree(folder / "walk", ignore_errors=True)
        for number, probe in enumerate(self.probes, start=1):
            walk = walk_through(self.translator, probe.source, expected=probe.target)
            name = regex.sub(r"[^\w\p{M}]+", "-", f"{number} {short(probe.source)}").strip("-")
            is_small = trainer.config.model.d_model <= SMALL_MODEL
            lines = View().full(walk) if is_small else View().compact(walk)
            told = summaries.text("walk/through", summaries.preformatted("\n".join(lines)))
            events = [*walk_events(walk), event_record(len(walk.steps), told)]
            replace_folder(folder / "walk" / name, {"events.out.tfevents": b"".join(events)})
        write_projector(folder, trainer.model, trainer.tokenizer)


def walk_events(walk: Walkthrough) -> list[bytes]:
    """A run of its own whose slider is the decoding step: attention grows by a row each time."""
    views = views_to_draw(walk)
    records = [file_opening()]
    for step in walk.steps[:MOST_STEPS]:
        number = step.number
        for view in views:
            # The encoder has looked once and for all.
            rows = None if view.is_encoder else number
            if number == 1 or rows:
                tag = f"walk/{view.where}/layer-{view.layer}"
                picture = summaries.image(tag, attention_picture(view, rows))
                records.append(event_record(number, picture))
        records += [
            event_record(number, summaries.text("walk/candidates", candidates(step))),
            event_record(number, summaries.scalars({"walk/probability": step.probability})),
        ]
    return records


def views_to_draw(walk: Walkthrough) -> list[AttentionView]:
    views = list(attention_views(walk))
    if len(views) * min(len(walk.steps), MOST_STEPS) <= MOST_PICTURES:
        return views
    last = {view.where: view.layer for view in views}
    return [view for view in views if view.layer == last[view.where]]


def candidates(step: DecodingStep) -> str:
    heading = summaries.escaped(f"step {step.number}: {step.fed} → {step.produced}")
    rows = [[each.token, f"{each.probability:.4f}"] for each in step.candidates]
    return f"**{heading}**\n\n{summaries.table(['candidate', 'probability'], rows)}"


def short(sentence: str) -> str:
    """A sentence as a part of a tag: a slash would begin another part."""
    sentence = without_controls(" ".join(sentence.split())).replace("/", "∕")
    letters = regex.findall(r"\X", sentence)
    return sentence if len(letters) <= 40 else f"{''.join(letters[:39])}…"
