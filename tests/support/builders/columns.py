"""Columns put together page by page, without the writer: every form that a page can have."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tensorrepo.formats.common.buffer_codecs import Codec
from tensorrepo.formats.dataset.metadata.index import ColumnIndex, Patches
from tensorrepo.formats.dataset.pages.page import PAGE_ENTRY, PAGE_FOREIGN, TAG_BYTES, encode_page
from tensorrepo.formats.dataset.pages.tile_io import TileStore
from tensorrepo.formats.dataset.pages.tiles import encode_tile_table
from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.convert import present_row
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import ColumnLayout
from tensorrepo.formats.dataset.schema.values import ColumnValues, TiledValues
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.objects.envelope import Kind, ObjectLink
from tests.support.builders.objects import MemoryObjects


class MappedObjects(MemoryObjects):
    """As on a local disk: every payload is in memory, all readers see the same bytes."""

    def map(self, link: ObjectLink) -> memoryview:
        return self._payload(link)


class RoundObjects(MemoryObjects):
    """A store that answers a round of ranges only when all of it has been asked for.

    `rounds` says how many ranges come in each. Who asks for them one after the other waits until
    the barrier breaks.
    """

    def __init__(self, stored: MemoryObjects, rounds: Sequence[int]) -> None:
        super().__init__()
        self.stored, self.links = stored.stored, stored.links
        self._barriers = [threading.Barrier(count, timeout=20) for count in rounds]
        self._order = [at for at, count in enumerate(rounds) for _ in range(count)]
        self._lock = threading.Lock()

    def read_range(self, link: ObjectLink, start: int, stop: int) -> Buffer:
        with self._lock:
            barrier = self._barriers[self._order[len(self.reads)]]
            data = super().read_range(link, start, stop)
        barrier.wait()
        return data


@dataclass
class Pages:
    """Pages of one column, in one chunk; `index` closes it."""

    objects: MemoryObjects
    column: Column
    entries: list[Any] = field(default_factory=list)
    tags: list[bytes] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # 0 the chunk, 1 nowhere, then foreign ones
    stored_as: list[int] = field(default_factory=list)
    storages: list[Any] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    links: list[ObjectLink] = field(default_factory=list)
    tiles: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.storages.append(self.column.storage)

    def add(
        self, rows: Sequence[Any], codec: Codec = Codec.NONE, column: Column | None = None
    ) -> None:
        """A page of ours; `column` says how it is stored when that is not how it is read."""
        column = column or self.column
        storage = column.storage
        places: tuple[int, ...] = ()
        if storage.layout is ColumnLayout.TILED:
            table, places = self._tiles(column, rows, codec)
            page = encode_tile_table(table, storage)
        else:
            page = encode_page(coerce_column(column, rows), storage, codec)
        entry = page.entry.copy()
        entry["offset"] = sum(map(len, self.parts))
        self.parts.append(page.data.tobytes())
        self._entry(entry, page.tag, 0, storage, places)

    def _tiles(
        self, column: Column, rows: Sequence[Any], codec: Codec
    ) -> tuple[TiledValues, tuple[int, ...]]:
        """The tile table of a page, and the places of the chunks with its tiles."""

        def keep(parts: Sequence[memoryview]) -> int:
            self.links.append(self.objects.put(Kind.CHUNK, b"".join(parts)))
            return 1 + len(self.links)

        with ThreadPoolExecutor(1) as encoders:
            store = TileStore(column.storage, keep, encoders=encoders, codec=codec)
            table = store.add(rows)
            store.flush()
        return table, tuple(store.places)

    def add_missing(self, rows: int) -> None:
        entry = np.zeros((), PAGE_ENTRY)
        entry["rows"] = rows
        self._entry(entry, bytes(TAG_BYTES), 1, self.column.storage)

    def add_foreign(self, rows: int) -> ObjectLink:
        """A page that lies in a foreign file; the link names the object that says where."""
        entry = np.zeros((), PAGE_ENTRY)
        entry["rows"], entry["codec"] = rows, PAGE_FOREIGN
        link = self.objects.put(Kind.FOREIGN, b"file %d" % len(self.links))
        self.links.append(link)
        self._entry(entry, bytes(TAG_BYTES), 1 + len(self.links), self.column.storage)
        return link

    def _entry(
        self, entry: Any, tag: bytes, place: int, storage: Any, tiles: tuple[int, ...] = ()
    ) -> None:
        if storage not in self.storages:
            self.storages.append(storage)
        self.entries.append(entry)
        self.tags.append(tag)
        self.tiles.append(tiles)
        self.places.append(place)
        self.stored_as.append(self.storages.index(storage))

    def index(self, default: Any = None, patches: Mapping[int, Any] | None = None) -> ColumnIndex:
        """The column; `patches` says which rows have another value, in pages of 3 rows each."""
        chunk = self.objects.put(Kind.CHUNK, b"".join(self.parts))
        entries = np.zeros(len(self.entries), PAGE_ENTRY)
        for at, entry in enumerate(self.entries):
            entries[at] = entry
        first_row = np.concatenate([[0], np.cumsum(entries["rows"], dtype=np.int64)])
        found = ColumnIndex(
            id="00000000000000aa",
            storage=self.column.storage,
            entries=entries,
            tags=np.frombuffer(b"".join(self.tags), np.uint8).reshape(-1, TAG_BYTES),
            first_row=first_row.astype(np.int64),
            chunk=np.array(self.places, np.uint32),
            chunks=(chunk, None, *self.links),
            fragment=np.zeros(len(entries), np.uint32),
            storages=tuple(self.storages),
            stored_as=np.array(self.stored_as, np.uint8),
            tiles=tuple(self.tiles),
            default=None if default is None else coerce_column(self.column, [default]),
        )
        return found if not patches else replace(found, patches=self._patches(patches))

    def _patches(self, patches: Mapping[int, Any]) -> Patches:
        """The last row comes first among their pages, so that places and rows differ."""
        rows = sorted(patches)
        pages = Pages(self.objects, self.column)
        values = [patches[row] for row in reversed(rows)]
        for start in range(0, len(values), 3):
            pages.add(values[start : start + 3])
        source = np.arange(len(rows))[::-1].copy()
        return Patches(np.array(rows, np.int64), source, pages.index())


def presented(column: Column, values: ColumnValues) -> list[Any]:
    return [present_row(column, values, at) for at in range(values.rows)]
