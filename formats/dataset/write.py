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
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tensorrepo.formats.codecs.buffers import Codec
from tensorrepo.formats.dataset.chunk import CHUNK_BYTES
from tensorrepo.formats.dataset.coerce import coerce_batch
from tensorrepo.formats.dataset.page import (
    DIRECTORY,
    EncodedPage,
    column_codec,
    encode_page,
    padded,
)
from tensorrepo.formats.dataset.pool import Pool
from tensorrepo.formats.dataset.schema import Column, Layout, Schema, type_to_json
from tensorrepo.formats.dataset.spans import ColumnPart, FragmentPart, WaitingPage
from tensorrepo.formats.dataset.stripes import Step, Stripes, page_limit
from tensorrepo.formats.dataset.tiles import encode_tile_table, number_chunks
from tensorrepo.formats.dataset.tilewrite import TileStore, tiled_rows
from tensorrepo.formats.dataset.treewrite import Groups, TreeWriter
from tensorrepo.formats.dataset.values import (
    ColumnValues,
    RaggedValues,
    TiledValues,
    concat,
    concat_tiled,
)
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import content_tag, digest_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.codecs.choice import CodecChoice
    from tensorrepo.formats.dataset.read import Dataset
    from tensorrepo.formats.dataset.schema import InputBatch, Storage
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import Link, ObjectSink

BUDGET_BYTES = 256 << 20
SLAB_BYTES = 8 << 20
HEAVY_ROW_BYTES = 256  # columns with rows of at least this many bytes get a group of their own
ENCODE_THREADS = max(1, min(4, (os.cpu_count() or 1) - 1))
MIN_QUARTER_BYTES = 4 << 10  # below this, chunks would be all footer
_RANDOM = random.SystemRandom()


def write_dataset(
    objects: ObjectSink,
    schema: Schema,
    batches: Iterable[InputBatch],
    *,
    base: Dataset | None = None,
    budget_bytes: int = BUDGET_BYTES,
    page_bytes: int | None = None,
    codec: CodecChoice = Codec.NONE,
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
        codec: tried on every page and tile, kept where it saves a quarter; "auto" tries a sample.
        rng: gives fragments their uids.
        progress: called after every batch with rows and bytes written so far.

    Returns:
        Link of the DATASET root.

    Raises:
        InvalidInputError: a row that does not fit; nothing that was stored is reachable.
    """
    columns = _identified(schema, base)
    quarter_bytes = max(MIN_QUARTER_BYTES, budget_bytes // 4)
    with (
        ThreadPoolExecutor(ENCODE_THREADS, "encode") as encoders,
        ThreadPoolExecutor(1, "store") as storers,
    ):

        def tree(groups: Groups) -> TreeWriter:
            return TreeWriter(objects, columns, groups, base, storers, quarter_bytes)

        options = _Options(encoders, codec, page_bytes, quarter_bytes, rng)
        # A base without rows knows nothing of their weight.
        groups = base.root.groups if base is not None and base.root.leaves else ()
        writer = _Writer(columns, options, tree, groups)
        try:
            for batch in batches:
                writer.add(batch)
                if progress is not None:
                    progress(writer.rows, writer.bytes)
            return writer.finish(base.root.properties if base is not None else {})
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
    """State of one `write_dataset`: rows in, fragments out."""

    def __init__(
        self,
        schema: Schema,
        options: _Options,
        tree: Callable[[Groups], TreeWriter],
        groups: Groups,
    ) -> None:
        self.rows = 0
        self.bytes = 0
        self._schema = schema
        self._options = options
        self._tree = tree
        self._groups = groups
        count = len(schema.columns)
        self._pieces: list[list[ColumnValues]] = [[] for _ in range(count)]
        self._tiled: dict[int, list[TiledValues]] = {
            place: []
            for place, column in enumerate(schema.columns)
            if column.storage.layout is Layout.TILED
        }
        self._owned = [0] * count  # pieces that are no views into the caller's batch
        self._fragment: list[list[WaitingPage]] = [[] for _ in range(count)]
        self._page_start = [0] * count
        self._fragment_rows = 0
        self._filling: _Filling | None = None

    def add(self, batch: InputBatch) -> None:
        """Take in one batch; nothing refers to it afterwards."""
        # A table in parts: as a whole its chunks would be copied together first.
        parts = batch.to_batches() if isinstance(batch, pa.Table) else []
        for part in parts or [batch]:
            self._add_part(part)

    def _add_part(self, batch: InputBatch) -> None:
        values = coerce_batch(self._schema, batch, self.rows)
        rows = values[0].rows
        if not rows:
            return
        if self._filling is None:
            self._filling = self._begin(values)
        borrowed: list[Future[EncodedPage]] = []
        for step in self._filling.stripes.advance(values):
            self._take(self._filling, step, values, borrowed)
        wait(borrowed)
        for place, pieces in enumerate(self._pieces):
            self._pieces[place] = _owned(pieces, self._owned[place])
            self._owned[place] = len(self._pieces[place])
        self.rows += rows
        self.bytes += sum(column.nbytes for column in values)

    def finish(self, properties: Mapping[str, Any]) -> Link:
        """Store what is left, and the root."""
        if self._filling is None:
            groups = self._groups or column_groups(self._schema, None)
            return self._tree(groups).finish(properties)
        self._end_fragment(self._filling)
        return self._filling.tree.finish(properties)

    def _begin(self, values: Sequence[ColumnValues]) -> _Filling:
        """Choose groups and page sizes by what the first rows weigh."""
        options = self._options
        storages = [column.storage for column in self._schema.columns]
        means = [max(1.0, column.nbytes / column.rows) for column in values]
        limits = [
            page_limit(storage, mean, options.page_bytes)
            for storage, mean in zip(storages, means, strict=True)
        ]
        speeds = [mean / limit for mean, limit in zip(means, limits, strict=True)]
        groups = self._groups or column_groups(self._schema, means)
        tree = self._tree(groups)
        tiles = {
            place: TileStore(
                storages[place],
                tree.spans.store_parts,
                encoders=options.encoders,
                codec=options.codec,
                budget_bytes=options.quarter_bytes // len(self._tiled),
            )
            for place in self._tiled
        }
        pool = Pool(3 * options.quarter_bytes)
        slab_bytes = min(SLAB_BYTES, options.quarter_bytes // (2 * len(groups)))
        slabs = {group[0]: Slab(pool, slab_bytes) for group in groups}
        stripes = Stripes(limits, speeds, min(CHUNK_BYTES, options.quarter_bytes))
        by_column = {name: slabs[group[0]] for group in groups for name in group}
        ordered = [by_column[column.id] for column in self._schema.columns]
        return _Filling(stripes, groups, ordered, tree, tiles)

    def _take(
        self,
        filling: _Filling,
        step: Step,
        values: Sequence[ColumnValues],
        borrowed: list[Future[EncodedPage]],
    ) -> None:
        if step.stop > step.start:
            for place, column in enumerate(values):
                rows = column.slice(step.start, step.stop)
                if place not in self._tiled:
                    self._pieces[place].append(rows)
                elif isinstance(rows, RaggedValues):
                    self._tiled[place].append(filling.tiles[place].add(tiled_rows(rows)))
            self._fragment_rows += step.stop - step.start
        borrowed.extend(
            self._end_page(filling, place) for place in step.closes if place not in self._tiled
        )
        if step.fragment_ends:
            self._end_fragment(filling)

    def _end_page(self, filling: _Filling, place: int) -> Future[EncodedPage]:
        pieces, self._pieces[place] = self._pieces[place], []
        self._owned[place] = 0
        column, options = self._schema.columns[place], self._options
        codec = column_codec(column.type, options.codec)
        encoded = options.encoders.submit(
            _encode, pieces, column.storage, codec, filling.slabs[place]
        )
        raw_bytes = padded(sum(piece.nbytes for piece in pieces)) + DIRECTORY.size
        page = WaitingPage(self._page_start[place], encoded.result, raw_bytes)
        self._fragment[place].append(page)
        self._page_start[place] = self._fragment_rows
        return encoded

    def _end_tiles(self, filling: _Filling, place: int) -> None:
        """The table of a tiled column: one page for the whole fragment."""
        store = filling.tiles[place]
        store.flush()
        values, used = number_chunks(concat_tiled(self._tiled[place]))
        page = encode_tile_table(values, self._schema.columns[place].storage)
        chunks = [store.places[number] for number in used]
        tile_bytes = int(values.tiles["stored_bytes"].sum())
        self._fragment[place].append(
            WaitingPage(0, lambda: page, page.data.nbytes, tiles=chunks, tile_bytes=tile_bytes)
        )
        self._tiled[place] = []

    def _end_fragment(self, filling: _Filling) -> None:
        if not self._fragment_rows:
            return
        for place, pieces in enumerate(self._pieces):
            if pieces:
                self._end_page(filling, place)
        for place in self._tiled:
            self._end_tiles(filling, place)
        places = {column.id: place for place, column in enumerate(self._schema.columns)}
        columns = [
            ColumnPart(column.id, column.storage, pages)
            for column, pages in zip(self._schema.columns, self._fragment, strict=True)
        ]
        parts = {
            group[0]: FragmentPart(tuple(columns[places[name]] for name in group if name in places))
            for group in filling.groups
        }
        uid = self._options.rng.getrandbits(64)
        filling.tree.add_fragment(uid, self._fragment_rows, parts)
        self._fragment = [[] for _ in self._fragment]
        self._page_start = [0] * len(self._page_start)
        self._fragment_rows = 0


@dataclass(frozen=True, slots=True)
class _Options:
    encoders: ThreadPoolExecutor
    codec: CodecChoice
    page_bytes: int | None
    quarter_bytes: int
    rng: random.Random


@dataclass(frozen=True, slots=True)
class _Filling:
    """What is chosen when the first rows have come; `slabs` per column, `tiles` of tiled ones."""

    stripes: Stripes
    groups: Groups
    slabs: list[Slab]
    tree: TreeWriter
    tiles: dict[int, TileStore[Callable[[], Digest]]]


def column_groups(schema: Schema, mean_row_bytes: Sequence[float] | None) -> Groups:
    """Ids of the columns that share chunks: each heavy one alone, the light ones together.

    Without `mean_row_bytes`, columns whose rows differ in size count as heavy.
    """
    heavy: list[str] = []
    light: list[str] = []
    for place, column in enumerate(schema.columns):
        row_bytes: float = column.storage.row_bytes
        if column.storage.layout is not Layout.FIXED:
            row_bytes = HEAVY_ROW_BYTES if mean_row_bytes is None else mean_row_bytes[place]
        (heavy if row_bytes >= HEAVY_ROW_BYTES else light).append(column.id)
    groups = tuple((name,) for name in heavy)
    return (tuple(light), *groups) if light else groups


def _encode(
    pieces: list[ColumnValues], storage: Storage, codec: CodecChoice, slab: Slab
) -> EncodedPage:
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
