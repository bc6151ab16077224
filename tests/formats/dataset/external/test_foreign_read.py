"""Pages of foreign files: what contradicts the file, or what describes it, is refused."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import msgspec
import numpy as np
import pytest
from blake3 import blake3

from tensorrepo.formats.dataset.external.foreign import (
    ArrayPlace,
    ForeignFile,
    ForeignPlace,
    ForeignReader,
    InlinePlace,
    MembersPlace,
    TablePlace,
    encode_foreign,
    foreign_entries,
    place_type,
)
from tensorrepo.formats.dataset.external.outside import Stat
from tensorrepo.formats.dataset.external.outside_read import AllowedOutside
from tensorrepo.formats.dataset.schema.types import (
    Bytes,
    ColumnType,
    Json,
    Scalar,
    Tensor,
    Text,
    storage_of,
)
from tensorrepo.formats.dataset.schema.values import ColumnValues
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.objects.envelope import Kind, ObjectLink
from tests.support.builders.adopted import write_parquet
from tests.support.builders.objects import MemoryObjects

ID = "0" * 15 + "7"
NUMBERS = Scalar("int32")
ARRAY = ArrayPlace(place_type(NUMBERS), False, 8, 4, 10, "int32", [])


def _u64(*numbers: int) -> bytes:
    return np.array(numbers, np.int64).tobytes()


class _File:
    """A file of 10 numbers behind 8 bytes, and a reader of places in it."""

    def __init__(self, folder: Path, data: bytes | None = None) -> None:
        self.path = folder / "file"
        self.path.write_bytes(bytes(8) + np.arange(10, dtype="<i4").tobytes())
        if data is not None:
            self.path.write_bytes(data)
        self.outside = AllowedOutside([folder], environment={})
        self.objects = MemoryObjects()
        self.reader = ForeignReader(self.objects, self.outside)

    def link(self, place: ForeignPlace, **changes: Any) -> ObjectLink:
        version = self.outside.stat(str(self.path))
        file = ForeignFile(1, "tar", str(self.path), version.size, version.etag, b"", {ID: place})
        file = msgspec.structs.replace(file, **changes)
        return self.objects.put(Kind.FOREIGN, encode_foreign(file))

    def read(
        self,
        place: ForeignPlace,
        kind: ColumnType,
        offset: int,
        rows: int,
        nulls: int = 0,
        **changes: Any,
    ) -> ColumnValues:
        (entry,) = foreign_entries([0], [rows], [offset], [0], [0], [nulls])
        return self.reader.read(self.link(place, **changes), ID, entry, storage_of(kind))


@pytest.fixture
def file(tmp_path: Path) -> _File:
    return _File(tmp_path)


def test_rows_of_an_array_are_found_by_their_number(file: _File) -> None:
    found: Any = file.read(ARRAY, NUMBERS, 3, 4)
    assert found.values.tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("place", "offset", "rows"),
    [
        (ARRAY, 7, 4),  # behind the last row
        (msgspec.structs.replace(ARRAY, rows=20), 0, 11),  # behind the end of the file
        (msgspec.structs.replace(ARRAY, start=1 << 60), 0, 1),
        (msgspec.structs.replace(ARRAY, stride=3), 0, 2),  # rows that overlap
        (msgspec.structs.replace(ARRAY, stride=0), 0, 10),
        (msgspec.structs.replace(ARRAY, stride=1 << 60), 0, 2),
        (msgspec.structs.replace(ARRAY, shape=[1 << 62, 1 << 62]), 0, 1),
        (msgspec.structs.replace(ARRAY, shape=[0]), 0, 1),
        (msgspec.structs.replace(ARRAY, dtype="int7"), 0, 1),
        (msgspec.structs.replace(ARRAY, dtype="int64"), 0, 1),  # not what the column is stored as
    ],
)
def test_an_array_that_cannot_be_there_is_refused(
    place: ArrayPlace, offset: int, rows: int, file: _File
) -> None:
    with pytest.raises(CorruptError):
        file.read(place, NUMBERS, offset, rows)


@pytest.mark.parametrize(
    "place",
    [
        MembersPlace(place_type(Bytes()), True, "bytes", _u64(8, 0), _u64(40, 0)),
        MembersPlace(place_type(Text()), True, "text", _u64(8), _u64(2)),
    ],
)
def test_members_beyond_those_described_are_refused(place: MembersPlace, file: _File) -> None:
    with pytest.raises(CorruptError, match="no members"):
        file.read(place, Bytes(), 1, 3)


def test_members_that_all_claim_the_same_bytes_are_refused(file: _File) -> None:
    place = MembersPlace(place_type(Bytes()), False, "bytes", _u64(*[1] * 9), _u64(*[40] * 9))
    with pytest.raises(CorruptError):
        file.read(place, Bytes(), 0, 9)


@pytest.mark.parametrize(
    ("content", "kind", "data"),
    [
        ("text", Text(), b"\xff"),
        ("json", Json(), b"{"),
        ("json", Json(), b"NaN"),
        ("json", Json(), b"[" * 100_000),
        ("number", NUMBERS, b"one"),
        ("number", NUMBERS, b"99999999999"),
        ("npy", Tensor("int32", (2,)), b"\x93NUMPY\x01\x00\x05\x00abcde"),
        ("pickle", Bytes(), b"x"),
    ],
)
def test_a_row_that_holds_something_else_is_refused(
    content: str, kind: ColumnType, data: bytes, file: _File
) -> None:
    place = InlinePlace(place_type(kind), False, content, _u64(len(data)), data)
    with pytest.raises(CorruptError):
        file.read(place, kind, 0, 1)


def test_an_npy_member_that_promises_more_than_it_has_is_refused(file: _File) -> None:
    stream = io.BytesIO()
    np.save(stream, np.arange(4, dtype="<i4"))
    data = stream.getvalue().replace(b"(4,)", b"(9" + b"0" * 14 + b",)")[:140]
    place = InlinePlace(place_type(Tensor("int32", (4,))), False, "npy", _u64(len(data)), data)
    with pytest.raises(CorruptError, match="npy"):
        file.read(place, Tensor("int32", (4,)), 0, 1)


@pytest.mark.parametrize(("nulls", "offset"), [(0, 0), (2, 0)])
def test_other_nulls_than_the_entry_says_are_refused(nulls: int, offset: int, file: _File) -> None:
    place = InlinePlace(place_type(Text()), True, "text", _u64(1, -1), b"x")
    with pytest.raises(CorruptError, match="nulls"):
        file.read(place, Text(), offset, 2, nulls)
    assert file.read(place, Text(), offset, 2, 1).rows == 2


@pytest.mark.parametrize(
    ("place", "group", "rows"),
    [
        (TablePlace(place_type(Scalar("int64")), True, "id"), 0, 16),
        (TablePlace(place_type(Scalar("int64")), True, "id"), 9, 17),
        (TablePlace(place_type(Scalar("int64")), True, "nowhere"), 0, 17),
        (TablePlace(place_type(Scalar("int64")), True, "text"), 0, 17),
        (TablePlace(place_type(Scalar("int64")), True, "id", "secret"), 0, 17),
    ],
)
def test_a_table_without_such_rows_is_refused(
    place: TablePlace, group: int, rows: int, tmp_path: Path
) -> None:
    data = write_parquet(tmp_path / "x.parquet").read_bytes()
    with pytest.raises(CorruptError):
        _File(tmp_path, data).read(place, Scalar("int64"), group, rows)


def test_a_file_that_is_no_table_is_refused(file: _File) -> None:
    place = TablePlace(place_type(Scalar("int64")), True, "id")
    with pytest.raises(CorruptError, match="cannot be read"):
        file.read(place, Scalar("int64"), 0, 17)


def test_an_unknown_column_and_another_form_are_refused(file: _File) -> None:
    (entry,) = foreign_entries([0], [1], [0], [0], [0], [0])
    with pytest.raises(CorruptError, match="knows nothing"):
        file.reader.read(file.link(ARRAY), "0" * 16, entry, storage_of(NUMBERS))
    with pytest.raises(CorruptError, match="not"):
        file.reader.read(file.link(ARRAY), ID, entry, storage_of(Scalar("int64")))


def test_an_object_of_another_kind_is_refused(file: _File) -> None:
    (entry,) = foreign_entries([0], [1], [0], [0], [0], [0])
    with pytest.raises(CorruptError, match="no file"):
        file.reader.read(file.objects.put(Kind.BLOB, b"x"), ID, entry, storage_of(NUMBERS))


def test_a_size_alone_proves_nothing(file: _File) -> None:
    with pytest.raises(CorruptError, match="has changed"):
        file.read(ARRAY, NUMBERS, 0, 1, etag=None)


def test_a_file_is_looked_at_once_and_each_read_names_its_version(tmp_path: Path) -> None:
    class Counting(AllowedOutside):
        asked: list[object] = []  # noqa: RUF012  # of this one test

        def stat(self, url: str) -> Stat:
            self.asked.append("stat")
            return super().stat(url)

        def read(
            self, url: str, start: int, stop: int, unchanged: Stat | None = None
        ) -> memoryview:
            self.asked.append(unchanged)
            return super().read(url, start, stop, unchanged)

    file = _File(tmp_path)
    outside = Counting([tmp_path], environment={})
    file.reader = ForeignReader(file.objects, outside)
    for offset in range(5):
        file.read(ARRAY, NUMBERS, offset, 1)
    version = file.outside.stat(str(file.path))
    assert outside.asked == ["stat"] + [version] * 5


def test_threads_that_read_a_copied_file_hash_it_once(tmp_path: Path) -> None:
    file = _File(tmp_path)
    data = file.path.read_bytes()
    reads: list[tuple[int, int]] = []
    begun = Barrier(4)

    class Slow(AllowedOutside):
        def stat(self, url: str) -> Stat:
            with suppress(BrokenBarrierError):
                begun.wait(0.3)  # all have found that nobody looked yet
            return super().stat(url)

        def read(
            self, url: str, start: int, stop: int, unchanged: Stat | None = None
        ) -> memoryview:
            reads.append((start, stop))
            return super().read(url, start, stop, unchanged)

    copied = ForeignFile(
        1, "tar", str(file.path), len(data), "another", blake3(data).digest(), {ID: ARRAY}
    )
    reader = ForeignReader(file.objects, Slow([tmp_path], environment={}))
    with ThreadPoolExecutor(4) as threads:
        versions = set(threads.map(lambda _: reader.check(copied), range(4)))
    assert len(versions) == 1
    assert reads == [(0, len(data))]
