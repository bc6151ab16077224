"""What does one part of a WebDataset sample hold, as the end of its file name says?

``train/00042.left.jpg`` is part ``left.jpg`` of sample ``train/00042``. The last suffix says what
the bytes are; a part with a name of its own before the suffix becomes the column of that name, one
without is called by its suffix. Nothing is unpickled: parts such as ``.pth`` stay bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.damage import damage
from tensorrepo.formats.dataset.columns.schema import (
    Bytes,
    ClassLabel,
    Column,
    ColumnType,
    Image,
    Json,
    Scalar,
    Text,
)
from tensorrepo.formats.exchange.numeric.npy import read_header
from tensorrepo.formats.exchange.shards.records import (
    array_type,
    check_array,
    check_image,
    check_text,
    image_type,
    plain_array,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY = "__key__"
# Lists the names of classes by column; the webdataset package skips members called like this.
CLASSES_MEMBER = "__classes__"
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]+)")  # as webdataset cuts names
_INTEGER = re.compile(rb"\s*[+-]?[0-9]{1,20}\s*")


class Kind(Enum):
    """How the bytes of a part are understood."""

    IMAGE = "an image"
    INTEGER = "a whole number"
    TEXT = "text"
    JSON = "JSON"
    ARRAY = "a numpy array"
    BYTES = "bytes"


KINDS = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"), Kind.IMAGE),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), Kind.INTEGER),
    **dict.fromkeys(("txt", "text", "transcript"), Kind.TEXT),
    **dict.fromkeys(("json", "jsn"), Kind.JSON),
    "npy": Kind.ARRAY,
}
# How much of a part is looked at to infer its type; of an npy file at most its header.
_HEADS = {Kind.IMAGE: 32, Kind.INTEGER: 64, Kind.ARRAY: 70_000}
_NAMED = (*KINDS, "bin")  # suffixes that fall away behind a name


@dataclass(frozen=True, slots=True)
class PartColumn:
    """The column that a part becomes, and how its bytes are read."""

    column: Column
    kind: Kind


def split_name(name: str) -> tuple[str, str] | None:
    """(key, part) of a member's name; None for a file that belongs to no sample."""
    found = _NAME.fullmatch(name)
    return (found[1], found[2]) if found else None


def kind_of(part: str) -> Kind:
    return KINDS.get(part.rpartition(".")[2].lower(), Kind.BYTES)


def head_bytes(part: str) -> int:
    """How many bytes of a part its type is inferred from."""
    return _HEADS.get(kind_of(part), 0)


def column_names(parts: Iterable[str], clashes: AbstractSet[str] = frozenset()) -> dict[str, str]:
    """The column of each part.

    ``left.jpg`` becomes ``left``. Where several parts would, they share the column only if all are
    images and no sample has two: ``left.jpg`` here and ``left.png`` there.

    Args:
        parts: of all samples, each once.
        clashes: stems that several parts of one sample have.
    """
    by_stem: dict[str, list[str]] = {}
    for part in parts:
        by_stem.setdefault(stem_of(part), []).append(part)
    names: dict[str, str] = {}
    for stem, group in by_stem.items():
        images = all(kind_of(part) is Kind.IMAGE for part in group)
        alone = stem != KEY and stem not in clashes and (len(group) == 1 or images)
        names |= {part: stem if alone else part for part in group}
    return names


def part_column(
    name: str,
    parts: Sequence[str],
    heads: Sequence[bytes],
    classes: Mapping[str, tuple[str, ...]],
    where: str,
) -> PartColumn:
    """The column `name`, its type as the first of its values say.

    Args:
        name: of the column.
        parts: those that become it, several only if they are images.
        heads: how its first values begin, up to `head_bytes` each; at least one.
        classes: names of classes by column.
        where: names the source in messages.
    """
    kind = kind_of(parts[0])
    if kind is Kind.INTEGER and not all(map(_INTEGER.fullmatch, heads)):
        kind = Kind.TEXT
    if kind is Kind.INTEGER and name in classes:
        return PartColumn(Column(name, ClassLabel(classes[name])), kind)
    simple: dict[Kind, ColumnType] = {
        Kind.INTEGER: Scalar("int64"),
        Kind.TEXT: Text(),
        Kind.JSON: Json(),
        Kind.BYTES: Bytes(),
    }
    found = simple.get(kind)
    if kind is Kind.IMAGE:
        found = image_type(heads)
        if found is None:
            raise damage(where, f"has a part {parts[0]!r} that is no image")
    if kind is Kind.ARRAY:
        forms = [(header.dtype, header.shape) for header in map(_npy_header(where), heads)]
        found = array_type(forms, f"{where}, part {parts[0]!r}")
    assert found is not None, kind
    return PartColumn(Column(name, found), kind)


def decode_part(part: PartColumn, data: bytes, where: str) -> Any:
    """The value that the bytes of one part say.

    Raises:
        InvalidInputError: they are not of the column's kind; says `where`.
    """
    match part.kind:
        case Kind.IMAGE if isinstance(part.column.type, Image):
            return check_image(part.column.type, data, where)
        case Kind.INTEGER:
            return _integer(part.column, data, where)
        case Kind.TEXT:
            return check_text(data, where)
        case Kind.JSON:
            return parse_json(data, where)
        case Kind.ARRAY:
            return check_array(part.column.type, _npy_array(data, where), where)
        case _:
            return data


def parse_json(data: bytes, where: str) -> Any:
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as problem:
        raise damage(where, f"is not JSON: {problem}") from problem


def parse_classes(data: bytes, where: str) -> dict[str, tuple[str, ...]]:
    """What the member `CLASSES_MEMBER` says: names of classes by column."""
    form = parse_json(data, where)
    fits = isinstance(form, dict) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        for names in form.values()
    )
    if not fits:
        raise damage(where, 'is not names of classes by column: {"label": ["cat", "dog"]}')
    return {column: tuple(names) for column, names in form.items()}


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON value")


def stem_of(part: str) -> str:
    """A part without the suffix that says its kind, if anything is left."""
    stem, _, suffix = part.rpartition(".")
    return stem if stem and suffix.lower() in _NAMED else part


def _integer(column: Column, data: bytes, where: str) -> int:
    if not _INTEGER.fullmatch(data):
        raise damage(where, f"is {data[:40]!r}, expected a whole number as in the first samples")
    number = int(data)
    classes = column.type.names if isinstance(column.type, ClassLabel) else None
    if classes is not None and not 0 <= number < len(classes):
        raise damage(where, f"is class {number}; {CLASSES_MEMBER} names {len(classes)} classes")
    if not -(1 << 63) <= number < 1 << 63:
        raise damage(where, f"is {number}, which does not fit into 64 bits")
    return number


def _npy_header(where: str) -> Any:
    return lambda head: read_header(BytesIO(head), where)


def _npy_array(data: bytes, where: str) -> NDArray[Any]:
    header = read_header(BytesIO(data), where)
    if header.promised_bytes != len(data):
        raise damage(
            where,
            f"header promises {header.promised_bytes} bytes (shape {header.shape} of "
            f"{header.dtype}), there are {len(data)}",
        )
    flat = np.frombuffer(data, header.dtype, offset=header.bytes)
    return plain_array(flat.reshape(header.shape, order="F" if header.fortran_order else "C"))
