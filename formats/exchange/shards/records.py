"""What do formats of records share: WebDataset, TFRecord, MDS, LMDB, beton, MindRecord?

Their files hold one sample after another, each with named parts. Here samples become batches of
bounded bytes, arrays of samples become a column type, and bytes are read only as far as there are
any, whatever a length field says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tensorrepo.formats.damage import damage, refusals
from tensorrepo.formats.dataset.columns.schema import ColumnType, Image, Scalar, Tensor
from tensorrepo.formats.dtypes import dtype_name
from tensorrepo.formats.exchange.base import BATCH_BYTES
from tensorrepo.formats.exchange.ignore import read_ignore
from tensorrepo.formats.exchange.imagery.imagebytes import HEAD_BYTES, codec_of, examine
from tensorrepo.repo.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.columns.schema import Batch

SAMPLES = 256  # records from which types are inferred, unless an option says another number
# Up to here a block is read at once; a larger one grows with the bytes that really come.
_STEP_BYTES = 16 << 20
_VALUE_BYTES = 64  # what a value costs in memory beside its bytes


class Readable(Protocol):
    """What gives bytes when it is asked for them."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Record:
    """One row of a source: its values by column, and the bytes that they take."""

    values: Mapping[str, Any]
    bytes: int


def batches_of(records: Iterable[Record], names: Sequence[str]) -> Iterator[Batch]:
    """Records as batches of about `BATCH_BYTES`; a column that a record lacks is null there."""
    rows: list[Mapping[str, Any]] = []
    held = 0
    for record in records:
        cost = record.bytes + _VALUE_BYTES * len(names)
        if rows and held + cost > BATCH_BYTES:
            yield {name: [row.get(name) for row in rows] for name in names}
            rows, held = [], 0
        rows.append(record.values)
        held += cost
    if rows:
        yield {name: [row.get(name) for row in rows] for name in names}


def record_files(path: Path, wanted: Callable[[str], bool], what: str) -> list[Path]:
    """`path` itself, or the files of a folder whose names are `wanted`, in order.

    Hidden files and ignored ones are left out. `what` says which files are looked for.
    """
    if not path.is_dir():
        return [path]
    ignore = read_ignore(path)
    found = []
    with refusals(path, "folder"):
        for file in sorted(path.rglob("*")):
            relative = file.relative_to(path)
            left_out = any(part.startswith(".") for part in relative.parts) or any(
                ignore.leaves_out(str(part), is_folder=part != relative)
                for part in (relative, *relative.parents[:-1])
            )
            if wanted(file.name.lower()) and file.is_file() and not left_out:
                found.append(file)
    if not found:
        raise damage(path, f"holds no {what}")
    return found


def read_exactly(stream: Readable, size: int, where: str) -> bytes:
    """The next `size` bytes; memory grows with what comes, not with what `size` promises.

    Raises:
        InvalidInputError: the stream ends before.
    """
    if size <= _STEP_BYTES:
        data = stream.read(size)
        if len(data) < size:
            raise ends_early(where, size - len(data))
        return data
    grown = bytearray()
    while len(grown) < size:
        block = stream.read(min(_STEP_BYTES, size - len(grown)))
        if not block:
            raise ends_early(where, size - len(grown))
        grown += block
    return bytes(grown)


def ends_early(where: str, missing: int) -> InvalidInputError:
    return damage(where, f"ends {missing} bytes too early. Is the file cut short?")


def plain_array(array: NDArray[Any]) -> NDArray[Any]:
    """`array` little-endian and in C order, its bools exactly 0 or 1."""
    shape = array.shape  # ascontiguousarray gives a single number a dimension
    flat = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1)
    return (np.not_equal(flat.view(np.uint8), 0) if flat.dtype.kind == "b" else flat).reshape(shape)


def array_type(
    forms: Iterable[tuple[np.dtype[Any], tuple[int, ...]]], where: str
) -> Scalar | Tensor:
    """The column type that holds arrays of these element types and shapes, one for each sample.

    Raises:
        InvalidInputError: they differ in element type or in the number of dimensions, or no column
            has such elements.
    """
    found = list(dict.fromkeys(forms))
    dtype, shape = found[0]
    for other, other_shape in found:
        if other != dtype or len(other_shape) != len(shape):
            raise damage(
                where,
                f"one sample has {dtype} of shape {shape}, another {other} of shape {other_shape}; "
                "a column has one element type and one number of dimensions",
            )
    try:
        name = dtype_name(dtype.newbyteorder("<"))
    except InvalidInputError as problem:
        raise damage(where, f"has elements of type {dtype}: {problem}") from problem
    if not shape:
        return Scalar(name)
    sizes = zip(*(shape for _, shape in found), strict=True)
    return Tensor(name, tuple(dims[0] if len(set(dims)) == 1 else None for dims in sizes))


def check_array(kind: ColumnType, array: NDArray[Any], where: str) -> NDArray[Any]:
    """`array` if a column of this type holds it.

    Raises:
        InvalidInputError: another element type, or another shape.
    """
    wanted = kind.shape if isinstance(kind, Tensor) else ()
    dtype = kind.dtype if isinstance(kind, Tensor | Scalar) else ""
    fits = len(wanted) == array.ndim and all(
        dim is None or dim == found for dim, found in zip(wanted, array.shape, strict=True)
    )
    if not fits or array.dtype.name != dtype:
        shown = tuple("any" if dim is None else dim for dim in wanted)
        raise damage(
            where,
            f"is {array.dtype} of shape {array.shape}; the first samples are {dtype} of shape "
            f"{shown}. Infer from more of them: samples=N",
        )
    return array


def image_type(heads: Iterable[bytes]) -> Image | None:
    """The type of a column whose values begin like these, None unless all are images."""
    codecs = {codec_of(head[:HEAD_BYTES]) for head in heads}
    if not codecs or None in codecs:
        return None
    return Image(codecs.pop() if len(codecs) == 1 else None)


def check_image(kind: Image, data: bytes, where: str) -> bytes:
    """`data` if it is one whole image of this type.

    Raises:
        InvalidInputError: cut short, no image, or one in another format.
    """
    try:
        codec = examine(data).codec
    except InvalidInputError as problem:
        raise damage(where, str(problem)) from problem
    if kind.codec not in (None, codec):
        raise damage(where, f"is a {codec} image; the column holds {kind.codec} images")
    return data


def check_text(data: bytes, where: str) -> str:
    """`data` as text.

    Raises:
        InvalidInputError: not UTF-8.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise damage(where, f"is not UTF-8 text: {problem}") from problem


def is_text(data: bytes) -> bool:
    """Whether bytes are text that people read: UTF-8 without control characters but line ends."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return all(letter.isprintable() or letter in "\t\r\n" for letter in text)


def choose(path: Path, there: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    """The columns to read: all, or those asked for.

    Raises:
        NotFoundError: one of them is not there.
    """
    for name in columns or ():
        if name not in there:
            listed = ", ".join(map(repr, there))
            raise NotFoundError(f"{path}: holds no column {name!r}; there are {listed}")
    return list(there if columns is None else columns)


def parse_count(value: object) -> int:
    """A number of things, at least 1."""
    try:
        count = int(str(value))
    except ValueError as problem:
        raise InvalidInputError(f"expected a number, got {value!r}") from problem
    if count < 1:
        raise InvalidInputError(f"expected a number of at least 1, got {count}")
    return count
