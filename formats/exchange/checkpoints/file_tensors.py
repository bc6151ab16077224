"""Tensors read from a file by ranges, and originals given back byte for byte.

A reader says where tensors lie; everything between them stands for itself.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Final

import numpy as np

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.damage import damage, refusals, refused
from tensorrepo.formats.common.tensors import ArrayTensor, TensorType
from tensorrepo.formats.exchange.output import new_file
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.formats.model.write.byte_exact import whole_original
from tensorrepo.formats.model.write.model_source import FileStretch, OriginalFile
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError


class RangeFile:
    """A file open for ranges, from any thread; closed when nobody holds it any more."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what
        with refusals(path, what):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._descriptor)
            self.size = os.fstat(self._descriptor).st_size

    def read(self, start: int, size: int) -> bytes:
        """Bytes ``[start, start + size)``. Raises InvalidInputError: the file ends before."""
        if not 0 <= start <= start + size <= self.size:
            raise damage(
                self.path, f"cut short: no bytes {start} to {start + size} in {self.size} bytes"
            )
        buffer = bytearray(size)
        self.read_into(start, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, start: int, buffer: memoryview) -> None:
        done = 0
        with refusals(self.path, self.what):
            while done < buffer.nbytes:
                read = os.preadv(self._descriptor, [buffer[done:]], start + done)
                if not read:
                    at = start + done
                    raise damage(self.path, f"ends at byte {at} while it is read. Did it shrink?")
                done += read


@dataclass(frozen=True, slots=True, eq=False)
class FileTensor:
    """A tensor whose bytes lie in a file one after the other, from byte `offset`."""

    file: RangeFile
    offset: int
    type: TensorType
    shape: tuple[int, ...]

    @property
    def place(self) -> tuple[Path, int]:
        """See `LiesInFile`."""
        return self.file.path, self.offset

    def read_into(self, start_byte: int, buffer: memoryview) -> None:
        self.file.read_into(self.offset + start_byte, buffer)


@dataclass(frozen=True, slots=True)
class TensorRange:
    """A tensor whose bytes are ``[start, stop)`` of a file, or of what follows its header."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    start: int
    stop: int


class LoadedTensor:
    """A tensor that is read as a whole, since its elements lie in another order or are packed.

    It is in memory from the first read until as many bytes as it has were read. `load` gives all
    of it, and is called again when it is read once more.
    """

    def __init__(
        self, load: Callable[[], ArrayTensor], element: TensorType, shape: tuple[int, ...]
    ) -> None:
        self.type = element
        self.shape = shape
        self._load = load
        self._lock = Lock()
        self._loaded: ArrayTensor | None = None
        self._left = 0

    def read_into(self, start_byte: int, buffer: memoryview) -> None:
        with self._lock:
            if self._loaded is None:
                self._loaded, self._left = self._load(), self.type.bytes_of(self.shape)
            loaded = self._loaded
            self._left -= buffer.nbytes
            if self._left <= 0:
                self._loaded = None
        loaded.read_into(start_byte, buffer)


def strided_tensor(
    file: RangeFile,
    offset: int,
    element: TensorType,
    items: tuple[tuple[int, ...], tuple[int, ...]],
    shape: tuple[int, ...],
) -> LoadedTensor:
    """A tensor whose items lie apart in a file, or in another order.

    `items` are dimensions and strides, counted in items, which are blocks; the first lies at byte
    `offset`.
    """
    dims, strides = items
    size = element.block_bytes

    def load() -> ArrayTensor:
        reach = sum((dim - 1) * step for dim, step in zip(dims, strides, strict=True))
        span = np.frombuffer(file.read(offset, (reach + 1) * size), np.dtype((np.void, size)))
        steps = tuple(step * size for step in strides)
        spread = np.lib.stride_tricks.as_strided(span, dims, steps, writeable=False)
        return ArrayTensor(spread, element, shape)

    return LoadedTensor(load, element, shape)


def write_file(
    model: StoredModel,
    format_name: str,
    path: Path,
    write_new: Callable[[Path], None],
    *,
    overwrite: bool,
) -> None:
    """Write a model as one file, whole or not at all: as it was, or else by `write_new`."""
    original = whole_original(model, format_name)
    with new_file(path, overwrite=overwrite) as temporary:
        if original is None:
            write_new(temporary)
        else:
            with temporary.open("wb") as file:
                file.writelines(model.file_chunks(original))


def inside(index: Path, name: str, said: str) -> Path:
    """The place of a file that `index` names, when it lies in that one's folder.

    `said` are the words of messages that say so: "it names".

    Raises:
        InvalidInputError: it would lie elsewhere, or is a link.
        NotFoundError: it is not there.
    """
    parts = PurePosixPath(name)
    place = index.parent / parts
    odd = parts.is_absolute() or ".." in parts.parts or "\\" in name or "\0" in name
    base = index.parent.resolve()
    if odd or not parts.parts or place.resolve().parent != (base / parts).parent:
        raise refused(
            f"{index}: {said} {name!r:.200}, which is not in its folder. Nothing outside of the "
            "folder is read."
        )
    if place.is_symlink():
        raise refused(f"{index}: {said} {name!r:.200}, which is a link")
    if not place.is_file():
        raise NotFoundError(f"{index}: {said} {name!r:.200}, which is missing")
    return place


_HELD_BYTES: Final = 1 << 20  # a longer stretch is taken from the file when it is stored
NOTED_BYTES: Final = 1 << 20


def original_of(
    file: RangeFile,
    name: str,
    format_name: str,
    placed: Iterable[tuple[int, int, str]],
    others: Iterable[str] = (),
) -> OriginalFile:
    """A file as stretches of its own and tensors.

    Args:
        file: the file, open.
        name: what it is called in the model.
        format_name: its format.
        placed: ``[start, stop)`` of each tensor whose bytes lie in it one after the other. Of those
            that overlap one is taken; the rest count as `others`.
        others: tensors that lie in it in another form.
    """
    at = 0
    parts: list[bytes | FileStretch | str] = []
    apart = list(others)
    for start, stop, tensor in sorted(placed):
        if start < at or stop == start:
            apart.append(tensor)
            continue
        parts += _between(file, at, start)
        parts.append(tensor)
        at = stop
    parts += _between(file, at, file.size)
    return OriginalFile(name, format_name, file.path, tuple(parts), tuple(sorted(apart)))


def _between(file: RangeFile, start: int, stop: int) -> Iterator[bytes | FileStretch]:
    if 0 < stop - start <= _HELD_BYTES:
        yield file.read(start, stop - start)
    elif start < stop:
        yield FileStretch(start, stop)


def double_note(original: OriginalFile) -> tuple[str, ...]:
    """What to tell of a file whose tensors are stored beside the same content in another form."""
    size = sum(len(part) for part in original.parts if not isinstance(part, str))
    if size < NOTED_BYTES or not original.others:
        return ()
    note = (
        f"{original.name}: {counted(size, 'byte')} kept beside the tensors: "
        f"{len(original.others)} of these lie in the file in another form (compressed, "
        "transposed, shared in part)"
    )
    return (note,)
