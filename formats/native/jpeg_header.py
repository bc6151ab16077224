"""What a JPEG says of itself before its pixels: size, components, EXIF orientation.

`NATIVE` reads it in C (jpeg_header.c beside this) where it was built, `PYTHON` everywhere, with
identical results; `BEST` is the first that there is.
"""

from __future__ import annotations

from tensorrepo.formats.images.headers import (
    JPEG_MODES,
    Encoded,
    jpeg_frame,
    jpeg_orientation,
    jpeg_places,
)
from tensorrepo.formats.native.extensions import kernels

_USUAL = {JPEG_MODES[components]: components for components in (1, 3)}


class JpegHeaders:
    """Reads headers in Python."""

    name = "python"

    def read(self, data: Encoded) -> tuple[int, int, int, int] | None:
        """(height, width, components, orientation) of a JPEG such as encoders and cameras write.

        Height and width are of the picture as it is stored, at least 1; components are 1 or 3;
        orientation is EXIF's, 1 to 8. None where the picture has other components, or where
        anything before its frame is unusual, damaged or missing.
        """
        places = jpeg_places(data, to_scan=False)
        if places is None or places[0] + 8 > len(data):
            return None
        height, width, mode = jpeg_frame(data, places[0])
        if not height or not width or mode not in _USUAL:
            return None
        return height, width, _USUAL[mode], jpeg_orientation(data)


class NativeJpegHeaders(JpegHeaders):
    """In C, but for EXIF that is unusual."""

    name = "native"

    def read(self, data: Encoded) -> tuple[int, int, int, int] | None:
        return kernels.jpeg_header(data) or super().read(data)


PYTHON = JpegHeaders()
NATIVE: JpegHeaders | None = None if kernels is None else NativeJpegHeaders()
BEST: JpegHeaders = NATIVE or PYTHON
