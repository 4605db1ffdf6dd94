"""A walk-through checks itself: numbers against what they come to, words against their numbers."""

from collections.abc import Iterator

import torch
from torch import Tensor

from minitransformer.data.tokens import EOS_ID, PAD_ID
from minitransformer.errors import UserError
from minitransformer.explain.reasons import changes_without
from minitransformer.explain.recomputation import Recomputation
from minitransformer.explain.stages import EmbeddingStage, Stage
from minitransformer.explain.walkthrough import Walkthrough, best_candidates, forced_ids

# float32 sums in another order: of the value itself, and of the largest one beside it
TOLERANCE, BESIDE = 1e-5, 1e-6


class Mismatch(UserError):
    """A recorded value is not what the values and weights before it give."""


def check(walk: Walkthrough) -> int:
    """Recompute every value; returns how many, or fails naming the first that differs.

    Weights that this translation does not use, such as other words' embeddings, are not seen.
    """
    count = 0
    for step, name, recorded, again in recomputed(walk):
        place = place_of(step)
        if recorded.shape != again.shape:
            sizes = f"{tuple(recorded.shape)}, recomputed {tuple(again.shape)}"
            raise Mismatch(f"{place}: {name} is {sizes}")
        recorded, again = (each.detach().cpu().double() for each in (recorded, again))
        if not again.isfinite().all():
            raise Mismatch(f"{place}: {name}: the numbers are too large to be numbers any more")
        largest = again.abs().max() if again.numel() else 0.0
        wrong = ~((recorded - again).abs() <= TOLERANCE * again.abs() + BESIDE * largest)
        if wrong.any():
            at = wrong.nonzero()[0].tolist()
            raise Mismatch(
                f"{place}: {name}{at} is {float(recorded[*at]):.6g}, "
                f"recomputed {float(again[*at]):.6g}"
            )
        count += recorded.numel()
    check_words(walk)
    return count


def place_of(step: int) -> str:
    return f"decoding step {step}" if step else "encoder"


@torch.no_grad()
def recomputed(walk: Walkthrough) -> Iterator[tuple[int, str, Tensor, Tensor]]:
    """Each recorded value with its step, its name, and what comes out when it is computed again."""
    recomputation = Recomputation(walk.model, walk.source_ids)
    for step, stage in walk.stages():
        for name, recorded, again in recomputation.stage(step, stage):
            yield step, f"{stage.path}.{name}", recorded, again
    for step, name, told, found in recomputed_choices(walk):
        yield step, name, torch.tensor(told), torch.tensor(found)


def recomputed_choices(walk: Walkthrough) -> Iterator[tuple[int, str, list[float], list[float]]]:
    """What was made of the probabilities: candidates, the choice, what is fed next, the reasons."""
    fed, produced = [step.fed_id for step in walk.steps], [step.produced_id for step in walk.steps]
    forced = forced_ids(walk.tokenizer, walk.experiment)
    reasons = changes_without(walk.model, walk.source_ids, fed, produced)
    yield 0, "ids", list(walk.source_ids), ids_of(walk.encoder)
    for place, (step, changes) in enumerate(zip(walk.steps, reasons, strict=True)):
        best = best_candidates(step.head.probabilities, walk.tokenizer.target.tokens)
        for field in ("id", "probability"):
            told = [getattr(each, field) for each in step.candidates]
            yield step.number, f"candidates.{field}", told, [getattr(each, field) for each in best]
        choice = forced[place] if place < len(forced) else best[0].id
        yield step.number, "produced", [step.produced_id], [choice]
        before = produced[place - 1] if place else walk.tokenizer.start_id
        yield step.number, "fed", [step.fed_id, *ids_of(step.stages)], [before, before]
        yield step.number, "why", filled(step.why), filled(changes)


def ids_of(stages: list[Stage]) -> list[float]:
    return [id for stage in stages if isinstance(stage, EmbeddingStage) for id in stage.ids]


def filled(values: list[float | None]) -> list[float]:
    """Changes, followed by whether there is one."""
    known = [value is not None for value in values]
    return [0.0 if value is None else value for value in values] + [float(each) for each in known]


def check_words(walk: Walkthrough) -> None:
    """Every word that stands beside a number is the one that the number belongs to."""
    names = walk.tokenizer.target.tokens
    fed = [names[step.fed_id] for step in walk.steps]
    produced = [step.produced_id for step in walk.steps]
    told = {
        "hidden": (walk.hidden, [id == PAD_ID for id in walk.source_ids]),
        "translation": (walk.translation, walk.tokenizer.target.decode(produced)),
        "is_finished": (walk.is_finished, produced[-1] == EOS_ID),
        "end": (EOS_ID in produced[:-1], False),
    }
    for number, stage in walk.stages():
        tokens = walk.source if number == 0 else [fed[number - 1]]
        seen = walk.source if number == 0 else fed[:number]
        for field, expected in (("tokens", tokens), ("queries", tokens), ("keys", seen)):
            if field == "keys" and getattr(stage, "look", "") == "cross-attention":
                expected = walk.source
            words = getattr(stage, field, expected)
            told[f"{place_of(number)}: {stage.path}.{field}"] = (words, expected)
    for step in walk.steps:
        place = f"{place_of(step.number)}: "
        told[f"{place}fed"] = (step.fed, names[step.fed_id])
        told[f"{place}produced"] = (step.produced, names[step.produced_id])
        words = [each.token for each in step.candidates]
        told[f"{place}candidates.token"] = (words, [names[each.id] for each in step.candidates])
        forced = len(forced_ids(walk.tokenizer, walk.experiment))
        told[f"{place}is_forced"] = (step.is_forced, step.number <= forced)
        expected = walk.expected[step.number - 1 : step.number]
        told[f"{place}expected"] = ([step.expected] if step.expected else [], expected)
    for name, (found, right) in told.items():
        if found != right:
            raise Mismatch(f"{name} is {found!r}, not {right!r}")
