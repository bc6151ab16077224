"""Reads image files ahead: threads take in the next ones while rows before them are stored."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tensorrepo.formats.exchange.base import refusals
from tensorrepo.formats.exchange.imagery.imagebytes import HEAD_BYTES, codec_of
from tensorrepo.formats.exchange.imagery.imagewalk import check_whole

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Iterator
    from concurrent.futures import Future

READERS = 2
PORTION_FILES, PORTION_BYTES = 64, 1 << 20  # so many files, or bytes, are read by one thread
AHEAD = 8  # portions: about one batch


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file to be read if it is an image, of `bytes`, in one of these formats."""

    relative: str
    path: str
    bytes: int
    codecs: Collection[str]


@dataclass(slots=True)
class _Portion:
    files: list[WantedFile] = field(default_factory=list)
    bytes: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.files) >= PORTION_FILES or self.bytes >= PORTION_BYTES


def read_ahead(files: Iterable[WantedFile]) -> Generator[tuple[WantedFile, bytes]]:
    """The images among `files`, whole and in order.

    In memory are no more than `AHEAD` portions, each of a MiB and a file.

    Raises:
        InvalidInputError: an image is cut short, or in a format that it was not in before.
    """
    threads = ThreadPoolExecutor(READERS, "read-image")
    reading: deque[Future[list[tuple[WantedFile, bytes]]]] = deque()
    try:
        for portion in _portions(files):
            reading.append(threads.submit(_read_portion, portion))
            if len(reading) >= AHEAD:
                yield from reading.popleft().result()
        while reading:
            yield from reading.popleft().result()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def _portions(files: Iterable[WantedFile]) -> Iterator[list[WantedFile]]:
    portion = _Portion()
    for file in files:
        portion.files.append(file)
        portion.bytes += file.bytes
        if portion.is_full:
            yield portion.files
            portion = _Portion()
    if portion.files:
        yield portion.files


def _read_portion(files: list[WantedFile]) -> list[tuple[WantedFile, bytes]]:
    found = []
    for file in files:
        data = _read_image(file)
        if data is not None:
            check_whole(file.path, data, file.codecs)
            found.append((file, data))
    return found


def _read_image(wanted: WantedFile) -> bytes | None:
    """The bytes of a file; None when it is no image, which is told by its first bytes."""
    with refusals(wanted.path, "image"):
        file = os.open(wanted.path, os.O_RDONLY)
        try:
            # One byte more than there should be, which tells whether that was all.
            data = os.read(file, min(max(wanted.bytes, HEAD_BYTES), PORTION_BYTES) + 1)
            if codec_of(data[:HEAD_BYTES]) is None:
                return None
            return data if len(data) == wanted.bytes else data + _rest(file)
        finally:
            os.close(file)


def _rest(file: int) -> bytes:
    parts = []
    while part := os.read(file, PORTION_BYTES):
        parts.append(part)
    return b"".join(parts)
