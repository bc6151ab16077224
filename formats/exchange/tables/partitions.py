"""Hive partitions: columns whose values stand in the names of folders, as ``year=2024/``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from tensorrepo.formats.exchange.child_main import TableFile

_NULL = "__HIVE_DEFAULT_PARTITION__"


def with_partitions(folder: Path, opened: Mapping[Path, TableFile]) -> dict[Path, TableFile]:
    """Files of a folder with a column for each ``name=value`` folder that they lie in.

    Where files have a column of that name themselves, it is theirs.
    """
    own = {name for table in opened.values() for name in table.schema.names}
    values = partition_values(folder, list(opened), own)
    if values is None:
        return dict(opened)
    return {
        file: _partitioned(table, values.slice(at, 1))
        for at, (file, table) in enumerate(opened.items())
    }


def partition_values(
    folder: Path, files: Sequence[Path], own: Collection[str]
) -> pa.RecordBatch | None:
    """Columns of the ``name=value`` folders that files lie in, a row a file; None without any.

    A column is int64 where all values are integers, else text, and null where a file lies in no
    such folder. Names that are the files' `own` are left out.
    """
    told = [_pairs(folder, file) for file in files]
    names = [name for name in dict.fromkeys(chain.from_iterable(told)) if name not in own]
    if not names:
        return None
    columns = {name: _column([pairs.get(name, _NULL) for pairs in told]) for name in names}
    return pa.RecordBatch.from_pydict(columns)


def _partitioned(table: TableFile, values: pa.RecordBatch) -> TableFile:
    """A file with more columns, whose values are those of the one row for all of its rows."""
    schema = pa.schema([*table.schema, *values.schema], metadata=table.schema.metadata)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in table.batches():
            told = [pa.repeat(column[0], batch.num_rows) for column in values.columns]
            yield pa.RecordBatch.from_arrays([*batch.columns, *told], schema=schema)

    return TableFile(schema, table.rows, batches)


def _pairs(folder: Path, file: Path) -> dict[str, str]:
    """Names and values of the folders between `folder` and a file in it."""
    if not folder.is_dir():
        return {}
    parts = file.relative_to(folder).parts[:-1]
    pairs = (part.partition("=") for part in parts)
    return {unquote(name): unquote(value) for name, equals, value in pairs if name and equals}


def _column(texts: Sequence[str]) -> pa.Array:
    values = [None if text == _NULL else text for text in texts]
    try:
        numbers = [None if text is None else int(text) for text in values]
    except ValueError:
        return pa.array(values, pa.large_string())
    # "007" is no number.
    is_plain = [None if number is None else str(number) for number in numbers] == values
    return pa.array(numbers, pa.int64()) if is_plain else pa.array(values, pa.large_string())
