"""IDX files, MNIST's format, gzipped or not: reader.

    0 zero u16 | 2 element type u8 | 3 dimensions u8 | 4 sizes u32[dimensions] | elements
    everything big-endian; types 0x08 u8, 0x09 i8, 0x0B i16, 0x0C i32, 0x0D f32, 0x0E f64

A dataset is several files of equal length, one for each column, told by name as MNIST's are:
`train-images-idx3-ubyte.gz` is column `image` of split `train`. A folder with several splits
becomes one dataset, split after split, with a column `split`; option `split` takes one of them.
"""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from struct import Struct
from typing import IO, Any

import numpy as np

from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.dataset.schema.schema import ClassLabel, Column, Schema
from tensorrepo.formats.exchange.arrays.columns import (
    ArraySource,
    array_batches,
    array_columns,
    check_equal_rows,
    check_rows,
)
from tensorrepo.formats.exchange.base import (
    DEFLATE_LIMIT,
    Candidate,
    OpenedSource,
    file_bytes,
    origin_of,
    read_ignore,
    split_note,
    with_split,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

HEAD = Struct(">HBB")
TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
CODES = {np.dtype(name): code for code, name in TYPES.items()}
_NAME = re.compile(r"(?:(?P<split>.+)-)?(?P<column>[^-]+)[-.]idx\d(?:-[a-z0-9]+)?(?:\.gz)?")
_COLUMNS = {"images": "image", "labels": "label"}  # how MNIST's file names say the columns
NAMES_SUFFIX = "-names.txt"


@dataclass(frozen=True, slots=True)
class IdxName:
    """What a file name says: which split (or "") and which column."""

    split: str
    column: str


def parse_name(name: str) -> IdxName | None:
    """Split and column of a file named as MNIST's are, else None."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    column = match["column"]
    return IdxName(match["split"] or "", _COLUMNS.get(column, column))


def read_idx(
    path: Path, *, split: str | None = None, class_names: tuple[str, ...] | None = None
) -> OpenedSource:
    """One IDX file, the files beside it that belong to it, or a folder of them.

    Args:
        path: a file of images takes the other columns of its split along; any other file stands
            alone.
        split: the only split wanted of a folder: "train", "t10k".
        class_names: what the numbers in column `label` mean.

    Raises:
        InvalidInputError: no IDX file, one that disagrees with its size, or columns that differ in
            length.
    """
    files = _find(path, split)
    splits = {
        name: {column: open_idx(file) for column, file in columns.items()}
        for name, columns in files.items()
    }
    rows = {name: check_equal_rows(path, sources) for name, sources in splits.items()}
    schema = _common_schema(path, splits, class_names)
    notes = []
    if len(splits) > 1:
        schema = Schema((*schema.columns, Column("split", ClassLabel(tuple(splits)))))
        notes.append(split_note(rows, "rows"))
    paths = [file for columns in files.values() for file in columns.values()]
    return OpenedSource(
        schema=schema,
        rows=sum(rows.values()),
        batches=with_split([array_batches(sources) for sources in splits.values()]),
        origin=origin_of(path, "idx", paths),
        notes=tuple(notes),
    )


def open_idx(path: Path) -> ArraySource:
    """The array in one IDX file, its header compared with the file's size.

    Raises:
        InvalidInputError: not an IDX file, or the header promises more or less than there is.
    """
    stored = file_bytes(path)
    with _stream(path) as stream:
        gzipped = isinstance(stream, gzip.GzipFile)
        dtype, shape = _read_head(stream, path)
    where = str(path)
    check_rows(where, dtype, shape)
    head, promised = _head_bytes(shape), prod(shape) * dtype.itemsize
    most = stored * DEFLATE_LIMIT if gzipped else stored
    if head + promised > most or (not gzipped and head + promised != stored):
        raise damage(
            where,
            f"header promises {head + promised} bytes (sizes {shape} of {dtype.name}), "
            f"the file has {stored}{' compressed' if gzipped else ''}. Is it cut short?",
        )
    return ArraySource(where, dtype, shape, lambda: _elements(path, dtype, shape))


def matches_idx(candidate: Candidate) -> bool:
    """By the first four bytes and, uncompressed, the size they promise; folders by file names."""
    if candidate.is_folder:
        return any(len(name.parts) == 1 and parse_name(name.name) for name in candidate.names)
    try:
        dtype, shape = _read_head(io.BytesIO(candidate.head), candidate.path)
    except InvalidInputError:
        return False
    promised = _head_bytes(shape) + prod(shape) * dtype.itemsize
    return candidate.gzipped or promised == candidate.bytes


def _find(path: Path, split: str | None) -> dict[str, dict[str, Path]]:
    """The files to read: split -> column -> file, "train" first, columns in order of names."""
    folder = path if path.is_dir() else path.parent
    own = parse_name(path.name)
    if not path.is_dir() and (own is None or own.column != "image"):
        return {"": {own.column if own else "data": path}}
    with refusals(folder, "folder"):
        ignore = read_ignore(folder)
        found = [
            (name, file)
            for file in folder.iterdir()
            if not ignore.leaves_out(file.name, is_folder=False) and (name := parse_name(file.name))
        ]
    if not path.is_dir() and own is not None:
        found = [(name, file) for name, file in found if name.split == own.split]
    splits: dict[str, dict[str, Path]] = {}
    found.sort(key=lambda item: ("train" not in item[0].split, item[0].split, item[0].column))
    for name, file in found:
        twin = splits.setdefault(name.split, {}).setdefault(name.column, file)
        if twin != file:
            raise damage(folder, f"holds column {name.column!r} twice: {twin.name}, {file.name}")
    return _choose(path, splits, split)


def _choose(
    path: Path, splits: dict[str, dict[str, Path]], wanted: str | None
) -> dict[str, dict[str, Path]]:
    if not splits:
        raise damage(path, "holds no IDX files; expected names such as train-images-idx3-ubyte.gz")
    if wanted is None:
        return splits
    if wanted not in splits:
        raise damage(path, f"holds no split {wanted!r}; there are {', '.join(map(repr, splits))}")
    return {wanted: splits[wanted]}


def _common_schema(
    path: Path,
    splits: Mapping[str, Mapping[str, ArraySource]],
    class_names: tuple[str, ...] | None,
) -> Schema:
    """The schema that all splits share."""
    folder = path if path.is_dir() else path.parent
    schemas = {}
    for split, sources in splits.items():
        columns = [column for item in sources.items() for column in array_columns(*item)]
        schemas[split] = Schema(tuple(_labelled(column, folder, class_names) for column in columns))
    first, schema = next(iter(schemas.items()))
    for split, other in schemas.items():
        if other != schema:
            raise damage(
                path, f"splits {first!r} and {split!r} hold different columns. Choose one: split="
            )
    return schema


def _labelled(column: Column, folder: Path, class_names: tuple[str, ...] | None) -> Column:
    """`column` with the names of its classes, when they are given or written beside it."""
    beside = folder / f"{column.name}{NAMES_SUFFIX}"
    if class_names is not None and column.name == "label":
        return Column(column.name, ClassLabel(class_names))
    if beside.is_file():
        with refusals(beside, "list of names", UnicodeDecodeError):
            return Column(column.name, ClassLabel(tuple(beside.read_text("utf-8").splitlines())))
    return column


def _stream(path: Path) -> IO[bytes]:
    """The content of a file, decompressed when it is gzip by its first bytes."""
    with refusals(path, "IDX file"):
        file = path.open("rb")
        if file.peek(2)[:2] != b"\x1f\x8b":
            return file
        file.close()
        return gzip.open(path, "rb")  # type: ignore[return-value]  # a stream in all but name


def _elements(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> IO[bytes]:
    stream = _stream(path)
    if _read_head(stream, path) != (dtype, shape):
        stream.close()
        raise damage(path, "changed while it was being read")
    return stream


def _read_head(stream: IO[bytes], path: Path) -> tuple[np.dtype[Any], tuple[int, ...]]:
    with refusals(path, "IDX file"):
        head = stream.read(HEAD.size)
        zero, code, dims = HEAD.unpack(head) if len(head) == HEAD.size else (1, 0, 0)
        if zero or code not in TYPES or not dims:
            raise damage(
                path,
                f"not an IDX file: expected two zero bytes, an element type of "
                f"{', '.join(map(hex, TYPES))} and the number of dimensions, found {head!r}",
            )
        sizes = stream.read(4 * dims)
    if len(sizes) < 4 * dims:
        raise damage(path, f"ends inside the sizes of its {dims} dimensions")
    return np.dtype(TYPES[code]), Struct(f">{dims}I").unpack(sizes)


def _head_bytes(shape: tuple[int, ...]) -> int:
    return HEAD.size + 4 * len(shape)
