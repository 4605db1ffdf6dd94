"""What a run writes for TensorBoard, while it trains and when it is done."""

import re
import shutil

from minitransformer.config import config_to_yaml
from minitransformer.decoding import Translator
from minitransformer.evaluation import Evaluation
from minitransformer.explain import fonts, summaries
from minitransformer.explain.attention_view import attention_views
from minitransformer.explain.event_file import EventFile, event_record, file_opening
from minitransformer.explain.pictures import attention_picture
from minitransformer.explain.probes import Probe, choose_probes, probe_views
from minitransformer.explain.projector import write_projector
from minitransformer.explain.terminal_view import View
from minitransformer.explain.walkthrough import DecodingStep, Walkthrough, walk_through
from minitransformer.metrics import perplexity
from minitransformer.storage import replace_folder
from minitransformer.training.trainer import Trainer
from minitransformer.training.watcher import StepReport, Watcher

SMALL_MODEL = 8  # whose vectors can be read; of a wider one, the walk-through is told in short


class TensorBoard(Watcher):
    """Writes a run's events as it goes; a run that goes back takes them back."""

    def on_start(self, trainer: Trainer) -> None:
        self.translator = Translator(trainer.model, trainer.tokenizer, trainer.config)
        self.probes = choose_probes(trainer.config.logging.probes, trainer.texts)
        self.tokens, self.seconds = 0, 0.0  # since the last time they were written
        self.events = EventFile(trainer.run_folder.events, trainer.state.event_bytes)
        experiment, start, self.ending = summaries.hyperparameters(trainer.config)
        if self.events.is_new:
            layout = summaries.chart_layout("valid" in trainer.texts)
            config = summaries.preformatted(config_to_yaml(trainer.config))
            self.events.add(0, experiment, start, layout, summaries.text("config", config))
        trainer.notes += undrawable(self.translator, self.probes)

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
        step, folder = trainer.state.step, trainer.run_folder.path
        shutil.rmtree(folder / "walk", ignore_errors=True)
        for number, probe in enumerate(self.probes, start=1):
            walk = walk_through(self.translator, probe.source, expected=probe.target)
            if number == 1:
                is_small = trainer.config.model.d_model <= SMALL_MODEL
                lines = View().full(walk) if is_small else View().compact(walk)
                told = summaries.preformatted("\n".join(lines))
                self.events.add(step, summaries.text("walkthrough", told))
            name = re.sub(r"[^\w]+", "-", f"{number} {short(probe.source)}").strip("-")
            replace_folder(folder / "walk" / name, {"events.out.tfevents": walk_events(walk)})
        write_projector(folder, trainer.model, trainer.tokenizer)
        self.events.add(step, self.ending)


def walk_events(walk: Walkthrough) -> bytes:
    """A run of its own whose slider is the decoding step: attention grows by a row each time."""
    views = list(attention_views(walk))
    records = [file_opening()]
    for step in walk.steps:
        number = step.number
        records += [
            event_record(number, summaries.image(tag, attention_picture(view, number)))
            for view in views
            for tag in [f"walk/{view.where}/layer-{view.layer}"]
            if number == 1 or not view.is_encoder  # the encoder has looked once and for all
        ]
        records += [
            event_record(number, summaries.text("walk/candidates", candidates(step))),
            event_record(number, summaries.scalars({"walk/probability": step.probability})),
        ]
    return b"".join(records)


def candidates(step: DecodingStep) -> str:
    heading = summaries.escaped(f"step {step.number}: {step.fed} → {step.produced}")
    rows = [[each.token, f"{each.probability:.4f}"] for each in step.candidates]
    return f"**{heading}**\n\n{summaries.table(['candidate', 'probability'], rows)}"


def short(sentence: str) -> str:
    """A sentence as a part of a tag: a slash would begin another part."""
    sentence = " ".join(sentence.replace("/", "∕").split())
    return sentence if len(sentence) <= 40 else f"{sentence[:39]}…"


def undrawable(translator: Translator, probes: list[Probe]) -> list[str]:
    """Said once: which letters no font of this machine has, though pictures need them."""
    texts = [*translator.tokenizer.target.tokens, *(probe.source for probe in probes)]
    letters = fonts.fonts().missing("".join(texts))
    if not letters or not probes:
        return []
    some = ", ".join(f"{each} (U+{ord(each):04X})" for each in letters[:3])
    more = f" and {len(letters) - 3} more letters" if len(letters) > 3 else ""
    return [f"no font here has {some}{more}; pictures number words with them, with a legend"]
