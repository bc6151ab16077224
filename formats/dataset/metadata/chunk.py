"""Chunk layout: pages of several columns in one object.

A chunk's payload is pages, column after column, each at a multiple of 64 bytes, then a footer that
repeats what the page index says, so that a chunk without its index can be read and checked. Nothing
in it tells whose rows they are: equal rows make equal chunks, which are stored once.

    pages | footer: sections | footer_bytes u64 | xxh3_64 of the footer u64 | magic "TRPCHNK2"

Source:
    docs/spec/dataset.md, section "Chunk".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.dataset.metadata.index import (
    ENTRIES,
    TAGS,
    ColumnPages,
    column_sections,
    decode_columns,
    join_previews,
)
from tensorrepo.formats.dataset.pages.page import PAGE_ENTRY, TAG_BYTES, EncodedPage
from tensorrepo.formats.dataset.pages.scan_bands import PREVIEW
from tensorrepo.formats.dataset.pages.sections import (
    decode_sections,
    encode_sections,
    join_records,
    section_array,
)
from tensorrepo.formats.dataset.pages.text_bounds import TEXT_BOUNDS
from tensorrepo.formats.dataset.schema.types import Storage
from tensorrepo.formats.images.progressive import BANDS
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.ids import Buffer

CHUNK_BYTES = 64 << 20
JOINED_BYTES = 768 << 10
FOOTER_MAGIC = b"TRPF"
TRAILER = Struct("<QQ8s")
assert TRAILER.size == 24, "docs/spec/dataset.md promises a 24-byte trailer"
TRAILER_MAGIC = b"TRPCHNK2"
EARLIER_MAGIC = b"TRPCHUNK"  # of unreleased versions, whose footers named fragments


@dataclass(frozen=True, slots=True, eq=False)
class ChunkColumn:
    """What one column puts into a chunk: its pages and the first row of each in its fragment."""

    id: str
    storage: Storage
    pages: Sequence[EncodedPage]
    first_rows: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class LaidChunk:
    """A chunk ready to be stored: the parts of its pages, and where each page came to lie."""

    parts: tuple[memoryview, ...]
    columns: tuple[ColumnPages, ...]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


def lay_out(columns: Sequence[ChunkColumn], chunk_number: int) -> LaidChunk:
    """Place all pages, column after column.

    The order is that of the page index's column table, `chunk_number` the place in its chunk list.
    """
    parts: list[memoryview] = []
    laid = []
    offset = 0
    for place, column in enumerate(columns):
        # Joined as bytes: numpy takes a record at a time field by field.
        joined = bytearray().join(page.entry.tobytes() for page in column.pages)
        entries = np.frombuffer(joined, PAGE_ENTRY)
        ends = np.cumsum(entries["stored_bytes"], dtype=np.uint64)
        entries["offset"] = offset + ends - entries["stored_bytes"]
        entries["first_row"], entries["column"] = column.first_rows, place
        tags = np.frombuffer(bytearray().join(page.tag for page in column.pages), np.uint8)
        parts += _joined([page.data for page in column.pages])
        offset += int(ends[-1]) if len(ends) else 0
        chunk = np.full(len(entries), chunk_number, np.uint32)
        tags = tags.reshape(-1, TAG_BYTES)
        bounds = np.frombuffer(bytearray().join(page.bounds for page in column.pages), TEXT_BOUNDS)
        has_previews = any(page.previews for page in column.pages)
        previewed = column.pages if has_previews else ()
        previews = join_previews([(1, _previews(page)) for page in previewed])
        storage = column.storage
        laid.append(
            ColumnPages(column.id, storage, entries, tags, chunk, bounds=bounds, previews=previews)
        )
    return LaidChunk(tuple(parts), tuple(laid))


def _previews(page: EncodedPage) -> NDArray[Any]:
    return np.frombuffer(page.previews, PREVIEW).reshape(-1, BANDS)


def _joined(pages: Sequence[NDArray[np.uint8]]) -> list[memoryview]:
    """The same bytes in fewer parts: pages that lie one behind the other in memory are joined.

    BLAKE3 takes a fifth longer over parts of 256 KiB than over four times as many. Longer ones are
    hashed on all cores, which pages that are encoded on all cores have no use for.
    """
    if not pages:
        return []
    starts = np.array([page.__array_interface__["data"][0] for page in pages])
    stops = starts + [page.nbytes for page in pages]
    same = [
        isinstance(page.base, np.ndarray) and page.base is before.base and page.base.ndim == 1
        for before, page in pairwise(pages)
    ]
    pieces = starts // JOINED_BYTES
    apart = (starts[1:] != stops[:-1]) | ~np.array(same, np.bool_) | (pieces[1:] != pieces[:-1])
    cuts = np.flatnonzero(apart) + 1
    parts = []
    for first, stop in pairwise([0, *cuts.tolist(), len(pages)]):
        memory, page = pages[first].base, pages[first]
        if stop - first > 1 and memory is not None:
            origin = memory.__array_interface__["data"][0]
            page = memory.view(np.uint8)[starts[first] - origin : stops[stop - 1] - origin]
        parts.append(page.data)
    return parts


def encode_footer(columns: Sequence[ColumnPages]) -> bytes:
    """What follows the pages of a chunk that is an object of its own."""
    sections = column_sections(columns) | {
        ENTRIES: join_records([column.entries for column in columns]),
        TAGS: np.concatenate([column.tags for column in columns]),
    }
    footer = encode_sections(FOOTER_MAGIC, sections)
    return footer + TRAILER.pack(len(footer), xxh3_64_intdigest(footer), TRAILER_MAGIC)


# What a chunk tells of a column: its id, storage, entries and tags.
FooterColumn = tuple[str, Storage, NDArray[Any], NDArray[np.uint8]]


def decode_footer(payload: Buffer) -> tuple[FooterColumn, ...]:
    """Read the footer of a whole chunk payload: the way to its pages where its index is lost.

    Raises:
        CorruptError: it is not there, or not what it was.
        UnsupportedError: made by a newer version.
    """
    view = memoryview(payload).cast("B")
    if view.nbytes < TRAILER.size:
        raise CorruptError(f"chunk: {view.nbytes} bytes are fewer than its trailer")
    size, checksum, magic = TRAILER.unpack(view[-TRAILER.size :])
    if magic == EARLIER_MAGIC:
        raise UnsupportedError(
            "chunk: written by an unreleased version of tensorrepo. Write the dataset anew."
        )
    if magic[:-1] == TRAILER_MAGIC[:-1] and magic > TRAILER_MAGIC:
        raise UnsupportedError(f"chunk: trailer {magic!r}, this reads {TRAILER_MAGIC!r}. Update.")
    if magic != TRAILER_MAGIC or size > view.nbytes - TRAILER.size:
        raise CorruptError(f"chunk: no trailer at its end, found magic {magic!r}")
    footer = view[view.nbytes - TRAILER.size - size : view.nbytes - TRAILER.size]
    if xxh3_64_intdigest(footer) != checksum:
        raise CorruptError("chunk: the footer disagrees with its checksum")
    sections = decode_sections(FOOTER_MAGIC, footer, "chunk footer")
    entries = section_array(sections, ENTRIES, PAGE_ENTRY, "chunk footer")
    tags = section_array(sections, TAGS, np.dtype("u1"), "chunk footer")
    if len(tags) != TAG_BYTES * len(entries):
        raise CorruptError("chunk footer: not as many tags as entries")
    tags = tags.reshape(-1, TAG_BYTES)
    columns = []
    for record, storage in decode_columns(sections, "chunk footer"):
        part = slice(record["first_entry"], record["first_entry"] + record["entries"])
        columns.append((f"{record['id']:016x}", storage, entries[part], tags[part]))
    return tuple(columns)
