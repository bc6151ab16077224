"""Three-way merges of datasets on plain dicts: too simple to be wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorrepo.formats.dataset.metadata.row_ids import format_row_id
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, row_id_table
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.widen import can_widen

Conflicts = set[tuple[str, str]]  # what, and the name of the column, property or row


@dataclass(frozen=True)
class Version:
    """Columns by id, rows by id, each a dict of values by column id."""

    columns: dict[str, Column]
    rows: dict[str, dict[str, Any]]
    properties: dict[str, Any]


def version_of(dataset: StoredDataset) -> Version:
    """What a dataset holds."""
    ids = row_id_table(dataset).of(live_rows(dataset).physical(np.arange(dataset.rows)))
    values = {column.id: _plain(dataset[column.name][:]) for column in dataset.schema.columns}
    rows = {
        format_row_id(row_id): {column: each[at] for column, each in values.items()}
        for at, row_id in enumerate(ids)
    }
    columns = {column.id: column for column in dataset.schema.columns}
    return Version(columns, rows, dict(dataset.root.properties))


def _plain(values: Any) -> list[Any]:
    if isinstance(values, np.ma.MaskedArray):
        return [None if each is np.ma.masked else each.item() for each in values]
    return list(values.tolist()) if isinstance(values, np.ndarray) else list(values)


def merge_versions(base: Version, ours: Version, theirs: Version) -> Version | Conflicts:
    """What the two have together, or all that they contradict each other in."""
    conflicts: Conflicts = set()
    columns = _columns(base, ours, theirs, conflicts)
    rows = {}
    for row_id in dict.fromkeys([*ours.rows, *theirs.rows]):
        row = _row(row_id, (base, ours, theirs), columns, conflicts)
        if row is not None:
            rows[row_id] = row
    properties = {}
    for name in {*ours.properties, *theirs.properties}:
        value, contested = _three(*(each.properties.get(name) for each in (base, ours, theirs)))
        if contested:
            conflicts.add(("property", name))
        if value is not None:
            properties[name] = value
    return conflicts or Version(columns, rows, properties)


def _three(base: Any, ours: Any, theirs: Any) -> tuple[Any, bool]:
    """The value that comes of three, and whether they contradict each other."""
    if theirs in (ours, base):
        return ours, False
    return theirs, ours != base


def _columns(
    base: Version, ours: Version, theirs: Version, conflicts: Conflicts
) -> dict[str, Column]:
    merged: dict[str, Column] = {}
    for each in dict.fromkeys([*ours.columns, *theirs.columns]):
        three = [version.columns.get(each) for version in (base, ours, theirs)]
        found, contested = _three(*three)
        if contested and None not in three:
            found, contested = _together(*three)
        if three[0] is not None and three[1:].count(None) == 1:
            keeper = ours if three[1] is not None else theirs
            changed = keeper.columns[each] != three[0]
            contested = changed or _updated(base, keeper, each)
        if contested:
            name = next(column.name for column in three if column is not None)
            conflicts.add(("column", name))
        if found is not None and (not contested or None not in three):
            if found.name in {column.name for column in merged.values()}:
                conflicts.add(("column", found.name))
            merged[each] = found
    return merged


def _together(base: Any, ours: Any, theirs: Any) -> tuple[Column | None, bool]:
    """The column, where its values go together; and whether anything contradicts."""
    name, renamed_twice = _three(base.name, ours.name, theirs.name)
    nullable = ours.nullable or theirs.nullable
    ours, theirs = (replace(each, nullable=nullable) for each in (ours, theirs))
    wide = next(
        (two for one, two in ((ours, theirs), (theirs, ours)) if can_widen(one, two) is None), None
    )
    if wide is None:
        return None, True
    return replace(wide, name=name), renamed_twice


def _updated(base: Version, version: Version, column: str) -> bool:
    return any(
        base.rows[row_id][column] != row[column]
        for row_id, row in version.rows.items()
        if row_id in base.rows
    )


def _row(
    row_id: str,
    versions: tuple[Version, Version, Version],
    columns: dict[str, Column],
    conflicts: Conflicts,
) -> dict[str, Any] | None:
    base, ours, theirs = (version.rows.get(row_id) for version in versions)
    if base is not None and (ours is None or theirs is None):
        kept = ours or theirs or base
        shared = base.keys() & versions[1].columns.keys() & versions[2].columns.keys()
        if any(kept[each] != base[each] for each in shared):
            conflicts.add(("row", row_id))
        return None
    found = {}
    for column_id, column in columns.items():
        there = [row for row in (ours, theirs) if row is not None and column_id in row]
        if not there:
            missing = column.default is None and not column.nullable
            if missing:
                conflicts.add(("backfill", column.name))
            found[column_id] = column.default
        elif len(there) == 1:
            found[column_id] = there[0][column_id]
        else:
            before = (base or {}).get(column_id)
            found[column_id], contested = _three(before, *(row[column_id] for row in there))
            if contested:
                name = versions[0].columns.get(column_id, column).name
                conflicts.add(("cell", f"{row_id} {name}"))
    return found
