"""Fragments go in, a dataset's root comes out: chunks, page indexes, leaves, root, in this order.

Appending goes on with the last leaf of the base, unless a boundary falls behind it: whatever lies
before is linked, not rewritten.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.chunk import CHUNK_BYTES
from tensorrepo.formats.dataset.index import encode_index
from tensorrepo.formats.dataset.manifest import (
    FRAGMENT,
    INLINE_DATA_BYTES,
    INLINE_INDEX_BYTES,
    INLINE_INDEXES_BYTES,
    INLINE_LEAF_BYTES,
    ColumnStatistics,
    Leaf,
    LeafEntry,
    Root,
    Span,
    encode_leaf,
    encode_root,
)
from tensorrepo.formats.dataset.page import EncodedPage
from tensorrepo.formats.dataset.read import read_index, read_leaf
from tensorrepo.formats.dataset.spans import (
    FragmentPart,
    LaidPart,
    OpenColumn,
    OpenLeaf,
    OpenSpan,
    Tally,
    WaitingPage,
    fragment_bounds,
)
from tensorrepo.repo.ids import digest_bytes
from tensorrepo.repo.objects import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future, ThreadPoolExecutor

    from tensorrepo.formats.dataset.chunk import LaidChunk
    from tensorrepo.formats.dataset.index import PageIndex
    from tensorrepo.formats.dataset.read import Dataset, Links
    from tensorrepo.formats.dataset.schema import Schema
    from tensorrepo.repo.ids import Buffer, Digest
    from tensorrepo.repo.objects import Link, ObjectSink

Groups = tuple[tuple[str, ...], ...]


class TreeWriter:
    """The objects of one dataset in the making. Used by one thread."""

    def __init__(
        self,
        objects: ObjectSink,
        schema: Schema,
        groups: Groups,
        base: Dataset | None,
        storers: ThreadPoolExecutor,
        waiting_bytes: int,
    ) -> None:
        """Begin.

        Args:
            objects: where to store.
            schema: with column ids.
            groups: ids of the columns that share chunks; those of `base` when it has rows.
            base: what the new fragments come behind.
            storers: threads that store chunks.
            waiting_bytes: bound of the pages that wait for their chunk, and again of the chunks
                that are on their way to the store.
        """
        self._objects = objects
        self._schema = schema
        self._groups = groups
        self._base = base
        self._storers = storers
        self._waiting_bytes = waiting_bytes
        self._storing: deque[tuple[Future[Link], int]] = deque()
        self._leaves = list(base.root.leaves) if base is not None else []
        known = {entry.id: entry for entry in base.root.statistics} if base is not None else {}
        self._tallies = {column.id: Tally.of(known.get(column.id)) for column in schema.columns}
        self._storages = {column.id: column.storage for column in schema.columns}
        self._leaf = self._reopened()

    def add_fragment(self, uid: int, rows: int, parts: Mapping[str, FragmentPart]) -> None:
        """Put a fragment behind those there are; `parts` are its pages, by group."""
        if self._leaf.cuts.must_end_before(FRAGMENT.itemsize):
            self._end_leaf(self._leaf, last=False)
            self._leaf = self._empty_leaf()
        leaf = self._leaf
        leaf.add_fragment(uid, rows)
        for group, part in parts.items():
            span = leaf.open[group]
            if span.cuts.must_end_before(part.index_bytes):
                self._end_span(leaf, span, inline_bytes=0)
                span = leaf.open[group] = self._empty_span(group, leaf.fragments - 1)
            if isinstance(part, LaidPart):
                if span.waiting_bytes:
                    self._store_chunk(leaf, span)
                for column in part.columns:
                    for entry in column.entries:
                        self._count(leaf, column.id, entry, leaf.fragments - 1)
            span.add_fragment(uid, leaf.fragments - 1, part)
        self._end_full_chunks(leaf)

    def finish(self, properties: Mapping[str, Any]) -> Link:
        """Store what is left, and the root."""
        if self._leaf.fragments:
            self._end_leaf(self._leaf, last=True)
        statistics = tuple(
            ColumnStatistics(
                column_id, tally.nulls, tally.stored_bytes, tally.raw_bytes, tally.min, tally.max
            )
            for column_id, tally in self._tallies.items()
        )
        rows = sum(leaf.rows for leaf in self._leaves)
        leaves = tuple(self._leaves)
        root = Root(self._schema, self._groups, rows, 0, statistics, leaves, dict(properties))
        return self._objects.put(Kind.DATASET, encode_root(root), root.links)

    # -------------------------------------------------------------------------- chunks

    def _end_full_chunks(self, leaf: OpenLeaf) -> None:
        """Store chunks that are nearly full, and the largest ones while too much is waiting."""
        spans = sorted(leaf.open.values(), key=lambda span: span.waiting_bytes, reverse=True)
        waiting = sum(span.waiting_bytes for span in spans)
        full = min(CHUNK_BYTES, self._waiting_bytes) * 3 // 4
        for span in spans:
            size = span.waiting_bytes
            if not size or (size < full and waiting <= self._waiting_bytes):
                break
            self._store_chunk(leaf, span)
            waiting -= size

    def _store_chunk(self, leaf: OpenLeaf, span: OpenSpan) -> None:
        laid = self._lay_out(leaf, span)
        parts: list[Buffer] = [*laid.parts, span.footer(laid)]
        while self._storing and self._in_flight() + laid.nbytes > self._waiting_bytes:
            self._storing.popleft()[0].result()
        stored = self._storers.submit(self._objects.put, Kind.CHUNK, parts)
        self._storing.append((stored, laid.nbytes))
        span.chunks.append(lambda: stored.result().digest)

    def _in_flight(self) -> int:
        return sum(size for _, size in self._storing)

    def _lay_out(self, leaf: OpenLeaf, span: OpenSpan) -> LaidChunk:
        for column in span.columns:
            for page in column.waiting:
                if page.is_new:
                    self._count(leaf, column.id, page.encoded().entry, page.fragment)
        return span.lay_out()

    def _count(self, leaf: OpenLeaf, column_id: str, entry: Any, fragment: int) -> None:
        self._tallies[column_id].add(entry)
        leaf.stored_bytes[fragment] += int(entry["stored_bytes"])

    # -------------------------------------------------------------------------- indexes, leaves

    def _end_span(self, leaf: OpenLeaf, span: OpenSpan, inline_bytes: int) -> None:
        """Complete a page index; pages that wait stand in it if `inline_bytes` allow."""
        if span.waiting_bytes:
            if inline_bytes:
                laid = self._lay_out(leaf, span)
                span.inline = memoryview(b"".join(laid.parts))
                span.chunks.append(None)
            else:
                self._store_chunk(leaf, span)
        if not span.fragments:
            return
        index = span.page_index()
        payload = encode_index(index)
        place: Digest | memoryview = memoryview(payload)
        room = INLINE_INDEXES_BYTES - leaf.inline_bytes
        if len(payload) - index.inline.nbytes >= INLINE_INDEX_BYTES or len(payload) > room:
            place = self._objects.put(Kind.PAGE_INDEX, payload, index.links).digest
        leaf.spans[span.group].append(Span(span.group, span.first_fragment, span.fragments, place))

    def _end_leaf(self, leaf: OpenLeaf, *, last: bool) -> None:
        left = INLINE_DATA_BYTES if last else 0
        for span in sorted(leaf.open.values(), key=lambda span: span.waiting_bytes):
            size = span.encoded_bytes() if span.waiting_bytes <= left else left + 1
            inline_bytes = size if size <= left else 0
            left -= inline_bytes
            self._end_span(leaf, span, inline_bytes)
        spans = tuple(span for group in self._groups for span in leaf.spans[group[0]])
        self._leaves.append(self._stored_leaf(Leaf(leaf.records(), spans), last=last))

    def _stored_leaf(self, leaf: Leaf, *, last: bool) -> LeafEntry:
        payload = encode_leaf(leaf)
        digest = b""
        if not last or len(payload) >= INLINE_LEAF_BYTES:
            link = self._objects.put(Kind.LEAF, payload, leaf.links)
            digest, payload = digest_bytes(link.digest), b""
        rows = int(leaf.fragments["rows"].sum(dtype=np.int64))
        stored_bytes = int(leaf.fragments["stored_bytes"].sum())
        return LeafEntry(digest, payload, len(leaf.fragments), rows, 0, stored_bytes)

    # -------------------------------------------------------------------------- the base's tail

    def _empty_leaf(self) -> OpenLeaf:
        names = [group[0] for group in self._groups]
        return OpenLeaf(
            {name: [] for name in names}, {name: self._empty_span(name, 0) for name in names}
        )

    def _empty_span(self, group: str, first_fragment: int) -> OpenSpan:
        members = next(members for members in self._groups if members[0] == group)
        columns = tuple(OpenColumn(name, self._storages[name]) for name in members)
        return OpenSpan(group, columns, first_fragment)

    def _reopened(self) -> OpenLeaf:
        """The base's last leaf, to go on with, unless a boundary falls behind it."""
        if self._base is None or not self._leaves:
            return self._empty_leaf()
        stored, links = read_leaf(self._base, self._leaves[-1])
        leaf = self._empty_leaf()
        for record in stored.fragments:
            leaf.add_fragment(int(record["uid"]), int(record["rows"]))
            leaf.stored_bytes[-1] = int(record["stored_bytes"])
        if leaf.cuts.closed:
            return self._empty_leaf()
        self._leaves.pop()
        for group in leaf.spans:
            *done, tail = [span for span in stored.spans if span.group == group]
            leaf.spans[group].extend(done)
            index, _ = read_index(self._base, tail, links)
            opened = self._reopened_span(tail, index, leaf.uids[tail.first_fragment :])
            if opened.cuts.closed:
                leaf.spans[group].append(tail)
                opened = self._empty_span(group, leaf.fragments)
            leaf.open[group] = opened
        return leaf

    def _reopened_span(self, tail: Span, index: PageIndex, uids: list[int]) -> OpenSpan:
        span = self._empty_span(tail.group, tail.first_fragment)
        for at, (uid, part) in enumerate(zip(uids, index_parts(index), strict=True)):
            span.add_fragment(uid, tail.first_fragment + at, part)
        for column in span.columns:
            for page in column.waiting:
                page.is_new = False
        return span


def index_parts(index: PageIndex) -> Iterator[FragmentPart]:
    """The pages of a page index, fragment by fragment."""
    bounds = [fragment_bounds(column.entries) for column in index.columns]
    for cuts in zip(*bounds, strict=True):
        columns = tuple(
            replace(
                column,
                entries=column.entries[start:stop],
                tags=column.tags[start:stop],
                chunk=column.chunk[start:stop],
            )
            for column, (start, stop) in zip(index.columns, cuts, strict=True)
        )
        digest = index.chunks[int(columns[0].chunk[0])]
        if digest is not None:
            yield LaidPart(columns, digest)
        else:
            yield FragmentPart(
                [
                    [
                        inline_page(entry, tag, index.inline)
                        for entry, tag in zip(column.entries, column.tags, strict=True)
                    ]
                    for column in columns
                ]
            )


def inline_page(entry: Any, tag: Any, inline: memoryview) -> WaitingPage:
    """A page that stands in an index, to be laid into a chunk anew."""
    offset, stored_bytes = int(entry["offset"]), int(entry["stored_bytes"])
    data = np.frombuffer(inline, np.uint8)[offset : offset + stored_bytes]
    page = EncodedPage(data, entry.copy(), tag.tobytes())
    return WaitingPage(int(entry["first_row"]), lambda: page, stored_bytes)


def fragments_of(
    dataset: Dataset, first: int
) -> Iterator[tuple[int, int, dict[str, FragmentPart]]]:
    """Uid, rows and pages of the fragments from number `first` on."""
    passed = 0
    for entry in dataset.root.leaves:
        if passed + entry.fragments > first:
            yield from _leaf_fragments(dataset, entry, max(0, first - passed))
        passed += entry.fragments


def _leaf_fragments(
    dataset: Dataset, entry: LeafEntry, first: int
) -> Iterator[tuple[int, int, dict[str, FragmentPart]]]:
    leaf, links = read_leaf(dataset, entry)
    parts = {
        group[0]: _group_parts(dataset, leaf, links, group[0]) for group in dataset.root.groups
    }
    for at, record in enumerate(leaf.fragments):
        found = {group: next(pages) for group, pages in parts.items()}
        if at >= first:
            yield int(record["uid"]), int(record["rows"]), found


def _group_parts(dataset: Dataset, leaf: Leaf, links: Links, group: str) -> Iterator[FragmentPart]:
    for span in leaf.spans:
        if span.group == group:
            yield from index_parts(read_index(dataset, span, links)[0])
