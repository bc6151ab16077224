"""Byte ranges of tensors and of files that are made of them, piece by piece, in bounded memory.

Every piece is verified before it is handed out, whole frames for any part of them. Raw frames on a
local disk are handed out as they lie there, mapped; others are decoded into memory of their own, so
that a piece stays what it is after the next one was asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from tensorrepo.formats.common.tensors import TensorReader
from tensorrepo.formats.model.layout.fingerprints import frame_bytes
from tensorrepo.formats.model.layout.manifest import Original
from tensorrepo.formats.model.layout.pack import RAW
from tensorrepo.formats.model.read.frames import AHEAD_FRAMES, StoredFrames
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.repo.errors import CorruptError, NotFoundError
from tensorrepo.repo.ids import Buffer

Piece = Callable[[], memoryview]
BLOB_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class ModelBytes:
    """Bytes that are made of a model: `parts`, one after the other, each a text of bytes or the
    name of a tensor, which stands for all of its bytes.
    """

    model: StoredModel
    parts: tuple[Buffer | str, ...]

    @property
    def size_bytes(self) -> int:
        return sum(self._size(part) for part in self.parts)

    def pieces(self, start: int, stop: int, pool: Executor) -> Iterator[memoryview]:
        """Bytes ``[start, stop)``, piece by piece. `pool` works on the next ones meanwhile.

        Raises:
            CorruptError: what is stored is damaged; no byte of that piece was given.
        """
        return _ahead(self._pieces(start, stop), pool)

    def _size(self, part: Buffer | str) -> int:
        return (
            self.model.spec(part).size_bytes if isinstance(part, str) else memoryview(part).nbytes
        )

    def _pieces(self, start: int, stop: int) -> Iterator[Piece]:
        at = 0
        for part in self.parts:
            if at >= stop:
                return
            size = self._size(part)
            low, high = max(start - at, 0), min(stop - at, size)
            at += size
            if low >= high:
                continue
            if isinstance(part, str):
                yield from _tensor_pieces(self.model.tensor(part), low, high)
            else:
                yield from _plain_pieces(part, low, high)


def file_bytes(model: StoredModel, name: str) -> ModelBytes:
    """A file of a model, as it came. Raises NotFoundError."""
    original = model.originals.get(name)
    if original is not None:
        return ModelBytes(model, tuple(_parts(model, original)))
    file = model.files.get(name)
    if file is None:
        raise NotFoundError(f"model {model.entry.digest:.12} has no file {name!r:.200}")
    return ModelBytes(model, (model.objects.get(file.digest).payload,))


def _parts(model: StoredModel, original: Original) -> Iterator[Buffer | str]:
    literals, at = memoryview(model.literals(original)), 0
    for part in original.parts:
        if isinstance(part, str):
            yield part
            continue
        if at + part > len(literals):
            raise CorruptError(
                f"file {original.name!r} of model {model.entry.digest:.12}: its blob has "
                f"{len(literals)} bytes, more are needed"
            )
        yield literals[at : at + part]
        at += part


def _ahead(pieces: Iterator[Piece], pool: Executor) -> Iterator[memoryview]:
    """What `pieces` give, in order, while `pool` works on a few more."""
    running: deque[Future[memoryview]] = deque()
    try:
        for piece in pieces:
            running.append(pool.submit(piece))
            if len(running) > AHEAD_FRAMES:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        for one in running:
            one.cancel()


def _plain_pieces(content: Buffer, start: int, stop: int) -> Iterator[Piece]:
    view = memoryview(content)
    for at in range(start, min(stop, view.nbytes), BLOB_PIECE_BYTES):
        part = view[at : min(at + BLOB_PIECE_BYTES, stop)]
        yield partial(_itself, part)


def _itself(part: memoryview) -> memoryview:
    return part


def _tensor_pieces(tensor: TensorReader, start: int, stop: int) -> Iterator[Piece]:
    if isinstance(tensor, StoredFrames) and tensor.value is not None:
        yield partial(_itself, memoryview(tensor.value)[start:stop])
        return
    size = frame_bytes(tensor.type)
    for index in range(start // size, -(-stop // size)):
        low, high = max(start, index * size), min(stop, (index + 1) * size)
        if isinstance(tensor, StoredFrames):
            yield partial(_frame_part, tensor, index, low - index * size, high - index * size)
        else:
            yield partial(_read_part, tensor, low, high)


def _frame_part(tensor: StoredFrames, index: int, low: int, high: int) -> memoryview:
    placed = tensor.frames[index]
    frame_size = placed.frame.size_bytes
    pack = tensor.members.mapped_pack(placed.place[0]) if placed.codec == RAW else None
    if pack is not None:
        start = placed.frame.planes[0].offset
        mapped = pack[start : start + frame_size]
        if mapped.nbytes == frame_size:
            tensor.check(index, mapped)
            return mapped[low:high].toreadonly()
    room: memoryview = np.empty(frame_size, np.uint8).data
    tensor.frame_into(index, room)
    return room[low:high]


def _read_part(tensor: TensorReader, low: int, high: int) -> memoryview:
    room: memoryview = np.empty(high - low, np.uint8).data
    tensor.read_into(low, room)
    return room
