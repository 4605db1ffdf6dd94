"""What may change between two sittings of one run, and what makes it another run."""

from minitransformer.checkpoint import RunFolder
from minitransformer.config import changed_keys
from minitransformer.errors import CheckpointError
from minitransformer.settings import Config

MAY_CHANGE = {
    "data.cache", "data.test", "training.steps", "training.patience", "training.save_every",
    "training.keep_checkpoints", "training.processes", "training.join_timeout",
    "evaluation.every", "evaluation.train_pairs", "evaluation.batch_size", "evaluation.average",
    "evaluation.samples", "logging.tensorboard", "logging.every", "logging.probes",
}  # fmt: skip


def changed_settings(run: RunFolder, config: Config) -> list[str]:
    """A note on settings that changed since a run began; refuses those that make it another."""
    changed = changed_keys(run.load_config(), config)
    told = {key: f"{key}: {old}, now {new}" for key, (old, new) in changed.items()}
    if refused := [told[key] for key in changed if key not in MAY_CHANGE]:
        raise CheckpointError(
            f"{run.path} was begun with other settings ({'; '.join(refused)}); "
            "use --fresh to start over, or --run for another folder"
        )
    return [f"changed since the run began: {'; '.join(told.values())}"] if changed else []
