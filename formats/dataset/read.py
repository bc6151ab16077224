"""Dataset handle: rows, columns and Arrow of one stored version.

`StoredDataset` is small and frozen. It reads the root when opened, and leaves and page indexes when
a column is first asked for; pages come through `page_reader`, proved.

A dataset of a kilobyte may say that it has 2^32 rows which all have a default. What is stored
bounds what any other rows take; of these only a limit does.

Source:
    docs/spec/dataset.md, section "Limits".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from threading import Lock
from typing import Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.common.summaries import dataset_summary
from tensorrepo.formats.dataset.external.foreign import ForeignReader
from tensorrepo.formats.dataset.external.links import read_links
from tensorrepo.formats.dataset.external.outside import Nothing, Outside
from tensorrepo.formats.dataset.metadata.deletions import LiveRows, unpack_deletions
from tensorrepo.formats.dataset.metadata.index import (
    ColumnIndex,
    IndexPart,
    Patches,
    join_indexes,
    patched_rows,
    preview_index,
)
from tensorrepo.formats.dataset.metadata.manifest import (
    FRAGMENT,
    FragmentSpan,
    Leaf,
    Root,
    decode_root,
)
from tensorrepo.formats.dataset.metadata.row_ids import RowIdTable, id_table
from tensorrepo.formats.dataset.metadata.tree_read import (
    Links,
    covering,
    read_deletions,
    read_index,
    read_leaf,
    read_patches,
    read_runs,
)
from tensorrepo.formats.dataset.reading.page_reader import (
    READ_THREADS,
    DecodedPageCache,
    PageReader,
)
from tensorrepo.formats.dataset.reading.row_read import read_columns, region_of
from tensorrepo.formats.dataset.schema.arrow import column_array
from tensorrepo.formats.dataset.schema.cells import cell_of
from tensorrepo.formats.dataset.schema.coerce import default_values
from tensorrepo.formats.dataset.schema.convert import Presented, present, present_row
from tensorrepo.formats.dataset.schema.schema import SMALL_IMAGE, Column, Schema
from tensorrepo.formats.dataset.schema.types import ColumnLayout
from tensorrepo.formats.dataset.schema.values import ColumnValues, concat
from tensorrepo.formats.images.progressive import SMALL_BANDS
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError, NoSuchRowError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import Kind, ObjectSource
from tensorrepo.repo.tables import RecordTable, Shown
from tensorrepo.repo.threads import ordered_map

ABSENT_BYTES = 1 << 30
_SMALLER_ROWS = "Read other columns, or rows that have values, ds[a:b]"


def check_absent(
    columns: Mapping[str, ColumnIndex],
    rows: range | Ints | int,
    *,
    limit_bytes: int = ABSENT_BYTES,
    advice: str = "Read fewer rows, ds[a:b], or columns, or batches: to_batches(), stream()",
) -> None:
    """Refuse to make more rows of defaults at once than `limit_bytes` hold.

    `rows` are their numbers, or how many of any; `advice` says what to do instead.

    Raises:
        InvalidInputError: names the column that takes most, and says what to do.
    """
    count = rows if isinstance(rows, int) else len(rows)
    if sum(count * _row_bytes(index) for index in columns.values()) <= limit_bytes:
        return
    found = {name: _absent_rows(index, rows) for name, index in columns.items()}
    sizes = {name: count * _row_bytes(columns[name]) for name, count in found.items()}
    if sum(sizes.values()) <= limit_bytes:
        return
    name = max(sizes, key=lambda each: sizes[each])
    raise InvalidInputError(
        f"column {name!r} stores no values for {found[name]:,} of these {count:,} rows: their "
        f"defaults or nulls take {sizes[name]:,} bytes, {sum(sizes.values()):,} in all columns, "
        f"and {limit_bytes:,} are made at once. {advice}."
    )


def _row_bytes(index: ColumnIndex) -> int:
    """What a row takes that has no page, its null flag too; 0 where every row has a page."""
    return 0 if index.default is None else index.default.nbytes + 1


def _absent_rows(index: ColumnIndex, rows: range | Ints | int) -> int:
    """How many of `rows` no page holds, at most."""
    if index.default is None:
        return 0
    absent = index.is_absent
    if isinstance(rows, int):
        return min(rows, int(index.entries["rows"][absent].sum()))
    if not len(rows):
        return 0
    if not isinstance(rows, range):
        return int(np.count_nonzero(absent[index.page_of(rows)]))
    low, high = min(rows[0], rows[-1]), max(rows[0], rows[-1]) + 1
    inside = np.diff(np.clip(index.first_row, low, high))
    return min(len(rows), int(inside[absent].sum()))


RowNumbers = slice | Sequence[int] | np.ndarray[Any, np.dtype[Any]]
BATCH_BYTES = 16 << 20
INDEX_BYTES = 32 << 20  # of page indexes, decoded for all columns of their group
KEPT_PARTS = 4  # parts of a version that a handle remembers
SHOWN_VALUES = 10  # of a column that is printed


# Gives, of the smallest side of the pictures of each page, the last band that is wanted of it.
ChooseBand = Callable[[Ints], Ints]


@dataclass(slots=True, eq=False)
class _Memory:
    """What a handle has read already, and of which columns it reads previews."""

    readers: dict[str, PageReader] = field(default_factory=dict)
    cache: DecodedPageCache = field(default_factory=DecodedPageCache)
    indexes: LimitedCache[tuple[IndexPart, ...]] = field(
        default_factory=lambda: LimitedCache(INDEX_BYTES)
    )
    leaves: tuple[tuple[Leaf, Links], ...] | None = None
    live: LiveRows | None = None
    ids: RowIdTable | None = None
    foreign: ForeignReader | None = None
    parts: LimitedCache[StoredDataset] = field(default_factory=lambda: LimitedCache(KEPT_PARTS))
    lock: Lock = field(default_factory=Lock)
    previews: Mapping[str, ChooseBand] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class StoredDataset:
    """One version of a dataset. Safe to share between threads.

    ``ds[7]`` is a dict of one row, ``ds[10:20]`` and ``ds[[3, 9, 4]]`` are dicts of columns,
    ``ds["label"]`` is a column. Values are as `present` says.

    `outside` reads files in place and links; by default nothing outside the repository is read.
    """

    objects: ObjectSource
    digest: Digest
    root: Root
    links: Links
    outside: Outside = field(default_factory=Nothing)
    _memory: _Memory = field(default_factory=_Memory)

    @property
    def schema(self) -> Schema:
        return self.root.schema

    @property
    def properties(self) -> dict[str, Any]:
        return self.root.properties

    @property
    def rows(self) -> int:
        """Rows that are not deleted: what all numbers of rows here count."""
        return self.root.rows - self.root.deleted

    @property
    def stored_bytes(self) -> int:
        """Bytes of all pages."""
        return self.root.stored_bytes

    @property
    def entry(self) -> Entry:
        """What a tree holds of it."""
        columns = len(self.schema.visible.columns)
        summary = dataset_summary(rows=self.rows, columns=columns, stored_bytes=self.stored_bytes)
        return Entry(Kind.DATASET, self.digest, summary=summary)

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        columns = ", ".join(self.schema.visible.names)
        return f"<Dataset {self.digest:.12}: {counted(self.rows, 'row')} of {columns}>"

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: str) -> ColumnView: ...
    @overload
    def __getitem__(self, key: RowNumbers) -> dict[str, Presented]: ...
    def __getitem__(self, key: int | str | RowNumbers) -> Any:
        if isinstance(key, str):
            return ColumnView(self, self.schema.column(key))
        if isinstance(key, int | np.integer):
            row = _row_number(int(key), self.rows)
            found = self._columns(range(row, row + 1))
            return {column.name: present_row(column, values) for column, values in found}
        found = self._columns(resolve_rows(key, self.rows))
        return {column.name: present(column, values) for column, values in found}

    def _columns(self, rows: range | Ints) -> Iterator[tuple[Column, ColumnValues]]:
        columns = self.schema.visible.columns
        names = [column.name for column in columns]
        return zip(columns, read_live(self, names, rows), strict=True)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every row, page by page."""
        for batch in iterate(self):
            for at in range(next(iter(batch.values())).rows):
                yield {
                    column.name: present_row(column, batch[column.name], at)
                    for column in self.schema.visible.columns
                }

    def resolve(self, name: str, rows: RowNumbers = slice(None)) -> list[bytes | None]:
        """What links of a column point at, proved as far as they say what it was; see `links`."""
        return list(read_links(self.outside, self[name][rows]))

    def to_batches(
        self, columns: Iterable[str] | None = None, *, max_bytes: int = BATCH_BYTES
    ) -> Iterator[pa.RecordBatch]:
        """All rows as Arrow batches of at most about `max_bytes`, a page at least."""
        chosen = self.schema.select(columns)
        schema = chosen.to_arrow()
        for batch in iterate(self, chosen.names, max_bytes=max_bytes):
            arrays = [column_array(column, batch[column.name]) for column in chosen.columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def to_arrow(self, columns: Iterable[str] | None = None) -> pa.Table:
        """All rows as one table; without a copy where pages lie on a local disk.

        Raises:
            InvalidInputError: more rows without values than are made at once; see `to_batches`.
        """
        chosen = self.schema.select(columns)
        every: range | Ints = range(self.root.rows)
        if self.root.deleted:
            every = live_rows(self).physical(np.arange(self.rows))
        check_absent(_indexes(self, chosen.names), every)
        table = pa.Table.from_batches(self.to_batches(chosen.names), chosen.to_arrow())
        return table.unify_dictionaries()

    def to_numpy(self, columns: Iterable[str] | None = None) -> dict[str, Presented]:
        """All rows of each column, as ``ds[name][:]`` gives them."""
        return {name: self[name][:] for name in self.schema.select(columns).names}


@dataclass(frozen=True, slots=True, repr=False)
class ColumnView(Shown):
    """One column of a dataset: ``view[7]`` is a value, ``view[:]`` and ``view[[3, 1]]`` many.

    ``view[7, 0:64, ..., 3]`` is a region of one tensor: of a tiled column only the tiles that it
    touches are read.
    """

    dataset: StoredDataset
    column: Column

    def to_table(self) -> RecordTable:
        """The first values; of a column cut into tiles, which may be large, none."""
        kind, rows = self.column.type, len(self)
        title = f"column {self.column.name}: {self.column.type_text}, {counted(rows, 'row')}"
        tiled = self.column.storage.layout is ColumnLayout.TILED
        shown = 0 if tiled else min(rows, SHOWN_VALUES)
        cells = enumerate(cell_of(kind, value) for value in (self[:shown] if shown else ()))
        return RecordTable((title,), (">row", self.column.name), tuple(cells), rows - shown)

    def __repr__(self) -> str:
        return f"<column {self.column.name}: {self.column.type_text}, {counted(len(self), 'row')}>"

    def __len__(self) -> int:
        return self.dataset.rows

    @overload
    def __getitem__(self, key: int | tuple[Any, ...]) -> Any: ...
    @overload
    def __getitem__(self, key: RowNumbers) -> Presented: ...
    def __getitem__(self, key: int | tuple[Any, ...] | RowNumbers) -> Any:
        name = self.column.name
        if isinstance(key, tuple):
            return self._region(*key)
        if isinstance(key, int | np.integer):
            row = _row_number(int(key), self.dataset.rows)
            return present_row(self.column, read_rows(self.dataset, name, slice(row, row + 1)))
        return present(self.column, read_rows(self.dataset, name, key))

    def _region(self, row: Any = None, *region: Any) -> Any:
        if not isinstance(row, int | np.integer):
            raise InvalidInputError(
                f"a region is of one row, [row, slices...]; got {row!r:.60} for the row. "
                "Of several rows, read them first: [rows][:, slices...]"
            )
        number = _row_number(int(row), self.dataset.rows)
        physical = live_rows(self.dataset).physical(np.array([number]))[0]
        return region_of(page_reader(self.dataset, self.column.name), int(physical), region)

    def __iter__(self) -> Iterator[Any]:
        for batch in iterate(self.dataset, [self.column.name]):
            values = batch[self.column.name]
            for at in range(values.rows):
                yield present_row(self.column, values, at)


# ------------------------------------------------------------------------------ opening


def open_dataset(
    objects: ObjectSource,
    digest: Digest,
    outside: Outside | None = None,
    *,
    pages: DecodedPageCache | None = None,
) -> StoredDataset:
    """The dataset whose root has this digest; reads one object.

    Without `outside`, files in place and links are not read. `pages` keeps what is read from a
    store, for several datasets together; None: the dataset has its own.

    Raises:
        NotFoundError: there is no such object.
        CorruptError, UnsupportedError: it is no root that this version can read.
    """
    envelope = objects.get(digest)
    if envelope.kind is not Kind.DATASET:
        raise InvalidInputError(f"object {digest:.12} is a {envelope.kind.label}, not a dataset")
    links = {link.digest: link for link in envelope.links}
    root = decode_root(envelope.payload)
    memory = _Memory() if pages is None else _Memory(cache=pages)
    return StoredDataset(objects, digest, root, links, outside or Nothing(), memory)


def open_part(dataset: StoredDataset, parts: Sequence[tuple[Leaf, Links]]) -> StoredDataset:
    """Some fragments of a dataset as one of their own, whose rows count from 0.

    It has no row ids, statistics or digest of its own, and shares what keeps pages with `dataset`.

    `parts` are fragments, as `tree_read.leaf_part` cuts them out.
    """
    counts = [leaf.counts for leaf, _ in parts]
    rows, deleted = (sum(each[at] for each in counts) for at in (1, 2))
    root = replace(dataset.root, leaves=(), rows=rows, deleted=deleted)
    known = dataset._memory  # noqa: SLF001  its module
    memory = _Memory(cache=known.cache, leaves=tuple(parts), previews=known.previews)
    return StoredDataset(dataset.objects, dataset.digest, root, {}, dataset.outside, memory)


def narrowed(dataset: StoredDataset, rows: Ints) -> StoredDataset:
    """A dataset with only some of its rows there, as if the others were deleted.

    `rows` are physical, ascending, each once, none of them deleted; the digest stays that of the
    whole.
    """
    is_dead = np.ones(dataset.root.rows, np.bool_)
    is_dead[rows] = False
    dead = np.flatnonzero(is_dead)
    root = replace(dataset.root, deleted=len(dead))
    leaves, known = dataset_leaves(dataset), dataset._memory  # noqa: SLF001  its module
    memory = replace(known, leaves=leaves, live=LiveRows(root.rows, dead), lock=Lock())
    return replace(dataset, root=root, _memory=memory)


def undeleted(dataset: StoredDataset) -> StoredDataset:
    """A dataset as if none of its rows were deleted; the digest stays that of the whole."""
    root = replace(dataset.root, deleted=0)
    leaves, known = dataset_leaves(dataset), dataset._memory  # noqa: SLF001  its module
    alive = LiveRows(root.rows, np.zeros(0, np.int64))
    memory = replace(known, leaves=leaves, live=alive, lock=Lock())
    return replace(dataset, root=root, _memory=memory)


def previewed(dataset: StoredDataset, columns: Mapping[str, ChooseBand]) -> StoredDataset:
    """A dataset whose pages of some columns are read up to a band of their scans.

    Their pictures are small JPEGs; pages that are not of scans, and values that were set later, are
    what they are. `columns` are by name. The digest stays.
    """
    if not columns:
        return dataset
    known = dataset._memory  # noqa: SLF001  its module
    chosen = {dataset.schema.column(name).id: choose for name, choose in columns.items()}
    readers = {name: reader for name, reader in known.readers.items() if name not in chosen}
    memory = replace(known, readers=readers, previews={**known.previews, **chosen}, lock=Lock())
    return replace(dataset, _memory=memory)


def projected(dataset: StoredDataset, schema: Schema) -> StoredDataset:
    """A dataset with only the columns of `schema`, some of its own; the digest stays."""
    return replace(dataset, root=replace(dataset.root, schema=schema))


def column_index(dataset: StoredDataset, name: str) -> ColumnIndex:
    """All pages of a column: what readers and planners use. Read once per handle."""
    return page_reader(dataset, name).index


def page_reader(dataset: StoredDataset, name: str) -> PageReader:
    """Reads proved pages of a column."""
    column = dataset.schema.column(name)
    memory = dataset._memory  # noqa: SLF001  # the handle's own module
    found = memory.readers.get(column.id)
    if found is None:
        index = _read_column_index(dataset, column)
        with memory.lock:
            memory.foreign = memory.foreign or ForeignReader(dataset.objects, dataset.outside)
            foreign = memory.foreign.read
            fresh = PageReader(dataset.objects, index, name, memory.cache, foreign)
            found = memory.readers.setdefault(column.id, fresh)
    return found


def part_of(
    dataset: StoredDataset, key: Hashable, make: Callable[[], StoredDataset]
) -> StoredDataset:
    """The part of a version that `make` makes, remembered with all that was read of it.

    Histories are walked in pairs: each version is compared with its parent, then with its child.
    """
    return dataset._memory.parts.get_or_load(key, lambda: (make(), 1))  # noqa: SLF001


def page_bytes(dataset: StoredDataset, index: ColumnIndex, page: int) -> memoryview:
    """The stored bytes of one page of `column_index(dataset, ...)`, proved and read-only."""
    return dataset._memory.readers[index.id].bytes(page)  # noqa: SLF001


def dataset_leaves(dataset: StoredDataset) -> tuple[tuple[Leaf, Links], ...]:
    """All leaves, each with the links of its object. Read once per handle."""
    memory = dataset._memory  # noqa: SLF001  # the handle's own module
    if memory.leaves is None:
        read, entries = partial(read_leaf, dataset.objects, dataset.links), dataset.root.leaves
        threads = READ_THREADS if len(entries) > 1 else 0
        memory.leaves = tuple(ordered_map(entries, read, threads=threads, name="leaf"))
    return memory.leaves


def fragment_records(dataset: StoredDataset) -> NDArray[Any]:
    """FRAGMENT records of the whole dataset, in order."""
    leaves = [leaf.fragments for leaf, _ in dataset_leaves(dataset)]
    return np.concatenate([np.zeros(0, FRAGMENT), *leaves])


def _placed_leaves(dataset: StoredDataset) -> Iterator[tuple[Leaf, Links, Ints, Ints]]:
    """Leaves with their links, and of each fragment its first row in the dataset and its rows."""
    first = 0
    for leaf, links in dataset_leaves(dataset):
        rows = leaf.fragments["rows"].astype(np.int64)
        yield leaf, links, first + np.cumsum(rows) - rows, rows
        first += int(rows.sum())


def live_rows(dataset: StoredDataset) -> LiveRows:
    """Which rows are not deleted. Read once per handle."""
    memory = dataset._memory  # noqa: SLF001
    if memory.live is None:
        dead = [np.zeros(0, np.int64)]
        for leaf, links, starts, rows in _placed_leaves(dataset) if dataset.root.deleted else ():
            for at, each in sorted(read_deletions(dataset.objects, leaf, links).items()):
                dead.append(starts[at] + unpack_deletions(each, int(rows[at])))
        memory.live = LiveRows(dataset.root.rows, np.concatenate(dead))
    return memory.live


def row_id_table(dataset: StoredDataset) -> RowIdTable:
    """Ids of all rows, deleted ones too. Read once per handle."""
    memory = dataset._memory  # noqa: SLF001
    if memory.ids is None:
        moved: dict[int, NDArray[Any]] = {}
        first = 0
        for leaf, links in dataset_leaves(dataset):
            runs = read_runs(dataset.objects, leaf, links)
            moved |= {first + at: each for at, each in runs.items()}
            first += len(leaf.fragments)
        records = fragment_records(dataset)
        memory.ids = id_table(records["uid"], records["rows"], moved)
    return memory.ids


def _group_parts(dataset: StoredDataset, group: str) -> tuple[IndexPart, ...]:
    """The page indexes of a column group, which hold all of its columns."""
    wanted = [
        (leaf.fragments["rows"][start:stop], span, links)
        for leaf, links in dataset_leaves(dataset)
        for start, stop, span in covering(leaf.indexes, group, len(leaf.fragments))
    ]
    is_far = any(span is not None and isinstance(span.payload, str) for _, span, _ in wanted)

    def read(part: tuple[NDArray[np.uint32], FragmentSpan | None, Links]) -> IndexPart:
        rows, span, links = part
        index, links = (None, links) if span is None else read_index(dataset.objects, span, links)
        return IndexPart(index, links, rows)

    threads = READ_THREADS if is_far and len(wanted) > 1 else 0
    return tuple(ordered_map(wanted, read, threads=threads, name="index"))


def _read_column_index(dataset: StoredDataset, column: Column) -> ColumnIndex:
    group = next(group[0] for group in dataset.root.groups if column.id in group)

    def load() -> tuple[tuple[IndexPart, ...], int]:
        loaded = _group_parts(dataset, group)
        return loaded, sum(part.size_bytes for part in loaded)

    # Decoded once for all columns of the group: a wide table asks for each of them.
    parts = dataset._memory.indexes.get_or_load(group, load)  # noqa: SLF001
    has_default = column.nullable or column.default is not None
    index = join_indexes(
        column.id,
        column.storage,
        parts,
        default=default_values(column) if has_default else None,
        patches=_read_patches(dataset, column),
    )
    if index.rows != dataset.root.rows:
        raise CorruptError(
            f"column {column.name!r}: page indexes hold {index.rows} rows, "
            f"the root {dataset.root.rows}"
        )
    choose = dataset._memory.previews.get(column.id)  # noqa: SLF001
    if choose is None:
        return index
    return _small_index(dataset, column, choose) or preview_index(index, choose)


def _small_index(dataset: StoredDataset, column: Column, choose: ChooseBand) -> ColumnIndex | None:
    """The pages of the small pictures that are stored beside a column, where they will do."""
    hidden = (column.id, SMALL_IMAGE)
    small = next((each for each in dataset.schema.columns if each.derived == hidden), None)
    if small is None:
        return None
    index = _read_column_index(dataset, small)
    has = (index.previews["stored_bytes"] > 0).all(axis=1)
    sides = index.previews["least_side"][has, 0].astype(np.int64)
    if not len(sides) or index.is_absent.any() or (choose(sides) >= SMALL_BANDS).any():
        return None
    return replace(preview_index(index, choose), id=column.id)


def _read_patches(dataset: StoredDataset, column: Column) -> Patches | None:
    """All patches of a column, by row of the dataset: of several for one row the last."""
    rows = [np.zeros(0, np.int64)]
    parts: list[IndexPart] = []
    for leaf, links, starts, counts in _placed_leaves(dataset):
        for span in leaf.patches:
            if span.group == column.id:
                patch, patch_links = read_patches(dataset.objects, span, links)
                some = slice(span.first_fragment, span.stop_fragment)
                rows.append(patched_rows(patch, starts[some], counts[some]))
                count = np.array([len(rows[-1])], np.uint32)
                parts.append(IndexPart(patch.index, patch_links, count))
    if not parts:
        return None
    every = np.concatenate(rows)
    # The last of equal rows: unique gives the first, of the reversed array.
    unique, from_end = np.unique(every[::-1], return_index=True)
    return Patches(
        unique, len(every) - 1 - from_end, join_indexes(column.id, column.storage, parts)
    )


# ------------------------------------------------------------------------------ rows


def read_rows(dataset: StoredDataset, name: str, key: RowNumbers | range) -> ColumnValues:
    """Some rows of one column, copied: a slice, row numbers in any order, or a mask of all rows."""
    return read_live(dataset, [name], resolve_rows(key, dataset.rows))[0]


def read_live(
    dataset: StoredDataset, names: Sequence[str], rows: range | Ints
) -> list[ColumnValues]:
    """Live rows of several columns, copied; of those in a store in the same rounds of requests."""
    readers = [page_reader(dataset, name) for name in names]
    indexes = {name: reader.index for name, reader in zip(names, readers, strict=True)}
    live = live_rows(dataset)
    if isinstance(rows, range) and rows.step == 1 and len(rows):
        start, last = live.physical(np.array([rows.start, rows.stop - 1])).tolist()
        stop = last + 1
        check_absent(indexes, range(start, stop))
        alive = live.alive(start, stop)
        if alive is None:
            return read_columns(readers, range(start, stop))
        return read_columns(readers, start + alive)
    if isinstance(rows, range):
        check_absent(indexes, rows)  # before there is a number for each
        rows = np.arange(rows.start, rows.stop, rows.step)
    physical = live.physical(rows)
    check_absent(indexes, physical)
    return read_columns(readers, physical)


def _indexes(dataset: StoredDataset, names: Iterable[str]) -> dict[str, ColumnIndex]:
    return {name: column_index(dataset, name) for name in names}


def resolve_rows(key: RowNumbers | range, rows: int) -> range | Ints:
    """Row numbers in ``[0, rows)``; negative ones count from the end.

    Raises:
        InvalidInputError: no row numbers, or a mask of another length.
        NoSuchRowError: beyond the end.
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
        raise NoSuchRowError(f"no row {worst}: the dataset has {rows} rows")
    signed = numbers.astype(np.int64)
    return np.where(signed < 0, signed + rows, signed)


def _row_number(row: int, rows: int) -> int:
    if not -rows <= row < rows:
        raise NoSuchRowError(f"no row {row}: the dataset has {rows} rows")
    return row % rows


def iterate(
    dataset: StoredDataset, columns: Iterable[str] | None = None, *, max_bytes: int = BATCH_BYTES
) -> Iterator[dict[str, ColumnValues]]:
    """All rows in order, cut where pages of the columns end: so no row is copied.

    A batch holds no more than `max_bytes`, unless one row does.
    """
    names = dataset.schema.select(columns).names
    for _, values in scan(dataset, names, max_bytes=max_bytes):
        yield values


def scan(
    dataset: StoredDataset,
    columns: Sequence[str],
    start: int = 0,
    stop: int | None = None,
    *,
    max_bytes: int = BATCH_BYTES,
) -> Iterator[tuple[Ints, dict[str, ColumnValues]]]:
    """Rows in order, cut where pages of the columns end, with their physical numbers.

    `start` and `stop` are physical rows; deleted ones between them are left out. A batch holds no
    more than `max_bytes`, unless one row does.
    """
    stop = dataset.root.rows if stop is None else stop
    check_absent(_indexes(dataset, columns), 1, advice=_SMALLER_ROWS)
    for low, high in _live_ranges(dataset, columns, start, stop):
        yield from _scan_range(dataset, columns, low, high, max_bytes)


def _live_ranges(
    dataset: StoredDataset, columns: Sequence[str], start: int, stop: int
) -> Iterator[tuple[int, int]]:
    """Parts of ``[start, stop)`` that leave out pages whose rows are all deleted."""
    live = live_rows(dataset)
    low, high = np.searchsorted(live.dead, [start, stop])
    if low == high or not columns:
        yield from [(start, stop)] if start < stop else []
        return
    firsts = [column_index(dataset, name).first_row for name in columns]
    bounds = np.unique(np.clip(np.concatenate([*firsts, [start, stop]]), start, stop))
    has_live = np.diff(live.live_bounds(bounds)) > 0
    steps = np.diff(np.concatenate([[0], has_live.astype(np.int8), [0]]))
    yield from zip(bounds[steps == 1].tolist(), bounds[steps == -1].tolist(), strict=True)


def _scan_range(
    dataset: StoredDataset, columns: Sequence[str], start: int, stop: int, max_bytes: int
) -> Iterator[tuple[Ints, dict[str, ColumnValues]]]:
    cursors = {name: _Cursor(page_reader(dataset, name), start, stop) for name in columns}
    walked, live = list(cursors.values()), live_rows(dataset)
    while start < stop:
        end = min([stop, *[cursor.stop_of(start) for cursor in walked]])
        row_bytes = sum([cursor.row_bytes for cursor in walked])
        step = max(1, int(max_bytes / max(row_bytes, 1.0)))
        for low in range(start, end, step):
            high = min(end, low + step)
            alive = live.alive(low, high)
            values = {name: cursor.slice(low, high) for name, cursor in cursors.items()}
            if alive is None:
                yield np.arange(low, high), values
            elif len(alive):
                yield low + alive, {name: each.take(alive) for name, each in values.items()}
        start = end


class _Cursor:
    """Walks the pages of one column in order."""

    def __init__(self, reader: PageReader, start: int, stop: int) -> None:
        self._reader = reader
        bounds, storage = reader.index.first_row, reader.index.storage
        self._bounds: memoryview = bounds.data  # gives plain numbers, at a third of the price
        first = max(0, int(np.searchsorted(bounds, start, "right")) - 1)
        # A page of tiles holds a whole fragment: its rows are read when they are asked for.
        self._by_rows = storage.layout is ColumnLayout.TILED
        is_fixed = storage.layout is ColumnLayout.FIXED
        self._row_bytes = float(storage.row_bytes) if is_fixed else None
        last = first if self._by_rows else int(np.searchsorted(bounds, stop, "left"))
        self._pages = reader.scan(range(first, last))
        self._page = first - 1
        self._values: ColumnValues | None = None

    def stop_of(self, row: int) -> int:
        """Where the page that holds `row` ends; goes on to it."""
        while row >= self._bounds[self._page + 1]:
            if not self._by_rows:
                self._values = next(self._pages)
            self._page += 1
        return self._bounds[self._page + 1]

    @property
    def row_bytes(self) -> float:
        """What a row of the page takes in memory, about."""
        known = self._row_bytes
        return self._reader.row_bytes(self._page) if known is None else known

    def slice(self, start: int, stop: int) -> ColumnValues:
        if self._by_rows:
            return concat(self._reader.range(start, stop))
        assert self._values is not None, "stop_of came first"
        first, end = self._bounds[self._page], self._bounds[self._page + 1]
        if first == start and stop == end:
            return self._values
        return self._values.slice(start - first, stop - first)
