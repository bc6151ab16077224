"""Progressive JPEG: pictures kept as scans from coarse to fine, and given back as they came.

A baseline JPEG has all coefficients of a block in one place, so half of a picture's size takes all
of its bytes. Its coefficients are written once more here, lowest frequencies first, as a
progressive JPEG whose scans fall into `BANDS` bands: the first bands are a small picture. What the
scans do not say (the header, codes, restarts, what follows the pixels) is the recipe, by which
`joined` writes the file that came, to the bit. `arranged` has tried it: a picture of which that is
not so stays as it is.

A JPEG that came as a progressive one is cut where its own scans have brought what a band needs.

Source:
    docs/spec/dataset.md, section "Scans".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import field
from enum import IntEnum
from struct import Struct, error
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.images.headers import EXIF, ORIENTATION, jpeg_orientation
from tensorrepo.formats.native import jpeg_entropy
from tensorrepo.formats.native.jpeg_entropy import (
    BLOCK,
    COUNTS,
    NO_TABLES,
    TABLE_BYTES,
    Blocks,
    EntropyCoder,
    Scan,
    ScanComponent,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError

BANDS: Final = 4
SMALL_BANDS: Final = 2  # of small pictures that are stored beside whole ones
MOST_PIXELS: Final = 1 << 25  # of a picture that is arranged: its coefficients lie in memory
# How many times smaller a picture must become for the first band, two, and three of them.
BAND_REDUCTIONS: Final = (8.0, 3.0, 2.0)
_SHIFT = 1  # bits that all bands but the last leave to it
_SPECTRUM = ((1, 2), (3, 9), (10, 24), (25, 63))  # coefficients of each band, and DC in the first
# A progressive picture as it came is cut where it has what a band has, or nearly so: libjpeg sends
# the first coefficients without their lowest two bits.
_LEAST_SHIFT = (2, 1, 1)
_MOST_SCANS = 256
_MOST_EIGHTHS = 9  # of the bytes of a file that its bands may take
_MOST_UNIT_BLOCKS = 10
_KEPT_SEGMENT_BYTES = 64
_END = b"\xff\xd9"
_SOF0, _SOF1, _SOF2, _DHT, _SOI, _EOI, _SOS, _DQT, _DRI = (
    0xC0, 0xC1, 0xC2, 0xC4, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD,
)  # fmt: skip
_APP0, _APP14 = 0xE0, 0xEE
_FRAMES = frozenset(range(0xC0, 0xD0)) - {_DHT, 0xC8, 0xCC}
_STANDALONE = frozenset({0x00, 0x01, _EOI, 0xFF, *range(0xD0, 0xD9)})
_SEGMENT = Struct(">BBH")
_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")  # one that ends the bits of a scan
_RECIPE = Struct("<BBHI")  # padding bit, reserved, reserved, bytes of the header
assert _RECIPE.size == 8, "docs/spec/dataset.md promises an 8-byte recipe header"


class PictureKind(IntEnum):
    """What the bands of a row are."""

    PLAIN = 0  # the bytes as they came, all in the first band
    ARRANGED = 1  # a progressive JPEG, from which the recipe makes the one that came
    PROGRESSIVE = 2  # the bytes as they came, cut


class Arranged(NamedTuple):
    """A picture in bands. `least_side` is its smaller side in pixels, 0 where `kind` is PLAIN."""

    kind: PictureKind
    bands: tuple[bytes, ...]
    recipe: bytes = b""
    least_side: int = 0


def arranged(data: bytes, coder: EntropyCoder = jpeg_entropy.BEST) -> Arranged:
    """A picture in bands: `joined` gives `data` again, which has been tried.

    What is no JPEG of 8 bits with Huffman codes, what is damaged, unusual or would grow much, and
    what `MOST_PIXELS` is too few for, is PLAIN.
    """
    plain = Arranged(PictureKind.PLAIN, (data, *[b""] * (BANDS - 1)))
    try:
        frame = _frame_of(data)
        if frame is None or frame.pixels > MOST_PIXELS:
            return plain
        if frame.marker == _SOF2:
            return Arranged(PictureKind.PROGRESSIVE, _cut(data, frame), b"", frame.least_side)
        found = _arrange(data, frame, coder)
        if 8 * sum(map(len, found.bands)) > _MOST_EIGHTHS * len(data):
            return plain
        again = _restored(b"".join(found.bands), found.recipe, len(data), coder)
    except (ValueError, error, IndexError):
        return plain
    return found if again == data else plain


def joined(
    kind: int, bands: bytes, recipe: bytes, size: int, coder: EntropyCoder = jpeg_entropy.BEST
) -> bytes:
    """The bytes of a picture as they came.

    Args:
        kind: a `PictureKind`.
        bands: all bands, one after the other.
        recipe: what `arranged` gave beside them.
        size: bytes that the picture has.
        coder: implementation of the codes.

    Raises:
        CorruptError: they are no such picture, or not one of so many bytes.
    """
    if kind != PictureKind.ARRANGED:
        if recipe or len(bands) != size or kind not in set(PictureKind):
            raise CorruptError(f"picture of kind {kind}: {len(bands)} bytes, expected {size}")
        return bands
    try:
        data = _restored(bands, recipe, size, coder)
    except (ValueError, error, IndexError) as problem:
        raise CorruptError(f"a picture's scans cannot be joined: {problem}") from problem
    if len(data) != size:
        raise CorruptError(f"a picture's scans make {len(data)} bytes, expected {size}")
    return data


def preview(kind: int, bands: bytes) -> bytes:
    """The first bands of a picture, but not all of them, as a file of their own."""
    return bands if kind == PictureKind.PLAIN or bands.endswith(_END) else bands + _END


def small_picture(data: bytes) -> bytes:
    """The first `SMALL_BANDS` of a picture as a file; the file itself where it has no bands."""
    found = arranged(data)
    return preview(found.kind, b"".join(found.bands[:SMALL_BANDS]))


# ------------------------------------------------------------------------------ headers


@dataclass(frozen=True, slots=True)
class _Component:
    """A component of a frame: its blocks are ``[first, first + stride * rows)``."""

    number: int
    across: int  # sampling factors
    down: int
    first: int
    stride: int
    rows: int
    wide: int  # blocks that it has without those that only fill units up
    high: int


@dataclass(slots=True)
class _Frame:
    """What a JPEG says before its first scan."""

    marker: int
    height: int
    width: int
    components: tuple[_Component, ...]
    units_wide: int
    units_high: int
    start: int  # of the bits of the first scan
    segments: list[tuple[int, int, int]]  # marker, start of its length field, stop
    tables: NDArray[np.uint8]
    interval: int

    @property
    def pixels(self) -> int:
        return self.height * self.width

    @property
    def least_side(self) -> int:
        return min(self.height, self.width)

    @property
    def blocks(self) -> int:
        return sum(each.stride * each.rows for each in self.components)


def _segments(data: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """(marker, start, stop) from each length field on, up to the next start of a scan with it."""
    marker = 0
    while marker != _SOS:
        lead, marker, length = _SEGMENT.unpack_from(data, at)
        if lead != 0xFF or marker in _STANDALONE or length < 2 or at + 2 + length > len(data):
            raise ValueError(f"no segment at byte {at}")
        yield marker, at + 2, at + 2 + length
        at += 2 + length


def _frame_of(data: bytes) -> _Frame | None:
    """The header of a JPEG; None where it is none that is arranged."""
    if data[:2] != bytes([0xFF, _SOI]):
        return None
    segments = list(_segments(data, 2))
    frames = [(marker, start, stop) for marker, start, stop in segments if marker in _FRAMES]
    if len(frames) != 1 or frames[0][0] not in (_SOF0, _SOF1, _SOF2):
        return None
    marker, start, stop = frames[0]
    precision, height, width, count = Struct(">BHHB").unpack_from(data, start + 2)
    if precision != 8 or not height or not width or stop - start != 8 + 3 * count or count > 4:
        return None
    factors = [
        (number, each >> 4, each & 15) for number, each, _ in _triples(data[start + 8 : stop])
    ]
    across, down = max(each[1] for each in factors), max(each[2] for each in factors)
    blocks = sum(each[1] * each[2] for each in factors)
    if min(min(each[1:]) for each in factors) < 1 or max(across, down) > 4:
        return None
    if len({each[0] for each in factors}) < count or blocks > _MOST_UNIT_BLOCKS:
        return None
    if count == 1:  # units of a single component are its blocks, whatever its factors
        factors = [(factors[0][0], 1, 1)]
        across = down = 1
    wide, high = _ceil(width, 8 * across), _ceil(height, 8 * down)
    components, first = [], 0
    for number, right, below in factors:
        stride, rows = wide * right, high * below
        own = _ceil(_ceil(width * right, across), 8), _ceil(_ceil(height * below, down), 8)
        components.append(_Component(number, right, below, first, stride, rows, *own))
        first += stride * rows
    frame = _Frame(
        marker, height, width, tuple(components), wide, high, segments[-1][2], segments,
        NO_TABLES.copy(), 0,
    )  # fmt: skip
    for marker, start, stop in segments:
        if marker == _DHT:
            _read_tables(data[start + 2 : stop], frame.tables)
        elif marker == _DRI:
            (frame.interval,) = Struct(">H").unpack_from(data, start + 2)
    return frame


def _ceil(number: int, by: int) -> int:
    return -(-number // by)


def _triples(data: bytes) -> Iterator[tuple[int, int, int]]:
    return zip(data[0::3], data[1::3], data[2::3], strict=True)


def _read_tables(data: bytes, tables: NDArray[np.uint8]) -> None:
    """Put the tables of a segment into their places."""
    at = 0
    while at < len(data):
        kind, number = data[at] >> 4, data[at] & 15
        values = sum(data[at + 1 : at + 1 + COUNTS])
        stop = at + 1 + COUNTS + values
        if kind > 1 or number > 3 or values > 256 or stop > len(data):
            raise ValueError("no table of Huffman codes")
        place = (4 * kind + number) * TABLE_BYTES
        tables[place : place + TABLE_BYTES] = 0
        tables[place : place + stop - at - 1] = np.frombuffer(data[at + 1 : stop], np.uint8)
        at = stop


class _Header(NamedTuple):
    """What the start of a scan says: (component's place in the frame, tables) of each, and more."""

    chosen: list[tuple[int, int, int]]
    first: int
    last: int
    high: int
    low: int


def _scan_header(segment: bytes, frame: _Frame) -> _Header:
    count = segment[0]
    if not 1 <= count <= len(frame.components) or len(segment) != 4 + 2 * count:
        raise ValueError("no start of a scan")
    places = {each.number: place for place, each in enumerate(frame.components)}
    chosen = [
        (places.get(number, -1), tables >> 4, tables & 15)
        for number, tables in zip(segment[1:-3:2], segment[2:-3:2], strict=True)
    ]
    if min(chosen)[0] < 0 or max(max(each[1:]) for each in chosen) > 3:
        raise ValueError("a scan of components that there are none of")
    first, last, bits = segment[-3:]
    return _Header(chosen, first, last, bits >> 4, bits & 15)


def _scan_of(frame: _Frame, header: _Header, interval: int = 0) -> Scan:
    """A scan of a frame: of one component its own blocks, of several whole units."""
    if len(header.chosen) == 1:
        place, dc, ac = header.chosen[0]
        of = frame.components[place]
        alone = ScanComponent(of.first, of.stride, 1, 1, dc, ac)
        return Scan(of.wide, of.high, (alone,), *header[1:], interval)
    together = []
    for place, dc, ac in header.chosen:
        of = frame.components[place]
        together.append(ScanComponent(of.first, of.stride, of.across, of.down, dc, ac))
    return Scan(frame.units_wide, frame.units_high, tuple(together), *header[1:], interval)


def _sequential_scan(data: bytes, frame: _Frame) -> Scan:
    """The one scan of a baseline picture, of all its components."""
    _, start, stop = frame.segments[-1]
    header = _scan_header(data[start + 2 : stop], frame)
    if [each[0] for each in header.chosen] != list(range(len(frame.components))):
        raise ValueError("a baseline picture in several scans")
    if header[1:] != (0, BLOCK - 1, 0, 0):
        raise ValueError("a baseline scan of some coefficients")
    return _scan_of(frame, header, frame.interval)


# ------------------------------------------------------------------------------ baseline


def _arrange(data: bytes, frame: _Frame, coder: EntropyCoder) -> Arranged:
    blocks = np.zeros((frame.blocks, BLOCK), np.int16)
    scan = _sequential_scan(data, frame)
    decoded = coder.decode_scan(data, frame.start, frame.tables, scan, blocks)
    bands = [b"".join(_small_header(data, frame))]
    for band, spectrum in enumerate(_SPECTRUM):
        parts = [] if band else [_written(frame, blocks, coder, (0, 0, 0, 0))]
        parts += _of_each(frame, blocks, coder, (*spectrum, 0, _SHIFT))
        if band == BANDS - 1:
            parts += [*_of_each(frame, blocks, coder, (1, BLOCK - 1, _SHIFT, 0)), _END]
        bands[band:] = [b"".join([*bands[band:], *parts])]
    recipe = _RECIPE.pack(1 if decoded.padding is None else decoded.padding, 0, 0, frame.start)
    recipe += data[: frame.start] + data[decoded.stop :]
    return Arranged(PictureKind.ARRANGED, tuple(bands), recipe, frame.least_side)


def _small_header(data: bytes, frame: _Frame) -> Iterator[bytes]:
    """What decoders need to know before the scans."""
    yield bytes([0xFF, _SOI])
    for marker, start, stop in frame.segments:
        if marker in (_APP0, _APP14) and stop - start <= _KEPT_SEGMENT_BYTES:
            yield bytes([0xFF, marker]) + data[start:stop]
        elif marker == _APP0 and data[start + 2 : start + 7] == b"JFIF\0":
            yield bytes([0xFF, _APP0, 0, 16]) + data[start + 2 : start + 14] + b"\0\0"
    if (orientation := jpeg_orientation(data)) != 1:
        tiff = Struct(">2sHIHHHIHHI")
        yield bytes([0xFF, 0xE1, 0, 2 + len(EXIF) + tiff.size]) + EXIF
        yield tiff.pack(b"MM", 42, 8, 1, ORIENTATION, 3, 1, orientation, 0, 0)
    for marker, start, stop in frame.segments:
        if marker == _DQT:
            yield bytes([0xFF, _DQT]) + data[start:stop]
        elif marker == frame.marker:
            yield bytes([0xFF, _SOF2]) + data[start:stop]


def _of_each(
    frame: _Frame, blocks: Blocks, coder: EntropyCoder, spectrum: tuple[int, int, int, int]
) -> Iterator[bytes]:
    """A scan of each component."""
    for place in range(len(frame.components)):
        yield _written(frame, blocks, coder, spectrum, place)


def _written(
    frame: _Frame,
    blocks: Blocks,
    coder: EntropyCoder,
    spectrum: tuple[int, int, int, int],
    only: int | None = None,
) -> bytes:
    """A progressive scan of one component, or of all, with its table and its header."""
    first, last, high, low = spectrum
    places = range(len(frame.components)) if only is None else [only]
    scan = _scan_of(frame, _Header([(place, 0, 0) for place in places], *spectrum))
    coded = coder.encode_scan(blocks, NO_TABLES, scan)
    values = COUNTS + sum(coded[:COUNTS])
    table = Struct(">BBHB").pack(0xFF, _DHT, 3 + values, 0x10 if first else 0) + coded[:values]
    numbers = bytes(each for place in places for each in (frame.components[place].number, 0))
    head = Struct(">BBHB").pack(0xFF, _SOS, 6 + len(numbers), len(places)) + numbers
    return table + head + bytes([first, last, high << 4 | low]) + coded[values:]


def _restored(scans: bytes, recipe: bytes, size: int, coder: EntropyCoder) -> bytes:
    """The baseline picture that `recipe` makes of a progressive one."""
    padding, *_, header_bytes = _RECIPE.unpack_from(recipe)
    header = recipe[_RECIPE.size : _RECIPE.size + header_bytes]
    frame = _frame_of(header)
    if padding > 1 or frame is None or frame.marker == _SOF2 or frame.start != len(header):
        raise ValueError("a recipe without the header of a baseline picture")
    # A block takes two bits at least: so many stand for no more memory than the picture's own.
    if frame.pixels > MOST_PIXELS or frame.blocks > 4 * size:
        raise ValueError(f"{frame.blocks} blocks in a picture of {size} bytes")
    scan = _sequential_scan(header, frame)
    blocks = np.zeros((frame.blocks, BLOCK), np.int16)
    _read_scans(scans, frame, blocks, coder)
    bits = coder.encode_scan(blocks, frame.tables, scan, padding)
    return b"".join([header, bits, recipe[_RECIPE.size + header_bytes :]])


def _read_scans(data: bytes, frame: _Frame, blocks: Blocks, coder: EntropyCoder) -> None:
    """Read all scans of a progressive picture of the same frame."""
    tables, at = NO_TABLES.copy(), 2
    for _ in range(_MOST_SCANS):
        if data[at:] == _END:
            return
        for marker, start, stop in _segments(data, at):
            if marker == _DHT:
                _read_tables(data[start + 2 : stop], tables)
            at = stop
        header = _scan_header(data[start + 2 : stop], frame)
        if not header.first and header.last:
            raise ValueError("a sequential scan among progressive ones")
        at = coder.decode_scan(data, at, tables, _scan_of(frame, header), blocks).stop
    raise ValueError(f"more than {_MOST_SCANS} scans")


# ------------------------------------------------------------------------------ progressive


@dataclass(slots=True)
class _Progress:
    """How many low bits of each coefficient are still to come."""

    missing: list[list[int]] = field(default_factory=list)

    def has(self, band: int) -> bool:
        last, shift = _SPECTRUM[band][1], _LEAST_SHIFT[band]
        return all(max(bits[: last + 1]) <= shift for bits in self.missing)


def _cut(data: bytes, frame: _Frame) -> tuple[bytes, ...]:
    """A progressive picture, cut behind the scans that bring what each band has."""
    progress = _Progress([[BLOCK] * BLOCK for _ in frame.components])
    cuts, segments = [0], list(frame.segments)
    for _ in range(_MOST_SCANS):
        _, start, stop = segments[-1]
        header = _scan_header(data[start + 2 : stop], frame)
        if header.last >= BLOCK:
            raise ValueError("a scan beyond the spectrum")
        for place, *_ in header.chosen:
            for k in range(header.first, header.last + 1):
                progress.missing[place][k] = header.low
        found = _MARKER.search(data, stop)
        end = len(data) if found is None else found.start()
        while len(cuts) < BANDS and progress.has(len(cuts) - 1):
            cuts.append(end)
        if found is None or data[end + 1] == _EOI:
            break
        segments = list(_segments(data, end))
    bounds: Sequence[int] = [*cuts, *[len(data)] * (BANDS + 1 - len(cuts))]
    return tuple(data[bounds[band] : bounds[band + 1]] for band in range(BANDS))
