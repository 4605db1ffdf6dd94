"""Rows of parquet files, and of data sets in folders or on the Hugging Face hub."""

import logging
import os
import socket
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from minitransformer.data.readers import Columns, Row, column_index, object_reader
from minitransformer.errors import DataError

BATCH_ROWS = 1000


def parquet_rows(path: Path, columns: Columns) -> Iterator[Row]:
    """Yield rows of a parquet file, with a part of it in memory at a time."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = top_columns(columns, file.schema_arrow.names, str(path))
            # parquet takes a dot in a name for a path; then all columns are read.
            chosen = None if any("." in name for name in names) else names
            batches = file.iter_batches(BATCH_ROWS, columns=chosen)
            yield from batch_rows(batches, names, columns, path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or root_cause(error)}") from None
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not readable as parquet ({root_cause(error)})") from None


def dataset_rows(dataset: Any, columns: Columns, where: str) -> Iterator[Row]:
    """Yield rows of a data set's two columns; its other columns stay on disk."""
    names = top_columns(columns, dataset.column_names, where)
    if not len(dataset):
        return iter(())  # its own iterator fails on an empty data set
    batches = dataset.select_columns(names).with_format("arrow").iter(BATCH_ROWS)
    return batch_rows(batches, names, columns, where)


def top_columns(columns: Columns, names: list[str], where: str) -> list[str]:
    """Return the columns to read: translation for translation.en, unless that is a name."""
    tops = [str(column) if column in names else str(column).split(".")[0] for column in columns]
    if not isinstance(columns[0], int) and not set(tops) & set(names) and "translation" in names:
        raise DataError(f"{where}: name its columns as data.columns=[translation.en, …]")
    for top in tops:
        column_index(top, names, where)
    return list(dict.fromkeys(tops))


def batch_rows(
    batches: Iterable[Any], names: list[str], columns: Columns, where: object
) -> Iterator[Row]:
    """Yield rows of Arrow tables, numbered from 1."""
    to_row = object_reader(columns, where)
    number = 0
    for batch in batches:
        for values in zip(*(to_python(batch.column(name)) for name in names), strict=True):
            number += 1
            yield to_row(number, dict(zip(names, values, strict=True)))


def to_python(column: Any) -> list[Any]:
    """Return an Arrow column as Python values; an unreadable value spoils only its own row."""
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        return [value_to_python(value) for value in column]
    return values


def value_to_python(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        if hasattr(value, "items"):  # an object, whose other fields may be valid
            return {key: value_to_python(each) for key, each in value.items()}
        return "\ufffd"  # marks damaged text
    except (ValueError, OverflowError):  # such as a date beyond the years of Python
        return value


def load_splits(name: str, subset: str) -> dict[str, Any]:
    """Load all splits of a local folder or of a data set on the hub, offline from its cache."""
    import datasets

    datasets.utils.logging.set_verbosity(logging.CRITICAL)
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    if Path(name).is_dir():
        check_single_format(Path(name))
    elif not hub_is_reachable():
        # It would retry for half a minute; offline, it looks into its cache at once.
        import huggingface_hub

        huggingface_hub.constants.HF_HUB_OFFLINE = True
        datasets.config.HF_HUB_OFFLINE = True
    try:
        builder = datasets.load_dataset_builder(name, subset or None)
        # Its csv reader would turn "NA" into a missing value.
        options = {"keep_default_na": False} if builder.name == "csv" else {}
        return dict(datasets.load_dataset(name, subset or None, **options))
    except ConnectionError:
        raise DataError(
            f"data.train: there is no file or folder '{name}'; as a name on the Hugging Face hub "
            "it is not in the cache, and the hub cannot be reached: download it where there is a "
            "network, and name its files or their folder"
        ) from None
    except Exception as error:  # what it raises depends on which library below it failed
        raise DataError(f"data.train: {name}: {root_cause(error)}") from None


def check_single_format(folder: Path) -> None:
    """Refuse a folder with files of several formats, of which only one would be read."""
    endings = {path.suffix for path in folder.iterdir()} & {".csv", ".tsv", ".jsonl", ".parquet"}
    if len(endings) != 1:
        there = "no" if not endings else "several kinds of"
        raise DataError(
            f"data.train: {folder} has {there} csv, tsv, jsonl or parquet files; name one, or "
            "call them train.…, valid.… and test.…; of two aligned files, name both: [a.en, a.es]"
        )


def hub_is_reachable() -> bool:
    """Return whether a connection to the hub, or to its proxy, opens within five seconds."""
    import huggingface_hub

    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return False
    proxies = (os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"))
    address = urlsplit(next(filter(None, proxies), huggingface_hub.constants.ENDPOINT))
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=5).close()
    except OSError:
        return False
    return True


def root_cause(error: BaseException) -> str:
    """Return the first line of the innermost error's message."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__
