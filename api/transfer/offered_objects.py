"""Objects that a client sends: verified by their digests before anything else is done with them.

Small ones come with a message and wait in memory: those that a commit turns out to need are
stored, the others never are. What a client says of an object is only compared with what it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tensorrepo.repo.errors import CorruptError, InvalidInputError, TooLargeError, UnsupportedError
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.log.state import Condemnation
from tensorrepo.repo.objects.envelope import (
    EncodedObject,
    Envelope,
    Kind,
    ObjectLink,
    decode_object,
    expand,
    stored_form,
    stored_forms,
)
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter

MOST_EXPANDED_BYTES: Final = 256 << 20  # of all objects of one message
_UNFORMED_BYTES: Final = 64 << 10  # larger objects are on their way to a disk at once
_NOT_FOR_CLIENTS: Final = frozenset({Kind.GC_LIST, Kind.GRAVES, Kind.HISTORY_PACK})

Offered = Mapping[Digest, EncodedObject]


def check_object(digest: Digest, data: Buffer) -> EncodedObject:
    """An object as it came, compressed or not.

    Raises:
        InvalidInputError: the bytes are not that object, or none that a client may bring.
    """
    try:
        whole = expand(bytes(data), digest)
        envelope = decode_object(whole, digest)
    except (CorruptError, UnsupportedError) as error:
        raise InvalidInputError(f"object {digest:.12} was not stored: {error}") from error
    link = envelope.link(digest)
    refuse_kind(link)
    return EncodedObject(link, (whole,), envelope)


def refuse_kind(link: ObjectLink) -> None:
    """Raise InvalidInputError for objects that only the service makes."""
    if link.kind in _NOT_FOR_CLIENTS:
        raise InvalidInputError(
            f"object {link.digest:.12} is a {link.kind.label}, which no client brings"
        )


def check_objects(objects: Iterable[tuple[Digest, Buffer]]) -> dict[Digest, EncodedObject]:
    """All objects of a message. Raises as `check_object`, and TooLargeError."""
    checked: dict[Digest, EncodedObject] = {}
    expanded = 0
    for digest, data in objects:
        checked[digest] = check_object(digest, data)
        expanded += checked[digest].link.bytes
        if expanded > MOST_EXPANDED_BYTES:
            raise TooLargeError(
                f"the objects of a message have at most {MOST_EXPANDED_BYTES:,} bytes: send several"
            )
    return checked


class OfferedWriter(ObjectWriter):
    """A writer that can read, and store, what clients offer but nothing has needed yet.

    Args:
        store: where to.
        graves: as `ObjectWriter` has them.
        before: the writer of the group before, whose objects may not be durable yet, but are
            before anything of this one counts.
    """

    def __init__(
        self,
        store: ObjectStore,
        graves: tuple[Condemnation, ...],
        before: OfferedWriter | None = None,
    ) -> None:
        super().__init__(store, graves)
        self._before = before
        self.offered: dict[Digest, EncodedObject] = {}
        self.written: dict[Digest, EncodedObject] = {}  # commits and tree pages of the group
        self._decoded: dict[Digest, Envelope] = {}  # commits and pages are read many times over
        self._forms: dict[Digest, tuple[Buffer, ...]] = {}
        self._unformed: list[tuple[str, EncodedObject]] = []

    def take(self, digest: Digest) -> ObjectLink | None:
        """Store what was offered under that digest; None: nothing was."""
        encoded = self.offered.get(digest)
        return None if encoded is None else self.put_encoded(encoded)

    def put_encoded(self, encoded: EncodedObject) -> ObjectLink:
        if encoded.link.kind in {Kind.COMMIT, Kind.TREE_PAGE}:
            self.written[encoded.link.digest] = encoded
        return super().put_encoded(encoded)

    def stored_form(self, digest: Digest) -> tuple[Buffer, ...]:
        """The bytes that are stored of what is `written`."""
        known = self._forms.get(digest)
        return stored_form(self.written[digest]) if known is None else known

    def _upload(self, key: str, encoded: EncodedObject) -> None:
        # A disk has nothing to do before all of a group lands. Until then the next ones are judged,
        # not compressed, for which the thread that lands it has time.
        if encoded.link.bytes < _UNFORMED_BYTES and self.store.backend.local_root is not None:
            with self._lock:
                self._unformed.append((key, encoded))
        else:
            super()._upload(key, encoded)

    def _flush(self) -> None:
        with self._lock:
            unformed, self._unformed = self._unformed, []
        forms = stored_forms([encoded for _, encoded in unformed])
        for (key, encoded), form in zip(unformed, forms, strict=True):
            if encoded.link.digest in self.written:
                self._forms[encoded.link.digest] = form
            self._uploads.create(key, form)
        super()._flush()

    def get(self, digest: Digest) -> Envelope:
        known = self._decoded.get(digest)
        if known is not None:
            return known
        encoded = self.offered.get(digest)
        if encoded is not None:
            self.store.refuse_purged(digest)
            found = encoded.envelope()
        elif (before := self._made_before(digest)) is not None:
            found = before.get(digest)
        else:
            found = super().get(digest)
        if encoded is not None or digest in self.own:
            self._decoded[digest] = found
        return found

    def describe(self, digest: Digest) -> ObjectLink:
        encoded = self.offered.get(digest)
        if encoded is not None:
            return encoded.link
        before = self._made_before(digest)
        return super().describe(digest) if before is None else before.own[digest]

    def forget_before(self) -> None:
        """The group before is durable: its objects are read from the store from now on."""
        self._before = None

    def _made_before(self, digest: Digest) -> OfferedWriter | None:
        """The writer before, where that put an object, and this one did not."""
        before = self._before
        if before is None or digest in self.own or digest not in before.own:
            return None
        return before

    def fetch(self, digest: Digest) -> Envelope:
        """See `EnvelopeSource`."""
        return self.get(digest)

    def read_envelope(self, digest: Digest, start: int, stop: int) -> Buffer:
        """See `EnvelopeSource`."""
        return self._readable(digest).read_envelope(digest, start, stop)

    def _readable(self, digest: Digest) -> ObjectStore:
        if digest not in self.own:
            self.take(digest)
        before = self._made_before(digest)
        if before is not None:
            before.flush()  # it is being stored
        return super()._readable(digest)
