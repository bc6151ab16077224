"""Bulk reads of image files into one buffer, in C or Python.

`NATIVE` (files.c beside this) has no Python between one file and the next, and looks at the frames
of usual JPEGs on the way: an import takes 0.76 of the time (benchmarks/results/dataset.md).
`PYTHON` works everywhere; `BEST` is the first that there is. Bytes of a file are those that the
system gave, however it changes meanwhile; sizes that it promises are never believed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.images.headers import HEAD_BYTES, codec_of
from tensorrepo.formats.native.extensions import kernels
from tensorrepo.repo.deferred_dataclass import dataclass

CODECS = ("", "png", "jpeg", "gif", "bmp", "tiff", "webp")
RECORD = np.dtype(
    [
        ("end", "=i8"),  # look: bytes of the file; read: where it ends in the buffer
        ("height", "=u4"),  # of a JPEG such as encoders write
        ("width", "=u4"),
        ("error", "=i4"),
        ("codec", "u1"),  # place in CODECS; 0: no image
        ("components", "u1"),  # 0: height and width are not known
    ],
    align=True,
)
assert RECORD.itemsize == 24, "files.c knows records of 24 bytes"

_NUMBERS = {codec: number for number, codec in enumerate(CODECS)}
_FIRST_BYTES = 64 << 10  # most images, and not much of what is none
_MOST_BYTES = 1 << 30  # that the system is asked for at once
_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True, eq=False)
class FileBatch:
    """What was found out about the first files of some.

    Attributes:
        records: array of RECORD, one for each of these files.
        error: the number by which the system refused the file behind them, if it did.
    """

    records: NDArray[Any]
    error: int

    def problem(self, paths: Sequence[str]) -> OSError:
        """The same as the error of that file; `paths` are those of all."""
        return OSError(self.error, os.strerror(self.error), paths[len(self.records)])


class FileReader:
    """Takes in files one behind the other, by calls of the system from Python. Thread-safe."""

    name = "python"

    def look(self, paths: Sequence[str]) -> FileBatch:
        """The format that each file begins as, and how large it is.

        Files behind one that the system refuses are not looked into.
        """
        records = np.zeros(len(paths), RECORD)
        for at, path in enumerate(paths):
            try:
                codec, size = _look_into(path)
            except OSError as problem:
                records[at]["error"] = problem.errno
                return _first_files(records, at)
            records[at] = size, 0, 0, 0, _NUMBERS[codec or ""], 0
        return _first_files(records, len(paths))

    def read(self, paths: Sequence[str], out: NDArray[np.uint8]) -> FileBatch:
        """The bytes of image files one behind the other in `out`, as far as they fit.

        Of what does not begin as an image nothing is kept. Of an image nothing is checked, unless
        its components are told, which C does alone: a JPEG that is whole by the rules of `examine`,
        with pixels.

        Args:
            paths: names of the files.
            out: uint8, contiguous. What it holds behind the last file means nothing.

        Returns:
            Records of all files, or of those before one that does not fit or is refused.
        """
        records = np.zeros(len(paths), RECORD)
        end = 0
        for at, path in enumerate(paths):
            try:
                data = _read_image(path, len(out) - end)
            except OSError as problem:
                records[at]["error"] = problem.errno
                return _first_files(records, at)
            if data is None:
                return _first_files(records, at)
            start, end = end, end + len(data)
            # No array operation: for a small image it would take longer than the copy.
            out.data[start:end] = data
            records[at] = end, 0, 0, 0, _NUMBERS[codec_of(data[:HEAD_BYTES]) or ""], 0
        return _first_files(records, len(paths))


class NativeFiles(FileReader):
    """In C, letting go of the interpreter lock once for all the files."""

    name = "native"

    def look(self, paths: Sequence[str]) -> FileBatch:
        records = np.empty(len(paths), RECORD)
        return _first_files(records, kernels.look_files(_joined(paths), records))

    def read(self, paths: Sequence[str], out: NDArray[np.uint8]) -> FileBatch:
        records = np.empty(len(paths), RECORD)
        return _first_files(records, kernels.read_files(_joined(paths), records, out))


PYTHON = FileReader()
NATIVE: FileReader | None = None if kernels is None else NativeFiles()
BEST: FileReader = NATIVE or PYTHON


def _joined(paths: Sequence[str]) -> bytes:
    return os.fsencode("\0".join([*paths, ""]))


def _first_files(records: NDArray[Any], done: int) -> FileBatch:
    return FileBatch(records[:done], int(records["error"][done]) if done < len(records) else 0)


def _look_into(path: str) -> tuple[str | None, int]:
    # One `open` and no `stat`: in a folder of small images, finding a file by its name costs more
    # than reading it.
    file = os.open(path, _READ)
    try:
        return codec_of(os.read(file, HEAD_BYTES)), os.lseek(file, 0, os.SEEK_END)
    finally:
        os.close(file)


def _read_image(path: str, room: int) -> bytes | None:
    """The bytes of an image, none of what is no image; None when it does not fit."""
    if room < HEAD_BYTES:
        return None
    file = os.open(path, _READ)
    try:
        data = os.read(file, min(room, _FIRST_BYTES))
        while len(data) < HEAD_BYTES and (more := os.read(file, room - len(data))):
            data += more
        if codec_of(data[:HEAD_BYTES]) is None:
            return b""
        if len(data) == _FIRST_BYTES and os.fstat(file).st_size > room:
            return None
        parts, size = [data], len(data)
        # One byte more than fits tells that it does not.
        while more := os.read(file, min(room + 1 - size, _MOST_BYTES)):
            parts.append(more)
            size += len(more)
            if size > room:
                return None
        return b"".join(parts)
    finally:
        os.close(file)
