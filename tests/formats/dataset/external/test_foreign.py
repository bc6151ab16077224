"""The object that describes a foreign file."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import ArrayLike

from tensorrepo.formats.dataset.external.foreign import (
    ArrayPlace,
    ForeignFile,
    ForeignPlace,
    InlinePlace,
    MembersPlace,
    TablePlace,
    decode_foreign,
    encode_foreign,
)
from tensorrepo.repo.errors import CorruptError, UnsupportedError

KIND = {"type": "bytes"}
ARRAY = ArrayPlace({"type": "scalar", "dtype": "int32"}, False, 128, 4, 10, "int32", [])


def _u64(numbers: ArrayLike) -> bytes:
    return np.array(numbers, np.int64).tobytes()


def _file(place: ForeignPlace, **changes: Any) -> ForeignFile:
    file = ForeignFile(1, "tar", "file:///x", 1000, "mtime-1", b"", {"0" * 16: place})
    return msgspec.structs.replace(file, **changes)


PLACES = [
    ARRAY,
    MembersPlace(KIND, True, "bytes", _u64([512, 0]), _u64([488, 0])),
    InlinePlace(KIND, True, "text", _u64([2, -1, 0, 1]), b"abc"),
    TablePlace(KIND, False, "photo", "image"),
]


@pytest.mark.parametrize("place", PLACES)
def test_what_is_written_is_read(place: ForeignPlace) -> None:
    file = _file(place)
    assert decode_foreign(encode_foreign(file), "it") == file


def test_inline_rows_come_back_with_their_nulls() -> None:
    place = InlinePlace(KIND, True, "text", _u64([2, -1, 0, 1]), b"abc")
    assert place.rows() == [b"ab", None, b"", b"c"]


LIES = [
    _file(msgspec.structs.replace(ARRAY, start=-1)),
    _file(msgspec.structs.replace(ARRAY, rows=1 << 40)),
    _file(msgspec.structs.replace(ARRAY, shape=[-1])),
    _file(MembersPlace(KIND, True, "bytes", _u64([900]), _u64([101]))),
    _file(MembersPlace(KIND, True, "bytes", _u64([900]), _u64([-1]))),
    _file(MembersPlace(KIND, True, "bytes", _u64([(1 << 63) - 1]), _u64([(1 << 63) - 1]))),
    _file(MembersPlace(KIND, True, "bytes", _u64([1, 2]), _u64([1]))),
    _file(MembersPlace(KIND, True, "bytes", b"123", b"123")),
    _file(InlinePlace(KIND, True, "bytes", _u64([2]), b"abc")),
    _file(InlinePlace(KIND, True, "bytes", _u64([-2, 5]), b"abc")),
    _file(InlinePlace(KIND, True, "bytes", b"1", b"abc")),
    _file(ARRAY, size=-1),
    _file(ARRAY, hash=b"short"),
]


@pytest.mark.parametrize("file", LIES)
def test_places_that_cannot_be_are_refused(file: ForeignFile) -> None:
    with pytest.raises(CorruptError):
        decode_foreign(encode_foreign(file), "it")


@pytest.mark.parametrize("change", [{"version": 2}, {"format": "beton"}])
def test_what_a_newer_version_wrote_is_told_from_damage(change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        decode_foreign(encode_foreign(_file(ARRAY, **change)), "it")


@pytest.mark.parametrize("size", range(0, 120, 7))
def test_a_payload_cut_short_is_refused(size: int) -> None:
    with pytest.raises(CorruptError):
        decode_foreign(encode_foreign(_file(ARRAY))[:size], "it")


def test_an_unknown_column_type_is_no_column() -> None:
    place = TablePlace({"type": "tensor", "dtype": "int7", "shape": []}, False, "x")
    with pytest.raises(CorruptError):
        place.column()
