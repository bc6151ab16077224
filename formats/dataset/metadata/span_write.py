"""Fragments between versions, and the writer of the chunks and indexes that cover them.

Shared by the writers of leaves: `tree_write` puts fragments behind one another, `tree_edit` changes
some fragments of a leaf. Chunks, page indexes, patches, deletion maps and row runs are stored in
bounded memory. A `Fragment` is whole: its uid, its rows, its pages by column group, and what was
deleted, patched and moved since. No page is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.dataset.metadata.boundaries import (
    ColumnPart,
    Cuts,
    FragmentPart,
    OpenSpan,
    WaitingPage,
    column_part,
    index_parts,
    part_of,
)
from tensorrepo.formats.dataset.metadata.chunk import CHUNK_BYTES, LaidChunk, encode_footer
from tensorrepo.formats.dataset.metadata.deletions import Deletions, encode_deletion_map
from tensorrepo.formats.dataset.metadata.index import (
    ColumnPages,
    PatchIndex,
    encode_index,
    encode_patch_index,
)
from tensorrepo.formats.dataset.metadata.manifest import (
    INLINE_INDEX_BYTES,
    INLINE_INDEXES_BYTES,
    INLINE_LEAF_BYTES,
    NO_GROUP,
    FragmentSpan,
    Leaf,
    LeafEntry,
    encode_leaf,
)
from tensorrepo.formats.dataset.metadata.row_ids import RECORD as RUNS_RECORD
from tensorrepo.formats.dataset.metadata.row_ids import encode_row_runs
from tensorrepo.formats.dataset.metadata.tree_read import (
    Links,
    covering,
    read_deletions,
    read_index,
    read_leaf,
    read_patches,
    read_runs,
)
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.types import Storage
from tensorrepo.formats.dataset.schema.values import offsets_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import Buffer, Digest, digest_bytes
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, ObjectSink, ObjectSource

_Each = TypeVar("_Each")


@dataclass(frozen=True, slots=True, eq=False)
class PatchPart:
    """Values set in one fragment of one column: `offsets` uint32, those of each page ascending."""

    column: ColumnPart
    offsets: NDArray[np.uint32]

    @property
    def index_bytes(self) -> int:
        """What it takes in a patch index."""
        return FragmentPart((self.column,)).index_bytes + 4 * (
            self.column.count + len(self.offsets)
        )


@dataclass(slots=True)
class Room:
    """What may still stand inline in one leaf, in bytes."""

    payloads: int = INLINE_INDEXES_BYTES
    pages: int = 0


@dataclass(slots=True)
class SpanWriter:
    """Where spans are stored. Used by one thread.

    Attributes:
        objects: store of the objects.
        storers: threads that store chunks.
        waiting_bytes: bound of the chunks that are on their way to the store.
        count: callback for every new page, with the id of its column, when it is laid out.
    """

    objects: ObjectSink
    storers: ThreadPoolExecutor
    waiting_bytes: int
    count: Callable[[str, WaitingPage], None]
    _storing: deque[tuple[Future[ObjectLink], int]] = field(default_factory=deque)

    # -------------------------------------------------------------------------- chunks

    def store_parts(self, parts: Sequence[Buffer]) -> Callable[[], Digest]:
        """Store a chunk of these parts; blocks while too much is on its way."""
        size = sum(memoryview(part).nbytes for part in parts)
        while self._storing and size + sum(each for _, each in self._storing) > self.waiting_bytes:
            self._storing.popleft()[0].result()
        stored = self.storers.submit(self.objects.put, Kind.CHUNK, parts)
        self._storing.append((stored, size))
        return lambda: stored.result().digest

    def store_chunk(self, span: OpenSpan) -> None:
        """Lay the waiting pages of a span into a chunk of their own."""
        laid = self._lay_out(span)
        span.chunks.append(self.store_parts([*laid.parts, encode_footer(laid.columns)]))

    def _lay_out(self, span: OpenSpan) -> LaidChunk:
        for column in span.columns:
            for page in column.waiting:
                if page.is_new:
                    self.count(column.id, page)
        return span.lay_out()

    def store_full(self, spans: Sequence[OpenSpan]) -> None:
        """Store chunks that are nearly full, and the largest ones while too much is waiting."""
        ordered = sorted(spans, key=lambda span: span.waiting_bytes, reverse=True)
        waiting = sum(span.waiting_bytes for span in ordered)
        full = min(CHUNK_BYTES, self.waiting_bytes) * 3 // 4
        for span in ordered:
            size = span.waiting_bytes
            if not size or (size < full and waiting <= self.waiting_bytes):
                break
            self.store_chunk(span)
            waiting -= size

    # -------------------------------------------------------------------------- spans

    def end_index(self, span: OpenSpan, room: Room) -> FragmentSpan:
        """Complete a page index; pages that wait stand in it where `room` allows."""
        self._end_pages(span, room)
        index = span.page_index()
        payload = encode_index(index)
        place = self._place(
            Kind.PAGE_INDEX, payload, index.links, room, len(payload) - index.inline.nbytes
        )
        return FragmentSpan(span.group, span.first_fragment, span.fragments, place)

    def _end_pages(self, span: OpenSpan, room: Room) -> None:
        if not span.waiting_bytes:
            return
        size = span.encoded_bytes() if span.waiting_bytes <= room.pages else room.pages + 1
        if size > room.pages:
            self.store_chunk(span)
            return
        room.pages -= size
        laid = self._lay_out(span)
        span.inline = memoryview(b"".join(laid.parts))
        span.chunks.append(None)

    def end_patches(
        self, column: str, parts: Mapping[int, Sequence[PatchPart]], uids: Sequence[int], room: Room
    ) -> list[FragmentSpan]:
        """Store the patches of one column; keys are fragments of the leaf.

        All patches of one fragment have the same stored form: a widened column is not patched
        over patches of its narrower one.
        """
        sizes = {at: sum(part.index_bytes for part in each) for at, each in parts.items()}
        forms = {at: each[0].column.storage for at, each in parts.items()}
        return [
            self._end_patch(column, {at: parts[at] for at in some}, uids, room)
            for run in cut(sizes, uids)
            for some in _alike(run, forms)
        ]

    def _end_patch(
        self, column: str, parts: Mapping[int, Sequence[PatchPart]], uids: Sequence[int], room: Room
    ) -> FragmentSpan:
        first = min(parts)
        open_span = OpenSpan(column, first)
        fragment: list[int] = []
        offsets: list[NDArray[np.uint32]] = []
        for at, each in sorted(parts.items()):
            for part in each:
                assert part.column.storage == parts[first][0].column.storage, "one stored form"
                open_span.add_fragment(uids[at], at, FragmentPart((part.column,)))
                fragment += [at - first] * part.column.count
                offsets.append(part.offsets)
        self._end_pages(open_span, room)
        index = open_span.page_index()
        entries = index.columns[0].entries.copy()
        entries["first_row"] = offsets_of(entries["rows"])[:-1]
        index = replace(index, columns=(replace(index.columns[0], entries=entries),))
        patch = PatchIndex(index, np.array(fragment, "<u4"), np.concatenate(offsets))
        payload = encode_patch_index(patch)
        own = len(payload) - index.inline.nbytes
        place = self._place(Kind.PATCH, payload, index.links, room, own)
        return FragmentSpan(column, first, max(parts) - first + 1, place)

    def store_patches(
        self, column: str, parts: Mapping[int, PatchPart], uids: Sequence[int]
    ) -> dict[int, PatchPart]:
        """Patches of one column, those pages laid into a chunk that were waiting for one."""
        waiting = {
            at: part
            for at, part in sorted(parts.items())
            if not isinstance(part.column.pages, ColumnPages)
        }
        stored = dict(parts)
        if not waiting:
            return stored
        span = OpenSpan(column, min(waiting))
        for at, part in waiting.items():
            span.add_fragment(uids[at], at, FragmentPart((part.column,)))
        self.store_chunk(span)
        index = span.page_index()
        done = 0
        for at, part in waiting.items():
            pages = part_of(index.columns[0], done, done + part.column.count)
            stored[at] = replace(part, column=column_part(index, pages))
            done += part.column.count
        return stored

    def end_deletions(
        self, deletions: Mapping[int, Deletions], uids: Sequence[int], room: Room
    ) -> list[FragmentSpan]:
        """Store deletion maps; keys are fragments of the leaf."""
        sizes = {at: each.map_bytes for at, each in deletions.items()}
        return self._end_small(
            Kind.DELETION_MAP, deletions, cut(sizes, uids), encode_deletion_map, room
        )

    def end_runs(
        self, runs: Mapping[int, NDArray[Any]], uids: Sequence[int], room: Room
    ) -> list[FragmentSpan]:
        """Store row runs; keys are fragments of the leaf."""
        sizes = {at: RUNS_RECORD.itemsize + each.nbytes for at, each in runs.items()}
        return self._end_small(Kind.ROW_RUNS, runs, cut(sizes, uids), encode_row_runs, room)

    def _end_small(
        self,
        kind: Kind,
        each: Mapping[int, _Each],
        cuts: Sequence[Sequence[int]],
        encode: Callable[[Mapping[int, _Each]], bytes],
        room: Room,
    ) -> list[FragmentSpan]:
        spans = []
        for some in cuts:
            first = some[0]
            payload = encode({at - first: each[at] for at in some})
            place = self._place(kind, payload, (), room, len(payload))
            spans.append(FragmentSpan(NO_GROUP, first, some[-1] - first + 1, place))
        return spans

    def _place(
        self, kind: Kind, payload: bytes, links: Sequence[Digest], room: Room, own_bytes: int
    ) -> Digest | memoryview:
        """Inline where it is small and there is room, else an object."""
        if own_bytes < INLINE_INDEX_BYTES and len(payload) <= room.payloads:
            room.payloads -= len(payload)
            return memoryview(payload)
        return self.objects.put(kind, payload, links).digest

    # -------------------------------------------------------------------------- leaves

    def end_leaf(self, leaf: Leaf, *, last: bool) -> LeafEntry:
        """Store a leaf; the last one of a dataset stands in the root while it is small."""
        payload = encode_leaf(leaf)
        digest = b""
        if not last or len(payload) >= INLINE_LEAF_BYTES:
            link = self.objects.put(Kind.LEAF, payload, leaf.links)
            digest, payload = digest_bytes(link.digest), b""
        stored_bytes = int(leaf.fragments["stored_bytes"].sum())
        return LeafEntry(digest, payload, *leaf.counts, stored_bytes)


def cut(sizes: Mapping[int, int], uids: Sequence[int]) -> list[list[int]]:
    """Fragments, ascending, in runs that end where their boundaries say."""
    found: list[list[int]] = []
    cuts = Cuts()
    for at in sorted(sizes):
        if not found or cuts.must_end_before(sizes[at]):
            found.append([])
        cuts = cuts.add(uids[at], sizes[at])
        found[-1].append(at)
    return found


def _alike(fragments: Sequence[int], forms: Mapping[int, Storage]) -> list[list[int]]:
    """The fragments in runs of one stored form."""
    found: list[list[int]] = []
    for at in fragments:
        if not found or forms[found[-1][-1]] != forms[at]:
            found.append([])
        found[-1].append(at)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """Rows written together.

    Attributes:
        uid: its name for good.
        rows: number of rows, deleted ones too.
        parts: pages by column group; a group that is not here has none: its rows take defaults.
        deletions: None when no row is deleted.
        runs: ids of the rows, RUN; None when they were written here.
        patches: patches by column, in the order in which they were set.
        stored_bytes: bytes of all pages that are in chunks or inline already.
    """

    uid: int
    rows: int
    parts: Mapping[str, FragmentPart]
    deletions: Deletions | None = None
    runs: NDArray[Any] | None = None
    patches: Mapping[str, tuple[PatchPart, ...]] = field(default_factory=dict)
    stored_bytes: int = 0

    @property
    def columns(self) -> Iterator[ColumnPart]:
        """Pages of its columns, group after group; patches aside."""
        return (column for part in self.parts.values() for column in part.columns)

    @property
    def every_column(self) -> Iterator[ColumnPart]:
        """The same, then those of patches."""
        yield from self.columns
        yield from (patch.column for patches in self.patches.values() for patch in patches)


def regrouped(
    fragment: Fragment, groups: Iterable[Sequence[str]], live: frozenset[str]
) -> Fragment:
    """The fragment with its columns, as far as they are in `live`, in other column groups."""
    columns = {column.id: column for column in fragment.columns if column.id in live}
    parts = {}
    for group in groups:
        known = fragment.parts.get(group[0])
        mine = {each: columns[each] for each in group if each in columns}
        if known is not None and {each.id for each in known.columns} == mine.keys():
            parts[group[0]] = known
        elif mine:
            parts[group[0]] = FragmentPart(tuple(mine.values()))
    patches = {each: some for each, some in fragment.patches.items() if each in live}
    return replace(fragment, parts=parts, patches=patches)


def read_fragments(dataset: StoredDataset, first: int = 0) -> Iterator[Fragment]:
    """The fragments from number `first` on, in order."""
    passed = 0
    for entry in dataset.root.leaves:
        if passed + entry.fragments > first:
            yield from leaf_fragments(dataset, entry, max(0, first - passed))
        passed += entry.fragments


def leaf_fragments(dataset: StoredDataset, entry: LeafEntry, first: int = 0) -> Iterator[Fragment]:
    """The fragments of one leaf from its number `first` on; dropped columns are left out."""
    objects = dataset.objects
    leaf, links = read_leaf(objects, dataset.links, entry)
    live = frozenset(column.id for column in dataset.schema.columns)
    groups = {
        group[0]: group_parts(objects, leaf, links, group[0], live) for group in dataset.root.groups
    }
    deletions, runs = read_deletions(objects, leaf, links), read_runs(objects, leaf, links)
    patches = leaf_patches(objects, leaf, links, live)
    for at, record in enumerate(leaf.fragments):
        parts = {group: part for group, found in groups.items() if (part := next(found))}
        if at >= first:
            yield Fragment(
                int(record["uid"]),
                int(record["rows"]),
                parts,
                deletions.get(at),
                runs.get(at),
                {column: each[at] for column, each in patches.items() if at in each},
                int(record["stored_bytes"]),
            )


def group_parts(
    objects: ObjectSource, leaf: Leaf, links: Links, group: str, live: frozenset[str]
) -> Iterator[FragmentPart | None]:
    """Per fragment of the leaf its pages of one column group, None where it has none."""
    for start, stop, span in covering(leaf.indexes, group, len(leaf.fragments)):
        if span is None:
            yield from (None for _ in range(start, stop))
        else:
            yield from index_parts(read_index(objects, span, links)[0], live)


def leaf_patches(
    objects: ObjectSource, leaf: Leaf, links: Links, live: frozenset[str]
) -> dict[str, dict[int, tuple[PatchPart, ...]]]:
    """Patches of the columns `live`, by fragment of the leaf."""
    found: dict[str, dict[int, tuple[PatchPart, ...]]] = {}
    for span in leaf.patches:
        if span.group in live:
            patch, _ = read_patches(objects, span, links)
            pages = patch.index.column(span.group)
            if pages is None:
                raise CorruptError(f"a patch of column {span.group} holds another column")
            stops = np.cumsum(pages.entries["rows"], dtype=np.int64).tolist()
            for at, fragment in enumerate(patch.fragment.tolist()):
                start = stops[at] - int(pages.entries["rows"][at])
                part = PatchPart(
                    column_part(patch.index, part_of(pages, at, at + 1)),
                    patch.offsets[start : stops[at]],
                )
                of_column = found.setdefault(span.group, {})
                place = span.first_fragment + fragment
                of_column[place] = (*of_column.get(place, ()), part)
    return found
