"""Unique key constraint: the values that the property "key" promises to be unique and not null.

Rows that a new version has and the one before had not are compared with each other, and with all
others of their key. Keys are told apart by digests, which are sorted in passes over the key columns
alone, so memory is bounded; what two digests say is then looked at itself. Of an ascending integer
key pages that can hold none of the new keys are not read: an append costs what it appends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, page_reader, scan
from tensorrepo.formats.dataset.reading.row_read import read_chosen
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import Scalar
from tensorrepo.formats.dataset.schema.values import ColumnValues
from tensorrepo.formats.dataset.selecting.row_keys import check_key_columns, key_array, shown_key
from tensorrepo.formats.dataset.selecting.select_rows import ranges_where
from tensorrepo.formats.dataset.versions.align import mix_values
from tensorrepo.formats.dataset.versions.changed_cells import VersionPair, changed_cells
from tensorrepo.formats.native.row_digests import new_lanes
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

KEY_PROPERTY: Final = "key"
BUDGET_BYTES: Final = 256 << 20  # of what one pass holds
_ROW_BYTES: Final = 40  # of a pass: digest and place, their sorted copies, and the order
_NEAR_ROWS: Final = 4096  # rows that lie no further apart are read in one go
_SHOWN: Final = 3
_LOOKED_AT: Final = 1000  # keys that digests say are the same: all are, but by a rare chance
_NO_ROWS: Final = np.zeros(0, np.int64)


def declared_key(dataset: StoredDataset) -> tuple[str, ...]:
    """The columns that the property "key" names; none where nothing is promised.

    Raises:
        InvalidInputError: it names columns that are not there, or whose values are no keys.
    """
    named = dataset.root.properties.get(KEY_PROPERTY)
    if named is None:
        return ()
    names = [part.strip() for part in named.split(",")] if isinstance(named, str) else named
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    missing = [name for name in names if name not in dataset.schema.visible] if is_list else names
    if not names or missing:
        raise InvalidInputError(
            f"the property {KEY_PROPERTY!r} is {named!r}: expected names of columns, as "
            f"`tensorrepo dataset set NAME {KEY_PROPERTY}=id` sets them, "
            f"`{KEY_PROPERTY}=null` takes it away"
        )
    check_key_columns(dataset.schema, names)
    return tuple(names)


def check_declared_key(dataset: StoredDataset, before: StoredDataset | None) -> None:
    """Refuse a version that breaks what the property "key" promises.

    Args:
        dataset: the new version.
        before: a version that keeps the promise, if it makes it; None: all rows are new.

    Raises:
        InvalidInputError: keys that are null or there twice; names the first.
    """
    broken = broken_key(dataset, before)
    if broken:
        names = ", ".join(declared_key(dataset))
        raise InvalidInputError(
            f"the property {KEY_PROPERTY!r} promises that no two rows have the same {names}: "
            f"{broken}. Update rows that are there (--upsert {names.replace(' ', '')}, or a sync), "
            f"give new ones keys of their own, or take the promise back: {KEY_PROPERTY}=null."
        )


def broken_key(dataset: StoredDataset, before: StoredDataset | None) -> str:
    """How a version breaks the promise of its key, in a few words; "" if it keeps it."""
    names = declared_key(dataset)
    if not names or not dataset.rows:
        return ""
    columns = tuple(dataset.schema.column(name) for name in names)
    keys = _Keys(dataset, columns)
    if before is None or not _promises_the_same(before, columns):
        return keys.broken(None)
    if before.digest == dataset.digest:
        return ""
    new = _new_keys(before, dataset, columns)
    return keys.broken(new) if len(new) else ""


def _promises_the_same(before: StoredDataset, columns: Sequence[Column]) -> bool:
    if before.root.properties.get(KEY_PROPERTY) is None:
        return False
    known = {column.id: column for column in before.schema.columns}
    try:
        names = declared_key(before)
    except InvalidInputError:
        return False
    ids = {before.schema.column(name).id for name in names}
    same = ids == {column.id for column in columns}
    return same and all(known[column.id].type == column.type for column in columns)


def _new_keys(before: StoredDataset, dataset: StoredDataset, columns: Sequence[Column]) -> Ints:
    """Physical rows of `dataset` that `before` lacks, or has with another key; ascending."""
    pair = VersionPair.of(before, dataset)
    rows = [pair.new.physical(pair.matched.added.expand())]
    cells = changed_cells(pair, [column.id for column in columns])
    rows += [each.side_rows for each in cells.values()]
    return np.unique(np.concatenate(rows))


@dataclass(slots=True, eq=False)
class _Keys:
    """The keys of one version."""

    dataset: StoredDataset
    columns: tuple[Column, ...]
    pairs: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0

    def broken(self, new: Ints | None) -> str:
        """What is wrong with the keys of rows `new`, or of all rows."""
        ranges = _ranges(new, self.dataset.root.rows)
        bounds: list[Any] = []
        rows = self.dataset.rows if new is None else len(new)
        passes = max(1, -(-rows * _ROW_BYTES // BUDGET_BYTES))
        for number in range(passes):
            digests, places = [np.zeros(0, np.uint64)], [_NO_ROWS]
            for at, arrays, mixed in self._read(ranges, new):
                if number == 0 and (null := self._null(at, arrays)):
                    return null
                if number == 0:
                    bounds.append(_bounds(arrays[0]))
                kept = mixed % np.uint64(passes) == number
                digests.append(mixed[kept])
                places.append(at[kept])
            self._compare(np.concatenate(digests), np.concatenate(places), new, bounds, passes)
            if self.count:
                return self._told()
        return ""

    def _compare(
        self,
        digests: NDArray[np.uint64],
        places: Ints,
        new: Ints | None,
        bounds: list[Any],
        passes: int,
    ) -> None:
        """Find keys that are there twice among some of the new ones, and among all others."""
        if not len(digests):
            return
        order = np.argsort(digests, kind="stable")
        digests, places = digests[order], places[order]
        again = np.flatnonzero(digests[1:] == digests[:-1])
        self._note(places[again], places[again + 1])
        if new is None or self.count:
            return
        for at, _, mixed in self._read(self._where_they_may_be(bounds), None):
            # The most rows are of no new key: a look at each is all that they cost.
            found = np.minimum(np.searchsorted(digests, mixed), len(digests) - 1)
            hit = digests[found] == mixed
            if passes > 1:
                hit &= mixed % np.uint64(passes) == digests[0] % np.uint64(passes)
            hit &= ~_among(at, new)
            self._note(at[hit], places[found[hit]])

    def _where_they_may_be(self, bounds: list[Any]) -> Sequence[tuple[int, int]]:
        """Physical rows that can have one of the new keys, as their pages are bounded."""
        column = self.columns[0]
        known = [each for each in bounds if each is not None]
        if not isinstance(column.type, Scalar) or not known:
            return [(0, self.dataset.root.rows)]
        least, most = min(low for low, _ in known), max(high for _, high in known)
        expression = (pc.field(column.name) >= least) & (pc.field(column.name) <= most)
        return [(int(a), int(b)) for a, b in ranges_where(self.dataset, expression).tolist()]

    def _read(
        self, ranges: Sequence[tuple[int, int]], only: Ints | None
    ) -> Iterator[tuple[Ints, list[pa.Array], NDArray[np.uint64]]]:
        """Rows in ranges, their keys, and digests of these."""
        names = [column.name for column in self.columns]
        for start, stop in ranges:
            for at, batch in scan(self.dataset, names, start, stop):
                lanes = new_lanes(len(at))
                for column in self.columns:
                    mix_values(lanes, batch[column.name])
                arrays = [key_array(column, batch[column.name]) for column in self.columns]
                mixed = lanes[:, 0]
                if only is not None:
                    chosen = _among(at, only)
                    at, mixed = at[chosen], mixed[chosen]  # noqa: PLW2901  # the same, narrowed
                    arrays = [array.filter(pa.array(chosen)) for array in arrays]
                if len(at):
                    yield at, arrays, mixed

    def _null(self, at: Ints, arrays: Sequence[pa.Array]) -> str:
        for column, array in zip(self.columns, arrays, strict=True):
            if array.null_count:
                place = pc.index(array.is_null(), True).as_py()
                return f"{column.name} is null in row {self._number(at[place])}"
        return ""

    def _note(self, first: Ints, second: Ints) -> None:
        """Keep pairs of rows whose keys are the same, not only their digests."""
        if not len(first):
            return
        few = np.argsort(np.maximum(first, second), kind="stable")[:_LOOKED_AT]
        one, two = self._values(first[few]), self._values(second[few])
        same = np.ones(len(few), np.bool_)
        for mine, theirs in zip(one, two, strict=True):
            same &= pc.equal(mine, theirs).fill_null(False).to_numpy(zero_copy_only=False)
        self.count += int(same.sum()) + len(first) - len(few)
        room = _SHOWN - len(self.pairs)
        pairs = zip(first[few][same].tolist(), second[few][same].tolist(), strict=True)
        self.pairs += [pair for pair, _ in zip(pairs, range(room), strict=False)]

    def _told(self) -> str:
        told = []
        for pair in self.pairs:
            rows = np.sort(np.array(pair, np.int64))
            key = shown_key(self.columns, self._values(rows[:1]), 0)
            told.append(f"{key} is in rows {self._number(rows[0])} and {self._number(rows[1])}")
        more = self.count - len(told)
        return ", ".join(told) + (f", and {more:,} more" if more else "")

    def _values(self, rows: Ints) -> list[pa.Array]:
        return [key_array(column, _chosen(self.dataset, column, rows)) for column in self.columns]

    def _number(self, physical: int) -> int:
        return int(live_rows(self.dataset).live(np.array([physical]))[0])


def _chosen(dataset: StoredDataset, column: Column, rows: Ints) -> ColumnValues:
    order = np.argsort(rows, kind="stable")
    values = read_chosen(page_reader(dataset, column.name), rows[order])
    return values.take(np.argsort(order, kind="stable"))


def _bounds(array: pa.Array) -> tuple[Any, Any] | None:
    if not pa.types.is_integer(array.type):
        return None
    found = pc.min_max(array).as_py()
    return found["min"], found["max"]


def _among(rows: Ints, chosen: Ints) -> Bools:
    """Which of `rows` are among `chosen`, which ascend."""
    at = np.minimum(np.searchsorted(chosen, rows), len(chosen) - 1)
    found: Bools = chosen[at] == rows
    return found


def _ranges(rows: Ints | None, total: int) -> list[tuple[int, int]]:
    """Ranges of physical rows that hold `rows`, which ascend; None: all."""
    if rows is None:
        return [(0, total)]
    cuts = np.flatnonzero(np.diff(rows) > _NEAR_ROWS)
    starts = rows[np.concatenate([[0], cuts + 1])]
    stops = rows[np.concatenate([cuts, [len(rows) - 1]])] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))
