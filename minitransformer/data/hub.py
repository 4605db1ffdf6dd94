"""Rows of parquet files, and of data sets in folders or on the Hugging Face hub."""

import logging
import os
import socket
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from minitransformer.data.readers import Columns, Row, picker, place_of
from minitransformer.errors import DataError

ROWS_AT_A_TIME = 1000


def parquet_rows(path: Path, columns: Columns) -> Iterator[Row]:
    """Rows of a parquet file, a part of it in memory at a time."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = top_columns(columns, file.schema_arrow.names, str(path))
            # A dot in a name would be taken for a path; then everything is read.
            chosen = None if any("." in name for name in names) else names
            batches = file.iter_batches(ROWS_AT_A_TIME, columns=chosen)
            yield from batch_rows(batches, names, columns, path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or reason(error)}") from None
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not readable as parquet ({reason(error)})") from None


def dataset_rows(dataset: Any, columns: Columns, where: str) -> Iterator[Row]:
    """The two columns of a data set, whose memory-mapped rest stays on disk."""
    names = top_columns(columns, dataset.column_names, where)
    if not len(dataset):
        return iter(())  # its own iterator cannot do that
    batches = dataset.select_columns(names).with_format("arrow").iter(ROWS_AT_A_TIME)
    return batch_rows(batches, names, columns, where)


def top_columns(columns: Columns, there: list[str], where: str) -> list[str]:
    """The columns to read: translation.en stands inside translation, unless it is a name."""
    tops = [str(column) if column in there else str(column).split(".")[0] for column in columns]
    if not isinstance(columns[0], int) and not set(tops) & set(there) and "translation" in there:
        raise DataError(f"{where}: name its columns as data.columns=[translation.en, …]")
    for top in tops:
        place_of(top, there, where)
    return list(dict.fromkeys(tops))


def batch_rows(
    batches: Iterable[Any], names: list[str], columns: Columns, where: object
) -> Iterator[Row]:
    """Rows of Arrow's tables, numbered from 1 on."""
    pick = picker(columns, where)
    number = 0
    for batch in batches:
        for values in zip(*(plain_values(batch.column(name)) for name in names), strict=True):
            number += 1
            yield pick(number, dict(zip(names, values, strict=True)))


def plain_values(column: Any) -> list[Any]:
    """An Arrow column as Python's own values; one that cannot be read costs its own row alone."""
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        return [plain_value(value) for value in column]
    return values


def plain_value(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        if hasattr(value, "items"):  # an object, whose other fields may be whole
            return {key: plain_value(each) for key, each in value.items()}
        return "\ufffd"  # shows that text is damaged
    except (ValueError, OverflowError):  # such as a date that Python has not
        return value


def load_splits(name: str, subset: str) -> dict[str, Any]:
    """All splits of a local folder or of a data set on the hub, its cached copy if need be."""
    datasets = quiet_datasets()
    if Path(name).is_dir():
        refuse_mixed_folder(Path(name))
    elif not hub_answers():
        # It would try again and again for half a minute; its cache can be asked at once.
        import huggingface_hub

        huggingface_hub.constants.HF_HUB_OFFLINE = True
        datasets.config.HF_HUB_OFFLINE = True
    try:
        builder = datasets.load_dataset_builder(name, subset or None)
        # Its csv reader would turn "NA" into nothing.
        options = {"keep_default_na": False} if builder.name == "csv" else {}
        return dict(datasets.load_dataset(name, subset or None, **options))
    except ConnectionError:
        raise DataError(
            f"data.train: there is no file or folder '{name}'; as a name on the Hugging Face hub "
            "it is not in the cache, and the hub cannot be reached: download it where there is a "
            "network, and name its files or their folder"
        ) from None
    except Exception as error:  # what it raises depends on which library below it failed
        raise DataError(f"data.train: {name}: {reason(error)}") from None


def refuse_mixed_folder(folder: Path) -> None:
    """Of several formats, only one would be read."""
    endings = {path.suffix for path in folder.iterdir()} & {".csv", ".tsv", ".jsonl", ".parquet"}
    if len(endings) != 1:
        there = "no" if not endings else "several kinds of"
        raise DataError(
            f"data.train: {folder} has {there} csv, tsv, jsonl or parquet files; name one, or "
            "call them train.…, valid.… and test.…; of two aligned files, name both: [a.en, a.es]"
        )


def quiet_datasets() -> Any:
    """The library, loaded only where it is needed, without its chatter."""
    import datasets

    datasets.utils.logging.set_verbosity(logging.CRITICAL)
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    return datasets


def hub_answers() -> bool:
    """Can a connection to the hub be opened within a few seconds?"""
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


def reason(error: BaseException) -> str:
    """The first line of what went wrong at the bottom."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__
