"""Pages that are looked up together give what each gives by itself, and are proved no less."""

from __future__ import annotations

import numpy as np
import pytest

from tensorrepo.formats.common.buffer_codecs import Codec
from tensorrepo.formats.dataset.metadata.index import ColumnIndex
from tensorrepo.formats.dataset.reading import plain_pages
from tensorrepo.formats.dataset.reading.page_reader import DecodedPageCache, PageReader
from tensorrepo.formats.dataset.schema.schema import Column, Tensor
from tensorrepo.repo.errors import CorruptError
from tests.support.builders.columns import MappedObjects, Pages, presented
from tests.support.faults.damage import flipped

WIDE = Column("x", Tensor("float32", (100,)), nullable=True)
NARROW = Column("x", Tensor("uint8", (100,)), nullable=True)
ROWS = [np.full(100, at, np.float32) for at in range(7)]


def _reader(index: ColumnIndex, objects: MappedObjects) -> PageReader:
    return PageReader(objects, index, "x", DecodedPageCache())


@pytest.mark.parametrize("patches", [None, {1: ROWS[6], 12: None}])
@pytest.mark.parametrize("at_once", [1, 4096, 1 << 20])
def test_every_form_of_a_page_is_scanned_as_it_is_read(
    patches: dict[int, object] | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_pages, "BYTES_AT_ONCE", at_once)
    objects = MappedObjects()
    pages = Pages(objects, WIDE)
    pages.add(ROWS)
    pages.add([ROWS[0], None, ROWS[2]])
    pages.add_missing(4)
    pages.add(ROWS, Codec.ZSTD)
    pages.add([row.astype(np.uint8) for row in ROWS], column=NARROW)
    pages.add(ROWS[:3])
    index = pages.index(default=ROWS[5], patches=patches)
    whole, single = _reader(index, objects), _reader(index, objects)
    for order in (range(index.pages), [5, 0, 3, 1]):
        for patched in (True, False):
            found = list(whole.scan(order, patched=patched))
            wanted = [single.values(at) if patched else single.unpatched(at) for at in order]
            for one, two in zip(found, wanted, strict=True):
                assert all(map(np.array_equal, presented(WIDE, one), presented(WIDE, two)))


def test_a_damaged_page_is_named_after_the_pages_before_it() -> None:
    objects = MappedObjects()
    pages = Pages(objects, WIDE)
    for _ in range(3):
        pages.add(ROWS)
    index = pages.index()
    (digest,) = objects.stored
    place = objects.stored[digest].rindex(ROWS[4].tobytes())  # in the last page
    objects.stored[digest] = flipped(objects.stored[digest], place, 1)
    found = _reader(index, objects).scan(range(3))
    assert [next(found).rows, next(found).rows] == [7, 7]
    with pytest.raises(CorruptError, match=r"page 2 \(rows 14 to 21\) .*checksum"):
        next(found)


@pytest.mark.parametrize("rows", [8, 2**32 - 1])
def test_a_page_that_is_not_what_its_entry_promises_is_refused(rows: int) -> None:
    """Its bytes are proved: only what the index says of them is wrong, as a forger would write."""
    objects = MappedObjects()
    pages = Pages(objects, WIDE)
    pages.add(ROWS)
    pages.add(ROWS)
    pages.entries[1]["rows"] = rows
    found = _reader(pages.index(), objects).scan(range(2))
    assert next(found).rows == 7
    with pytest.raises(CorruptError, match="page entry promises"):
        next(found)
