"""What of a JPEG makes libjpeg warn before its pixels begin, though the picture is whole?

libjpeg tells its first warning only, so a harmless one may hide that of damaged pixels. A copy
whose header gives no cause for harmless ones is decoded instead: whatever is said of that counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

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
