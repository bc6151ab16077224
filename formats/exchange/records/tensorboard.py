"""TensorBoard event files: scalars and pictures by tag, step and time.

A file is TFRecord frames of `Event` messages; a few of their fields are read, by the house's own
reader of the wire format. A file that ends in the middle of a record, as one of a training that was
killed does, is read as far as it goes.

Source:
    tensorflow/core/util/event.proto and tensorflow/core/framework/{summary,tensor}.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final

import numpy as np

from tensorrepo.formats.common.protobuf import Wire, read_fields, signed
from tensorrepo.formats.exchange.records.tfrecord import walk_records
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

MARK: Final = "tfevents"  # in the name of each such file
MAX_PICTURE_BYTES: Final = 64 << 20
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5  # of Event
_VALUE: Final = 1  # of Summary
_TAG, _SIMPLE, _IMAGE, _TENSOR = 1, 2, 4, 8  # of Summary.Value
_ENCODED: Final = 4  # of Summary.Image
_DTYPE, _CONTENT, _FLOATS, _DOUBLES, _STRINGS = 1, 4, 5, 6, 8  # of TensorProto
_FLOAT, _DOUBLE, _STRING = 1, 2, 7  # DataType
_F4, _F8 = Struct("<f"), Struct("<d")
_PICTURES: Final = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"GIF8": "gif"}


@dataclass(frozen=True, slots=True)
class BoardScalar:
    """A value of a tag; `time_ms` is UTC."""

    tag: str
    step: int
    time_ms: int
    value: float


@dataclass(frozen=True, slots=True)
class BoardPicture:
    """A picture of a tag, encoded; `suffix` is "png", "jpg" or "gif"."""

    tag: str
    step: int
    time_ms: int
    suffix: str
    data: bytes


@dataclass(frozen=True, slots=True)
class BoardEnd:
    """Where a file ends in the middle of a record, or is damaged: what was before it was read."""

    why: str


BoardEvent = BoardScalar | BoardPicture | BoardEnd


def event_files(folder: Path) -> list[Path]:
    """Event files right in a folder, the oldest first: their names begin with their time."""
    found = (each for each in folder.iterdir() if MARK in each.name and each.is_file())
    return sorted(found, key=lambda each: each.name)


def runs_below(folder: Path) -> dict[str, list[Path]]:
    """Event files of each training below a folder, by its path in there; "" is the folder."""
    folders = [folder, *(each for each in sorted(folder.rglob("*")) if each.is_dir())]
    found = {
        each.relative_to(folder).as_posix().removeprefix("."): event_files(each) for each in folders
    }
    return {name: files for name, files in found.items() if files}


def walk_events(file: Path) -> Iterator[BoardEvent]:
    """What a file tells, in its order; what is neither a scalar nor a picture is passed over.

    Raises:
        InvalidInputError: no event file, from its first record on.
        UnsupportedError: the checksum's library is not installed.
    """
    records = walk_records(file)
    number = 0
    while True:
        try:
            number, record = next(records)
        except StopIteration:
            return
        except InvalidInputError as error:
            if not number:
                raise
            yield BoardEnd(str(error))
            return
        yield from _events(memoryview(record), f"{file}, record {number}")


def _events(message: memoryview, where: str) -> Iterator[BoardScalar | BoardPicture]:
    time_ms, step, summaries = 0, 0, []
    for field, wire, number, data in read_fields(message, where):
        if field == _WALL_TIME and wire is Wire.FIXED64:
            seconds = _F8.unpack(data)[0]
            time_ms = int(seconds * 1000) if 0 <= seconds < 1 << 40 else 0
        elif field == _STEP and wire is Wire.VARINT:
            step = signed(number)
        elif field == _SUMMARY and wire is Wire.BYTES:
            summaries.append(data)
    for summary in summaries:
        for field, wire, _, data in read_fields(summary, where):
            if field == _VALUE and wire is Wire.BYTES:
                found = _value(data, step, time_ms, where)
                if found is not None:
                    yield found


def _value(
    message: memoryview, step: int, time_ms: int, where: str
) -> BoardScalar | BoardPicture | None:
    tag, value, picture = "", None, b""
    for field, wire, _, data in read_fields(message, where):
        if field == _TAG and wire is Wire.BYTES:
            tag = bytes(data).decode(errors="replace")
        elif field == _SIMPLE and wire is Wire.FIXED32:
            value = _F4.unpack(data)[0]
        elif field == _IMAGE and wire is Wire.BYTES:
            picture = _encoded(data, where)
        elif field == _TENSOR and wire is Wire.BYTES:
            value, picture = _tensor(data, where)
    if value is not None:
        return BoardScalar(tag, step, time_ms, value)
    suffix = next((name for mark, name in _PICTURES.items() if picture.startswith(mark)), None)
    if suffix is None or len(picture) > MAX_PICTURE_BYTES:
        return None
    return BoardPicture(tag, step, time_ms, suffix, picture)


def _encoded(message: memoryview, where: str) -> bytes:
    """The bytes of a picture in an Image message."""
    for field, wire, _, data in read_fields(message, where):
        if field == _ENCODED and wire is Wire.BYTES:
            return bytes(data)
    return b""


def _tensor(message: memoryview, where: str) -> tuple[float | None, bytes]:
    """The number of a tensor of one, or the picture in one of texts: width, height, picture."""
    dtype = 0
    numbers: list[float] = []
    texts: list[memoryview] = []
    content = memoryview(b"")
    for field, wire, number, data in read_fields(message, where):
        if field == _DTYPE and wire is Wire.VARINT:
            dtype = number
        elif field == _CONTENT and wire is Wire.BYTES:
            content = data
        elif field == _FLOATS and len(data) % 4 == 0:
            numbers += np.frombuffer(data, "<f4").tolist()
        elif field == _DOUBLES and len(data) % 8 == 0:
            numbers += np.frombuffer(data, "<f8").tolist()
        elif field == _STRINGS and wire is Wire.BYTES:
            texts.append(data)
    if dtype == _FLOAT and len(content) == _F4.size:
        numbers = [_F4.unpack(content)[0]]
    elif dtype == _DOUBLE and len(content) == _F8.size:
        numbers = [_F8.unpack(content)[0]]
    if dtype in {_FLOAT, _DOUBLE} and len(numbers) == 1:
        return float(numbers[0]), b""
    has_picture = dtype == _STRING and len(texts) > 2
    return None, bytes(texts[2]) if has_picture else b""
