"""Repair of objects and log records from copies of a repository.

Objects are looked for by their names, in any repository: whatever has the digest is right. Records
of the log are only in a mirror, or in the origin of one; a record is put back where it chains to
the records on both sides of it. Nothing that verifies is ever touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.errors import CorruptError, Error, NotFoundError, StorageError
from tensorrepo.repo.ids import Buffer, Digest, record_digest
from tensorrepo.repo.log.log_slots import slot_key
from tensorrepo.repo.log.records import LogRecord, decode_record
from tensorrepo.repo.objects.envelope import (
    EncodedObject,
    ObjectLink,
    decode_object,
    encode_object,
    expand,
    stored_form,
)
from tensorrepo.repo.objects.incarnations import object_key
from tensorrepo.repo.objects.mapping import map_file
from tensorrepo.repo.transfer.part_files import WHOLE_BYTES, fetch_part
from tensorrepo.repo.transfer.receive import HistorySource


@dataclass(frozen=True, slots=True)
class RepairedObject:
    """An object that is whole again, and the copy that it came from."""

    digest: Digest
    kind: str
    url: str


@dataclass(frozen=True, slots=True)
class RepairedRecord:
    """A record of the log that is in its slot again, and the copy that it came from."""

    generation: int
    url: str


def repair_objects(
    repository: RepositoryCore,
    digests: Iterable[Digest],
    copies: Sequence[HistorySource],
    parts: Path,
) -> Iterator[RepairedObject]:
    """Fetch objects from whichever copy has them whole; those that none has are left out.

    Args:
        repository: what is repaired.
        digests: damaged or missing objects.
        copies: where to look, in this order.
        parts: folder of unfinished objects.
    """
    for digest in digests:
        for copy in copies:
            try:
                link = _restore(repository, digest, copy, parts)
            except Error:  # it is not there, or damaged there as well: the next one
                continue
            yield RepairedObject(digest, link.kind.label, copy.url)
            break


def repair_records(
    repository: RepositoryCore, copies: Iterable[RepositoryCore]
) -> list[RepairedRecord]:
    """Put records back that are missing or damaged, from mirrors or the origin of this one."""
    for copy in copies:
        if copy.id != repository.id:
            continue
        repaired = [
            RepairedRecord(generation, copy.url)
            for generation, right in reversed(_differing(repository, copy))
            if _put_back(repository, generation, right)
        ]
        if repaired:
            return repaired[::-1]
    return []


def _differing(repository: RepositoryCore, copy: RepositoryCore) -> list[tuple[int, bytes]]:
    """Records of a copy, its chain verified, that are not in the slots here."""
    head = copy.log.refresh().generation
    return [
        (slot.record.gen, slot.data)
        for slot in (copy.log.slots_between(1, head + 1) if head else ())
        if not slot.void and _read(repository, slot_key(slot.record.gen)) != slot.data
    ]


def _put_back(repository: RepositoryCore, generation: int, right: bytes) -> bool:
    """Write a record where the one behind it, right or put right by now, asks for it.

    Behind the newest there is none: it is written only over what is no record at all. Where nothing
    lies, the copy is ahead, or this log was cut short: that is no damage that a copy may decide.
    """
    found, after = (_read(repository, slot_key(at)) for at in (generation, generation + 1))
    if after is None:
        if found is None or _record(found) is not None:
            return False
    elif (behind := _record(after)) is None or behind.previous != record_digest(right):
        return False
    repository.backend.overwrite(slot_key(generation), (right,))
    return True


def _record(data: bytes) -> LogRecord | None:
    """What is in a slot; None where that is no record."""
    try:
        return decode_record(data)
    except CorruptError:
        return None


def _read(repository: RepositoryCore, key: str) -> bytes | None:
    try:
        return repository.backend.read(key)
    except NotFoundError:
        return None


def _restore(
    repository: RepositoryCore, digest: Digest, copy: HistorySource, parts: Path
) -> ObjectLink:
    """Have one object whole under every key that it is looked for first."""
    link = copy.objects.describe(digest)
    if link.kind.compressible or link.bytes <= WHOLE_BYTES:
        envelope = copy.objects.fetch(digest)
        encoded = encode_object(envelope.kind, envelope.payload, envelope.links)
        _store(repository, encoded.link, stored_form(encoded))
        return encoded.link
    name = fetch_part(parts, link, copy.objects.read_envelope, lambda _: None)
    try:
        whole = map_file(parts / name)
        if whole is None:
            raise StorageError(f"no room in memory to map {parts / name}")
        _store(repository, link, EncodedObject(link, (whole,)).parts)
    finally:
        (parts / name).unlink(missing_ok=True)
    return link


def _store(repository: RepositoryCore, link: ObjectLink, parts: tuple[Buffer, ...]) -> None:
    backend, store = repository.backend, repository.objects
    labels = sorted({0, store.label(link.digest, repository.log.refresh().state.graves)})
    present = [label for label in labels if store.stored_bytes(link.digest, label) is not None]
    for label in present:
        key = object_key(link.digest, label)
        if not _is_whole(repository, key, link):
            backend.overwrite(key, parts)
    if not present:
        backend.create(object_key(link.digest, labels[-1]), parts)


def _is_whole(repository: RepositoryCore, key: str, link: ObjectLink) -> bool:
    if link.bytes > WHOLE_BYTES and not link.kind.compressible:
        return False  # what is whole is not repaired; writing it once more harms nothing
    try:
        decode_object(expand(repository.backend.read(key), link.digest), link.digest)
    except (CorruptError, NotFoundError):
        return False
    return True
