"""Page indexes: where every page of a column lies, and the patches over them.

`PageIndex` is one stored object (or a part of a leaf): the page entries of one column group over a
run of fragments. `ColumnIndex` is what readers and planners use: all pages of one column of the
whole dataset as a few flat arrays.

Source:
    docs/spec/dataset.md, sections "Page index" and "Patch index".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Bools, Ints, dtype_code, dtype_from_code
from tensorrepo.formats.dataset.pages.page import (
    ALIGNMENT,
    PAGE_ENTRY,
    PAGE_PREVIEW,
    PAGE_TILES,
    TAG_BYTES,
)
from tensorrepo.formats.dataset.pages.scan_bands import PREVIEW, no_previews
from tensorrepo.formats.dataset.pages.sections import (
    decode_sections,
    encode_sections,
    join_records,
    section_array,
)
from tensorrepo.formats.dataset.pages.text_bounds import TEXT_BOUNDS, no_text_bounds
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.formats.dataset.schema.values import ColumnValues, offsets_of
from tensorrepo.formats.images.progressive import BANDS
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.ids import DIGEST_BYTES, Buffer, Digest, digest_bytes
from tensorrepo.repo.objects.envelope import ObjectLink

INDEX_MAGIC = b"TRPI"
# Sections of a page index.
COLUMNS, DIMS, ENTRIES, TAGS, CHUNK_OF, CHUNKS, INLINE, TILE_CHUNKS, BOUNDS = range(1, 10)
PREVIEWS = 10
KNOWN = frozenset(range(1, 11))

# Which chunks hold the tiles of a page: several records for one entry, in the order in which the
# tiles' records number them.
TILE_CHUNK = np.dtype([("entry", "<u4"), ("chunk", "<u4")])

COLUMN_RECORD = np.dtype(
    [
        ("id", "<u8"),
        ("layout", "u1"),
        ("dtype", "u1"),
        ("rank", "u1"),
        ("reserved", "u1"),
        ("first_dim", "<u4"),  # in DIMS; an unknown dimension is 2^64 - 1; tiled: then the tile's
        ("first_entry", "<u4"),  # entries are grouped by column
        ("entries", "<u4"),
        ("reserved2", "<u8"),
    ]
)
assert COLUMN_RECORD.itemsize == 32, "docs/spec/dataset.md promises 32-byte column records"
UNKNOWN_DIM = (1 << 64) - 1
_INLINE_DIGEST = bytes(DIGEST_BYTES)  # stands for "the pages are in this index's INLINE section"
_INLINE_DIGITS = _INLINE_DIGEST.hex()


@dataclass(frozen=True, slots=True, eq=False)
class ColumnPages:
    """The pages of one column in one page index, in row order.

    `bounds` are those of each page where rows are bytes, else there are none. `previews` are those
    of each page where some page is of scans in bands, else there are none.
    """

    id: str
    storage: Storage
    entries: NDArray[Any]  # PAGE_ENTRY (pages,)
    tags: NDArray[np.uint8]  # (pages, 16)
    chunk: NDArray[np.uint32]  # (pages,), a place in PageIndex.chunks
    tiles: tuple[tuple[int, ...], ...] = ()  # per page, if tiled: places of chunks with its tiles
    bounds: NDArray[Any] = field(default_factory=lambda: no_text_bounds(0))  # TEXT_BOUNDS
    previews: NDArray[Any] = field(default_factory=lambda: no_previews(0))  # (pages, BANDS)

    def __post_init__(self) -> None:
        pages = len(self.entries) if self.storage.layout is ColumnLayout.BINARY else 0
        if not len(self.bounds):
            object.__setattr__(self, "bounds", no_text_bounds(pages))
        assert len(self.bounds) == pages, "each page of bytes has bounds, others have none"


def join_pages(parts: Sequence[ColumnPages]) -> ColumnPages:
    """Pages of one column one after the other; there is at least one part."""
    return replace(
        parts[0],
        entries=join_records([part.entries for part in parts]),
        tags=np.concatenate([part.tags for part in parts]),
        chunk=np.concatenate([part.chunk for part in parts]),
        tiles=tuple(each for part in parts for each in part.tiles),
        bounds=join_records([part.bounds for part in parts]),
        previews=join_previews([(len(part.entries), part.previews) for part in parts]),
    )


def join_previews(parts: Sequence[tuple[int, NDArray[Any]]]) -> NDArray[Any]:
    """Previews of pages one after the other: of each part its number of pages, and what it has."""
    if not any(len(previews) for _, previews in parts):
        return no_previews(0)
    return join_records([prev if len(prev) else no_previews(pages) for pages, prev in parts])


_COLUMN_BYTES = 1 << 10  # of Python objects for one column of an index


@dataclass(frozen=True, slots=True, eq=False)
class PageIndex:
    """One column group over consecutive fragments.

    `chunks` holds digests; None is the chunk whose payload is `inline`, at most once.
    """

    columns: tuple[ColumnPages, ...]
    chunks: tuple[Digest | None, ...]
    inline: memoryview
    _by_id: dict[str, ColumnPages] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        by_id = {column.id: column for column in reversed(self.columns)}
        object.__setattr__(self, "_by_id", by_id)

    def column(self, column_id: str) -> ColumnPages | None:
        """The pages of a column; None when the column is not in it."""
        return self._by_id.get(column_id)

    @property
    def size_bytes(self) -> int:
        """Bytes of memory, about."""
        pages = sum(len(column.entries) for column in self.columns)
        per_page = PAGE_ENTRY.itemsize + TAG_BYTES + 4
        bounds = sum(column.bounds.nbytes for column in self.columns)
        bounds += sum(column.previews.nbytes for column in self.columns)
        return pages * per_page + bounds + len(self.columns) * _COLUMN_BYTES + self.inline.nbytes

    @property
    def links(self) -> tuple[Digest, ...]:
        return tuple(chunk for chunk in self.chunks if chunk is not None)


@dataclass(frozen=True, slots=True, eq=False)
class ColumnIndex:
    """All pages of one column of a dataset, in row order: what plans are made from.

    Attributes:
        id: the column's id.
        storage: the stored form of its rows; `storage.row_bytes` is the size of a fixed row.
        entries: PAGE_ENTRY ``(pages,)``; `rows`, `offset`, `stored_bytes`, `raw_bytes`, `codec`,
            `flags`, ... of each page. `entries["first_row"]` counts within the fragment.
        tags: uint8 ``(pages, 16)``, the truncated BLAKE3 of each stored page.
        first_row: int64 ``(pages + 1,)``: page p holds rows ``[first_row[p], first_row[p + 1])``
            of the dataset, deleted ones counted too.
        chunk: uint32 ``(pages,)``: the page lies in ``chunks[chunk[p]]``.
        chunks: per chunk its Link, or its payload where that stands inline in the metadata, or
            None: then the page is nowhere, and all of its rows are `default`. The chunk of a page
            of codec PAGE_FOREIGN is an object of kind FOREIGN, which says where its rows are.
        fragment: uint32 ``(pages,)``: which fragment of the dataset, counted from 0.
        storages: the forms in which pages are stored; one, `storage`, unless the column was
            widened after some of its pages were written.
        stored_as: uint8 ``(pages,)``: a place in `storages`.
        default: one row, which rows without a page have; None where every row has a page.
        patches: values that replace those in the pages; None where there are none.
        tiles: per page of a tiled column, places in `chunks` of those that hold its tiles.
        bounds: TEXT_BOUNDS ``(pages,)`` where rows are bytes, else ``(0,)``.
        previews: PREVIEW ``(pages, BANDS)`` where a page is of scans in bands, else ``(0, BANDS)``.

    The bytes of page p are ``[offset, offset + stored_bytes)`` of the chunk's payload.
    `read.page_bytes` gives them proved, `page.decode_page` turns them into values.
    """

    id: str
    storage: Storage
    entries: NDArray[Any]
    tags: NDArray[np.uint8]
    first_row: Ints
    chunk: NDArray[np.uint32]
    chunks: tuple[ObjectLink | memoryview | None, ...]
    fragment: NDArray[np.uint32]
    storages: tuple[Storage, ...]
    stored_as: NDArray[np.uint8]
    default: ColumnValues | None = None
    patches: Patches | None = None
    tiles: tuple[tuple[int, ...], ...] = ()
    bounds: NDArray[Any] = field(default_factory=lambda: no_text_bounds(0))
    previews: NDArray[Any] = field(default_factory=lambda: no_previews(0))

    @property
    def is_plain(self) -> bool:
        """Whether all rows are what their pages say, in the form that the schema says."""
        return self.storages == (self.storage,) and self.default is None and self.patches is None

    @property
    def pages(self) -> int:
        return len(self.entries)

    @property
    def rows(self) -> int:
        return int(self.first_row[-1])

    @property
    def raw_bytes(self) -> int:
        """Decoded bytes of all pages."""
        return int(self.entries["raw_bytes"].sum())

    @property
    def mean_row_bytes(self) -> float:
        """Decoded bytes of a row, on average."""
        return self.raw_bytes / max(1, self.rows)

    @property
    def is_absent(self) -> Bools:
        """Which pages are nowhere, so that their rows have the default."""
        absent = np.array([chunk is None for chunk in self.chunks], np.bool_)
        return absent[self.chunk] if len(absent) else np.zeros(self.pages, np.bool_)

    def page_of(self, rows: Ints) -> Ints:
        """The page that holds each of `rows`, which lie in ``[0, self.rows)``."""
        return np.searchsorted(self.first_row, rows, side="right") - 1


@dataclass(frozen=True, slots=True, eq=False)
class Patches:
    """Values that were set after their pages had been written.

    Attributes:
        rows: int64 ``(n,)``, rows of the dataset (deleted ones counted too), ascending, each once.
        source: int64 ``(n,)``: the value of ``rows[i]`` is row ``source[i]`` of `pages`.
        pages: the pages that hold the values; its rows count patches, its fragments mean nothing.
    """

    rows: Ints
    source: Ints
    pages: ColumnIndex

    def among(self, rows: Ints) -> tuple[Ints, Ints]:
        """Which of `rows` are patched: their places in `rows`, and their rows in `pages`."""
        place = np.searchsorted(self.rows, rows)
        inside = np.flatnonzero(place < len(self.rows))
        hit = inside[self.rows[place[inside]] == rows[inside]]
        return hit, self.source[place[hit]]


def pictures_in_bands(index: ColumnIndex) -> tuple[int, int]:
    """How many pictures of a column's pages are stored in bands, and how many as they came."""
    pictures = index.entries["rows"].astype(np.int64) - index.entries["nulls"]
    has = np.flatnonzero((index.previews["stored_bytes"] > 0).any(axis=1))
    in_bands = int((pictures[has] - index.previews["plain"][has, 0]).sum())
    return in_bands, int(pictures[~index.is_absent].sum()) - in_bands


def _padded(sizes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return (sizes + np.uint64(ALIGNMENT - 1)) // np.uint64(ALIGNMENT) * np.uint64(ALIGNMENT)


def preview_index(index: ColumnIndex, choose: Callable[[Ints], Ints]) -> ColumnIndex:
    """A column of which only the beginning of each page of scans is read.

    `choose` gives, of the smallest side of the pictures of each page, the last band that is wanted
    of it. Pages without previews, and patches, stay what they are.
    """
    has = np.flatnonzero((index.previews["stored_bytes"] > 0).all(axis=1))
    if not len(has):
        return index
    least_sides = index.previews["least_side"][has, 0].astype(np.int64)
    chosen = index.previews[has, choose(least_sides)]
    entries, tags = index.entries.copy(), index.tags.copy()
    before = entries["min"][has]  # bytes of the pictures as they came
    padding = _padded(chosen["data_bytes"]) - _padded(before)
    entries["raw_bytes"][has] += padding  # in numbers that wrap around
    entries["codec"][has] = PAGE_PREVIEW
    for name, known in (("min", "data_bytes"), ("max", "largest")):
        entries[name][has] = chosen[known]
    for name in ("stored_bytes", "checksum"):
        entries[name][has] = chosen[name]
    tags[has] = np.frombuffer(chosen["tag"].tobytes(), np.uint8).reshape(-1, TAG_BYTES)
    return replace(index, entries=entries, tags=tags)


# ------------------------------------------------------------------------------ stored form


def encode_index(index: PageIndex, more: Mapping[int, NDArray[Any]] | None = None) -> bytes:
    """The payload of a page index; its links are `index.links`. `more` are further sections."""
    entries = join_records([column.entries for column in index.columns])
    sections = column_sections(index.columns) | {
        ENTRIES: entries,
        TAGS: np.concatenate([column.tags for column in index.columns]),
        CHUNK_OF: np.concatenate([column.chunk for column in index.columns]).astype("<u4"),
        CHUNKS: np.frombuffer(
            b"".join(
                _INLINE_DIGEST if chunk is None else digest_bytes(chunk) for chunk in index.chunks
            ),
            f"V{DIGEST_BYTES}",
        ),
        INLINE: np.frombuffer(index.inline, np.uint8),
        TILE_CHUNKS: _tile_records(index.columns),
        BOUNDS: join_records([column.bounds for column in index.columns]),
        PREVIEWS: _preview_records(index.columns),
    }
    return encode_sections(INDEX_MAGIC, sections | dict(more or {}))


def _tile_records(columns: Sequence[ColumnPages]) -> NDArray[Any]:
    records = []
    first = 0
    for column in columns:
        for at, chunks in enumerate(column.tiles):
            records += [(first + at, chunk) for chunk in chunks]
        first += len(column.entries)
    return np.array(records, TILE_CHUNK)


def _preview_records(columns: Sequence[ColumnPages]) -> NDArray[Any]:
    """The previews that there are, each with its place among the entries."""
    records, first = [no_previews(0).reshape(-1)], 0
    for column in columns:
        numbered = column.previews.copy()
        numbered["entry"] = first + np.arange(len(numbered))[:, None]
        records.append(numbered[numbered["stored_bytes"] > 0])
        first += len(column.entries)
    return join_records(records)


def column_sections(columns: Sequence[ColumnPages]) -> dict[int, NDArray[Any]]:
    """The sections that say which columns there are and how they are stored."""
    table = np.zeros(len(columns), COLUMN_RECORD)
    dims: list[int] = []
    first_entry = 0
    for record, column in zip(table, columns, strict=True):
        storage = column.storage
        record["id"], record["layout"] = int(column.id, 16), storage.layout
        record["dtype"], record["rank"] = dtype_code(storage.dtype), len(storage.shape)
        record["first_dim"], record["first_entry"] = len(dims), first_entry
        record["entries"] = len(column.entries)
        first_entry += len(column.entries)
        dims += [UNKNOWN_DIM if dim is None else dim for dim in storage.shape]
        dims += storage.tile
    return {COLUMNS: table, DIMS: np.array(dims, "<u8")}


def decode_index(payload: Buffer, what: str) -> PageIndex:
    """Parse the payload of a page index. `what` names it in errors.

    Raises:
        CorruptError: the parts contradict each other.
        UnsupportedError: sections, layouts or types that this version does not know.
    """
    sections = decode_sections(INDEX_MAGIC, payload, what)
    if unknown := sections.keys() - KNOWN:
        raise UnsupportedError(f"{what}: sections {sorted(unknown)} are unknown here. Update.")
    return index_of(sections, what)


def index_of(sections: Mapping[int, memoryview], what: str) -> PageIndex:
    """The page index that these sections hold; sections of other meaning are not looked at."""
    entries = section_array(sections, ENTRIES, PAGE_ENTRY, what)
    tags = section_array(sections, TAGS, np.dtype("u1"), what)
    chunk_of = section_array(sections, CHUNK_OF, np.dtype("<u4"), what)
    chunks = _decode_chunks(section_array(sections, CHUNKS, np.dtype("u1"), what), what)
    if len(tags) != TAG_BYTES * len(entries) or len(chunk_of) != len(entries):
        raise CorruptError(f"{what}: {len(entries)} entries, but not as many tags and chunks")
    if chunks.count(None) > 1:
        raise CorruptError(f"{what}: more than one inline chunk")
    if len(entries) and int(chunk_of.max()) >= len(chunks):
        raise CorruptError(f"{what}: a page lies in a chunk that is not listed")
    columns = []
    tags = tags.reshape(-1, TAG_BYTES)
    tiles = _tiles(sections, len(entries), len(chunks), what)
    bounds = section_array(sections, BOUNDS, TEXT_BOUNDS, what)
    previews = _previews(sections, entries, what)
    bounded = 0  # pages whose bounds stand before those of the column
    for record, storage in decode_columns(sections, what):
        part = slice(record["first_entry"], record["first_entry"] + record["entries"])
        if part.stop > len(entries):
            raise CorruptError(f"{what}: a column has more pages than there are entries")
        if (
            storage.layout is not ColumnLayout.TILED
            and (entries["codec"][part] == PAGE_TILES).any()
        ):
            raise CorruptError(f"{what}: a table of tiles in a column that has none")
        name = f"{record['id']:016x}"
        of_pages: tuple[tuple[int, ...], ...] = ()
        if storage.layout is ColumnLayout.TILED:
            of_pages = tuple(tuple(tiles.get(at, ())) for at in range(part.start, part.stop))
        of_bytes = bounds[:0]
        if storage.layout is ColumnLayout.BINARY:
            of_bytes = no_text_bounds(record["entries"])
            if BOUNDS in sections:
                of_bytes = bounds[bounded : bounded + record["entries"]]
                bounded += record["entries"]
            if len(of_bytes) != record["entries"]:
                raise CorruptError(f"{what}: fewer bounds of text than pages of it")
        small = _previews_of(previews, part, storage, what)
        columns.append(
            ColumnPages(
                name, storage, entries[part], tags[part], chunk_of[part], of_pages, of_bytes, small
            )
        )
    if bounded != len(bounds):
        raise CorruptError(f"{what}: {len(bounds)} bounds of text for {bounded} pages of it")
    return PageIndex(tuple(columns), chunks, sections.get(INLINE, memoryview(b"")))


def _tiles(
    sections: Mapping[int, memoryview], entries: int, chunks: int, what: str
) -> dict[int, list[int]]:
    """Per entry the places of the chunks that hold its tiles."""
    records = section_array(sections, TILE_CHUNKS, TILE_CHUNK, what)
    if (records["entry"] >= entries).any() or (records["chunk"] >= chunks).any():
        raise CorruptError(f"{what}: tiles of a page or in a chunk that is not listed")
    found: dict[int, list[int]] = {}
    for entry, chunk in records.tolist():
        found.setdefault(entry, []).append(chunk)
    return found


def _previews(sections: Mapping[int, memoryview], entries: NDArray[Any], what: str) -> NDArray[Any]:
    """PREVIEW ``(entries, BANDS)``, or none at all."""
    records = section_array(sections, PREVIEWS, PREVIEW, what)
    if not len(records):
        return no_previews(0)
    found = no_previews(len(entries))
    if int(records["entry"].max()) >= len(entries) or int(records["band"].max()) >= BANDS:
        raise CorruptError(f"{what}: previews of pages or bands that are not there")
    found[records["entry"], records["band"]] = records
    beyond = found["stored_bytes"] > entries["stored_bytes"][:, None]
    if beyond.any() or not records["stored_bytes"].all() or (found["stored_bytes"] % 64).any():
        raise CorruptError(f"{what}: previews that are no beginnings of their pages")
    return found


def _previews_of(previews: NDArray[Any], pages: slice, storage: Storage, what: str) -> NDArray[Any]:
    """Those of one column, or none at all."""
    found = previews[pages]
    if not (found["stored_bytes"] > 0).any():
        return no_previews(0)
    if storage.layout is not ColumnLayout.BINARY:
        raise CorruptError(f"{what}: previews of pages that are not of bytes")
    return found


def decode_columns(
    sections: Mapping[int, memoryview], what: str
) -> list[tuple[dict[str, int], Storage]]:
    """Column records and storages that `column_sections` wrote."""
    table = section_array(sections, COLUMNS, COLUMN_RECORD, what)
    dims = section_array(sections, DIMS, np.dtype("<u8"), what).tolist()
    names = COLUMN_RECORD.names or ()
    found = []
    for values in table.tolist():
        record = dict(zip(names, values, strict=True))
        if record["layout"] not in set(ColumnLayout):
            raise UnsupportedError(f"{what}: column layout {record['layout']} is unknown. Update.")
        if record["reserved"] or record["reserved2"]:
            raise CorruptError(f"{what}: reserved fields of a column are set")
        found.append((record, _storage(record, dims, what)))
    return found


def _storage(record: Mapping[str, int], dims: Sequence[int], what: str) -> Storage:
    layout, rank = ColumnLayout(record["layout"]), record["rank"]
    listed = rank * (2 if layout is ColumnLayout.TILED else 1)
    shape = dims[record["first_dim"] : record["first_dim"] + listed]
    if len(shape) != listed:
        raise CorruptError(f"{what}: a column's dimensions are not listed")
    storage = Storage(
        layout,
        dtype_from_code(record["dtype"]),
        tuple(None if dim == UNKNOWN_DIM else dim for dim in shape[:rank]),
        tuple(shape[rank:]),
    )
    if layout is ColumnLayout.TILED:
        if not rank or not all(0 < dim < UNKNOWN_DIM for dim in storage.tile):
            raise CorruptError(f"{what}: tiles of shape {storage.tile} for rows {storage.shape}")
    elif (storage.unknown_dims > 0) != (layout is ColumnLayout.RAGGED):
        raise CorruptError(f"{what}: {layout.name} column of shape {storage.shape}")
    return storage


def _decode_chunks(raw: NDArray[np.uint8], what: str) -> tuple[Digest | None, ...]:
    if len(raw) % DIGEST_BYTES:
        raise CorruptError(f"{what}: the chunk list is cut short")
    digits, step = raw.tobytes().hex(), 2 * DIGEST_BYTES
    names = (digits[at : at + step] for at in range(0, len(digits), step))
    return tuple(None if name == _INLINE_DIGITS else Digest(name) for name in names)


# ------------------------------------------------------------------------------ whole columns


@dataclass(frozen=True, slots=True, eq=False)
class IndexPart:
    """A page index over some fragments, or None where these rows have no pages.

    `rows` are those of each fragment, `links` those of the object that the index stands in.
    """

    index: PageIndex | None
    links: Mapping[Digest, ObjectLink]
    rows: NDArray[np.uint32]

    @property
    def size_bytes(self) -> int:
        """Bytes of memory, about; its links are the dataset's."""
        return self.rows.nbytes + (0 if self.index is None else self.index.size_bytes)


def join_indexes(
    column_id: str,
    storage: Storage,
    parts: Sequence[IndexPart],
    *,
    default: ColumnValues | None = None,
    patches: Patches | None = None,
) -> ColumnIndex:
    """All pages of one column, from the page indexes that cover the dataset in order.

    An index without the column counts as none; `default` is one row, for fragments without pages,
    which are an error where it is None.

    Raises:
        CorruptError: pages do not add up to the fragments, a chunk is not linked, or rows have
            neither pages nor a default.
    """
    joined = _Joined(storage)
    for part in parts:
        pages = None if part.index is None else part.index.column(column_id)
        if part.index is not None and pages is not None:
            joined.add(pages, part.index, part.links)
        elif default is None and part.rows.any():
            raise CorruptError(f"column {column_id}: {part.rows.sum()} rows have no pages")
        else:
            joined.add_default(part.rows)
    entries = _concatenated(joined.entries, np.zeros(0, PAGE_ENTRY))
    first_row = offsets_of(entries["rows"])
    rows = np.concatenate([np.zeros(0, np.uint32), *(part.rows for part in parts)])
    return ColumnIndex(
        column_id,
        storage,
        entries,
        _concatenated(joined.tags, np.zeros((0, TAG_BYTES), np.uint8)),
        first_row,
        np.concatenate([np.zeros(0, np.uint32), *joined.chunk_of]),
        tuple(joined.chunks),
        _fragments(entries, first_row, rows.astype(np.int64)),
        tuple(joined.storages),
        np.concatenate([np.zeros(0, np.uint8), *joined.stored_as]),
        default if joined.has_default else None,
        patches,
        tuple(joined.tiles),
        _concatenated(joined.bounds, no_text_bounds(0)),
        join_previews(joined.previews),
    )


class _Joined:
    """Pages of one column as they are put behind one another."""

    def __init__(self, storage: Storage) -> None:
        self.storages = [storage]
        self.entries: list[NDArray[Any]] = []
        self.tags: list[NDArray[np.uint8]] = []
        self.chunk_of: list[NDArray[np.uint32]] = []
        self.stored_as: list[NDArray[np.uint8]] = []
        self.chunks: list[ObjectLink | memoryview | None] = []
        self.tiles: list[tuple[int, ...]] = []
        self.bounds: list[NDArray[Any]] = []
        self.previews: list[tuple[int, NDArray[Any]]] = []
        self.has_default = False

    def add(self, pages: ColumnPages, index: PageIndex, links: Mapping[Digest, ObjectLink]) -> None:
        if (pages.storage.layout is ColumnLayout.TILED) != (
            self.storages[0].layout is ColumnLayout.TILED
        ):
            raise CorruptError(f"column {pages.id}: some of its pages are tiled, others are not")
        if pages.storage not in self.storages:
            self.storages.append(pages.storage)
        first, stop = _chunk_range(pages)  # of a wide index each column has its own few
        before = len(self.chunks)
        place = self.storages.index(pages.storage)
        self.entries.append(pages.entries)
        self.previews.append((len(pages.entries), pages.previews))
        self.tags.append(pages.tags)
        if self.storages[0].layout is ColumnLayout.BINARY:
            known = len(pages.bounds) == len(pages.entries)
            self.bounds.append(pages.bounds if known else no_text_bounds(len(pages.entries)))
        self.chunk_of.append(pages.chunk - np.uint32(first) + np.uint32(before))
        self.stored_as.append(np.full(len(pages.entries), place, np.uint8))
        self.chunks += [_place(each, index, links) for each in index.chunks[first:stop]]
        self.tiles += [tuple(before - first + chunk for chunk in each) for each in pages.tiles]

    def add_default(self, rows: NDArray[np.uint32]) -> None:
        """A page that is nowhere for each fragment."""
        entries = np.zeros(len(rows), PAGE_ENTRY)
        entries["rows"] = rows
        self.entries.append(entries)
        self.previews.append((len(rows), no_previews(0)))
        self.tags.append(np.zeros((len(rows), TAG_BYTES), np.uint8))
        self.chunk_of.append(np.full(len(rows), len(self.chunks), np.uint32))
        self.stored_as.append(np.zeros(len(rows), np.uint8))
        if self.storages[0].layout is ColumnLayout.BINARY:
            self.bounds.append(no_text_bounds(len(rows)))
        self.chunks.append(None)
        if self.storages[0].layout is ColumnLayout.TILED:
            self.tiles += [()] * len(rows)
        self.has_default = True


def _concatenated(parts: Sequence[NDArray[Any]], nothing: NDArray[Any]) -> NDArray[Any]:
    """One array of all; the only one as it is."""
    return parts[0] if len(parts) == 1 else join_records([nothing, *parts])


def _chunk_range(pages: ColumnPages) -> tuple[int, int]:
    """First and one behind the last place of the chunks that pages, and their tiles, lie in."""
    places = [chunk for each in pages.tiles for chunk in each]
    if len(pages.chunk):
        places += [int(pages.chunk.min()), int(pages.chunk.max())]
    return min(places, default=0), max(places, default=-1) + 1


def _place(
    chunk: Digest | None, index: PageIndex, links: Mapping[Digest, ObjectLink]
) -> ObjectLink | memoryview:
    if chunk is None:
        return index.inline
    if chunk not in links:
        raise CorruptError(f"a page index names chunk {chunk:.12}, which its object does not link")
    return links[chunk]


def _fragments(entries: NDArray[Any], first_row: Ints, rows: Ints) -> NDArray[np.uint32]:
    """The fragment of every page; proves that pages cover each fragment without gap or overlap."""
    bounds = offsets_of(rows)
    begins = entries["first_row"] == 0
    fragment = np.cumsum(begins) - 1
    right = (
        np.array_equal(first_row[:-1][begins], bounds[:-1])
        and bool((first_row[:-1] - entries["first_row"] == bounds[fragment]).all())
        and bool(entries["rows"].all())
    )
    if not right or first_row[-1] != bounds[-1]:
        raise CorruptError(f"pages of {first_row[-1]} rows do not cover fragments of {bounds[-1]}")
    return fragment.astype(np.uint32)


FRAGMENT_OF, OFFSETS = 16, 17


@dataclass(frozen=True, slots=True, eq=False)
class PatchIndex:
    """Values of one column that were set after their pages had been written, over some fragments.

    Where two pages set one row, the later page counts.

    Attributes:
        index: pages of one column; of an entry, `first_row` is the place of its first value in
            `offsets`, `rows` their number.
        fragment: uint32 ``(pages,)``, counted within the span, ascending.
        offsets: uint32 ``(values,)``: ascending within a page.
    """

    index: PageIndex
    fragment: NDArray[np.uint32]
    offsets: NDArray[np.uint32]


def encode_patch_index(patch: PatchIndex) -> bytes:
    """The payload of a patch index; its links are those of `patch.index`."""
    more: dict[int, NDArray[Any]] = {
        FRAGMENT_OF: patch.fragment.astype("<u4"),
        OFFSETS: patch.offsets.astype("<u4"),
    }
    return encode_index(patch.index, more)


def decode_patch_index(payload: Buffer, what: str) -> PatchIndex:
    """Parse the payload of a patch index; `what` names it in errors.

    Raises:
        CorruptError: the parts contradict each other.
    """
    sections = decode_sections(INDEX_MAGIC, payload, what)
    if unknown := sections.keys() - KNOWN - {FRAGMENT_OF, OFFSETS}:
        raise CorruptError(f"{what}: sections {sorted(unknown)} in a patch")
    index = index_of(sections, what)
    fragment = section_array(sections, FRAGMENT_OF, np.dtype("<u4"), what)
    offsets = section_array(sections, OFFSETS, np.dtype("<u4"), what)
    if len(index.columns) != 1 or len(fragment) != len(index.columns[0].entries):
        raise CorruptError(f"{what}: a patch has one column, and a fragment for each page")
    entries = index.columns[0].entries
    if not len(entries) or not entries["rows"].all():
        raise CorruptError(f"{what}: a patch has pages, and none without rows")
    stops = np.cumsum(entries["rows"], dtype=np.int64)
    if (entries["first_row"] != stops - entries["rows"]).any() or stops[-1] != len(offsets):
        raise CorruptError(f"{what}: pages and offsets of a patch do not match")
    rises = np.diff(offsets.astype(np.int64)) > 0
    rises[stops[:-1] - 1] = True
    if (np.diff(fragment.astype(np.int64)) < 0).any() or not rises.all():
        raise CorruptError(f"{what}: fragments or offsets of a patch are out of order")
    return PatchIndex(index, fragment, offsets)


def patched_rows(patch: PatchIndex, fragment_start: Ints, fragment_rows: Ints) -> Ints:
    """The row of the dataset that each value is for, given where the fragments begin in it.

    Raises:
        CorruptError: a fragment beyond those that the span covers, or a row beyond its fragment's.
    """
    if len(patch.fragment) and int(patch.fragment[-1]) >= len(fragment_start):
        raise CorruptError("patch: a fragment beyond those that it covers")
    fragment = np.repeat(patch.fragment, patch.index.columns[0].entries["rows"])
    if (patch.offsets >= fragment_rows[fragment]).any():
        raise CorruptError("patch: a row beyond those of its fragment")
    return fragment_start[fragment] + patch.offsets
