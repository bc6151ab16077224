"""A page comes back whole or not at all."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.buffer_codecs import AUTO, Codec, CodecChoice
from tensorrepo.formats.dataset.pages.page import (
    DIRECTORY,
    PAGE_COMPRESSED,
    PAGE_ENTRY,
    PAGE_PLAIN,
    PAGE_TILES,
    SUMS,
    buffer_starts,
    check_rows,
    column_codec,
    decode_page,
    encode_page,
    expected_bytes,
    verify_page,
)
from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.convert import present_row
from tensorrepo.formats.dataset.schema.schema import Bytes, Column, Image, Scalar, Tensor
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.formats.dataset.schema.values import ColumnValues, RaggedValues
from tensorrepo.repo.errors import CorruptError, Error, UnsupportedError
from tensorrepo.repo.hashing.digests import content_tag
from tests.support.builders.datasets import TYPES, equal, value
from tests.support.faults.damage import places

FIXED = Column("x", Tensor("float32", (64,)), nullable=True)
RAGGED = Column("r", Tensor("int16", (None, 3, None)), nullable=True)
BINARY = Column("b", Bytes(), nullable=True)
SAMPLES = {
    "fixed": (FIXED, [np.full(64, at, np.float32) for at in range(5)] + [None]),
    "ragged": (RAGGED, [np.full((at, 3, 40), at, np.int16) for at in range(5)] + [None]),
    "binary": (BINARY, [bytes([at]) * 400 for at in range(5)] + [None]),
}


def _page(name: str) -> tuple[Column, ColumnValues, Any]:
    column, rows = SAMPLES[name]
    values = coerce_column(column, rows)
    return column, values, encode_page(values, column.storage)


@given(TYPES, st.booleans(), st.integers(1, 30), st.integers(0, 2**32), st.sampled_from(Codec))
def test_every_kind_of_row_comes_back(
    kind: Any, nullable: bool, rows: int, seed: int, codec: Codec
) -> None:
    column = Column("c", kind, nullable)
    rng = np.random.default_rng(seed)
    given_rows = [value(column, rng) for _ in range(rows)]
    page = encode_page(coerce_column(column, given_rows), column.storage, codec)
    verify_page(page.data.data, page.entry)
    assert page.tag == content_tag(page.data.data)
    found = decode_page(page.data.data, page.entry, column.storage)
    assert all(equal(present_row(column, found, at), row) for at, row in enumerate(given_rows))
    assert page.entry["nulls"] == sum(row is None for row in given_rows)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_no_flipped_byte_goes_unnoticed(name: str) -> None:
    _, _, page = _page(name)
    unnoticed = []
    for at in places(page.data.nbytes):
        damaged = bytearray(page.data)
        damaged[at] ^= 0x40
        try:
            verify_page(memoryview(damaged), page.entry)
            unnoticed.append(at)
        except CorruptError:
            pass
    assert unnoticed == []


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_page_cut_short_is_corrupt(name: str) -> None:
    _, _, page = _page(name)
    with pytest.raises(CorruptError, match=f"expected {page.data.nbytes}"):
        verify_page(page.data.data[:-64], page.entry)


@pytest.mark.parametrize("name", sorted(SAMPLES))
@given(data=st.data())
def test_a_hostile_page_gives_rows_or_an_error_of_ours(name: str, data: st.DataObject) -> None:
    column, _, page = _page(name)
    damaged = page.data.copy()
    for at in data.draw(st.lists(st.integers(0, damaged.nbytes - 1), min_size=1, max_size=4)):
        damaged[at] = data.draw(st.integers(0, 255))
    try:
        found = decode_page(damaged.data, page.entry, column.storage)
    except Error:
        return
    assert found.rows == 6
    assert [present_row(column, found, at) is None for at in range(6)].count(True) == 1


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_rows_are_proved_by_their_own_sums(name: str) -> None:
    column, values, page = _page(name)
    start = buffer_starts(expected_bytes(page.entry, column.storage))[SUMS]
    sums = page.data[start : start + 4 * 6].view(np.uint32)
    check_rows(values, sums)
    for row in range(6):
        check_rows(values.slice(row, row + 1), sums[row : row + 1])


def test_a_row_that_turned_null_or_back_is_noticed() -> None:
    column, values, page = _page("fixed")
    start = buffer_starts(expected_bytes(page.entry, column.storage))[SUMS]
    sums = page.data[start : start + 4 * 6].view(np.uint32)
    turned = values.take(np.arange(6))
    assert turned.valid is not None
    turned.valid[5] = True
    with pytest.raises(CorruptError, match="row 5 of 6"):
        check_rows(turned, sums)


def test_a_row_of_another_shape_is_noticed() -> None:
    column, values, page = _page("ragged")
    assert isinstance(values, RaggedValues)
    assert values.dims is not None
    start = buffer_starts(expected_bytes(page.entry, column.storage))[SUMS]
    sums = page.data[start : start + 4 * 6].view(np.uint32)
    turned = values.take(np.arange(6))
    assert turned.dims is not None
    turned.dims[2] = turned.dims[2][::-1]
    with pytest.raises(CorruptError, match="row 2 of 6"):
        check_rows(turned, sums)


@pytest.mark.parametrize(("rows_of", "summed"), [(63, False), (64, True)])
def test_rows_of_256_bytes_have_sums(rows_of: int, summed: bool) -> None:
    column = Column("x", Tensor("float32", (rows_of,)))
    page = encode_page(coerce_column(column, np.zeros((2, rows_of), "f4")), column.storage)
    assert bool(page.entry["flags"] & 1) is summed


def test_an_entry_says_what_its_page_holds() -> None:
    column = Column("n", Scalar("float64"), nullable=True)
    page = encode_page(coerce_column(column, [1.5, None, -2.0, float("nan")]), column.storage)
    assert page.entry["rows"] == 4
    assert page.entry["nulls"] == 1
    assert page.entry["flags"] == 2 | 16
    assert page.entry["stored_bytes"] == page.entry["raw_bytes"] == 64 + 64 + 64
    assert int(page.entry["min"]) < int(page.entry["max"])


def test_a_page_form_of_a_later_version_is_unsupported() -> None:
    column, _, page = _page("fixed")
    entry = page.entry.copy()
    entry["codec"] = PAGE_TILES
    with pytest.raises(UnsupportedError, match="page form 2"):
        decode_page(page.data.data, entry, column.storage)


def test_a_tiled_column_has_no_plain_pages() -> None:
    _, _, page = _page("fixed")
    with pytest.raises(CorruptError, match="no table of tiles"):
        decode_page(page.data.data, page.entry, Storage(ColumnLayout.TILED, "float32", (64,), (8,)))


def test_few_labels_stay_as_they_are_and_many_are_packed() -> None:
    labels = np.arange(20_000) % 10
    column = Column("label", Scalar("int64"))
    few, many = (
        encode_page(coerce_column(column, some), column.storage, AUTO)
        for some in (labels[:8191], labels)
    )
    assert few.entry["codec"] == PAGE_PLAIN
    assert many.entry["stored_bytes"] < many.entry["raw_bytes"] / 10


@pytest.mark.parametrize("choice", [AUTO, Codec.ZSTD])
def test_encoded_pictures_are_not_compressed(choice: CodecChoice) -> None:
    assert column_codec(Image("png"), choice) is Codec.NONE
    assert column_codec(Bytes(), choice) == choice


def test_a_codec_of_a_later_version_is_unsupported() -> None:
    column, _, page = _page("fixed")
    data = page.data.copy()
    fields = list(DIRECTORY.unpack_from(data))
    fields[5 + 1] = 99
    DIRECTORY.pack_into(data, 0, *fields)
    with pytest.raises(UnsupportedError, match="codec 99"):
        decode_page(data.data, page.entry, column.storage)


def test_an_entry_that_promises_too_much_allocates_nothing() -> None:
    column, _, page = _page("binary")
    entry = np.array(page.entry, PAGE_ENTRY)
    entry["min"] = 1 << 60
    with pytest.raises(CorruptError):
        decode_page(page.data.data, entry, column.storage)


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.SHUFFLE_ZSTD, Codec.BITPACK])
@pytest.mark.parametrize("rows", [1 << 31, 5000])
def test_a_compressed_buffer_that_promises_too_much_allocates_nothing(
    codec: Codec, rows: int
) -> None:
    column = Column("n", Scalar("int64"))
    page = encode_page(coerce_column(column, np.arange(4000) % 3), column.storage, codec)
    assert page.entry["codec"] == PAGE_COMPRESSED
    entry = np.array(page.entry, PAGE_ENTRY)
    entry["rows"], entry["raw_bytes"] = rows, 64 + 8 * rows
    tracemalloc.start()
    try:
        with pytest.raises(CorruptError):
            decode_page(page.data.data, entry, column.storage)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_rows_of_a_fixed_page_are_not_copied() -> None:
    column = Column("x", Tensor("float32", (64,)))
    page = encode_page(coerce_column(column, np.ones((9, 64), "f4")), column.storage)
    found = decode_page(page.data.data, page.entry, column.storage)
    assert np.shares_memory(found.values, page.data)  # type: ignore[union-attr]  # a fixed column
