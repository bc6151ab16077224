"""Reads image files ahead: threads take in the next ones while rows before them are stored.

A portion of files is read with the interpreter's lock let go of once, into the memory that becomes
a batch. A file is opened once and never asked for its size: looking it up by name would take as
long as reading it. How many files make a portion is estimated from what their folder held at the
survey; where that was wrong, a portion ends early and its rest becomes the next one.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tensorrepo.formats.damage import refusals
from tensorrepo.formats.dataset.pages.pool import Pool
from tensorrepo.formats.exchange.base import BATCH_BYTES
from tensorrepo.formats.exchange.imagery.imagewalk import Place, check_whole
from tensorrepo.formats.imagebytes import JPEG_MODES, ImageHeader
from tensorrepo.formats.native.files import BEST, CODECS
from tensorrepo.repo.errors import Error

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from tensorrepo.formats.native.files import FileReader

READERS = 2
PORTION_FILES, PORTION_BYTES = 4096, BATCH_BYTES  # so many files, or bytes, are read by one thread
AHEAD = 4  # portions
# Files are chosen to take less than there is room: sizes differ, and a rest is a portion too.
_CHOSEN_BYTES = PORTION_BYTES * 7 // 8
_TAKEN = 4  # portions that the taker holds on to: rows being stored, and those around them
_JPEG = CODECS.index("jpeg")


class WantedFile(NamedTuple):
    """A file to be read if it is an image, in one of the formats of its place."""

    relative: str
    path: str
    place: Place


@dataclass(frozen=True, slots=True)
class Portion:
    """Images that were read together.

    Attributes:
        files: of the images; what was no image is left out.
        data: uint8, the images one behind the other.
        ends: where each of them ends in `data`.
        headers: what each says of itself.
        rest: files that are still to be read, behind these.
        problem: why the first of the rest cannot be read; nothing is, then.
    """

    files: Sequence[WantedFile]
    data: NDArray[np.uint8]
    ends: Sequence[int]
    headers: Sequence[ImageHeader]
    rest: Sequence[WantedFile] = ()
    problem: Error | None = None


def read_ahead(
    runs: Iterable[Sequence[WantedFile]], reader: FileReader = BEST
) -> Generator[Portion]:
    """The images among the files, whole and in order.

    The files of one run have one place. In memory are no more than `AHEAD` portions, each of
    `PORTION_BYTES` or of one larger file.

    Raises:
        InvalidInputError: an image is cut short, or in a format that it was not in before. The
            images before it have come.
    """
    threads = ThreadPoolExecutor(READERS, "read-image")
    reading: deque[Future[Portion]] = deque()
    pool = Pool((AHEAD + READERS + _TAKEN) * PORTION_BYTES)

    def first() -> Iterator[Portion]:
        portion = reading.popleft().result()
        if portion.files:
            yield portion
        if portion.problem is not None:
            raise portion.problem
        if portion.rest:
            reading.appendleft(threads.submit(_read_portion, portion.rest, pool, reader))

    try:
        for wanted in _portions(runs):
            reading.append(threads.submit(_read_portion, wanted, pool, reader))
            while len(reading) >= AHEAD:
                yield from first()
        while reading:
            yield from first()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def _portions(runs: Iterable[Sequence[WantedFile]]) -> Iterator[list[WantedFile]]:
    portion: list[WantedFile] = []
    room = _CHOSEN_BYTES
    for run in runs:
        at = 0
        while at < len(run):
            each = _about_bytes(run[at].place)
            fit = min(len(run) - at, PORTION_FILES - len(portion), room // each)
            if portion and not fit:
                yield portion
                portion, room = [], _CHOSEN_BYTES
                continue
            fit = max(1, fit)
            portion += run[at : at + fit]
            at, room = at + fit, room - fit * each
    if portion:
        yield portion


def _about_bytes(place: Place) -> int:
    return max(1, place.bytes // max(1, place.rows))


def _read_portion(files: Sequence[WantedFile], pool: Pool, reader: FileReader) -> Portion:
    block = pool.array((PORTION_BYTES,), np.dtype(np.uint8))
    paths = [file.path for file in files]
    found = reader.read(paths, block)
    images: list[WantedFile] = []
    ends: list[int] = []
    headers: list[ImageHeader] = []
    start = 0
    problem: Error | None = None
    done = len(found.records)
    try:
        facts = found.records.tolist()
        for file, (end, height, width, _, codec, components) in zip(files, facts, strict=False):
            if not codec:
                continue
            if components and codec == _JPEG and "jpeg" in file.place.codecs:
                header = ImageHeader("jpeg", height, width, JPEG_MODES.get(components))
            else:
                header = check_whole(file.path, block[start:end].tobytes(), file.place.codecs)
            images.append(file)
            ends.append(end)
            headers.append(header)
            start = end
        if found.error:
            with refusals(files[done].path, "image"):
                raise found.problem(paths)
        if not done:
            return _read_alone(files)
    except Error as error:
        problem = error
    return Portion(images, block[:start], ends, headers, files[done:], problem)


def _read_alone(files: Sequence[WantedFile]) -> Portion:
    """The first file, which does not fit into the memory of a portion."""
    file = files[0]
    with refusals(file.path, "image"), open(file.path, "rb", buffering=0) as opened:
        data = opened.readall()
    header = check_whole(file.path, data, file.place.codecs)
    return Portion([file], np.frombuffer(data, np.uint8), [len(data)], [header], files[1:])
