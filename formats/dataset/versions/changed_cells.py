"""Changes of one version against another: rows, and cells of the rows that both have.

Candidates come from metadata alone: rows in pages that the other version does not have, rows that
were patched, and rows with other tiles (a tile table holds the truncated BLAKE3 of each). Their
values are read on both sides, in bounded memory, and compared.

`VersionPair` is the whole of it, cheap to make and walked in bounded memory. `changed_rows` and
`changed_cells` give all of it at once, as arrays sorted by row id: what a merge wants of each side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.metadata.index import ColumnIndex
from tensorrepo.formats.dataset.pages.page import PAGE_FOREIGN
from tensorrepo.formats.dataset.read import StoredDataset, column_index, page_reader, row_id_table
from tensorrepo.formats.dataset.reading.page_reader import PageReader
from tensorrepo.formats.dataset.reading.row_read import read_chosen
from tensorrepo.formats.dataset.schema.equality import differing
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.formats.dataset.schema.values import (
    BinaryValues,
    ColumnValues,
    TiledValues,
    concat,
    valid_rows,
)
from tensorrepo.formats.dataset.versions.match import (
    Matched,
    NarrowedDataset,
    RowRanges,
    Stretches,
    match_rows,
    narrow,
    same_default,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.objects.envelope import ObjectLink

_BYTES = Storage(ColumnLayout.BINARY, "uint8", ())
BATCH_BYTES = 8 << 20  # of values that are compared at once, on each side
DENSE = 2  # rows are read with what lies between them while that is at most so many times them
LONG_BYTES = 64 << 10  # stretches from here on are read as they lie, shorter ones are gathered
WINDOW_ROWS = 1 << 20  # rows whose changes are known at a time
WINDOW_CELLS = 64 << 20  # and the cells of these rows, at most


def same_tiles(old: PageReader, new: PageReader, old_rows: Ints, new_rows: Ints) -> Bools:
    """Whether row ``old_rows[i]`` is row ``new_rows[i]``, tile by tile; False: nobody knows yet."""
    same = np.zeros(len(old_rows), np.bool_)
    pages = np.stack([old.index.page_of(old_rows), new.index.page_of(new_rows)])
    for page, other in np.unique(pages, axis=1).T.tolist():
        if old.is_tiled(page) and new.is_tiled(other) and old.storage(page) == new.storage(other):
            at = np.flatnonzero((pages[0] == page) & (pages[1] == other))
            one = old.tile_table(page).take(old_rows[at] - old.index.first_row[page])
            two = new.tile_table(other).take(new_rows[at] - new.index.first_row[other])
            same[at] = ~_differing(one, two)
    for reader, rows in ((old, old_rows), (new, new_rows)):
        if reader.index.patches is not None:
            same[reader.index.patches.among(rows)[0]] = False
    return same


def _differing(old: TiledValues, new: TiledValues) -> Bools:
    found = differing(_proofs(old), _proofs(new), _BYTES, _BYTES)
    found |= (old.dims != new.dims).any(axis=1)
    return found


def _proofs(table: TiledValues) -> BinaryValues:
    """Of each row what proves its tiles, as bytes: their tags, and the codecs that decode them."""
    used = table.tiles[table.offsets[0] : table.offsets[-1]]
    proofs = np.zeros((len(used), 17), np.uint8)
    proofs[:, :16] = np.frombuffer(used["tag"].tobytes(), np.uint8).reshape(-1, 16)
    proofs[:, 16] = used["codec"]
    return BinaryValues((table.offsets - table.offsets[0]) * 17, proofs.reshape(-1), table.valid)


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Rows that can differ in one column.

    Attributes:
        stretches: rows in pages that differ.
        old_rows: rows that were patched on a side, and lie in no such page: int64 ``(n,)``.
        new_rows: the same rows in the new version, ascending.
    """

    stretches: Stretches
    old_rows: Ints
    new_rows: Ints

    @property
    def rows(self) -> int:
        """How many, deleted ones too."""
        return int(self.stretches.rows.sum()) + len(self.new_rows)

    def between(self, start: int, stop: int) -> Candidates:
        """Those in ``[start, stop)`` of the new version."""
        low, high = np.searchsorted(self.new_rows, [start, stop])
        return Candidates(
            self.stretches.between(start, stop), self.old_rows[low:high], self.new_rows[low:high]
        )


def find_candidates(
    old: ColumnIndex, new: ColumnIndex, both: Stretches, *, same_defaults: bool
) -> Candidates:
    """The rows of `both` that can differ.

    `both` are rows that both versions hold; `same_defaults` says that rows without a page have the
    same value in both.
    """
    pieces = both.cut(new.first_row).swapped().cut(old.first_row).swapped()
    unequal = pieces.chosen(~_equal_pages(old, new, pieces, same_defaults=same_defaults)).joined()
    rows = _patched(old, new, both)
    rows = rows[unequal.old_of(rows) < 0] if len(rows) else rows
    old_rows = both.old_of(rows)
    changed = ~_equal_patches(old, new, old_rows, rows)
    return Candidates(unequal, old_rows[changed], rows[changed])


def _equal_pages(
    old: ColumnIndex, new: ColumnIndex, pieces: Stretches, *, same_defaults: bool
) -> Bools:
    """Which pieces, each in one page on both sides, are the same rows of the same page."""
    pages, others = old.page_of(pieces.old), new.page_of(pieces.new)
    equal = equal_pages(old, new, pages, others)
    equal &= pieces.old - old.first_row[pages] == pieces.new - new.first_row[others]
    nowhere = old.is_absent[pages] & new.is_absent[others]
    return np.where(nowhere, same_defaults, equal)


def equal_pages(old: ColumnIndex, new: ColumnIndex, pages: Ints, others: Ints) -> Bools:
    """Whether pages ``pages[i]`` and ``others[i]`` hold the same rows for certain."""
    same_form = np.array(
        [[one == two for two in new.storages] for one in old.storages], np.bool_
    ).reshape(len(old.storages), len(new.storages))
    equal: Bools = (old.tags[pages] == new.tags[others]).all(axis=1)
    equal &= same_form[old.stored_as[pages], new.stored_as[others]]
    for name in ("rows", "codec", "nulls"):
        equal &= old.entries[name][pages] == new.entries[name][others]
    equal &= ~(old.is_absent[pages] | new.is_absent[others])
    foreign = np.flatnonzero(equal & (old.entries["codec"][pages] == PAGE_FOREIGN))
    for at in foreign.tolist():
        equal[at] = _same_foreign(old, new, int(pages[at]), int(others[at]))
    return equal


def _same_foreign(old: ColumnIndex, new: ColumnIndex, page: int, other: int) -> bool:
    """Whether two foreign pages are the same place of the same file: they have no tags."""
    one, two = old.entries[page], new.entries[other]
    places = [index.chunks[index.chunk[at]] for index, at in ((old, page), (new, other))]
    names = [getattr(place, "digest", None) for place in places]
    fields = ("first_row", "rows", "offset", "stored_bytes", "raw_bytes", "min", "max")
    return names[0] is not None and names[0] == names[1] and all(one[f] == two[f] for f in fields)


def _patched(old: ColumnIndex, new: ColumnIndex, both: Stretches) -> Ints:
    """Rows of the new version, ascending, that either side patched and both have."""
    found = np.zeros(0, np.int64)
    if old.patches is not None:
        found = both.swapped().old_of(old.patches.rows)
    if new.patches is not None:
        mine = new.patches.rows
        found = np.concatenate([found, mine[both.old_of(mine) >= 0]])
    unique = np.unique(found)
    return unique[unique >= 0]


def _equal_patches(old: ColumnIndex, new: ColumnIndex, old_rows: Ints, new_rows: Ints) -> Bools:
    """Which rows take their value from the same place of the same patch on both sides."""
    equal = np.zeros(len(new_rows), np.bool_)
    if old.patches is None or new.patches is None:
        return equal
    (mine, source), (theirs, other) = old.patches.among(old_rows), new.patches.among(new_rows)
    common, at, of = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
    one, two = old.patches.pages, new.patches.pages
    rows, others = source[at], other[of]
    pages, other_pages = one.page_of(rows), two.page_of(others)
    same = equal_pages(one, two, pages, other_pages)
    same &= rows - one.first_row[pages] == others - two.first_row[other_pages]
    equal[common] = same
    return equal


# ------------------------------------------------------------------------------ values


def read_near(reader: PageReader, rows: Ints) -> ColumnValues:
    """Rows in the order asked for, as a copy; cheap where they lie close together."""
    if not len(rows) or reader.index.storage.layout is ColumnLayout.TILED:
        return read_chosen(reader, rows)
    start, stop = int(rows.min()), int(rows.max()) + 1
    if stop - start > DENSE * len(rows):
        return read_chosen(reader, rows)
    # Most of what lies between them is wanted: no need to look for each row's page.
    return concat(reader.range(start, stop)).take(rows - start)


class ColumnComparer:
    """One column in two versions. `old` or `new` is None where the column is not there: null.

    With another id it is another column of that name. `parts` is what can differ of the versions,
    `both` are rows that both hold, counted in the parts.
    """

    def __init__(
        self,
        old: Column | None,
        new: Column | None,
        parts: tuple[NarrowedDataset, NarrowedDataset],
        both: Stretches,
    ) -> None:
        self.old = old
        self.new = new
        self._parts = parts
        nothing = np.zeros(0, np.int64)
        if old is None or new is None or old.id != new.id:
            self.candidates = Candidates(both, nothing, nothing)
        else:
            self.candidates = find_candidates(
                column_index(parts[0].compared, old.name),
                column_index(parts[1].compared, new.name),
                both,
                same_defaults=same_default(old, new),
            )

    @property
    def name(self) -> str:
        """What the column is called, by its last name."""
        column = self.new or self.old
        assert column is not None, "a column is there on one side"
        return column.name

    def changed(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """Rows of ``[start, stop)`` of the new part that differ, and what they were in the old.

        Returns:
            Rows of the old part and of the new one, which ascend. Deleted rows are among them.
        """
        within = self.candidates.between(start, stop)
        found = [(within.old_rows[:0], within.new_rows[:0]), *self._compared(within)]
        old_rows, new_rows = (np.concatenate(rows) for rows in zip(*found, strict=True))
        order = np.argsort(new_rows, kind="stable")
        return old_rows[order], new_rows[order]

    def _compared(self, some: Candidates) -> Iterator[tuple[Ints, Ints]]:
        stretches = some.stretches
        readers = [each for side in (0, 1) if some.rows and (each := self._reader(side))]
        row_bytes = max((reader.index.mean_row_bytes for reader in readers), default=1.0)
        long = (stretches.rows * row_bytes >= LONG_BYTES) & (not self._is_tiled)
        for old, new, rows in zip(
            *(each[long].tolist() for each in (stretches.old, stretches.new, stretches.rows)),
            strict=True,
        ):
            for begin, end in self._batches(old, new, rows):
                before, after = (
                    None if reader is None else concat(reader.range(first + begin, first + end))
                    for reader, first in ((self._reader(0), old), (self._reader(1), new))
                )
                changed = np.flatnonzero(self._differing(before, after, end - begin))
                yield changed + (old + begin), changed + (new + begin)
        short = stretches.chosen(~long).pairs()
        pairs = [
            np.concatenate([one, two])
            for one, two in zip(short, (some.old_rows, some.new_rows), strict=True)
        ]
        yield from self.among(*pairs)

    def among(self, old_rows: Ints, new_rows: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Those pairs of rows, counted in the parts, that differ, in batches."""
        if self._is_tiled and len(new_rows):
            old, new = self._reader(0), self._reader(1)
            if old is not None and new is not None:
                left = ~same_tiles(old, new, old_rows, new_rows)
                old_rows, new_rows = old_rows[left], new_rows[left]
        for start, stop in self._steps(old_rows, new_rows):
            mine, theirs = old_rows[start:stop], new_rows[start:stop]
            before, after = (
                None if reader is None else read_near(reader, rows)
                for reader, rows in ((self._reader(0), mine), (self._reader(1), theirs))
            )
            changed = self._differing(before, after, len(mine))
            yield mine[changed], theirs[changed]

    def _differing(
        self, before: ColumnValues | None, after: ColumnValues | None, rows: int
    ) -> Bools:
        if before is None or after is None or self.old is None or self.new is None:
            there = after if before is None else before
            return np.zeros(rows, np.bool_) if there is None else valid_rows(there)
        return differing(before, after, self.old.storage, self.new.storage)

    def _reader(self, side: int) -> PageReader | None:
        column = (self.old, self.new)[side]
        return None if column is None else page_reader(self._parts[side].dataset, column.name)

    @property
    def is_at_hand(self) -> bool:
        """Whether all values that can differ stand in metadata that has been read."""
        if not self.candidates.rows:
            return True
        indexes = [reader.index for side in (0, 1) if (reader := self._reader(side))]
        indexes += [index.patches.pages for index in indexes if index.patches is not None]
        return not any(isinstance(chunk, ObjectLink) for index in indexes for chunk in index.chunks)

    # ------------------------------------------------------------------------ sizes

    @property
    def _is_tiled(self) -> bool:
        columns = (self.old, self.new)
        return any(
            each is not None and each.storage.layout is ColumnLayout.TILED for each in columns
        )

    def _batches(self, old: int, new: int, rows: int) -> Iterator[tuple[int, int]]:
        """Bounds of batches of ``[0, rows)``, which are rows from `old` and `new` on."""
        cuts = [np.array([0, rows])]
        for side, first in ((0, old), (1, new)):
            reader = self._reader(side)
            if reader is not None:
                cuts.append(even_cuts(reader.index, first, first + rows) - first)
        yield from pairwise(np.unique(np.concatenate(cuts)).tolist())

    def _steps(self, old_rows: Ints, new_rows: Ints) -> Iterator[tuple[int, int]]:
        """Bounds of batches of pairs of rows."""
        columns = [column for column in (self.old, self.new) if column is not None]
        if all(column.storage.layout is ColumnLayout.FIXED for column in columns):
            row_bytes = max(column.storage.row_bytes for column in columns)
            step = max(1, BATCH_BYTES // max(1, row_bytes))
            yield from pairwise([*range(0, len(new_rows), step), len(new_rows)])
            return
        sizes = np.ones(len(new_rows))
        for side, rows in ((0, old_rows), (1, new_rows)):
            reader = self._reader(side) if len(rows) else None
            if reader is not None:
                pages = reader.index.entries[reader.index.page_of(rows)]
                sizes = np.maximum(sizes, pages["raw_bytes"] / np.maximum(pages["rows"], 1))
        if self._is_tiled:
            sizes[:] = BATCH_BYTES  # one by one: rows are large
        batch = (np.cumsum(sizes) - sizes) // BATCH_BYTES
        cuts = np.flatnonzero(np.diff(batch)) + 1
        yield from pairwise([0, *cuts.tolist(), *([len(sizes)] if len(sizes) else [])])


def even_cuts(index: ColumnIndex, start: int, stop: int) -> Ints:
    """Rows in ``(start, stop)`` that cut them into parts of about `BATCH_BYTES` each."""
    ends = np.concatenate([[0.0], np.cumsum(index.entries["raw_bytes"], dtype=np.float64)])
    first, last = np.interp([start, stop], index.first_row, ends).tolist()
    parts = max(1, math.ceil((last - first) / BATCH_BYTES))
    inner = np.linspace(first, last, parts + 1)[1:-1]
    cuts = np.ceil(np.interp(inner, ends, index.first_row)).astype(np.int64)
    return cuts[(cuts > start) & (cuts < stop)]


# ------------------------------------------------------------------------------ whole versions


@dataclass(frozen=True, slots=True, eq=False)
class VersionPair:
    """Two versions of a dataset, narrowed to what can differ, their rows matched.

    Rows are counted in the parts; `NarrowedDataset` maps them to physical and live rows of the
    versions.
    """

    old: NarrowedDataset
    new: NarrowedDataset
    matched: Matched

    @classmethod
    def of(cls, old: StoredDataset, new: StoredDataset, *, whole: bool = False) -> VersionPair:
        """Reads the leaves, deletions and row runs that differ: no page and no page index.

        `whole` leaves in what both have, for columns that only one of them has.
        """
        parts = narrow(old, new, whole=whole)
        tables = [row_id_table(part.dataset) for part in parts]
        alive = [(part.dataset.root.rows, part.dead) for part in parts]
        return cls(*parts, match_rows(tables[0], tables[1], alive[0], alive[1]))

    def comparer(self, old: Column | None, new: Column | None) -> ColumnComparer:
        """Compares one column, which has the same id on both sides unless it lacks on one."""
        return ColumnComparer(old, new, (self.old, self.new), self.matched.both)

    def alive(self, old_rows: Ints, new_rows: Ints) -> Bools:
        """Which pairs of rows are deleted on neither side."""
        kept = np.ones(len(new_rows), np.bool_)
        for part, rows in ((self.old, old_rows), (self.new, new_rows)):
            dead = part.dead
            if len(dead):
                at = np.minimum(np.searchsorted(dead, rows), len(dead) - 1)
                kept &= dead[at] != rows
        return kept

    def windows(self, comparers: Sequence[ColumnComparer]) -> Iterator[tuple[int, int]]:
        """Ranges of rows of the new part in which columns can differ, in order."""
        step = window_rows(len(comparers))
        touched: set[int] = set()
        for comparer in comparers:
            found = comparer.candidates
            touched.update((found.new_rows // step).tolist())
            stops = found.stretches.new + found.stretches.rows
            for first, last in np.unique(
                np.stack([found.stretches.new // step, (stops - 1) // step]), axis=1
            ).T.tolist():
                touched.update(range(first, last + 1))
        yield from ((number * step, number * step + step) for number in sorted(touched))


def window_rows(columns: int) -> int:
    """How many rows of so many columns are compared before their changes are given out."""
    return min(WINDOW_ROWS, max(1 << 12, WINDOW_CELLS // max(1, columns)))


@dataclass(frozen=True, slots=True, eq=False)
class RowSet:
    """Rows of one version, sorted by id: ROW_ID, and int64 physical rows of it, ``(n,)`` each."""

    ids: NDArray[Any]
    rows: Ints


@dataclass(frozen=True, slots=True, eq=False)
class ChangedRows:
    """Rows that came, in `side`, and rows that went, in `base`: what is alive on one side only."""

    added: RowSet
    deleted: RowSet


@dataclass(frozen=True, slots=True, eq=False)
class ChangedCells:
    """Rows of one column that have another value, sorted by id; alive on both sides.

    ROW_ID, and int64 physical rows of the base and of the side, ``(n,)`` each.
    """

    ids: NDArray[Any]
    base_rows: Ints
    side_rows: Ints


def changed_rows(pair: VersionPair) -> ChangedRows:
    """The rows that one version has and the other has not; no page is read."""
    return ChangedRows(
        _row_set(pair.new, pair.matched.added), _row_set(pair.old, pair.matched.deleted)
    )


def changed_cells(
    pair: VersionPair, columns: Sequence[str] | None = None
) -> Mapping[str, ChangedCells]:
    """The cells that the new version changed, by column id; columns without changes are left out.

    `columns` are ids of columns that both have, hidden ones too; None: all of these.
    """
    theirs = {column.id: column for column in pair.new.dataset.schema.columns}
    found: dict[str, ChangedCells] = {}
    for column in pair.old.dataset.schema.columns:
        if column.id in theirs and (columns is None or column.id in columns):
            cells = _changed_cells(pair, pair.comparer(column, theirs[column.id]))
            if len(cells.ids):
                found[column.id] = cells
    return found


def _changed_cells(pair: VersionPair, comparer: ColumnComparer) -> ChangedCells:
    none = np.zeros(0, np.int64)
    found = [(none, none)]
    for start, stop in pair.windows([comparer]):
        old_rows, new_rows = comparer.changed(start, stop)
        alive = pair.alive(old_rows, new_rows)
        found.append((old_rows[alive], new_rows[alive]))
    old_rows, new_rows = (np.concatenate(rows) for rows in zip(*found, strict=True))
    ids = row_id_table(pair.old.dataset).of(old_rows)
    order = _by_id(ids)
    return ChangedCells(
        ids[order], pair.old.physical(old_rows)[order], pair.new.physical(new_rows)[order]
    )


def _row_set(part: NarrowedDataset, ranges: RowRanges) -> RowSet:
    rows = ranges.expand()
    ids = row_id_table(part.dataset).of(rows)
    order = _by_id(ids)
    return RowSet(ids[order], part.physical(rows)[order])


def _by_id(ids: NDArray[Any]) -> Ints:
    return np.lexsort((ids["offset"], ids["fragment"]))
