"""How do row groups of a Parquet file become columns?"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tensorrepo.formats.dataset.columns.coerce import coerce_column
from tensorrepo.repo.errors import CorruptError, Error, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.formats.dataset.columns.values import ColumnValues
    from tensorrepo.formats.dataset.elsewhere.foreign import TablePlace
    from tensorrepo.formats.dataset.elsewhere.outsideread import OutsideFile

# How pyarrow says that bytes are wrong. A lying length fails as an allocation.
_DAMAGED = (pa.ArrowException, ValueError, OverflowError, MemoryError, OSError, KeyError)


def read_metadata(file: OutsideFile, where: str) -> Any:
    """The footer of a Parquet file, as pyarrow's FileMetaData.

    Raises:
        CorruptError: it is no Parquet file, or a damaged one.
    """
    import pyarrow.parquet as pq  # takes 30 ms, and few datasets need it

    with _damage(where):
        return pq.ParquetFile(file, page_checksum_verification=True).metadata


def read_group(
    file: OutsideFile, metadata: Any, group: int, rows: int, place: TablePlace, where: str
) -> ColumnValues:
    """One column of one row group; only its bytes are read.

    Args:
        file: the whole file.
        metadata: its footer, from `read_metadata`.
        group: number of the row group.
        rows: how many rows it must have.
        place: which field, and as what.
        where: names the file in errors.

    Raises:
        CorruptError: there is no such field or row group, it has other rows, or it is damaged.
    """
    import pyarrow.parquet as pq

    if group >= metadata.num_row_groups or metadata.row_group(group).num_rows != rows:
        raise CorruptError(f"{where} has no row group {group} of {rows} rows")
    with _damage(f"{where}, row group {group}, field {place.field!r}"):
        # Without buffering ahead: its threads and Python's wait for each other when it fails.
        opened = pq.ParquetFile(
            file, metadata=metadata, pre_buffer=False, page_checksum_verification=True
        )
        table = opened.read_row_group(group, columns=[place.field], use_threads=False)
        array = table.column(place.field).combine_chunks()
        # Offsets that point outside their buffer would crash whoever follows them.
        array.validate(full=True)
        return coerce_column(place.column(), converted(array, place.content))


def converted(array: pa.Array, content: str) -> pa.Array:
    """The array that a column of our types takes."""
    if content == "labels":  # a missing label is -1
        array = array.cast(pa.int64())
        return pc.if_else(pc.less(array, 0), None, array)
    if content == "image":
        return pc.struct_field(array, "bytes")
    if content != "plain":
        raise CorruptError(f"foreign object: a field of kind {content!r:.40}")
    return array


@contextmanager
def _damage(where: str) -> Iterator[None]:
    try:
        yield
    except InvalidInputError as error:
        raise CorruptError(f"{where}: {error}") from error
    except Error:
        raise
    except _DAMAGED as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise CorruptError(f"{where} cannot be read: {line}") from error
