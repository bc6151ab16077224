"""Parts of tensors on their way into a pack: frames are read and hashed when first asked for.

What is done with a frame (copy, hash, samples, encoding) is done while it lies in the processor's
cache, and then its memory serves another one: pages of memory that are got anew cost more than the
copy. A frame that is asked for once more is read again, and must be what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Final, TypeVar

import msgspec
import numpy as np
from msgspec.structs import force_setattr
from numpy.typing import NDArray

from tensorrepo.formats.common.tensors import ArrayTensor, TensorReader, named_bytes
from tensorrepo.formats.model.delta.frame_codec import FrameShape
from tensorrepo.formats.model.delta.plane_codec import PlaneCodec, StoredPlane
from tensorrepo.formats.model.delta.similarity import (
    LEAST_ELEMENTS,
    SIGNATURE_ITEMS,
    highest_bits,
    signature,
)
from tensorrepo.formats.model.layout.fingerprints import (
    Fingerprint,
    copied_frame_digest,
    fingerprint,
    frame_bytes,
    frame_digest,
)
from tensorrepo.formats.model.read.members import about_frame
from tensorrepo.formats.native.frame_memory import LEAST_KEPT_BYTES, FrameMemory
from tensorrepo.repo.errors import InvalidInputError

T = TypeVar("T")
S = TypeVar("S")
PARALLEL_BYTES: Final = 1 << 20  # below this, handing work to threads costs more than it saves


class TensorPart(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Bytes ``[start, stop)`` of a tensor, whole frames of it.

    `frames` are their numbers in the tensor, `is_whole` says whether it is all of that. All three
    last ones follow from the others.
    """

    name: str
    reader: TensorReader
    start: int
    stop: int
    size_bytes: int = 0
    frames: range = range(0)
    is_whole: bool = False

    def __post_init__(self) -> None:
        whole, size = frame_bytes(self.reader.type), self.stop - self.start
        is_whole = size == self.reader.type.bytes_of(self.reader.shape)
        force_setattr(self, "size_bytes", size)
        force_setattr(self, "frames", range(self.start // whole, -(-self.stop // whole)))
        force_setattr(self, "is_whole", is_whole)


def whole_part(name: str, reader: TensorReader) -> TensorPart:
    """All of a tensor. Raises InvalidInputError for a shape that no tensor has."""
    return TensorPart(name, reader, 0, named_bytes(name, reader.type, tuple(reader.shape)))


class TensorChunk:
    """A part whose frames are read, and hashed, once for all that looks at them.

    Threads may look at different frames at once.
    """

    __slots__ = (
        "_about",
        "_digests",
        "_fingerprint",
        "_held",
        "_items",
        "_memory",
        "_whole",
        "part",
    )

    def __init__(self, part: TensorPart, memory: FrameMemory) -> None:
        """`memory` is where frames lie while somebody looks at them."""
        self.part = part
        self._memory = memory
        self._whole = frame_bytes(part.reader.type)
        self._held: dict[int, NDArray[np.uint8]] = {}
        self._digests: dict[int, bytes] = {}
        self._about: dict[int, FrameShape] = {}
        self._fingerprint: Fingerprint | None = None
        self._items: NDArray[np.uint8] | None = None
        element = part.reader.type
        if part.is_whole and element.block_elements == 1:
            elements = part.size_bytes // element.block_bytes
            if elements >= LEAST_ELEMENTS:
                self._items = np.empty((SIGNATURE_ITEMS, element.block_bytes), np.uint8)

    def frame(self, index: int) -> memoryview:
        """Frame number `index` of the tensor.

        Raises:
            InvalidInputError: it cannot be read, or is not what it was when it was read before.
        """
        held = self._held.get(index)
        if held is None:
            held = self._read(index)
        return held.data

    def hold(self, frame: NDArray[np.uint8], digest: bytes, fingerprint: Fingerprint) -> None:
        """Keep the one frame of a whole tensor, which was read and hashed together with others."""
        self._digests[0] = digest
        self._fingerprint = fingerprint
        self._held[0] = frame

    def forget(self, index: int, planes: Sequence[StoredPlane] = ()) -> None:
        """Let go of a frame; its memory is used again unless raw `planes` lie in it."""
        held = self._held.pop(index, None)
        if held is None or held.size < LEAST_KEPT_BYTES:
            return
        if not any(plane.codec == PlaneCodec.RAW and _lies_in(plane, held) for plane in planes):
            self._memory.give(held)

    def forget_all(self) -> None:
        """Let go of all frames that are held."""
        for index in tuple(self._held):
            self.forget(index)

    def digest(self, index: int) -> bytes:
        """The digest of a frame."""
        digest = self._digests.get(index)
        if digest is None:
            self._read(index)
            digest = self._digests[index]
        return digest

    def fingerprint(self) -> Fingerprint:
        """The name of the tensor that the part is all of."""
        if self._fingerprint is None:
            reader = self.part.reader
            digests = b"".join([self.digest(index) for index in self.part.frames])
            self._fingerprint = fingerprint(reader.type, tuple(reader.shape), digests)
        return self._fingerprint

    def digests(self) -> list[bytes]:
        """Those of all frames, in order."""
        return [self.digest(index) for index in self.part.frames]

    def about(self, index: int) -> FrameShape:
        about = self._about.get(index)
        if about is None:
            reader = self.part.reader
            about = self._about[index] = about_frame(reader.type, reader.shape, index)
        return about

    def signature(self) -> NDArray[np.uint16] | None:
        """The signature of the tensor, with the member that holds its first frame."""
        if self.part.start:
            return None
        if self._items is None:
            return None if self.part.is_whole else signature(self.part.reader)
        self.digests()
        return highest_bits(self._items, self.part.reader.type)

    def _read(self, index: int) -> NDArray[np.uint8]:
        start = index * self._whole
        held = self._memory.take(min(self._whole, self.part.stop - start))
        reader = self.part.reader
        try:
            if type(reader) is ArrayTensor:
                digest = copied_frame_digest(reader.bytes_at(start, held.size).data, held.data)
            else:
                reader.read_into(start, held.data)
                digest = frame_digest(held.data)
        except InvalidInputError as error:
            raise InvalidInputError(f"tensor {self.part.name!r}: {error}") from error
        if self._digests.setdefault(index, digest) != digest:
            raise changed_meanwhile(self.part.name)
        if self._items is not None:
            self._note_items(index, held)
        self._held[index] = held
        return held

    def _note_items(self, index: int, frame: NDArray[np.uint8]) -> None:
        """Keep those elements of a frame that the signature is made of."""
        assert self._items is not None, "asked for where there are some"
        unit = self.part.reader.type.block_bytes
        step = self.part.size_bytes // unit // SIGNATURE_ITEMS
        start = index * self._whole // unit
        first, last = -(-start // step), -(-(start + frame.size // unit) // step)
        items = frame.reshape(-1, unit)[first * step - start :: step]
        room = self._items[first : min(last, SIGNATURE_ITEMS)]
        room[:] = items[: len(room)]


def _lies_in(plane: StoredPlane, memory: NDArray[np.uint8]) -> bool:
    """Whether stored bytes are those of some memory, which must stay then."""
    return np.may_share_memory(memory, np.frombuffer(plane.data, np.uint8))


def changed_meanwhile(name: str) -> InvalidInputError:
    return InvalidInputError(
        f"tensor {name!r} changed while it was being stored. Copy it first, or stop "
        "training until the model is saved."
    )


def read_chunk(part: TensorPart, pool: Executor) -> TensorChunk:
    """A part, all of it in memory. Raises InvalidInputError."""
    chunk = TensorChunk(part, FrameMemory(0))
    for _ in each(chunk.digest, part.frames, part.size_bytes, pool):
        pass
    return chunk


def hash_frames(part: TensorPart, memory: FrameMemory, pool: Executor) -> list[bytes]:
    """The digests of a part's frames, without keeping its bytes."""

    def digest(index: int) -> bytes:
        chunk = TensorChunk(part, memory)
        found = chunk.digest(index)
        chunk.forget(index)
        return found

    return list(each(digest, part.frames, part.size_bytes, pool))


def each(
    work: Callable[[S], T], items: Sequence[S], size_bytes: int, pool: Executor
) -> Iterator[T]:
    """`work` done with every item, on several threads where that pays."""
    if size_bytes < PARALLEL_BYTES or len(items) == 1:
        return map(work, items)
    return iter(pool.map(work, items))


def rounds(names: Iterable[str], later: Mapping[str, Collection[str]]) -> Iterator[list[str]]:
    """Names in their order, but each in a round behind all that it waits for in `later`."""
    waiting = dict.fromkeys(names)
    while waiting:
        ready = [name for name in waiting if waiting.keys().isdisjoint(later.get(name, ()))]
        # Where they wait for each other nothing is gained by waiting.
        yield (ready := ready or list(waiting))
        for name in ready:
            del waiting[name]
