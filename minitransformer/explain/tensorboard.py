"""The callback that writes a run for TensorBoard: scalars, attention maps, samples, embeddings."""

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
from torch.utils.tensorboard import summary as torch_summary

from minitransformer.config import config_to_yaml
from minitransformer.data.corpus import Pair
from minitransformer.data.tokenizer import PairTokenizer, normalize
from minitransformer.errors import did_you_mean, escape_controls, printable_word
from minitransformer.evaluation import Evaluation, Sample
from minitransformer.explain.attention_maps import AttentionView, attention_views, pass_views
from minitransformer.explain.heatmaps import Picture, as_png, attention_picture, missing_note
from minitransformer.explain.interventions import device_of
from minitransformer.explain.rendering import TextRenderer
from minitransformer.explain.stages import Labels, stages_of
from minitransformer.explain.walkthrough import DecodingStep, Walkthrough, walk_through
from minitransformer.metrics import perplexity
from minitransformer.model.base import EncoderDecoder
from minitransformer.model.trace import record
from minitransformer.search import eval_mode, top_tokens
from minitransformer.settings import Config
from minitransformer.storage import replace_file, replace_folder, sync_folder, write_all
from minitransformer.training.trainer import Callback, StepMetrics, Trainer
from minitransformer.translator import Translator

# Charts of training and held-out pairs; tags are regular expressions.
CHARTS = {
    "loss": ["train/loss", "valid/loss"],
    "perplexity": ["train/perplexity", "valid/perplexity"],
    "accuracy, earlier tokens given": ["train/accuracy", "valid/accuracy_teacher_forced"],
    "accuracy on held-out pairs": ["valid/accuracy_(teacher_forced|free_running)"],
    "whole sentences exact": ["train_pairs/exact_match", "valid/exact_match"],
    "BLEU and chrF": ["valid/(bleu|chrf)"],
}
HYPERPARAMETERS = ("model", "training", "tokenizer")
FINAL_METRICS = (
    "valid/loss", "valid/exact_match", "valid/accuracy_free_running", "valid/bleu", "valid/chrf",
    "train_pairs/exact_match",
)  # fmt: skip
MAX_FLOAT = 3.4e38  # TensorBoard stores scalars as float32
MAX_SEARCHED = 100_000  # pairs of a split in which the target of an example is looked up
MAX_FULL_WALK = 8  # the largest d_model for which a walk-through is written in full
MAX_WALK_STEPS = 50  # drawn of a walk-through: an undertrained model may not stop earlier
MAX_WALK_PICTURES = 150  # of a walk-through; beyond, only the last layer is drawn
MAX_POINTS = 10_000  # of the projector: browsers become slow with more
HEADER_BYTES, FOOTER_BYTES = 12, 4  # around a record: its length and two checksums


@dataclass(frozen=True)
class Example:
    """A sentence whose attention is drawn, and its target if the corpus has one."""

    source: str
    target: str = ""


class TensorBoard(Callback):
    """Write a run's events; a resumed run first removes those after its checkpoint."""

    def on_start(self, trainer: Trainer) -> None:
        self.translator = Translator(trainer.model, trainer.tokenizer, trainer.config)
        self.examples = choose_examples(trainer.config.logging.examples, trainer.corpus.splits)
        self.tokens, self.seconds = 0, 0.0  # since the last train/tokens_per_second
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
        """Return what is missing in this run's events, if anything."""
        notes = [self.events.note]
        if self.events.is_new and trainer.state.step:
            notes.append(
                f"TensorBoard shows this run from step {trainer.state.step} on; "
                "earlier steps were not written"
            )
        if self.examples:
            sources = (example.source for example in self.examples)
            words = (*trainer.tokenizer.target.tokens, *sources)
            notes.append(missing_note(escape_controls(word) for word in words))
        if isinstance(trainer.config.logging.examples, tuple):
            tokenizer = trainer.tokenizer.source
            notes += [
                f"logging.examples: unknown {tokenizer.unknown_name} '{printable_word(word)}'"
                f"{did_you_mean(word, tokenizer.ids)}"
                for example in self.examples
                for word in trainer.tokenizer.encode_source(example.source).unknown
            ]
        return [note for note in notes if note]

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
                self.events.add(step, text(f"samples/{split}", samples_table(samples)))
        all_views = [example_views(self.translator, example) for example in self.examples]
        if all_views:
            self.events.add(step, entropies(all_views))
        for number, (example, views) in enumerate(
            zip(self.examples, all_views, strict=True), start=1
        ):
            name = f"{number} {tag_part(example.source)}"
            for view in views:
                tag = f"attention/{name}/{view.where}/layer-{view.layer}"
                self.events.add(step, image(tag, attention_picture(view)))
        self.events.flush()

    def on_save(self, trainer: Trainer) -> None:
        trainer.state.event_bytes = self.events.sync()

    def on_end(self, trainer: Trainer, exit_code: int) -> None:
        if exit_code == 0:
            self.write_walks_and_embeddings(trainer)
        self.events.sync()
        self.events.close()

    def write_walks_and_embeddings(self, trainer: Trainer) -> None:
        """Write walk-throughs and embeddings after the last checkpoint, replacing earlier ones."""
        folder = trainer.run_folder.path
        shutil.rmtree(folder / "walk", ignore_errors=True)
        for number, example in enumerate(self.examples, start=1):
            walk = walk_through(self.translator, example.source, expected=example.target)
            name = f"{number} {tag_part(example.source)}"
            name = regex.sub(r"[^\w\p{M}]+", "-", name).strip("-")
            is_small = trainer.config.model.d_model <= MAX_FULL_WALK
            lines = TextRenderer().full(walk) if is_small else TextRenderer().compact(walk)
            narration = text("walk/through", preformatted("\n".join(lines)))
            events = [*walk_events(walk), event_record(len(walk.steps), narration)]
            replace_folder(folder / "walk" / name, {"events.out.tfevents": b"".join(events)})
        write_projector(folder, trainer.model, trainer.tokenizer)


class EventFile:
    """The event file of a run, truncated to the length that its checkpoint knows.

    Events after the last checkpoint of a killed run are thereby removed before they are written
    again, so that the file is the same as without the kill. torch's SummaryWriter cannot do that:
    it begins a new file in each process, from a thread of its own.
    """

    def __init__(self, path: Path, length: int) -> None:
        path.touch()
        self.note = ""
        if path.stat().st_size < length:
            self.note = f"{path} is shorter than at the last checkpoint: some events are lost"
            length = end_of_last_record(path)  # half a record would make the rest unreadable
        os.truncate(path, length)
        self.file = path.open("ab", buffering=0)
        self.pending: list[bytes] = []
        self.is_new = self.file.tell() == 0
        if self.is_new:
            self.pending.append(version_record())
            sync_folder(path.parent)

    def add(self, step: int, *summaries: Any) -> None:
        self.pending += [event_record(step, summary) for summary in summaries]

    def flush(self) -> None:
        """Make all events visible to a TensorBoard that is open."""
        content, self.pending = b"".join(self.pending), []
        write_all(self.file, content)

    def sync(self) -> int:
        """Make sure that all events have reached the disk; return the length of the file."""
        self.flush()
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        self.flush()
        self.file.close()


def event_record(step: int, summary: Any = None, **fields: Any) -> bytes:
    """Return one event as the bytes of a record."""
    event = Event(wall_time=time.time(), step=step, summary=summary, **fields)
    content = io.BytesIO()
    RecordWriter(content).write(event.SerializeToString())
    return content.getvalue()


def version_record() -> bytes:
    """Return the record with which every event file begins."""
    return event_record(0, file_version="brain.Event:2")


def end_of_last_record(path: Path) -> int:
    """Return the length of a file up to its last whole record."""
    size, end = path.stat().st_size, 0
    with path.open("rb") as file:
        while len(header := file.read(HEADER_BYTES)) == HEADER_BYTES:
            next_end = end + HEADER_BYTES + int.from_bytes(header[:8], "little") + FOOTER_BYTES
            if next_end > size:
                break
            end = file.seek(next_end)
    return end


def choose_examples(
    wanted: int | tuple[str, ...], splits: Mapping[str, Iterable[Pair]]
) -> list[Example]:
    """Return the sentences that a config names, or the first so many held-out pairs."""
    if isinstance(wanted, int):
        return [Example(*pair) for pair in islice(splits.get("valid", splits["train"]), wanted)]
    sources = {normalize(source) for source in wanted}
    targets: dict[str, str] = {}
    for split in ("valid", "train"):
        for pair in islice(splits.get(split, ()), MAX_SEARCHED):
            source = normalize(pair.source)
            if source in sources:
                targets.setdefault(source, pair.target)
    return [Example(source, targets.get(normalize(source), "")) for source in wanted]


@torch.no_grad()
def example_views(translator: Translator, example: Example) -> list[AttentionView]:
    """Return every attention over an example with teacher forcing.

    The target is forced so that rows stay the same while the model learns; an example without a
    target takes the model's own translation.
    """
    tokenizer, model = translator.tokenizer, translator.model
    encoded = tokenizer.encode_source(example.source)
    kept = translator.truncate(list(range(len(encoded.ids))))
    source, ids = [encoded.tokens[index] for index in kept], [encoded.ids[index] for index in kept]
    if example.target:
        target = tokenizer.encode_target(example.target)
        tokens, target_ids = target.tokens, target.ids
    else:
        translation = translator.translate([example.source])[0]
        tokens, target_ids = translation.tokens, [each.id for each in translation.token_scores]
    length = min(len(tokens), translator.max_length)
    fed = [tokenizer.target.tokens[tokenizer.start_id], *tokens][:length]
    fed_ids = [tokenizer.start_id, *target_ids][:length]
    with eval_mode(model), record(model) as tensors:
        memory = model.encode(torch.tensor([ids], device=device_of(model)))
        logits = model.decode(torch.tensor([fed_ids], device=device_of(model)), memory)
    best = top_tokens(logits[0].softmax(-1), 1)[1][:, 0].tolist()
    produced = [tokenizer.target.tokens[id] for id in best]
    mask = memory.mask[0, 0]
    source_labels = Labels(source, ids, source, source, mask)
    target_labels = Labels(fed, fed_ids, fed, source, mask)
    encoder = stages_of(model.encoder, "encoder", tensors, source_labels)
    decoder = stages_of(model.decoder, "decoder", tensors, target_labels)
    return [*pass_views(encoder, []), *pass_views(decoder, produced)]


def scalars(values: dict[str, float | None]) -> Any:
    """Return numbers by tag as one summary, without those that are missing or not finite."""
    return Summary(
        value=[
            Summary.Value(tag=tag, simple_value=value)
            for tag, value in values.items()
            if value is not None and abs(value) <= MAX_FLOAT
        ]
    )


def evaluation_scalars(evaluations: dict[str, Evaluation]) -> Any:
    """Return the numbers of metrics.jsonl."""
    groups = {"train": "train_pairs", "valid": "valid"}
    return scalars(
        {
            f"{groups[split]}/{name}": value
            for split, evaluation in evaluations.items()
            for name, value in evaluation.row().items()
            if not name.endswith("signature")
        }
    )


def entropies(views: list[list[AttentionView]]) -> Any:
    """Return the entropy of each head in bits, as the mean over the examples."""
    values: dict[str, float | None] = {}
    for same_layer in zip(*views, strict=True):
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
    """Return translations beside their references."""
    return markdown_table(
        ["source", "reference", "free-running", "teacher-forced"],
        [[each.source, each.reference, each.translation, each.teacher_forced] for each in samples],
    )


def markdown_table(headings: list[str], rows: list[list[str]]) -> str:
    cells = [[escape_markdown(cell) for cell in row] for row in rows]
    return "\n".join(
        f"| {' | '.join(row)} |" for row in [headings, ["---"] * len(headings), *cells]
    )


def escape_markdown(sentence: str) -> str:
    """Return a text of which no character has a meaning in Markdown or HTML."""
    sentence = re.sub(r"\s+", " ", sentence)
    return re.sub(r"[!-/:-@\[-`{-~]", lambda found: f"&#{ord(found[0])};", sentence)


def preformatted(content: str) -> str:
    return "\n".join(f"    {line}" for line in content.splitlines())


def tag_part(sentence: str) -> str:
    """Return a sentence as one part of a tag: short, and without a slash."""
    sentence = escape_controls(" ".join(sentence.split())).replace("/", "∕")
    characters = regex.findall(r"\X", sentence)
    return sentence if len(characters) <= 40 else f"{''.join(characters[:39])}…"


def chart_layout(has_valid: bool) -> Any:
    charts = {
        title: ["Multiline", tags]
        for title, tags in CHARTS.items()
        if has_valid or any(tag.startswith("train") for tag in tags)
    }
    return torch_summary.custom_scalars({"training and held-out pairs": charts})


def hyperparameters(config: Config) -> tuple[Any, Any]:
    """Return the two summaries of the HParams tab: which settings there are, and their values.

    They are in the run's own event file, so that the final metrics are the run's own scalars.
    """
    values = {"data.train": hparam_value(config.data.train)}
    for section in HYPERPARAMETERS:
        for key, value in dataclasses.asdict(getattr(config, section)).items():
            values[f"{section}.{key}"] = hparam_value(value)
    experiment, start, _ = torch_summary.hparams(values, dict.fromkeys(FINAL_METRICS, 0.0))
    for value in start.value:  # by name: protobuf's own order differs between processes
        data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
        value.metadata.plugin_data.content = data.SerializeToString(deterministic=True)
    return experiment, start


def hparam_value(value: Any) -> float | str:
    """Return a setting as the HParams tab can show it: it writes 64 as 64.000, false as 0.0000."""
    if isinstance(value, float):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def walk_events(walk: Walkthrough) -> list[bytes]:
    """Return a walk-through as a run whose steps are those of decoding: each adds a row."""
    views = views_to_draw(walk)
    records = [version_record()]
    for step in walk.steps[:MAX_WALK_STEPS]:
        number = step.number
        for view in views:
            if number == 1 or not view.is_encoder:  # the encoder has run once, before step 1
                rows = None if view.is_encoder else number
                tag = f"walk/{view.where}/layer-{view.layer}"
                records.append(event_record(number, image(tag, attention_picture(view, rows))))
        records += [
            event_record(number, text("walk/candidates", candidates_table(step))),
            event_record(number, scalars({"walk/probability": step.probability})),
        ]
    return records


def views_to_draw(walk: Walkthrough) -> list[AttentionView]:
    """Return every attention of a walk-through, or those of the last layers if they are many."""
    views = list(attention_views(walk))
    if len(views) * min(len(walk.steps), MAX_WALK_STEPS) <= MAX_WALK_PICTURES:
        return views
    last = {view.where: view.layer for view in views}
    return [view for view in views if view.layer == last[view.where]]


def candidates_table(step: DecodingStep) -> str:
    heading = escape_markdown(f"step {step.number}: {step.fed} → {step.produced}")
    rows = [[each.token, f"{each.probability:.4f}"] for each in step.candidates]
    return f"**{heading}**\n\n{markdown_table(['candidate', 'probability'], rows)}"


def write_projector(run: Path, model: EncoderDecoder, tokenizer: PairTokenizer) -> None:
    """Write the embeddings of both sides with their tokens, replacing earlier ones."""
    source, target = model.encoder.embedding.weight, model.decoder.embedding.weight
    sides = {"source": (source, tokenizer.source), "target": (target, tokenizer.target)}
    if source is target:
        sides = {"shared": sides["target"]}
    config = ProjectorConfig()
    files: dict[str, bytes] = {}
    for side, (table, names) in sides.items():
        vectors = table.detach()[:MAX_POINTS].to("cpu", torch.float32).numpy()
        # Whitespace within a token would begin another line or column.
        tokens = [" ".join(token.split()) for token in names.tokens[: len(vectors)]]
        rows = ["token\tid", *(f"{token}\t{id}" for id, token in enumerate(tokens))]
        files[f"{side}.bytes"] = vectors.astype("<f4").tobytes()
        files[f"{side}.tsv"] = "\n".join([*rows, ""]).encode()
        config.embeddings.add(
            tensor_name=f"{side} embeddings",
            tensor_shape=vectors.shape,
            tensor_path=f"projector/{side}.bytes",
            metadata_path=f"projector/{side}.tsv",
        )
    replace_folder(run / "projector", files)
    replace_file(run / "projector_config.pbtxt", text_format.MessageToString(config).encode())
