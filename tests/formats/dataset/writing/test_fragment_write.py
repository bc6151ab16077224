"""Pages of one column of one fragment, waiting or stored."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tensorrepo.formats.dataset.metadata.boundaries import ColumnPart, WaitingPage
from tensorrepo.formats.dataset.metadata.chunk import decode_footer
from tensorrepo.formats.dataset.metadata.index import ColumnPages
from tensorrepo.formats.dataset.metadata.span_write import SpanWriter
from tensorrepo.formats.dataset.schema.schema import Column, Scalar
from tensorrepo.formats.dataset.schema.values import FixedValues
from tensorrepo.formats.dataset.writing.column_write import ColumnPartWriter
from tests.support.builders.objects import MemoryObjects

COLUMN = Column("c", Scalar("int64"), id="00000000000000aa")


def _written(waiting_bytes: int) -> tuple[ColumnPart, MemoryObjects, list[WaitingPage]]:
    """Ten pages of 100 rows; and the pages that were counted."""
    objects, counted = MemoryObjects(), []
    with ThreadPoolExecutor(1) as encoders, ThreadPoolExecutor(1) as storers:
        spans = SpanWriter(objects, storers, 1 << 20, lambda _, page: counted.append(page))
        writer = ColumnPartWriter(
            spans, COLUMN, 3, 77, encoders=encoders, waiting_bytes=waiting_bytes
        )
        for page in range(10):
            writer.add(FixedValues(np.arange(100) + 100 * page))
        assert (writer.rows, writer.nbytes) == (1000, 8000)
        return writer.finish(), objects, counted


def test_few_pages_wait_for_a_chunk_with_others() -> None:
    part, objects, counted = _written(1 << 20)
    assert not isinstance(part.pages, ColumnPages)
    assert [page.first_row for page in part.pages] == list(range(0, 1000, 100))
    assert (objects.stored, counted) == ({}, [])


@pytest.mark.parametrize("waiting_bytes", [1, 2000, 8000])
def test_many_pages_go_into_chunks_as_they_come(waiting_bytes: int) -> None:
    part, objects, counted = _written(waiting_bytes)
    assert isinstance(part.pages, ColumnPages)
    assert part.pages.entries["first_row"].tolist() == list(range(0, 1000, 100))
    assert set(part.chunks) == set(objects.stored)
    assert [page.fragment for page in counted] == [3] * 10
    footers = [decode_footer(objects.get(chunk).payload) for chunk in part.chunks]
    assert sum(len(footer[0][2]) for footer in footers) == 10
