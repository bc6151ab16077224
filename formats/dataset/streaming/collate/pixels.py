"""Image decoder: encoded picture to pixels, cropped, resized and flipped into place.

JPEGs go through libjpeg-turbo (`simplejpeg`), everything else through Pillow; both let go of the
interpreter lock. A JPEG that has to become less than half as large is decoded at a half, a quarter
or an eighth of its size, which its format allows at no cost. OpenCV resizes, behind a filter of
three taps so that nothing aliases: within a shade or two of Pillow's "bilinear", in a quarter of
its time. What has an alpha channel, and whatever is to be exact, is resized by Pillow.

Damaged data is an error, never a gray half: libjpeg's warnings are taken seriously but for those
about its header, without which it is decoded once more. Pillow, which hears none of them, decodes
only the few JPEGs that libjpeg-turbo's simple half lacks, by arithmetic coding or with chroma
planes of unusual sizes; there, damage that is not a missing end goes unnoticed.

Boxes are whole pixels of the picture as it is shown. Chance comes in as numbers in [0, 1) that are
a function of seed, epoch and row: the same picture is cut alike on every rank, by every thread and
after every resume.

Source:
    docs/spec/stream-order.md, section "Keyed numbers", for the numbers; the random box is that of
    Szegedy et al., "Going deeper with convolutions", as torchvision's RandomResizedCrop draws it.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from threading import local
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.common.tensors import import_library
from tensorrepo.formats.dataset.streaming.order.random_numbers import numbers
from tensorrepo.formats.images.headers import (
    HARMLESS,
    ORIENTATION,
    header_of,
    jpeg_orientation,
    raster_formats,
    tidied,
)
from tensorrepo.formats.native import jpeg_header
from tensorrepo.repo.errors import CorruptError, Error, InvalidInputError

if TYPE_CHECKING:
    Picture = NDArray[np.uint8]
    Place = Callable[[int, int], "Target"]


ATTEMPTS = 10  # of a random box that has to lie inside the picture
_PER_ATTEMPT = 4
CHANCES = 1 + ATTEMPTS * _PER_ATTEMPT  # numbers that a row needs at most; the first is the flip's
_FRACTION_BITS = 53
_KEPT = 1024  # plans for pictures of some size each: those of a dataset have few sizes


class Box(NamedTuple):
    """Rows ``[top, top + height)`` and columns ``[left, left + width)`` of a picture."""

    top: int
    left: int
    height: int
    width: int


def chances(key: int, draws: NDArray[np.uint64] | Ints) -> NDArray[np.float64]:
    """Numbers in [0, 1), ``(len(draws), CHANCES)``: a function of an epoch's key and row."""
    keys = numbers(key, draws.view(np.uint64))
    drawn = numbers(keys[:, None], np.arange(CHANCES, dtype=np.uint64)[None, :])
    scaled_down: NDArray[np.float64] = (drawn >> np.uint64(64 - _FRACTION_BITS)).astype(np.float64)
    scaled_down *= 2.0**-_FRACTION_BITS
    return scaled_down


@lru_cache(_KEPT)
def middle(height: int, width: int, size: tuple[float, float]) -> Box:
    """The largest box in the middle that has the shape of `size`, (height, width)."""
    high, wide = size
    cut_height = min(height, max(1, round(width * high / wide)))
    cut_width = min(width, max(1, round(height * wide / high)))
    return Box((height - cut_height) // 2, (width - cut_width) // 2, cut_height, cut_width)


@lru_cache(_KEPT)
def inside(height: int, width: int, size: tuple[int, int]) -> tuple[int, int]:
    """How large the whole picture becomes when it has to fit into `size`."""
    scale = min(size[0] / height, size[1] / width)
    return (min(size[0], max(1, round(height * scale))), min(size[1], max(1, round(width * scale))))


def drawn(
    height: int,
    width: int,
    numbers_of_row: Sequence[float],
    area: tuple[float, float],
    ratio: tuple[float, float],
) -> Box:
    """A box of random area and shape somewhere in the picture.

    Args:
        height: height of the picture.
        width: width of the picture.
        numbers_of_row: row of `chances`.
        area: least and most part of the picture's area.
        ratio: least and most width per height, drawn evenly on a logarithmic scale.

    Returns:
        The first of `ATTEMPTS` that fits; else the middle, of the shape closest to the picture's.
    """
    stretch = ratio[1] / ratio[0]
    for at in range(1, CHANCES, _PER_ATTEMPT):
        how_much, which_shape, how_low, how_far = numbers_of_row[at : at + _PER_ATTEMPT]
        pixels = height * width * (area[0] + (area[1] - area[0]) * how_much)
        shape = ratio[0] * stretch**which_shape
        cut_height, cut_width = round(math.sqrt(pixels / shape)), round(math.sqrt(pixels * shape))
        if 0 < cut_height <= height and 0 < cut_width <= width:
            top = int(how_low * (height - cut_height + 1))
            left = int(how_far * (width - cut_width + 1))
            return Box(top, left, cut_height, cut_width)
    shape = min(max(width / height, ratio[0]), ratio[1])
    return middle(height, width, (1, shape))


def scaled(box: Box, of: tuple[int, int], to: tuple[int, int]) -> Box:
    """`box` of a picture of size `of` in the same picture of size `to`, at least one pixel."""
    top, bottom = (round(edge * to[0] / of[0]) for edge in (box.top, box.top + box.height))
    left, right = (round(edge * to[1] / of[1]) for edge in (box.left, box.left + box.width))
    top, left = min(top, to[0] - 1), min(left, to[1] - 1)
    return Box(top, left, max(1, bottom - top), max(1, right - left))


T = TypeVar("T")
CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4}
_FILE_OBJECT = re.compile(r" <_io\.[^>]*>")  # an address says nothing to people
_JPEG_MAGIC = b"\xff\xd8\xff"
# What simplejpeg calls the modes. Alpha is 255 then.
_JPEG_SPACES = {"RGB": "RGB", "L": "GRAY", "RGBA": "RGBA"}
_INKS = ("CMYK", "YCCK")
_UNSUPPORTED = ("Unsupported", "not supported", "Could not determine")  # that is no damage
_KEPT_BYTES = 64 << 20  # scratch memory that a thread keeps
_LARGEST_SHRINK = 8
_MOST_REDUCED = 2.0  # what the filter of three taps can prepare for


class Target(NamedTuple):
    """What becomes of a picture: `box` of it, resized to the height and width of `out`.

    `out` is ``(height, width, channels)``; None leaves the box its size, in a new array.
    """

    box: Box
    out: Picture | None
    flip: bool


class PictureReader:
    """Decodes pictures of one mode. Thread-safe: each thread has scratch memory of its own."""

    def __init__(self, mode: str, *, exact: bool, orient: bool, max_pixels: int) -> None:
        """Prepare; `Decode` describes the arguments.

        Raises:
            UnsupportedError: a library is missing; says what to install.
        """
        self._mode, self._orient, self._max_pixels = mode, orient, max_pixels
        self._exact = exact or mode == "RGBA"
        self._jpeg, self._pillow = _needed("simplejpeg"), _needed("PIL.Image")
        self._formats = raster_formats(self._pillow)
        self._files = _needed("PIL.ImageFile")
        without = ", or Decode(exact=True), which does without it"
        self._cv2 = None if self._exact else _needed("cv2", without)
        self._most_shrunk = 1 if self._exact else _LARGEST_SHRINK
        self._scratch = local()

    def read(self, data: memoryview, place: Place) -> Picture:
        """Decode a picture.

        Args:
            data: the encoded file.
            place: gives the target of a picture of this height and width, as it is shown.

        Returns:
            ``(height, width, channels)``: the target's `out`, or a new array.

        Raises:
            CorruptError: no picture, a damaged one, or one larger than allowed.
            InvalidInputError: Pillow is set to pass over damage.
        """
        try:
            if data[:3] == _JPEG_MAGIC:
                return self._read_jpeg(data, place)
            return self._read_other(data, place)
        except (Error, MemoryError):
            raise
        except Exception as error:
            # What Pillow's formats raise on hostile bytes is nowhere said.
            told = _FILE_OBJECT.sub("", str(error))
            raise CorruptError(
                f"{len(data)} bytes are no image that can be decoded: {told}"
            ) from error

    # ------------------------------------------------------------------ JPEG

    def _read_jpeg(self, data: memoryview, place: Place) -> Picture:
        header = jpeg_header.BEST.read(data)
        inks = False
        try:
            if header is None:
                header, inks = self._unusual_header(data)
        except ValueError as error:
            return self._read_unsupported(data, place, error)
        height, width, _, turn = header
        self._check_size(height, width)
        if not self._orient:
            turn = 1
        target = place(width, height) if turn > 4 else place(height, width)
        box, out, flip = target
        size = None if out is None else out.shape
        steps = steps_of(height, width, turn, box, size, self._most_shrunk)
        whole = out is not None and steps.direct and out.flags.c_contiguous
        direct = out if whole and not inks else None
        try:
            pixels = self._decoded(data, steps, out, direct, inks=inks)
        except ValueError as error:
            return self._read_unsupported(data, place, error)
        if direct is not None:
            return self._flipped(pixels, flip=flip)
        if turn != 1:
            pixels = turned(pixels, turn)
        return self._placed(pixels, steps, out, flip=flip)

    def _unusual_header(self, data: memoryview) -> tuple[tuple[int, int, int, int], bool]:
        """As of a usual one, but for the components, and whether they are inks, by libjpeg."""
        height, width, space, _ = _strictly(self._jpeg.decode_jpeg_header, data)
        turn = jpeg_orientation(data) if self._orient else 1
        return (height, width, 0, turn), space in _INKS

    def _read_unsupported(self, data: memoryview, place: Place, error: ValueError) -> Picture:
        """Leave a JPEG to Pillow, unless it is damaged."""
        if any(word in str(error) for word in _UNSUPPORTED):
            return self._read_other(data, place)
        raise CorruptError(f"a jpeg image of {len(data)} bytes is damaged: {error}") from error

    def _decoded(
        self,
        data: memoryview,
        steps: Steps,
        out: Picture | None,
        direct: Picture | None,
        *,
        inks: bool,
    ) -> Picture:
        buffer = direct
        if direct is None and out is not None:
            buffer = self._room("decoded", steps.pixels * max(CHANNELS.values()))
        space = "CMYK" if inks else _JPEG_SPACES[self._mode]
        least = steps.least
        pixels: Picture = _strictly(
            self._jpeg.decode_jpeg,
            data,
            colorspace=space,
            min_height=least[0],
            min_width=least[1],
            buffer=buffer,
        )
        return self._from_inks(pixels) if inks else pixels

    def _from_inks(self, inks: Picture) -> Picture:
        """The colours of a screen; JPEGs hold how much of each ink there is not, as Adobe does."""
        size = inks.shape[1], inks.shape[0]
        image = self._pillow.frombuffer("CMYK", size, inks, "raw", "CMYK;I", 0, 1)
        pixels: Picture = np.asarray(image.convert(self._mode))
        return pixels.reshape(*pixels.shape[:2], CHANNELS[self._mode])

    # ------------------------------------------------------------------ every other format

    def _read_other(self, data: memoryview, place: Place) -> Picture:
        if self._files.LOAD_TRUNCATED_IMAGES:
            raise InvalidInputError(
                "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set in this program: Pillow then fills up "
                "damaged pictures with black, without a word. Set it to False; on_error='skip' "
                "leaves pictures out that cannot be decoded."
            )
        header = header_of(data)
        if header is not None:
            self._check_size(header.height, header.width)
        with self._pillow.open(io.BytesIO(data), formats=self._formats) as image:
            self._check_size(image.height, image.width)
            pixels = turned(self._converted(image), _orientation_of(image) if self._orient else 1)
        box, out, flip = place(*pixels.shape[:2])
        steps = steps_of(*pixels.shape[:2], 1, box, None if out is None else out.shape, 1)
        return self._placed(pixels, steps, out, flip=flip)

    def _converted(self, image: Any) -> Picture:
        if image.mode.startswith("I;16"):
            # Pillow would clip at 255; the upper 8 bits are what it keeps of 16-bit colours.
            deep = np.asarray(image).astype(np.uint16, copy=False)
            image = self._pillow.fromarray((deep >> 8).astype(np.uint8))
        if image.mode in ("I", "F"):
            raise CorruptError(
                f"an image of 32-bit numbers (mode {image.mode}) has no 8-bit pixels. Store it as "
                "a tensor."
            )
        pixels: Picture = np.asarray(image.convert(self._mode))
        return pixels.reshape(*pixels.shape[:2], CHANNELS[self._mode])

    def _check_size(self, height: int, width: int) -> None:
        if height * width > self._max_pixels:
            raise CorruptError(
                f"an image of {height} x {width} pixels is larger than max_pixels="
                f"{self._max_pixels:,}"
            )

    # ------------------------------------------------------------------ to its place

    def _placed(self, pixels: Picture, steps: Steps, out: Picture | None, *, flip: bool) -> Picture:
        seen = pixels[steps.cut]
        if out is None:
            # A copy: rows of a list outlive the scratch memory and the parts that were cut off.
            return np.ascontiguousarray(seen[:, ::-1] if flip else seen)
        if steps.fits:
            out[...] = seen[:, ::-1] if flip else seen
            return out
        if self._cv2 is None:
            self._resize_exactly(pixels, steps.box, out)
        elif steps.exactly:
            self._resize_exactly(np.ascontiguousarray(seen), Box(0, 0, *seen.shape[:2]), out)
        else:
            self._resize(_flat(seen), _flat(out), steps)
        return self._flipped(out, flip=flip) if flip else out

    def _flipped(self, pixels: Picture, *, flip: bool) -> Picture:
        if flip and self._cv2 is not None:
            flat = _flat(pixels)
            self._cv2.flip(flat, 1, dst=flat)
        elif flip:
            pixels[...] = pixels[:, ::-1].copy()
        return pixels

    def _resize_exactly(self, pixels: Picture, box: Box, out: Picture) -> None:
        """With Pillow, which reads a little beyond the box, and weighs colours by their alpha."""
        image = self._pillow.fromarray(_flat(pixels))
        edges = (box.left, box.top, box.left + box.width, box.top + box.height)
        bilinear = self._pillow.Resampling.BILINEAR
        size = (out.shape[1], out.shape[0])
        out[...] = np.asarray(image.resize(size, bilinear, box=edges)).reshape(out.shape)

    def _resize(self, seen: Picture, out: Picture, steps: Steps) -> None:
        cv2 = self._cv2
        assert cv2 is not None, "exact readers do not come here"
        if steps.taps is not None:
            by, bx = steps.sigmas
            room = self._room("smoothed", seen.size)
            into = None if room is None else room[: seen.size].reshape(seen.shape)
            seen = cv2.GaussianBlur(seen, steps.taps, bx, dst=into, sigmaY=by)
        how = cv2.INTER_AREA if steps.areas else cv2.INTER_LINEAR
        made = cv2.resize(seen, (out.shape[1], out.shape[0]), dst=out, interpolation=how)
        if made is not out and not np.may_share_memory(made, out):
            out[...] = made

    def _room(self, name: str, size: int) -> Picture | None:
        """Memory of this thread that is used for one picture after another; None if too large."""
        if size > _KEPT_BYTES:
            return None
        room: Picture | None = getattr(self._scratch, name, None)
        if room is None or room.size < size:
            room = np.empty(size, np.uint8)
            setattr(self._scratch, name, room)
        return room


def _needed(module: str, otherwise: str = "") -> Any:
    """An optional library. Raises UnsupportedError where it is not installed."""
    missing = f"decoding images needs {module}, which cannot be loaded: "
    return import_library(module, f"{missing}pip install 'tensorrepo[images]'{otherwise}")


def _strictly(decode: Callable[..., T], data: memoryview, **how: Any) -> T:
    """What simplejpeg makes of a JPEG, or of a tidied copy where it warns of the header."""
    try:
        return decode(data, **how)
    except ValueError as error:
        if not any(word in str(error) for word in HARMLESS):
            raise
    return decode(tidied(data), **how)


def _orientation_of(image: Any) -> int:
    """The same of an image that Pillow opened."""
    try:
        orientation = image.getexif().get(ORIENTATION, 1)
    except Exception:  # noqa: BLE001  damaged EXIF is no damaged picture, and raises anything
        return 1
    return orientation if orientation in range(1, 9) else 1


def turned(pixels: Picture, orientation: int) -> Picture:
    """`pixels` as they are shown, contiguous; orientation is EXIF's, 1 to 8."""
    if orientation == 1:
        return pixels
    if orientation > 4:
        pixels = pixels.transpose(1, 0, 2)
    up_down, left_right = orientation in {3, 4, 7, 8}, orientation in {2, 3, 6, 7}
    return np.ascontiguousarray(pixels[:: -1 if up_down else 1, :: -1 if left_right else 1])


class Steps(NamedTuple):
    """What is done with a picture of some height and width so that a box of it has another size.

    Attributes:
        pixels: number of those that are decoded.
        least: height and width that the decoder is asked for, 0 for all that there is.
        direct: whether all that is decoded is what is wanted, and may be decoded to its place.
        box: what is taken of the pixels that were decoded and turned.
        cut: the same as an index.
        fits: whether the box has the size that it needs.
        exactly: whether Pillow resizes where OpenCV could, which it cannot in both directions.
        areas: whether OpenCV takes the means of areas; else it interpolates.
        taps: width and height of the filter before that; None without one.
        sigmas: those of the filter, down and across.
    """

    pixels: int
    least: tuple[int, int]
    direct: bool
    box: Box
    cut: tuple[slice, slice]
    fits: bool
    exactly: bool
    areas: bool
    taps: tuple[int, int] | None
    sigmas: tuple[float, float]


@lru_cache(_KEPT)
def steps_of(
    height: int,
    width: int,
    turn: int,
    box: Box,
    out: tuple[int, ...] | None,
    most_shrunk: int,
) -> Steps:
    """Steps of a picture that is stored in this height and width.

    Args:
        height: height as stored.
        width: width as stored.
        turn: EXIF's orientation, 1 to 8.
        box: box of the picture as it is shown.
        out: height and width of what the box becomes, and more; None leaves it its size.
        most_shrunk: most by which the decoder may shrink the picture.
    """
    size = box[2:] if out is None else out[:2]
    shrink = _shrink(box, size, most_shrunk)
    decoded = -(-height // shrink), -(-width // shrink)
    if shrink > 1:
        shown = (width, height) if turn > 4 else (height, width)
        box = scaled(box, shown, decoded[::-1] if turn > 4 else decoded)
    top, left, high, wide = box
    everything = turn == 1 and box == (0, 0, *decoded)
    down, across = high / size[0], wide / size[1]
    reduced, magnified = max(down, across) > _MOST_REDUCED, min(down, across) < 1
    by, bx = (0.0, 0.0) if reduced else (_spread(down), _spread(across))
    return Steps(
        pixels=decoded[0] * decoded[1],
        least=decoded if shrink > 1 else (0, 0),
        direct=out is not None and everything and decoded == size,
        box=box,
        cut=(slice(top, top + high), slice(left, left + wide)),
        fits=(high, wide) == size,
        exactly=reduced and magnified,
        areas=reduced,
        taps=(3 if bx else 1, 3 if by else 1) if by or bx else None,
        sigmas=(by or 1e-3, bx or 1e-3),
    )


def _shrink(box: Box, size: tuple[int, ...], most: int) -> int:
    """How much smaller a JPEG may be decoded so that the box is no smaller than its place."""
    rows, columns = box.height / size[0], box.width / size[1]
    shrink = 1
    while shrink < most and min(rows, columns) >= 2 * shrink:
        shrink *= 2
    return shrink


def _spread(down: float) -> float:
    """Sigma of the three taps that make linear interpolation as wide as a triangle of that size.

    A triangle that reaches `down` pixels to both sides has a variance of down^2 / 6; interpolating
    itself brings 1 / 6. Outer taps of weight a have a variance of 2a, and Gaussian ones of such a
    weight have the sigma returned. 0 where there is nothing to do.
    """
    weight = min((down * down - 1) / 12, 0.25)
    if weight < 1 / 256:  # nothing in 8 bits
        return 0.0
    return math.sqrt(0.5 / math.log((1 - 2 * weight) / weight))


def _flat(pixels: Picture) -> Picture:
    """As OpenCV and Pillow want grey: without a last dimension of 1."""
    return pixels[..., 0] if pixels.shape[-1] == 1 else pixels
