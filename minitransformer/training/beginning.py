"""What a run begins or goes on with, read by the first process and told to the others."""

import base64
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from minitransformer import __version__
from minitransformer.checkpoint import RunFolder
from minitransformer.config import changed_keys, config_to_yaml
from minitransformer.data.preparation import Prepared, prepare
from minitransformer.errors import ConfigError, DataError
from minitransformer.settings import Config
from minitransformer.training.distributed import Ranks
from minitransformer.training.resuming import changed_settings, prepare_again


@dataclass
class Beginning:
    """A corpus with its tokenizer, and whether there is a run that they belong to."""

    prepared: Prepared
    resumes: bool
    changes: dict[str, str] = field(default_factory=dict)  # of settings, since the run began


def begin(config: Config, run: RunFolder, ranks: Ranks, *, fresh: bool) -> Beginning:
    """Read the corpus; where several processes do, all get the first one's tokenizer."""
    with ranks.same_fate():
        beginning = read_beginning(config, run, fresh) if ranks.is_first else None
    told = ranks.share(to_tell(beginning, config) if beginning else b"")
    with ranks.same_fate():
        return beginning or begin_as_told(told, config)


def read_beginning(config: Config, run: RunFolder, fresh: bool) -> Beginning:
    """What the first process reads, or the only one."""
    resumes = run.has_started and not fresh
    changes = changed_settings(run, config) if resumes else {}
    prepared = prepare_again(run, config) if resumes else prepare(config)
    if run.lock and run.lock.complaint:
        prepared.notes.append(run.lock.complaint)
    if "valid" not in prepared.corpus.splits and config.evaluation.best_metric != "none":
        raise DataError(
            f"evaluation.best_metric: {prepared.corpus.name} has no held-out pairs to judge by; "
            "name some with data.valid or split some off with data.split_valid"
        )
    return Beginning(prepared, resumes, changes)


def to_tell(beginning: Beginning, config: Config) -> bytes:
    """What the other processes must know to begin as the first one does."""
    files = beginning.prepared.tokenizer.to_files()
    return json.dumps(
        {
            "version": __version__,
            "config": config_to_yaml(config),
            "tokenizer": {name: base64.b85encode(files[name]).decode() for name in files},
            "fingerprint": beginning.prepared.fingerprint,
            "resumes": beginning.resumes,
        }
    ).encode()


def begin_as_told(told: bytes, config: Config) -> Beginning:
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
    prepared = prepare(config, tokenizer)
    if prepared.fingerprint != first["fingerprint"]:
        raise DataError(f"the processes of this run read different pairs as {prepared.corpus.name}")
    return Beginning(prepared, first["resumes"])
