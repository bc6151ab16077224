"""Diff of two versions in counts: schema, leaves, fragments, pages and statistics.

No page is read, unless exact counts are asked for. `row_diff` gives the rows themselves.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

from tensorrepo.formats.common.arguments import counted, grown_text
from tensorrepo.formats.dataset.read import StoredDataset, fragment_records, open_dataset
from tensorrepo.formats.dataset.schema.arrow_types import arrow_type
from tensorrepo.formats.dataset.schema.python_values import duration_text
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import (
    ClassLabel,
    ColumnLayout,
    Date,
    Decimal,
    Duration,
    Time,
    Timestamp,
)
from tensorrepo.formats.dataset.schema.values import value_of_key
from tensorrepo.formats.dataset.versions.changed_cells import VersionPair
from tensorrepo.formats.dataset.versions.row_diff import count_changes, paired_columns
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import ObjectSource
from tensorrepo.repo.tables import RecordTable, Shown


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """One column that differs: `old` and `new` are its type in words, None where it is absent.

    `what` lists "added", "dropped", "replaced" (another column took the name), "renamed",
    "retyped", "nullability", "default"; `old_name` is there when it was renamed.
    """

    name: str
    old: str | None
    new: str | None
    what: tuple[str, ...] = ()
    old_name: str | None = None


@dataclass(frozen=True, slots=True)
class ColumnBytes:
    """Bytes of a column's pages before and after."""

    name: str
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class ColumnUpdates:
    """Rows that both versions have and that differ in a column; at most so many unless exact."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """A column over all its rows, deleted ones too.

    `min` and `max` bound the values of scalars that have an order: numbers, bools, moments as text.
    """

    nulls: int
    stored_bytes: int
    min: Any
    max: Any


@dataclass(frozen=True, slots=True)
class ColumnFactsChange:
    """The facts of a column before and after; None where it is absent."""

    name: str
    old: ColumnFacts | None
    new: ColumnFacts | None


@dataclass(frozen=True, slots=True, repr=False)
class DatasetDiff(Shown):
    """What `new` has that `old` has not, and the reverse.

    Rows that came and went are counted exactly, by their ids. `rows_updated` and `updated` are
    upper bounds unless `exact`: rows in pages that differ, and rows that were patched. They are
    exact where the values stand in the metadata, as those of small datasets do.
    """

    old_rows: int
    new_rows: int
    rows_added: int
    rows_removed: int
    fragments_added: int
    fragments_removed: int
    schema: tuple[ColumnChange, ...]
    columns: tuple[ColumnBytes, ...]  # those whose bytes changed
    rows_updated: int = 0
    updated: tuple[ColumnUpdates, ...] = ()
    exact: bool = True
    reordered: bool = False  # the columns that both have come in another order
    statistics: tuple[ColumnFactsChange, ...] = ()

    @property
    def summary(self) -> str:
        """In a few words, for a line."""
        parts = [f"+{counted(self.rows_added, 'row')}"] if self.rows_added else []
        parts += [f"-{counted(self.rows_removed, 'row')}"] if self.rows_removed else []
        parts += [self._updated_text(self.rows_updated)] if self.rows_updated else []
        parts += [f"{counted(len(self.schema), 'column')} changed"] if self.schema else []
        parts += ["columns reordered"] if self.reordered else []
        return ", ".join(parts) or "same rows"

    def lines(self) -> Iterator[str]:
        """In full, for people."""
        yield from map(_schema_line, self.schema)
        if self.reordered:
            yield "columns in another order"
        yield f"rows: {self.old_rows:,} -> {self.new_rows:,}"
        for column in self.updated:
            yield f"column {column.name}: {self._updated_text(column.rows)}"
        for change in self.columns:
            yield f"column {change.name}: {grown_text(change.new - change.old)}"
        for facts in self.statistics:
            yield from _facts_lines(facts)

    def to_table(self) -> RecordTable:
        """In full, line by line."""
        return RecordTable((self.summary, *self.lines()))

    def _updated_text(self, rows: int) -> str:
        return f"{'' if self.exact else 'up to '}{counted(rows, 'row')} updated"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def diff_datasets(
    objects: ObjectSource, old: Digest | None, new: Digest | None, *, exact: bool = False
) -> DatasetDiff:
    """Compare two versions; None stands for no dataset at all.

    `exact` counts updated rows exactly: it reads the values that can differ.
    """
    before = None if old is None else open_dataset(objects, old)
    after = None if new is None else open_dataset(objects, new)
    return compare_datasets(before, after, exact=exact)


def compare_datasets(
    old: StoredDataset | None, new: StoredDataset | None, *, exact: bool = False
) -> DatasetDiff:
    """The same for datasets that are open."""
    counts = _counts(old, new, exact=exact)
    facts = tuple(_facts_changes(old, new))
    before, after = _visible(old), _visible(new)
    return DatasetDiff(
        old_rows=0 if old is None else old.rows,
        new_rows=0 if new is None else new.rows,
        schema=tuple(_schema_changes(before, after)),
        columns=tuple(_byte_changes(facts)),
        reordered=[each for each in before if each in after]
        != [each for each in after if each in before],
        statistics=facts,
        **counts,
    )


# ------------------------------------------------------------------------------ rows


def _counts(old: StoredDataset | None, new: StoredDataset | None, *, exact: bool) -> dict[str, Any]:
    if old is None or new is None:
        fragments = [
            0 if each is None else sum(leaf.fragments for leaf in each.root.leaves)
            for each in (old, new)
        ]
        return {
            "rows_added": 0 if new is None else new.rows,
            "rows_removed": 0 if old is None else old.rows,
            "fragments_added": fragments[1],
            "fragments_removed": fragments[0],
        }
    pair = VersionPair.of(old, new)
    uids = [fragment_records(part.dataset)["uid"] for part in (pair.old, pair.new)]
    return {
        "rows_added": pair.matched.added.rows,
        "rows_removed": pair.matched.deleted.rows,
        "fragments_added": len(np.setdiff1d(uids[1], uids[0])),
        "fragments_removed": len(np.setdiff1d(uids[0], uids[1])),
        **_updates(pair, old, new, exact=exact),
    }


def _updates(
    pair: VersionPair, old: StoredDataset, new: StoredDataset, *, exact: bool
) -> dict[str, Any]:
    """Rows that were updated; at most so many, by what metadata tells, unless `exact`."""
    shared = int(pair.matched.both.rows.sum())
    pairs = paired_columns(old.schema, new.schema, None, by_name=False) if shared else []
    comparers = [pair.comparer(*columns) for columns in pairs]
    found = {comparer.name: comparer.candidates.rows for comparer in comparers}
    rows = min(shared, sum(found.values()))
    exact = exact or all(comparer.is_at_hand for comparer in comparers)
    if exact and rows:
        counts = count_changes(old, new)
        rows, found = counts.updated, counts.columns
    updated = tuple(ColumnUpdates(name, count) for name, count in found.items() if count)
    return {"rows_updated": rows, "updated": updated, "exact": exact}


# ------------------------------------------------------------------------------ columns


def _visible(dataset: StoredDataset | None) -> dict[str, Column]:
    """Columns by id, in order, hidden ones left out."""
    if dataset is None:
        return {}
    return {column.id: column for column in dataset.schema.visible.columns}


def _schema_changes(old: dict[str, Column], new: dict[str, Column]) -> Iterator[ColumnChange]:
    come = {column.name: column for column in new.values() if column.id not in old}
    for column in old.values():
        if column.id in new:
            after = new[column.id]
            if what := tuple(_differences(column, after)):
                old_name = column.name if column.name != after.name else None
                yield ColumnChange(after.name, *_both_in_words(column, after), what, old_name)
        elif column.name in come:
            other = come.pop(column.name)
            yield ColumnChange(column.name, *_both_in_words(column, other), ("replaced",))
        else:
            yield ColumnChange(column.name, _in_words(column), None, ("dropped",))
    for column in come.values():
        yield ColumnChange(column.name, None, _in_words(column), ("added",))


def _differences(old: Column, new: Column) -> Iterator[str]:
    if old.name != new.name:
        yield "renamed"
    if old.type != new.type:
        yield "retyped"
    if old.nullable != new.nullable:
        yield "nullability"
    if old.default != new.default:
        yield "default"


def _both_in_words(old: Column, new: Column) -> tuple[str, str]:
    """Of many classes, of which few are shown, with the first that differs."""
    words = _in_words(old), _in_words(new)
    match old.type, new.type:
        case ClassLabel(names=before), ClassLabel(names=after) if before != after:
            known = zip(before, after, strict=False)
            at = next((at for at, (was, now) in enumerate(known) if was != now), None)
            if at is not None:
                return f"{words[0]}, {at} is {before[at]!r}", f"{words[1]}, {at} is {after[at]!r}"
    return words


def _in_words(column: Column) -> str:
    default = "" if column.default is None else f", default {column.default!r:.40}"
    return column.type_text + default


def _schema_line(change: ColumnChange) -> str:
    if change.old is None:
        return f"column {change.name} added: {change.new}"
    if change.new is None:
        return f"column {change.name} removed: {change.old}"
    renamed = "" if change.old_name is None else f" (was {change.old_name})"
    if change.what == ("renamed",):
        return f"column {change.name}{renamed}: renamed"
    replaced = ", another column" if "replaced" in change.what else ""
    return f"column {change.name}{renamed}: {change.old} -> {change.new}{replaced}"


def _byte_changes(facts: Iterable[ColumnFactsChange]) -> Iterator[ColumnBytes]:
    for change in facts:
        before, after = (0 if one is None else one.stored_bytes for one in (change.old, change.new))
        if before != after:
            yield ColumnBytes(change.name, before, after)


# ------------------------------------------------------------------------------ statistics


def _facts_changes(
    old: StoredDataset | None, new: StoredDataset | None
) -> Iterator[ColumnFactsChange]:
    """Of all columns, by name; a column that was renamed is found under its new name."""
    before, after = column_facts(old), column_facts(new)
    names = {column.id: column.name for column in _visible(new).values()}
    renamed = {
        names[column.id]: column.name for column in _visible(old).values() if column.id in names
    }
    was = set(renamed.values())
    for name, facts in after.items():
        old_name = renamed.get(name, None if name in was else name)
        yield ColumnFactsChange(name, None if old_name is None else before.get(old_name), facts)
    for name, facts in before.items():
        if name not in after and name not in was:
            yield ColumnFactsChange(name, facts, None)


def column_facts(dataset: StoredDataset | None) -> dict[str, ColumnFacts]:
    """Facts of the visible columns by name, as the root says them; of None there are none."""
    if dataset is None:
        return {}
    columns, facts = _visible(dataset), {}
    for known in dataset.root.statistics:
        if (column := columns.get(known.id)) is not None:
            low, high = (_plain(column, key) for key in (known.min, known.max))
            facts[column.name] = ColumnFacts(known.nulls, known.stored_bytes, low, high)
    return facts


def _plain(column: Column, key: int | None) -> Any:
    """The value of an order key, as JSON can hold it."""
    if key is None or column.storage.layout is not ColumnLayout.FIXED:
        return None
    value = value_of_key(key, column.storage.dtype)
    match column.type:
        case Timestamp(unit=unit):
            return str(np.datetime64(int(value), unit))
        case Date() | Time():
            count = pa.array([int(value)], pa.from_numpy_dtype(column.storage.element))
            return count.view(arrow_type(column.type)).cast(pa.string())[0].as_py()
        case Duration(unit=unit):
            return duration_text(np.timedelta64(int(value), unit))
        case Decimal(scale=scale):
            return str(decimal.Decimal(int(value)).scaleb(-scale))
    if column.storage.dtype == "bool":
        return bool(value)
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def _facts_lines(change: ColumnFactsChange) -> Iterator[str]:
    old, new = change.old, change.new
    if old is None or new is None:
        return
    if old.nulls != new.nulls:
        yield f"column {change.name}: nulls {old.nulls:,} -> {new.nulls:,}"
    if (old.min, old.max) != (new.min, new.max):
        yield f"column {change.name}: range [{old.min}, {old.max}] -> [{new.min}, {new.max}]"
