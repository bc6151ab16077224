"""Copies of objects, verified on arrival, adopted where the receiver has them already.

Who calls what: `receive.Receiving` hands an `ObjectCopier` one object after the other, on a few
threads. The copier looks whether the receiver has it (rule W1 of the collector), else fetches it:
small objects at once, larger ones into a part file (`part_files`). Bytes are stored only when they
have the digest, the kind and the length that the objects say which link to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from threading import Event, Lock

from tensorrepo.repo.backends.base import KeepsParts
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, StorageError
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.objects.envelope import (
    EncodedObject,
    Envelope,
    ObjectLink,
    decode_object,
    encode_object,
)
from tensorrepo.repo.objects.incarnations import object_key
from tensorrepo.repo.objects.mapping import map_file
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.transfer.difference import EnvelopeSource, NewObject
from tensorrepo.repo.transfer.pace import RateLimit, TransferTotals
from tensorrepo.repo.transfer.part_files import WHOLE_BYTES, fetch_part, in_steps


@dataclass(slots=True)
class ObjectCopier:
    """Copies objects from one place into a writer of another. Thread-safe but for `flush`.

    Attributes:
        source: where objects come from.
        origin: what messages call it.
        writer: stores them at the receiver.
        parts: folder of unfinished objects, where the receiver has no place for them.
        limit: how fast they may come.
        totals: counters.
        told: called when the counters grew.
        stopped: set when nobody waits for what is being copied.
    """

    source: EnvelopeSource
    origin: str
    writer: ObjectWriter
    parts: Path
    limit: RateLimit
    totals: TransferTotals
    told: Callable[[], None] = lambda: None
    stopped: Event = field(default_factory=Event)
    _finished: list[Path] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def copy(self, item: NewObject) -> None:
        """Have one object at the receiver; durable after `flush`.

        Raises:
            CorruptError: it is damaged where it comes from. Nothing of it was stored.
        """
        if self.writer.adopt(item.link):
            self.totals.was_there(item.link.bytes)
        elif item.link.leaf and not item.link.kind.compressible:
            if item.link.bytes > WHOLE_BYTES:
                self._copy_large(item.link)
            else:
                self._copy_small(item.link)
        else:
            envelope = item.envelope or self.source.get(item.link.digest)
            self._put(item.link, envelope)
            self.limit.take(item.link.bytes, self.stopped.is_set)
            self.totals.moved(item.link.bytes, objects=1)
        self.told()

    def flush(self) -> None:
        """Make all that was copied durable."""
        self.writer.flush()
        while self._finished:
            with suppress(OSError):
                os.unlink(self._finished.pop())

    def _put(self, link: ObjectLink, envelope: Envelope) -> None:
        encoded = encode_object(envelope.kind, envelope.payload, envelope.links)
        self._check(link, encoded.link)
        self.writer.put_encoded(encoded)

    def _copy_small(self, link: ObjectLink) -> None:
        self.limit.take(link.bytes, self.stopped.is_set)
        try:
            data = self.source.read_envelope(link.digest, 0, link.bytes)
            envelope = decode_object(data, link.digest)
        except (CorruptError, StorageError) as error:
            if isinstance(error, StorageError) and error.transient:
                raise
            self._put(link, self._second_copy(link, error))
        else:
            self._check(link, envelope.link(link.digest))
            self.writer.put_encoded(EncodedObject(link, (data,)))
        self.totals.moved(link.bytes, objects=1)

    def _second_copy(self, link: ObjectLink, error: Exception) -> Envelope:
        """The object from another place of the origin, where the first one was damaged."""
        try:
            return self.source.fetch(link.digest)
        except CorruptError:
            raise self._damaged(link, error) from error

    def _copy_large(self, link: ObjectLink) -> None:
        backend = self.writer.store.backend
        folder = backend.part_folder if isinstance(backend, KeepsParts) else self.parts
        try:
            name = fetch_part(folder, link, self._stream, self._advance, self.totals.were_there)
        except CorruptError as error:
            raise self._damaged(link, error) from error
        key = object_key(link.digest, self.writer.store.label(link.digest, self.writer.graves))
        if isinstance(backend, KeepsParts):
            if not backend.adopt_part(name, key) and backend.size(key) != link.bytes:
                raise CorruptError(
                    f"{key} in {backend.url} was damaged after it was stored: delete that one file "
                    "and repeat the command."
                )
            self.writer.rely_on(link, key)
        else:
            whole = map_file(folder / name)
            if whole is None:
                raise StorageError(f"no room in memory to map {folder / name}")
            self.writer.put_encoded(EncodedObject(link, (whole,)))
            with self._lock:
                self._finished.append(folder / name)
        self.totals.moved(0, objects=1)

    def _stream(self, digest: Digest, start: int, stop: int) -> Iterator[Buffer]:
        pieces = self.source.stream_envelope(digest, start, stop)
        if pieces is None:
            pieces = in_steps(self.source.read_envelope, digest, start, stop)
        for piece in pieces:
            self.limit.take(memoryview(piece).nbytes, self.stopped.is_set)
            yield piece
            if self.stopped.is_set():
                raise StorageError(f"the transfer from {self.origin} was stopped")

    def _advance(self, size_bytes: int) -> None:
        self.totals.moved(size_bytes)
        self.told()

    def _check(self, expected: ObjectLink, found: ObjectLink) -> None:
        if found != expected:
            raise CorruptError(
                f"{self.origin}: {expected.kind.label} {expected.digest:.12} is not what the "
                f"objects say that link to it: expected {expected.bytes:,} bytes, found a "
                f"{found.kind.label} of {found.bytes:,}. Nothing of it was stored; run "
                "`tensorrepo fsck` there."
            )

    def _damaged(self, link: ObjectLink, error: Exception) -> CorruptError:
        return CorruptError(
            f"{self.origin}: {link.kind.label} {link.digest:.12} is damaged there ({error}). "
            f"Nothing of it was stored. Run `tensorrepo fsck --deep --repo {self.origin}`, and "
            "restore it from another copy."
        )
