"""Page encoding: consecutive rows of one column, with the sums that prove them.

A page is a directory of four buffers, then the buffers, each padded to 64 bytes. The page's entry,
kept in the page index, says what it holds and proves it.

Source:
    docs/spec/dataset.md, section "Page".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from struct import Struct
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.common.buffer_codecs import (
    AUTO,
    Codec,
    CodecChoice,
    decode_buffer,
    encode_chosen,
)
from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.pages.scan_bands import (
    SCANS,
    ScanBuffer,
    decode_preview,
    decode_scans,
    encode_scans,
)
from tensorrepo.formats.dataset.pages.text_bounds import text_bounds
from tensorrepo.formats.dataset.schema.types import ColumnLayout, ColumnType, Image, Storage
from tensorrepo.formats.dataset.schema.values import (
    NO_RANGE,
    BinaryValues,
    ColumnValues,
    FixedValues,
    RaggedValues,
    range_of,
)
from tensorrepo.formats.native.row_sums import BEST
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.hashing.digests import content_tag, content_tags

IN_BANDS: Final = "bands"  # a wish: pictures as scans in bands, where some can be
PageCodec = CodecChoice | Literal["bands"]
Allocate = Callable[[int], NDArray[np.uint8]]

ALIGNMENT = 64
TAG_BYTES = 16
SUMMED_ROW_BYTES = 256  # rows of at least this many bytes have sums of their own
FEW_LABELS_BYTES = 64 << 10  # scalars of fewer bytes are not compressed automatically

# One page, as the page index and the chunk's footer keep it; in memory as on disk.
PAGE_ENTRY = np.dtype(
    [
        ("first_row", "<u4"),  # rows of the fragment before this page
        ("rows", "<u4"),
        ("offset", "<u8"),  # in the chunk's payload, a multiple of 64
        ("stored_bytes", "<u8"),  # directory, buffers and padding: a multiple of 64
        ("raw_bytes", "<u8"),  # what stored_bytes would be without compression
        ("checksum", "<u8"),  # xxh3_64 of the stored bytes
        ("nulls", "<u4"),
        ("column", "<u2"),  # place in the file's column table
        ("codec", "u1"),  # PAGE_PLAIN, PAGE_COMPRESSED, PAGE_TILES or PAGE_FOREIGN
        ("flags", "u1"),
        ("min", "<u8"),  # order key; ragged: elements, binary: bytes
        ("max", "<u8"),  # order key; ragged and binary: largest row in bytes
    ]
)
assert PAGE_ENTRY.itemsize == 64, "docs/spec/dataset.md promises 64-byte page entries"

# A preview is the beginning of a compressed page of pictures: such an entry is never stored.
PAGE_PLAIN, PAGE_COMPRESSED, PAGE_TILES, PAGE_FOREIGN, PAGE_PREVIEW = range(5)
HAS_ROW_SUMS, HAS_RANGE, MIN_INEXACT, MAX_INEXACT, HAS_NAN, IS_SORTED = 1, 2, 4, 8, 16, 32

# Directory: 4 x (stored_bytes u64, codec u8, item u8, reserved u16, reserved u32).
DIRECTORY = Struct("<" + "QBBHI" * 4)
assert DIRECTORY.size == 64, "docs/spec/dataset.md promises a 64-byte page directory"
DIRECTORY_FIELD = np.dtype(
    [
        ("stored_bytes", "<u8"),
        ("codec", "u1"),
        ("item", "u1"),
        ("reserved", "<u2"),
        ("zero", "<u4"),
    ]
)
assert 4 * DIRECTORY_FIELD.itemsize == DIRECTORY.size, "the same, as an array"
# The four buffers; fixed columns use TABLE for values. What finds and proves single rows comes
# first, so that one request reads it.
VALIDITY, TABLE, SUMS, DATA = range(4)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPage:
    """One page ready to be placed in a chunk.

    `entry` is a PAGE_ENTRY record whose first_row, offset and column are still 0; `tag` is the
    truncated BLAKE3 that proves `data` against a hostile store; `bounds` is a TEXT_BOUNDS record
    where rows are bytes, else empty; `previews` are PREVIEW records where they are scans in bands.
    """

    data: NDArray[np.uint8]
    entry: NDArray[Any]
    tag: bytes
    bounds: bytes = b""
    previews: bytes = b""


def _fresh(size: int) -> NDArray[np.uint8]:
    return np.empty(size, np.uint8)


def padded(size: int) -> int:
    """`size` up to the next multiple of 64."""
    return -(-size // ALIGNMENT) * ALIGNMENT


# ------------------------------------------------------------------------------ encoding


def encode_page(
    values: ColumnValues,
    storage: Storage,
    codec: PageCodec = Codec.NONE,
    allocate: Allocate = _fresh,
) -> EncodedPage:
    """Encode all rows of `values` as one page.

    Null rows are zeroed or empty. `codec` is kept for each buffer of which it saves a quarter,
    `IN_BANDS` where a row is such a picture; `allocate` gives memory of any content for so many
    bytes.
    """
    return encode_pages([PageInput(values, storage, codec, allocate)])[0]


@dataclass(frozen=True, slots=True, eq=False)
class PageInput:
    """What a page is made of; see `encode_page`."""

    values: ColumnValues
    storage: Storage
    codec: PageCodec = Codec.NONE
    allocate: Allocate = _fresh


@dataclass(slots=True, eq=False)  # frozen ones take thrice as long to make
class _Draft:
    """A page whose buffers are chosen and encoded, but lie where they came from."""

    given: PageInput
    values: ColumnValues
    is_summed: bool
    buffers: list[NDArray[Any]]
    codecs: list[int]
    items: list[int]
    raw_bytes: int
    scans: ScanBuffer | None

    @property
    def is_plain(self) -> bool:
        """Whether it is rows as they are, and their sums, and nothing else."""
        return (
            self.is_summed
            and self.values.valid is None
            and not any(self.codecs)
            and isinstance(self.values, FixedValues)
            and self.values.values.flags.c_contiguous
        )


def encode_pages(inputs: Sequence[PageInput]) -> list[EncodedPage]:
    """As `encode_page` of each of a few pages.

    What Python does for them is done for one after the other, before and after their bytes are
    copied and summed: these push all else out of the processor's cache, and Python that comes back
    to it for each page takes several times as long.
    """
    drafts = [_draft(given) for given in inputs]
    plain: dict[int, list[int]] = {}  # by bytes of a row
    for at, draft in enumerate(drafts):
        if draft.is_plain:
            plain.setdefault(draft.given.storage.row_bytes, []).append(at)
    pages: dict[int, EncodedPage] = {}
    for row_bytes, places in plain.items():
        made = _plain_pages([drafts[at] for at in places], row_bytes)
        pages.update(zip(places, made, strict=True))
    return [pages.get(at) or _page(draft) for at, draft in enumerate(drafts)]


def _draft(given: PageInput) -> _Draft:
    values, storage, codec = given.values, given.storage, given.codec
    if values.valid is not None and values.valid.all():
        values = replace(values, valid=None)
    buffers = _buffers(values)
    is_summed = _has_row_sums(values, storage)
    if is_summed:
        buffers[SUMS] = np.empty(values.rows, np.uint32)  # filled later
    raw_bytes = DIRECTORY.size + sum([padded(buffer.nbytes) for buffer in buffers])
    codecs: list[int] = [Codec.NONE] * 4
    items = _items(storage)
    scans: ScanBuffer | None = None
    if codec == IN_BANDS:
        assert isinstance(values, BinaryValues), "pictures are bytes"
        if (scans := encode_scans(values)) is not None:
            codecs[DATA], buffers[DATA] = SCANS, scans.data
    elif codec is not Codec.NONE:
        is_label = storage.layout is ColumnLayout.FIXED and not storage.shape
        for which in (TABLE, DATA):
            # Few labels are worth more mapped than small.
            is_few = is_label and buffers[which].nbytes < FEW_LABELS_BYTES
            wish = Codec.NONE if codec == AUTO and is_few else codec
            codecs[which], buffers[which] = _compress(wish, buffers[which], items[which])
    return _Draft(given, values, is_summed, buffers, codecs, items, raw_bytes, scans)


def _page(draft: _Draft) -> EncodedPage:
    values, storage, buffers = draft.values, draft.given.storage, draft.buffers
    codecs, is_summed = draft.codecs, draft.is_summed
    sizes = [buffer.nbytes for buffer in buffers]
    data, rooms = _new_page(sizes, codecs, draft.items, draft.given.allocate)
    to_fill = {VALIDITY, TABLE, DATA}
    if is_summed:
        rows = TABLE if isinstance(values, FixedValues) else DATA
        to_fill -= set() if codecs[rows] else {rows}
        _sum_rows(values, rooms[SUMS].view("<u4"), None if codecs[rows] else rooms[rows])
    for which in to_fill:
        _fill(rooms[which], buffers[which])
    entry = np.zeros((), PAGE_ENTRY)
    entry["rows"], entry["stored_bytes"] = values.rows, data.nbytes
    entry["raw_bytes"] = draft.raw_bytes
    entry["checksum"] = xxh3_64_intdigest(data.data)
    entry["codec"] = PAGE_COMPRESSED if any(codecs) else PAGE_PLAIN
    entry["flags"] = HAS_ROW_SUMS if is_summed else 0
    _describe(entry, values, storage)
    bounds = text_bounds(values).tobytes() if isinstance(values, BinaryValues) else b""
    previews = b"" if draft.scans is None else draft.scans.previews(data)
    return EncodedPage(data, entry, content_tag(data.data), bounds, previews)


def _plain_pages(drafts: Sequence[_Draft], row_bytes: int) -> list[EncodedPage]:
    """Pages that are plain, of rows of one size, in one call to C."""
    rows = [draft.buffers[TABLE].reshape(-1).view(np.uint8) for draft in drafts]
    heads, rooms = [], []
    for draft in drafts:
        sizes = [buffer.nbytes for buffer in draft.buffers]
        heads.append(_directory(sizes, draft.codecs, draft.items))
        rooms.append(draft.given.allocate(draft.raw_bytes))  # nothing is compressed
    checksums = BEST.fill(rows, heads, rooms, row_bytes)
    entries = np.zeros(len(drafts), PAGE_ENTRY)
    entries["rows"] = [draft.values.rows for draft in drafts]
    entries["raw_bytes"] = entries["stored_bytes"] = [room.nbytes for room in rooms]
    entries["checksum"], entries["flags"] = checksums, HAS_ROW_SUMS
    tags = content_tags([room.data for room in rooms])
    # Rows that have sums are no scalars, whose range an entry would tell.
    return [
        EncodedPage(room, entries[at : at + 1].reshape(()), tags[at])
        for at, room in enumerate(rooms)
    ]


def _items(storage: Storage) -> list[int]:
    """Element bytes of the four buffers: what shuffling regroups by."""
    item = storage.element.itemsize
    table = item if storage.layout is ColumnLayout.FIXED else 4 if storage.stores_dims else 8
    return [1, table, 4, item]


def _buffers(values: ColumnValues) -> list[NDArray[Any]]:
    empty = np.empty(0, np.uint8)
    validity = empty if values.valid is None else np.packbits(values.valid, bitorder="little")
    if isinstance(values, FixedValues):
        return [validity, values.values, empty, empty]
    ends = (values.offsets[1:] - values.offsets[0]).astype("<u8")
    bounds = slice(values.offsets[0], values.offsets[-1])
    if isinstance(values, BinaryValues):
        return [validity, ends, empty, values.data[bounds]]
    table = ends
    if values.dims is not None:
        dims = values.dims.astype("<u4").reshape(-1)
        table = np.concatenate([ends.view(np.uint8), dims.view(np.uint8)])
    return [validity, table, empty, values.elements[bounds]]


def column_codec(column_type: ColumnType, choice: CodecChoice) -> PageCodec:
    """What `choice` means for a column: pictures are encoded already, and at most re-arranged."""
    if isinstance(column_type, Image):
        return IN_BANDS if column_type.progressive is True else Codec.NONE
    return choice


def _compress(
    choice: CodecChoice, raw: NDArray[Any], item_bytes: int
) -> tuple[Codec, NDArray[Any]]:
    if choice is Codec.NONE or (choice == AUTO and not raw.nbytes):
        return Codec.NONE, raw
    flat = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    codec, packed = encode_chosen(choice, flat.data, item_bytes)
    return (Codec.NONE, raw) if codec is Codec.NONE else (codec, np.frombuffer(packed, np.uint8))


def assemble_page(
    buffers: Sequence[NDArray[Any]], codecs: Sequence[int], items: Sequence[int]
) -> NDArray[np.uint8]:
    """The directory and four buffers as the bytes of one page."""
    data, rooms = _new_page([part.nbytes for part in buffers], codecs, items, _fresh)
    for room, part in zip(rooms, buffers, strict=True):
        _fill(room, part)
    return data


def _new_page(
    sizes: Sequence[int], codecs: Sequence[int], items: Sequence[int], allocate: Allocate
) -> tuple[NDArray[np.uint8], list[NDArray[np.uint8]]]:
    """A page without what its buffers hold, and the room of each of them."""
    data = allocate(DIRECTORY.size + sum(map(padded, sizes)))
    rooms: list[NDArray[np.uint8]] = []
    at = DIRECTORY.size
    for size in sizes:
        rooms.append(data[at : at + size])
        end = at + size
        at += padded(size)
        if end < at:
            data[end:at] = 0
    data.data[: DIRECTORY.size] = _directory(sizes, codecs, items)
    return data, rooms


def _directory(sizes: Sequence[int], codecs: Sequence[int], items: Sequence[int]) -> bytes:
    fields: list[int] = []
    for size, codec, item in zip(sizes, codecs, items, strict=True):
        fields += [size, codec, item if size else 0, 0, 0]
    return DIRECTORY.pack(*fields)


def _fill(room: NDArray[np.uint8], part: NDArray[Any]) -> None:
    if part.nbytes:
        room.view(part.dtype).reshape(part.shape)[...] = part


def _describe(entry: NDArray[Any], values: ColumnValues, storage: Storage) -> None:
    if values.valid is not None:
        entry["nulls"] = values.rows - int(np.count_nonzero(values.valid))
    if not isinstance(values, FixedValues):
        lengths = np.diff(values.offsets)
        entry["min"] = lengths.sum()
        entry["max"] = int(lengths.max(initial=0)) * storage.element.itemsize
        return
    found = range_of(values.values, values.valid) if not storage.shape else NO_RANGE
    flags = int(entry["flags"])
    if found.smallest is not None:
        entry["min"], entry["max"] = found.smallest, found.largest
        flags |= HAS_RANGE
    entry["flags"] = flags | HAS_NAN * found.has_nan | IS_SORTED * found.is_sorted


# ------------------------------------------------------------------------------ row sums

# It takes arrays too, which type checkers know as buffers from Python 3.12 on only.
_XXH3: Any = xxh3_64_intdigest


def _has_row_sums(values: ColumnValues, storage: Storage) -> bool:
    """Whether rows are large enough to be read one by one."""
    if isinstance(values, FixedValues):
        return storage.row_bytes >= SUMMED_ROW_BYTES
    return values.nbytes >= SUMMED_ROW_BYTES * values.rows


def _sum_rows(
    values: ColumnValues, out: NDArray[np.uint32], copy: NDArray[np.uint8] | None = None
) -> None:
    """Fill `out` with the sum of every row, which its seed binds to its dimensions and to whether
    it is null. The bytes of all rows go to `copy` on the way, if there is one.
    """
    data, bounds = _row_bytes(values)
    BEST.sum(data, bounds, out, copy)
    seeded: Sequence[int] = ()
    seeds: Sequence[int] = ()
    if isinstance(values, RaggedValues) and values.dims is not None:
        seeded, seeds = range(values.rows), _seeds(values, values.dims)
    elif values.valid is not None:
        seeded = np.flatnonzero(~values.valid).tolist()
        seeds = [_NULL_SEED] * len(seeded)
    for row, seed in zip(seeded, seeds, strict=True):
        out[row] = _XXH3(data[bounds[row] : bounds[row + 1]], seed) & 0xFFFFFFFF


def check_rows(values: ColumnValues, sums: NDArray[np.uint32]) -> None:
    """Prove rows that were read without the rest of their page.

    `sums` are uint32 ``(rows,)``, as the page stores them.

    Raises:
        CorruptError: says which of the rows, counted from 0, differs.
    """
    found = np.empty(values.rows, np.uint32)
    _sum_rows(values, found)
    if not np.array_equal(found, sums):
        row = int(np.flatnonzero(found != sums)[0])
        raise CorruptError(
            f"row {row} of {values.rows} read has sum {found[row]:08x}, stored {sums[row]:08x}"
        )


_NULL_SEED = 0xFFFFFFFFFFFFFFFF


def _seeds(values: RaggedValues, dims: NDArray[np.uint32]) -> list[int]:
    seeds = [_XXH3(row) for row in np.ascontiguousarray(dims.astype("<u4"))]
    if values.valid is not None:
        for row in np.flatnonzero(~values.valid).tolist():
            seeds[row] ^= _NULL_SEED
    return seeds


def _row_bytes(values: ColumnValues) -> tuple[NDArray[np.uint8], Ints]:
    """The bytes of all rows, and where each ends and the next begins."""
    if isinstance(values, FixedValues):
        flat = np.ascontiguousarray(values.values).reshape(-1).view(np.uint8)
        row_bytes = len(flat) // max(1, values.rows)
        return flat, np.arange(0, len(flat) + 1, max(1, row_bytes))[: values.rows + 1]
    items = values.data if isinstance(values, BinaryValues) else values.elements
    flat = np.ascontiguousarray(items).view(np.uint8)
    return flat, values.offsets * items.dtype.itemsize


# ------------------------------------------------------------------------------ decoding


def verify_page(page: memoryview, entry: NDArray[Any]) -> None:
    """Prove that `page`, which this machine's disk gave back, is what `entry` describes.

    Bytes that come from a store or a remote, where xxh3 is no proof against a hostile one, are
    compared with the page's tag as they come: see `ObjectSource.read_checked`.

    Raises:
        CorruptError: expected against found.
    """
    stored_bytes = int(entry["stored_bytes"])
    if page.nbytes != stored_bytes:
        raise CorruptError(f"page has {page.nbytes} bytes, expected {stored_bytes}")
    expected = int(entry["checksum"])
    if (found := xxh3_64_intdigest(page)) != expected:
        raise CorruptError(f"page has checksum {found:016x}, expected {expected:016x}")


def decode_page(page: memoryview, entry: NDArray[Any], storage: Storage) -> ColumnValues:
    """Decode one verified page.

    Returns:
        All rows of the page: views into `page` where it is not compressed.

    Raises:
        CorruptError: the directory, a row table or the sizes contradict each other.
        UnsupportedError: a codec or page form that this version does not know.
    """
    if entry["codec"] not in (PAGE_PLAIN, PAGE_COMPRESSED, PAGE_PREVIEW):
        raise UnsupportedError(f"page form {entry['codec']} is unknown here. Update tensorrepo.")
    if storage.layout is ColumnLayout.TILED:
        raise CorruptError("a page of a tiled column is no table of tiles")
    rows = int(entry["rows"])
    expected = expected_bytes(entry, storage)
    if entry["raw_bytes"] != DIRECTORY.size + sum(map(padded, expected)):
        raise CorruptError(f"page entry promises {entry['raw_bytes']} bytes for {expected}")
    if entry["codec"] == PAGE_PREVIEW:
        return _decode_preview(page, entry, expected)
    buffers = split_page(page, expected)
    valid = decode_validity(buffers[VALIDITY], rows, int(entry["nulls"]))
    if storage.layout is ColumnLayout.FIXED:
        values = np.frombuffer(buffers[TABLE], storage.element)
        return FixedValues(values.reshape(rows, *storage.row_shape), valid)
    offsets, dims = decode_table(buffers[TABLE], rows, storage, int(entry["min"]))
    if is_in_bands(page):
        if storage.layout is not ColumnLayout.BINARY:
            raise CorruptError("scans in a column that is not of bytes")
        return BinaryValues(offsets, decode_scans(buffers[DATA], offsets), valid)
    data = np.frombuffer(buffers[DATA], storage.element)
    if storage.layout is ColumnLayout.BINARY:
        return BinaryValues(offsets, data, valid)
    return RaggedValues(offsets, data, storage.shape, dims, valid)


@lru_cache(maxsize=256)
def plain_form(rows: int, row_bytes: int, item_bytes: int, is_summed: bool) -> tuple[bytes, int]:
    """How a page begins that has rows of one size and no nulls as they are, and what it takes.

    The rows follow. A page that begins so needs no `decode_page`; others may be well-formed, too.
    """
    sizes = [0, rows * row_bytes, 4 * rows if is_summed else 0, 0]
    items = [1, item_bytes, 4, item_bytes]
    return _directory(sizes, [Codec.NONE] * 4, items), DIRECTORY.size + sum(map(padded, sizes))


def is_in_bands(page: memoryview) -> bool:
    """Whether the last buffer of a page is scans in bands."""
    return bool(DIRECTORY.unpack_from(page)[5 * DATA + 1] == SCANS)


def _decode_preview(
    page: memoryview, entry: NDArray[Any], expected: tuple[int, int, int, int]
) -> BinaryValues:
    """The small pictures in the beginning of a page; `min` of the entry is that of their bytes."""
    if page.nbytes < DIRECTORY.size or not is_in_bands(page):
        raise CorruptError("a preview of a page without scans")
    starts, rows = buffer_starts(expected), int(entry["rows"])
    fields = DIRECTORY.unpack_from(page)
    if fields[0:15:5] != expected[:3] or any(fields[1:15:5]):
        raise CorruptError(f"a preview with buffers of {fields[0:15:5]} bytes, not {expected[:3]}")
    bits = page[starts[VALIDITY] : starts[VALIDITY] + expected[VALIDITY]]
    valid = decode_validity(bits, rows, int(entry["nulls"]))
    offsets, data = decode_preview(page[starts[DATA] :], rows, expected[DATA])
    return BinaryValues(offsets, data, valid)


def expected_bytes(entry: NDArray[Any], storage: Storage) -> tuple[int, int, int, int]:
    """Decoded bytes of the four buffers, as the entry and the column tell."""
    rows = int(entry["rows"])
    validity = -(-rows // 8) if entry["nulls"] else 0
    sums = 4 * rows if entry["flags"] & HAS_ROW_SUMS else 0
    if storage.layout is ColumnLayout.FIXED:
        return validity, rows * storage.row_bytes, sums, 0
    data = int(entry["min"]) * storage.element.itemsize
    return validity, rows * table_row_bytes(storage), sums, data


def table_row_bytes(storage: Storage) -> int:
    """Bytes of one row in the row table of a ragged or binary column."""
    return 8 + (4 * storage.unknown_dims if storage.stores_dims else 0)


def buffer_starts(sizes: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Where the four buffers of an uncompressed page begin, from the page's start."""
    return tuple(accumulate(map(padded, sizes[:3]), initial=DIRECTORY.size))


def split_page(page: memoryview, expected: tuple[int, ...]) -> list[memoryview]:
    """The four buffers, decoded to `expected` bytes each; scans in bands stay as they are stored.

    Raises:
        CorruptError: the directory or a buffer disagrees; no buffer is allocated that its stored
            bytes cannot stand for.
        UnsupportedError: a codec that this version does not know.
    """
    if page.nbytes < DIRECTORY.size:
        raise CorruptError(f"page has {page.nbytes} bytes, fewer than its directory")
    fields = DIRECTORY.unpack_from(page)
    buffers = []
    at = DIRECTORY.size
    for which, raw_bytes in enumerate(expected):
        stored_bytes, codec, item, *reserved = fields[5 * which : 5 * which + 5]
        if any(reserved) or stored_bytes > page.nbytes - at:
            raise CorruptError(f"buffer {which} of the page: reserved fields set, or cut short")
        stored = page[at : at + stored_bytes]
        # Which row is how long decides what scans decode to: see `decode_page`.
        in_bands = codec == SCANS and which == DATA
        buffers.append(stored if in_bands else decode_buffer(codec, stored, raw_bytes, item))
        at += padded(stored_bytes)
    if at != page.nbytes:
        raise CorruptError(f"page has {page.nbytes} bytes, its buffers {at}")
    return buffers


def decode_validity(bits: memoryview, rows: int, nulls: int) -> Bools | None:
    """Bool ``(rows,)``, None without nulls."""
    if not nulls:
        return None
    packed = np.frombuffer(bits, np.uint8)
    valid = np.unpackbits(packed, count=rows, bitorder="little").view(np.bool_)
    if rows - int(np.count_nonzero(valid)) != nulls:
        raise CorruptError(f"validity bits disagree with the entry's {nulls} nulls")
    return valid


def decode_table(
    table: memoryview, rows: int, storage: Storage, elements: int
) -> tuple[Ints, NDArray[np.uint32] | None]:
    """Row table of a ragged or binary page: offsets int64 ``(rows + 1,)`` and dims.

    Raises:
        CorruptError: ends fall, the last one is not `elements`, or dims don't multiply to them.
    """
    ends = np.frombuffer(table[: 8 * rows], "<i8")
    offsets = np.zeros(rows + 1, np.int64)
    offsets[1:] = ends
    lengths = np.diff(offsets)
    # The bounds too: a difference that wraps around looks like a rise.
    rising = bool((lengths >= 0).all()) and bool(((ends >= 0) & (ends <= elements)).all())
    if not rising or int(offsets[-1]) != elements:
        raise CorruptError(f"row table: ends must rise to {elements}")
    if storage.layout is ColumnLayout.BINARY:
        return offsets, None
    if not storage.stores_dims:
        if (lengths % storage.known_elements).any():
            raise CorruptError(f"row table: rows are no multiples of {storage.known_elements}")
        return offsets, None
    dims = np.frombuffer(table[8 * rows :], "<u4").reshape(rows, storage.unknown_dims)
    # In floats a product cannot wrap to a right one: above 2^53 no page holds that many.
    product = dims.astype(np.float64).prod(axis=1) * storage.known_elements
    if (product != lengths).any():
        raise CorruptError("row table: dimensions don't multiply to the elements")
    return offsets, dims
