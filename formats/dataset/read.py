"""A dataset as it was when its root was written: rows, columns, Arrow.

`Dataset` is a small frozen handle. It reads the root when opened, and leaves and page indexes when
a column is first asked for; pages come through `pageread`, proved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa

from tensorrepo.formats.dataset.arrow import to_arrow_array
from tensorrepo.formats.dataset.index import (
    ColumnIndex,
    IndexPart,
    PageIndex,
    decode_index,
    join_indexes,
)
from tensorrepo.formats.dataset.manifest import Leaf, Root, decode_leaf, decode_root
from tensorrepo.formats.dataset.pageread import READ_THREADS, PageCache, PageReader, empty_values
from tensorrepo.formats.dataset.present import Presented, present, present_row
from tensorrepo.formats.dataset.rowread import read_chosen
from tensorrepo.formats.dataset.values import ColumnValues, concat
from tensorrepo.repo.errors import (
    CorruptError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from tensorrepo.repo.ids import Digest, digest_from_bytes
from tensorrepo.repo.objects import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.manifest import LeafEntry, Span
    from tensorrepo.formats.dataset.schema import Column, Schema
    from tensorrepo.repo.objects import Link, ObjectSource

Links = Mapping[Digest, "Link"]
Rows = slice | Sequence[int] | np.ndarray[Any, np.dtype[Any]]
BATCH_BYTES = 16 << 20


@dataclass(slots=True, eq=False)
class _Memory:
    """What a handle has read already."""

    readers: dict[str, PageReader] = field(default_factory=dict)
    cache: PageCache = field(default_factory=PageCache)
    lock: Lock = field(default_factory=Lock)


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """One version of a dataset. Safe to share between threads.

    ``ds[7]`` is a dict of one row, ``ds[10:20]`` and ``ds[[3, 9, 4]]`` are dicts of columns,
    ``ds["label"]`` is a column. Values are as `present` says.
    """

    objects: ObjectSource
    digest: Digest
    root: Root
    links: Links
    _memory: _Memory = field(default_factory=_Memory)

    @property
    def schema(self) -> Schema:
        return self.root.schema

    @property
    def rows(self) -> int:
        return self.root.rows - self.root.deleted

    @property
    def stored_bytes(self) -> int:
        """Bytes of all pages."""
        return self.root.stored_bytes

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        columns = ", ".join(self.schema.names)
        return f"<Dataset {self.digest:.12}: {self.rows} rows of {columns}>"

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: str) -> ColumnView: ...
    @overload
    def __getitem__(self, key: Rows) -> dict[str, Presented]: ...
    def __getitem__(self, key: int | str | Rows) -> Any:
        if isinstance(key, str):
            return ColumnView(self, self.schema.column(key))
        if isinstance(key, int | np.integer):
            row = _row_number(int(key), self.rows)
            return {
                column.name: present_row(column, read_rows(self, column.name, slice(row, row + 1)))
                for column in self.schema.columns
            }
        rows = resolve_rows(key, self.rows)
        return {
            column.name: present(column, read_rows(self, column.name, rows))
            for column in self.schema.columns
        }

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every row, page by page."""
        for batch in iterate(self):
            for at in range(next(iter(batch.values())).rows):
                yield {
                    column.name: present_row(column, batch[column.name], at)
                    for column in self.schema.columns
                }

    def to_batches(
        self, columns: Iterable[str] | None = None, *, max_bytes: int = BATCH_BYTES
    ) -> Iterator[pa.RecordBatch]:
        """All rows as Arrow batches of at most about `max_bytes`, a page at least."""
        chosen = self.schema.select(columns)
        schema = chosen.to_arrow()
        for batch in iterate(self, chosen.names, max_bytes=max_bytes):
            arrays = [to_arrow_array(column.type, batch[column.name]) for column in chosen.columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def to_arrow(self, columns: Iterable[str] | None = None) -> pa.Table:
        """All rows as one table; without a copy where pages lie on a local disk."""
        chosen = self.schema.select(columns)
        return pa.Table.from_batches(self.to_batches(chosen.names), chosen.to_arrow())

    def to_numpy(self, columns: Iterable[str] | None = None) -> dict[str, Presented]:
        """All rows of each column, as ``ds[name][:]`` gives them."""
        return {name: self[name][:] for name in self.schema.select(columns).names}


@dataclass(frozen=True, slots=True)
class ColumnView:
    """One column of a dataset: ``view[7]`` is a value, ``view[:]`` and ``view[[3, 1]]`` many."""

    dataset: Dataset
    column: Column

    def __len__(self) -> int:
        return self.dataset.rows

    @overload
    def __getitem__(self, key: int) -> Any: ...
    @overload
    def __getitem__(self, key: Rows) -> Presented: ...
    def __getitem__(self, key: int | Rows) -> Any:
        name = self.column.name
        if isinstance(key, int | np.integer):
            row = _row_number(int(key), self.dataset.rows)
            return present_row(self.column, read_rows(self.dataset, name, slice(row, row + 1)))
        return present(self.column, read_rows(self.dataset, name, key))

    def __iter__(self) -> Iterator[Any]:
        for batch in iterate(self.dataset, [self.column.name]):
            values = batch[self.column.name]
            for at in range(values.rows):
                yield present_row(self.column, values, at)


# ------------------------------------------------------------------------------ opening


def open_dataset(objects: ObjectSource, digest: Digest) -> Dataset:
    """The dataset whose root has this digest; reads one object.

    Raises:
        NotFoundError: there is no such object.
        CorruptError, UnsupportedError: it is no root that this version can read.
    """
    envelope = objects.get(digest)
    if envelope.kind is not Kind.DATASET:
        raise InvalidInputError(f"object {digest:.12} is a {envelope.kind.label}, not a dataset")
    links = {link.digest: link for link in envelope.links}
    return Dataset(objects, digest, decode_root(envelope.payload), links)


def read_leaf(dataset: Dataset, entry: LeafEntry) -> tuple[Leaf, Links]:
    """A leaf, and the links of the object that it stands in."""
    if not entry.digest:
        leaf, links = decode_leaf(entry.payload, "inline leaf"), dataset.links
    else:
        digest = digest_from_bytes(entry.digest)
        envelope = dataset.objects.get(digest)
        leaf = decode_leaf(envelope.payload, f"leaf {digest:.12}")
        links = {link.digest: link for link in envelope.links}
    if (len(leaf.fragments), int(leaf.fragments["rows"].sum(dtype=np.int64))) != (
        entry.fragments,
        entry.rows,
    ):
        raise CorruptError("dataset root: a leaf holds other counts than the root says")
    return leaf, links


def read_index(dataset: Dataset, span: Span, links: Links) -> tuple[PageIndex, Links]:
    """The page index of a span, and the links of the object that it stands in."""
    if isinstance(span.index, memoryview):
        return decode_index(span.index, "inline page index"), links
    envelope = dataset.objects.get(span.index)
    index = decode_index(envelope.payload, f"page index {span.index:.12}")
    return index, {link.digest: link for link in envelope.links}


def column_index(dataset: Dataset, name: str) -> ColumnIndex:
    """All pages of a column: what readers and planners use. Read once per handle."""
    return page_reader(dataset, name).index


def page_reader(dataset: Dataset, name: str) -> PageReader:
    """Reads proved pages of a column."""
    column = dataset.schema.column(name)
    memory = dataset._memory  # noqa: SLF001  # the handle's own module
    found = memory.readers.get(column.id)
    if found is None:
        index = _read_column_index(dataset, column)
        with memory.lock:
            fresh = PageReader(dataset.objects, index, name, memory.cache)
            found = memory.readers.setdefault(column.id, fresh)
    return found


def page_bytes(dataset: Dataset, index: ColumnIndex, page: int) -> memoryview:
    """The stored bytes of one page of `column_index(dataset, ...)`, proved and read-only."""
    return dataset._memory.readers[index.id].bytes(page)  # noqa: SLF001


def _read_column_index(dataset: Dataset, column: Column) -> ColumnIndex:
    group = next(group[0] for group in dataset.root.groups if column.id in group)
    entries = dataset.root.leaves
    with ThreadPoolExecutor(READ_THREADS, "index") as threads:
        leaves = list(threads.map(lambda entry: read_leaf(dataset, entry), entries))
        if not all(any(span.group == group for span in leaf.spans) for leaf, _ in leaves):
            raise UnsupportedError(
                f"column {column.name!r} was added after some of the rows. Update tensorrepo."
            )
        spans = [
            (leaf, span, links)
            for leaf, links in leaves
            for span in leaf.spans
            if span.group == group
        ]
        indexes = list(threads.map(lambda each: read_index(dataset, each[1], each[2]), spans))
    rows = [
        leaf.fragments["rows"][span.first_fragment : span.first_fragment + span.fragments]
        for leaf, span, _ in spans
    ]
    parts = [IndexPart(*found, some) for found, some in zip(indexes, rows, strict=True)]
    index = join_indexes(column.id, column.storage, parts)
    if index.rows != dataset.root.rows:
        raise CorruptError(
            f"column {column.name!r}: page indexes hold {index.rows} rows, "
            f"the root {dataset.root.rows}"
        )
    return index


# ------------------------------------------------------------------------------ rows


def read_rows(dataset: Dataset, name: str, key: Rows) -> ColumnValues:
    """Some rows of one column, copied: a slice, row numbers in any order, or a mask of all rows."""
    reader = page_reader(dataset, name)
    rows = resolve_rows(key, dataset.rows)
    if not isinstance(rows, range):
        return read_chosen(reader, rows)
    if rows.step != 1:
        return read_chosen(reader, np.arange(rows.start, rows.stop, rows.step))
    pieces = reader.range(rows.start, rows.stop)
    if not pieces:
        return empty_values(reader.index)
    return concat(pieces) if len(pieces) > 1 else pieces[0].copy()


def resolve_rows(key: Rows | range, rows: int) -> range | NDArray[np.int64]:
    """Row numbers in ``[0, rows)``; negative ones count from the end.

    Raises:
        InvalidInputError: no row numbers, or a mask of another length.
        NotFoundError: beyond the end.
    """
    if isinstance(key, range):
        return key
    if isinstance(key, slice):
        return range(rows)[key]
    numbers = np.asarray(key)
    if numbers.ndim == 1 and not numbers.size:
        numbers = numbers.astype(np.int64)
    if numbers.dtype == np.bool_ and numbers.ndim == 1:
        if len(numbers) != rows:
            raise InvalidInputError(f"a mask of {len(numbers)} for {rows} rows")
        return np.flatnonzero(numbers)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise InvalidInputError(
            f"rows are a slice, row numbers or a mask, got {type(key).__name__} "
            f"of {numbers.dtype} and shape {numbers.shape}"
        )
    if len(numbers) and (int(numbers.min()) < -rows or int(numbers.max()) >= rows):
        worst = int(numbers.max()) if int(numbers.max()) >= rows else int(numbers.min())
        raise NotFoundError(f"no row {worst}: the dataset has {rows} rows")
    signed = numbers.astype(np.int64)
    return np.where(signed < 0, signed + rows, signed)


def _row_number(row: int, rows: int) -> int:
    if not -rows <= row < rows:
        raise NotFoundError(f"no row {row}: the dataset has {rows} rows")
    return row % rows


def iterate(
    dataset: Dataset, columns: Iterable[str] | None = None, *, max_bytes: int = BATCH_BYTES
) -> Iterator[dict[str, ColumnValues]]:
    """All rows in order, cut where pages of the columns end: so no row is copied.

    Args:
        dataset: what to read.
        columns: names; None: all.
        max_bytes: a batch holds no more than this, unless one row does.
    """
    names = dataset.schema.select(columns).names
    readers = [page_reader(dataset, name) for name in names]
    scans = [_Cursor(reader) for reader in readers]
    at = 0
    while at < dataset.rows:
        stop = min(cursor.stop_of(at) for cursor in scans)
        row_bytes = sum(cursor.row_bytes for cursor in scans)
        step = max(1, int(max_bytes / max(row_bytes, 1e-9)))
        for start in range(at, stop, step):
            end = min(stop, start + step)
            yield {
                name: cursor.slice(start, end) for name, cursor in zip(names, scans, strict=True)
            }
        at = stop


class _Cursor:
    """Walks the pages of one column in order."""

    def __init__(self, reader: PageReader) -> None:
        self._index = reader.index
        self._pages = reader.scan(range(reader.index.pages))
        self._page = -1
        self._values: ColumnValues | None = None

    def stop_of(self, row: int) -> int:
        """Where the page that holds `row` ends; goes on to it."""
        while row >= self._index.first_row[self._page + 1]:
            self._values = next(self._pages)
            self._page += 1
        return int(self._index.first_row[self._page + 1])

    @property
    def row_bytes(self) -> float:
        entry = self._index.entries[self._page]
        return int(entry["raw_bytes"]) / max(1, int(entry["rows"]))

    def slice(self, start: int, stop: int) -> ColumnValues:
        assert self._values is not None, "stop_of came first"
        first = int(self._index.first_row[self._page])
        return self._values.slice(start - first, stop - first)
