"""npy and npz files without unpickling: reader, and writers of npy, npz and IDX.

An npy file is one array: its dataset has one column, named after the file, or one column for each
field of a record array. An npz file is a zip of npy files: a column each. Class names of a label
column `label` are kept beside it as the array `label.names`.

Header of an npy file: magic, version, length, then a Python literal with exactly the keys `descr`,
`fortran_order` and `shape`. We parse it ourselves: numpy's reader would map or load the array.

These hold arrays without nulls and of one shape; everything else is refused, column and row named.
Each column is written by a pass of its own, so memory stays at one batch however many rows.
"""

from __future__ import annotations

import ast
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from struct import Struct
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.damage import LITERALS, damage, refusals
from tensorrepo.formats.dataset.schema.arrow import from_arrow_array
from tensorrepo.formats.dataset.schema.schema import (
    ClassLabel,
    Column,
    ColumnLayout,
    Date,
    Decimal,
    Duration,
    Null,
    Schema,
    Text,
    Time,
    Timestamp,
)
from tensorrepo.formats.dataset.schema.values import FixedValues
from tensorrepo.formats.exchange.arrays import idx
from tensorrepo.formats.exchange.arrays.columns import (
    ArraySource,
    array_batches,
    array_columns,
    check_equal_rows,
    check_rows,
    read_array,
)
from tensorrepo.formats.exchange.base import (
    BATCH_BYTES,
    DEFLATE_LIMIT,
    Candidate,
    OpenedSource,
    file_bytes,
    origin_of,
)
from tensorrepo.formats.exchange.output import (
    ExportTable,
    column_refused,
    compressed,
    new_file,
    new_folder,
)
from tensorrepo.formats.exchange.records.samples import choose
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 65_536  # numpy itself reads 10,000 unless told to trust the file
NAMES_SUFFIX = ".names"
_KEYS = {"descr", "fortran_order", "shape"}
_LENGTHS = {1: Struct("<H"), 2: Struct("<I"), 3: Struct("<I")}
_BAD_LITERAL = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, KeyError)
_BAD_ZIP = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, OverflowError)


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """What an npy file says about its array. `bytes` is the length of the header itself."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    bytes: int

    @property
    def transposed(self) -> bool:
        """Whether Fortran's order is another one than C's."""
        return self.fortran_order and len(self.shape) > 1

    def check_bytes(self, where: str, stored: int, there: str = "the file has {}") -> None:
        """Refuse a header whose array is not exactly what `stored` bytes hold."""
        promised = self.bytes + prod(self.shape) * self.dtype.itemsize
        if promised != stored:
            raise damage(
                where,
                f"header promises {promised} bytes (shape {self.shape} of {self.dtype}), "
                f"{there.format(stored)}",
            )


def read_header(stream: IO[bytes], where: str) -> NpyHeader:
    """The header at the start of `stream`, which then stands at the first element.

    Raises:
        InvalidInputError: not an npy file, a damaged header, or an array of Python objects.
    """
    with refusals(where, "npy file", *_BAD_ZIP):
        start = stream.read(8)
        if start[:6] != MAGIC or len(start) < 8:
            raise damage(where, f"not an npy file: begins with {start!r}, expected {MAGIC!r}")
        length = _LENGTHS.get(start[6])
        if length is None:
            raise damage(where, f"is an npy file of version {start[6]}; known are 1, 2 and 3")
        (size,) = length.unpack(stream.read(length.size).ljust(length.size, b"\xff"))
        if size > MAX_HEADER_BYTES:
            raise damage(
                where, f"has a header of {size} bytes, at most {MAX_HEADER_BYTES} are read"
            )
        text = stream.read(size)
    if len(text) < size:
        raise damage(where, f"ends inside its header of {size} bytes")
    encoding = "utf-8" if start[6] == 3 else "latin-1"
    try:
        dtype, shape, fortran_order = _parse_literal(text.decode(encoding))
    except _BAD_LITERAL as problem:
        raise damage(where, f"has a damaged header: {text[:80]!r}") from problem
    _refuse_objects(where, dtype)
    return NpyHeader(dtype, shape, fortran_order, 8 + length.size + size)


def read_npy(path: Path, *, column: str | None = None) -> OpenedSource:
    """One npy file. `column` names its column; otherwise the file's own name does."""
    source = npy_array(path)
    check_rows(str(path), source.dtype, source.shape)
    sources = {column or path.stem: source}
    return _reading(path, "npy", sources, {})


def read_npz(path: Path, *, columns: tuple[str, ...] | None = None) -> OpenedSource:
    """The arrays of an npz file as columns of equal length, or only those named in `columns`."""
    with _open_zip(path) as archive:
        members = _members(path, archive)
        classes = _class_names(path, archive, members)
        chosen = choose(path, list(members), columns, "array")
        if columns is None:
            class_names = {name + NAMES_SUFFIX for name in classes}
            chosen = [name for name in chosen if name not in class_names]
        sources = {name: _open_member(path, archive, members[name]) for name in chosen}
    if not sources:
        raise damage(path, "holds no arrays")
    for source in sources.values():
        check_rows(source.where, source.dtype, source.shape)
    return _reading(path, "npz", sources, classes)


def npz_arrays(path: Path) -> dict[str, tuple[ArraySource, zipfile.ZipInfo]]:
    """The arrays of an npz file by name, of any shapes, and where in the zip each one is.

    Raises:
        InvalidInputError: not an npz file, a lying header, or arrays of Python objects.
    """
    with _open_zip(path) as archive:
        members = _members(path, archive)
        return {name: (_open_member(path, archive, info), info) for name, info in members.items()}


def npy_array(path: Path) -> ArraySource:
    """The array of an npy file. Raises InvalidInputError: none, cut short, or of Python objects."""
    stored = file_bytes(path)
    with refusals(path, "npy file"), path.open("rb") as stream:
        header = read_header(stream, str(path))
    header.check_bytes(str(path), stored, "the file has {}. Is it cut short?")

    def elements() -> IO[bytes]:
        with refusals(path, "npy file"):
            file = path.open("rb")
            file.seek(header.bytes)
        return file

    return ArraySource(str(path), header.dtype, header.shape, elements, header.transposed)


def matches_npy(candidate: Candidate) -> bool:
    return candidate.head.startswith(MAGIC)


def matches_npz(candidate: Candidate) -> bool:
    """A zip whose first member is an npy file."""
    if not candidate.head.startswith(b"PK"):
        return False
    with refusals(candidate.path, "zip file", *_BAD_ZIP):
        if not zipfile.is_zipfile(candidate.path):
            return False
    with _open_zip(candidate.path) as archive:
        return any(name.endswith(".npy") for name in archive.namelist()[:1])


def _reading(
    path: Path,
    name: str,
    sources: Mapping[str, ArraySource],
    classes: Mapping[str, tuple[str, ...]],
) -> OpenedSource:
    columns = [column for item in sources.items() for column in array_columns(*item)]
    labelled = (
        Column(column.name, ClassLabel(classes[column.name])) if column.name in classes else column
        for column in columns
    )
    return OpenedSource(
        schema=Schema(tuple(labelled)),
        rows=check_equal_rows(path, sources),
        batches=array_batches(sources),
        origin=origin_of(path, name, [path]),
    )


def _parse_literal(text: str) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    with LITERALS:
        form = ast.literal_eval(text.strip())
    if not isinstance(form, dict) or set(form) != _KEYS:
        raise ValueError(text)
    shape, fortran_order = form["shape"], form["fortran_order"]
    sizes = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
    if not sizes or not isinstance(fortran_order, bool):
        raise ValueError(text)
    return np.lib.format.descr_to_dtype(form["descr"]), shape, fortran_order


def _refuse_objects(where: str, dtype: np.dtype[Any]) -> None:
    if dtype.hasobject:
        raise damage(
            where,
            "holds Python objects, which only unpickling could read, and unpickling runs whatever "
            "code the file brings. Save it as numbers or text instead.",
        )


def _open_zip(path: Path) -> zipfile.ZipFile:
    with refusals(path, "npz file", *_BAD_ZIP):
        return zipfile.ZipFile(path)


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The arrays of an npz file, in the order of the file."""
    members = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name == info.filename:
            raise damage(path, f"member {name!r} is not an npy file, so this is not an npz file")
        if name in members:
            raise damage(path, f"holds array {name!r} twice")
        members[name] = info
    return members


def _open_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> ArraySource:
    """One array of an npz file, its promised size compared with the member's."""
    where = f"{path}, array {info.filename.removesuffix('.npy')!r}"
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise damage(where, "is encrypted or compressed in a way that numpy does not write")
    with refusals(where, "npz file", *_BAD_ZIP), archive.open(info) as stream:
        header = read_header(stream, where)
    deflated = info.compress_type == zipfile.ZIP_DEFLATED
    most = info.compress_size * DEFLATE_LIMIT if deflated else info.compress_size
    there = f"the member has {info.file_size} in {info.compress_size} stored"
    header.check_bytes(where, min(info.file_size, most), there)

    def elements() -> IO[bytes]:
        with refusals(where, "npz file", *_BAD_ZIP), _open_zip(path) as again:
            stream = again.open(info.filename)  # keeps the file open after `again` is closed
            stream.read(header.bytes)
        return _spooled(stream, where) if header.transposed else stream

    return ArraySource(where, header.dtype, header.shape, elements, header.transposed)


def _spooled(stream: IO[bytes], where: str) -> IO[bytes]:
    """The rest of `stream` in a temporary file: a zip member cannot be read in another order."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    with stream, refusals(where, "npz file", *_BAD_ZIP):
        shutil.copyfileobj(stream, file, 1 << 20)
    file.seek(0)
    return file


def _class_names(
    path: Path, archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]
) -> dict[str, tuple[str, ...]]:
    """Class names by label column: array `x.names` beside an array `x`."""
    classes = {}
    for column in members:
        if column + NAMES_SUFFIX in members:
            labels = _open_member(path, archive, members[column])
            names = _open_member(path, archive, members[column + NAMES_SUFFIX])
            if labels.dtype.kind in "ui" and names.dtype.kind == "U" and len(names.shape) == 1:
                classes[column] = tuple(map(str, read_array(names).tolist()))
    return classes


# Fixed, so that the same rows make the same file.
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
_MAX_PADDING = 16  # times the text itself, when it is padded to the longest one
_FREE_PADDING_BYTES = 64 << 20


def write_npy(table: ExportTable, path: Path, *, overwrite: bool = False) -> None:
    """The only column as one array. Raises InvalidInputError: more columns, or one of no array."""
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


def write_npz(
    table: ExportTable, path: Path, *, overwrite: bool = False, compress: bool = False
) -> None:
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
    table: ExportTable,
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


def array_pieces(table: ExportTable, column: Column) -> Iterator[NDArray[Any]]:
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


def _write_array(table: ExportTable, column: Column, file: IO[bytes]) -> None:
    """One column as an npy file: header, then batch after batch."""
    if isinstance(column.type, Text):
        _write_text(table, column, file)
        return
    dtype, shape = _npy_type(column)
    write_npy_header(file, dtype, (len(table), *shape))
    for piece in array_pieces(table, column):
        plain = piece.astype(np.int64) if isinstance(column.type, Date) else piece
        file.write(np.ascontiguousarray(plain).data.cast("B") if plain.size else b"")


def write_npy_header(file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    descr = np.lib.format.dtype_to_descr(dtype)
    form = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, form)


def _npy_type(column: Column) -> tuple[np.dtype[Any], tuple[int, ...]]:
    storage = column.storage
    if storage.layout is not ColumnLayout.FIXED:
        raise column_refused(column, "its rows are not of one shape")
    if not prod(storage.row_shape):
        raise column_refused(column, "its rows have no elements")
    if isinstance(column.type, Timestamp):
        if column.type.zone is not None:
            raise column_refused(column, f"numpy has no time zones: {column.type.zone}")
        return np.dtype(f"<M8[{column.type.unit}]"), ()
    if isinstance(column.type, Date):
        return np.dtype("<M8[D]"), ()
    if isinstance(column.type, Duration):
        return np.dtype(f"<m8[{column.type.unit}]"), ()
    if isinstance(column.type, Time | Decimal | Null):
        raise column_refused(column, "numpy has no such numbers")
    return storage.element, storage.row_shape


def _write_text(table: ExportTable, column: Column, file: IO[bytes]) -> None:
    """Text as numpy keeps it: every row as long as the longest, four bytes a letter."""
    longest, total = _text_size(table, column)
    padded = 4 * longest * len(table)
    if padded > max(_FREE_PADDING_BYTES, _MAX_PADDING * total):
        raise column_refused(column, f"padded to its longest row it would take {padded} bytes")
    write_npy_header(file, np.dtype(f"<U{longest}"), (len(table),))
    step = max(1, BATCH_BYTES // (4 * longest))
    for rows in _text_pieces(table, column):
        for start in range(0, len(rows), step):
            file.write(_text_array(rows[start : start + step], longest).tobytes())


def _text_size(table: ExportTable, column: Column) -> tuple[int, int]:
    """Letters of the longest row, at least 1, and bytes of all rows."""
    longest, total = 1, 0
    for batch in table.to_batches([column.name], max_bytes=BATCH_BYTES):
        longest = max(longest, pc.max(pc.utf8_length(batch.column(0))).as_py() or 0)
        total += pc.sum(pc.binary_length(batch.column(0))).as_py() or 0
    return longest, total


def _text_pieces(table: ExportTable, column: Column) -> Iterator[list[str]]:
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


def _idx_plan(table: ExportTable, column: Column) -> np.dtype[Any]:
    """The element type in which a column goes into an IDX file."""
    storage = column.storage
    if storage.layout is not ColumnLayout.FIXED or not prod(storage.row_shape):
        raise column_refused(column, "IDX holds rows of one shape")
    if len(table) >= 1 << 32:
        raise InvalidInputError(f"IDX counts rows in 32 bits, there are {len(table)}")
    if isinstance(column.type, ClassLabel):
        classes = len(column.type.names)
        return np.dtype("u1" if classes <= 1 << 8 else "i2" if classes <= 1 << 15 else "i4")
    known = storage.element.newbyteorder(">")
    meant = Timestamp | Date | Time | Duration | Decimal | Null
    if known not in idx.CODES or isinstance(column.type, meant):
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
    table: ExportTable, column: Column, dtype: np.dtype[Any], path: Path, *, gzipped: bool
) -> None:
    big_endian = dtype.newbyteorder(">")
    sizes = (len(table), *column.storage.row_shape)
    with path.open("xb") as raw, compressed(raw, gzipped=gzipped) as file:
        file.write(idx.HEAD.pack(0, idx.CODES[big_endian], len(sizes)))
        file.write(Struct(f">{len(sizes)}I").pack(*sizes))
        for piece in array_pieces(table, column):
            file.write(piece.astype(big_endian).tobytes())
