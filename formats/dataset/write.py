"""Batches go in, a dataset's root comes out.

Rows are copied once, from the caller's batch into a page. Threads encode, hash and store while the
next rows arrive. Memory is bounded by a byte budget whatever the width of a row: a quarter for
pages that are being filled, a quarter for pages that wait for their chunk, a quarter for chunks on
their way to the store. Order of storing: chunk, page index, leaf, root.
"""

from __future__ import annotations

import json
import os
import random
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.codecs.buffers import Codec
from tensorrepo.formats.dataset.chunk import CHUNK_BYTES, LaidChunk
from tensorrepo.formats.dataset.coerce import coerce_batch
from tensorrepo.formats.dataset.cuts import Cuts
from tensorrepo.formats.dataset.index import encode_index
from tensorrepo.formats.dataset.manifest import (
    INLINE_DATA_BYTES,
    INLINE_INDEX_BYTES,
    INLINE_LEAF_BYTES,
    ColumnStatistics,
    Leaf,
    LeafEntry,
    Root,
    Span,
    encode_leaf,
    encode_root,
)
from tensorrepo.formats.dataset.page import EncodedPage, encode_page, padded
from tensorrepo.formats.dataset.pool import Pool
from tensorrepo.formats.dataset.read import read_index, read_leaf
from tensorrepo.formats.dataset.schema import Column, Layout, Schema, type_to_json
from tensorrepo.formats.dataset.spans import (
    OpenColumn,
    OpenLeaf,
    OpenSpan,
    Tally,
    WaitingPage,
    fragment_sizes,
    index_bytes,
)
from tensorrepo.formats.dataset.stripes import Step, Stripes, page_limit
from tensorrepo.formats.dataset.values import ColumnValues, concat
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import content_tag, digest_bytes
from tensorrepo.repo.objects import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.read import Dataset, Links
    from tensorrepo.formats.dataset.schema import InputBatch, Storage
    from tensorrepo.repo.ids import Buffer, Digest
    from tensorrepo.repo.objects import Link, ObjectSink

BUDGET_BYTES = 256 << 20
SLAB_BYTES = 8 << 20
HEAVY_ROW_BYTES = 256  # columns with rows of at least this many bytes get a group of their own
ENCODE_THREADS = max(1, min(4, (os.cpu_count() or 1) - 1))
_RANDOM = random.SystemRandom()


def write_dataset(
    objects: ObjectSink,
    schema: Schema,
    batches: Iterable[InputBatch],
    *,
    base: Dataset | None = None,
    budget_bytes: int = BUDGET_BYTES,
    page_bytes: int | None = None,
    codec: Codec = Codec.NONE,
    rng: random.Random = _RANDOM,
    progress: Callable[[int, int], None] | None = None,
) -> Link:
    """Store the rows of `batches` as a dataset, or behind those of `base`.

    Args:
        objects: where to store; only what is new is stored, the root last.
        schema: the columns. With `base` it must have the same ones.
        batches: of any size; each is columns, an Arrow batch or table, or a list of rows. A batch
            may be reused by its owner once the next one is asked for.
        base: append to this dataset, whose chunks and leaves are linked, not rewritten.
        budget_bytes: bound of the memory used, beside one batch and one row.
        page_bytes: size of a full page; None: 1 MiB, or 256 KiB where rows are under 4 KiB.
        codec: tried on every page; kept where it saves a quarter.
        rng: gives fragments their uids.
        progress: called after every batch with rows and bytes written so far.

    Returns:
        Link of the DATASET root.

    Raises:
        InvalidInputError: a row that does not fit; nothing that was stored is reachable.
    """
    columns = _identified(schema, base)
    with (
        ThreadPoolExecutor(ENCODE_THREADS, "encode") as encoders,
        ThreadPoolExecutor(1, "store") as storers,
    ):
        writer = _Writer(objects, columns, base, encoders, storers, budget_bytes, rng)
        writer.codec, writer.page_bytes = codec, page_bytes
        try:
            for batch in batches:
                writer.add(batch)
                if progress is not None:
                    progress(writer.rows, writer.bytes)
            return writer.finish()
        except BaseException:
            encoders.shutdown(wait=True, cancel_futures=True)
            storers.shutdown(wait=True, cancel_futures=True)
            raise


def column_id(base: Digest | None, column: Column) -> str:
    """The id of a column that is added to the dataset whose root is `base` (None: a new one)."""
    root = bytes(32) if base is None else digest_bytes(base)
    kind = json.dumps(type_to_json(column.type), sort_keys=True, separators=(",", ":"))
    return content_tag(root + f"{column.name}\0{kind}".encode())[:8].hex()


def _identified(schema: Schema, base: Dataset | None) -> Schema:
    """The schema with ids: those of `base`, whose columns it must have, or new ones."""
    if base is None:
        return Schema(
            tuple(replace(column, id=column_id(None, column)) for column in schema.columns)
        )
    for column in schema.columns:
        known = base.schema.column(column.name) if column.name in base.schema else None
        if known is None or (known.type, known.nullable) != (column.type, column.nullable):
            found = "no such column" if known is None else _described(known)
            raise InvalidInputError(
                f"cannot append: column {column.name!r} is {_described(column)} in the new rows, "
                f"the dataset has {found}"
            )
    for column in base.schema.columns:
        schema.column(column.name)
    return base.schema


def _described(column: Column) -> str:
    return f"{type_to_json(column.type)}{' or null' if column.nullable else ''}"


class _Writer:
    """State of one `write_dataset`: rows in, objects out."""

    codec = Codec.NONE
    page_bytes: int | None = None

    def __init__(
        self,
        objects: ObjectSink,
        schema: Schema,
        base: Dataset | None,
        encoders: ThreadPoolExecutor,
        storers: ThreadPoolExecutor,
        budget_bytes: int,
        rng: random.Random,
    ) -> None:
        self.rows = 0
        self.bytes = 0
        self._objects = objects
        self._schema = schema
        self._base = base
        self._encoders = encoders
        self._storers = storers
        self._quarter = max(1 << 16, budget_bytes // 4)
        self._chunk_bytes = min(CHUNK_BYTES, self._quarter)
        self._rng = rng
        self._storing: deque[tuple[Future[Link], int]] = deque()
        count = len(schema.columns)
        self._pieces: list[list[ColumnValues]] = [[] for _ in range(count)]
        self._owned = [0] * count  # pieces that are no views into the caller's batch
        self._fragment: list[list[WaitingPage]] = [[] for _ in range(count)]
        self._page_start = [0] * count
        self._fragment_rows = 0
        self._leaves = list(base.root.leaves) if base is not None else []
        known = {entry.id: entry for entry in base.root.statistics} if base is not None else {}
        self._tallies = [Tally.of(known.get(column.id)) for column in schema.columns]
        self._groups = base.root.groups if base is not None else ()
        self._places = {column.id: place for place, column in enumerate(schema.columns)}
        self._stripes: Stripes | None = None
        self._slabs: list[Slab] = []
        self._leaf: OpenLeaf | None = None

    # -------------------------------------------------------------------------- rows to pages

    def add(self, batch: InputBatch) -> None:
        """Take in one batch; nothing refers to it afterwards."""
        values = coerce_batch(self._schema, batch, self.rows)
        rows = values[0].rows
        if not rows:
            return
        if self._stripes is None:
            self._begin(values)
        assert self._stripes is not None, "begun above"
        borrowed: list[Future[EncodedPage]] = []
        for step in self._stripes.advance(values):
            self._take(step, values, borrowed)
        wait(borrowed)
        for place, pieces in enumerate(self._pieces):
            self._pieces[place] = _owned(pieces, self._owned[place])
            self._owned[place] = len(self._pieces[place])
        self.rows += rows
        self.bytes += sum(column.nbytes for column in values)

    def _begin(self, values: Sequence[ColumnValues]) -> None:
        """Choose groups and page sizes by what the first rows weigh."""
        storages = [column.storage for column in self._schema.columns]
        means = [max(1.0, column.nbytes / column.rows) for column in values]
        limits = [
            page_limit(storage, mean, self.page_bytes)
            for storage, mean in zip(storages, means, strict=True)
        ]
        speeds = [mean / limit for mean, limit in zip(means, limits, strict=True)]
        self._stripes = Stripes(limits, speeds, self._chunk_bytes)
        if not self._groups:
            self._groups = column_groups(self._schema, means)
        pool = Pool(3 * self._quarter)
        slab_bytes = min(SLAB_BYTES, self._quarter // (2 * len(self._groups)))
        slabs = {
            name: slab
            for group in self._groups
            for slab in [Slab(pool, slab_bytes)]
            for name in group
        }
        self._slabs = [slabs[column.id] for column in self._schema.columns]
        self._leaf = self._reopened()

    def _take(
        self, step: Step, values: Sequence[ColumnValues], borrowed: list[Future[EncodedPage]]
    ) -> None:
        if step.stop > step.start:
            for pieces, column in zip(self._pieces, values, strict=True):
                pieces.append(column.slice(step.start, step.stop))
            self._fragment_rows += step.stop - step.start
        borrowed.extend(map(self._end_page, step.closes))
        if step.fragment_ends:
            self._end_fragment()

    def _end_page(self, place: int) -> Future[EncodedPage]:
        pieces, self._pieces[place] = self._pieces[place], []
        self._owned[place] = 0
        storage = self._schema.columns[place].storage
        raw_bytes = sum(piece.nbytes for piece in pieces)
        slab = self._slabs[place]
        encoded = self._encoders.submit(_encode, pieces, storage, self.codec, slab)
        page = WaitingPage(self._page_start[place], 0, encoded.result, raw_bytes)
        self._fragment[place].append(page)
        self._page_start[place] = self._fragment_rows
        return encoded

    # -------------------------------------------------------------------------- pages to objects

    def _end_fragment(self) -> None:
        if self._leaf is None or not self._fragment_rows:
            return
        for place, pieces in enumerate(self._pieces):
            if pieces:
                self._end_page(place)
        uid = self._rng.getrandbits(64)
        pages = {
            group[0]: [self._fragment[self._places[name]] for name in group]
            for group in self._groups
        }
        if self._leaf.cuts.must_end_before(32):
            self._end_leaf(self._leaf, last=False)
            self._leaf = self._empty_leaf()
        for group, columns in pages.items():
            span = self._leaf.open[group]
            if span.cuts.must_end_before(index_bytes(columns)):
                self._end_span(self._leaf, span, inline_bytes=0)
                span = self._leaf.open[group] = self._empty_span(group, self._leaf.fragments)
            for page in (page for column in columns for page in column):
                page.fragment = self._leaf.fragments
            span.add_fragment(uid, columns)
        self._leaf.add_fragment(uid, self._fragment_rows)
        self._fragment = [[] for _ in self._fragment]
        self._page_start = [0] * len(self._page_start)
        self._fragment_rows = 0
        self._end_full_chunks(self._leaf)

    def _end_full_chunks(self, leaf: OpenLeaf) -> None:
        """Store chunks that are nearly full, and the largest ones while too much is waiting."""
        spans = sorted(leaf.open.values(), key=lambda span: span.waiting_bytes, reverse=True)
        waiting = sum(span.waiting_bytes for span in spans)
        for span in spans:
            size = span.waiting_bytes
            if size < self._chunk_bytes * 3 // 4 and waiting <= self._quarter:
                break
            self._store_chunk(leaf, span)
            waiting -= size

    def _store_chunk(self, leaf: OpenLeaf, span: OpenSpan) -> None:
        laid = self._lay_out(leaf, span)
        parts: list[Buffer] = [*laid.parts, span.footer(laid)]
        while (
            self._storing and sum(size for _, size in self._storing) + laid.nbytes > self._quarter
        ):
            self._storing.popleft()[0].result()
        stored = self._storers.submit(self._objects.put, Kind.CHUNK, parts)
        self._storing.append((stored, laid.nbytes))
        span.chunks.append(lambda: stored.result().digest)

    def _lay_out(self, leaf: OpenLeaf, span: OpenSpan) -> LaidChunk:
        for column in span.columns:
            tally = self._tallies[self._places[column.id]]
            for page in column.waiting:
                if page.is_new:
                    entry = page.encoded().entry
                    tally.add(entry)
                    leaf.stored_bytes[page.fragment] += int(entry["stored_bytes"])
        return span.lay_out()

    def _end_span(self, leaf: OpenLeaf, span: OpenSpan, inline_bytes: int) -> None:
        """Complete a page index; pages of at most `inline_bytes` stand in it."""
        if any(column.waiting for column in span.columns):
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
        if len(payload) - index.inline.nbytes >= INLINE_INDEX_BYTES:
            place = self._objects.put(Kind.PAGE_INDEX, payload, index.links).digest
        leaf.spans[span.group].append(Span(span.group, span.first_fragment, span.fragments, place))

    def _end_leaf(self, leaf: OpenLeaf, *, last: bool) -> None:
        left = INLINE_DATA_BYTES if last else 0
        for span in sorted(leaf.open.values(), key=lambda span: span.waiting_bytes):
            size = sum(
                page.encoded().data.nbytes for column in span.columns for page in column.waiting
            )
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
        return LeafEntry(
            digest,
            payload,
            len(leaf.fragments),
            int(leaf.fragments["rows"].sum(dtype=np.int64)),
            0,
            int(leaf.fragments["stored_bytes"].sum()),
        )

    def finish(self) -> Link:
        """Store what is left, and the root."""
        if self._stripes is not None:
            self._end_fragment()
        if self._leaf is not None:
            self._end_leaf(self._leaf, last=True)
        groups = self._groups or column_groups(self._schema, [1.0] * len(self._schema.columns))
        statistics = tuple(
            ColumnStatistics(
                column.id, tally.nulls, tally.stored_bytes, tally.raw_bytes, tally.min, tally.max
            )
            for column, tally in zip(self._schema.columns, self._tallies, strict=True)
        )
        properties = dict(self._base.root.properties) if self._base is not None else {}
        root = Root(
            self._schema,
            groups,
            sum(leaf.rows for leaf in self._leaves),
            0,
            statistics,
            tuple(self._leaves),
            properties,
        )
        return self._objects.put(Kind.DATASET, encode_root(root), root.links)

    # -------------------------------------------------------------------------- the base's tail

    def _empty_leaf(self) -> OpenLeaf:
        names = [group[0] for group in self._groups]
        return OpenLeaf(
            {name: [] for name in names}, {name: self._empty_span(name, 0) for name in names}
        )

    def _empty_span(self, group: str, first_fragment: int) -> OpenSpan:
        members = next(members for members in self._groups if members[0] == group)
        columns = (self._schema.columns[self._places[name]] for name in members)
        return OpenSpan(
            group,
            tuple(OpenColumn(column.id, column.storage) for column in columns),
            first_fragment,
        )

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
            opened = self._reopened_span(leaf, tail, links)
            if opened is None:
                leaf.spans[group].append(tail)
                opened = self._empty_span(group, leaf.fragments)
            leaf.open[group] = opened
        return leaf

    def _reopened_span(self, leaf: OpenLeaf, tail: Span, links: Links) -> OpenSpan | None:
        """An open span with the pages of `tail`, None when a boundary falls behind it."""
        assert self._base is not None, "only a base has a tail"
        index, _ = read_index(self._base, tail, links)
        uids = leaf.uids[tail.first_fragment :]
        cuts = Cuts()
        for uid, size in zip(uids, fragment_sizes(index.columns), strict=True):
            cuts = cuts.add(uid, size)
        if cuts.closed:
            return None
        span = self._empty_span(tail.group, tail.first_fragment)
        span.fragments, span.cuts = tail.fragments, cuts
        inline = index.chunks.index(None) if None in index.chunks else len(index.chunks)
        span.chunks = [_known(chunk) for chunk in index.chunks[:inline] if chunk is not None]
        for column, pages in zip(span.columns, index.columns, strict=True):
            laid = int(np.count_nonzero(pages.chunk < inline))
            column.laid.append(
                replace(
                    pages,
                    entries=pages.entries[:laid],
                    tags=pages.tags[:laid],
                    chunk=pages.chunk[:laid],
                )
            )
            for at in range(laid, len(pages.entries)):
                column.waiting.append(_inline_page(pages.entries[at], pages.tags[at], index.inline))
        inline_fragments = sum(page.first_row == 0 for page in span.columns[0].waiting)
        span.chunk_uids = uids[len(uids) - inline_fragments :]
        return span


def column_groups(schema: Schema, mean_row_bytes: Sequence[float]) -> tuple[tuple[str, ...], ...]:
    """Ids of the columns that share chunks: each heavy one alone, the light ones together."""
    heavy: list[str] = []
    light: list[str] = []
    for column, mean in zip(schema.columns, mean_row_bytes, strict=True):
        fixed = column.storage.layout is Layout.FIXED
        row_bytes = column.storage.row_bytes if fixed else mean
        (heavy if row_bytes >= HEAVY_ROW_BYTES else light).append(column.id)
    groups = [(name,) for name in heavy]
    return (tuple(light), *groups) if light else tuple(groups)


def _encode(pieces: list[ColumnValues], storage: Storage, codec: Codec, slab: Slab) -> EncodedPage:
    return encode_page(concat(pieces), storage, codec, slab.array)


class Slab:
    """Memory for pages that leave together, so that it is used again: fresh memory costs more
    than filling it. Thread-safe.

    Only pages of one column group may share slabs: a page of a slow group would keep a whole one.
    """

    def __init__(self, pool: Pool, slab_bytes: int) -> None:
        self._pool = pool
        self._slab_bytes = slab_bytes
        self._slab: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._used = 0
        self._lock = Lock()

    def array(self, size: int) -> NDArray[np.uint8]:
        """`size` bytes of any content, at a multiple of 64."""
        if size > self._slab_bytes // 2:
            return np.empty(size, np.uint8)
        with self._lock:
            if self._used + size > len(self._slab):
                self._slab = self._pool.array((self._slab_bytes,), np.dtype(np.uint8))
                self._used = 0
            start, self._used = self._used, self._used + padded(size)
            return self._slab[start : start + size]


def _owned(pieces: list[ColumnValues], owned: int) -> list[ColumnValues]:
    """The same rows, in pieces that share no memory with the caller's batch."""
    borrowed = pieces[owned:]
    if not borrowed:
        return pieces
    joined = concat(borrowed)
    return [*pieces[:owned], joined.copy() if len(borrowed) == 1 else joined]


def _known(digest: Digest) -> Callable[[], Digest]:
    return lambda: digest


def _inline_page(entry: Any, tag: Any, inline: memoryview) -> WaitingPage:
    offset, stored_bytes = int(entry["offset"]), int(entry["stored_bytes"])
    data = np.frombuffer(inline, np.uint8)[offset : offset + stored_bytes]
    page = EncodedPage(data, entry.copy(), tag.tobytes())
    return WaitingPage(int(entry["first_row"]), 0, lambda: page, stored_bytes, is_new=False)
