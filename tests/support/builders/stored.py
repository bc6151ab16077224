"""Objects in a store, put there by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.hashing.digests import object_digest
from tensorrepo.repo.ids import Buffer, Digest, digest_bytes
from tensorrepo.repo.log.state import Condemnation
from tensorrepo.repo.objects.envelope import Kind, ObjectLink
from tensorrepo.repo.objects.incarnations import GRAVE, object_key
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter
from tests.support.builders.log import digest

WELL_COMPRESSED = b"".join(b"line %d\n" % n for n in range(2000))
LARGE = 3 << 20  # more than is remembered


def put(
    backend: Backend,
    kind: Kind,
    payload: Buffer,
    links: Sequence[Digest] = (),
    graves: tuple[Condemnation, ...] = (),
) -> ObjectLink:
    """Store one object, as a writer with no memory of anything."""
    writer = ObjectWriter(ObjectStore(backend), graves)
    link = writer.put(kind, payload, links)
    writer.flush()
    return link


def payload_of(backend: Backend, name: Digest) -> bytes:
    return bytes(ObjectStore(backend).get(name).payload)


def place(backend: Backend, data: bytes, label: int = 0) -> Digest:
    """Any bytes under the name that they have."""
    name = object_digest((data,))
    backend.overwrite(object_key(name, label), (data,))
    return name


def encode_graves(condemned: Iterable[tuple[Digest, int]]) -> bytes:
    """The table of a condemnation: sorted by digest prefix, the newest label where two meet."""
    newest: dict[bytes, int] = {}
    for name, label in condemned:
        prefix = digest_bytes(name)[:8]
        newest[prefix] = max(label, newest.get(prefix, 0))
    return b"".join(GRAVE.pack(prefix, newest[prefix]) for prefix in sorted(newest))


def encode_gc_list(keys: Iterable[str]) -> bytes:
    """The exact keys that a condemnation lets anyone delete, at any time, any number of times."""
    return "".join(f"{key}\n" for key in sorted(set(keys))).encode("ascii")


def grave(backend: Backend, generation: int, *names: Digest) -> Condemnation:
    """A condemnation of `names` at `generation`."""
    table = put(backend, Kind.GRAVES, encode_graves((name, generation) for name in names))
    return Condemnation(generation, digest(0), table.digest)
