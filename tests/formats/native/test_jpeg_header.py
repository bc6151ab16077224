"""What a JPEG says before its pixels: in C and in Python, with identical results."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.images.headers import jpeg_orientation
from tensorrepo.formats.native.jpeg_header import NATIVE, PYTHON, JpegHeaders
from tests.support.builders.native import needs_native

Image = pytest.importorskip("PIL.Image")
EVERY = pytest.mark.parametrize(
    "headers",
    [
        pytest.param(PYTHON, id="python"),
        pytest.param(NATIVE, id="native", marks=needs_native),
    ],
)


def jpeg(mode: str = "RGB", orientation: int | None = None, **options: bool) -> bytes:
    """37 pixels high, 53 wide."""
    exif = Image.Exif()
    exif[0x010F] = "a maker of cameras"
    if orientation is not None:
        exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(np.zeros((37, 53), np.uint8)).convert(mode).save(
        file, "JPEG", exif=exif, **options
    )
    return file.getvalue()


@EVERY
@pytest.mark.parametrize("orientation", [None, 1, 3, 8])
@pytest.mark.parametrize(("mode", "components"), [("RGB", 3), ("L", 1)])
def test_size_components_and_orientation_are_told(
    headers: JpegHeaders, mode: str, components: int, orientation: int | None
) -> None:
    told = headers.read(memoryview(jpeg(mode, orientation, progressive=mode == "L")))
    assert told == (37, 53, components, orientation or 1)


@EVERY
@pytest.mark.parametrize(
    "data",
    [
        jpeg("CMYK"),
        jpeg()[:40],
        b"\xff\xd8\xff\xff" + jpeg()[3:],  # padding
        b"\xff\xd8\xff",
        b"",
    ],
    ids=["inks", "cut short", "padded", "nothing", "empty"],
)
def test_of_what_is_unusual_nothing_is_told(headers: JpegHeaders, data: bytes) -> None:
    assert headers.read(data) is None


@needs_native
@given(st.integers(0, 1 << 32), st.sampled_from([jpeg(orientation=6), jpeg("L")]))
def test_damage_is_read_alike(seed: int, whole: bytes) -> None:
    assert NATIVE is not None
    rng = random.Random(seed)
    end = whole.index(b"\xff\xda")
    data = bytearray(whole[: rng.randrange(end) if rng.randrange(4) == 0 else None])
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(min(end, len(data) or 1))
        data[at : at + 1] = bytes([rng.choice([0, 1, 2, 3, 8, 0xC0, 0xE1, 0xFF])])
    told = NATIVE.read(bytes(data))
    assert told == PYTHON.read(bytes(data))
    assert told is None or told[3] == jpeg_orientation(bytes(data))
