"""Which steps of a run are saved in any case, whatever signals come, and which are kept."""

from minitransformer.settings import Config


def planned(steps: list[int], config: Config) -> list[int]:
    """Those of some steps that are saved in any case, and not only because a signal came."""
    return [
        step
        for step in steps
        if step % config.training.save_every == 0
        or step % config.evaluation.every == 0
        or step == config.training.steps
    ]


def kept(steps: list[int], newest: int, best: int | None, config: Config) -> set[int | None]:
    """Those of some steps, newest first, that stay when a new one has been saved."""
    # Higher steps were found damaged, or the run would stand there.
    own = [step for step in steps if step <= newest and step != best]
    last = planned(own, config)[: config.training.keep_checkpoints]
    spare = last[1:] or own[:2]  # to fall back to, however early it was stopped
    return {*last, *spare, newest, best}
