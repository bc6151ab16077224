"""How do tensors come into memory, so many bytes at a time?

A chunk is a run of a tensor's frames, or all of them, read and hashed on several threads. A batch
of chunks takes no more than a budget; a tensor that is larger is several chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from tensorrepo.formats.model.codecs.framecodec import FrameShape
from tensorrepo.formats.model.frames import frame_bytes, frame_digest
from tensorrepo.formats.model.memberread import about_frame
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    from numpy.typing import NDArray

    from tensorrepo.formats.tensors import TensorReader

T = TypeVar("T")
S = TypeVar("S")
_PARALLEL_BYTES: Final = 1 << 20  # below this, handing work to threads costs more than it saves


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes ``[start, stop)`` of a tensor, whole frames of it."""

    name: str
    reader: TensorReader
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start

    @property
    def frames(self) -> range:
        """Numbers of its frames in the tensor."""
        whole = frame_bytes(self.reader.type)
        return range(self.start // whole, -(-self.stop // whole))


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A part in memory, and the digests of its frames."""

    part: Part
    data: NDArray[np.uint8]
    digests: list[bytes] = field(default_factory=list)

    def frame(self, index: int) -> memoryview:
        """Frame number `index` of the tensor."""
        whole = frame_bytes(self.part.reader.type)
        at = index * whole - self.part.start
        return self.data[at : at + whole].data

    def about(self, index: int) -> FrameShape:
        return about_frame(self.part.reader.type, self.part.reader.shape, index)


def read_chunks(parts: Iterable[Part], pool: Executor) -> list[Chunk]:
    """Read and hash parts of tensors.

    Raises:
        InvalidInputError: a tensor that cannot be read; names it.
    """
    chunks = [Chunk(part, np.empty(part.size_bytes, np.uint8)) for part in parts]
    tasks = [(chunk, index) for chunk in chunks for index in chunk.part.frames]
    size = sum(chunk.part.size_bytes for chunk in chunks)
    for (chunk, _), digest in zip(tasks, each(_read, tasks, size, pool), strict=True):
        chunk.digests.append(digest)
    return chunks


def hash_frames(part: Part, pool: Executor) -> bytes:
    """The digests of a part's frames, one after the other, without keeping its bytes."""
    whole = frame_bytes(part.reader.type)

    def digest(index: int) -> bytes:
        size = min(whole, part.stop - index * whole)
        chunk = Chunk(Part(part.name, part.reader, index * whole, index * whole + size),
                      np.empty(size, np.uint8))  # fmt: skip
        return _read((chunk, index))

    return b"".join(each(digest, part.frames, part.size_bytes, pool))


def each(
    work: Callable[[S], T], items: Sequence[S], size_bytes: int, pool: Executor
) -> Iterator[T]:
    """`work` done with every item, on several threads where that pays."""
    if size_bytes < _PARALLEL_BYTES or len(items) == 1:
        return map(work, items)
    return iter(pool.map(work, items))


def _read(task: tuple[Chunk, int]) -> bytes:
    chunk, index = task
    part, frame = chunk.part, chunk.frame(index)
    try:
        part.reader.read_into(index * frame_bytes(part.reader.type), frame)
    except InvalidInputError as error:
        raise InvalidInputError(f"tensor {part.name!r}: {error}") from error
    return frame_digest(frame)
