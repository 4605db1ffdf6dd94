"""Which steps of a run are saved in any case, whatever signals come."""

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
