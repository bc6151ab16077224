"""Write columns as numeric arrays: npy, npz, IDX.

These hold arrays without nulls and of one shape; everything else is refused, column and row named.
Each column is written by a pass of its own, so memory stays at one batch however many rows.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from math import prod
from pathlib import Path
from struct import Struct
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from tensorrepo.formats.dataset.columns.arrow import from_arrow_array
from tensorrepo.formats.dataset.columns.schema import ClassLabel, Column, Layout, Text, Timestamp
from tensorrepo.formats.dataset.columns.values import FixedValues
from tensorrepo.formats.exchange.base import BATCH_BYTES
from tensorrepo.formats.exchange.numeric import idx
from tensorrepo.formats.exchange.numeric.npy import NAMES_SUFFIX
from tensorrepo.formats.exchange.output import (
    Table,
    column_refused,
    compressed,
    new_file,
    new_folder,
)
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Fixed, so that the same rows make the same file.
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
_MAX_PADDING = 16  # times the text itself, when it is padded to the longest one
_FREE_PADDING_BYTES = 64 << 20


def write_npy(table: Table, path: Path, *, overwrite: bool = False) -> None:
    """The only column of `table` as one array.

    Raises:
        InvalidInputError: more columns, or one that an array cannot hold.
    """
    if len(table.schema.columns) != 1:
        raise InvalidInputError(
            f"an npy file holds one column, there are {', '.join(table.schema.names)}. "
            "Choose one with columns=..., or export to npz"
        )
    (column,) = table.schema.columns
    if isinstance(column.type, ClassLabel):
        raise column_refused(column, "an npy file has no place for class names, an npz file has")
    with new_file(path, overwrite=overwrite) as temporary, temporary.open("xb") as file:
        _write_array(table, column, file)


def write_npz(table: Table, path: Path, *, overwrite: bool = False, compress: bool = False) -> None:
    """Every column as one array of that name; class names as arrays `<column>.names`."""
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with (
        new_file(path, overwrite=overwrite) as temporary,
        zipfile.ZipFile(temporary, "x", method) as archive,
    ):
        for column in table.schema.columns:
            with _member(archive, column.name) as file:
                _write_array(table, column, file)
            if isinstance(column.type, ClassLabel):
                with _member(archive, column.name + NAMES_SUFFIX) as file:
                    np.lib.format.write_array(file, _text_array(list(column.type.names), 1))


def write_idx(
    table: Table,
    path: Path,
    *,
    overwrite: bool = False,
    compress: bool | None = None,
    split: str | None = None,
) -> None:
    """A single column as one IDX file, several as a folder of files named as MNIST's are.

    Args:
        table: columns of the element types that IDX has, or class labels.
        path: file or folder to make.
        overwrite: replace what is there.
        compress: gzip; by default when `path` ends in ``.gz``.
        split: begins the names of the files: "train".
    """
    plans = {column.name: _idx_plan(table, column) for column in table.schema.columns}
    gzipped = path.suffix == ".gz" if compress is None else compress
    if len(plans) == 1 and path.suffix:
        (column,) = table.schema.columns
        if isinstance(column.type, ClassLabel):
            raise column_refused(column, "a single IDX file cannot name classes, a folder can")
        with new_file(path, overwrite=overwrite) as temporary:
            _write_idx_file(table, column, plans[column.name], temporary, gzipped=gzipped)
        return
    with new_folder(path, overwrite=overwrite) as folder:
        for column in table.schema.columns:
            name = _idx_name(column, plans[column.name], split, gzipped=gzipped)
            _write_idx_file(table, column, plans[column.name], folder / name, gzipped=gzipped)
            if isinstance(column.type, ClassLabel):
                lines = folder / f"{column.name}{idx.NAMES_SUFFIX}"
                lines.write_text(join_names(column), "utf-8")


def join_names(column: Column) -> str:
    """The names of a label's classes, one a line."""
    names = column.type.names if isinstance(column.type, ClassLabel) else ()
    for name in names:
        if name.splitlines() != [name]:
            raise column_refused(column, f"class {name!r} does not fit on one line")
    return "".join(f"{name}\n" for name in names)


def array_pieces(table: Table, column: Column) -> Iterator[NDArray[Any]]:
    """The values of a fixed column as arrays of shape ``(rows, *row_shape)``, in order.

    Raises:
        InvalidInputError: the column is not of one shape, or has a null.
    """
    row = 0
    for batch in table.to_batches([column.name], max_bytes=BATCH_BYTES):
        values = from_arrow_array(column.type, batch.column(0))
        if not isinstance(values, FixedValues):
            raise column_refused(column, "its rows are not of one shape")
        if values.valid is not None and not values.valid.all():
            raise _null_refused(column, row + int(np.argmin(values.valid)))
        yield values.values
        row += values.rows


def _null_refused(column: Column, row: int) -> InvalidInputError:
    return column_refused(column, f"row {row} is null, which this format cannot say")


def _write_array(table: Table, column: Column, file: IO[bytes]) -> None:
    """One column as an npy file: header, then batch after batch."""
    if isinstance(column.type, Text):
        _write_text(table, column, file)
        return
    dtype, shape = _npy_type(column)
    _write_npy_header(file, dtype, (len(table), *shape))
    for piece in array_pieces(table, column):
        file.write(np.ascontiguousarray(piece).data.cast("B") if piece.size else b"")


def _write_npy_header(file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    descr = np.lib.format.dtype_to_descr(dtype)
    form = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, form)


def _npy_type(column: Column) -> tuple[np.dtype[Any], tuple[int, ...]]:
    storage = column.storage
    if storage.layout is not Layout.FIXED:
        raise column_refused(column, "its rows are not of one shape")
    if not prod(storage.row_shape):
        raise column_refused(column, "its rows have no elements")
    if isinstance(column.type, Timestamp):
        if column.type.zone is not None:
            raise column_refused(column, f"numpy has no time zones: {column.type.zone}")
        return np.dtype(f"<M8[{column.type.unit}]"), ()
    return storage.element, storage.row_shape


def _write_text(table: Table, column: Column, file: IO[bytes]) -> None:
    """Text as numpy keeps it: every row as long as the longest, four bytes a letter."""
    longest, total = _text_size(table, column)
    padded = 4 * longest * len(table)
    if padded > max(_FREE_PADDING_BYTES, _MAX_PADDING * total):
        raise column_refused(column, f"padded to its longest row it would take {padded} bytes")
    _write_npy_header(file, np.dtype(f"<U{longest}"), (len(table),))
    step = max(1, BATCH_BYTES // (4 * longest))
    for rows in _text_pieces(table, column):
        for start in range(0, len(rows), step):
            file.write(_text_array(rows[start : start + step], longest).tobytes())


def _text_size(table: Table, column: Column) -> tuple[int, int]:
    """Letters of the longest row, at least 1, and bytes of all rows."""
    longest, total = 1, 0
    for batch in table.to_batches([column.name], max_bytes=BATCH_BYTES):
        longest = max(longest, pc.max(pc.utf8_length(batch.column(0))).as_py() or 0)
        total += pc.sum(pc.binary_length(batch.column(0))).as_py() or 0
    return longest, total


def _text_pieces(table: Table, column: Column) -> Iterator[list[str]]:
    row = 0
    for batch in table.to_batches([column.name], max_bytes=BATCH_BYTES):
        rows = batch.column(0).to_pylist()
        for at, text in enumerate(rows):
            if text is None:
                raise _null_refused(column, row + at)
            if text.endswith("\0"):
                raise column_refused(column, f"row {row + at} ends in NUL, which numpy would drop")
        yield rows
        row += len(rows)


def _text_array(rows: list[str], letters: int) -> NDArray[Any]:
    return np.array(rows, np.dtype(f"<U{max([letters, *map(len, rows)])}"))


def _member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    info = zipfile.ZipInfo(f"{name}.npy", _ZIP_TIME)
    info.compress_type = archive.compression
    return archive.open(info, "w", force_zip64=True)


def _idx_plan(table: Table, column: Column) -> np.dtype[Any]:
    """The element type in which a column goes into an IDX file."""
    storage = column.storage
    if storage.layout is not Layout.FIXED or not prod(storage.row_shape):
        raise column_refused(column, "IDX holds rows of one shape")
    if len(table) >= 1 << 32:
        raise InvalidInputError(f"IDX counts rows in 32 bits, there are {len(table)}")
    if isinstance(column.type, ClassLabel):
        classes = len(column.type.names)
        return np.dtype("u1" if classes <= 1 << 8 else "i2" if classes <= 1 << 15 else "i4")
    known = storage.element.newbyteorder(">")
    if known not in idx.CODES or isinstance(column.type, Timestamp):
        names = ", ".join(dtype.name for dtype in idx.CODES)
        raise column_refused(column, f"IDX holds {names}, not {storage.dtype}")
    return known


def _idx_name(column: Column, dtype: np.dtype[Any], split: str | None, *, gzipped: bool) -> str:
    """The file of a column, from whose name reading finds the column again."""
    plural = {"image": "images", "label": "labels"}.get(column.name, column.name)
    dims = 1 + len(column.storage.row_shape)
    name = f"{plural}-idx{dims}-{dtype.name}".replace("uint8", "ubyte")
    name = f"{split}-{name}" if split else name
    parsed = idx.parse_name(name)
    if parsed is None or (parsed.split, parsed.column) != (split or "", column.name) or "/" in name:
        raise column_refused(column, f"{name!r} reads as another column")
    return f"{name}.gz" if gzipped else name


def _write_idx_file(
    table: Table, column: Column, dtype: np.dtype[Any], path: Path, *, gzipped: bool
) -> None:
    big_endian = dtype.newbyteorder(">")
    sizes = (len(table), *column.storage.row_shape)
    with path.open("xb") as raw, compressed(raw, gzipped=gzipped) as file:
        file.write(idx.HEAD.pack(0, idx.CODES[big_endian], len(sizes)))
        file.write(Struct(f">{len(sizes)}I").pack(*sizes))
        for piece in array_pieces(table, column):
            file.write(piece.astype(big_endian).tobytes())
