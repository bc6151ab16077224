"""Image headers: format, size and mode, whole structure, and JPEG headers made regular.

Only headers are read, wherever they lie; pixels are not decoded. A file that is cut short behind
its header passes.

Images enter a dataset as the bytes they came as and are decoded late, so this is the only look at
them on the way in. It walks each format's own structure from the first byte to the end mark: a
download that was cut short is refused here, not months later in a training run. Pixels are not
decoded: damage inside compressed data passes.

libjpeg tells its first warning only, so a harmless one may hide that of damaged pixels. A copy
whose header gives no cause for harmless ones is decoded instead: whatever is said of that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct, error
from typing import Any, NamedTuple

from tensorrepo.repo.errors import InvalidInputError

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


ORIENTATION = 0x0112  # of EXIF's tags
_APP1, _APPLICATION = 0xE1, frozenset({*range(0xE0, 0xF0), 0xFE})
EXIF = b"Exif\0\0"


def jpeg_orientation(data: Encoded) -> int:
    """The EXIF orientation, 1 to 8; 1 where there is none."""
    try:
        for marker, at in jpeg_segments(data):
            if marker not in _APPLICATION:
                return 1  # EXIF comes before everything else
            if marker == _APP1 and data[at + 2 : at + 8] == EXIF:
                length = int.from_bytes(data[at : at + 2], "big")
                return _orientation(data[at + 8 : at + length])
    except (InvalidInputError, error, IndexError, OverflowError):
        return 1  # the decoder judges the rest
    return 1


def _orientation(exif: Encoded) -> int:
    if bytes(exif[:4]) not in (b"II*\0", b"MM\0*"):
        return 1
    orientation = dict(tiff_fields(exif, frozenset({ORIENTATION}))).get(ORIENTATION, (1,))[0]
    return orientation if 1 <= orientation <= 8 else 1


_READERS: dict[str, Callable[[Encoded], tuple[int, int, str | None]]] = {
    "png": _read_png,
    "jpeg": _read_jpeg,
    "gif": _read_gif,
    "bmp": _read_bmp,
    "tiff": _read_tiff,
    "webp": _read_webp,
}


SUFFIXES = {
    "png": (".png",),
    "jpeg": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "gif": (".gif",),
    "bmp": (".bmp", ".dib"),
    "tiff": (".tif", ".tiff"),
    "webp": (".webp",),
}
_PNG_CHUNK = Struct(">I4s")
_JPEG_END_MARK = b"\xff\xd9"
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
    if data.rfind(_JPEG_END_MARK) < at:
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


# How the warnings begin, or what they name, that `tidied` does away with.
HARMLESS = ("extraneous bytes", "Adobe", "JFIF", "SOS parameters")
_JFIF, _ADOBE = b"JFIF\0", b"Adobe"
_APP0, _APP14, _SCAN, _END = 0xE0, 0xEE, 0xDA, 0xD9
_SEQUENTIAL, _FRAMES = frozenset({0xC0, 0xC1}), frozenset({0xC0, 0xC1, 0xC2})
_STANDALONE = frozenset({0x00, 0x01, *range(0xD0, 0xD9)})
_RGB, _YCC, _YCCK = 0, 1, 2  # Adobe's colour transforms
_WHOLE_SPECTRUM = bytes([0, 63, 0])  # what a scan of a sequential JPEG says


def tidied(data: memoryview) -> bytes:
    """A JPEG up to its first scan as libjpeg expects it, and all the rest as it is.

    Bytes between segments are left out. A version of JFIF and a colour transform of Adobe that
    nobody knows become what libjpeg takes them for, as do the coefficients of a sequential scan.
    `data` is all of the file, and may be damaged.
    """
    segments = list(_segments(data))
    usual = _usual_transform(data, segments)
    parts, sequential, end = [b"\xff\xd8"], False, 2
    for marker, start, stop in segments:
        segment = bytearray(data[start:stop])
        sequential |= marker in _SEQUENTIAL
        if marker == _APP0 and segment[2:7] == _JFIF and len(segment) > 7:
            segment[7] = 1
        elif marker == _APP14 and segment[2:7] == _ADOBE and len(segment) >= 14:
            segment[13] = segment[13] if segment[13] in (_RGB, usual) else usual
        elif marker == _SCAN and sequential:
            segment[-3:] = _WHOLE_SPECTRUM
        parts += [bytes([0xFF, marker]), bytes(segment)]
        end = stop
    return b"".join([*parts, data[end:]])


def _segments(data: memoryview) -> Iterator[tuple[int, int, int]]:
    """(marker, start, stop) from each length field on, up to the first scan's."""
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF or data[at + 1] == 0xFF or data[at + 1] in _STANDALONE:
            at += 1
            continue
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == _END or length < 2:
            return
        yield marker, at + 2, at + 2 + length
        if marker == _SCAN:
            return
        at += 2 + length


def _usual_transform(data: memoryview, segments: list[tuple[int, int, int]]) -> int:
    """Adobe's for the number of components that the frame says."""
    counts = [data[start + 7 : start + 8] for marker, start, _ in segments if marker in _FRAMES]
    return _YCCK if counts[:1] == [b"\x04"] else _YCC
