"""Pictures in bands: the bytes that came are given back, whatever they are; bands are pictures."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.images import progressive
from tensorrepo.formats.images.progressive import (
    BANDS,
    Arranged,
    PictureKind,
    arranged,
    joined,
    preview,
)
from tensorrepo.formats.native.jpeg_entropy import NATIVE, PYTHON
from tensorrepo.repo.errors import CorruptError
from tests.support.builders.native import needs_native

simplejpeg = pytest.importorskip("simplejpeg")
pytest.importorskip("PIL.Image")
from tests.support.builders.pictures import (  # noqa: E402
    by_pillow,
    encoded,
    shades_apart,
    smooth,
    with_orientation,
)

# 24 x 16 pixels, written by libjpeg-turbo's cjpeg -arithmetic -quality 50.
ARITHMETIC = base64.b85decode(
    "|JeWF01!$>Nk#wx0RR9200961|JwjV01yid4h#wq4h;?x5fBp?C>j_R78o%jB^@X_Gd(;xGdMRuNL)@pL{~*OI8bd-S6^ah"
    "XlFi6ad~iLcwA*?WB=O#Lje&I5*QU2FB%#zV?sDWV`F1uV`F1uV`F1uV`F1uV`F1uV`F1uV`F1uV`F1uV`F1uV`F1uV`F1u"
    "V`F1uV`Klx01*fP5C9kh0U`hb5di}c0sqVZ3IGrg1pyEd1^?Or3<CiG0ucid06zfzyP+EEQ+%pHO7uS|9Sasl;0#_yH?G}@"
    ")1j_^y3cC`Go`d7XS8vrP081(zypZLCsg9VW$YVIB2<E@$O2{z?~N9R=7vy`8JdD;Ax3%x^v3;DJ_hReCZNatd58oHz+F^("
    "*x0Zoxlbiy);rW(5rpg#YM#JPO5D`{*#"
)
SIZE = (90).to_bytes(2, "big") + (130).to_bytes(2, "big")  # of `photo`, as its header says it
NOISE = np.random.default_rng(0).integers(0, 255, (70, 90, 3), np.uint8)


def photo(height: int = 90, width: int = 130, **options: Any) -> bytes:
    """A JPEG of smooth content under a little noise."""
    rng = np.random.default_rng(height)
    pixels = smooth(height, width) + rng.normal(0, 6, (height, width, 3))
    pixels = np.clip(pixels, 0, 255).astype(np.uint8)
    mode = options.pop("mode", None)
    return encoded(pixels, "JPEG", mode, **({"quality": 85} | options))


def round_trip(data: bytes) -> Arranged:
    """`data` in bands, of which it was proved that they give it back."""
    found = arranged(data)
    assert joined(found.kind, b"".join(found.bands), found.recipe, len(data)) == data
    return found


@st.composite
def jpegs(draw: st.DrawFn) -> bytes:
    """JPEGs of Pillow: any size, mode, quality, subsampling, and ways to write them."""
    mode = draw(st.sampled_from(["RGB", "L", "CMYK"]))
    options: dict[str, Any] = {
        "quality": draw(st.integers(1, 100)),
        "progressive": draw(st.booleans()),
        "optimize": draw(st.booleans()),
    }
    if mode == "RGB":
        options["subsampling"] = draw(st.sampled_from(["4:4:4", "4:2:2", "4:2:0"]))
    if restarts := draw(st.integers(0, 3)):
        options["restart_marker_blocks"] = restarts
    if draw(st.booleans()):
        options["comment"] = draw(st.binary(max_size=40))
    height, width = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    pixels = smooth(height, width) if draw(st.booleans()) else NOISE[:height, :width]
    data = encoded(np.ascontiguousarray(pixels), "JPEG", mode, **options)
    return data + draw(st.binary(max_size=20))


@given(jpegs())
def test_every_jpeg_comes_back_to_the_bit(data: bytes) -> None:
    round_trip(data)


@given(jpegs())
def test_all_bands_are_the_same_picture(data: bytes) -> None:
    found = arranged(data)
    whole = preview(found.kind, b"".join(found.bands))
    assert np.array_equal(by_pillow(whole), by_pillow(data))


@given(jpegs(), st.integers(1, BANDS))
def test_the_first_bands_are_a_picture_of_the_same_size(data: bytes, bands: int) -> None:
    found = arranged(data)
    small = preview(found.kind, b"".join(found.bands[:bands]))
    assert by_pillow(small).shape == by_pillow(data).shape


@given(jpegs(), st.data())
def test_damaged_jpegs_come_back_as_they_are(data: bytes, more: st.DataObject) -> None:
    at = more.draw(st.integers(0, len(data) - 1))
    flipped = bytearray(data)
    flipped[at] ^= more.draw(st.integers(1, 255))
    round_trip(bytes(flipped))
    round_trip(data[:at])


@given(st.binary(max_size=300))
def test_any_bytes_come_back(data: bytes) -> None:
    round_trip(data)
    round_trip(b"\xff\xd8" + data)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subsampling": "4:4:4"},
        {"subsampling": "4:2:2"},
        {"subsampling": "4:2:0"},
        {"restart_marker_blocks": 2},
        {"optimize": True},
        {"quality": 100},
        {"quality": 20},
        {"mode": "L"},
        {"mode": "CMYK"},
        {"icc_profile": b"colours" * 3000},
        {"comment": b"about it"},
    ],
)
def test_ordinary_photos_are_arranged(options: dict[str, Any]) -> None:
    found = round_trip(photo(180, 260, **options))
    assert found.kind is PictureKind.ARRANGED
    assert found.least_side == 180
    assert all(found.bands)


def test_progressive_photos_are_cut_and_need_no_recipe() -> None:
    data = photo(progressive=True)
    found = round_trip(data)
    assert found.kind is PictureKind.PROGRESSIVE
    assert not found.recipe
    assert b"".join(found.bands) == data
    assert len(found.bands[0]) < len(data) * 3 // 4


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(ARITHMETIC, id="arithmetic codes"),
        pytest.param(encoded(NOISE, "PNG"), id="no JPEG"),
        pytest.param(photo(8, 8), id="grows"),
        pytest.param(b"", id="nothing"),
        pytest.param(photo()[:-400], id="cut short"),
        pytest.param(photo().replace(b"\xff\xc0\0\x11\x08", b"\xff\xc1\0\x11\x0c"), id="12 bits"),
        pytest.param(photo().replace(b"\xff\xda", b"\xff\xff\xda", 1), id="padded marker"),
        pytest.param(
            photo().replace(SIZE, b"\xff\xff\xff\xff"),
            id="huge",
        ),
        pytest.param(
            photo().replace(SIZE, b"\0\0\0\x82"),
            id="height told later",
        ),
    ],
)
def test_what_is_unusual_stays_as_it_is(data: bytes) -> None:
    found = round_trip(data)
    assert found == Arranged(PictureKind.PLAIN, (data, b"", b"", b""))


def test_huge_dimensions_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked at before blocks are made for them."""
    monkeypatch.setattr(progressive, "MOST_PIXELS", 89 * 130)
    assert arranged(photo()).kind is PictureKind.PLAIN


@pytest.mark.parametrize("orientation", range(1, 9))
def test_bands_keep_the_orientation(orientation: int) -> None:
    found = round_trip(with_orientation(photo(), orientation))
    small = found.bands[0]
    assert found.kind is PictureKind.ARRANGED
    assert progressive.jpeg_orientation(small) == orientation


def test_metadata_is_left_out_of_the_first_band() -> None:
    plain, heavy = photo(), photo(icc_profile=b"colours" * 3000)
    assert len(arranged(heavy).bands[0]) == len(arranged(plain).bands[0])


def test_more_bands_are_nearer_to_the_picture() -> None:
    data = photo()
    found, whole = arranged(data), by_pillow(data).astype(int)
    errors = []
    for bands in range(1, BANDS + 1):
        small = by_pillow(preview(found.kind, b"".join(found.bands[:bands])))
        errors.append(int(((small - whole) ** 2).sum()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 0


def test_an_eighth_of_the_size_is_in_the_first_band() -> None:
    """Chroma of half the size is decoded at a quarter, so some frequencies matter."""
    data = photo(256, 256)
    small = preview(PictureKind.ARRANGED, arranged(data).bands[0])
    eighth = [simplejpeg.decode_jpeg(each, min_height=32, min_width=32) for each in (small, data)]
    assert eighth[0].shape == (32, 32, 3)
    assert shades_apart(*eighth) <= 12


@needs_native
@given(jpegs())
def test_python_arranges_alike(data: bytes) -> None:
    assert NATIVE is not None
    assert arranged(data, PYTHON) == arranged(data, NATIVE)


GOOD = arranged(photo())


@given(st.data())
def test_bands_and_recipes_of_strangers_make_an_error_or_so_many_bytes(more: st.DataObject) -> None:
    bands, recipe = bytearray(b"".join(GOOD.bands)), bytearray(GOOD.recipe)
    for part in (bands, recipe):
        for _ in range(more.draw(st.integers(0, 2))):
            part[more.draw(st.integers(0, len(part) - 1))] = more.draw(st.integers(0, 255))
    size = len(photo())
    try:
        found = joined(more.draw(st.integers(0, 4)), bytes(bands), bytes(recipe), size)
    except CorruptError:
        return
    assert len(found) == size


def test_a_recipe_cannot_ask_for_more_blocks_than_the_picture_has_bytes_for() -> None:
    header = photo().replace(SIZE, b"\x10\0\x10\0")
    recipe = GOOD.recipe[:8] + header[: len(GOOD.recipe) - 10] + b"\xff\xd9"
    with pytest.raises(CorruptError, match="blocks"):
        joined(PictureKind.ARRANGED, b"".join(GOOD.bands), recipe, len(photo()))
