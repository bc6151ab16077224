"""Parquet files of a dataset as Hugging Face's `datasets` reads them: shards with stable bytes.

Rows are cut into shards and row groups by what the dataset's metadata says alone, and nothing of
the time or the machine stands in a file. So the same dataset gives the same bytes each time, as
long as `writer_name` stays: whoever keeps files names them by both.

Pictures are structs of bytes and a path, and the features stand in the schema's metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tensorrepo.formats.dataset.read import StoredDataset, read_live
from tensorrepo.formats.dataset.schema.arrow import column_array
from tensorrepo.formats.exchange.tables.huggingface_rows import FeatureTable, feature_table
from tensorrepo.repo.errors import InvalidInputError

VERSION: Final = 1  # of how rows are cut and written: a change is another one
SHARD_BYTES: Final = 128 << 20  # of pages as they are stored
ROW_GROUP_BYTES: Final = 16 << 20


def writer_name() -> str:
    """What made a file: other bytes may come of another one."""
    return f"{VERSION}-{pa.__version__}"


def plan_shards(rows: int, stored_bytes: int) -> tuple[range, ...]:
    """The rows of each file of a dataset: at least one file, which may have none.

    >>> plan_shards(0, 0), plan_shards(10, 3 * SHARD_BYTES)
    ((range(0, 0),), (range(0, 3), range(3, 6), range(6, 9), range(9, 10)))
    """
    step = _rows_within(SHARD_BYTES, rows, stored_bytes)
    return tuple(range(at, min(at + step, rows)) for at in range(0, rows, step)) or (range(0),)


def write_shard(dataset: StoredDataset, rows: range, path: Path) -> None:
    """Write some rows of a dataset as a Parquet file.

    Args:
        dataset: whose rows.
        rows: which of them, as `plan_shards` cuts them.
        path: where to.

    Raises:
        InvalidInputError: a column that `datasets` has no feature for.
    """
    table = feature_table(dataset.schema.visible)
    try:
        with pq.ParquetWriter(
            str(path),
            table.schema,
            compression="zstd",
            use_dictionary=table.light,
            write_statistics=table.light,
            write_page_checksum=True,
        ) as writer:
            for batch in _row_groups(dataset, rows, table):
                writer.write_batch(batch)
    except pa.ArrowException as problem:
        raise InvalidInputError(f"these rows cannot be written as Parquet: {problem}") from problem


def _row_groups(
    dataset: StoredDataset, rows: range, table: FeatureTable
) -> Iterator[pa.RecordBatch]:
    columns = dataset.schema.visible.columns
    names = [column.name for column in columns]
    plain = dataset.schema.visible.to_arrow()
    step = _rows_within(ROW_GROUP_BYTES, dataset.rows, dataset.stored_bytes)
    for start in range(rows.start, rows.stop, step):
        found = read_live(dataset, names, range(start, min(start + step, rows.stop)))
        arrays = [column_array(one, values) for one, values in zip(columns, found, strict=True)]
        yield table.convert(pa.RecordBatch.from_arrays(arrays, schema=plain))


def _rows_within(limit_bytes: int, rows: int, stored_bytes: int) -> int:
    """So many rows take about `limit_bytes`."""
    return max(1, limit_bytes * rows // stored_bytes if stored_bytes else 1 << 20)
