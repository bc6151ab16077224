"""Reads image files ahead: threads take in the next ones while rows before them are stored.

A file is opened once and never asked for its size: looking it up by name would take as long as
reading it. How many files make a portion is estimated from what their folder held at the survey;
where that was wrong, a portion ends early and its rest becomes the next one.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tensorrepo.formats.dataset.pages.pool import Pool
from tensorrepo.formats.exchange.base import refusals
from tensorrepo.formats.exchange.imagery.imagebytes import HEAD_BYTES, Examiner, codec_of
from tensorrepo.formats.exchange.imagery.imagewalk import Place, check_whole

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from tensorrepo.formats.imagebytes import ImageHeader

READERS = 2
PORTION_FILES, PORTION_BYTES = 64, 1 << 20  # so many files, or bytes, are read by one thread
AHEAD = 8  # portions: about one batch
_TAKEN = 16  # portions that the taker holds on to until they are a batch
_BLOCK_BYTES = PORTION_BYTES * 5 // 4  # a portion and a usual image
_LEAST_READ_BYTES = 4 << 10


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
    """

    files: Sequence[WantedFile]
    data: NDArray[np.uint8]
    ends: Sequence[int]
    headers: Sequence[ImageHeader]
    rest: Sequence[WantedFile]


def read_ahead(runs: Iterable[Sequence[WantedFile]]) -> Generator[Portion]:
    """The images among the files, whole and in order.

    The files of one run have one place. In memory are no more than `AHEAD` portions, each of a MiB
    and a file.

    Raises:
        InvalidInputError: an image is cut short, or in a format that it was not in before.
    """
    threads = ThreadPoolExecutor(READERS, "read-image")
    reading: deque[Future[Portion]] = deque()
    pool = Pool((AHEAD + READERS + _TAKEN) * _BLOCK_BYTES)

    def first() -> Portion:
        portion = reading.popleft().result()
        if portion.rest:
            reading.appendleft(threads.submit(_read_portion, portion.rest, pool))
        return portion

    try:
        for wanted in _portions(runs):
            reading.append(threads.submit(_read_portion, wanted, pool))
            while len(reading) >= AHEAD:
                yield first()
        while reading:
            yield first()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def _portions(runs: Iterable[Sequence[WantedFile]]) -> Iterator[list[WantedFile]]:
    portion: list[WantedFile] = []
    room = PORTION_BYTES
    for run in runs:
        at = 0
        while at < len(run):
            each = _about_bytes(run[at].place)
            fit = min(PORTION_FILES - len(portion), -(-room // each))
            portion += run[at : at + fit]
            at, room = at + fit, room - fit * each
            if room <= 0 or len(portion) >= PORTION_FILES:
                yield portion
                portion, room = [], PORTION_BYTES
    if portion:
        yield portion


def _about_bytes(place: Place) -> int:
    return max(1, place.bytes // max(1, place.rows))


def _read_portion(files: Sequence[WantedFile], pool: Pool) -> Portion:
    block = pool.array((_BLOCK_BYTES,), np.dtype(np.uint8))
    read: list[WantedFile] = []
    ends: list[int] = []
    headers: list[ImageHeader] = []
    look = Examiner().examine
    end = tried = 0
    for file in files:
        tried += 1
        data = _read_image(file)
        if data is None:
            continue
        headers.append(check_whole(file.path, data, file.place.codecs, look))
        start, end = end, end + len(data)
        if end > len(block):
            block = np.concatenate([block[:start], np.empty(len(data), np.uint8)])
        # No array operation: for a small image it would take longer than the copy.
        block.data[start:end] = data
        read.append(file)
        ends.append(end)
        if end >= PORTION_BYTES:
            break
    return Portion(read, block[:end], ends, headers, files[tried:])


def _read_image(wanted: WantedFile) -> bytes | None:
    """The bytes of a file; None when it is no image, which is told by its first bytes."""
    try:
        file = os.open(wanted.path, os.O_RDONLY)
        try:
            # Most files are read at once, and there is nothing behind that.
            usual = min(max(2 * _about_bytes(wanted.place), _LEAST_READ_BYTES), PORTION_BYTES)
            data = os.read(file, usual)
            if codec_of(data[:HEAD_BYTES]) is None:
                return None
            more = os.read(file, _LEAST_READ_BYTES)
            return b"".join([data, more, *_rest(file)]) if more else data
        finally:
            os.close(file)
    except OSError:
        with refusals(wanted.path, "image"):
            raise


def _rest(file: int) -> Iterator[bytes]:
    while part := os.read(file, PORTION_BYTES):
        yield part
