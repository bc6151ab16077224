"""Three-way merge driver of datasets.

The changes of one version since the base are found by row id and put on the other: appended rows
are all kept, deletions united, cells and columns combined. So it does not matter who merges: which
version is changed follows from the two alone. What both changed differently is a conflict that
names row, column and values. No row is read but where cells changed.

Source:
    docs/spec/dataset.md, section "Merge".
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.dataset.metadata.row_ids import RUN, ids_of_runs
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    fragment_records,
    open_dataset,
    row_id_table,
)
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.formats.dataset.unique_key import KEY_PROPERTY, broken_key, declared_key
from tensorrepo.formats.dataset.versions.conflicts import (
    Clashes,
    SideName,
    backfill_clash,
    key_clash,
    replaced_clash,
)
from tensorrepo.formats.dataset.versions.merge_rows import RowPlan, RowPlanner, Side
from tensorrepo.formats.dataset.versions.merge_schema import (
    MergedRoot,
    MergedSchema,
    Three,
    merge_groups,
    merge_lineage,
    merge_properties,
    merge_schemas,
)
from tensorrepo.formats.dataset.versions.merge_write import write_merged
from tensorrepo.repo.history.merge_trees import Conflict, MergeContext
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import Kind, ObjectSink, ObjectSource
from tensorrepo.repo.tables import counted

_SIDES: dict[str, SideName] = {"ours": "ours", "theirs": "theirs"}


def held_purged(dataset: StoredDataset, path: str, state: State) -> str | None:
    """What a dataset at `path` holds that was purged, in words; None: nothing."""
    columns = state.purged_columns.get(path, {})
    known = {each for group in dataset.root.groups for each in group}
    if found := sorted(columns[each] for each in known & columns.keys()):
        return f"column {found[0]!r}"
    for listed in state.purged_rows:
        runs = np.frombuffer(dataset.objects.get(listed).payload, RUN)
        rows = row_id_table(dataset).find(ids_of_runs(runs))
        if count := int(np.count_nonzero(rows >= 0)):
            return f"{counted(count, 'row')}"
    return None


class DatasetMergeDriver:
    """Joins two versions of a dataset; see `tensorrepo.repo.history.merge_trees.MergeDriver`."""

    def __init__(self, outside: Outside | None = None) -> None:
        """`outside` reads files in place, where cells of such rows are compared; None: nobody."""
        self._outside = outside

    def held_purged(
        self, objects: ObjectSource, path: str, entry: Entry, state: State
    ) -> str | None:
        """What a dataset holds that was purged; see `purge_guard.KnowsPurged`."""
        return held_purged(open_dataset(objects, entry.digest, self._outside), path, state)

    def merge(
        self,
        objects: ObjectSink,
        path: str,
        base: Entry | None,
        ours: Entry,
        theirs: Entry,
        context: MergeContext,
    ) -> Entry | Conflict:
        """The entry with the changes of both, or what they contradict each other in.

        The strategies "ours" and "theirs" decide single cells, rows, columns and properties;
        nothing is decided automatically.
        """
        digests = (None if base is None else base.digest, ours.digest, theirs.digest)
        if base is None:
            reason = "both sides made a dataset of that name"
            return Conflict(path, Kind.DATASET, *digests, reason)
        old, one, two = (
            open_dataset(objects, entry.digest, self._outside) for entry in (base, ours, theirs)
        )
        sides = (
            Side("ours", old, one, context.generations[0]),
            Side("theirs", old, two, context.generations[1]),
        )
        prefer = None if context.automatic else _SIDES.get(context.strategy)
        merged = merge_sides(objects, *sides, prefer=prefer)
        if isinstance(merged, Clashes):
            return Conflict(path, Kind.DATASET, *digests, merged.reason, merged.details())
        return open_dataset(objects, merged).entry


def merge_sides(
    objects: ObjectSink, one: Side, two: Side, *, prefer: SideName | None = None
) -> Digest | Clashes:
    """Merge two versions, given in any order.

    Both grew out of the same base; `prefer` is the side that decides contradictions.

    Returns:
        Digest of the merged root, or the contradictions that nobody was preferred for.
    """
    # The rows of the lower generation come first and stay where they are, but if just one side was
    # compacted, that one's: the same whoever merges.
    onto, other = (one, two) if one.order <= two.order else (two, one)
    if other.moved_uids and not onto.moved_uids:
        onto, other = other, onto
    names = (onto.name, other.name)
    roots = Three(onto.base.root, onto.dataset.root, other.dataset.root, names, prefer)
    clashes = Clashes()
    for side, opposite in ((onto, other), (other, onto)):
        if side.is_replaced and opposite.changes_rows:
            clashes.add([replaced_clash(side.name)])
            return clashes  # which no preference decides row by row
    columns = merge_schemas(roots.of(lambda root: root.schema), _updated(onto, other))
    properties, contested = merge_properties(roots.of(lambda root: root.properties))
    clashes.add(columns.clashes)
    clashes.add(contested)
    shared = (onto.columns.keys() & other.columns.keys()) - columns.unlike
    common = [column.id for column in columns.schema.columns if column.id in shared]
    rows = RowPlanner(onto, other, common, clashes, prefer).plan()
    schema = _backfilled(columns, onto, other, rows, clashes, prefer)
    if clashes.count:
        return clashes
    groups = onto.dataset.root.groups, other.dataset.root.groups
    if not onto.dataset.root.leaves:  # groups of a dataset without rows are not chosen yet
        groups = groups[1], groups[0]
    root = MergedRoot(
        schema,
        merge_groups(groups, schema),
        columns.brought,
        properties,
        merge_lineage(roots.of(lambda root: root.lineage)),
    )
    merged = write_merged(objects, onto, other, root, rows)
    made = open_dataset(objects, merged, onto.dataset.outside)
    before = onto.dataset if KEY_PROPERTY in onto.dataset.root.properties else other.dataset
    if broken := broken_key(made, before):
        clashes.add([key_clash(declared_key(made), broken)])
        return clashes
    return merged


def _updated(onto: Side, other: Side) -> tuple[frozenset[str], frozenset[str]]:
    """Columns of which each side changed cells; only asked where the other dropped some."""
    base = {column.id for column in onto.base.schema.columns}
    return (
        frozenset(onto.cells) if base - other.columns.keys() else frozenset(),
        frozenset(other.cells) if base - onto.columns.keys() else frozenset(),
    )


def _backfilled(
    columns: MergedSchema,
    onto: Side,
    other: Side,
    rows: RowPlan,
    clashes: Clashes,
    prefer: SideName | None,
) -> Schema:
    """The schema, once all rows have a value in columns that one side alone has.

    Where a side is preferred, rows without a value become null.
    """
    found = []
    for column in columns.schema.columns:
        strict = not column.nullable and column.default is None
        missing, added_in = 0, onto.name
        if strict and column.id not in other.columns:
            missing = _rows_put_behind(other, rows)
        elif strict and column.id in columns.brought:
            places, _ = other.find(onto.rows.added.ids)
            missing, added_in = int((places < 0).sum()), other.name
        if missing and prefer is None:
            clashes.add([backfill_clash(column.name, added_in, missing)])
        found.append(replace(column, nullable=True) if missing else column)
    return Schema(tuple(found))


def _rows_put_behind(other: Side, rows: RowPlan) -> int:
    """Live rows that come from `other`."""
    records = fragment_records(other.pair.new.dataset)
    behind = records[np.isin(records["uid"], np.array(sorted(rows.whole), np.uint64))]
    counts = (int(behind[name].sum(dtype=np.int64)) for name in ("rows", "deleted"))
    whole = next(counts) - next(counts)
    return whole + sum(len(each) for each in rows.masked.values())
