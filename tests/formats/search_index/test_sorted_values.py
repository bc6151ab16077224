"""Sorted values: positions are those of a sorted list, whatever a block has and whatever is cut."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.metadata.row_ids import plain_run
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import Bytes, Embedding, Image, Scalar, Text
from tensorrepo.formats.dataset.schema.values import BinaryValues, FixedValues, offsets_of
from tensorrepo.formats.search_index import sorted_values
from tensorrepo.formats.search_index.sorted_values import (
    FENCES,
    SortedSegment,
    check_sortable,
    make_sorted_segment,
    sort_keys,
)
from tensorrepo.formats.search_index.stored_index import IndexFile, open_index
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.objects import MemoryObjects
from tests.support.golden.others import DATASET, GOLDEN

RUNS = plain_run(5, 1 << 10)


@pytest.fixture(autouse=True)
def _blocks_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_values, "BLOCK_ROWS", 4)


def opened(*values: Any, objects: MemoryObjects | None = None) -> SortedSegment:
    objects = objects or MemoryObjects()
    segment = make_sorted_segment(objects, RUNS, map(sort_keys, values))
    return SortedSegment(objects, segment, LimitedCache(1 << 20))


def fixed(numbers: Any, dtype: Any = np.int64) -> FixedValues:
    return FixedValues(np.array(numbers, dtype))


def texts(values: list[bytes | None]) -> BinaryValues:
    lengths = np.array([len(each or b"") for each in values], np.int64)
    data = np.frombuffer(b"".join(each or b"" for each in values), np.uint8)
    return BinaryValues(offsets_of(lengths), data, np.array([each is not None for each in values]))


@given(
    st.lists(st.integers(-6, 6), min_size=1, max_size=30),
    st.lists(st.integers(-300, 300), min_size=1, max_size=5).map(sorted),
)
def test_positions_of_numbers_are_those_in_a_sorted_list(
    numbers: list[int], wanted: list[int]
) -> None:
    keys, expected = opened(fixed(numbers, np.int8)), sorted(numbers)
    assert keys.positions(wanted, "left").tolist() == [bisect_left(expected, x) for x in wanted]
    assert keys.positions(wanted, "right").tolist() == [bisect_right(expected, x) for x in wanted]
    places = keys.places(0, len(numbers)).tolist()
    assert [numbers[at] for at in places] == expected
    assert sorted(places) == list(range(len(numbers)))


@given(st.lists(st.binary(max_size=3), min_size=1, max_size=30), st.binary(max_size=4))
def test_positions_of_bytes_are_those_in_a_sorted_list(values: list[bytes], wanted: bytes) -> None:
    ours = opened(texts(values))
    expected = sorted(each.rstrip(b"\0") for each in values)
    cut = wanted.rstrip(b"\0")
    assert ours.positions([wanted], "left").tolist() == [bisect_left(expected, cut)]
    assert ours.positions([wanted], "right").tolist() == [bisect_right(expected, cut)]
    assert ours.is_whole == (expected == sorted(values))


def test_keys_of_long_text_are_its_first_bytes() -> None:
    keys = opened(texts([b"x" * 40, b"y"]))
    assert keys.segment.method == "sorted_s32"
    assert not keys.is_whole


@pytest.mark.parametrize(
    ("values", "method"),
    [
        (fixed([1, 2], np.uint16), "sorted_u16"),
        (fixed([True, False], np.bool_), "sorted_u8"),
        (fixed([1, 2], np.float16), "sorted_f32"),
        (fixed([1, 2], ml_dtypes.bfloat16), "sorted_f32"),
        (fixed([1, 2], np.float64), "sorted_f64"),
        (texts([b"ab", b"abc"]), "sorted_s3"),
    ],
)
def test_a_method_says_what_keys_are(values: Any, method: str) -> None:
    assert opened(values).segment.method == method


def test_nulls_and_nans_have_no_key() -> None:
    values = FixedValues(np.array([3.0, np.nan, 1.0, 2.0]), np.array([True, True, True, False]))
    keys = opened(values)
    assert keys.places(0, keys.values).tolist() == [2, 0]
    nothing = make_sorted_segment(MemoryObjects(), RUNS, [sort_keys(fixed([np.nan], np.float32))])
    assert (nothing.method, nothing.files) == ("empty", ())


def test_a_segment_has_no_more_blocks_than_files_are_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sorted_values, "MOST_BLOCKS", 3)
    keys = opened(fixed(range(100)))
    assert [file.name for file in keys.segment.files] == ["0000", "0001", "0002", FENCES]
    assert keys.places(20, 90).tolist() == list(range(20, 90))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (np.array([0, 1, 3, 2], "<i8").tobytes() + bytes(16), "out of order"),
        (np.arange(4, dtype="<i8").tobytes() + b"\xff" * 16, "a place beyond"),
        (np.arange(4, dtype="<i8").tobytes(), "has 32 bytes"),
    ],
)
def test_a_block_that_cannot_be_one_is_refused(block: bytes, message: str) -> None:
    objects = MemoryObjects()
    keys = opened(fixed(range(8)), objects=objects)
    forged = IndexFile("0000", len(block), (objects.put(Kind.BLOB, block).digest,))
    segment = replace(keys.segment, files=(forged, *keys.segment.files[1:]))
    with pytest.raises(CorruptError, match=message):
        SortedSegment(objects, segment, LimitedCache(1 << 20)).positions([2], "left")


@pytest.mark.parametrize(
    "options", [{}, {"block": 4}, {"block": 8, "values": 8}, {"block": 4, "values": 2000}]
)
def test_a_segment_whose_parts_contradict_each_other_is_refused(options: dict[str, int]) -> None:
    objects = MemoryObjects()
    segment = make_sorted_segment(objects, RUNS, [sort_keys(fixed(range(8)))])
    with pytest.raises(CorruptError, match="contradict"):
        SortedSegment(objects, replace(segment, options=options), LimitedCache(1))


@pytest.mark.parametrize("method", ["sorted_i7", "sorted_s33", "sorted_f16", "ivf_pq"])
def test_keys_of_an_unknown_kind_are_refused(method: str) -> None:
    objects = MemoryObjects()
    segment = make_sorted_segment(objects, RUNS, [sort_keys(fixed(range(8)))])
    with pytest.raises(CorruptError, match=method):
        SortedSegment(objects, replace(segment, method=method), LimitedCache(1)).block(0)


def test_keys_of_another_type_than_the_column_are_refused() -> None:
    for values, wanted in ((fixed(range(8)), b"a"), (texts([b"a"]), 3)):
        with pytest.raises(CorruptError, match="not of the type of its column"):
            opened(values).positions([wanted], "left")


def test_columns_of_one_ordered_value_a_row_are_sortable() -> None:
    for kind in (Scalar("uint8"), Scalar("bfloat16"), Text(), Bytes()):
        check_sortable(Column("x", kind))
    for kind in (Embedding("float32", 3), Image(), Scalar("complex64")):
        with pytest.raises(InvalidInputError, match="an index of kind 'btree' is of a number"):
            check_sortable(Column("x", kind))


def test_the_golden_index_answers_as_the_specification_says() -> None:
    objects = MemoryObjects()
    objects.links[DATASET.digest] = DATASET
    blocks = [(GOLDEN / f"value-index-{name}.bin").read_bytes() for name in ("0000", FENCES)]
    parts = [objects.put(Kind.BLOB, each).digest for each in blocks]
    payload = (GOLDEN / "value-index.bin").read_bytes()
    link = objects.put(Kind.SEARCH_INDEX, payload, sorted({DATASET.digest, *parts}))
    index = open_index(objects, link.digest)
    keys = SortedSegment(objects, index.segments[0], LimitedCache(1 << 20))
    assert (index.kind, keys.segment.method, keys.is_whole) == ("btree", "sorted_i16", True)
    assert blocks == [
        b"\xfe\xff\xfe\xff\1\0\7\0\x2c\1" + np.array([1, 4, 5, 3, 0], "<u4").tobytes(),
        b"\xfe\xff",
    ]
    assert keys.places(*keys.positions([-2, 2], "left").tolist()).tolist() == [1, 4, 5]
