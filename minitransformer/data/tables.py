"""Rows of parquet files, dataset folders and the Hugging Face hub, read by `datasets`."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from minitransformer.data.text_files import Columns, Row, picker, place_of
from minitransformer.errors import DataError

ROWS_AT_A_TIME = 1000


def table_rows(dataset: Any, columns: Columns, where: str) -> Iterator[Row]:
    """The two columns of a table; its memory-mapped rest stays on disk."""
    pick = picker(columns, where)
    names = list(dict.fromkeys(str(column).split(".")[0] for column in columns))
    for name in names:
        place_of(name, dataset.column_names, where)
    number = 0
    for batch in dataset.select_columns(names).iter(batch_size=ROWS_AT_A_TIME):
        for values in zip(*(batch[name] for name in names), strict=True):
            number += 1
            yield pick(number, dict(zip(names, values, strict=True)))


def load_parquet(path: Path) -> Any:
    datasets = quiet_datasets()
    try:
        return datasets.load_dataset("parquet", data_files=str(path.resolve()), split="train")
    except Exception as error:  # what it raises depends on which library below it failed
        raise DataError(f"{path}: not readable as parquet ({reason(error)})") from None


def load_splits(name: str, subset: str) -> dict[str, Any]:
    """All splits of a local folder or of a data set on the hub, its cached copy if need be."""
    datasets = quiet_datasets()
    is_folder = Path(name).is_dir()
    if not is_folder and not hub_answers():
        # It would try again and again for half a minute; its cache can be asked at once.
        import huggingface_hub

        huggingface_hub.constants.HF_HUB_OFFLINE = True
        datasets.config.HF_HUB_OFFLINE = True
    try:
        return dict(datasets.load_dataset(name, subset or None))
    except ConnectionError:
        raise DataError(
            f"data.source: '{name}' is no file or folder here, and the Hugging Face hub cannot be "
            "reached, nor is there a copy in its cache; download it where there is a network "
            "and name the files or their folder, or check the spelling"
        ) from None
    except Exception as error:  # what it raises depends on which library below it failed
        raise DataError(f"data.source: {name}: {reason(error)}") from None


def quiet_datasets() -> Any:
    """The library, loaded only where it is needed, without its chatter."""
    import datasets

    datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    return datasets


def hub_answers() -> bool:
    """Can a connection to the hub be opened within a few seconds?"""
    import huggingface_hub

    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY")):
        return True  # a proxy would have to be asked
    address = urlsplit(huggingface_hub.constants.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=5).close()
    except OSError:
        return False
    return True


def reason(error: BaseException) -> str:
    """The first line of what went wrong at the bottom."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__
