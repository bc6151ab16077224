"""An object sink in memory, for tests of the formats alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensorrepo.repo.errors import CorruptError, NotFoundError
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.objects.envelope import (
    Envelope,
    Kind,
    ObjectLink,
    decode_object,
    encode_object,
)


class MemoryObjects:
    """Keeps encoded objects in a dict. `reads` counts what was asked, for tests of read plans."""

    def __init__(self) -> None:
        self.stored: dict[Digest, bytes] = {}
        self.links: dict[Digest, ObjectLink] = {}
        self.reads: list[tuple[Digest, int, int]] = []
        self.shallow: frozenset[Digest] = frozenset()

    def put(
        self, kind: Kind, payload: Buffer | Sequence[Buffer], links: Iterable[Digest] = ()
    ) -> ObjectLink:
        encoded = encode_object(kind, payload, [self.describe(digest) for digest in links])
        self.stored[encoded.link.digest] = b"".join(encoded.parts)
        self.links[encoded.link.digest] = encoded.link
        return encoded.link

    def get(self, digest: Digest) -> Envelope:
        if digest not in self.stored:
            raise NotFoundError(f"no object {digest:.12}")
        self.reads.append((digest, 0, len(self.stored[digest])))
        return decode_object(self.stored[digest], digest)

    def describe(self, digest: Digest) -> ObjectLink:
        if digest not in self.links:
            raise NotFoundError(f"no object {digest:.12}")
        return self.links[digest]

    def read_range(self, link: ObjectLink, start: int, stop: int) -> Buffer:
        self.reads.append((link.digest, start, stop))
        return self._payload(link)[start:stop]

    def read_checked(self, link: ObjectLink, start: int, stop: int, tag: bytes) -> Buffer:
        data = self.read_range(link, start, stop)
        if content_tag(data) != tag:
            raise CorruptError(f"{link.kind.label} {link.digest:.12}: expected another tag")
        return data

    def read_into(self, link: ObjectLink, start: int, buffer: memoryview) -> None:
        self.reads.append((link.digest, start, start + buffer.nbytes))
        buffer[:] = self._payload(link)[start : start + buffer.nbytes]

    def map(self, link: ObjectLink) -> memoryview | None:
        return None

    def _payload(self, link: ObjectLink) -> memoryview:
        data = self.stored[link.digest]
        payload_bytes = int.from_bytes(data[16:24], "little")
        return memoryview(data)[len(data) - payload_bytes :]
