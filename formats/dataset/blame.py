"""Blame of one row: the commits that gave it its present values.

History is walked back from a version, always towards a parent that has the same value. Of two
versions only what differs is looked at: where leaves, pages and patches are the same, so is the
cell. Rows are followed by id, so compaction hides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.dataset.metadata.row_ids import format_row_id
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, row_id_table
from tensorrepo.formats.dataset.versions.changed_cells import ColumnComparer
from tensorrepo.formats.dataset.versions.match import NarrowedDataset, Stretches, narrow
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.ids import Digest

ROW = ""  # stands for the row itself among ids of columns


@dataclass(frozen=True, slots=True, eq=False)
class DatasetVersion:
    """One commit of a history: the dataset as it was there, None where there was none."""

    commit: Digest
    generation: int
    dataset: StoredDataset | None
    parents: tuple[Digest, ...]


# What there was at a commit.
DatasetHistory = Callable[[Digest], DatasetVersion]


@dataclass(frozen=True, slots=True)
class RowBlame:
    """Where a row came from.

    Attributes:
        added: the commit that added it, or brought it back.
        deleted: the commit that deleted it; None: it is there.
        last: newest commit that has the row; its values are blamed.
        columns: commit that brought the value, by column id.
    """

    added: Digest
    deleted: Digest | None
    last: Digest
    columns: dict[str, Digest]


def blame_row(history: DatasetHistory, tip: Digest, row_id: NDArray[Any]) -> RowBlame:
    """Where a row and its values came from; `row_id` is ROW_ID ``(1,)``.

    Raises:
        NotFoundError: no version up to `tip` has a row of that id.
    """
    last, deleted = tip, None
    step = history(tip)
    if step.dataset is None or not has_row(step.dataset, row_id):
        deleted, last = _deletion(history, tip, row_id)
        step = history(last)
    assert step.dataset is not None, "it has the row"
    columns = {column.id for column in step.dataset.schema.columns}
    found = _origins(history, last, row_id, {ROW, *columns})
    return RowBlame(found.pop(ROW), deleted, last, found)


def has_row(dataset: StoredDataset, row_id: NDArray[Any]) -> bool:
    """Whether there is a row of that id, and not deleted."""
    row = row_id_table(dataset).find(row_id)
    return bool(live_rows(dataset).live(row)[0] >= 0)


def _origins(
    history: DatasetHistory, tip: Digest, row_id: NDArray[Any], wanted: set[str]
) -> dict[str, Digest]:
    """Per wanted column the commit none of whose parents has the same value."""
    found: dict[str, Digest] = {}
    walk = _Walk(history)
    walk.add(tip, wanted)
    while walk.waiting:
        step, pending = walk.pop()
        assert step.dataset is not None, "the row is in it"
        for parent in step.parents if pending else ():
            before = history(parent).dataset
            if before is not None:
                same = same_cells(before, step.dataset, row_id, pending)
                if same:
                    walk.add(parent, same)
                pending = pending - same
        found |= dict.fromkeys(pending, step.commit)
    return found


def _deletion(history: DatasetHistory, tip: Digest, row_id: NDArray[Any]) -> tuple[Digest, Digest]:
    """The newest commit that deleted the row, and its parent that has it."""
    walk = _Walk(history)
    walk.add(tip, {ROW})
    while walk.waiting:
        step, _ = walk.pop()
        kept = [parent for parent in step.parents if _has(history(parent), step, row_id)]
        if kept and len(kept) == len(step.parents):
            return step.commit, kept[0]
        for parent in step.parents:
            if parent not in kept:
                walk.add(parent, {ROW})
    raise NotFoundError(f"no version up to commit {tip:.12} has a row {format_row_id(row_id[0])}")


def _has(before: DatasetVersion, after: DatasetVersion, row_id: NDArray[Any]) -> bool:
    """Whether `before` has a row that `after` has not."""
    if before.dataset is None:
        return False
    if after.dataset is not None and before.dataset.digest == after.dataset.digest:
        return False
    return has_row(before.dataset, row_id)


class _Walk:
    """Commits that are still to be visited, children before parents, each once."""

    def __init__(self, history: DatasetHistory) -> None:
        self._history = history
        self._heap: list[tuple[int, Digest]] = []
        self._wanted: dict[Digest, set[str]] = {}

    @property
    def waiting(self) -> bool:
        return bool(self._heap)

    def add(self, commit: Digest, wanted: set[str]) -> None:
        if commit not in self._wanted:
            self._wanted[commit] = set()
            heappush(self._heap, (-self._history(commit).generation, commit))
        self._wanted[commit] |= wanted

    def pop(self) -> tuple[DatasetVersion, set[str]]:
        commit = heappop(self._heap)[1]
        return self._history(commit), self._wanted.pop(commit)


# ------------------------------------------------------------------------------ two versions


def same_cells(
    before: StoredDataset, after: StoredDataset, row_id: NDArray[Any], wanted: set[str]
) -> set[str]:
    """Those of the wanted columns in which a row of `after` is the same in `before`."""
    known = {column.id: column for column in before.schema.columns}
    shared = {column.id: column for column in after.schema.columns if column.id in known}
    candidates = wanted & (shared.keys() | {ROW})
    if before.digest == after.digest or not candidates:
        return candidates
    old, new = narrow(before, after)
    row = _row_of(new, row_id)
    if row is None:  # it lies in a leaf that both have
        return candidates
    there = _row_of(old, row_id)
    if there is None or there in old.dead:
        return set()
    place = Stretches(*(np.array([at], np.int64) for at in (there, row, 1)))
    same = {ROW} & candidates
    for each in candidates - {ROW}:
        comparer = ColumnComparer(known[each], shared[each], (old, new), place)
        if not len(comparer.changed(row, row + 1)[1]):
            same.add(each)
    return same


def _row_of(part: NarrowedDataset, row_id: NDArray[Any]) -> int | None:
    row = int(row_id_table(part.dataset).find(row_id)[0])
    return row if row >= 0 else None
