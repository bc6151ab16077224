"""Erasure of rows and columns from a version of a dataset: its twin, which never had them.

Rows are known by their ids, columns by theirs. A fragment that holds an erased row is written anew
without it; so is each fragment that shares a chunk with one, here or in another version, for a
chunk goes as a whole. Everything else is linked, rows keep their ids, and statistics are counted
again from the pages that stay. Equal fragments make equal twins, so versions share them as before.

Source:
    docs/spec/log.md, section "Purges"; docs/design/071-a-purge-maps-roots-to-twins.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field, replace
from typing import Any, Final, TypeAlias

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from tensorrepo.formats.common.buffer_codecs import CodecChoice
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.metadata.boundaries import ColumnPart, IndexParts
from tensorrepo.formats.dataset.metadata.index import ColumnPages
from tensorrepo.formats.dataset.metadata.manifest import LeafEntry
from tensorrepo.formats.dataset.metadata.row_ids import ROW_ID
from tensorrepo.formats.dataset.metadata.span_write import (
    Fragment,
    leaf_fragments,
    leaf_patches,
)
from tensorrepo.formats.dataset.metadata.tree_read import read_index, read_leaf, read_patches
from tensorrepo.formats.dataset.metadata.tree_write import Groups, TreeWriter
from tensorrepo.formats.dataset.read import (
    BATCH_BYTES,
    StoredDataset,
    live_rows,
    narrowed,
    open_dataset,
    row_id_table,
    scan,
)
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.dataset.schema.types import ClassLabel
from tensorrepo.formats.dataset.update import delete_physical
from tensorrepo.formats.dataset.versions.fragment_content import FragmentNames, NamedFragment
from tensorrepo.formats.dataset.write import BUDGET_BYTES
from tensorrepo.formats.dataset.writing.fragment_write import (
    FragmentWriter,
    WriteOptions,
    writer_threads,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, ObjectSink

PagePlace: TypeAlias = tuple[Digest, int]  # chunk, and offset in it; -1: a chunk of tiles
_TWINS_BYTES: Final = 64 << 20  # of fragments that were written for other versions


def _no_ids() -> NDArray[np.void]:
    return np.zeros(0, ROW_ID)


@dataclass(frozen=True, slots=True, eq=False)
class Erasure:
    """What is erased.

    Attributes:
        ids: ROW_ID ``(n,)`` of rows, each once.
        columns: ids of columns.
        classes: names of classes that go, by id of the column; ``purged-7`` stands for number 7.
        repeats: whether a text repeats an erased value; in lineage and properties it goes.
    """

    ids: NDArray[np.void] = field(default_factory=_no_ids)
    columns: frozenset[str] = frozenset()
    classes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    repeats: Callable[[str], bool] = lambda _: False

    @property
    def is_empty(self) -> bool:
        return not len(self.ids) and not self.columns


def erased_rows(dataset: StoredDataset, erasure: Erasure) -> Ints:
    """Physical rows of a version that are erased, deleted ones too, ascending."""
    found = row_id_table(dataset).find(erasure.ids)
    return np.sort(found[found >= 0])


def tainted_pages(dataset: StoredDataset, erasure: Erasure) -> Iterator[PagePlace]:
    """Where pages of a version lie that hold erased rows or columns, some more than once."""
    rows = erased_rows(dataset, erasure)
    if not len(rows) and not erasure.columns:
        return
    first = 0
    for entry in dataset.root.leaves:
        low, high = np.searchsorted(rows, [first, first + entry.rows])
        if low < high or erasure.columns:
            yield from _tainted_of_leaf(dataset, entry, rows[low:high] - first, erasure.columns)
        first += entry.rows


def _tainted_of_leaf(
    dataset: StoredDataset, entry: LeafEntry, rows: Ints, columns: AbstractSet[str]
) -> Iterator[PagePlace]:
    """`rows` are those erased, counted from the first one of the leaf."""
    leaf, links = read_leaf(dataset.objects, dataset.links, entry)
    stops = np.cumsum(leaf.fragments["rows"], dtype=np.int64)
    starts = stops - leaf.fragments["rows"]
    hit = set(np.searchsorted(stops, rows, side="right").tolist())
    for span in leaf.indexes:
        parts = IndexParts(read_index(dataset.objects, span, links)[0])
        for at in range(parts.fragments):
            fragment = span.first_fragment + at
            if not (columns or fragment in hit):
                continue
            low, high = np.searchsorted(rows, [starts[fragment], stops[fragment]])
            for part in parts.of(at, at + 1).columns:
                if part.id in columns:
                    yield from _places(dataset, part)
                elif low < high:
                    yield from _places(dataset, part, rows[low:high] - starts[fragment])
    patched = frozenset(span.group for span in leaf.patches)
    for column, found in leaf_patches(dataset.objects, leaf, links, patched).items():
        for fragment, patches in found.items():
            if column in columns or fragment in hit:
                for patch in patches:  # its pages count values, and not rows
                    yield from _places(dataset, patch.column)


def erase(
    objects: ObjectSink,
    dataset: StoredDataset,
    erasure: Erasure,
    tainted: AbstractSet[PagePlace],
    *,
    made: FragmentTwins | None = None,
    names: FragmentNames | None = None,
    budget_bytes: int = BUDGET_BYTES,
    codec: CodecChoice = "auto",
) -> ObjectLink | None:
    """Store the twin of a version; None where it holds nothing that is erased.

    Whoever erases the same of several versions gives one `made` for all: what one of them had
    written anew is linked in the next.

    Args:
        objects: where the twin is stored; it reads what is in `dataset`.
        dataset: the version, which stays as it is.
        erasure: what is erased.
        tainted: places of pages, in chunks of any version, that hold some of it.
        made: fragments that were written for other versions.
        names: names of fragments that are known already.
        budget_bytes: bound of the memory used, beside one batch.
        codec: codec tried on pages that are written anew.

    Raises:
        InvalidInputError: no column is left; or the version has erased rows under other ids.
    """
    rows = erased_rows(dataset, erasure)
    chunks = frozenset(chunk for chunk, _ in tainted)
    leaves = [_leads_to(dataset, entry, erasure, chunks) for entry in dataset.root.leaves]
    known = {each for group in dataset.root.groups for each in group}
    schema = _schema_without(dataset.schema, erasure)
    root = dataset.root
    texts = redacted((root.properties, root.lineage), erasure.repeats)
    kept = schema == dataset.schema and texts == (root.properties, root.lineage)
    if not len(rows) and not any(leaves) and not (known & erasure.columns) and kept:
        return None
    with writer_threads() as (encoders, storers):
        rng = random.Random()
        options = WriteOptions(encoders, budget_bytes, codec=codec, rng=rng)
        groups = _groups_without(dataset.root.groups, erasure.columns)

        put: list[_PutFragment] = []

        def tree(groups: Groups) -> TreeWriter:
            return _NotingTree(put, objects, schema, groups, None, storers, options.quarter_bytes)

        made = made or FragmentTwins()
        writer = FragmentWriter(schema, options, tree, groups or made.groups(schema))
        eraser = _Eraser(
            dataset, schema, rows, tainted, chunks, leaves, writer, rng, made,
            names or FragmentNames(), put, not groups,
        )  # fmt: skip
        twin = eraser.run().finish(*texts)
    bare = open_dataset(objects, twin.digest)
    eraser.remember(bare)
    dead = np.setdiff1d(_dead_rows(dataset), rows, assume_unique=True)
    if not len(dead):
        return twin
    # Marked, and not left out: so versions share fragments of which they hide other rows.
    places = row_id_table(bare).find(row_id_table(dataset).of(dead))
    return delete_physical(objects, bare, np.sort(places))


def _dead_rows(dataset: StoredDataset) -> Ints:
    alive = live_rows(dataset).physical(np.arange(dataset.rows))
    return np.setdiff1d(np.arange(dataset.root.rows), alive, assume_unique=True)


class FragmentTwins:
    """What was written in the place of fragments, as it lies in the version that it was written
    for, and the column groups that were chosen. What was forgotten is written again.
    """

    def __init__(self) -> None:
        self._twins = LimitedCache[tuple[_Twin, ...]](_TWINS_BYTES)
        self._groups: dict[str, Groups] = {}  # by the schema

    def groups(self, schema: Schema) -> Groups:
        """Column groups of a twin whose schema this is; none where there was no such twin."""
        return self._groups.get(repr(schema), ())

    def note_groups(self, twin: StoredDataset) -> None:
        self._groups[repr(twin.schema)] = twin.root.groups

    def get(self, key: bytes) -> tuple[_Twin, ...] | None:
        return self._twins.get(key)

    def put(self, key: bytes, twins: tuple[_Twin, ...]) -> None:
        self._twins.put(key, twins, sum(_kept_bytes(twin.fragment) for twin in twins))


@dataclass(frozen=True, slots=True, eq=False)
class _PutFragment:
    """The uid of a fragment that was put in, and what tiles of new pages take, by column."""

    uid: int
    tile_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class _Twin:
    fragment: Fragment
    tile_bytes: Mapping[str, int]  # which nothing that is stored says by column


class _NotingTree(TreeWriter):
    """Notes the fragments that are put in, and takes twins that another version has."""

    def __init__(self, put: list[_PutFragment], *given: Any) -> None:
        super().__init__(*given)
        self._put = put

    def add(self, fragment: Fragment) -> None:
        tiles = {
            column.id: sum(page.tile_bytes for page in column.pages)
            for column in fragment.columns
            if not isinstance(column.pages, ColumnPages)
        }
        self._put.append(_PutFragment(fragment.uid, tiles))
        super().add(fragment)

    def add_twin(self, twin: _Twin) -> None:
        self.add_known(twin.fragment, counted=False)
        for column, size in twin.tile_bytes.items():
            self._tallies[column].stored_bytes += size


def _kept_bytes(fragment: Fragment) -> int:
    """Memory that a fragment takes, about: what metadata says, and pages that stand inline."""
    parts = list(fragment.every_column)
    inline = any(not isinstance(part.pages, ColumnPages) for part in parts)
    return 1000 + sum(500 + 200 * part.count for part in parts) + fragment.stored_bytes * inline


@dataclass(frozen=True, slots=True, eq=False)
class _Eraser:
    dataset: StoredDataset
    schema: Schema
    rows: Ints
    tainted: AbstractSet[PagePlace]
    chunks: frozenset[Digest]
    leaves: list[bool]  # whether each leads to what is tainted
    writer: FragmentWriter
    rng: random.Random
    made: FragmentTwins
    names: FragmentNames
    put: list[_PutFragment]  # fragments of the twin, as they come
    regroups: bool  # whether its column groups are others than those of the version
    written: dict[bytes, list[_PutFragment]] = field(default_factory=dict)  # for a fragment each

    def run(self) -> TreeWriter:
        dataset, first = self.dataset, 0
        physical = np.arange(dataset.root.rows)
        kept = narrowed(dataset, np.setdiff1d(physical, self.rows, assume_unique=True))
        for number, entry in enumerate(dataset.root.leaves):
            leads = self.leaves[number]
            low, high = np.searchsorted(self.rows, [first, first + entry.rows])
            stays = not self.regroups and self.writer.groups == dataset.root.groups
            if low == high and not leads and stays:
                self._keep(entry)
                first += entry.rows
                continue
            fragments = leaf_fragments(dataset, entry)
            named = self.names.of(dataset, number, first)
            for fragment, place in zip(fragments, named, strict=True):
                self._put(kept, fragment, place)
            first += entry.rows
        return self.writer.finish()

    def remember(self, twin: StoredDataset) -> None:
        """Keep what was written for fragments of this version, as it lies in the twin."""
        wanted = {each.uid for put in self.written.values() for each in put}
        found: dict[int, Fragment] = {}
        for entry in twin.root.leaves if wanted else ():
            each = {one.uid: one for one in leaf_fragments(twin, entry) if one.uid in wanted}
            found |= each
        for name, put in self.written.items():
            twins = tuple(_Twin(found[each.uid], each.tile_bytes) for each in put)
            self.made.put(_key(twin.root.groups, name), twins)
        self.made.note_groups(twin)

    def _keep(self, entry: LeafEntry) -> None:
        tree = self.writer.tree
        for fragment in leaf_fragments(self.dataset, entry):
            tree.count(fragment)
        tree.keep_leaf(self.dataset, entry, last=entry is self.dataset.root.leaves[-1])

    def _put(self, kept: StoredDataset, fragment: Fragment, place: NamedFragment) -> None:
        first, stop = place.first_row, place.first_row + fragment.rows
        low, high = np.searchsorted(self.rows, [first, stop])
        parts = list(_parts_of(fragment, self.schema))
        shares = any(not self.chunks.isdisjoint(_named_chunks(part)) for part in parts)
        if shares and low == high:
            self._refuse_copies(parts)
        if low < high or shares or self.regroups:
            self._rewrite(kept, fragment, place)
            return
        if len(self.schema.columns) == len(self.dataset.schema.columns):
            self.writer.tree.add_known(fragment, counted=False)
            return
        live = {column.id for column in self.schema.columns}
        groups = {
            group: part
            for group, part in fragment.parts.items()
            if any(column.id in live for column in part.columns)
        }
        patches = {name: each for name, each in fragment.patches.items() if name in live}
        self.writer.tree.add_known(replace(fragment, parts=groups, patches=patches), counted=False)

    def _refuse_copies(self, parts: Sequence[ColumnPart]) -> None:
        """A page that is tainted holds erased rows, whatever their ids are here."""
        if any(not self.tainted.isdisjoint(_places(self.dataset, part)) for part in parts):
            raise InvalidInputError(
                "it has rows that are to be erased under ids of its own, as they were stored twice"
            )

    def _rewrite(self, kept: StoredDataset, fragment: Fragment, place: NamedFragment) -> None:
        """Put what is left of a fragment, under a name that follows from it."""
        first, stop = place.first_row, place.first_row + place.rows
        ids, names = row_id_table(self.dataset), self.schema.names
        alive = live_rows(kept).alive(first, stop)
        numbers = np.arange(first, stop) if alive is None else first + alive
        left = ids.of(numbers).tobytes()
        name = blake3(place.name + left).digest()
        groups = self.writer.groups
        if groups and (known := self.made.get(_key(groups, name))) is not None:
            tree = self.writer.tree
            assert isinstance(tree, _NotingTree), "as it was made"
            for twin in known:
                tree.add_twin(twin)
            return
        self.rng.seed(blake3(fragment.uid.to_bytes(8, "little") + left).digest())
        before = len(self.put)
        for rows, values in scan(kept, names, first, stop, max_bytes=BATCH_BYTES):
            self.writer.add([values[name] for name in names], ids.of(rows))
        self.writer.end_fragment()
        self.written[name] = self.put[before:]


def _key(groups: Groups, name: bytes) -> bytes:
    return blake3(repr(groups).encode() + name).digest()


def redacted(value: Any, repeats: Callable[[str], bool]) -> Any:
    """`value`, which is of JSON, with ``(purged)`` for each text that repeats an erased value."""
    if isinstance(value, str):
        return "(purged)" if repeats(value) else value
    if isinstance(value, Mapping):
        return {redacted(name, repeats): redacted(each, repeats) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(redacted(each, repeats) for each in value)
    return value


def _schema_without(schema: Schema, erasure: Erasure) -> Schema:
    """The columns that stay; those that follow from an erased one go with it."""
    gone = erasure.columns
    left = tuple(
        _renamed(column, erasure.classes.get(column.id, frozenset()))
        for column in schema.columns
        if column.id not in gone and not (column.derived and column.derived[0] in gone)
    )
    if not any(column.derived is None for column in left):
        raise InvalidInputError(
            "no column would be left. Remove the dataset, and let its old commits expire: "
            "`tensorrepo rm`, `tensorrepo expire`"
        )
    return replace(schema, columns=left)


def _renamed(column: Column, names: frozenset[str]) -> Column:
    if not isinstance(column.type, ClassLabel) or names.isdisjoint(column.type.names):
        return column
    told = (f"purged-{at}" if name in names else name for at, name in enumerate(column.type.names))
    return replace(column, type=ClassLabel(tuple(told)), arrow=None)


def _groups_without(groups: Groups, columns: frozenset[str]) -> Groups:
    """Groups as they stay; none where a group has to be cut, for then all are chosen anew."""
    if any(0 < len(columns & set(group)) < len(group) for group in groups):
        return ()
    return tuple(group for group in groups if not columns & set(group))


def _parts_of(fragment: Fragment, schema: Schema) -> Iterator[ColumnPart]:
    live = {column.id for column in schema.columns}
    return (part for part in fragment.every_column if part.id in live)


def _named_chunks(part: ColumnPart) -> Sequence[Digest]:
    """Chunks and files in which pages lie."""
    if isinstance(part.pages, ColumnPages):
        return part.chunks
    return [tile() for page in part.pages for tile in page.tiles]


def _places(
    dataset: StoredDataset, part: ColumnPart, offsets: Ints | None = None
) -> Iterator[PagePlace]:
    """Where pages lie in chunks of our own; with `offsets`, those that hold such rows."""
    # Files in place hold no page of the repository's own.
    chunks = {
        chunk for chunk in _named_chunks(part) if dataset.objects.describe(chunk).kind is Kind.CHUNK
    }
    if not isinstance(part.pages, ColumnPages):
        yield from ((chunk, -1) for chunk in chunks)
        return
    # A chunk of tiles holds those of one fragment, and nothing else.
    yield from ((part.chunks[number], -1) for page in part.pages.tiles for number in page)
    for at in range(part.count):
        entry, chunk = part.pages.entries[at], part.chunks[int(part.pages.chunk[at])]
        first = int(entry["first_row"])
        if chunk in chunks and (
            offsets is None
            or np.searchsorted(offsets, first)
            < np.searchsorted(offsets, first + int(entry["rows"]))
        ):
            yield chunk, int(entry["offset"])


def _leads_to(
    dataset: StoredDataset, entry: LeafEntry, erasure: Erasure, chunks: AbstractSet[Digest]
) -> bool:
    """Whether a leaf has erased columns, or pages in tainted chunks, be they of dropped columns."""
    leaf, links = read_leaf(dataset.objects, dataset.links, entry)
    indexes = [read_index(dataset.objects, span, links)[0] for span in leaf.indexes]
    indexes += [read_patches(dataset.objects, span, links)[0].index for span in leaf.patches]
    return any(
        not erasure.columns.isdisjoint(column.id for column in index.columns)
        or not chunks.isdisjoint(chunk for chunk in index.chunks if chunk is not None)
        for index in indexes
    )
