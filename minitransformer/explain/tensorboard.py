"""What a run writes for TensorBoard, while it trains and when it is done."""

import dataclasses
import io
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import regex
import torch
from google.protobuf import text_format
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig
from tensorboard.summary.writer.record_writer import RecordWriter
from torch import Tensor
from torch.utils.tensorboard import summary as torch_summary

from minitransformer.config import config_to_yaml
from minitransformer.data.corpus import Pair
from minitransformer.data.tokenizer import PairTokenizer, normalize
from minitransformer.errors import did_you_mean, escape_controls, printable_word
from minitransformer.evaluation import Evaluation, Sample
from minitransformer.explain import heatmaps as fonts
from minitransformer.explain.attention_maps import AttentionView, attention_views, pass_views
from minitransformer.explain.heatmaps import Picture, as_png, attention_picture
from minitransformer.explain.occlusion import device_of
from minitransformer.explain.rendering import TextRenderer
from minitransformer.explain.stages import Labels, stages_of
from minitransformer.explain.walkthrough import DecodingStep, Walkthrough, walk_through
from minitransformer.metrics import perplexity
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.trace import record
from minitransformer.search import eval_mode, top_tokens
from minitransformer.settings import Config
from minitransformer.storage import replace_file, replace_folder, sync_folder, write_all
from minitransformer.training.callbacks import Callback, StepMetrics
from minitransformer.training.trainer import Trainer
from minitransformer.translator import Translator

HEADER, FOOTER = 12, 4  # bytes around a record: its length and two checksums


def event_record(step: int, summary: Any = None, **fields: Any) -> bytes:
    """One event as it stands in a file."""
    event = Event(wall_time=time.time(), step=step, summary=summary, **fields)
    content = io.BytesIO()
    RecordWriter(content).write(event.SerializeToString())
    return content.getvalue()


def file_opening() -> bytes:
    """The record that every event file begins with."""
    return event_record(0, file_version="brain.Event:2")


class EventFile:
    """The event file of a run, which may have been longer than its last checkpoint knows."""

    def __init__(self, path: Path, length: int) -> None:
        path.touch()
        self.complaint = ""
        if path.stat().st_size < length:
            self.complaint = f"{path} lacks events that it had; it goes on from here"
            length = whole_records(path)  # half a record would make the rest unreadable
        os.truncate(path, length)
        self.file = path.open("ab", buffering=0)
        self.waiting: list[bytes] = []
        self.is_new = self.file.tell() == 0
        if self.is_new:
            self.waiting.append(file_opening())
            sync_folder(path.parent)

    def add(self, step: int, *summaries: Any) -> None:
        self.waiting += [event_record(step, summary) for summary in summaries]

    def flush(self) -> None:
        """Let a TensorBoard that is open see what there is."""
        content, self.waiting = b"".join(self.waiting), []
        write_all(self.file, content)

    def sync(self) -> int:
        """Make sure that everything has reached the disk, and return the file's length."""
        self.flush()
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        self.flush()
        self.file.close()


def whole_records(path: Path) -> int:
    """The length of a file up to its last whole record."""
    size, end = path.stat().st_size, 0
    with path.open("rb") as file:
        while len(header := file.read(HEADER)) == HEADER:
            after = end + HEADER + int.from_bytes(header[:8], "little") + FOOTER
            if after > size:
                break
            end = file.seek(after)
    return end


FOLDER = "projector"
MOST_POINTS = 10_000  # a browser turns no more of them smoothly


def write_projector(run: Path, model: EncoderDecoder, tokenizer: PairTokenizer) -> None:
    """Write the vectors that tokens have on each side, in place of earlier ones."""
    source, target = model.encoder.embedding.weight, model.decoder.embedding.weight
    sides = {"source": (source, tokenizer.source), "target": (target, tokenizer.target)}
    if source is target:
        sides = {"shared": sides["target"]}
    config = ProjectorConfig()
    files: dict[str, bytes] = {}
    for side, (table, names) in sides.items():
        vectors = table.detach()[:MOST_POINTS]
        tokens = names.tokens[: len(vectors)]
        files[f"{side}.bytes"] = as_bytes(vectors)
        files[f"{side}.tsv"] = metadata(tokens)
        describe(config, side, vectors)
    replace_folder(run / FOLDER, files)
    replace_file(run / "projector_config.pbtxt", text_format.MessageToString(config).encode())


def describe(config: Any, side: str, vectors: Tensor) -> None:
    embedding = config.embeddings.add()
    embedding.tensor_name = f"{side} embeddings"
    embedding.tensor_shape.extend(vectors.shape)
    embedding.tensor_path = f"{FOLDER}/{side}.bytes"
    embedding.metadata_path = f"{FOLDER}/{side}.tsv"


def as_bytes(vectors: Tensor) -> bytes:
    return vectors.to("cpu", torch.float32).contiguous().numpy().astype("<f4").tobytes()


def metadata(tokens: list[str]) -> bytes:
    """A line per token; whatever it holds, it stays one line and one column."""
    rows = ["token\tid", *(f"{' '.join(token.split())}\t{id}" for id, token in enumerate(tokens))]
    return "\n".join(rows).encode("utf-8") + b"\n"


MOST_SEARCHED = 100_000  # pairs of a split in which the right translation is looked for


@dataclass(frozen=True)
class Probe:
    """A sentence, and its right translation where the corpus has one."""

    source: str
    target: str = ""


def choose_probes(
    wanted: int | tuple[str, ...], splits: Mapping[str, Iterable[Pair]]
) -> list[Probe]:
    """The sentences that a config names, or the first so many held-out pairs."""
    if isinstance(wanted, int):
        return [Probe(*pair) for pair in islice(splits.get("valid", splits["train"]), wanted)]
    names = {normalize(source) for source in wanted}
    known: dict[str, str] = {}
    for split in ("valid", "train"):
        for pair in islice(splits.get(split, ()), MOST_SEARCHED):
            source = normalize(pair.source)
            if source in names:
                known.setdefault(source, pair.target)
    return [Probe(source, known.get(normalize(source), "")) for source in wanted]


@torch.no_grad()
def probe_views(translator: Translator, probe: Probe) -> list[AttentionView]:
    """Every attention over a probe and its right translation, given token by token.

    Given, so that the rows stay the same while the model learns; without a right translation the
    model's own is taken.
    """
    tokenizer, model = translator.tokenizer, translator.model
    encoded = tokenizer.encode_source(probe.source)
    places = translator.truncate(list(range(len(encoded.ids))))
    source, ids = [encoded.tokens[n] for n in places], [encoded.ids[n] for n in places]
    if probe.target:
        target = tokenizer.encode_target(probe.target)
        tokens, target_ids = target.tokens, target.ids
    else:
        translation = translator.translate([probe.source])[0]
        tokens, target_ids = translation.tokens, [choice.id for choice in translation.token_scores]
    length = min(len(tokens), translator.max_length)
    fed = [tokenizer.target.tokens[tokenizer.start_id], *tokens][:length]
    fed_ids = [tokenizer.start_id, *target_ids][:length]
    with eval_mode(model), record(model) as tensors:
        memory = model.encode(torch.tensor([ids], device=device_of(model)))
        logits = model.decode(torch.tensor([fed_ids], device=device_of(model)), memory)
    best = top_tokens(logits[0].softmax(-1), 1)[1][:, 0].tolist()
    mask = memory.mask[0, 0]
    encoder = stages_of(
        model.encoder, "encoder", tensors, Labels(source, ids, source, source, mask)
    )
    decoder = stages_of(model.decoder, "decoder", tensors, Labels(fed, fed_ids, fed, source, mask))
    produced = [tokenizer.target.tokens[id] for id in best]
    return [*pass_views(encoder, []), *pass_views(decoder, produced)]


# Charts in which training and held-out pairs stand together; tags are regular expressions.
CHARTS = {
    "loss": ["train/loss", "valid/loss"],
    "perplexity": ["train/perplexity", "valid/perplexity"],
    "accuracy, earlier tokens given": ["train/accuracy", "valid/accuracy_teacher_forced"],
    "accuracy on held-out pairs": ["valid/accuracy_(teacher_forced|free_running)"],
    "whole sentences exact": ["train_pairs/exact_match", "valid/exact_match"],
    "BLEU and chrF": ["valid/(bleu|chrf)"],
}
LARGEST = 3.4e38  # that TensorBoard can hold
HYPERPARAMETERS = ("model", "training", "tokenizer")
FINAL_METRICS = (
    "valid/loss", "valid/exact_match", "valid/accuracy_free_running", "valid/bleu", "valid/chrf",
    "train_pairs/exact_match",
)  # fmt: skip


def scalars(values: dict[str, float | None]) -> Any:
    """Numbers by tag, in one event; what there is not (a BLEU without four words) is left out."""
    known = {
        tag: value for tag, value in values.items() if value is not None and abs(value) <= LARGEST
    }
    return Summary(
        value=[Summary.Value(tag=tag, simple_value=value) for tag, value in known.items()]
    )


def evaluation_scalars(evaluations: dict[str, Evaluation]) -> Any:
    """The numbers of metrics.jsonl."""
    groups = {"train": "train_pairs", "valid": "valid"}
    return scalars(
        {
            f"{groups[split]}/{name}": value
            for split, evaluation in evaluations.items()
            for name, value in evaluation.row().items()
            if not name.endswith("signature")
        }
    )


def entropies(probes: list[list[AttentionView]]) -> Any:
    """How widely each head looks, in bits, on average over the probes."""
    values: dict[str, float | None] = {}
    for same_layer in zip(*probes, strict=True):
        mean = sum(view.entropy for view in same_layer) / len(same_layer)
        for head, entropy in enumerate(mean.tolist()):
            view = same_layer[0]
            values[f"attention_entropy/{view.where}/layer-{view.layer}/head-{head}"] = entropy
    return scalars(values)


def image(tag: str, picture: Picture) -> Any:
    png = Summary.Image(
        height=picture.height,
        width=picture.width,
        colorspace=3,
        encoded_image_string=as_png(picture),
    )
    return Summary(value=[Summary.Value(tag=tag, image=png)])


def text(tag: str, markdown: str) -> Any:
    summary = torch_summary.text(tag, markdown)
    summary.value[0].tag = tag  # not tag/text_summary
    return summary


def samples_table(samples: list[Sample]) -> str:
    """Translations beside what was expected of them."""
    return table(
        ["source", "reference", "free-running", "teacher-forced"],
        [[each.source, each.reference, each.translation, each.teacher_forced] for each in samples],
    )


def table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *([escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(sentence: str) -> str:
    """A text of which no character means anything in Markdown or HTML."""
    sentence = re.sub(r"\s+", " ", sentence)
    return re.sub(r"[!-/:-@\[-`{-~]", lambda found: f"&#{ord(found[0])};", sentence)


def preformatted(content: str) -> str:
    return "\n".join(f"    {line}" for line in content.splitlines())


def chart_layout(has_valid: bool) -> Any:
    charts = {
        title: ["Multiline", tags]
        for title, tags in CHARTS.items()
        if has_valid or any(tag.startswith("train") for tag in tags)
    }
    return torch_summary.custom_scalars({"training and held-out pairs": charts})


def hyperparameters(config: Config) -> tuple[Any, Any]:
    """The config for the HParams tab: what there is to show, and the run's values.

    They stand in the run's own events, so that the final metrics are the run's own scalars.
    """
    values = {"data.train": shown_value(config.data.train)}
    for section in HYPERPARAMETERS:
        for key, value in dataclasses.asdict(getattr(config, section)).items():
            values[f"{section}.{key}"] = shown_value(value)
    experiment, start, _ = torch_summary.hparams(values, dict.fromkeys(FINAL_METRICS, 0.0))
    return experiment, in_order(start)


def in_order(start: Any) -> Any:
    """The run's values sorted by name: left to itself, protobuf shuffles them in each process."""
    for value in start.value:
        data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
        value.metadata.plugin_data.content = data.SerializeToString(deterministic=True)
    return start


def shown_value(value: Any) -> float | str:
    """A setting as the HParams tab can show it, which writes 64 as 64.000 and false as 0.0000."""
    if isinstance(value, float):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


SMALL_MODEL = 8  # whose vectors can be read; of a wider one, the walk-through is told in short
MOST_STEPS = 50  # of a walk that are drawn: a model that does not find its end goes on for long
MOST_PICTURES = 150  # of a walk; beyond, only the last layer is drawn


class TensorBoard(Callback):
    """Writes a run's events as it goes; a run that goes back takes them back."""

    def on_start(self, trainer: Trainer) -> None:
        self.translator = Translator(trainer.model, trainer.tokenizer, trainer.config)
        self.probes = choose_probes(trainer.config.logging.examples, trainer.corpus.splits)
        self.tokens, self.seconds = 0, 0.0  # since the last time they were written
        self.events = EventFile(trainer.run_folder.events, trainer.state.event_bytes)
        if self.events.is_new:
            layout = chart_layout("valid" in trainer.texts)
            self.events.add(0, *hyperparameters(trainer.config), layout)
        if self.events.is_new or trainer.has_other_settings:
            config = preformatted(config_to_yaml(trainer.config))
            self.events.add(trainer.state.step, text("config", config))
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
            found.append(fonts.missing_note(escape_controls(word) for word in words))
        if isinstance(trainer.config.logging.examples, tuple):
            source = trainer.tokenizer.source
            found += [
                f"logging.examples: unknown {source.unknown_name} '{printable_word(word)}'"
                f"{did_you_mean(word, source.ids)}"
                for probe in self.probes
                for word in trainer.tokenizer.encode_source(probe.source).unknown
            ]
        return [note for note in found if note]

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        self.tokens += metrics.loss.count
        self.seconds += metrics.seconds
        step = trainer.state.step
        if step % trainer.config.logging.every:
            return
        values = {
            "train/loss": metrics.loss.mean,
            "train/perplexity": perplexity(metrics.loss.mean),
            "train/accuracy": metrics.accuracy.mean,
            "train/learning_rate": metrics.learning_rate,
            "train/gradient_norm": metrics.gradient_norm,
            "train/tokens_per_second": self.tokens / self.seconds,
        }
        self.events.add(step, scalars(values))
        self.events.flush()
        self.tokens, self.seconds = 0, 0.0

    def on_evaluation(self, trainer: Trainer, evaluations: dict[str, Evaluation]) -> None:
        step = trainer.state.step
        self.events.add(step, evaluation_scalars(evaluations))
        for split, evaluation in evaluations.items():
            samples = evaluation.samples[: trainer.config.evaluation.samples]
            if samples:
                table = samples_table(samples)
                self.events.add(step, text(f"samples/{split}", table))
        all_views = [probe_views(self.translator, probe) for probe in self.probes]
        if all_views:
            self.events.add(step, entropies(all_views))
        for number, (probe, views) in enumerate(zip(self.probes, all_views, strict=True), start=1):
            for view in views:
                tag = f"attention/{number} {short(probe.source)}/{view.where}/layer-{view.layer}"
                self.events.add(step, image(tag, attention_picture(view)))
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
            lines = TextRenderer().full(walk) if is_small else TextRenderer().compact(walk)
            told = text("walk/through", preformatted("\n".join(lines)))
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
                picture = image(tag, attention_picture(view, rows))
                records.append(event_record(number, picture))
        records += [
            event_record(number, text("walk/candidates", candidates(step))),
            event_record(number, scalars({"walk/probability": step.probability})),
        ]
    return records


def views_to_draw(walk: Walkthrough) -> list[AttentionView]:
    views = list(attention_views(walk))
    if len(views) * min(len(walk.steps), MOST_STEPS) <= MOST_PICTURES:
        return views
    last = {view.where: view.layer for view in views}
    return [view for view in views if view.layer == last[view.where]]


def candidates(step: DecodingStep) -> str:
    heading = escaped(f"step {step.number}: {step.fed} → {step.produced}")
    rows = [[each.token, f"{each.probability:.4f}"] for each in step.candidates]
    return f"**{heading}**\n\n{table(['candidate', 'probability'], rows)}"


def short(sentence: str) -> str:
    """A sentence as a part of a tag: a slash would begin another part."""
    sentence = escape_controls(" ".join(sentence.split())).replace("/", "∕")
    letters = regex.findall(r"\X", sentence)
    return sentence if len(letters) <= 40 else f"{''.join(letters[:39])}…"
