"""Models in memory, for tests of the model format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.tensors import TensorType
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.model_writer import write_model
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, encode_object
from tests.support.builders.objects import MemoryObjects


class MappedObjects(MemoryObjects):
    """Objects as on a local disk: what is mapped is one private copy, shared by all who ask."""

    def __init__(self) -> None:
        super().__init__()
        self._maps: dict[Digest, memoryview] = {}

    def map(self, link: ObjectLink) -> memoryview | None:
        return self._maps.setdefault(link.digest, memoryview(bytearray(self._payload(link))))


class CountingObjects(MemoryObjects):
    """Keeps packs' names and drops their bytes, like a store far away."""

    def put(
        self, kind: Kind, payload: Buffer | Sequence[Buffer], links: Iterable[Digest] = ()
    ) -> ObjectLink:
        if kind is not Kind.PACK:
            return super().put(kind, payload, links)
        link = encode_object(kind, payload, [self.describe(digest) for digest in links]).link
        self.links[link.digest] = link
        return link


def noise(first: int, stop: int) -> NDArray[np.int64]:
    """For each number another one that looks like chance: nothing can be saved on these."""
    mixed = np.arange(first, stop, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    whole: NDArray[np.int64] = (mixed ^ (mixed >> np.uint64(31))).view(np.int64)
    return whole


class CountingTensor:
    """A tensor of any size that takes no memory: item number i holds `noise` number i."""

    def __init__(self, items: int, *, salt: int = 0) -> None:
        self.type = TensorType("I64", 1, 8)
        self.shape = (items,)
        self.salt = salt
        self.bytes_read = 0

    def read_into(self, start_byte: int, buffer: memoryview) -> None:
        self.bytes_read += buffer.nbytes
        first = start_byte // 8 + self.salt
        np.frombuffer(buffer, "<i8")[:] = noise(first, first + buffer.nbytes // 8)


class ChangingTensor(CountingTensor):
    """Holds something else whenever it is read."""

    def read_into(self, start_byte: int, buffer: memoryview) -> None:
        self.salt += 1
        super().read_into(start_byte, buffer)


def stored(tensors: Any, objects: MemoryObjects | None = None, **options: Any) -> StoredModel:
    """What was written, opened."""
    sink = objects if objects is not None else MemoryObjects()
    return open_model(sink, write_model(sink, tensors, **options))


def kinds(objects: MemoryObjects, before: Mapping[Digest, object] = {}) -> Counter[str]:
    """How many objects of each kind were stored since `before`."""
    new = [link for digest, link in objects.links.items() if digest not in before]
    return Counter(link.kind.label for link in new)


def pack_bytes(objects: MemoryObjects, before: Mapping[Digest, object] = {}) -> int:
    """Bytes of the packs stored since `before`."""
    return sum(
        link.bytes
        for digest, link in objects.links.items()
        if digest not in before and link.kind is Kind.PACK
    )


def payload_start(objects: MemoryObjects, digest: Digest) -> int:
    """Where the payload begins among the bytes of a stored object."""
    data = objects.stored[digest]
    return len(data) - int.from_bytes(data[16:24], "little")


def copy_of(objects: MemoryObjects) -> MemoryObjects:
    """The same objects, to be damaged."""
    copied = MemoryObjects()
    copied.stored, copied.links = dict(objects.stored), dict(objects.links)
    return copied


def flip(objects: MemoryObjects, digest: Digest, at: int) -> None:
    """Damage one byte of what is stored."""
    data = bytearray(objects.stored[digest])
    data[at] ^= 0xFF
    objects.stored[digest] = bytes(data)


def write_bytes(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
