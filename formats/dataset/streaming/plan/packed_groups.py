"""Packed items of groups of runs: how many an epoch has of each, before groups are looked into.

What a run has of them depends on the lengths of its rows. Where every row comes once and page
entries tell elements, one pass over the entries counts the items of all groups, and of the pages
nothing stays. Else lengths are kept, 4 bytes a row, and live rows of each run, 4 bytes a run:
whatever rows an epoch has, its items follow without another pass.

Source:
    docs/spec/stream-order.md, section "Packing".
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.pages.page import PAGE_PLAIN
from tensorrepo.formats.dataset.read import StoredDataset, column_index, live_rows, page_reader
from tensorrepo.formats.dataset.reading.page_reader import READ_THREADS
from tensorrepo.formats.dataset.schema.values import offsets_of
from tensorrepo.formats.dataset.streaming.order.items import (
    EveryRow,
    PackedItems,
    Packing,
    RowChoice,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.threads import ordered_map


def page_elements(dataset: StoredDataset, name: str) -> Ints | None:
    """Elements of each page of a ragged column, as the entries say; None where they do not."""
    index = page_reader(dataset, name).index
    telling = np.isin(index.entries["codec"], (PAGE_PLAIN, PAGE_PLAIN + 1))
    telling &= index.entries["stored_bytes"] > 0
    if dataset.root.deleted or index.patches is not None or not telling.all():
        return None
    return index.entries["min"].astype(np.int64)


class PackedCounts(NamedTuple):
    """Items of each group, and elements of all that are no padding."""

    items: Ints
    filled: int


@dataclass(frozen=True, slots=True, eq=False)
class GroupPacking:
    """What is known of the packed items of all groups.

    Attributes:
        packing: size of an item, and lengths of all live rows where `told` is None.
        told: counts of every row once, as pages tell them.
        live: live rows of each run that has some, group after group; with lengths alone.
        first_run: int64 ``(groups + 1,)``, where the runs of each group begin in `live`.
    """

    packing: Packing
    told: PackedCounts | None
    live: NDArray[np.uint32]
    first_run: Ints
    _newest: list[tuple[RowChoice, PackedCounts]] = field(default_factory=list)

    def of_groups(self, choice: RowChoice) -> PackedCounts:
        """The items of an epoch; the newest one asked for is kept."""
        if self.told is not None and isinstance(choice, EveryRow):
            return self.told
        for known, counts in self._newest:
            if known is choice or (isinstance(known, EveryRow) and isinstance(choice, EveryRow)):
                return counts
        counts = self._counted(choice)
        self._newest[:] = [(choice, counts)]
        return counts

    def _counted(self, choice: RowChoice) -> PackedCounts:
        items = np.zeros(len(self.first_run) - 1, np.int64)
        first_row = filled = 0
        for group in range(len(items)):
            live = self.live[slice(*self.first_run[group : group + 2])].astype(np.int64)
            firsts = first_row + offsets_of(live)
            elements = self._elements(firsts[:-1], live, choice)
            items[group], filled = self._items(elements).sum(), filled + int(elements.sum())
            first_row = int(firsts[-1])
        return PackedCounts(items, filled)

    def _elements(self, first_row: Ints, live: Ints, choice: RowChoice) -> Ints:
        chosen = None if isinstance(choice, EveryRow) else choice
        return self.packing.elements(np.zeros(0, np.int64), first_row, live, chosen)

    def _items(self, elements: Ints) -> Ints:
        return -(-elements // self.packing.size)

    def of_runs(
        self, part: StoredDataset, name: str, pages: Ints, first_row: Ints, live: Ints,
        choice: RowChoice,
    ) -> tuple[Ints, Ints]:  # fmt: skip
        """Elements and items of runs of a group, which is `part`: its `pages`, where these tell."""
        told = page_elements(part, name) if self.packing.lengths is None else None
        elements = self._elements(first_row, live, choice) if told is None else told[pages]
        return elements, self._items(elements)

    def items(self, runs: Ints, counts: Ints, elements: Ints, choice: RowChoice) -> PackedItems:
        """The items of an epoch whose runs are known by slots."""
        groups = self.of_groups(choice)
        chosen = None if isinstance(choice, EveryRow) else choice
        total = int(groups.items.sum())
        size = self.packing.size
        return PackedItems(runs, counts, size, elements, chosen, total, groups.filled)


GROUPS_TOGETHER = 4  # are counted at once: what a look at an index costs is shared


def told_by_pages(
    size: int, parts: Iterable[tuple[StoredDataset, Ints]], name: str
) -> GroupPacking | None:
    """The packing of every row once, if all pages tell elements.

    `parts` are groups in order, some of them at a time as one dataset, and the rows of each.
    """
    items, filled = [np.zeros(0, np.int64)], 0
    work = partial(_items_told, size=size, name=name)
    # Side by side, so that a store answers several groups at once.
    with closing(ordered_map(parts, work, threads=READ_THREADS, name="groups")) as told:
        for counts in told:
            if counts is None:
                return None
            items.append(counts.items)
            filled += counts.filled
    counted = PackedCounts(np.concatenate(items), filled)
    packing = Packing(size, None, np.zeros(0, np.int64))
    return GroupPacking(packing, counted, np.zeros(0, np.uint32), np.zeros(1, np.int64))


def _items_told(part: tuple[StoredDataset, Ints], size: int, name: str) -> PackedCounts | None:
    """Items of each of some groups that are one dataset; None where a page does not tell."""
    dataset, rows = part
    elements = page_elements(dataset, name)
    if elements is None:
        return None
    first_page = np.searchsorted(column_index(dataset, name).first_row, offsets_of(rows)[:-1])
    items = np.add.reduceat(-(-elements // size), first_page)
    return PackedCounts(items, int(elements.sum()))


def by_lengths(
    size: int, lengths: NDArray[np.uint32], parts: Iterable[StoredDataset], name: str
) -> GroupPacking:
    """The packing of rows of these lengths, of groups one after the other."""
    work = partial(_live, name=name)
    live = list(ordered_map(parts, work, threads=READ_THREADS, name="groups"))
    packing = Packing(size, lengths, np.zeros(0, np.int64))
    first_run = offsets_of(np.array([len(each) for each in live], np.int64))
    return GroupPacking(packing, None, np.concatenate(live), first_run)


def _live(part: StoredDataset, name: str) -> NDArray[Any]:
    """Live rows of each page that has some."""
    bounds = column_index(part, name).first_row
    live: NDArray[Any] = np.diff(live_rows(part).live_bounds(bounds)).astype(np.uint32)
    return live[live > 0]
