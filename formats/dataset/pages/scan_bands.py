"""Scan bands: a page of pictures from coarse to fine, whose beginning is a page of small pictures.

The pictures of a page are progressive JPEGs whose scans fall into bands. All first bands of its
rows lie together, then all second ones, so whoever decodes small pictures reads the page's
beginning: one range, which the page index proves by a checksum and a tag of its own (a `PREVIEW`
record). At the end stand the recipes that make of the scans the files that came.

    head | kinds | lengths | band 0 | band 1 | band 2 | band 3 | recipes

Source:
    docs/spec/dataset.md, section "Scans".
"""

from __future__ import annotations

import os
from itertools import accumulate, pairwise
from struct import Struct
from typing import Any, Final

import numpy as np
import zstandard
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.common.buffer_codecs import LEVEL, Codec, decompress_zstd, most_raw_bytes
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.schema.values import BinaryValues, offsets_of
from tensorrepo.formats.images.progressive import BANDS, PictureKind, arranged, joined, preview
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.threads import ordered_map

SCANS: Final = 4  # the number among codecs
_ALIGNMENT = 64
_MOST_ROW_BYTES = (1 << 32) - 1
_MOST_THREADS = 8  # that join pictures of one page
_MEMORY_PER_BYTE = 512  # of a file: at most 4 blocks, of 128 bytes each
_AHEAD_BYTES = 256 << 20  # of coefficients of pictures that are joined at once
_ALONE_BYTES = 64 << 10  # of pictures that are joined before threads have started
_HEAD = Struct("<IB3xQ")  # rows, bands, bytes of all recipes before they were compressed
assert _HEAD.size == 16, "docs/spec/dataset.md promises a 16-byte head"

# What is known of the beginning of a page up to and with one band; in memory as on disk.
PREVIEW = np.dtype(
    [
        ("entry", "<u4"),  # the page's place among the entries of its index
        ("band", "<u4"),
        ("stored_bytes", "<u8"),  # of the page, from its start; 0: there is no such preview
        ("data_bytes", "<u8"),  # of all rows as files
        ("largest", "<u8"),  # of these
        ("checksum", "<u8"),  # xxh3_64 of the stored bytes
        ("tag", "V16"),
        ("least_side", "<u4"),  # pixels: the smallest side of a picture that is in bands
        ("plain", "<u4"),  # rows that stay as they came
    ]
)
assert PREVIEW.itemsize == 64, "docs/spec/dataset.md promises 64-byte previews"


def no_previews(pages: int) -> NDArray[Any]:
    """PREVIEW ``(pages, BANDS)`` of pages without any."""
    return np.zeros((pages, BANDS), PREVIEW)


class ScanBuffer:
    """The bytes of some pictures as bands, and what their previews will be."""

    def __init__(
        self, data: bytes, stops: list[int], sizes: list[Ints], facts: tuple[int, int]
    ) -> None:
        """`stops` say where each band ends, `sizes` how large each row of its preview is.

        `facts` are the smallest side of a picture, and how many rows stay as they came.
        """
        self.data = np.frombuffer(data, np.uint8)
        self._stops, self._sizes, self._facts = stops, sizes, facts

    def previews(self, page: NDArray[np.uint8]) -> bytes:
        """PREVIEW records of a page that ends with these bytes and their padding."""
        start = len(page) - _padded(len(self.data))
        records = np.zeros(BANDS, PREVIEW)
        for band, record in enumerate(records):
            beginning = page[: start + self._stops[band]].data
            record["band"], record["stored_bytes"] = band, beginning.nbytes
            record["data_bytes"] = self._sizes[band].sum()
            record["largest"] = self._sizes[band].max(initial=0)
            record["checksum"] = xxh3_64_intdigest(beginning)
            record["tag"] = np.void(content_tag(beginning))
            record["least_side"], record["plain"] = self._facts
        return records.tobytes()


def encode_scans(values: BinaryValues) -> ScanBuffer | None:
    """Pictures in bands; None where none of them is one that is put in bands."""
    bounds = values.offsets.tolist()
    if max(np.diff(values.offsets), default=0) > _MOST_ROW_BYTES:
        return None
    rows = [arranged(values.data[start:stop].tobytes()) for start, stop in pairwise(bounds)]
    sides = [row.least_side for row in rows if row.kind != PictureKind.PLAIN]
    if not sides:
        return None
    kinds = np.array([row.kind for row in rows], np.uint8)
    lengths = np.array([[len(row.bands[band]) for row in rows] for band in range(BANDS)], "<u4")
    recipes = b"".join(row.recipe for row in rows)
    recipe_lengths = np.array([len(row.recipe) for row in rows], "<u4")
    head = _HEAD.pack(len(rows), BANDS, len(recipes))
    head += _filled(kinds.tobytes(), 8) + lengths.tobytes() + recipe_lengths.tobytes()
    parts = [_filled(head, _ALIGNMENT)]
    parts += [
        _filled(b"".join(row.bands[band] for row in rows), _ALIGNMENT) for band in range(BANDS)
    ]
    stops = list(accumulate(map(len, parts)))[1:]
    if recipes:
        parts.append(zstandard.ZstdCompressor(level=LEVEL).compress(recipes))
    if len(recipes) > most_raw_bytes(Codec.ZSTD, len(parts[-1])):
        return None
    plain = sum(row.kind == PictureKind.PLAIN and bool(row.bands[0]) for row in rows)
    previews = [
        [preview(row.kind, b"".join(row.bands[:band])) for row in rows] for band in (1, 2, 3, 4)
    ]
    sizes = [np.array([len(each) for each in band], np.int64) for band in previews]
    return ScanBuffer(b"".join(parts), stops, sizes, (min(sides), plain))


def decode_scans(stored: memoryview, offsets: Ints) -> NDArray[np.uint8]:
    """The pictures as they came, back to back, each as long as `offsets` say.

    Raises:
        CorruptError: the buffer contradicts itself or the offsets.
        UnsupportedError: it has another number of bands than this version knows.
    """
    lengths, kinds, places, recipes_at, recipe_bytes = _layout(stored, len(offsets) - 1)
    total = int(offsets[-1])
    if recipes_at > stored.nbytes:
        raise CorruptError(f"scans: {stored.nbytes} bytes end before the bands do")
    if total > most_raw_bytes(Codec.ZSTD, stored.nbytes):
        raise CorruptError(f"{stored.nbytes} bytes of scans cannot stand for {total}")
    if recipe_bytes > most_raw_bytes(Codec.ZSTD, stored.nbytes - recipes_at):
        raise CorruptError(f"recipes of {recipe_bytes} bytes in {stored.nbytes - recipes_at}")
    recipes = b""
    if recipe_bytes:
        recipes = decompress_zstd(stored[recipes_at:], recipe_bytes)
    elif recipes_at != stored.nbytes:
        raise CorruptError("scans: bytes behind the last band")
    cuts = offsets_of(lengths[BANDS]).tolist()
    out = np.empty(total, np.uint8)
    bounds = offsets.tolist()

    def join(row: int) -> bytes:
        bands = b"".join(stored[at[row] : at[row + 1]] for at in places)
        size = bounds[row + 1] - bounds[row]
        return joined(kinds[row], bands, recipes[cuts[row] : cuts[row + 1]], size)

    # A picture takes milliseconds, without the interpreter lock.
    is_long = sum(kind == PictureKind.ARRANGED for kind in kinds) > 1 and total > _ALONE_BYTES
    threads = min(os.cpu_count() or 1, _MOST_THREADS) if is_long else 0
    found = ordered_map(
        range(len(kinds)),
        join,
        threads=threads,
        bytes_ahead=_AHEAD_BYTES,
        size_of=lambda row: _MEMORY_PER_BYTE * (bounds[row + 1] - bounds[row]),
        name="join",
    )
    for row, data in enumerate(found):
        out[bounds[row] : bounds[row + 1]] = np.frombuffer(data, np.uint8)
    out.flags.writeable = False
    return out


def decode_preview(
    stored: memoryview, rows: int, data_bytes: int
) -> tuple[Ints, NDArray[np.uint8]]:
    """Small pictures, given the beginning of the buffer up to the end of one of its bands.

    Returns:
        Offsets int64 ``(rows + 1,)``, and the files back to back.

    Raises:
        CorruptError: the beginning contradicts itself, or its rows have other than `data_bytes`.
    """
    _, kinds, places, *_ = _layout(stored, rows)
    there = [at for at in places if int(at[-1]) <= stored.nbytes]
    if not there:
        raise CorruptError("a preview without the first band")
    files = [
        preview(kind, b"".join(stored[at[row] : at[row + 1]] for at in there))
        for row, kind in enumerate(kinds)
    ]
    offsets = offsets_of(np.array([len(file) for file in files], np.int64))
    if int(offsets[-1]) != data_bytes:
        raise CorruptError(f"a preview has {offsets[-1]} bytes of pictures, expected {data_bytes}")
    return offsets, np.frombuffer(b"".join(files), np.uint8)


def _layout(
    stored: memoryview, rows: int
) -> tuple[NDArray[np.uint32], list[int], list[list[int]], int, int]:
    """Lengths by band, kinds of the rows, places of every row in each band; the recipes.

    Of the recipes where they begin, and what they were before they were compressed.
    """
    if stored.nbytes < _HEAD.size:
        raise CorruptError(f"scans: {stored.nbytes} bytes are fewer than their head")
    count, bands, recipe_bytes = _HEAD.unpack_from(stored)
    if bands != BANDS:
        raise UnsupportedError(f"scans in {bands} bands, this reads {BANDS}. Update tensorrepo.")
    start = _HEAD.size + -(-rows // 8) * 8
    stop = start + 4 * rows * (BANDS + 1)
    if count != rows or stop > stored.nbytes:
        raise CorruptError(f"scans of {count} rows in {stored.nbytes} bytes, expected {rows}")
    kinds = list(stored[_HEAD.size : _HEAD.size + rows])
    lengths = np.frombuffer(stored[start:stop], "<u4").reshape(BANDS + 1, rows)
    if int(lengths[BANDS].sum(dtype=np.int64)) != recipe_bytes:
        raise CorruptError(f"recipes of {recipe_bytes} bytes, their rows say another number")
    places, at = [], _padded(stop)
    for band in range(BANDS):
        bounds = at + offsets_of(lengths[band])
        places.append(bounds.tolist())
        at = _padded(int(bounds[-1]))
    return lengths, kinds, places, at, recipe_bytes


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _filled(data: bytes, to: int) -> bytes:
    return data + bytes(-len(data) % to)
