"""How do the bytes of a run become rows in memory, verified?

One run is loaded as a whole: its rows of every requested column. Pages that a local disk or the
metadata holds are compared with their xxh3 every time a run is opened, so in every epoch; pages of
a store with their truncated BLAKE3, as they arrive. Uncompressed pages of a local disk are used
where the map shows them.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.dataset.columns.values import ColumnValues, FixedValues, concat
from tensorrepo.formats.dataset.pages.page import (
    PAGE_COMPRESSED,
    decode_page,
    verify_page,
)
from tensorrepo.formats.dataset.read import live_rows, page_bytes, page_reader
from tensorrepo.formats.dataset.streaming.batching.gather import (
    InMemory,
    address_of,
    in_memory,
)
from tensorrepo.formats.dataset.streaming.fetching.mapped import MappedPages
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.objects import Link

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.read import Dataset
    from tensorrepo.formats.dataset.streaming.ordering.plan import ColumnPlan, Plan

_PAGES_KEPT = 8  # of a column whose pages hold rows of several runs


class RunLoader:
    """Loads the runs of a plan. Thread-safe."""

    def __init__(self, dataset: Dataset, plan: Plan) -> None:
        self._columns = [
            _ColumnLoader(
                dataset,
                column,
                plan,
                nullable=dataset.schema.column(column.name).nullable,
            )
            for column in plan.columns
        ]

    @property
    def is_local(self) -> bool:
        """Whether loading is a matter of memory, not of a network."""
        return all(column.is_local for column in self._columns)

    @property
    def is_in_place(self) -> bool:
        """Whether loading is little more than verifying."""
        return all(column.is_in_place for column in self._columns)

    def load(self, runs: list[int]) -> list[list[InMemory]]:
        """All rows of some runs, column by column in the order of the plan.

        Raises:
            CorruptError: a page is not what its entry says; the message names it.
            StorageError, NotFoundError: it could not be read.
        """
        return [column.load(np.array(runs)) for column in self._columns]


class _ColumnLoader:
    def __init__(self, dataset: Dataset, plan: ColumnPlan, runs: Plan, *, nullable: bool) -> None:
        self._dataset = dataset
        self._plan = plan
        self._start, self._stop = runs.start, runs.stop
        self._nullable = nullable
        self._deleted = live_rows(dataset)
        self._reader = page_reader(dataset, plan.name)
        self._changed = self._runs_that_changed(runs)
        self._most = plan.index.pages if plan.reading == "resident" else _PAGES_KEPT
        self._kept: OrderedDict[int, tuple[ColumnValues, int]] = OrderedDict()
        self._lock = Lock()
        chunks = plan.index.chunks
        stored = next((chunk for chunk in chunks if isinstance(chunk, Link)), None)
        self.is_local = stored is None or dataset.objects.map(stored) is not None
        self._row_bytes = plan.index.storage.row_bytes
        entries = plan.index.entries
        self._offset, self._stored_bytes = entries["offset"], entries["stored_bytes"]
        self._checksum = entries["checksum"]
        self._mapped = MappedPages(self._reader, self._located)
        in_place = self.is_local and not nullable
        self._used_in_place = self._mapped.usable() & np.bool_(in_place)

    @property
    def is_in_place(self) -> bool:
        return self._plan.reading == "resident" or bool(self._used_in_place.all())

    def load(self, runs: NDArray[np.int64]) -> list[InMemory]:
        """The rows of `runs` in this column."""
        pages = self._plan.first_page[runs]
        if not (self._plan.stop_page[runs] == pages + 1).all() or self._changed[runs].any():
            return [self._copied(run) for run in runs.tolist()]
        if self._plan.reading == "resident":
            return self._resident(runs, pages)
        if self._plan.reading != "page" and self._used_in_place[pages].all():
            rows = self._stop[runs] - self._start[runs]
            return [self._mapped.values(runs, rows, pages)]
        return [self._copied(run) for run in runs.tolist()]

    def _copied(self, run: int) -> InMemory:
        """One run, decoded, or put together from parts of pages."""
        start, stop = self._start.item(run), self._stop.item(run)
        if self._changed[run]:
            return in_memory(run, self._live_values(start, stop), nullable=self._nullable)
        pages = range(self._plan.first_page.item(run), self._plan.stop_page.item(run))
        if self._plan.reading in ("leading", "whole"):
            parts = [self._page(page) for page in pages]
        else:
            # Copies, so that a few rows do not keep pages that nobody else needs.
            parts = [self._part(page, start, stop).copy() for page in pages]
        return in_memory(run, concat(parts), nullable=self._nullable)

    # ------------------------------------------------------------------ runs that changed

    def _runs_that_changed(self, runs: Plan) -> NDArray[np.bool_]:
        """Runs whose rows are not just those of their pages."""
        index = self._plan.index
        changed: NDArray[np.bool_] = runs.live != runs.stop - runs.start
        if index.patches is not None:
            bounds = np.searchsorted(index.patches.rows, np.stack([runs.start, runs.stop]))
            changed |= bounds[0] < bounds[1]
        plain = (index.entries["codec"] <= PAGE_COMPRESSED) & (index.entries["stored_bytes"] > 0)
        odd = ~(plain & (index.stored_as == 0))
        if odd.any():
            odd_before = np.concatenate(([0], np.cumsum(odd)))
            first_page, stop_page = self._plan.first_page, self._plan.stop_page
            changed |= odd_before[stop_page] > odd_before[first_page]
        return changed

    def _live_values(self, start: int, stop: int) -> ColumnValues:
        """Rows as readers see them: patched, converted, without the deleted ones."""
        values = concat(self._reader.range(start, stop))
        alive = None if self._deleted is None else self._deleted.alive(start, stop)
        return values if alive is None else values.take(alive)

    # ------------------------------------------------------------------ pages of several runs

    def _resident(self, runs: NDArray[np.int64], pages: NDArray[np.int64]) -> list[InMemory]:
        index, rows = self._plan.index, self._stop[runs] - self._start[runs]
        first = self._start[runs] - index.first_row[pages]
        shared = [self._shared_page(page) for page in pages.tolist()]
        if all(address for _, address in shared):
            at = np.array([address for _, address in shared]) + first * self._row_bytes
            return [InMemory(runs, rows, at, None, None, None, [(values,) for values, _ in shared])]
        bounds = zip(runs.tolist(), shared, first.tolist(), rows.tolist(), strict=True)
        return [
            in_memory(run, values.slice(start, start + count), nullable=self._nullable)
            for run, (values, _), start, count in bounds
        ]

    def _part(self, page: int, start: int, stop: int) -> ColumnValues:
        before = self._plan.index.first_row.item(page)
        return self._shared_page(page)[0].slice(max(start - before, 0), stop - before)

    def _shared_page(self, page: int) -> tuple[ColumnValues, int]:
        """A page, and the address of its values when that is all there is to know of them."""
        with self._lock:  # also while it loads: others that want it wait instead of reading it too
            found = self._kept.get(page)
            if found is None:
                values, address = self._page(page), 0
                if isinstance(values, FixedValues) and not self._nullable and values.nbytes:
                    values = FixedValues(np.ascontiguousarray(values.values))
                    address = address_of(values.values)
                found = self._kept[page] = values, address
                if len(self._kept) > self._most:
                    self._kept.popitem(last=False)
            return found

    # ------------------------------------------------------------------ one page

    def _page(self, page: int) -> ColumnValues:
        return self._decoded(page, page_bytes(self._dataset, self._plan.index, page))

    def _decoded(self, page: int, stored: memoryview) -> ColumnValues:
        entry = self._plan.index.entries[page]
        try:
            if self.is_local:
                verify_page(stored, entry)  # `page_bytes` proves a mapped page once per process
            return decode_page(stored, entry, self._plan.index.storage)
        except CorruptError as error:
            raise self._located(page, error) from error

    def _located(self, page: int, error: CorruptError) -> CorruptError:
        rows = self._plan.index.first_row[page : page + 2].tolist()
        return CorruptError(
            f"column {self._plan.name!r}, page {page} (rows {rows[0]} to {rows[1]}) of dataset "
            f"{self._dataset.digest:.12}: {error}"
        )
