"""How do the bytes of a run become values, verified?

One run is loaded as a whole: its rows of every requested column. Pages that a local disk or the
metadata holds are compared with their xxh3 every time a run is opened, so in every epoch; pages of
a store with their truncated BLAKE3, as they arrive.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.dataset.page import decode_page, verify_page
from tensorrepo.formats.dataset.read import page_bytes, read_leaf
from tensorrepo.formats.dataset.values import concat
from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.plan import ColumnPlan, Plan
    from tensorrepo.formats.dataset.read import Dataset
    from tensorrepo.formats.dataset.values import ColumnValues

ROW_ID = np.dtype([("fragment", "<u8"), ("offset", "<u4")])
_PAGES_KEPT = 8  # of a column whose pages hold rows of several runs


class RunLoader:
    """Loads the runs of a plan. Thread-safe."""

    def __init__(self, dataset: Dataset, plan: Plan) -> None:
        self._first_row = plan.first_row
        self._columns = [_ColumnLoader(dataset, column) for column in plan.columns]

    @property
    def is_local(self) -> bool:
        """Whether loading is a matter of memory, not of a network."""
        return all(column.is_local for column in self._columns)

    def load(self, run: int) -> tuple[ColumnValues, ...]:
        """All rows of one run, column by column in the order of the plan.

        Raises:
            CorruptError: a page is not what its entry says; the message names it.
            StorageError, NotFoundError: it could not be read.
        """
        start, stop = self._first_row[run : run + 2].tolist()
        return tuple(column.load(run, start, stop) for column in self._columns)


class _ColumnLoader:
    def __init__(self, dataset: Dataset, plan: ColumnPlan) -> None:
        self._dataset = dataset
        self._plan = plan
        self._most = plan.index.pages if plan.reading == "resident" else _PAGES_KEPT
        self._kept: OrderedDict[int, ColumnValues] = OrderedDict()
        self._lock = Lock()
        chunks = plan.index.chunks
        stored = next((chunk for chunk in chunks if not isinstance(chunk, memoryview)), None)
        self.is_local = stored is None or dataset.objects.map(stored) is not None

    def load(self, run: int, start: int, stop: int) -> ColumnValues:
        """The rows ``[start, stop)`` of the dataset, which are those of `run`."""
        first, last = int(self._plan.first_page[run]), int(self._plan.stop_page[run])
        if self._plan.reading in ("leading", "whole"):
            return concat([self._page(page) for page in range(first, last)])
        parts = []
        for page in range(first, last):
            before = int(self._plan.index.first_row[page])
            part = self._shared_page(page).slice(max(start - before, 0), stop - before)
            # A copy, so that a few rows do not keep a page that nobody else needs.
            parts.append(part if self._plan.reading == "resident" else part.copy())
        return concat(parts)

    def _shared_page(self, page: int) -> ColumnValues:
        with self._lock:  # also while it loads: others that want it wait instead of reading it too
            found = self._kept.get(page)
            if found is None:
                found = self._kept[page] = self._page(page)
                if len(self._kept) > self._most:
                    self._kept.popitem(last=False)
            return found

    def _page(self, page: int) -> ColumnValues:
        index = self._plan.index
        entry = index.entries[page]
        stored = page_bytes(self._dataset, index, page)
        try:
            if self.is_local:
                verify_page(stored, entry)  # `page_bytes` proves a mapped page once per process
            return decode_page(stored, entry, index.storage)
        except CorruptError as error:
            rows = index.first_row[page : page + 2].tolist()
            raise CorruptError(
                f"column {self._plan.name!r}, page {page} (rows {rows[0]} to {rows[1]}) of dataset "
                f"{self._dataset.digest:.12}: {error}"
            ) from error


class RowIds:
    """Which fragment and offset a row of the dataset has. Thread-safe; reads when first asked."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._table: tuple[NDArray[np.uint64], NDArray[np.int64]] | None = None
        self._lock = Lock()

    def of(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Row ids, ROW_ID ``(len(rows),)``: they stay the same when the dataset grows."""
        with self._lock:
            if self._table is None:
                self._table = self._read()
            uids, first = self._table
        fragment = np.searchsorted(first, rows, side="right") - 1
        found = np.empty(len(rows), ROW_ID)
        found["fragment"], found["offset"] = uids[fragment], rows - first[fragment]
        return found

    def _read(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        leaves = [read_leaf(self._dataset, entry)[0] for entry in self._dataset.root.leaves]
        uids = [leaf.fragments["uid"] for leaf in leaves]
        rows = [leaf.fragments["rows"].astype(np.int64) for leaf in leaves]
        first = np.cumsum(np.concatenate([np.zeros(1, dtype=np.int64), *rows]))[:-1]
        return np.concatenate([np.zeros(0, dtype=np.uint64), *uids]), first
