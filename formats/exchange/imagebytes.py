"""Which image format are these bytes, how large is the picture, and is the file whole?

Images enter a dataset as the bytes they came as and are decoded late, so this is the only look at
them on the way in. It walks each format's own structure from the first byte to the end mark: a
download that was cut short is refused here, not months later in a training run. Pixels are not
decoded: damage inside compressed data passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct, error
from typing import TYPE_CHECKING

from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HEAD_BYTES = 32  # enough for `codec_of`
SUFFIXES = {
    "png": (".png",),
    "jpeg": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "gif": (".gif",),
    "bmp": (".bmp", ".dib"),
    "tiff": (".tif", ".tiff"),
    "webp": (".webp",),
}
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_PNG_CHUNK = Struct(">I4s")
_JPEG_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_TIFF_CODES = {1: "B", 3: "H", 4: "I", 16: "Q"}  # the integer types of a directory's values
_TIFF_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}
_TIFF_BYTES |= {13: 4, 16: 8, 17: 8, 18: 8}
_TIFF_WIDTH, _TIFF_HEIGHT = 256, 257
_TIFF_EXTENTS = ((273, 279), (324, 325))  # offsets and byte counts of strips, then of tiles


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What an image file says about itself; sizes in pixels."""

    codec: str
    height: int
    width: int


def codec_of(head: bytes) -> str | None:
    """The image format that a file beginning with `head` is in, or None.

    Args:
        head: at least the first `HEAD_BYTES` bytes, or the whole file when it is shorter.
    """
    if head[:4] in _TIFF_MAGIC:
        return "tiff"
    if head[:4] == b"RIFF":
        return "webp" if head[8:12] == b"WEBP" else None
    if head[:2] == b"BM":
        # Two letters are thin evidence: the size of the second header must be a known one too.
        known = head[14:18] in {bytes([size, 0, 0, 0]) for size in (12, 40, 52, 56, 64, 108, 124)}
        return "bmp" if known else None
    magics = {_PNG_MAGIC: "png", b"\xff\xd8\xff": "jpeg", b"GIF87a": "gif", b"GIF89a": "gif"}
    return next((codec for magic, codec in magics.items() if head.startswith(magic)), None)


def examine(data: bytes) -> ImageFacts:
    """Size of one whole image file, its structure checked to the end.

    Raises:
        InvalidInputError: no image format that is known here, cut short, or without pixels.
    """
    codec = codec_of(data[:HEAD_BYTES])
    if codec is None:
        raise InvalidInputError(
            f"is no PNG, JPEG, GIF, BMP, TIFF or WebP: it begins with {data[:8]!r}"
        )
    try:
        height, width = _EXAMINERS[codec](data)
    except (error, IndexError, OverflowError) as problem:  # a structure that reaches past the end
        raise _short(codec, data) from problem
    if height <= 0 or width <= 0:
        raise InvalidInputError(f"is a {codec} image of {height} x {width} pixels")
    return ImageFacts(codec, height, width)


def _short(codec: str, data: bytes) -> InvalidInputError:
    return InvalidInputError(f"is a {codec} image cut short at {len(data)} bytes")


def _examine_png(data: bytes) -> tuple[int, int]:
    at = len(_PNG_MAGIC)
    first, width, height = Struct(">4x4sII").unpack_from(data, at)
    if first != b"IHDR":
        raise InvalidInputError(f"is a png image whose first chunk is {first!r}, expected b'IHDR'")
    kind = b""
    while kind != b"IEND":
        size, kind = _PNG_CHUNK.unpack_from(data, at)
        at += _PNG_CHUNK.size + size + 4  # and a CRC
    if at > len(data):
        raise _short("png", data)
    return height, width


def _examine_jpeg(data: bytes) -> tuple[int, int]:
    """Sizes from the frame header; after the scans begin only the end mark is looked for."""
    size = (0, 0)
    for marker, at in _jpeg_segments(data):
        if marker in _JPEG_FRAMES:
            size = Struct(">HH").unpack_from(data, at + 3)
        elif marker == 0xDA and data.rfind(b"\xff\xd9") < at:
            raise _short("jpeg", data)
    return size


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """(marker, where its length field lies), up to and with the first start of scan."""
    at, marker = 2, 0
    while marker != 0xDA:
        if data[at] != 0xFF:
            raise InvalidInputError(f"is a jpeg image with no marker at byte {at}")
        while data[at] == 0xFF:  # markers may be padded
            at += 1
        marker = data[at]
        at += 1
        if marker in _JPEG_STANDALONE:
            continue
        if marker == 0xD9:
            raise InvalidInputError("is a jpeg image that ends before its first scan")
        yield marker, at
        (length,) = Struct(">H").unpack_from(data, at)
        at += max(length, 2)


def _examine_gif(data: bytes) -> tuple[int, int]:
    width, height, flags = Struct("<HHB").unpack_from(data, 6)
    at = 13 + _gif_palette(flags)
    while data[at] != 0x3B:
        if data[at] == 0x2C:  # an image: its place, perhaps a palette, the code size
            at += 11 + _gif_palette(data[at + 9])
        elif data[at] == 0x21:  # an extension: its label
            at += 2
        else:
            raise InvalidInputError(f"is a gif image with no block at byte {at}")
        while data[at]:
            at += 1 + data[at]
        at += 1
    return height, width


def _gif_palette(flags: int) -> int:
    """Bytes of the colour table that `flags` announce."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _examine_bmp(data: bytes) -> tuple[int, int]:
    file_bytes, pixels_at, header_bytes = Struct("<2xI4xII").unpack_from(data)
    layout = "<HHHH" if header_bytes == 12 else "<iiHH"
    width, height, _planes, bits = Struct(layout).unpack_from(data, 18)
    compressed = header_bytes > 12 and Struct("<I").unpack_from(data, 30)[0] not in (0, 3)
    # Some writers leave the file's size 0; without compression it follows from the sizes.
    pixel_bytes = 0 if compressed else (width * bits + 31) // 32 * 4 * abs(height)
    if len(data) < max(file_bytes, pixels_at + pixel_bytes):
        raise _short("bmp", data)
    return abs(height), width


def _examine_webp(data: bytes) -> tuple[int, int]:
    riff_bytes, kind = Struct("<4xI4x4s").unpack_from(data)
    if len(data) < riff_bytes + 8:
        raise _short("webp", data)
    if kind == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    elif kind == b"VP8L":
        packed = int.from_bytes(data[21:25], "little")
        width, height = (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 ":
        width, height = (size & 0x3FFF for size in Struct("<HH").unpack_from(data, 26))
    else:
        raise InvalidInputError(f"is a webp image whose first chunk is {kind!r}")
    return height, width


def _examine_tiff(data: bytes) -> tuple[int, int]:
    fields = dict(_tiff_fields(data))
    for offsets, counts in _TIFF_EXTENTS:
        ends = map(sum, zip(fields.get(offsets, ()), fields.get(counts, ()), strict=False))
        if max(ends, default=0) > len(data):
            raise _short("tiff", data)
    return sum(fields.get(_TIFF_HEIGHT, ())), sum(fields.get(_TIFF_WIDTH, ()))


def _tiff_fields(data: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(tag, values) of the first directory's integer fields."""
    order = "<" if data[:2] == b"II" else ">"
    big = 43 in data[2:4]
    head, count, entry, inline = ("8xQ", "Q", "HHQ", 8) if big else ("4xI", "H", "HHI", 4)
    (at,) = Struct(order + head).unpack_from(data)
    (fields,) = Struct(order + count).unpack_from(data, at)
    entries = Struct(order + entry)
    at += Struct(order + count).size
    for start in range(at, at + fields * (entries.size + inline), entries.size + inline):
        tag, kind, values = entries.unpack_from(data, start)
        place = start + entries.size
        if values * _TIFF_BYTES.get(kind, 1) > inline:
            (place,) = Struct(order + ("Q" if big else "I")).unpack_from(data, place)
        if kind in _TIFF_CODES:
            if place + values * _TIFF_BYTES[kind] > len(data):
                raise _short("tiff", data)
            yield tag, Struct(f"{order}{values}{_TIFF_CODES[kind]}").unpack_from(data, place)


_EXAMINERS: dict[str, Callable[[bytes], tuple[int, int]]] = {
    "png": _examine_png,
    "jpeg": _examine_jpeg,
    "gif": _examine_gif,
    "bmp": _examine_bmp,
    "tiff": _examine_tiff,
    "webp": _examine_webp,
}
