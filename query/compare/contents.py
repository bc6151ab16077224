"""Comparison of what entries hold: rows and columns of datasets, tensors of models, rows of views.

Rows are shown with a line for every cell that differs (``~``), and for every row that came (``+``)
or went (``-``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.dataset.diff import ColumnFactsChange, DatasetDiff, compare_datasets
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.dataset.metadata.row_ids import format_row_id
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.cells import value_text
from tensorrepo.formats.dataset.schema.convert import present_row
from tensorrepo.formats.dataset.schema.json_values import named_class, value_json
from tensorrepo.formats.dataset.schema.schema import ClassLabel, Column, Image, Schema
from tensorrepo.formats.dataset.schema.values import ColumnValues
from tensorrepo.formats.dataset.versions.match import emptied
from tensorrepo.formats.dataset.versions.row_diff import (
    ChangeCounts,
    RowChanges,
    changes_schema,
    compared_columns,
    count_changes,
    row_changes,
)
from tensorrepo.formats.model.comparison import diff_models
from tensorrepo.formats.search_index.stored_index import StoredIndex, open_index
from tensorrepo.formats.views import diff_views, open_view
from tensorrepo.query.compare.descriptions import describe_entry
from tensorrepo.query.compare.entry_change import EntryChange, mark_of
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, PermissionDenied, StorageError
from tensorrepo.repo.history.trees import Entry, PathChange
from tensorrepo.repo.objects.envelope import Kind, ObjectSource

EXACT_BYTES = 64 << 20  # up to this size updated rows are counted by their values
Inside = tuple[str, tuple[str, ...], Any]  # a summary, lines below it, the same as JSON values


@dataclass(frozen=True, slots=True, repr=False)
class DatasetChange(EntryChange):
    """A dataset that differs: its rows can be asked for. A side that is not there has no rows."""

    before: StoredDataset
    after: StoredDataset
    found: DatasetDiff

    @property
    def has_rows(self) -> bool:
        return True

    @property
    def statistics(self) -> tuple[ColumnFactsChange, ...]:
        """Per column nulls, bounds and bytes, before and after."""
        return self.found.statistics

    def lacks(self, columns: Sequence[str] | None, key: Sequence[str] | None) -> str | None:
        """Which column of these a version has not, as a sentence; None: both have all.

        Raises:
            InvalidInputError: one of `key` that cannot be a key.
        """
        try:
            compared_columns(self.before.schema, self.after.schema, columns, key)
        except NotFoundError as error:
            return str(error)
        except InvalidInputError as error:
            raise InvalidInputError(f"{self.path}: {error}") from error
        return None

    def changes(
        self, columns: Sequence[str] | None = None, key: str | Sequence[str] | None = None
    ) -> Iterator[RowChanges]:
        """Rows that were updated, then deleted, then added, in batches of bounded memory.

        Args:
            columns: those to compare and to show; None: all that both sides have are compared.
            key: columns whose values make two rows the same row; None: their row ids do.

        Raises:
            NotFoundError: no column of that name.
            InvalidInputError: a key that several rows share, or that cannot be one.
        """
        yield from row_changes(self.before, self.after, columns=columns, key=_names(key))

    def rows(
        self, columns: Sequence[str] | None = None, key: str | Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The same with the values of both sides, as Arrow.

        Columns: ``change``, ``row_id``, ``old_row``, ``new_row``, ``changed`` (names of columns),
        ``old`` and ``new`` (structs of the columns; null where the row is not there).
        """
        return (batch.to_arrow() for batch in self.changes(columns, key))

    def to_arrow(
        self, columns: Sequence[str] | None = None, key: str | Sequence[str] | None = None
    ) -> pa.Table:
        """All of `rows` as one table."""
        by_name = key is not None
        schema = changes_schema(self.before, self.after, columns, by_name=by_name)
        return pa.Table.from_batches(self.rows(columns, key), schema)

    def counts(
        self, columns: Sequence[str] | None = None, key: str | Sequence[str] | None = None
    ) -> ChangeCounts:
        """How many rows changed, exactly: compares the values that can differ."""
        return count_changes(self.before, self.after, columns=columns, key=_names(key))


def _names(key: str | Sequence[str] | None) -> Sequence[str] | None:
    return [key] if isinstance(key, str) else key


def compare_contents(
    repository: RepositoryCore, change: PathChange, outside: Outside | None = None
) -> EntryChange:
    """What became of one path at which there is, or was, more than a file."""
    old, new = (entry and repository.current(entry) for entry in (change.old, change.new))
    kind = new or old
    assert kind is not None, "a change has a side"
    digests = (old.digest if old else None, new.digest if new else None)
    found = _compared_datasets(repository.objects, old, new, outside)
    summary, details, inside = _inside(repository.objects, old, new, found)
    shown = (
        mark_of(change),
        change.path,
        kind.kind.label,
        *digests,
        f" ({summary})" if summary else "",
    )
    if found is None:
        return EntryChange(*shown, details, inside)
    return DatasetChange(*shown, details, inside, *found)


def _compared_datasets(
    objects: ObjectSource, old: Entry | None, new: Entry | None, outside: Outside | None
) -> tuple[StoredDataset, StoredDataset, DatasetDiff] | None:
    """Both sides and what differs; None where a side is something else than a dataset."""
    sides = [each for each in (old, new) if each is not None]
    if any(each.kind is not Kind.DATASET for each in sides):
        return None
    before = None if old is None else open_dataset(objects, old.digest, outside)
    after = None if new is None else open_dataset(objects, new.digest, outside)
    only = before if before is not None else after
    assert only is not None, "a change has a side"
    return (
        emptied(only) if before is None else before,
        emptied(only) if after is None else after,
        _differences(before, after),
    )


def _differences(old: StoredDataset | None, new: StoredDataset | None) -> DatasetDiff:
    """What differs; of small datasets exactly, unless values lie where nobody may read them."""
    if all(each is None or each.stored_bytes <= EXACT_BYTES for each in (old, new)):
        try:
            return compare_datasets(old, new, exact=True)
        except (PermissionDenied, NotFoundError, StorageError):
            pass  # of data outside the repository the metadata tells enough
    return compare_datasets(old, new)


def _inside(
    objects: ObjectSource,
    old: Entry | None,
    new: Entry | None,
    found: tuple[StoredDataset, StoredDataset, DatasetDiff] | None,
) -> Inside:
    if old is None or new is None:
        only = new or old
        assert only is not None, "a change has a side"
        described = describe_entry(objects, "", only)
        return described.content, described.details, described.to_json()
    if old.kind is not new.kind:
        return f"a {old.kind.label} became a {new.kind.label}", (), None
    if found is not None:
        rows = found[2]
        return rows.summary, tuple(rows.lines()), rows.to_json()
    if new.kind is Kind.MODEL:
        model = diff_models(objects, old, new)
        return model.summary, tuple(model.lines()), model.to_json()
    if new.kind is Kind.VIEW:
        views = diff_views(open_view(objects, old.digest), open_view(objects, new.digest))
        return views.summary, (), {"added": len(views.added), "removed": len(views.removed)}
    if new.kind is Kind.SEARCH_INDEX:
        return _changed_index(open_index(objects, old.digest), open_index(objects, new.digest))
    return "", (), None


def _changed_index(old: StoredIndex, new: StoredIndex) -> Inside:
    before = {segment.name for segment in old.segments}
    made = [segment.rows for segment in new.segments if segment.name not in before]
    gone = len(before - {segment.name for segment in new.segments})
    told = {"rows": new.rows, "rows_before": old.rows, "indexed": sum(made), "segments_gone": gone}
    what = f"{counted(sum(made), 'row')} indexed, {counted(new.rows, 'row')} in all"
    return what, (), told


SHOWN_COLUMNS = 6  # of a row that came or went
MARKS = {"updated": "~", "deleted": "-", "added": "+"}
_MAGIC = {b"\xff\xd8\xff": "jpeg", b"\x89PNG": "png", b"GIF8": "gif", b"RIFF": "webp"}


def row_lines(
    change: DatasetChange,
    *,
    columns: Sequence[str] | None = None,
    key: Sequence[str] | None = None,
    limit: int,
) -> Iterator[str]:
    """Lines for people, of the first `limit` rows; the last line says how many more there are."""
    batches = change.changes(columns, key)
    shown = 0
    for batch in _first(batches, limit):
        yield from _batch_lines(batch, change)
        shown += batch.rows
    if shown < limit:
        return
    counts = change.counts(columns, key)
    more = counts.added + counts.deleted + counts.updated - shown
    if more:
        what = f"{counts.updated:,} updated, {counts.deleted:,} deleted, {counts.added:,} added"
        yield f"... and {more:,} more: {what} in all"


def row_documents(
    change: DatasetChange,
    *,
    columns: Sequence[str] | None = None,
    key: Sequence[str] | None = None,
    start: int = 0,
    limit: int | None = None,
) -> Iterator[dict[str, Any]]:
    """One document for each row that changed: values of the cells that differ, or of all.

    The first `start` of them are passed over.
    """
    batches = _behind(change.changes(columns, key), start)
    for batch in batches if limit is None else _first(batches, limit):
        old, new = (_Values(*each) for each in _sides(batch, change))
        for at, row_id in enumerate(map(format_row_id, batch.ids)):
            changed = _changed(batch, at)
            yield {
                "path": change.path,
                "change": batch.change,
                "row_id": row_id,
                "old_row": None if batch.old_rows is None else int(batch.old_rows[at]),
                "new_row": None if batch.new_rows is None else int(batch.new_rows[at]),
                "changed": changed,
                "old": old.document(at, _old_names(change, changed)),
                "new": new.document(at, changed),
            }


def _behind(batches: Iterable[RowChanges], start: int) -> Iterator[RowChanges]:
    left = start
    for batch in batches:
        if left < batch.rows:
            yield batch.slice(left, batch.rows)
        left = max(left - batch.rows, 0)


def _first(batches: Iterable[RowChanges], limit: int) -> Iterator[RowChanges]:
    left = limit
    for batch in batches:
        if left <= 0:
            return
        yield batch.slice(0, min(left, batch.rows))
        left -= batch.rows


def _batch_lines(batch: RowChanges, change: DatasetChange) -> Iterator[str]:
    old, new = (_Values(*each) for each in _sides(batch, change))
    mark, ids = MARKS[batch.change], [format_row_id(each) for each in batch.ids]
    width = max(map(len, ids), default=0)
    for at, row_id in enumerate(ids):
        begin = f"{mark} {row_id:<{width}} "
        changed = _changed(batch, at)
        if batch.change != "updated":
            yield begin + (new if batch.change == "added" else old).row(at)
        for name, old_name in zip(changed, _old_names(change, changed), strict=True):
            yield f"{begin} {name}: {old.cell(at, old_name)} -> {new.cell(at, name)}"


def _changed(batch: RowChanges, at: int) -> list[str]:
    return [name for name, on in zip(batch.columns, batch.changed[at].tolist(), strict=True) if on]


def _old_names(change: DatasetChange, names: Sequence[str]) -> list[str]:
    """What columns were called before."""
    after = {column.name: column.id for column in change.after.schema.columns}
    before = {column.id: column.name for column in change.before.schema.columns}
    return [before.get(after.get(name, ""), name) for name in names]


def _sides(
    batch: RowChanges, change: DatasetChange
) -> tuple[tuple[Schema, Mapping[str, ColumnValues]], tuple[Schema, Mapping[str, ColumnValues]]]:
    return (change.before.schema, batch.old()), (change.after.schema, batch.new())


class _Values:
    """Values of one side of a batch; a column that it lacks is null."""

    def __init__(self, schema: Schema, values: Mapping[str, ColumnValues]) -> None:
        self._columns = {name: schema.column(name) for name in values}
        self._values = values

    def value(self, at: int, name: str) -> Any:
        if name not in self._values:
            return None
        return present_row(self._columns[name], self._values[name], at)

    def cell(self, at: int, name: str) -> str:
        column = self._columns.get(name)
        return "null" if column is None else cell_text(column, self.value(at, name))

    def row(self, at: int) -> str:
        shown = [f"{name}={self.cell(at, name)}" for name in islice(self._values, SHOWN_COLUMNS)]
        return "  ".join([*shown, "..."] if len(self._values) > SHOWN_COLUMNS else shown)

    def document(self, at: int, names: Sequence[str]) -> dict[str, Any] | None:
        """Of an updated row the cells that differ, else all."""
        if not self._values:
            return None
        wanted = names or list(self._values)
        return {
            name: value_json(named_class(self._columns[name].type, self.value(at, name)))
            for name in wanted
            if name in self._values
        }


def cell_text(column: Column, value: Any) -> str:
    """One value, short: pictures and bytes by their size, labels by their name."""
    if value is None:
        return "null"
    if isinstance(column.type, ClassLabel):
        names = column.type.names
        return repr(names[int(value)]) if int(value) < len(names) else str(int(value))
    if isinstance(value, bytes):
        return f"<{_kind(column, value)}{len(value):,} B>"
    return repr(value) if isinstance(value, str) and len(value) < 60 else value_text(value)


def _kind(column: Column, value: bytes) -> str:
    if not isinstance(column.type, Image):
        return ""
    seen = next((kind for magic, kind in _MAGIC.items() if value.startswith(magic)), None)
    return f"{seen or column.type.codec or 'image'} "
