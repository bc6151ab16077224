"""Byte ranges of tensors and of files that are made of them, piece by piece, in bounded memory.

Every piece is verified before it is handed out, whole frames for any part of them. Raw frames on a
local disk are handed out as they lie there, mapped; others are decoded into memory of their own, so
that a piece stays what it is after the next one was asked for.

A frame that once had its digest is from then on compared with the xxh3 that its pack's directory
has: damage is found all the same, at a tenth of the cost. What a writer may have forged is told by
the digest alone, so that comes first, see `ProvedFrames`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from functools import cached_property, partial
from itertools import accumulate
from typing import Final

import numpy as np
import xxhash

from tensorrepo.formats.common.tensors import TensorReader
from tensorrepo.formats.model.layout.fingerprints import frame_bytes
from tensorrepo.formats.model.layout.pack import RAW
from tensorrepo.formats.model.read.frames import AHEAD_FRAMES, StoredFrames
from tensorrepo.formats.model.read.members import MappedPacks
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.objects.cache import LimitedCache

Piece = Callable[[], memoryview]
Step = tuple[Piece, bool]  # what makes a piece, and whether that takes longer than to hand it over
BLOB_PIECE_BYTES: Final = 1 << 20
_PROVED_BYTES: Final = 64 << 20
_PROOF_BYTES: Final = 250  # that one takes in memory, about
_RUN_FRAMES: Final = 16


class ProvedFrames:
    """Raw frames whose digests were right when they were read before. Thread-safe."""

    def __init__(self) -> None:
        self._proved = LimitedCache[bool](_PROVED_BYTES)

    def check(self, tensor: StoredFrames, index: int, data: memoryview) -> None:
        """Verify a raw frame. Raises CorruptError."""
        placed = tensor.frames[index]
        key = (placed.pack.digest, placed.frame.planes[0].offset, placed.frame.digest)
        if self._proved.get(key) is None:
            tensor.check(index, data)
            self._proved.put(key, True, _PROOF_BYTES)
        elif xxhash.xxh3_64_intdigest(data) != placed.frame.planes[0].xxh3:
            tensor.check(index, data)  # a directory may be wrong where the bytes are right


@dataclass(frozen=True, eq=False)
class ModelBytes:
    """Bytes that are made of a model: `parts`, one after the other, each a text of bytes or the
    name of a tensor, which stands for all of its bytes.
    """

    model: StoredModel
    parts: tuple[Buffer | str, ...]

    @property
    def size_bytes(self) -> int:
        return self._starts[-1]

    def pieces(
        self, start: int, stop: int, pool: Executor, proved: ProvedFrames
    ) -> Iterator[memoryview]:
        """Bytes ``[start, stop)``, piece by piece. `pool` works on the next ones meanwhile.

        Raises:
            CorruptError: what is stored is damaged; no byte of that piece was given.
        """
        return _ahead(self._pieces(start, stop, proved), pool)

    def piece_start(self, at: int) -> int:
        """The first place from `at` on where a part begins, or a frame of a tensor; or the end."""
        number = bisect_right(self._starts, at) - 1
        if not 0 <= number < len(self.parts):
            return self.size_bytes
        start, size = self._starts[number], self._frames[number]
        if size and at > start:
            return min(start + -(-(at - start) // size) * size, self._starts[number + 1])
        return at

    @cached_property
    def _frames(self) -> list[int]:
        """Bytes of a frame of each part; 0: it has none."""
        return [
            frame_bytes(self.model.spec(part).type) if isinstance(part, str) else 0
            for part in self.parts
        ]

    @cached_property
    def _starts(self) -> list[int]:
        """Where each part begins, and the end."""
        return list(accumulate(map(self._size, self.parts), initial=0))

    def _size(self, part: Buffer | str) -> int:
        return (
            self.model.spec(part).size_bytes if isinstance(part, str) else memoryview(part).nbytes
        )

    def _pieces(self, start: int, stop: int, proved: ProvedFrames) -> Iterator[Step]:
        first = max(bisect_right(self._starts, start) - 1, 0)
        for number in range(first, len(self.parts)):
            at, part = self._starts[number], self.parts[number]
            if at >= stop:
                return
            low, high = max(start - at, 0), min(stop, self._starts[number + 1]) - at
            if low >= high:
                continue
            if isinstance(part, str):
                yield from _tensor_pieces(self.model.tensor(part), low, high, proved)
            else:
                yield from _plain_pieces(part, low, high)


def file_bytes(model: StoredModel, name: str) -> ModelBytes:
    """A file of a model, as it came. Raises NotFoundError."""
    original = model.originals.get(name)
    if original is not None:
        return ModelBytes(model, tuple(model.parts_of(original)))
    file = model.files.get(name)
    if file is None:
        raise NotFoundError(f"model {model.entry.digest:.12} has no file {name!r:.200}")
    return ModelBytes(model, (model.objects.get(file.digest).payload,))


def _ahead(steps: Iterator[Step], pool: Executor) -> Iterator[memoryview]:
    """The pieces of `steps`, in order, while `pool` works on a few more."""
    running: deque[Future[memoryview]] = deque()
    try:
        for piece, is_slow in steps:
            if is_slow:
                running.append(pool.submit(piece))
                if len(running) > AHEAD_FRAMES:
                    yield running.popleft().result()
                continue
            while running:
                yield running.popleft().result()
            yield piece()
        while running:
            yield running.popleft().result()
    finally:
        for one in running:
            one.cancel()


def _plain_pieces(content: Buffer, start: int, stop: int) -> Iterator[Step]:
    view = memoryview(content)
    for at in range(start, min(stop, view.nbytes), BLOB_PIECE_BYTES):
        part = view[at : min(at + BLOB_PIECE_BYTES, stop)]
        yield partial(_itself, part), False


def _itself(part: memoryview) -> memoryview:
    return part


def _tensor_pieces(
    tensor: TensorReader, start: int, stop: int, proved: ProvedFrames
) -> Iterator[Step]:
    if isinstance(tensor, StoredFrames) and tensor.value is not None:
        yield partial(_itself, memoryview(tensor.value)[start:stop]), False
        return
    size = frame_bytes(tensor.type)
    index, end = start // size, -(-stop // size)
    if not isinstance(tensor, StoredFrames):
        for at in range(index, end):
            low, high = max(start, at * size), min(stop, at * size + size)
            yield partial(_read_part, tensor, low, high), True
        return
    packs = tensor.members.mapped_packs()
    while index < end:
        run = _mapped_run(tensor, index, end, packs)
        after = index + max(len(run), 1)
        part = slice(max(start - index * size, 0), min(stop, after * size) - index * size)
        if run:
            yield partial(_run_part, tensor, index, part, run, proved), False
        else:
            yield partial(_frame_part, tensor, index, part), True
        index = after


def _mapped_run(
    tensor: StoredFrames, index: int, end: int, packs: MappedPacks
) -> list[tuple[memoryview, int, int]]:
    """Raw frames from `index` on that lie one behind the other on this machine, up to about a MiB.

    Each as the pack and the range that it has there; none where that frame lies differently.
    """
    run: list[tuple[memoryview, int, int]] = []
    for placed in tensor.frames[index : min(end, index + _RUN_FRAMES)]:
        pack = packs[placed.place[0]] if placed.codec == RAW else None
        if pack is None:
            break
        low = placed.frame.planes[0].offset
        high = low + placed.frame.size_bytes
        if high > pack.nbytes or (run and (pack is not run[-1][0] or low != run[-1][2])):
            break
        run.append((pack, low, high))
        if high - run[0][1] >= BLOB_PIECE_BYTES:
            break
    return run


def _run_part(
    tensor: StoredFrames,
    index: int,
    part: slice,
    run: list[tuple[memoryview, int, int]],
    proved: ProvedFrames,
) -> memoryview:
    for number, (pack, low, high) in enumerate(run, index):
        proved.check(tensor, number, pack[low:high])
    return run[0][0][run[0][1] : run[-1][2]][part].toreadonly()


def _frame_part(tensor: StoredFrames, index: int, part: slice) -> memoryview:
    room: memoryview = np.empty(tensor.frames[index].frame.size_bytes, np.uint8).data
    tensor.run_into(range(index, index + 1), room, once=True)
    return room[part]


def _read_part(tensor: TensorReader, low: int, high: int) -> memoryview:
    room: memoryview = np.empty(high - low, np.uint8).data
    tensor.read_into(low, room)
    return room
