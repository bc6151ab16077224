"""Which rows are deleted survives its packing, in the smaller of two forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.metadata.deletions import (
    BITMAP,
    DATA,
    DELETION_MAGIC,
    OFFSETS,
    RECORD,
    RECORDS,
    Deletions,
    decode_deletion_map,
    encode_deletion_map,
    pack_deletions,
    unpack_deletions,
)
from tensorrepo.formats.dataset.pages.sections import encode_sections
from tensorrepo.repo.errors import CorruptError


@st.composite
def fragments(draw: st.DrawFn) -> tuple[int, list[int]]:
    """Rows of a fragment, and which of them are deleted: at least one."""
    rows = draw(st.integers(1, 400))
    some = st.sets(st.integers(0, rows - 1), min_size=1)
    return rows, sorted(draw(some | st.just(set(range(rows)))))


def _packed(rows: int, deleted: list[int]) -> Deletions:
    return pack_deletions(np.array(deleted, np.int64), rows)


@given(fragments())
def test_deleted_rows_are_those_that_were_packed(drawn: tuple[int, list[int]]) -> None:
    rows, deleted = drawn
    found = unpack_deletions(_packed(rows, deleted), rows)
    assert found.dtype == np.int64
    assert found.tolist() == deleted


@given(fragments())
def test_the_smaller_form_is_taken(drawn: tuple[int, list[int]]) -> None:
    rows, deleted = drawn
    packed = _packed(rows, deleted)
    sizes = {OFFSETS: 4 * len(deleted), BITMAP: -(-rows // 8)}
    assert len(packed.data) == sizes[packed.form] == min(sizes.values())
    assert packed.map_bytes == 16 + len(packed.data)


@given(st.dictionaries(st.integers(0, 2**32 - 1), fragments(), max_size=5))
def test_a_map_holds_the_deletions_of_all_its_fragments(
    drawn: dict[int, tuple[int, list[int]]],
) -> None:
    packed = {at: _packed(*each) for at, each in drawn.items()}
    assert decode_deletion_map(encode_deletion_map(packed), "map") == packed


@pytest.mark.parametrize(
    "deletions",
    [
        Deletions(2, OFFSETS, np.array([1, 1], "<u4").tobytes()),
        Deletions(2, OFFSETS, np.array([2, 1], "<u4").tobytes()),
        Deletions(2, OFFSETS, np.array([1, 9], "<u4").tobytes()),
        Deletions(3, OFFSETS, np.array([1, 2], "<u4").tobytes()),
        Deletions(1, OFFSETS, bytes(5)),
        Deletions(2, BITMAP, bytes([0b111, 0])),
        Deletions(1, BITMAP, bytes([1])),
        Deletions(1, BITMAP, bytes([0, 0b10])),
        Deletions(1, BITMAP, bytes([1, 0, 0])),
    ],
    ids=["twice", "falling", "beyond", "fewer", "more", "odd", "short", "behind the last", "long"],
)
def test_deletions_that_contradict_their_fragment_of_nine_rows_are_corrupt(
    deletions: Deletions,
) -> None:
    with pytest.raises(CorruptError, match="deletion map"):
        unpack_deletions(deletions, 9)


@pytest.mark.parametrize(
    ("records", "data", "reason"),
    [
        ([(0, 1, 2, 4)], bytes(4), "unknown form"),
        ([(1, 1, 0, 4), (0, 1, 0, 4)], bytes(8), "out of order"),
        ([(1, 1, 0, 4), (1, 1, 0, 4)], bytes(8), "out of order"),
        ([(0, 1, 0, 4)], bytes(8), "same bytes"),
        ([(0, 1, 0, 2**32 - 1)], bytes(8), "same bytes"),
    ],
)
def test_maps_that_contradict_themselves_are_corrupt(
    records: list[tuple[int, ...]], data: bytes, reason: str
) -> None:
    sections = {RECORDS: np.array(records, RECORD), DATA: np.frombuffer(data, np.uint8)}
    with pytest.raises(CorruptError, match=reason):
        decode_deletion_map(encode_sections(DELETION_MAGIC, sections), "map")
