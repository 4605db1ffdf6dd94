"""What may change between two sittings of one run, and where the next one goes on."""

from minitransformer.checkpoint import RunFolder
from minitransformer.config import changed_keys
from minitransformer.data.preparation import Prepared, prepare
from minitransformer.errors import CheckpointError
from minitransformer.model.base import EncoderDecoder
from minitransformer.saved_step import State, refuse_other_settings
from minitransformer.settings import Config
from minitransformer.storage import checksum, replace_folder
from minitransformer.training.optimizer import AdamW
from minitransformer.weights import load_weights

MAY_CHANGE = {
    "training.steps", "training.patience", "training.save_every",
    "training.keep_checkpoints", "training.processes", "training.join_timeout",
    "training.step_timeout",
    "evaluation.every", "evaluation.train_pairs", "evaluation.batch_size", "evaluation.average",
    "evaluation.samples", "logging.tensorboard", "logging.every", "logging.probes",
}  # fmt: skip
ABOUT_PAIRS = ("data.", "hygiene.")  # these may, too, as long as the same pairs come of them


def changed_settings(run: RunFolder, config: Config) -> dict[str, str]:
    """The settings that changed since a run began; refuses those that make it another."""
    begun_with = run.load_config()
    step, content = run.newest_content()
    refuse_other_settings(content["settings"], step, begun_with, run.path)
    changed = changed_keys(begun_with, config)
    told = {key: f"{key}: {old}, now {new}" for key, (old, new) in changed.items()}
    refused = [
        told[key] for key in changed if key not in MAY_CHANGE and not key.startswith(ABOUT_PAIRS)
    ]
    if refused:
        raise CheckpointError(
            f"{run.path} was begun with other settings ({'; '.join(refused)}); "
            "use --fresh to start over, or --run for another folder"
        )
    return told


def prepare_again(run: RunFolder, config: Config) -> Prepared:
    """The corpus as a run's tokenizer numbers it; a damaged one can be made again from it."""
    known = run.newest_content()[1]["tokenizer"]
    try:
        tokenizer = run.load_tokenizer(config)
        if known is None or known == run.tokenizer_checksums():
            return prepare(config, tokenizer)
        damage = f"{run.path / 'tokenizer'}: damaged (its checksum does not match)"
    except CheckpointError as error:
        damage = str(error)
    prepared = prepare(config)
    files = prepared.tokenizer.to_files()
    if known != {name: checksum(content) for name, content in files.items()}:
        raise CheckpointError(damage)  # the corpus is another one now, or was not there alone
    replace_folder(run.path / "tokenizer", files)
    prepared.notes.append(f"{damage}; made again from {prepared.corpus.name}")
    return prepared


def take_up(
    run: RunFolder,
    config: Config,
    prepared: Prepared,
    changes: dict[str, str],
    model: EncoderDecoder,
    optimizer: AdamW,
) -> tuple[State, list[str]]:
    """Load the newest whole checkpoint; damaged ones on the way come back as notes."""
    complaints: list[str] = []
    try:
        checkpoint = run.load_newest(complaints, for_training=True)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; --fresh starts over and moves this aside") from None
    refuse_other_settings(checkpoint.settings, checkpoint.path.name, config, run.path)
    state = checkpoint.state
    if state.data_fingerprint != prepared.fingerprint:
        why = "; ".join(told for key, told in changes.items() if key.startswith(ABOUT_PAIRS))
        raise CheckpointError(
            f"{run.path} was begun with other sentence pairs than {prepared.corpus.name} has now"
            f"{f' ({why})' * bool(why)}; use --fresh to start over, or another --run"
        )
    load_weights(model, checkpoint.model, str(checkpoint.path))
    try:
        optimizer.load(checkpoint.optimizer)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.path}: {error}") from None
    if not complaints and not changes:
        run.settle(state, config)
    return state, [f"{each}; went back to {checkpoint.path.name}" for each in complaints]
