"""How are ragged rows cut into items of one size?

The chosen rows of a run, one after the other, are one line of elements. Every `size` elements of it
are an item; the last item of a run is padded. So an item never needs more than one run, a run is
read once, and counts are known from the page entries without reading data. Where rows were deleted,
patched, chosen or weighted, the lengths of the rows must be known instead.

Source:
    docs/spec/stream-order.md, section "Packing".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.dataset.columns.values import offsets_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.streaming.ordering.choice import Choice

_ROWS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Items of `size` elements.

    Attributes:
        size: elements of an item.
        lengths: uint32, of every live row of the dataset; None where pages tell all.
        page_elements: int64, elements of each page of the column, which `lengths` None needs.
    """

    size: int
    lengths: NDArray[np.uint32] | None
    page_elements: NDArray[np.int64]

    def elements(
        self,
        pages: NDArray[np.int64],
        first_row: NDArray[np.int64],
        live: NDArray[np.int64],
        choice: Choice | None,
    ) -> NDArray[np.int64]:
        """Elements of each run: the page `pages`, of the live rows from `first_row` on."""
        if self.lengths is None:
            return self.page_elements[pages]
        found = np.zeros(len(live), np.int64)
        ends = offsets_of(live)
        at = 0
        while at < len(live):
            stop = max(at + 1, int(np.searchsorted(ends, ends[at] + _ROWS_AT_ONCE, "right")) - 1)
            found[at:stop] = self._elements(first_row[at:stop], live[at:stop], choice)
            at = stop
        return found

    def _elements(
        self, first_row: NDArray[np.int64], live: NDArray[np.int64], choice: Choice | None
    ) -> NDArray[np.int64]:
        assert self.lengths is not None, "pages do not tell"
        start, stop = int(first_row[0]), int(first_row[-1] + live[-1])
        lengths = self.lengths[start:stop].astype(np.int64)
        if choice is not None:
            lengths *= choice.counts(start, stop)
        before = offsets_of(lengths)
        found: NDArray[np.int64] = before[first_row + live - start] - before[first_row - start]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class PackedItems:
    """Items that are elements ``[item * size, (item + 1) * size)`` of a run's line of elements.

    `elements` are those of each run, `choice` says how often each row stands in its line.
    """

    runs: NDArray[np.int64]
    counts: NDArray[np.int64]
    size: int
    elements: NDArray[np.int64]
    choice: Choice | None

    def rows(self, run: NDArray[np.int64], item: NDArray[np.int64]) -> NDArray[np.int64]:  # noqa: ARG002 items count within their run already
        return item


def packed_items(
    packing: Packing,
    pages: NDArray[np.int64],
    first_row: NDArray[np.int64],
    live: NDArray[np.int64],
    choice: Choice | None,
) -> PackedItems:
    """The items of runs; those without elements have none."""
    elements = packing.elements(pages, first_row, live, choice)
    runs = np.flatnonzero(elements)
    counts = -(-elements[runs] // packing.size)
    return PackedItems(runs, counts, packing.size, elements[runs], choice)
