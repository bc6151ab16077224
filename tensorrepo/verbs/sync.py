"""Sync of a dataset with the files that it was made of: a three-way merge with the source.

What the source changed since it was last seen is put on the dataset as it is now, so what people
changed meanwhile stays. Which rows the source had is kept as a dataset that lineage names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tensorrepo.formats.common.arguments import counted, first_names
from tensorrepo.formats.common.buffer_codecs import DEFAULT_CODEC, CodecChoice
from tensorrepo.formats.common.provenance import (
    SYNCED_WITH,
    ProvenanceEdge,
    public_place,
    synced_states,
)
from tensorrepo.formats.dataset.evolve import add_lineage, set_properties
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.lenient import Misfits
from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Schema
from tensorrepo.formats.dataset.schema.types import Nested, Tensor
from tensorrepo.formats.dataset.sync import SyncReport, merge_synced, sync_dataset
from tensorrepo.formats.dataset.unique_key import check_declared_key, declared_key
from tensorrepo.formats.dataset.versions.conflicts import Clashes, SideName
from tensorrepo.formats.exchange.base import OpenedSource
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.history.merge_trees import Conflict
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, ObjectSink, ObjectSource
from tensorrepo.verbs.provenance import edge_of_reading
from tensorrepo.verbs.seen_objects import SeenObjects, keep_state
from tensorrepo.verbs.stage import Stage

_TEXT_FORMATS: Final = frozenset(
    {"csv", "jsonl", "json"}
)  # which have no types but those that we infer


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """How a dataset is synced.

    Attributes:
        key: columns that tell rows apart; none: the dataset's property "key", else what the source
            has for it, else rows are aligned by what they hold.
        mirror: whether the dataset becomes what the source is, whatever was changed in it.
        drop_columns: whether columns go that the source has not.
        prefer: side that decides cells which both changed: "theirs" is the source.
        base: rows of the source when it was last seen; None: as lineage tells, else the dataset.
        codec: codec of new rows.
        is_source: whether lineage keeps what the source is now.
    """

    key: tuple[str, ...] = ()
    mirror: bool = False
    drop_columns: bool = False
    prefer: SideName | None = None
    base: Digest | None = None
    codec: CodecChoice = DEFAULT_CODEC
    is_source: bool = True


@dataclass(frozen=True, slots=True)
class Synced:
    """A dataset that was synced.

    Attributes:
        changed: whether it differs from what it was.
        source: root of the rows that the source has.
        report: what the source changed since it was last seen.
        coarser: names of columns of floats that have fewer digits in the source than here.
    """

    changed: bool
    source: Digest
    report: SyncReport
    coarser: tuple[str, ...] = ()

    @property
    def notes(self) -> Iterator[str]:
        """What a user should know of it."""
        report = self.report
        if report.kept:
            rows = counted(report.kept, "row")
            yield f"{rows} that the source did not show stay: some of its rows were passed over"
        if report.moved:
            rows = counted(report.moved, "row")
            yield f"{rows} in another order in the source stay where they are"
        if report.kept_columns:
            yield f"kept, though the source lacks them: columns {first_names(report.kept_columns)}"
        if report.added_columns:
            yield f"new columns: {first_names(report.added_columns)}"
        if report.widened_columns:
            yield f"columns that hold more now: {first_names(report.widened_columns)}"
        if report.updated and self.coarser:
            yield (
                f"columns {first_names(self.coarser)} have floats of fewer bits in the source than "
                "here: what was rounded there counts as updated"
            )


def sync(
    stage: Stage,
    path: str,
    reading: OpenedSource,
    options: SyncOptions = SyncOptions(),
    *,
    outside: Outside | None = None,
    misfits: Misfits | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Synced:
    """Put on a dataset what a source changed, and stage it.

    Args:
        stage: the next commit.
        path: path of the dataset, which is there.
        reading: the source, opened.
        options: how it is synced.
        outside: what reads files in place.
        misfits: what to do about rows that do not fit, and then the report of them.
        progress: callback that receives rows and bytes of the source so far.

    Raises:
        ConflictError: a cell was changed by the source and in the dataset, to different values.
        InvalidInputError: rows do not fit, or the key does not tell rows apart. Nothing is staged.
    """
    entry = stage.entry(path)
    if entry is None:
        raise NotFoundError(f"there is no {path} to sync")
    dataset = open_dataset(stage.objects, entry.digest, outside)
    place = public_place(reading.origin.path)
    base = _base(stage.objects, dataset, place, options, outside)
    declared = options.key or declared_key(dataset)
    report = sync_dataset(
        stage.objects,
        base,
        _schema(reading, base.schema.visible),
        reading.batches,
        key=declared or _natural_key(reading, base.schema),
        is_natural=not declared,
        drop_columns=options.drop_columns,
        codec=options.codec,
        misfits=misfits,
        is_partial=lambda: reading.damage.count > 0,
        progress=progress,
    )
    if not report.rows:
        raise InvalidInputError(
            f"{reading.origin.path} holds no rows: a sync would delete all of {path}. Nothing was "
            "staged."
        )
    source = open_dataset(stage.objects, report.link.digest, outside)
    merged = merge_synced(stage.objects, base, dataset, source, prefer=options.prefer)
    if isinstance(merged, Clashes):
        raise _conflict(path, (base, dataset, source), merged)
    check_declared_key(merged, dataset)
    # What the source is now is noted also where the dataset had it already, or kept its own.
    changed = merged.digest != dataset.digest or (
        options.is_source and source.digest != base.digest
    )
    if changed:
        noted = _noted(stage.objects, merged, source, reading, options)
        stage.stage(path, open_dataset(stage.objects, noted.digest).entry)
    return Synced(changed, source.digest, report, _coarser(reading.schema, base.schema.visible))


def _coarser(source: Schema, stored: Schema) -> tuple[str, ...]:
    both = ((each, stored.column(each.name)) for each in source.columns if each.name in stored)
    return tuple(
        given.name
        for given, known in both
        if isinstance(given.type, Scalar | Tensor)
        and isinstance(known.type, Scalar | Tensor)
        and given.storage.element.kind == known.storage.element.kind == "f"
        and given.storage.element.itemsize < known.storage.element.itemsize
    )


def unread(objects: ObjectSource, seen: SeenObjects) -> Synced:
    """What a sync did with a source that is what it was, so that nothing of it was read."""
    link, rows = objects.describe(seen.rows.digest), len(seen.rows)
    return Synced(False, seen.rows.digest, SyncReport(link, rows, 0, 0, 0, 0, (), (), ()))


def source_edges(
    objects: ObjectSink, reading: OpenedSource, rows: StoredDataset
) -> list[ProvenanceEdge]:
    """Edges of rows that were just read: where from, and what the next sync compares with."""
    return [edge_of_reading(reading), _edge_of_state(objects, reading, rows)]


def _natural_key(reading: OpenedSource, schema: Schema) -> tuple[str, ...]:
    """What tells rows of the source apart by its nature, where the dataset has it as well."""
    both = all(name in schema and name in reading.schema for name in reading.key)
    return reading.key if both else ()


def _base(
    objects: ObjectSink,
    dataset: StoredDataset,
    place: str,
    options: SyncOptions,
    outside: Outside | None,
) -> StoredDataset:
    known = options.base or synced_states(dataset.root.lineage).get(place)
    if options.mirror or known is None:
        return dataset
    try:
        return open_dataset(objects, known, outside)
    except NotFoundError:  # of a checkout whose commit was collected since
        return dataset


def _schema(reading: OpenedSource, stored: Schema) -> Schema:
    """The columns of the source; numbers that were text have the types that the dataset has."""
    if reading.origin.format not in _TEXT_FORMATS:
        return reading.schema
    return Schema(tuple(_as_stored(column, stored) for column in reading.schema.columns))


def _as_stored(column: Column, stored: Schema) -> Column:
    known = stored.column(column.name) if column.name in stored else None
    if known is not None and isinstance(known.type, Nested) and isinstance(column.type, Nested):
        return Column(column.name, known.type, column.nullable)
    if known is None or not (isinstance(known.type, Scalar) and isinstance(column.type, Scalar)):
        return column
    both_float = known.storage.element.kind == column.storage.element.kind == "f"
    return Column(column.name, known.type, column.nullable) if both_float else column


def _noted(
    objects: ObjectSink,
    merged: StoredDataset,
    source: StoredDataset,
    reading: OpenedSource,
    options: SyncOptions,
) -> ObjectLink:
    """The dataset with what it was synced with, and new facts of the source."""
    if reading.properties:
        link = set_properties(objects, merged, reading.properties)
        merged = open_dataset(objects, link.digest, merged.outside)
    edges = [edge_of_reading(reading)]
    if options.is_source:
        edges.append(_edge_of_state(objects, reading, source))
    return add_lineage(objects, merged, edges)


def _edge_of_state(
    objects: ObjectSink, reading: OpenedSource, rows: StoredDataset
) -> ProvenanceEdge:
    place = public_place(reading.origin.path)
    details: dict[str, Any] = {"format": reading.origin.format}
    return ProvenanceEdge(SYNCED_WITH, place, keep_state(objects, rows, reading), None, details)


def _conflict(path: str, versions: Sequence[StoredDataset], clashes: Clashes) -> ConflictError:
    base, ours, theirs = (version.digest for version in versions)
    conflict = Conflict(path, Kind.DATASET, base, ours, theirs, clashes.reason, clashes.details())
    return ConflictError(
        f"{path} and its source contradict each other in {counted(clashes.count, 'place')} since "
        "they were last synced. Take one side with --ours or --theirs-source (prefer= in Python). "
        "Nothing was staged.",
        (conflict,),
    )
