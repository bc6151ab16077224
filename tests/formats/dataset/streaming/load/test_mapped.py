"""Rows used where a map shows them: proved in every epoch, by whole pages, then row by row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensorrepo.formats.common.pool import Pool
from tensorrepo.formats.dataset.pages import page
from tensorrepo.formats.dataset.read import StoredDataset, column_index, page_reader
from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Schema, Tensor
from tensorrepo.formats.dataset.schema.values import FixedValues
from tensorrepo.formats.dataset.streaming.collate.gather import InMemory, RunValues, WantedRows
from tensorrepo.formats.dataset.streaming.load.loaders import MappedPages
from tensorrepo.formats.native.rows import BEST, RowCopier
from tensorrepo.repo.errors import CorruptError
from tests.support.builders.datasets import stored
from tests.support.builders.native import COPIERS, needs_native
from tests.support.builders.streams import MappedObjects, stream

EVERY = pytest.mark.parametrize("copier", COPIERS)
WIDTH = 100  # floats: 400 bytes, enough for a sum of its own
SCHEMA = Schema((Column("x", Tensor("float32", (WIDTH,))), Column("small", Scalar("int64"))))
COUNT = 100


class Disk:
    """A dataset on a disk whose bytes can be changed while it is mapped."""

    def __init__(self) -> None:
        self.objects = MappedObjects()
        rows = [{"x": np.full(WIDTH, at, np.float32), "small": at} for at in range(COUNT)]
        self.dataset: StoredDataset = stored(self.objects, SCHEMA, [rows], page_bytes=8192)
        self.bytes = {digest: bytearray(data) for digest, data in self.objects.stored.items()}
        self.objects.stored = self.bytes  # type: ignore[assignment]
        self.index = column_index(self.dataset, "x")

    def page(self, page: int) -> memoryview:
        """The bytes of one page of x, writable."""
        chunk = self.index.chunks[self.index.chunk[page]]
        assert chunk is not None
        assert not isinstance(chunk, memoryview)
        data = self.bytes[chunk.digest]
        entry = self.index.entries[page]
        start = len(data) - int.from_bytes(data[16:24], "little") + int(entry["offset"])
        return memoryview(data)[start : start + int(entry["stored_bytes"])]

    def pages(self, copier: RowCopier) -> MappedPages:
        return MappedPages(page_reader(self.dataset, "x"), copier=copier)

    def opened(self, pages: MappedPages) -> InMemory:
        """All pages, each a run of its own."""
        every = np.arange(self.index.pages)
        return pages.values(every, self.rows, every)

    @property
    def rows(self) -> NDArray[np.int64]:
        return self.index.entries["rows"].astype(np.int64)

    def read(self, pages: MappedPages, copier: RowCopier) -> NDArray[np.float32]:
        """Every row, in order."""
        rows = self.rows
        values = RunValues(rows, self.index.storage, nullable=False, copier=copier)
        values.open(self.opened(pages))
        run = np.repeat(np.arange(rows.size), rows)
        row = np.concatenate([np.arange(count) for count in rows.tolist()])
        found = values.gather(WantedRows(run, row), Pool())
        assert isinstance(found, FixedValues)
        return found.values


@EVERY
@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_rows_are_those_that_were_written(copier: RowCopier, epochs: int) -> None:
    disk = Disk()
    found = [disk.read(disk.pages(copier), copier) for _ in range(epochs)]
    expected = np.repeat(np.arange(COUNT, dtype=np.float32), WIDTH).reshape(COUNT, WIDTH)
    assert np.array_equal(np.stack(found), np.stack([expected] * epochs))


@EVERY
@pytest.mark.parametrize("epochs", [0, 1, 2])
@given(at=st.integers(0, 8191), page=st.integers(0, 4))
def test_no_damage_to_rows_or_sums_is_handed_out_whenever_it_comes(
    copier: RowCopier, epochs: int, at: int, page: int
) -> None:
    disk = Disk()
    for _ in range(epochs):
        disk.read(disk.pages(copier), copier)
    data = disk.page(page)
    values_and_sums = range(64, 64 + int(disk.rows[page]) * (4 * WIDTH))
    data[values_and_sums[at % len(values_and_sums)]] ^= 0x20
    with pytest.raises(CorruptError, match=rf"page {page} \(rows .*: page has checksum"):
        disk.read(disk.pages(copier), copier)


@EVERY
@pytest.mark.parametrize("epochs", [0, 1])
def test_a_page_that_lies_in_the_place_of_another_is_not_handed_out(
    copier: RowCopier, epochs: int
) -> None:
    disk = Disk()
    for _ in range(epochs):
        disk.read(disk.pages(copier), copier)
    assert disk.rows[0] == disk.rows[1]
    disk.page(1)[:] = disk.page(0)  # rows and sums agree with each other
    with pytest.raises(CorruptError, match=r"page 1 \(rows .*: page has checksum"):
        disk.read(disk.pages(copier), copier)


@needs_native
def test_damage_between_opening_a_run_and_gathering_its_rows_is_found() -> None:
    disk = Disk()
    copier = BEST
    pages = disk.pages(copier)
    values = RunValues(disk.rows, disk.index.storage, nullable=False, copier=copier)
    values.open(disk.opened(pages))
    disk.page(2)[64] ^= 1
    wanted = WantedRows(np.array([1, 2]), np.array([0, 0]))
    with pytest.raises(CorruptError, match=r"page 2 \(rows .*: page has checksum"):
        values.gather(wanted, Pool())


@needs_native
def test_a_row_that_was_wrong_for_a_moment_is_not_handed_out() -> None:
    disk = Disk()
    pages = disk.pages(BEST)
    where = disk.opened(pages)
    assert where.prove is not None
    with pytest.raises(
        CorruptError, match=r"page 3 \(rows .*: row 5 of the page is not what its sum says"
    ):
        where.prove(3, 5)


@EVERY
def test_nothing_is_read_behind_the_end_of_a_file_that_was_cut(copier: RowCopier) -> None:
    disk = Disk()
    disk.read(disk.pages(copier), copier)
    last = disk.index.pages - 1
    chunk = disk.index.chunks[disk.index.chunk[last]]
    end = int(disk.index.entries["offset"][last]) + 100
    whole = disk.objects.map

    def cut(link: object) -> memoryview | None:
        found = whole(link)  # type: ignore[arg-type]
        return found if found is None or link != chunk else found[:end]

    disk.objects.map = cut  # type: ignore[method-assign]
    with pytest.raises(CorruptError, match=f"page {last}"):
        disk.read(disk.pages(copier), copier)


def test_sums_of_rows_that_are_too_small_for_the_kernel_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "SUMMED_ROW_BYTES", 64)  # as another writer may choose
    schema = Schema((Column("x", Tensor("float32", (32,))),))
    rows = [{"x": np.full(32, at, np.float32)} for at in range(COUNT)]
    ds = stored(MappedObjects(), schema, [rows], page_bytes=4096)
    assert (column_index(ds, "x").entries["flags"] & page.HAS_ROW_SUMS).all()
    found = [batch["x"][:, 0] for batch in stream(ds, batch_size=8, shuffle=False)]
    assert np.concatenate(found).tolist() == list(range(COUNT))


def test_streams_say_what_gathers_their_rows() -> None:
    found = stream(Disk().dataset, batch_size=8)
    assert found.stats().kernel == BEST.name
