"""Scan bands: a buffer of pictures, its beginnings, and what hostile bytes make of it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.buffer_codecs import decode_buffer
from tensorrepo.formats.dataset.pages.page import (
    IN_BANDS,
    PAGE_COMPRESSED,
    PAGE_PREVIEW,
    decode_page,
    encode_page,
)
from tensorrepo.formats.dataset.pages.scan_bands import (
    PREVIEW,
    SCANS,
    decode_preview,
    decode_scans,
    encode_scans,
)
from tensorrepo.formats.dataset.schema.types import Bytes, storage_of
from tensorrepo.formats.dataset.schema.values import BinaryValues, binary_of
from tensorrepo.formats.images.progressive import BANDS, arranged, preview
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tests.support.builders.jpegs import baseline, progressive

PICTURES = [
    baseline(40, 56, seed=1),
    b"no picture",
    progressive(48, 48, seed=2),
    b"",
    baseline(64, 33, ((1, 1),), seed=3, interval=2),
]


def rows_of(values: BinaryValues) -> list[bytes]:
    bounds = values.offsets.tolist()
    return [values.data[start:stop].tobytes() for start, stop in pairwise(bounds)]


def values_of(pictures: list[bytes]) -> BinaryValues:
    found = binary_of(list(pictures))
    assert isinstance(found, BinaryValues)
    return found


VALUES = values_of(PICTURES)
BUFFER = encode_scans(VALUES)
assert BUFFER is not None
STORED = BUFFER.data.tobytes()


def test_pictures_come_back() -> None:
    data = decode_scans(memoryview(STORED), VALUES.offsets)
    assert rows_of(BinaryValues(VALUES.offsets, data)) == PICTURES


def test_each_preview_is_the_beginning_of_its_page() -> None:
    storage = storage_of(Bytes())
    page = encode_page(VALUES, storage, IN_BANDS)
    assert page.entry["codec"] == PAGE_COMPRESSED
    records = np.frombuffer(page.previews, PREVIEW)
    for band in range(BANDS):
        entry, record = page.entry.copy(), records[band]
        beginning = page.data[: int(record["stored_bytes"])].data
        before = -(-int(entry["min"]) // 64) * 64
        after = -(-int(record["data_bytes"]) // 64) * 64
        entry["raw_bytes"] = int(entry["raw_bytes"]) + after - before
        entry["codec"], entry["min"] = PAGE_PREVIEW, record["data_bytes"]
        found = decode_page(beginning, entry, storage)
        assert isinstance(found, BinaryValues)
        shown = [arranged(each) for each in PICTURES]
        assert rows_of(found) == [
            preview(each.kind, b"".join(each.bands[: band + 1])) for each in shown
        ]
        assert record["plain"] == 1  # an empty row is none
        assert record["least_side"] == 33


def test_no_scans_are_made_where_no_row_is_such_a_picture() -> None:
    assert encode_scans(values_of([b"", b"no picture"])) is None


def test_scans_are_of_pages_alone() -> None:
    with pytest.raises(UnsupportedError, match="codec 4"):
        decode_buffer(SCANS, memoryview(STORED), 100, 1)


def test_other_numbers_of_bands_are_of_later_versions() -> None:
    changed = bytearray(STORED)
    changed[4] = BANDS + 1
    with pytest.raises(UnsupportedError, match="bands"):
        decode_scans(memoryview(changed), VALUES.offsets)


@pytest.mark.parametrize("stop", [0, 15, 16, 100, 500, len(STORED) - 1])
def test_buffers_that_are_cut_short_are_damaged(stop: int) -> None:
    with pytest.raises(CorruptError):
        decode_scans(memoryview(STORED[:stop]), VALUES.offsets)


def test_rows_of_other_lengths_are_damage() -> None:
    offsets = VALUES.offsets.copy()
    offsets[1] += 1
    with pytest.raises(CorruptError, match="bytes"):
        decode_scans(memoryview(STORED), offsets)


@given(st.data())
def test_hostile_buffers_are_errors_or_rows_of_the_right_lengths(more: st.DataObject) -> None:
    changed = bytearray(STORED)
    for _ in range(more.draw(st.integers(1, 3))):
        head = more.draw(st.booleans())
        at = more.draw(st.integers(0, min(200, len(changed) - 1) if head else len(changed) - 1))
        changed[at] = more.draw(st.integers(0, 255))
    if more.draw(st.booleans()):
        changed = changed[: more.draw(st.integers(0, len(changed)))]
    try:
        data = decode_scans(memoryview(changed), VALUES.offsets)
        assert len(data) == int(VALUES.offsets[-1])
    except (CorruptError, UnsupportedError):
        pass
    try:
        offsets, small = decode_preview(memoryview(changed), len(PICTURES), 1000)
        assert int(offsets[-1]) == len(small) == 1000
    except (CorruptError, UnsupportedError):
        pass
