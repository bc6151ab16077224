"""Which image format are these bytes, how large is the picture, and is the file whole?

Images enter a dataset as the bytes they came as and are decoded late, so this is the only look at
them on the way in. It walks each format's own structure from the first byte to the end mark: a
download that was cut short is refused here, not months later in a training run. Pixels are not
decoded: damage inside compressed data passes.
"""

from __future__ import annotations

from struct import Struct, error
from typing import TYPE_CHECKING

from tensorrepo.formats.imagebytes import (
    HEAD_BYTES,
    PNG_MAGIC,
    ImageHeader,
    codec_of,
    jpeg_frame,
    jpeg_places,
    jpeg_segments,
    read_header,
    tiff_fields,
)
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HEAD_BYTES", "SUFFIXES", "codec_of", "examine"]

SUFFIXES = {
    "png": (".png",),
    "jpeg": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "gif": (".gif",),
    "bmp": (".bmp", ".dib"),
    "tiff": (".tif", ".tiff"),
    "webp": (".webp",),
}
_PNG_CHUNK = Struct(">I4s")
_JPEG_END = b"\xff\xd9"
_TIFF_EXTENTS = ((273, 279), (324, 325))  # offsets and byte counts of strips, then of tiles


def examine(data: bytes) -> ImageHeader:
    """The header of one whole image file, its structure checked to the end.

    Raises:
        InvalidInputError: no image format that is known here, cut short, or without pixels.
    """
    codec = codec_of(data[:HEAD_BYTES])
    if codec is None:
        raise InvalidInputError(
            f"is no PNG, JPEG, GIF, BMP, TIFF or WebP: it begins with {data[:8]!r}"
        )
    places = jpeg_places(data, to_scan=True) if codec == "jpeg" else None
    try:
        if places is not None:
            header = ImageHeader("jpeg", *jpeg_frame(data, places[0]))
            _check_scans(data, places[1])
        else:
            header = read_header(codec, data)
            _CHECKS[codec](data)
    except (error, IndexError, OverflowError) as problem:  # a structure that reaches past the end
        raise _short(codec, data) from problem
    if header.height <= 0 or header.width <= 0:
        raise InvalidInputError(f"is a {codec} image of {header.height} x {header.width} pixels")
    return header


def _short(codec: str, data: bytes) -> InvalidInputError:
    return InvalidInputError(f"is a {codec} image cut short at {len(data)} bytes")


def _check_png(data: bytes) -> None:
    at, kind = len(PNG_MAGIC), b""
    while kind != b"IEND":
        size, kind = _PNG_CHUNK.unpack_from(data, at)
        at += _PNG_CHUNK.size + size + 4  # and a CRC
    if at > len(data):
        raise _short("png", data)


def _check_jpeg(data: bytes) -> None:
    for marker, at in jpeg_segments(data):
        if marker == 0xDA:
            _check_scans(data, at)


def _check_scans(data: bytes, at: int) -> None:
    """After the scans begin only the end mark is looked for."""
    if data.rfind(_JPEG_END) < at:
        raise _short("jpeg", data)


def _check_gif(data: bytes) -> None:
    at = 13 + _gif_palette(data[10])
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


def _gif_palette(flags: int) -> int:
    """Bytes of the colour table that `flags` announce."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _check_bmp(data: bytes) -> None:
    file_bytes, pixels_at, header_bytes = Struct("<2xI4xII").unpack_from(data)
    layout = "<HHHH" if header_bytes == 12 else "<iiHH"
    width, height, _planes, bits = Struct(layout).unpack_from(data, 18)
    compressed = header_bytes > 12 and Struct("<I").unpack_from(data, 30)[0] not in (0, 3)
    # Some writers leave the file's size 0; without compression it follows from the sizes.
    pixel_bytes = 0 if compressed else (width * bits + 31) // 32 * 4 * abs(height)
    if len(data) < max(file_bytes, pixels_at + pixel_bytes):
        raise _short("bmp", data)


def _check_webp(data: bytes) -> None:
    (riff_bytes,) = Struct("<4xI").unpack_from(data)
    if len(data) < riff_bytes + 8:
        raise _short("webp", data)


def _check_tiff(data: bytes) -> None:
    fields = dict(tiff_fields(data))
    for offsets, counts in _TIFF_EXTENTS:
        ends = map(sum, zip(fields.get(offsets, ()), fields.get(counts, ()), strict=False))
        if max(ends, default=0) > len(data):
            raise _short("tiff", data)


_CHECKS: dict[str, Callable[[bytes], None]] = {
    "png": _check_png,
    "jpeg": _check_jpeg,
    "gif": _check_gif,
    "bmp": _check_bmp,
    "tiff": _check_tiff,
    "webp": _check_webp,
}
