"""Read and write numpy's npy and npz files, without ever unpickling.

An npy file is one array: its dataset has one column, named after the file, or one column for each
field of a record array. An npz file is a zip of npy files: a column each. Class names of a label
column `label` are kept beside it as the array `label.names`.

Header of an npy file: magic, version, length, then a Python literal with exactly the keys `descr`,
`fortran_order` and `shape`. We parse it ourselves: numpy's reader would map or load the array.
"""

from __future__ import annotations

import ast
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from struct import Struct
from typing import IO, Any

import numpy as np

from tensorrepo.formats.damage import damage, refusals
from tensorrepo.formats.dataset.columns.schema import ClassLabel, Column, Schema
from tensorrepo.formats.exchange.base import DEFLATE_LIMIT, Candidate, Origin, Reading, file_bytes
from tensorrepo.formats.exchange.numeric.arrays import (
    ArraySource,
    array_batches,
    array_columns,
    check_equal_rows,
    check_rows,
    read_array,
)
from tensorrepo.repo.errors import NotFoundError

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

    @property
    def promised_bytes(self) -> int:
        return self.bytes + prod(self.shape) * self.dtype.itemsize


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


def read_npy(path: Path, *, column: str | None = None) -> Reading:
    """One npy file. `column` names its column; otherwise the file's own name does."""
    source = npy_array(path)
    check_rows(str(path), source.dtype, source.shape)
    sources = {column or path.stem: source}
    return _reading(path, "npy", sources, {})


def read_npz(path: Path, *, columns: tuple[str, ...] | None = None) -> Reading:
    """The arrays of an npz file as columns of equal length, or only those named in `columns`."""
    with _open_zip(path) as archive:
        members = _members(path, archive)
        classes = _class_names(path, archive, members)
        chosen = _choose(path, members, classes, columns)
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
    """The array of an npy file.

    Raises:
        InvalidInputError: not an npy file, cut short, or an array of Python objects.
    """
    stored = file_bytes(path)
    with refusals(path, "npy file"), path.open("rb") as stream:
        header = read_header(stream, str(path))
    if header.promised_bytes != stored:
        raise damage(
            path,
            f"header promises {header.promised_bytes} bytes (shape {header.shape} of "
            f"{header.dtype}), the file has {stored}. Is it cut short?",
        )

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
) -> Reading:
    columns = [column for item in sources.items() for column in array_columns(*item)]
    labelled = (
        Column(column.name, ClassLabel(classes[column.name])) if column.name in classes else column
        for column in columns
    )
    stored = file_bytes(path)
    return Reading(
        schema=Schema(tuple(labelled)),
        rows=check_equal_rows(path, sources),
        bytes=stored,
        batches=array_batches(sources),
        origin=Origin(str(path), name, 1, stored),
    )


def _parse_literal(text: str) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
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
    if header.promised_bytes != info.file_size or header.promised_bytes > most:
        raise damage(
            where,
            f"header promises {header.promised_bytes} bytes (shape {header.shape} of "
            f"{header.dtype}), the member has {info.file_size} in {info.compress_size} stored",
        )

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


def _choose(
    path: Path,
    members: Mapping[str, object],
    classes: Mapping[str, object],
    columns: tuple[str, ...] | None,
) -> list[str]:
    """Which arrays become columns: those asked for, else all but the class names."""
    if columns is None:
        names = {name + NAMES_SUFFIX for name in classes}
        return [name for name in members if name not in names]
    for name in columns:
        if name not in members:
            there = ", ".join(map(repr, members))
            raise NotFoundError(f"{path}: holds no array {name!r}; there are {there}")
    return list(columns)
