"""What a run starts or resumes with, and which settings may change in between."""

import base64
import json
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from minitransformer import __version__
from minitransformer.checkpoint import (
    TrainerState,
    copy_into,
    model_tensors,
    read_tensors,
    refuse_other_settings,
)
from minitransformer.config import changed_keys, config_from_data
from minitransformer.data.dataset import Dataset, prepare_dataset
from minitransformer.data.tokenizer import PairTokenizer
from minitransformer.errors import CheckpointError, ConfigError, DataError, did_you_mean
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
WEIGHTS = Path(__file__).parent / "weights"  # of sheets; `worked NAME --weights` writes them
DATA_SECTIONS = ("data.", "filters.")  # may change, too, as long as the pairs stay the same


@dataclass
class RunSetup:
    """The data of a run, and whether it resumes."""

    dataset: Dataset
    resumes: bool
    changes: dict[str, str] = field(default_factory=dict)  # of settings, since the run began


def setup_run(config: Config, run: RunFolder, ranks: Ranks, *, fresh: bool) -> RunSetup:
    """Read the corpus on every rank, with the tokenizer of rank 0."""
    with ranks.propagate_errors():
        setup = prepare_setup(config, run, fresh) if ranks.is_first else None
    message = ranks.broadcast(to_broadcast(setup, config) if setup else b"")
    with ranks.propagate_errors():
        return setup or from_broadcast(message, config)


def prepare_setup(config: Config, run: RunFolder, fresh: bool) -> RunSetup:
    """Read the run folder and the corpus, as rank 0 does."""
    resumes = run.has_started and not fresh
    changes = changed_settings(run, config) if resumes else {}
    if config.training.init_from and not resumes:
        find_initial_weights(config.training.init_from)  # before a large corpus is read
    dataset = reload_data(run, config) if resumes else prepare_dataset(config)
    if run.lock and run.lock.warning:
        dataset.notes.append(run.lock.warning)
    if "valid" not in dataset.corpus.splits and config.evaluation.best_metric != "none":
        raise DataError(
            f"evaluation.best_metric: {dataset.corpus.name} has no held-out pairs to measure it "
            "on; name some with data.valid or split some off with data.split_valid"
        )
    return RunSetup(dataset, resumes, changes)


def changed_settings(run: RunFolder, config: Config) -> dict[str, str]:
    """Return the settings that changed since a run began; refuse those that must not."""
    own_config = run.load_config()
    step, content = run.newest_content()
    refuse_other_settings(content["settings"], step, own_config, run.path)
    changes = {
        key: f"{key}: {old}, now {new}"
        for key, (old, new) in changed_keys(own_config, config).items()
    }
    refused = [
        change
        for key, change in changes.items()
        if key not in RESUMABLE_KEYS and not key.startswith(DATA_SECTIONS)
    ]
    if refused:
        raise CheckpointError(
            f"{run.path} was started with other settings ({'; '.join(refused)}); "
            "use --fresh to start over, or --run for another folder"
        )
    return changes


def reload_data(run: RunFolder, config: Config) -> Dataset:
    """Read the corpus with the run's tokenizer; rebuild a damaged tokenizer from the corpus."""
    checksums = run.newest_content()[1]["tokenizer"]
    try:
        tokenizer = run.load_tokenizer(config)
        if checksums is None or checksums == run.tokenizer_checksums():
            return prepare_dataset(config, tokenizer)
        damage = f"{run.path / 'tokenizer'}: damaged (its checksum does not match)"
    except CheckpointError as error:
        damage = str(error)
    dataset = prepare_dataset(config)
    files = dataset.tokenizer.to_files()
    if checksums != {name: checksum(content) for name, content in files.items()}:
        raise CheckpointError(damage)  # it was made from another corpus
    replace_folder(run.path / "tokenizer", files)
    dataset.notes.append(f"{damage}; made again from {dataset.corpus.name}")
    return dataset


def to_broadcast(setup: RunSetup, config: Config) -> bytes:
    """Return what the other ranks need to start as rank 0 does."""
    files = setup.dataset.tokenizer.to_files()
    return json.dumps(
        {
            "version": __version__,
            "config": asdict(config),
            "tokenizer": {name: base64.b85encode(files[name]).decode() for name in files},
            "fingerprint": setup.dataset.fingerprint,
            "resumes": setup.resumes,
        }
    ).encode()


def from_broadcast(message: bytes, config: Config) -> RunSetup:
    """Read the corpus with rank 0's tokenizer; refuse other settings or pairs than rank 0's."""
    first = json.loads(message)
    if first["version"] != __version__:
        raise ConfigError(
            "all processes of a run must have the same version of minitransformer, "
            f"not {first['version']} and {__version__}"
        )
    changed = changed_keys(config_from_data(first["config"], "rank 0"), config)
    changed.pop("data.cache", None)  # each machine may have its own
    if changed:
        differences = (f"{key}: {one} and {other}" for key, (one, other) in changed.items())
        raise ConfigError(
            f"the processes of this run have different settings ({'; '.join(differences)})"
        )
    with tempfile.TemporaryDirectory() as folder:
        for name, content in first["tokenizer"].items():
            (Path(folder) / name).write_bytes(base64.b85decode(content))
        tokenizer = PairTokenizer.from_folder(Path(folder), config)
    dataset = prepare_dataset(config, tokenizer)
    if dataset.fingerprint != first["fingerprint"]:
        raise DataError(f"the processes of this run read different pairs as {dataset.corpus.name}")
    return RunSetup(dataset, first["resumes"])


def load_training_state(
    run: RunFolder, config: Config, setup: RunSetup, model: EncoderDecoder, optimizer: AdamW
) -> tuple[TrainerState, list[str]]:
    """Load the newest whole checkpoint; return its state, and a note per damaged newer one."""
    damages: list[str] = []
    try:
        checkpoint = run.load_newest(damages, for_training=True)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; --fresh starts over and moves this aside") from None
    refuse_other_settings(checkpoint.settings, checkpoint.path.name, config, run.path)
    state = checkpoint.state
    if state.data_fingerprint != setup.dataset.fingerprint:
        why = "; ".join(
            change for key, change in setup.changes.items() if key.startswith(DATA_SECTIONS)
        )
        raise CheckpointError(
            f"{run.path} was begun with other sentence pairs than {setup.dataset.corpus.name} has "
            f"now{f' ({why})' if why else ''}; use --fresh to start over, or another --run"
        )
    copy_into(model_tensors(model), checkpoint.model, str(checkpoint.path))
    try:
        optimizer.load(checkpoint.optimizer)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.path}: {error}") from None
    if not damages and not setup.changes:
        run.prune_checkpoints(state, config)
    return state, [f"{damage}; went back to {checkpoint.path.name}" for damage in damages]


def find_initial_weights(name: str) -> Path:
    """Return the file that `training.init_from` names, or the one of this name that ships."""
    shipped = {path.stem: path for path in WEIGHTS.glob("*.safetensors")}
    path = shipped[name] if name in shipped and not Path(name).is_file() else Path(name)
    if not path.exists():
        raise ConfigError(
            f"training.init_from: there is no file '{name}'{did_you_mean(name, shipped) or ';'} "
            f"weights that ship: {', '.join(sorted(shipped))}"
        )
    return path


def load_initial_weights(model: EncoderDecoder, name: str) -> None:
    """Load weights from a file; the tensors that it lacks keep their initial values."""
    tensors = read_tensors(find_initial_weights(name).resolve())
    copy_into(model_tensors(model), tensors, name, partial=True)
