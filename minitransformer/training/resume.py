"""What a run begins or continues with, and which settings may change in between."""

import base64
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from minitransformer import __version__
from minitransformer.checkpoint import TrainerState, load_weights, refuse_other_settings
from minitransformer.config import changed_keys, config_to_yaml
from minitransformer.data.dataset import Dataset, prepare_dataset
from minitransformer.errors import CheckpointError, ConfigError, DataError
from minitransformer.model.base import EncoderDecoder
from minitransformer.run import RunFolder
from minitransformer.settings import Config
from minitransformer.storage import checksum, replace_folder
from minitransformer.training.distributed import Ranks
from minitransformer.training.optimizer import AdamW

RESUMABLE_KEYS = {
    "training.steps",
    "training.patience",
    "training.save_every",
    "training.keep_checkpoints",
    "training.processes",
    "training.join_timeout",
    "training.step_timeout",
    "evaluation.every",
    "evaluation.train_pairs",
    "evaluation.batch_size",
    "evaluation.average_checkpoints",
    "evaluation.samples",
    "logging.tensorboard",
    "logging.every",
    "logging.examples",
}
DATA_SECTIONS = ("data.", "filters.")  # these may, too, as long as the same pairs come of them


def changed_settings(run: RunFolder, config: Config) -> dict[str, str]:
    """The settings that changed since a run began; refuses those that make it another."""
    begun_with = run.load_config()
    step, content = run.newest_content()
    refuse_other_settings(content["settings"], step, begun_with, run.path)
    changed = changed_keys(begun_with, config)
    told = {key: f"{key}: {old}, now {new}" for key, (old, new) in changed.items()}
    refused = [
        told[key]
        for key in changed
        if key not in RESUMABLE_KEYS and not key.startswith(DATA_SECTIONS)
    ]
    if refused:
        raise CheckpointError(
            f"{run.path} was begun with other settings ({'; '.join(refused)}); "
            "use --fresh to start over, or --run for another folder"
        )
    return told


def reload_data(run: RunFolder, config: Config) -> Dataset:
    """The corpus as a run's tokenizer numbers it; a damaged one can be made again from it."""
    known = run.newest_content()[1]["tokenizer"]
    try:
        tokenizer = run.load_tokenizer(config)
        if known is None or known == run.tokenizer_checksums():
            return prepare_dataset(config, tokenizer)
        damage = f"{run.path / 'tokenizer'}: damaged (its checksum does not match)"
    except CheckpointError as error:
        damage = str(error)
    dataset = prepare_dataset(config)
    files = dataset.tokenizer.to_files()
    if known != {name: checksum(content) for name, content in files.items()}:
        raise CheckpointError(damage)  # the corpus is another one now, or was not there alone
    replace_folder(run.path / "tokenizer", files)
    dataset.notes.append(f"{damage}; made again from {dataset.corpus.name}")
    return dataset


def load_training_state(
    run: RunFolder,
    config: Config,
    dataset: Dataset,
    changes: dict[str, str],
    model: EncoderDecoder,
    optimizer: AdamW,
) -> tuple[TrainerState, list[str]]:
    """Load the newest whole checkpoint; damaged ones on the way come back as notes."""
    complaints: list[str] = []
    try:
        checkpoint = run.load_newest(complaints, for_training=True)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; --fresh starts over and moves this aside") from None
    refuse_other_settings(checkpoint.settings, checkpoint.path.name, config, run.path)
    state = checkpoint.state
    if state.data_fingerprint != dataset.fingerprint:
        why = "; ".join(told for key, told in changes.items() if key.startswith(DATA_SECTIONS))
        raise CheckpointError(
            f"{run.path} was begun with other sentence pairs than {dataset.corpus.name} has now"
            f"{f' ({why})' * bool(why)}; use --fresh to start over, or another --run"
        )
    load_weights(model, checkpoint.model, str(checkpoint.path))
    try:
        optimizer.load(checkpoint.optimizer)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.path}: {error}") from None
    if not complaints and not changes:
        run.prune_checkpoints(state, config)
    return state, [f"{each}; went back to {checkpoint.path.name}" for each in complaints]


@dataclass
class RunSetup:
    """A corpus with its tokenizer, and whether there is a run that they belong to."""

    dataset: Dataset
    resumes: bool
    changes: dict[str, str] = field(default_factory=dict)  # of settings, since the run began


def setup_run(config: Config, run: RunFolder, ranks: Ranks, *, fresh: bool) -> RunSetup:
    """Read the corpus; where several processes do, all get the first one's tokenizer."""
    with ranks.propagate_errors():
        setup = prepare_setup(config, run, fresh) if ranks.is_first else None
    told = ranks.broadcast(to_broadcast(setup, config) if setup else b"")
    with ranks.propagate_errors():
        return setup or from_broadcast(told, config)


def prepare_setup(config: Config, run: RunFolder, fresh: bool) -> RunSetup:
    """What the first process reads, or the only one."""
    resumes = run.has_started and not fresh
    changes = changed_settings(run, config) if resumes else {}
    dataset = reload_data(run, config) if resumes else prepare_dataset(config)
    if run.lock and run.lock.complaint:
        dataset.notes.append(run.lock.complaint)
    if "valid" not in dataset.corpus.splits and config.evaluation.best_metric != "none":
        raise DataError(
            f"evaluation.best_metric: {dataset.corpus.name} has no held-out pairs to judge by; "
            "name some with data.valid or split some off with data.split_valid"
        )
    return RunSetup(dataset, resumes, changes)


def to_broadcast(setup: RunSetup, config: Config) -> bytes:
    """What the other processes must know to begin as the first one does."""
    files = setup.dataset.tokenizer.to_files()
    return json.dumps(
        {
            "version": __version__,
            "config": config_to_yaml(config),
            "tokenizer": {name: base64.b85encode(files[name]).decode() for name in files},
            "fingerprint": setup.dataset.fingerprint,
            "resumes": setup.resumes,
        }
    ).encode()


def from_broadcast(told: bytes, config: Config) -> RunSetup:
    """Read the corpus with the first process's tokenizer; refuses other settings or sentences."""
    first = json.loads(told)
    if first["version"] != __version__:
        raise ConfigError(f"processes of versions {first['version']} and {__version__} cannot mix")
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        (run.path / "config.yaml").write_text(first["config"], encoding="utf-8")
        (run.path / "tokenizer").mkdir()
        for name, content in first["tokenizer"].items():
            (run.path / "tokenizer" / name).write_bytes(base64.b85decode(content))
        changed = changed_keys(run.load_config(), config)
        tokenizer = run.load_tokenizer(config)
    changed.pop("data.cache", None)  # each machine may have its own
    if changed:
        differences = (f"{key}: {one} and {other}" for key, (one, other) in changed.items())
        raise ConfigError(
            f"the processes of this run have different settings ({'; '.join(differences)})"
        )
    dataset = prepare_dataset(config, tokenizer)
    if dataset.fingerprint != first["fingerprint"]:
        raise DataError(f"the processes of this run read different pairs as {dataset.corpus.name}")
    return RunSetup(dataset, first["resumes"])
