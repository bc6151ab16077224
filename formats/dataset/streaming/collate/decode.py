"""Image columns of a batch as arrays, decoded by several threads.

`Decode` says what is wanted. A `Decoder` cuts the pictures of a batch into portions that threads
decode one by one, straight into one array of a pool; the thread that is done last finishes the
batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from math import prod
from operator import index
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common import arguments
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.common.pool import Pool
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.formats.dataset.schema.types import Bytes, Image
from tensorrepo.formats.dataset.schema.values import BinaryValues, valid_rows
from tensorrepo.formats.dataset.streaming import checks
from tensorrepo.formats.dataset.streaming.collate import pixels as crops
from tensorrepo.formats.dataset.streaming.collate.batch import Batch
from tensorrepo.formats.dataset.streaming.collate.error_policy import ErrorPolicy
from tensorrepo.formats.dataset.streaming.collate.pixels import CHANNELS, PictureReader, Target
from tensorrepo.formats.images.progressive import BAND_REDUCTIONS, BANDS
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError

Picture = NDArray[np.uint8]

ImageFit = Literal["crop", "stretch", "pad", "random"]
ImageMode = Literal["RGB", "L", "RGBA"]
PictureLayout = Literal["HWC", "CHW"]

MAX_PIXELS = 1 << 26
_PORTION = 16  # pictures that a thread decodes before it looks for more
_FEWEST_BLOCKS = 4  # arrays of a whole batch that a pool keeps, whatever is made ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """How encoded images become arrays of uint8.

    Attributes:
        size: height and width of what is handed out, one number for squares; None keeps the size
            of each picture, and hands out a list where those of a batch differ.
        fit: treatment of pictures of another shape: "crop" takes the largest box in the
            middle that has the shape of `size`, "stretch" distorts, "pad" puts the whole picture
            in the middle of zeros, "random" takes a random box of `area` and `ratio`.
        flip: mirror every other picture, left to right.
        mode: "RGB", "L" (grey) or "RGBA". Without alpha in the mode it is dropped; without it in
            the picture it is 255.
        layout: "HWC" ``(rows, height, width, channels)``, or "CHW" ``(rows, channels, height,
            width)``.
        exact: decode at full size and resize with Pillow's "bilinear", to the bit. Otherwise JPEGs
            that shrink to less than half are decoded at a half, a quarter or an eighth, and
            OpenCV resizes: several times faster, antialiased, a few shades off.
        orient: turn pictures as their EXIF orientation says, as viewers do.
        area: least and most part of the picture that a random box covers.
        ratio: least and most width per height of a random box.
        max_pixels: a larger picture is an error, found before it is decoded.
        scans: how much is read of pictures in a column that is `progressive`: "all" of their scans;
            "auto" those that the size needs, so that pixels are a few shades off at most places;
            or the first 1 to 4 bands. Pictures that are not stored so are read as they are.

    Random boxes and flips follow from seed, epoch and row alone.
    """

    size: int | tuple[int, int] | None = None
    fit: ImageFit = "crop"
    flip: bool = False
    mode: ImageMode = "RGB"
    layout: PictureLayout = "HWC"
    exact: bool = False
    orient: bool = True
    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    max_pixels: int = MAX_PIXELS
    scans: Literal["all", "auto"] | int = "all"

    def __post_init__(self) -> None:
        for name, kind in (("fit", ImageFit), ("mode", ImageMode), ("layout", PictureLayout)):
            checks.one_of(kind)(f"Decode: {name}", getattr(self, name))
        if self.size is None and self.fit != "crop":
            raise InvalidInputError(
                f"Decode: fit={self.fit!r} needs a size, such as Decode(size=224, "
                f"fit={self.fit!r}): without one every picture keeps its own"
            )
        shape = self.shape
        if shape is not None and min(shape) < 1:
            raise InvalidInputError(f"Decode: size is at least 1, got {self.size}")
        checks.range_of("Decode: area", self.area, 1)
        checks.range_of("Decode: ratio", self.ratio)
        for name in ("flip", "exact", "orient"):
            arguments.flag(f"Decode: {name}", getattr(self, name))
        arguments.whole("Decode: max_pixels", self.max_pixels, 1)
        if self.scans not in ("all", "auto", *range(1, BANDS + 1)) or isinstance(self.scans, bool):
            raise InvalidInputError(
                f"Decode: scans is 'all', 'auto' or 1 to {BANDS}, got {self.scans!r:.80}"
            )
        if self.exact and self.scans != "all":
            raise InvalidInputError(
                f"Decode: exact=True is to the bit, scans={self.scans!r} leaves bits out: give one"
            )

    @property
    def shape(self) -> tuple[int, int] | None:
        """(height, width)."""
        if self.size is None:
            return None
        try:
            sides = (self.size, self.size) if hasattr(self.size, "__index__") else self.size
            height, width = map(index, sides)  # type: ignore[arg-type]  # whatever people gave
        except (TypeError, ValueError):
            raise InvalidInputError(
                f"Decode: size is one whole number or two, got {self.size!r:.80}"
            ) from None
        return height, width

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """Of what is handed out for a row; None where pictures keep their size."""
        if self.shape is None:
            return None
        channels = CHANNELS[self.mode]
        return (channels, *self.shape) if self.layout == "CHW" else (*self.shape, channels)

    def last_band(self, least_sides: Ints) -> Ints:
        """The last band, counted from 0, to be read of pictures whose smallest sides are these.

        Both are int64 ``(n,)``. "auto" goes by how many times smaller a picture becomes than the
        least part of it that may be shown: docs/spec/dataset.md, section "Scans".
        """
        shape = self.shape
        if isinstance(self.scans, int):
            return np.full(len(least_sides), self.scans - 1, np.int64)
        if self.scans == "all" or shape is None:
            return np.full(len(least_sides), BANDS - 1, np.int64)
        part = 1.0
        if self.fit == "random":
            part = math.sqrt(self.area[0] / max(self.ratio[1], 1 / self.ratio[0], 1.0))
        smaller = least_sides * part / max(shape)
        return np.searchsorted([-each for each in BAND_REDUCTIONS], -smaller).astype(np.int64)


Decodes = bool | Decode | Mapping[str, Decode | bool] | None


def chosen_decodes(decode: Decodes, schema: Schema, names: Sequence[str]) -> dict[str, Decode]:
    """What is decoded, by column.

    Args:
        decode: True and `Decode` mean all image columns among `names`; a mapping names columns of
            images or bytes, with True for pictures of their own size; None and False mean none.
        schema: schema of the dataset.
        names: names of the columns that are streamed.

    Raises:
        InvalidInputError: no such column is streamed, or it cannot hold images.
    """
    if decode is None or decode is False:
        return {}
    if decode is True or isinstance(decode, Decode):
        how = Decode() if decode is True else decode
        decodes = {name: how for name in names if isinstance(schema.column(name).type, Image)}
        if not decodes:
            raise InvalidInputError(
                f"decode: none of the columns {list(names)} is of type Image. Name a column of "
                "bytes that holds images: decode={'name': Decode(...)}"
            )
        return decodes
    if not isinstance(decode, Mapping):
        raise arguments.wrong(
            "decode", "True, a Decode(...), or a mapping {'name': Decode(...)}", decode
        )
    decodes = {name: Decode() if how is True else how for name, how in decode.items() if how}
    for name, how in decodes.items():
        if name not in names:
            raise InvalidInputError(f"decode: column {name!r} is not streamed, only {list(names)}")
        if not isinstance(schema.column(name).type, Image | Bytes):
            raise InvalidInputError(f"decode: column {name!r} holds neither images nor bytes")
        if not isinstance(how, Decode):
            raise arguments.wrong(f"decode[{name!r}]", "True or a Decode(...)", how)
    return decodes


class Decoder:
    """Decodes the picture columns of batches. Thread-safe."""

    def __init__(
        self,
        decodes: Mapping[str, Decode],
        hand_over: Callable[[Picture], Any],
        *,
        rows: int,
        prefetch: int,
    ) -> None:
        """Prepare for batches of up to `rows` rows, `prefetch` of them made ahead.

        `hand_over` makes of arrays what is handed out.

        Raises:
            UnsupportedError: a library is missing.
        """
        self._columns = {
            name: (how, PictureReader(how.mode, exact=how.exact, orient=how.orient,
                               max_pixels=how.max_pixels))
            for name, how in decodes.items()
        }  # fmt: skip
        batch_bytes = sum(rows * prod(how.row_shape or ()) for how in decodes.values())
        self._hand_over = hand_over
        self._pool = Pool((_FEWEST_BLOCKS + prefetch) * batch_bytes + (1 << 20))
        self.portions = max(1, len(decodes)) * -(-rows // _PORTION)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._columns)

    def begin(
        self,
        batch: Batch,
        key: int,
        bad: ErrorPolicy,
        finish: Callable[[Batch], Any],
        clock: Callable[[], float],
        spent: Callable[[float], None],
    ) -> list[Callable[[], list[Any]]]:
        """What is to be done for a batch, by several threads: calls that give what is finished.

        `key` is that of the epoch for images. The call that is done last gives
        ``[finish(batch)]``, the others nothing. In `batch` the columns are `BinaryValues`;
        finished, they are what `Decode` says, as `hand_over` gives it. `spent` is told how long
        decoding took, by `clock`.
        """
        chances = None
        if any(how.fit == "random" or how.flip for how, _ in self._columns.values()):
            chances = crops.chances(key, batch.draws).tolist()
        jobs = [
            _Job(name, how, reader, batch[name], chances, self._pool)
            for name, (how, reader) in self._columns.items()
        ]
        return _Gathering(batch, jobs, bad, finish, self._hand_over, clock, spent).calls()


class _Job:
    """One column of one batch."""

    def __init__(
        self,
        name: str,
        how: Decode,
        reader: PictureReader,
        encoded: BinaryValues,
        chances: list[list[float]] | None,
        pool: Pool,
    ) -> None:
        self.name, self.how, self.rows = name, how, encoded.rows
        self.failures: dict[int, CorruptError] = {}
        self._reader, self._chances = reader, chances
        self._data = encoded.data.data
        self._bounds = encoded.offsets.tolist()
        self._valid = None if encoded.valid is None else valid_rows(encoded).tolist()
        self._out: Picture | None = None
        self._found: list[Picture | None] = []
        if how.row_shape is None:
            self._found = [None] * encoded.rows
        else:
            self._out = pool.array((encoded.rows, *how.row_shape), np.dtype(np.uint8))

    def decode(self, start: int, stop: int) -> None:
        """Decode these rows; failures are noted."""
        for at in range(start, stop):
            if self._valid is not None and not self._valid[at]:
                if self._out is not None:
                    self._out[at] = 0
                continue
            try:
                self.put(at, self._data[self._bounds[at] : self._bounds[at + 1]])
            except CorruptError as error:
                self.failures[at] = error  # no two threads have the same row

    def put(self, at: int, data: memoryview) -> None:
        """Decode `data` as row `at`."""
        if self._out is None:
            picture = self._reader.read(data, lambda high, wide: self._target(at, high, wide, None))
            if self.how.layout == "CHW":
                picture = np.ascontiguousarray(picture.transpose(2, 0, 1))
            self._found[at] = picture
            return
        target = self._out[at]
        if self.how.layout == "HWC":
            self._reader.read(data, lambda high, wide: self._target(at, high, wide, target))
            return
        assert self.how.shape is not None, "there would be no array otherwise"
        upright = np.empty((*self.how.shape, CHANNELS[self.how.mode]), np.uint8)
        self._reader.read(data, lambda high, wide: self._target(at, high, wide, upright))
        target[...] = upright.transpose(2, 0, 1)

    def replace(self, at: int, given: Any) -> None:
        """Use what the caller gave in place of row `at`: encoded bytes, or pixels.

        Raises:
            InvalidInputError: pixels of another shape or type.
        """
        if isinstance(given, bytes | bytearray | memoryview):
            self.put(at, memoryview(given))
            return
        pixels = np.asarray(given)
        wanted = self.how.row_shape
        fits = pixels.ndim == 3 if wanted is None else pixels.shape == wanted
        if pixels.dtype != np.uint8 or not fits:
            raise InvalidInputError(
                f"on_error gave {pixels.dtype} {pixels.shape} for a picture of column "
                f"{self.name!r}, expected uint8 {wanted or 'with three dimensions'}, encoded "
                "bytes, or None to leave the row out"
            )
        if self._out is None:
            self._found[at] = pixels
        else:
            self._out[at] = pixels

    def result(self) -> Picture | list[Picture | None]:
        """All rows: an array, or a list where pictures keep their sizes and these differ."""
        if self._out is not None:
            return self._out
        shapes = {None if each is None else each.shape for each in self._found}
        if len(shapes) == 1 and None not in shapes:
            return np.stack([each for each in self._found if each is not None])
        return self._found

    def _target(self, at: int, height: int, width: int, there: Picture | None) -> Target:
        how, numbers = self.how, None if self._chances is None else self._chances[at]
        flip = how.flip and numbers is not None and numbers[0] < 0.5
        if how.fit == "random":
            assert numbers is not None, "they are drawn where they are needed"
            return Target(crops.drawn(height, width, numbers, how.area, how.ratio), there, flip)
        if there is None or how.fit == "stretch":
            return Target(crops.Box(0, 0, height, width), there, flip)
        size = there.shape[0], there.shape[1]
        if how.fit == "crop":
            return Target(crops.middle(height, width, size), there, flip)
        high, wide = crops.inside(height, width, size)
        there[...] = 0
        top, left = (size[0] - high) // 2, (size[1] - wide) // 2
        return Target(
            crops.Box(0, 0, height, width), there[top : top + high, left : left + wide], flip
        )


@dataclass(slots=True, eq=False)
class _Gathering:
    """Portions of one batch; knows when the last one is done."""

    batch: Batch
    jobs: list[_Job]
    bad: ErrorPolicy
    finish: Callable[[Batch], Any]
    hand_over: Callable[[Picture], Any]
    clock: Callable[[], float]
    spent: Callable[[float], None]
    lock: Lock = field(default_factory=Lock)
    left: int = 0

    def calls(self) -> list[Callable[[], list[Any]]]:
        portions = [
            (job, start, min(start + _PORTION, job.rows))
            for job in self.jobs
            for start in range(0, job.rows, _PORTION)
        ]
        if not portions:
            return [lambda: [self.finish(self._finished())]]
        self.left = len(portions)
        return [partial(self._call, *portion) for portion in portions]

    def _call(self, job: _Job, start: int, stop: int) -> list[Any]:
        began = self.clock()
        job.decode(start, stop)
        self.spent(self.clock() - began)
        with self.lock:
            self.left -= 1
            if self.left:
                return []
        return [self.finish(self._finished())]

    def _finished(self) -> Batch:
        """The batch with pixels, and without rows that are left out."""
        batch = self.batch
        left_out: set[int] = set()
        for job in self.jobs:
            for at, error in sorted(job.failures.items()):
                if at in left_out:
                    continue
                substitute = self.bad.replacement(
                    error, batch, at, cause="image", column=job.name, use=partial(job.replace, at)
                )
                if substitute is None:
                    left_out.add(at)
            pictures = job.result()
            batch[job.name] = (
                [None if each is None else self.hand_over(each) for each in pictures]
                if isinstance(pictures, list)
                else self.hand_over(pictures)
            )
        if left_out:
            self.bad.check_left(len(batch.rows) - len(left_out), len(batch.rows), batch.position)
            batch = batch.part(np.setdiff1d(np.arange(len(batch.rows)), sorted(left_out)))
        return batch
