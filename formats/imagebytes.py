"""What does an encoded image say of itself at its beginning: which format, how large, which mode?

Only headers are read, wherever they lie; pixels are not decoded. A file that is cut short behind
its header passes.
"""

from __future__ import annotations

from struct import Struct, error
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Encoded = bytes | memoryview

HEAD_BYTES = 32  # enough for `codec_of`
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_MAGICS = {b"\xff\xd8\xff": "jpeg", PNG_MAGIC: "png", b"GIF87a": "gif", b"GIF89a": "gif"}
_JPEG_LENGTH = Struct(">H")
_JPEG_SEGMENT = Struct(">BBH")  # 0xFF, marker, length
_JPEG_FRAME = Struct(">HHB")
_JPEG_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_SCAN, _JPEG_END = 0xDA, 0xD9
_JPEG_UNUSUAL = _JPEG_STANDALONE | {_JPEG_END, 0xFF}  # before the first scan
_TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_TIFF_CODES = {1: "B", 3: "H", 4: "I", 16: "Q"}  # the integer types of a directory's values
_TIFF_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}
_TIFF_BYTES |= {13: 4, 16: 8, 17: 8, 18: 8}
_TIFF_WIDTH, _TIFF_HEIGHT, _TIFF_BITS, _TIFF_KIND, _TIFF_SAMPLES = 256, 257, 258, 262, 277
_TIFF_HEADER = frozenset({_TIFF_WIDTH, _TIFF_HEIGHT, _TIFF_BITS, _TIFF_KIND, _TIFF_SAMPLES})

# By colour type, and by (kind of a TIFF, samples per pixel).
_PNG_MODES = {0: "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA"}
JPEG_MODES = {1: "L", 3: "RGB", 4: "CMYK"}
_TIFF_MODES = {(0, 1): "L", (1, 1): "L", (2, 3): "RGB", (2, 4): "RGBA", (3, 1): "P", (5, 4): "CMYK"}
_GREY_MODES = {1: "1", 16: "I;16"}  # by bits, where they are not the usual ones


# What Pillow may take bytes of unknown origin for: pixels. Others start programs (EPS runs
# Ghostscript) or load what other code registered.
_RASTER_FORMATS = (
    "PNG", "JPEG", "MPO", "GIF", "BMP", "DIB", "TIFF", "WEBP", "AVIF", "JPEG2000", "PPM", "ICO",
    "TGA", "PCX", "QOI", "SGI",
)  # fmt: skip


class ImageHeader(NamedTuple):
    """What an image file says about itself; sizes in pixels, as stored.

    `mode` is pillow's word for how a pixel is made ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK",
    "I;16"), None where the header does not tell.
    """

    # A tuple: one is made for each image, and a frozen dataclass takes three times as long.
    codec: str
    height: int
    width: int
    mode: str | None


def codec_of(head: bytes) -> str | None:
    """The image format that a file beginning with `head` is in, or None.

    Args:
        head: at least the first `HEAD_BYTES` bytes, or the whole file when it is shorter.
    """
    for magic, codec in _MAGICS.items():
        if head.startswith(magic):
            return codec
    if head[:4] in _TIFF_MAGIC:
        return "tiff"
    if head[:4] == b"RIFF":
        return "webp" if head[8:12] == b"WEBP" else None
    if head[:2] == b"BM":
        # Two letters are thin evidence: the size of the second header must be a known one too.
        known = head[14:18] in {bytes([size, 0, 0, 0]) for size in (12, 40, 52, 56, 64, 108, 124)}
        return "bmp" if known else None
    return None


def raster_formats(pillow: Any) -> tuple[str, ...]:
    """The formats to give to `PIL.Image.open`, of those that this Pillow has."""
    pillow.init()
    return tuple(name for name in _RASTER_FORMATS if name in pillow.OPEN)


def header_of(data: Encoded) -> ImageHeader | None:
    """The header of an encoded image, None where it cannot be read."""
    codec = codec_of(bytes(data[:HEAD_BYTES]))
    if codec is None:
        return None
    try:
        header = read_header(codec, data)
    except (error, IndexError, OverflowError, InvalidInputError):
        return None
    return header if header.height > 0 and header.width > 0 else None


def read_header(codec: str, data: Encoded) -> ImageHeader:
    """The header of an image in this format.

    Raises:
        InvalidInputError: a structure that is not that of the format.
        struct.error, IndexError, OverflowError: one that reaches past the end.
    """
    height, width, mode = _READERS[codec](data)
    return ImageHeader(codec, height, width, mode)


def _read_png(data: Encoded) -> tuple[int, int, str | None]:
    first, width, height, bits, colours = Struct(">4x4sIIBB").unpack_from(data, len(PNG_MAGIC))
    if first != b"IHDR":
        raise InvalidInputError(f"is a png image whose first chunk is {first!r}, expected b'IHDR'")
    mode = _PNG_MODES.get(colours)
    return height, width, _GREY_MODES.get(bits, mode) if mode == "L" else mode


def _read_jpeg(data: Encoded) -> tuple[int, int, str | None]:
    places = jpeg_places(data, to_scan=False)
    if places is not None:
        return jpeg_frame(data, places[0])
    for marker, at in jpeg_segments(data):
        if marker in _JPEG_FRAMES:
            return jpeg_frame(data, at)
    return 0, 0, None


def jpeg_frame(data: Encoded, at: int) -> tuple[int, int, str | None]:
    """Height, width and mode from the frame whose length field lies at `at`; 0: there is none."""
    if not at:
        return 0, 0, None
    height, width, components = _JPEG_FRAME.unpack_from(data, at + 3)
    return height, width, JPEG_MODES.get(components)


def jpeg_places(data: Encoded, *, to_scan: bool) -> tuple[int, int] | None:
    """Where the length fields of the first frame (0: none) and of the first scan lie.

    The same walk as `jpeg_segments` in a fifth of the time, over segments such as encoders write.

    Args:
        data: a JPEG.
        to_scan: walk to the scan; else to the frame, and the second place is 0.

    Returns:
        None where anything is unusual: padding, markers without a length, a file cut short.
    """
    at, frame = 2, 0
    unpack = _JPEG_SEGMENT.unpack_from
    try:
        while True:
            lead, marker, length = unpack(data, at)
            if lead != 0xFF or marker in _JPEG_UNUSUAL or length < 2:
                return None
            if marker == _JPEG_SCAN:
                return frame, at + 2
            if not frame and marker in _JPEG_FRAMES:
                frame = at + 2
                if not to_scan:
                    return frame, 0
            at += 2 + length
    except error:
        return None


def jpeg_segments(data: Encoded) -> Iterator[tuple[int, int]]:
    """(marker, where its length field lies), up to and with the first start of scan."""
    at, marker = 2, 0
    while marker != _JPEG_SCAN:
        if data[at] != 0xFF:
            raise InvalidInputError(f"is a jpeg image with no marker at byte {at}")
        while data[at] == 0xFF:  # markers may be padded
            at += 1
        marker = data[at]
        at += 1
        if marker in _JPEG_STANDALONE:
            continue
        if marker == _JPEG_END:
            raise InvalidInputError("is a jpeg image that ends before its first scan")
        yield marker, at
        (length,) = _JPEG_LENGTH.unpack_from(data, at)
        at += max(length, 2)


def _read_gif(data: Encoded) -> tuple[int, int, str | None]:
    width, height = Struct("<HH").unpack_from(data, 6)
    return height, width, "P"


def _read_bmp(data: Encoded) -> tuple[int, int, str | None]:
    (header_bytes,) = Struct("<I").unpack_from(data, 14)
    layout = "<HH2xH" if header_bytes == 12 else "<ii2xH"
    width, height, bits = Struct(layout).unpack_from(data, 18)
    return abs(height), width, "1" if bits == 1 else "P" if bits <= 8 else "RGB"


def _read_webp(data: Encoded) -> tuple[int, int, str | None]:
    kind = bytes(data[12:16])
    if kind == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        return height, width, "RGBA" if data[20] & 0x10 else "RGB"
    if kind == b"VP8L":
        packed = int.from_bytes(data[21:25], "little")
        width, height = (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
        return height, width, "RGBA" if packed >> 28 & 1 else "RGB"
    if kind == b"VP8 ":
        width, height = (size & 0x3FFF for size in Struct("<HH").unpack_from(data, 26))
        return height, width, "RGB"
    raise InvalidInputError(f"is a webp image whose first chunk is {kind!r}")


def _read_tiff(data: Encoded) -> tuple[int, int, str | None]:
    fields = dict(tiff_fields(data, _TIFF_HEADER))
    (kind, *_), (samples, *_) = fields.get(_TIFF_KIND, (-1,)), fields.get(_TIFF_SAMPLES, (1,))
    mode = _TIFF_MODES.get((kind, samples))
    if mode == "L":
        (bits, *_) = fields.get(_TIFF_BITS, (1,))
        mode = _GREY_MODES.get(bits, mode)
    return sum(fields.get(_TIFF_HEIGHT, ())), sum(fields.get(_TIFF_WIDTH, ())), mode


def tiff_fields(
    data: Encoded, wanted: frozenset[int] | None = None
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(tag, values) of the integer fields in the first directory: the wanted tags, or all."""
    order = "<" if data[0] == ord("I") else ">"
    big = 43 in bytes(data[2:4])
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
        if kind in _TIFF_CODES and values and (wanted is None or tag in wanted):
            if place + values * _TIFF_BYTES[kind] > len(data):
                raise IndexError("a field reaches past the end")
            yield tag, Struct(f"{order}{values}{_TIFF_CODES[kind]}").unpack_from(data, place)


_READERS: dict[str, Callable[[Encoded], tuple[int, int, str | None]]] = {
    "png": _read_png,
    "jpeg": _read_jpeg,
    "gif": _read_gif,
    "bmp": _read_bmp,
    "tiff": _read_tiff,
    "webp": _read_webp,
}
