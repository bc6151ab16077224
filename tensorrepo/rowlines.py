"""How are rows that changed shown, to people and to programs?

A line for every cell that differs (``~``), and for every row that came (``+``) or went (``-``).
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from tensorrepo.formats.dataset.columns.present import present_row
from tensorrepo.formats.dataset.columns.schema import ClassLabel, Column, Image, Schema
from tensorrepo.formats.dataset.tree.rowids import format_row_id
from tensorrepo.workspace.describe import value_json, value_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tensorrepo.compare import DatasetChange
    from tensorrepo.formats.dataset.columns.values import ColumnValues
    from tensorrepo.formats.dataset.comparing.rowdiff import ChangeCounts, RowChanges

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
        yield f"... and {more:,} more: {count_text(counts)} in all"


def count_text(counts: ChangeCounts) -> str:
    """``12 updated, 3 deleted, 4 added``."""
    return f"{counts.updated:,} updated, {counts.deleted:,} deleted, {counts.added:,} added"


def row_documents(
    change: DatasetChange,
    *,
    columns: Sequence[str] | None = None,
    key: Sequence[str] | None = None,
    limit: int | None = None,
) -> Iterator[dict[str, Any]]:
    """One document for each row that changed: values of the cells that differ, or of all."""
    batches = change.changes(columns, key)
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


def _first(batches: Iterable[RowChanges], limit: int) -> Iterator[RowChanges]:
    """The first `limit` rows."""
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
        return {name: value_json(self.value(at, name)) for name in wanted if name in self._values}


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
