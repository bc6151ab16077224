"""LMDB: reader of plain keys and values, and of Caffe's datums.

LMDB follows whatever page numbers are in a file, and a damaged one ends the process: a child
process reads it. Rows come in the order of keys. What values are is told by the first of them:
Caffe's `Datum`s become columns `image` and `label`, images stay images, anything else is bytes;
options `key` and `value` say it outright.

Source:
    Datum: src/caffe/proto/caffe.proto of Caffe 1.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.damage import damage
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    Column,
    ColumnType,
    Image,
    Scalar,
    Schema,
    Tensor,
    Text,
)
from tensorrepo.formats.exchange.base import Candidate, OpenedSource, first_of, origin_of
from tensorrepo.formats.exchange.child import open_files
from tensorrepo.formats.exchange.child_lmdb import LMDB_MAGIC, LMDB_MAGIC_AT
from tensorrepo.formats.exchange.records.samples import (
    SAMPLES,
    SampleRecord,
    array_type,
    batches_of,
    check_array,
    check_bytes,
    check_image,
    image_type,
    is_text,
    parse_message,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

DATA_FILE = "data.mdb"
KEYS = ("text", "bytes")
VALUES = ("bytes", "text", "image", "datum")
_SAMPLE_BYTES = 64 << 20  # of values that are held to infer types from


@dataclass(frozen=True, slots=True)
class Datum:
    """One of Caffe's samples: an encoded image, or an array of shape (channels, height, width)."""

    image: bytes | NDArray[Any]
    label: int


def read_lmdb(
    path: Path,
    *,
    database: str | None = None,
    key: str | None = None,
    value: str | None = None,
    samples: int = SAMPLES,
) -> OpenedSource:
    """A folder with `data.mdb`, or such a file, read without locking it.

    Args:
        path: folder or file.
        database: name of one of several in the file.
        key: what keys are, text or bytes; otherwise the first ones tell.
        value: what values are, bytes, text, image or datum; otherwise the first ones tell.
        samples: from how many entries that is told.

    Raises:
        InvalidInputError: no LMDB file, a damaged one, no entries, or values of another kind.
    """
    if key not in (None, *KEYS) or value not in (None, *VALUES):
        raise InvalidInputError(f"key is {' or '.join(KEYS)}, value {' or '.join(VALUES)}")
    file = path / DATA_FILE if path.is_dir() else path
    opened = open_files("lmdb", [file], database=database)[file]
    entries = (
        entry
        for batch in opened.batches()
        for entry in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    first = first_of(((entry, len(entry[1])) for entry in entries), samples, _SAMPLE_BYTES)
    if not first:
        raise damage(file, "holds no entries")
    schema = _schema(first, key, value, str(file))
    rows = (_row(file, schema, *entry) for entry in chain(first, entries))
    return OpenedSource(
        schema=schema,
        rows=opened.rows,
        batches=batches_of(rows, schema.names),
        origin=origin_of(path, "lmdb", [file]),
    )


def matches_lmdb(candidate: Candidate) -> bool:
    """A file with LMDB's mark, or a folder with one called `data.mdb`."""
    if candidate.is_folder:
        return any(str(name) == DATA_FILE for name in candidate.names)
    return candidate.head[LMDB_MAGIC_AT : LMDB_MAGIC_AT + 4] == LMDB_MAGIC.to_bytes(4, "little")


def parse_datum(data: bytes, where: str) -> Datum:
    """What a serialised `Datum` says. Raises InvalidInputError: no such message, or wrong sizes."""
    datum = parse_message("Datum", data, where, "Datum of Caffe")
    if datum.encoded:
        return Datum(datum.data, datum.label)
    shape = datum.channels, datum.height, datum.width
    floats = len(datum.float_data)
    stored = np.array(datum.float_data, "<f4") if floats else np.frombuffer(datum.data, np.uint8)
    if min(shape) < 1 or prod(shape) != len(stored):
        raise damage(where, f"is no Datum of Caffe: {len(stored)} numbers for shape {shape}")
    return Datum(stored.reshape(shape), datum.label)


def _schema(
    first: Sequence[tuple[bytes, bytes]], key: str | None, value: str | None, where: str
) -> Schema:
    keys, values = zip(*first, strict=True)
    text = key == "text" or (key is None and all(map(is_text, keys)))
    named = Column("key", Text() if text else Bytes())
    if value in (None, "datum"):
        try:
            datums = [parse_datum(data, f"{where}, key {name!r}") for name, data in first]
            return Schema((named, *_datum_columns(datums, where)))
        except InvalidInputError:
            if value == "datum":
                raise
    kinds: dict[str | None, ColumnType] = {"bytes": Bytes(), "text": Text(), "image": Image()}
    image = image_type(values) if value in (None, "image") else None
    return Schema((named, Column("value", image or kinds.get(value, Bytes()))))


def _datum_columns(datums: Sequence[Datum], where: str) -> tuple[Column, Column]:
    encoded = [datum.image for datum in datums if isinstance(datum.image, bytes)]
    arrays = [datum.image for datum in datums if not isinstance(datum.image, bytes)]
    found: ColumnType | None = image_type(encoded) if encoded else None
    if not encoded:
        found = array_type([(array.dtype, array.shape) for array in arrays], where)
    if found is None or (encoded and arrays):
        raise damage(where, "mixes encoded images with others; read it with value=bytes")
    return Column("image", found), Column("label", Scalar("int64"))


def _row(file: Path, schema: Schema, key: bytes, value: bytes) -> SampleRecord:
    where = f"{file}, key {key[:60]!r}"
    values: dict[str, Any] = {"key": check_bytes(schema.column("key").type, key, where)}
    if "label" in schema:
        datum = parse_datum(value, where)
        values["label"] = datum.label
        values["image"] = _image(schema.column("image").type, datum, where)
    else:
        values["value"] = check_bytes(schema.column("value").type, value, where)
    return SampleRecord(values, len(key) + len(value))


def _image(kind: ColumnType, datum: Datum, where: str) -> bytes | NDArray[Any]:
    if isinstance(datum.image, bytes) and isinstance(kind, Image):
        return check_image(kind, datum.image, where)
    if isinstance(datum.image, bytes) or not isinstance(kind, Tensor):
        raise damage(where, "is encoded where the first are not, or the other way round")
    return check_array(kind, datum.image, where)
