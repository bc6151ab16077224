"""New pages of one column of one fragment.

Pages wait for a chunk that they share with those of other fragments. Where they are so many that
memory would not hold them, they go into chunks of their own as they come.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.codecs.buffers import Codec
from tensorrepo.formats.dataset.columns.types import Layout
from tensorrepo.formats.dataset.columns.values import RaggedValues, TiledValues, concat_tiled
from tensorrepo.formats.dataset.pages.chunk import ChunkColumn, encode_footer, lay_out
from tensorrepo.formats.dataset.pages.page import DIRECTORY, column_codec, encode_page, padded
from tensorrepo.formats.dataset.pages.tiles import encode_tile_table, number_chunks
from tensorrepo.formats.dataset.pages.tilewrite import TileStore, tiled_rows
from tensorrepo.formats.dataset.tree.index import ColumnPages
from tensorrepo.formats.dataset.tree.spans import ColumnPart, WaitingPage

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from tensorrepo.formats.codecs.choice import CodecChoice
    from tensorrepo.formats.dataset.columns.schema import Column
    from tensorrepo.formats.dataset.columns.values import ColumnValues
    from tensorrepo.formats.dataset.tree.spanwrite import SpanWriter
    from tensorrepo.repo.ids import Digest


class ColumnPartWriter:
    """Takes the rows of one fragment in order, page by page. Used by one thread."""

    def __init__(
        self,
        spans: SpanWriter,
        column: Column,
        fragment: int,
        uid: int,
        *,
        encoders: Executor,
        codec: CodecChoice = Codec.NONE,
        waiting_bytes: int,
    ) -> None:
        """Begin.

        Args:
            spans: where chunks are stored, and who counts pages.
            column: whose rows they are.
            fragment: counted within the leaf.
            uid: of the fragment.
            encoders: threads that encode pages.
            codec: tried on every page.
            waiting_bytes: more than this does not wait in memory.
        """
        self.nbytes = 0
        self._spans = spans
        self._column = column
        self._fragment = fragment
        self._uid = uid
        self._encoders = encoders
        self._codec = codec
        self._waiting_bytes = waiting_bytes
        self._waiting: list[WaitingPage] = []
        self._held = 0
        self._rows = 0
        self._laid: list[ColumnPages] = []
        self._chunks: list[Callable[[], Digest]] = []
        self._tiled: list[TiledValues] = []
        self._tiles: TileStore[Callable[[], Digest]] | None = None

    @property
    def rows(self) -> int:
        """Rows taken so far."""
        return self._rows

    def add(self, values: ColumnValues) -> None:
        """One more page; of a tiled column, more rows of its only page. `values` must not change
        afterwards.
        """
        first_row, self._rows = self._rows, self._rows + values.rows
        self.nbytes += values.nbytes
        if self._column.storage.layout is Layout.TILED:
            assert isinstance(values, RaggedValues), "rows that will be cut into tiles"
            self._tiled.append(self._tile_store().add(tiled_rows(values)))
            return
        codec = column_codec(self._column.type, self._codec)
        encoded = self._encoders.submit(encode_page, values, self._column.storage, codec)
        size = padded(values.nbytes) + DIRECTORY.size
        self._waiting.append(WaitingPage(first_row, encoded.result, size))
        self._held += size
        if self._held > self._waiting_bytes:
            self._store_waiting()

    def finish(self) -> ColumnPart:
        """All pages."""
        column = self._column
        if self._tiled:
            self._waiting.append(self._tile_page())
        if not self._chunks:
            return ColumnPart(column.id, column.storage, self._waiting)
        if self._waiting:
            self._store_waiting()
        pages = replace(
            self._laid[0],
            entries=np.concatenate([each.entries for each in self._laid]),
            tags=np.concatenate([each.tags for each in self._laid]),
            chunk=np.concatenate([each.chunk for each in self._laid]),
        )
        return ColumnPart(column.id, column.storage, pages, tuple(each() for each in self._chunks))

    def _store_waiting(self) -> None:
        column = self._column
        pages = [page.encoded() for page in self._waiting]
        firsts = [page.first_row for page in self._waiting]
        laid = lay_out([ChunkColumn(column.id, column.storage, pages, firsts)], len(self._chunks))
        footer = encode_footer(laid.columns, [self._uid])
        self._chunks.append(self._spans.store_parts([*laid.parts, footer]))
        self._laid += laid.columns
        for page in self._waiting:
            page.fragment = self._fragment
            self._spans.count(column.id, page)
        self._waiting, self._held = [], 0

    # -------------------------------------------------------------------------- tiles

    def _tile_store(self) -> TileStore[Callable[[], Digest]]:
        if self._tiles is None:
            self._tiles = TileStore(
                self._column.storage,
                self._spans.store_parts,
                encoders=self._encoders,
                codec=self._codec,
                budget_bytes=self._waiting_bytes,
            )
        return self._tiles

    def _tile_page(self) -> WaitingPage:
        store = self._tile_store()
        store.flush()
        table, used = number_chunks(concat_tiled(self._tiled))
        page = encode_tile_table(table, self._column.storage)
        tiles = [store.places[number] for number in used]
        tile_bytes = int(table.tiles["stored_bytes"].sum())
        return WaitingPage(0, lambda: page, page.data.nbytes, tiles=tiles, tile_bytes=tile_bytes)
