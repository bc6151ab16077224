"""One encoded picture becomes the pixels that Pillow gives, or an error; never a grey half."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.streaming.collate import pixels
from tensorrepo.formats.dataset.streaming.collate.pixels import (
    Box,
    PictureReader,
    Target,
    middle,
)
from tensorrepo.formats.images.headers import tidied
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError

pytest.importorskip("cv2")
simplejpeg = pytest.importorskip("simplejpeg")
Image = pytest.importorskip("PIL.Image")
ImageFile = pytest.importorskip("PIL.ImageFile")
ImageOps = pytest.importorskip("PIL.ImageOps")
from tests.support.builders.pictures import (  # noqa: E402
    Pixels,
    by_pillow,
    encoded,
    jpeg,
    resized_by_pillow,
    shades_apart,
    smooth,
    with_orientation,
)

COLOURS = smooth(120, 160)
GREY = smooth(120, 160, 1)
NOISY_JPEG = encoded(np.random.default_rng(0).integers(0, 255, (128, 128, 3), np.uint8), "JPEG")
FORMS = ["PNG", "WEBP", "BMP", "TIFF", "GIF", "JPEG"]


def with_bytes_before_the_scan(data: bytes) -> bytes:
    at = data.index(b"\xff\xda")
    return data[:at] + b"\0\0\0" + data[at:]


def of_a_later_jfif(data: bytes) -> bytes:
    at = data.index(b"JFIF\0") + 5
    return data[:at] + b"\x09" + data[at + 1 :]


def with_transform(data: bytes, transform: int) -> bytes:
    """With a colour transform of Adobe, in place of what said it before."""
    block = b"\xff\xee\x00\x0eAdobe\0\x64\0\0\0\0" + bytes([transform])
    return data[:2] + block + data[4 + int.from_bytes(data[4:6], "big") :]


def of_an_unknown_transform(data: bytes) -> bytes:
    return with_transform(data, 7)


def with_other_coefficients(data: bytes) -> bytes:
    at = data.index(b"\xff\xda") + 2
    end = at + int.from_bytes(data[at : at + 2], "big")
    return data[: end - 1] + b"\x11" + data[end:]


Oddity = Callable[[bytes], bytes]
ODDITIES: list[Oddity] = [
    with_bytes_before_the_scan,
    of_a_later_jfif,
    of_an_unknown_transform,
    with_other_coefficients,
]


def reader(mode: str = "RGB", *, exact: bool = False, max_pixels: int = 1 << 20) -> PictureReader:
    return PictureReader(mode, exact=exact, orient=True, max_pixels=max_pixels)


def read(data: bytes, mode: str = "RGB") -> Pixels:
    """All of a picture in its own size."""
    return reader(mode).read(
        memoryview(data), lambda high, wide: Target(Box(0, 0, high, wide), None, False)
    )


def cut(
    data: bytes, size: tuple[int, int], *, exact: bool, mode: str = "RGB", flip: bool = False
) -> Pixels:
    """The middle of a picture, in this size."""
    out = np.empty((*size, pixels.CHANNELS[mode]), np.uint8)
    found = reader(mode, exact=exact).read(
        memoryview(data), lambda high, wide: Target(middle(high, wide, size), out, flip)
    )
    assert found is out or np.shares_memory(found, out)
    return out


# ------------------------------------------------------------------------------ the same as Pillow


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("picture", [COLOURS, GREY], ids=["colours", "grey"])
def test_pixels_are_those_of_pillow(picture: Pixels, form: str, mode: str) -> None:
    data = encoded(picture, form)
    # Pillow makes grey of a JPEG's colours, libjpeg-turbo takes the grey that is stored.
    allowed = 2 if (form, mode) == ("JPEG", "L") else 0
    assert shades_apart(read(data, mode), by_pillow(data, mode)) <= allowed


@pytest.mark.parametrize("options", [{"progressive": True}, {"subsampling": 0}, {"subsampling": 1}])
def test_every_kind_of_jpeg_is_decoded_alike(options: dict[str, int]) -> None:
    data = encoded(COLOURS, "JPEG", **options)
    assert shades_apart(read(data), by_pillow(data)) == 0


@pytest.mark.parametrize("form", ["JPEG", "TIFF"])
def test_the_colours_of_print_become_those_of_screens(form: str) -> None:
    data = encoded(COLOURS, form, "CMYK")
    assert shades_apart(read(data), by_pillow(data)) == 0
    assert shades_apart(read(data), COLOURS) < 16


def test_alpha_is_dropped_or_kept() -> None:
    picture = np.concatenate([COLOURS, smooth(120, 160, 1, seed=5)], axis=-1)
    data = encoded(picture, "PNG")
    assert shades_apart(read(data), COLOURS) == 0
    assert shades_apart(read(data, "RGBA"), picture) == 0
    assert shades_apart(read(encoded(COLOURS, "PNG"), "RGBA")[..., 3], 255) == 0


def test_of_16_bits_the_upper_8_are_kept() -> None:
    deep = np.arange(256 * 256, dtype=np.uint16).reshape(256, 256)
    out = encoded(deep, "PNG")
    assert shades_apart(read(out, "L")[..., 0], deep >> 8) == 0
    assert shades_apart(read(out)[..., 2], deep >> 8) == 0


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("size", [(56, 56), (20, 30), (240, 240), (119, 160)])
def test_exact_resizing_is_that_of_pillow(form: str, size: tuple[int, int], mode: str) -> None:
    data = encoded(COLOURS, form)
    box = middle(120, 160, size)
    edges = (box.left, box.top, box.left + box.width, box.top + box.height)
    found = cut(data, size, exact=True, mode=mode)
    assert shades_apart(found, resized_by_pillow(read(data, mode), size, edges)) == 0


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("size", [(100, 100), (70, 70), (56, 80), (30, 30), (300, 240)])
def test_fast_resizing_is_a_few_shades_off(form: str, size: tuple[int, int], mode: str) -> None:
    data = encoded(COLOURS, form)
    exact = cut(data, size, exact=True, mode=mode)
    fast = cut(data, size, exact=False, mode=mode)
    assert shades_apart(fast, exact) <= 24
    assert np.abs(fast - exact.astype(float)).mean() < 4


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("down", [1.3, 1.7, 2.0, 3.3])
def test_nothing_aliases_when_it_shrinks(form: str, down: float) -> None:
    stripes = np.full((240, 240, 3), 128, np.uint8)
    stripes[:, ::2] += 100  # finer than the smaller picture can show: grey, not broad stripes
    stripes[:, 1::2] -= 100
    found = cut(encoded(stripes, form), (int(240 / down), int(240 / down)), exact=False)
    aliased = stripes[:: int(down), :: int(down)]
    assert found[8:-8, 8:-8].std() < 0.75 * max(stripes.std(), aliased.std())


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("size", [(120, 160), (60, 60)])
def test_a_flipped_picture_is_mirrored(size: tuple[int, int], exact: bool) -> None:
    plain = cut(jpeg(COLOURS), size, exact=exact)
    assert shades_apart(cut(jpeg(COLOURS), size, exact=exact, flip=True), plain[:, ::-1]) == 0


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "WEBP"])
def test_pictures_are_turned_as_viewers_turn_them(form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(COLOURS, form, exif=exif)
    with Image.open(io.BytesIO(data)) as image:
        shown = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    assert shades_apart(read(data), shown) == 0


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_picture_is_cut_and_shrunk_as_it_is_shown(orientation: int) -> None:
    data = with_orientation(jpeg(COLOURS), orientation)
    fast, exact = (cut(data, (40, 25), exact=each) for each in (False, True))
    assert shades_apart(fast, exact) <= 24


def test_orientation_can_be_left_alone() -> None:
    data = with_orientation(jpeg(COLOURS), 6)
    alone = PictureReader("RGB", exact=False, orient=False, max_pixels=1 << 20)
    found = alone.read(
        memoryview(data), lambda high, wide: Target(Box(0, 0, high, wide), None, False)
    )
    assert found.shape == COLOURS.shape


@pytest.mark.parametrize(
    "damage", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0"]
)
def test_damaged_exif_is_no_damaged_picture(damage: bytes) -> None:
    data = jpeg(COLOURS)
    block = b"\xff\xe1" + (len(damage) + 2).to_bytes(2, "big") + damage
    assert read(data[:2] + block + data[2:]).shape == COLOURS.shape


# ------------------------------------------------------------------------------ damaged and hostile


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "BMP", "TIFF"])
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9])
def test_a_file_that_is_cut_short_is_an_error(form: str, kept: float) -> None:
    data = encoded(COLOURS, form)
    with pytest.raises(CorruptError):
        read(data[: int(kept * len(data))])


def test_a_jpeg_that_is_cut_short_and_closed_is_an_error() -> None:
    data = jpeg(COLOURS)
    with pytest.raises(CorruptError, match="damaged"):
        read(data[: len(data) // 2] + b"\xff\xd9")


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"mode": "CMYK"}, {"mode": "L"}])
def test_half_a_jpeg_that_is_closed_is_an_error_in_every_mode(
    options: dict[str, Any], mode: str
) -> None:
    data = encoded(COLOURS, "JPEG", **options)
    with pytest.raises(CorruptError, match="damaged"):
        read(data[: len(data) // 2] + b"\xff\xd9", mode)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("count", [37, 200, 1000])
def test_bytes_put_into_the_scan_of_a_jpeg_are_an_error(count: int, mode: str) -> None:
    data, at = NOISY_JPEG, len(NOISY_JPEG) // 2
    noise = np.random.default_rng(count).integers(0, 255, count, np.uint8).tobytes()
    with pytest.raises(CorruptError, match="damaged"):
        read(data[:at] + noise + data[at:], mode)


def test_a_part_of_a_scan_that_comes_twice_is_an_error() -> None:
    half = len(NOISY_JPEG) // 2
    with pytest.raises(CorruptError, match=r"damaged.*extraneous bytes"):
        read(NOISY_JPEG[:half] + NOISY_JPEG[half - 900 :])


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("oddity", ODDITIES)
def test_an_odd_header_is_no_damage_and_hides_none(oddity: Oddity, mode: str) -> None:
    data = oddity(jpeg(COLOURS))
    with pytest.raises(ValueError, match=r"extraneous|JFIF|Adobe|SOS"):
        simplejpeg.decode_jpeg(data)
    assert shades_apart(read(data, mode), read(jpeg(COLOURS), mode)) == 0
    with pytest.raises(CorruptError, match=r"damaged.*premature end"):
        read(data[: len(data) // 2] + b"\xff\xd9", mode)


def test_an_odd_header_of_a_picture_in_inks_is_no_damage() -> None:
    data = encoded(COLOURS, "JPEG", "CMYK")
    odd = with_transform(data, 7)
    with pytest.raises(ValueError, match="Adobe"):
        simplejpeg.decode_jpeg(odd, colorspace="CMYK")
    assert shades_apart(read(odd), by_pillow(odd)) == 0


@given(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=8))
def test_a_damaged_header_is_tidied_without_an_error(at: int, damage: bytes) -> None:
    data = bytearray(jpeg(smooth(16, 16)))
    at %= len(data)
    data[at : at + len(damage)] = damage
    assert tidied(memoryview(data))[:2] == b"\xff\xd8"


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_pillow_must_not_be_set_to_pass_over_damage(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = encoded(COLOURS, form)
    with pytest.raises(InvalidInputError, match="LOAD_TRUNCATED_IMAGES is set"):
        read(data[: len(data) // 2])
    assert read(jpeg(COLOURS)).any()  # not by Pillow


@pytest.mark.parametrize("tail", [b"", b"\0" * 100, b"trailing bytes of a camera"])
def test_bytes_behind_a_picture_are_passed_over(tail: bytes) -> None:
    assert shades_apart(read(jpeg(COLOURS) + tail), by_pillow(jpeg(COLOURS))) == 0


@given(st.sampled_from(FORMS), st.integers(0, 1 << 20), st.binary(min_size=1, max_size=8))
def test_damaged_bytes_give_a_picture_or_an_error_of_ours(
    form: str, at: int, damage: bytes
) -> None:
    data = bytearray(encoded(smooth(16, 16), form))
    at %= len(data)
    data[at : at + len(damage)] = damage
    try:
        found = read(bytes(data))
    except CorruptError:
        return
    assert found.dtype == np.uint8
    assert found.shape[2] == 3


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"no image at all", b"RIFF\0\0\0\0WEBP"])
def test_what_is_no_picture_is_an_error(data: bytes) -> None:
    with pytest.raises(CorruptError):
        read(data)


@pytest.mark.parametrize("form", FORMS)
def test_a_picture_with_more_pixels_than_allowed_is_refused(form: str) -> None:
    data = encoded(COLOURS, form)
    small = reader(max_pixels=120 * 160 - 1)
    with pytest.raises(CorruptError, match=r"120 x 160 pixels is larger than max_pixels=19,199"):
        small.read(memoryview(data), lambda high, wide: Target(Box(0, 0, high, wide), None, False))


def test_a_bomb_is_refused_before_it_is_decoded() -> None:
    # 65,000 x 65,000 pixels in a header, and nothing behind it: decoding would fail otherwise.
    bomb = bytearray(encoded(smooth(8, 8), "PNG"))
    bomb[16:24] = (65_000).to_bytes(4, "big") * 2
    with pytest.raises(CorruptError, match="65000 x 65000 pixels is larger"):
        read(bytes(bomb))


def test_bytes_that_are_a_program_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    plugin = pytest.importorskip("PIL.EpsImagePlugin")
    monkeypatch.setattr(plugin, "Ghostscript", lambda *args, **_: started.append(args))
    with pytest.raises(CorruptError, match="are no image"):
        read(encoded(COLOURS, "EPS"))
    assert started == []


def test_numbers_of_32_bits_are_refused() -> None:
    data = encoded(np.ones((4, 4), np.float32), "TIFF")
    with pytest.raises(CorruptError, match="32-bit"):
        read(data)


# ------------------------------------------------------------------------------ its place


def test_a_jpeg_of_the_right_size_is_decoded_in_place() -> None:
    out = np.zeros((3, 120, 160, 3), np.uint8)
    reader().read(
        memoryview(jpeg(COLOURS)), lambda high, wide: Target(Box(0, 0, high, wide), out[1], False)
    )
    assert shades_apart(out[1], by_pillow(jpeg(COLOURS))) == 0
    assert not out[[0, 2]].any()


def test_a_place_with_gaps_is_filled_and_nothing_else() -> None:
    out = np.zeros((100, 100, 3), np.uint8)
    there = out[10:70, 20:100]
    reader().read(
        memoryview(jpeg(COLOURS)), lambda high, wide: Target(Box(0, 0, high, wide), there, True)
    )
    assert there.any()
    there[...] = 0
    assert not out.any()


def test_a_picture_that_keeps_its_size_owns_its_pixels() -> None:
    one = reader()
    place = lambda high, wide: Target(Box(0, 0, high, wide // 2), None, False)  # noqa: E731
    first = one.read(memoryview(jpeg(COLOURS)), place)
    before = first.copy()
    one.read(memoryview(jpeg(255 - COLOURS)), place)
    assert shades_apart(first, before) == 0


def test_a_missing_library_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(UnsupportedError, match=r"cv2.*tensorrepo\[images\].*exact=True"):
        reader()
    assert read_exactly(jpeg(COLOURS)).any()


def read_exactly(data: bytes) -> Pixels:
    return cut(data, (50, 50), exact=True)
