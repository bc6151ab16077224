"""Where does every page of a column lie?

Two things live here. `PageIndex` is one stored object (or a part of a leaf): the page entries of
one column group over a run of fragments. `ColumnIndex` is what readers and planners use: all pages
of one column of the whole dataset as a few flat arrays.

Source:
    docs/spec/dataset.md, section "Page index".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.page import PAGE_ENTRY, TAG_BYTES
from tensorrepo.formats.dataset.sections import decode_sections, encode_sections, section_array
from tensorrepo.formats.dataset.types import Layout, Storage
from tensorrepo.formats.dtypes import dtype_code, dtype_from_code
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.ids import DIGEST_BYTES, Digest, digest_bytes, digest_from_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tensorrepo.repo.ids import Buffer
    from tensorrepo.repo.objects import Link

INDEX_MAGIC = b"TRPI"
# Sections of a page index.
COLUMNS, DIMS, ENTRIES, TAGS, CHUNK_OF, CHUNKS, INLINE = range(1, 8)
_KNOWN = frozenset(range(1, 8))

COLUMN_RECORD = np.dtype(
    [
        ("id", "<u8"),
        ("layout", "u1"),
        ("dtype", "u1"),
        ("rank", "u1"),
        ("reserved", "u1"),
        ("first_dim", "<u4"),  # in DIMS; an unknown dimension is 2^64 - 1
        ("first_entry", "<u4"),  # entries are grouped by column
        ("entries", "<u4"),
        ("reserved2", "<u8"),
    ]
)
assert COLUMN_RECORD.itemsize == 32, "docs/spec/dataset.md promises 32-byte column records"
UNKNOWN_DIM = (1 << 64) - 1
_INLINE_DIGEST = bytes(DIGEST_BYTES)  # stands for "the pages are in this index's INLINE section"


@dataclass(frozen=True, slots=True, eq=False)
class ColumnPages:
    """The pages of one column in one page index, in row order."""

    id: str
    storage: Storage
    entries: NDArray[Any]  # PAGE_ENTRY (pages,)
    tags: NDArray[np.uint8]  # (pages, 16)
    chunk: NDArray[np.uint32]  # (pages,), a place in PageIndex.chunks


@dataclass(frozen=True, slots=True, eq=False)
class PageIndex:
    """One column group over consecutive fragments.

    `chunks` holds digests; None is the chunk whose payload is `inline`, at most once.
    """

    columns: tuple[ColumnPages, ...]
    chunks: tuple[Digest | None, ...]
    inline: memoryview

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
            of the dataset.
        chunk: uint32 ``(pages,)``: the page lies in ``chunks[chunk[p]]``.
        chunks: per chunk its Link, or its payload where that stands inline in the metadata.
        fragment: uint32 ``(pages,)``: which fragment of the dataset, counted from 0.

    The bytes of page p are ``[offset, offset + stored_bytes)`` of the chunk's payload.
    `page.verify_page(bytes, entries[p], tags[p])` proves them (leave the tag out for bytes that
    were mapped from a local disk), `page.decode_page(bytes, entries[p], storage)` gives values.
    In `read`: ``column_index(dataset, "image")`` gives this (cached on the handle), and
    ``page_bytes(dataset, index, p)`` the verified bytes of one page, mapped where possible.
    """

    id: str
    storage: Storage
    entries: NDArray[Any]
    tags: NDArray[np.uint8]
    first_row: NDArray[np.int64]
    chunk: NDArray[np.uint32]
    chunks: tuple[Link | memoryview, ...]
    fragment: NDArray[np.uint32]

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

    def page_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The page that holds each of `rows`, which lie in ``[0, self.rows)``."""
        return np.searchsorted(self.first_row, rows, side="right") - 1


# ------------------------------------------------------------------------------ stored form


def encode_index(index: PageIndex) -> bytes:
    """The payload of a page index; its links are `index.links`."""
    entries = np.concatenate([column.entries for column in index.columns])
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
    }
    return encode_sections(INDEX_MAGIC, sections)


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
    return {COLUMNS: table, DIMS: np.array(dims, "<u8")}


def decode_index(payload: Buffer, what: str) -> PageIndex:
    """Parse the payload of a page index. `what` names it in errors.

    Raises:
        CorruptError: the parts contradict each other.
        UnsupportedError: sections, layouts or types that this version does not know.
    """
    sections = decode_sections(INDEX_MAGIC, payload, what)
    if unknown := sections.keys() - _KNOWN:
        raise UnsupportedError(f"{what}: sections {sorted(unknown)} are unknown here. Update.")
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
    for record, storage in decode_columns(sections, what):
        part = slice(record["first_entry"], record["first_entry"] + record["entries"])
        if part.stop > len(entries):
            raise CorruptError(f"{what}: a column has more pages than there are entries")
        columns.append(
            ColumnPages(f"{record['id']:016x}", storage, entries[part], tags[part], chunk_of[part])
        )
    return PageIndex(tuple(columns), chunks, sections.get(INLINE, memoryview(b"")))


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
        if record["layout"] not in set(Layout):
            raise UnsupportedError(f"{what}: column layout {record['layout']} is unknown. Update.")
        if record["reserved"] or record["reserved2"]:
            raise CorruptError(f"{what}: reserved fields of a column are set")
        shape = dims[record["first_dim"] : record["first_dim"] + record["rank"]]
        if len(shape) != record["rank"]:
            raise CorruptError(f"{what}: a column's dimensions are not listed")
        storage = Storage(
            Layout(record["layout"]),
            dtype_from_code(record["dtype"]),
            tuple(None if dim == UNKNOWN_DIM else dim for dim in shape),
        )
        if (storage.unknown_dims > 0) != (storage.layout is Layout.RAGGED):
            raise CorruptError(f"{what}: {storage.layout.name} column of shape {storage.shape}")
        found.append((record, storage))
    return found


def _decode_chunks(raw: NDArray[np.uint8], what: str) -> tuple[Digest | None, ...]:
    if len(raw) % DIGEST_BYTES:
        raise CorruptError(f"{what}: the chunk list is cut short")
    digests = raw.reshape(-1, DIGEST_BYTES)
    names = [row.tobytes() for row in digests]
    return tuple(None if name == _INLINE_DIGEST else digest_from_bytes(name) for name in names)


# ------------------------------------------------------------------------------ whole columns


def join_indexes(
    column_id: str,
    storage: Storage,
    indexes: Sequence[tuple[PageIndex, Mapping[Digest, Link]]],
    fragment_rows: Sequence[NDArray[np.uint32]],
) -> ColumnIndex:
    """All pages of one column, from the page indexes that cover the dataset in order.

    Args:
        column_id: which column.
        storage: how the schema says it is stored.
        indexes: each with links that know its chunks.
        fragment_rows: per index the rows of each fragment that it covers.

    Raises:
        CorruptError: pages do not add up to the fragments, or a chunk is not linked.
        UnsupportedError: pages that are stored in another form than the schema says.
    """
    pages = [_pages_of(column_id, storage, index) for index, _ in indexes]
    chunks: list[Link | memoryview] = []
    chunk_of = [np.zeros(0, np.uint32)]
    for part, (index, links) in zip(pages, indexes, strict=True):
        chunk_of.append(part.chunk + np.uint32(len(chunks)))
        chunks += [_place(chunk, index, links) for chunk in index.chunks]
    entries = np.concatenate([np.zeros(0, PAGE_ENTRY), *(part.entries for part in pages)])
    tags = np.concatenate([np.zeros((0, TAG_BYTES), np.uint8), *(part.tags for part in pages)])
    first_row = np.zeros(len(entries) + 1, np.int64)
    np.cumsum(entries["rows"], out=first_row[1:])
    rows = np.concatenate([np.zeros(0, np.uint32), *fragment_rows]).astype(np.int64)
    fragment = _fragments(entries, first_row, rows)
    return ColumnIndex(
        column_id,
        storage,
        entries,
        tags,
        first_row,
        np.concatenate(chunk_of),
        tuple(chunks),
        fragment,
    )


def _pages_of(column_id: str, storage: Storage, index: PageIndex) -> ColumnPages:
    for column in index.columns:
        if column.id == column_id:
            if column.storage != storage:
                raise UnsupportedError(
                    f"column {column_id} is stored as {column.storage}, the schema says {storage}: "
                    "this version cannot convert it. Update tensorrepo."
                )
            return column
    raise UnsupportedError(f"column {column_id} was added later. Update tensorrepo to read it.")


def _place(
    chunk: Digest | None, index: PageIndex, links: Mapping[Digest, Link]
) -> Link | memoryview:
    if chunk is None:
        return index.inline
    if chunk not in links:
        raise CorruptError(f"a page index names chunk {chunk:.12}, which its object does not link")
    return links[chunk]


def _fragments(
    entries: NDArray[Any], first_row: NDArray[np.int64], rows: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """The fragment of every page; proves that pages cover each fragment without gap or overlap."""
    starts = first_row[:-1] - entries["first_row"]  # where the fragment of each page begins
    bounds = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(rows, out=bounds[1:])
    fragment: NDArray[np.int64] = np.searchsorted(bounds, starts, side="right") - 1
    covered = np.isin(bounds[:-1], first_row[:-1]).all() if len(rows) else not len(entries)
    right = (starts == bounds[np.clip(fragment, 0, len(rows))]).all() and (
        entries["rows"] > 0
    ).all()
    inside = (first_row[1:] <= bounds[np.clip(fragment + 1, 0, len(rows))]).all()
    if not (covered and right and inside) or first_row[-1] != bounds[-1]:
        raise CorruptError(f"pages of {first_row[-1]} rows do not cover fragments of {bounds[-1]}")
    return fragment.astype(np.uint32)
