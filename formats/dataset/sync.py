"""Sync of a dataset with a source: rows are matched, and only what differs is stored.

Rows are matched by a key, or aligned by what they hold (`versions.align`); matched rows keep their
ids. One pass over the dataset gives digests of its rows, one over the source tells which of its
rows are new or changed: those wait in a spool. Memory holds some 60 bytes for each stored row and
its key, and 24 for each row of the source, with the keys of those that are not known.

Columns are compared in the wider of the two types; a column is widened only when a row needs it.
Columns that the source lacks stay, columns that are new are added behind the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common.buffer_codecs import Codec, CodecChoice
from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.changing.patch import ValueSource
from tensorrepo.formats.dataset.changing.spool import Spool, SpoolWriter
from tensorrepo.formats.dataset.evolve import add_column, drop_column, widen_column
from tensorrepo.formats.dataset.merge import merge_sides
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset, scan
from tensorrepo.formats.dataset.schema.equality import in_form_of
from tensorrepo.formats.dataset.schema.lenient import Misfits, coerce_leniently
from tensorrepo.formats.dataset.schema.schema import ClassLabel, Column, InputBatch, Schema
from tensorrepo.formats.dataset.schema.types import Image, Scalar
from tensorrepo.formats.dataset.schema.values import (
    ColumnValues,
    FixedValues,
    blank_values,
    valid_rows,
)
from tensorrepo.formats.dataset.schema.widen import can_widen
from tensorrepo.formats.dataset.selecting.row_keys import KeyTable, check_key_columns, key_array
from tensorrepo.formats.dataset.selecting.select_rows import Chosen
from tensorrepo.formats.dataset.update import delete_rows, set_values
from tensorrepo.formats.dataset.versions.align import (
    Alignment,
    ContentTable,
    align_rows,
    mix_values,
    rank_among_equals,
)
from tensorrepo.formats.dataset.versions.conflicts import Clashes, SideName
from tensorrepo.formats.dataset.versions.merge_rows import Side
from tensorrepo.formats.dataset.write import BUDGET_BYTES, write_dataset
from tensorrepo.formats.native.row_digests import new_lanes
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSink


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What a sync did.

    Attributes:
        link: the new root; the old one when nothing differs.
        rows: number of rows of the source.
        inserted: number of rows that the source has and the dataset had not.
        updated: number of rows of which a cell differs.
        deleted: number of rows that the source has no more.
        moved: number of rows that the source has in another order; they stay where they are.
        added_columns: names of columns that came.
        kept_columns: names of columns that the source has not.
        widened_columns: names of columns whose type holds more now.
        kept: number of rows that stay although the source did not show them, because it has some
            that were passed over.
    """

    link: ObjectLink
    rows: int
    inserted: int
    updated: int
    deleted: int
    moved: int
    added_columns: tuple[str, ...]
    kept_columns: tuple[str, ...]
    widened_columns: tuple[str, ...]
    kept: int = 0


def sync_dataset(  # noqa: PLR0913  the one call by which rows are matched and stored
    objects: ObjectSink,
    dataset: StoredDataset,
    schema: Schema,
    batches: Iterable[InputBatch],
    *,
    key: Sequence[str] = (),
    is_natural: bool = False,
    drop_columns: bool = False,
    codec: CodecChoice = Codec.NONE,
    budget_bytes: int = BUDGET_BYTES,
    misfits: Misfits | None = None,
    is_partial: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], None] | None = None,
) -> SyncReport:
    """Make the rows of a dataset those of a source, storing what differs.

    Args:
        objects: where to store.
        dataset: what the source is compared with.
        schema: columns of the source.
        batches: rows of the source, read once.
        key: columns that tell rows apart on both sides; none: rows are aligned by what they hold.
        is_natural: whether rows are aligned by what they hold as well where the key is no key.
        drop_columns: whether columns that the source lacks are dropped.
        codec: codec of new rows.
        budget_bytes: bound of the memory used, beside some 60 bytes a stored row, 16 a row of the
            source, the keys and one batch.
        misfits: what to do about rows that do not fit, and then the report of them; None: raise.
        is_partial: asked when `batches` ended: whether records of the source were passed over.
            Then, as when rows were that do not fit, nothing is deleted.
        progress: called after every batch with rows and bytes of the source so far.

    Raises:
        InvalidInputError: a key that is null or there twice, rows that were passed over and no key
            to tell them by, or a value that the column does not hold and cannot be widened for;
            nothing that was stored is reachable.
        NotFoundError: a key column that is not there.
    """
    columns = _CommonColumns.of(dataset.schema.visible, schema)
    misfits = misfits or Misfits()
    with closing(SpoolWriter()) as writer:
        source = _SourceRows(_StoredRows.of(dataset, columns, key), columns, key, writer)
        for batch in batches:
            for part in batch.to_batches() if isinstance(batch, pa.Table) else [batch]:
                source.add(coerce_leniently(columns.given, part, misfits))
            if progress is not None:
                progress(source.rows, source.bytes)
        passed_over = misfits.skipped > 0 or is_partial()
        aligned = source.align(is_natural=is_natural, is_partial=passed_over)
        kept = len(aligned.deleted) if passed_over else 0
        if kept:
            aligned = replace(aligned, deleted=aligned.deleted[:0])
            _check_nothing_to_fill(columns, kept)
        edit = _Edit(objects, dataset, columns, aligned, writer.finish(columns.compared))
        link = edit.store(source, drop_columns=drop_columns, codec=codec, budget_bytes=budget_bytes)
    return SyncReport(
        link,
        rows=source.rows,
        inserted=int((aligned.partner < 0).sum()),
        updated=int(((aligned.partner >= 0) & ~aligned.is_equal).sum()),
        deleted=len(aligned.deleted),
        moved=aligned.moved,
        added_columns=tuple(column.name for column in columns.added),
        kept_columns=() if drop_columns else tuple(column.name for column in columns.absent),
        widened_columns=tuple(sorted(source.too_wide | source.has_nulls)),
        kept=kept,
    )


def _check_nothing_to_fill(columns: _CommonColumns, kept: int) -> None:
    if columns.added:
        raise InvalidInputError(
            f"{kept:,} rows may be those of the source that were passed over, and have no value of "
            f"the column {columns.added[0].name!r}, which it brings. Mend its rows, or leave the "
            "column out."
        )


def merge_synced(
    objects: ObjectSink,
    base: StoredDataset,
    dataset: StoredDataset,
    synced: StoredDataset,
    *,
    prefer: SideName | None = None,
) -> StoredDataset | Clashes:
    """Put what a source changed of `base`, as `synced` has it, on a version of the same dataset.

    Args:
        objects: where to store.
        base: the rows of the source when it was last seen.
        dataset: what became of them since.
        synced: what `sync_dataset` made of `base`.
        prefer: side that decides cells which both changed: "theirs" is the source. None: nobody.
    """
    if synced.digest == base.digest:
        return dataset
    if dataset.digest == base.digest:
        return synced
    sides = Side("ours", base, dataset, 0), Side("theirs", base, synced, 1)
    merged = merge_sides(objects, *sides, prefer=prefer)
    if isinstance(merged, Clashes):
        return merged
    return open_dataset(objects, merged, dataset.outside)


# ------------------------------------------------------------------------------ columns


@dataclass(frozen=True, slots=True)
class _SharedColumn:
    """A column of both sides.

    Attributes:
        stored: the column of the dataset.
        given: the column that values of the source are coerced to.
        wide: the column that values of both sides are compared as.
    """

    stored: Column
    given: Column
    wide: Column

    @classmethod
    def of(cls, stored: Column, source: Column) -> _SharedColumn:
        nullable = stored.nullable or source.nullable
        given = wide = Column(stored.name, stored.type, nullable=nullable)
        if isinstance(stored.type, ClassLabel) and isinstance(source.type, ClassLabel):
            given = replace(wide, type=source.type)
            new = (name for name in source.type.names if name not in stored.type.names)
            wide = replace(wide, type=ClassLabel((*stored.type.names, *new)))
        elif isinstance(stored.type, Image) and isinstance(source.type, Image):
            alike = stored.type.codec in (None, source.type.codec)
            kind = Image(stored.type.codec if alike else None, stored.type.progressive)
            given = wide = replace(wide, type=kind)
        elif can_widen(stored, replace(wide, type=source.type)) is None:
            given = wide = replace(wide, type=source.type)
        return cls(stored, given, wide)

    def compared(self, values: ColumnValues) -> ColumnValues:
        """Coerced values of the source, in the form that they are compared in."""
        if isinstance(self.given.type, ClassLabel) and isinstance(self.wide.type, ClassLabel):
            # The source may number its classes in another way: names tell.
            numbers = np.array([self.wide.type.names.index(name) for name in self.given.type.names])
            assert isinstance(values, FixedValues), "a class is a number"
            values = replace(values, values=numbers.astype(values.values.dtype)[values.values])
        return in_form_of(values, self.wide.storage, self.wide.storage)

    def is_too_wide(self, values: ColumnValues) -> bool:
        """Whether the dataset's column, as it is, does not hold some of the values."""
        if self.wide.type == self.stored.type or not values.rows:
            return False
        if isinstance(self.stored.type, ClassLabel) and isinstance(values, FixedValues):
            return int(values.values.max()) >= len(self.stored.type.names)
        if isinstance(self.stored.type, Scalar) and isinstance(values, FixedValues):
            with np.errstate(over="ignore", invalid="ignore"):
                narrow = values.values.astype(self.stored.storage.element)
            return narrow.astype(values.values.dtype).tobytes() != values.values.tobytes()
        return True


@dataclass(frozen=True, slots=True)
class _CommonColumns:
    """Columns of a dataset beside those of a source.

    Attributes:
        shared: columns of both sides.
        added: columns that the source alone has.
        absent: columns that the dataset alone has.
    """

    shared: tuple[_SharedColumn, ...]
    added: tuple[Column, ...]
    absent: tuple[Column, ...]

    @classmethod
    def of(cls, stored: Schema, source: Schema) -> _CommonColumns:
        visible = source.visible.without_ids().columns
        shared = [
            _SharedColumn.of(stored.column(column.name), column)
            for column in visible
            if column.name in stored
        ]
        added = tuple(column for column in visible if column.name not in stored)
        absent = tuple(column for column in stored.columns if column.name not in source)
        return cls(tuple(shared), added, absent)

    @property
    def given(self) -> Schema:
        """What the source is coerced to."""
        return Schema((*(column.given for column in self.shared), *self.added))

    @property
    def compared(self) -> Schema:
        """What rows of the source are compared and spooled as."""
        return Schema((*(column.wide for column in self.shared), *self.added))

    def key(self, names: Sequence[str]) -> tuple[Column, ...]:
        """The columns of a key.

        Raises:
            NotFoundError: the dataset or the source has no such column.
            InvalidInputError: one whose values are not compared as keys are.
        """
        shared = Schema(tuple(column.wide for column in self.shared))
        return check_key_columns(shared, names) if names else ()


# ------------------------------------------------------------------------------ rows


@dataclass(frozen=True, slots=True, eq=False)
class _StoredRows:
    """The rows of the dataset that are not deleted.

    Attributes:
        physical: int64 ``(rows,)``: where they lie.
        contents: their contents, numbered.
        keys: values of the key, a column each.
        is_unique: whether it is sure that no key comes twice.
    """

    physical: Ints
    contents: ContentTable
    keys: list[pa.ChunkedArray]
    is_unique: bool

    @classmethod
    def of(cls, dataset: StoredDataset, columns: _CommonColumns, key: Sequence[str]) -> _StoredRows:
        names = [column.wide.name for column in columns.shared]
        physical, digests = [np.zeros(0, np.int64)], [new_lanes(0)]
        key_columns = columns.key(key)
        keys = [[key_array(column, blank_values(column.storage, 0))] for column in key_columns]
        key_digests = [new_lanes(0)[:, 0]]
        for rows, values in scan(dataset, names) if names else ():
            lanes = new_lanes(len(rows))
            forms = {
                column.wide.name: in_form_of(
                    values[column.wide.name], column.stored.storage, column.wide.storage
                )
                for column in columns.shared
            }
            for form in forms.values():
                mix_values(lanes, form)
            for arrays, column in zip(keys, key_columns, strict=True):
                arrays.append(key_array(column, forms[column.name]))
            key_digests.append(_key_digests([forms[column.name] for column in key_columns]))
            physical.append(rows)
            digests.append(lanes)
        contents = ContentTable.of(np.concatenate(digests))
        del digests
        chunked = [pa.chunked_array(each) for each in keys]
        return cls(np.concatenate(physical), contents, chunked, _are_unique(key_digests))


class _SourceRows:
    """The rows of the source, of which those are spooled that the dataset has not.

    Attributes:
        rows: number of rows so far.
        bytes: bytes of their values.
        too_wide: names of columns that some of the spooled rows need a wider type for.
        has_nulls: names of columns that are null in some of them, and must not be yet.
    """

    def __init__(
        self, stored: _StoredRows, columns: _CommonColumns, key: Sequence[str], spool: SpoolWriter
    ) -> None:
        self.stored = stored
        self.rows = 0
        self.bytes = 0
        self.too_wide: set[str] = set()
        self.has_nulls: set[str] = set()
        self._columns = columns
        self._key = columns.key(key)
        self._spool = spool
        self._keys = [[array.chunk(0)] for array in stored.keys]  # of rows that are not known
        self._key_digests = [new_lanes(0)[:, 0]]
        self._numbers = [np.zeros(0, np.int64)]
        self._spooled = [np.zeros(0, np.int64)]
        self._next = 0  # the row of the dataset that the next one of the source may well be
        contents = stored.contents
        self._left = np.bincount(contents.numbers, minlength=contents.contents)

    def add(self, values: Sequence[ColumnValues]) -> None:
        """Rows as they were coerced."""
        shared = self._columns.shared
        forms = [
            column.compared(each)
            for column, each in zip(shared, values[: len(shared)], strict=True)
        ]
        count = values[0].rows
        lanes = new_lanes(count)
        for form in forms:
            mix_values(lanes, form)
        numbers = self.stored.contents.find(lanes, self._next)
        is_new = self._take_from_left(numbers)
        if self._columns.added:
            is_new[:] = True  # of each row there is a value to store
        self._put(np.flatnonzero(is_new), forms, values[len(shared) :])
        names = self._columns.compared.names
        key_forms = [forms[names.index(column.name)] for column in self._key]
        unknown = np.flatnonzero(numbers < 0)
        for arrays, column, form in zip(self._keys, self._key, key_forms, strict=True):
            arrays.append(key_array(column, form.take(unknown)))
        self._key_digests.append(_key_digests(key_forms))
        self._numbers.append(numbers)
        self._go_on_behind(numbers)
        self.rows += count
        self.bytes += sum(each.nbytes for each in values)

    def _go_on_behind(self, numbers: Ints) -> None:
        known = np.flatnonzero(numbers >= 0)
        last = int(known[-1]) if len(known) else -1
        if last >= 0:
            self._next = int(self.stored.contents.first_row[numbers[last]]) + 1
        self._next += len(numbers) - 1 - last

    def _take_from_left(self, numbers: Ints) -> Bools:
        """Which rows have a content that no row of the dataset is left for."""
        is_new = numbers < 0
        known = numbers[~is_new]
        np.subtract.at(self._left, known, 1)
        if len(known) and int(self._left[known].min()) < 0:
            before = self._left.copy()
            np.add.at(before, known, 1)
            is_new[~is_new] = rank_among_equals(known) >= before[known]
            np.maximum(self._left, 0, out=self._left)
        return is_new

    def _put(
        self, rows: Ints, forms: Sequence[ColumnValues], added: Sequence[ColumnValues]
    ) -> None:
        taken = [each.take(rows) for each in (*forms, *added)]
        self._spool.add(self._columns.compared, taken)
        self._spooled.append(self.rows + rows)
        for column, values in zip(self._columns.shared, taken[: len(forms)], strict=True):
            if column.is_too_wide(values):
                self.too_wide.add(column.stored.name)
            if not column.stored.nullable and not valid_rows(values).all():
                self.has_nulls.add(column.stored.name)

    def align(self, *, is_natural: bool, is_partial: bool) -> Alignment:
        """Which row of the source is which row of the dataset.

        Raises:
            InvalidInputError: two rows of one side have the same key, or one has none; or there is
                no key, and rows of the source are not known.
        """
        numbers = np.concatenate(self._numbers)
        if self._key:
            try:
                return self._matched(numbers)
            except InvalidInputError:
                if not is_natural:
                    raise
        if is_partial:
            raise InvalidInputError(
                "rows of the source were passed over, and without a key nobody can tell which rows "
                "of the dataset they are. Name one (--key, or the property key), or mend them."
            )
        return align_rows(self.stored.contents.numbers, numbers)

    def _matched(self, numbers: Ints) -> Alignment:
        """Rows matched by key: by content where that is the same, for the key is part of it."""
        contents = self.stored.contents
        if not self.stored.is_unique:
            where = "this is no key of the dataset as it is: "
            _check_unique(self._key, list(map(_whole, self.stored.keys)), where)
        is_equal = numbers >= 0
        if not _are_unique(self._key_digests):
            _check_unique(self._key, self._all_keys(numbers), "")
        partner = np.full(len(numbers), -1, np.int64)
        partner[is_equal] = contents.first_row[numbers[is_equal]]
        is_free = np.ones(len(contents.numbers), np.bool_)
        is_free[partner[is_equal]] = False
        free, unequal = np.flatnonzero(is_free), np.flatnonzero(~is_equal)
        table = KeyTable.of(self._key, _taken(self.stored.keys, free), unique=True)
        found = table.find([pa.concat_arrays(each) for each in self._keys])
        partner[unequal[found >= 0]] = free[found[found >= 0]]
        is_free[partner[partner >= 0]] = False
        return Alignment(partner, is_equal, np.flatnonzero(is_free), 0)

    def _all_keys(self, numbers: Ints) -> list[pa.Array]:
        """The keys of all rows: those of known ones are the keys of the rows that they are."""
        known, unknown = np.flatnonzero(numbers >= 0), np.flatnonzero(numbers < 0)
        order = np.argsort(np.concatenate([known, unknown]))
        mine = _taken(self.stored.keys, self.stored.contents.first_row[numbers[known]])
        parts = zip(mine, self._keys, strict=True)
        return _taken([pa.chunked_array([part, *own]) for part, own in parts], order)

    def places(self, wanted: Ints) -> Ints:
        """Rows of the spool that hold rows of the source which differ from their partners."""
        numbers, spooled = np.concatenate(self._numbers), np.concatenate(self._spooled)
        place = np.full(self.rows, -1, np.int64)
        place[spooled] = np.arange(len(spooled))
        # Of more equal rows than the dataset has the last were spooled: as good as the others.
        missing = wanted[place[wanted] < 0]
        if len(missing):
            by_content = np.zeros(len(self._left), np.int64)
            repeated = spooled[numbers[spooled] >= 0]
            by_content[numbers[repeated]] = place[repeated]
            place[missing] = by_content[numbers[missing]]
        return place[wanted]


def _check_unique(columns: tuple[Column, ...], keys: Sequence[pa.Array], where: str) -> None:
    try:
        KeyTable.of(columns, keys, unique=True)
    except InvalidInputError as error:
        raise InvalidInputError(f"{where}{error}") from error


def _key_digests(forms: Sequence[ColumnValues]) -> NDArray[np.uint64]:
    """uint64 ``(rows,)``: a digest of each row's key; that of 0 where one of its values is null."""
    if not forms:
        return new_lanes(0)[:, 0]
    lanes = new_lanes(forms[0].rows)
    for form in forms:
        mix_values(lanes, form)
    digests = lanes[:, 0].copy()
    for form in forms:
        digests[~valid_rows(form)] = 0
    return digests


def _are_unique(digests: Sequence[NDArray[np.uint64]]) -> bool:
    """Whether no two digests are equal, and none is that of a null: then keys are keys for sure.

    Sorted, they take 8 bytes a row; a hash table of texts takes 150.
    """
    ordered = np.sort(np.concatenate(digests))
    has_null = len(ordered) > 0 and ordered[0] == 0
    return not has_null and not bool((ordered[1:] == ordered[:-1]).any())


def _whole(array: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(array.chunks)


def _taken(arrays: Sequence[pa.ChunkedArray], rows: Ints) -> list[pa.Array]:
    return [_whole(array.take(pa.array(rows))) for array in arrays]


# ------------------------------------------------------------------------------ storing


@dataclass(frozen=True, slots=True, eq=False)
class _Edit:
    """What is stored of a sync."""

    objects: ObjectSink
    dataset: StoredDataset
    columns: _CommonColumns
    aligned: Alignment
    spool: Spool

    def store(
        self, source: _SourceRows, *, drop_columns: bool, codec: CodecChoice, budget_bytes: int
    ) -> ObjectLink:
        """The new root; the old one where nothing differs."""
        aligned, dataset = self.aligned, self._with_wider_columns(source)
        dataset = self._without_deleted(dataset)
        dataset = self._with_added_columns(dataset, source, codec, budget_bytes)
        changed = np.flatnonzero((aligned.partner >= 0) & ~aligned.is_equal)
        dataset = self._with_values(dataset, source, changed, budget_bytes)
        for column in self.columns.absent if drop_columns else ():
            dataset = self._open(drop_column(self.objects, dataset, column.name))
        inserted = np.flatnonzero(aligned.partner < 0)
        if not len(inserted):
            return self.objects.describe(dataset.digest)
        return write_dataset(
            self.objects,
            dataset.schema,
            self.spool.batches(source.places(inserted)),
            base=dataset,
            codec=codec,
            budget_bytes=budget_bytes,
        )

    def _open(self, link: ObjectLink) -> StoredDataset:
        return open_dataset(self.objects, link.digest, self.dataset.outside)

    def _with_wider_columns(self, source: _SourceRows) -> StoredDataset:
        dataset = self.dataset
        for column in self.columns.shared:
            name = column.stored.name
            kind = column.wide.type if name in source.too_wide else None
            nullable = True if name in source.has_nulls else None
            if kind is not None or nullable:
                wider = widen_column(self.objects, dataset, name, kind, nullable=nullable)
                dataset = self._open(wider)
        return dataset

    def _without_deleted(self, dataset: StoredDataset) -> StoredDataset:
        rows = self.aligned.deleted
        if not len(rows):
            return dataset
        return self._open(delete_rows(self.objects, dataset, rows))

    def _with_added_columns(
        self, dataset: StoredDataset, source: _SourceRows, codec: CodecChoice, budget_bytes: int
    ) -> StoredDataset:
        matched = np.flatnonzero(self.aligned.partner >= 0)
        in_order = matched[np.argsort(self.aligned.partner[matched])]
        for column in self.columns.added:
            values = self.spool.arrays(column, source.places(in_order))
            link = add_column(
                self.objects, dataset, column, values, codec=codec, budget_bytes=budget_bytes
            )
            dataset = self._open(link)
        return dataset

    def _with_values(
        self, dataset: StoredDataset, source: _SourceRows, changed: Ints, budget_bytes: int
    ) -> StoredDataset:
        """Set the cells of rows of the source that differ from their partners."""
        if not len(changed):
            return dataset
        rows = source.stored.physical[self.aligned.partner[changed]]
        order = np.argsort(rows)
        chosen = Chosen(rows[order], source.places(changed)[order], self.spool.rows)
        sources = {
            column.stored.name: self._source(column, dataset.schema.column(column.stored.name))
            for column in self.columns.shared
        }
        return self._open(
            set_values(self.objects, dataset, chosen, sources, budget_bytes=budget_bytes)
        )

    def _source(self, column: _SharedColumn, target: Column) -> ValueSource:
        """Values of the spool as the column has them now."""
        wide = self.spool.source(column.wide)
        if target.type == column.wide.type:
            return wide
        narrow = target.storage.element

        def narrowed(rows: Ints, places: Ints) -> ColumnValues:
            values = wide(rows, places)
            assert isinstance(values, FixedValues), "else the column was widened"
            return replace(values, values=values.values.astype(narrow))

        return narrowed
