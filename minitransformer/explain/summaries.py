"""What TensorBoard's tabs are fed with: scalars, pictures, texts, a layout, hyperparameters."""

import dataclasses
import re
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch.utils.tensorboard import summary as torch_summary

from minitransformer.explain.attention_view import AttentionView
from minitransformer.explain.canvas import Picture, as_png
from minitransformer.judging import Evaluation, Sample
from minitransformer.settings import Config

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
        [[each.source, each.reference, each.translation, each.forced] for each in samples],
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
    values = {"data.source": shown_value(config.data.source)}
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
