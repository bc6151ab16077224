"""Object writer: objects of one transaction, stored and made durable together.

`ObjectWriter` keeps to rules W1 and W2 of garbage collection (see `gc_fence`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock, RLock
from typing import Self

from tensorrepo.repo.backends.base import KeepsParts, overwrite_durably
from tensorrepo.repo.errors import (
    CommitExpired,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.log.state import Condemnation, State
from tensorrepo.repo.objects.envelope import (
    HEADER,
    CheckedSpan,
    EditedLinks,
    EncodedObject,
    Envelope,
    Kind,
    LinkTable,
    ObjectLink,
    decode_header,
    decode_object,
    encode_object,
    expand,
    link_table,
    stored_form,
)
from tensorrepo.repo.objects.incarnations import object_key
from tensorrepo.repo.objects.store import REMEMBER_UPTO_BYTES, ObjectStore

_PENDING_BYTES = 64 << 20
_EDITED = frozenset({Kind.TREE_PAGE, Kind.COMMIT})  # the next one links to nearly the same


class ObjectWriter:
    """Stores objects of one transaction under the keys that its pin prescribes (rule W1).

    Reads see what was put, also before it is durable. Thread-safe but for `flush`. Once storing
    anything failed, nothing of this writer may be relied on: every later `put` and `flush` says so.
    As a context manager, leaving it calls `abort`: what `flush` made durable stays.
    """

    def __init__(self, store: ObjectStore, graves: tuple[Condemnation, ...]) -> None:
        self.store = store
        self.graves = graves
        self.own: dict[Digest, ObjectLink] = {}
        self._uploads = store.backend.uploads()
        self._unchecked: dict[str, ObjectLink] = {}
        self._adopted: set[str] = set()  # folders of what lay there before
        # Small objects that are not durable yet, for reading and for repairs; within a limit.
        self._pending: dict[Digest, EncodedObject] = {}
        self._pending_bytes = 0
        self._come: dict[Digest, list[ObjectLink]] = {}  # links that no object before had
        self._failure: BaseException | None = None
        self._has_ended = False
        self._syncing = 0  # calls of `flush` that are not over; one that failed stays so
        self._lock = Lock()
        self._flushing = RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def put(
        self, kind: Kind, payload: Buffer | Sequence[Buffer], links: Iterable[Digest] = ()
    ) -> ObjectLink:
        """Store one object; durable after `flush`. Its parts must not change before that."""
        table, come = self._table(links)
        encoded = encode_object(kind, payload, table)
        if come is not None:
            self._come[encoded.link.digest] = come
        link = self.put_encoded(encoded)
        if kind in _EDITED:
            self.store.tables.put(link.digest, table, len(table.data))
        return link

    def _table(self, links: Iterable[Digest]) -> tuple[LinkTable, list[ObjectLink] | None]:
        """The table of `links`, and those that another table has not, where it is made of one."""
        # Of what was purged a link says what stands for it now, which others' links did not.
        if isinstance(links, EditedLinks) and self.store.standing() is None:
            known = self.store.tables.get(links.beside)
            if known is not None:
                come = [self.describe(each) for each in links.come]
                return known.edited(links.gone, come), come
        return link_table(map(self.describe, links)), None

    def put_encoded(self, encoded: EncodedObject) -> ObjectLink:
        """Store an object whose links are known to be right."""
        if encoded.link.digest not in self.own or self._failure is not None or self._has_ended:
            self._start(encoded)
        return encoded.link

    def put_again(self, envelope: Envelope) -> ObjectLink:
        """Store what was read under the label that `graves` prescribe now."""
        encoded = encode_object(envelope.kind, envelope.payload, envelope.links)
        self._start(encoded)
        return encoded.link

    def standing(self) -> State | None:
        """The state that its store knows, where anything was purged or superseded."""
        return self.store.standing()

    def adopt(self, link: ObjectLink) -> bool:
        """Rely on what lies under the key that `graves` prescribe, durable after `flush`.

        Metadata is read and verified; of what is never compressed sizes are compared, and on a
        local disk headers. What `link` says of it must be true.

        Returns:
            Whether there is such an object, and whole; else it must be put.
        """
        self.store.refuse_purged(link.digest)
        backend = self.store.backend
        key = object_key(link.digest, self.store.label(link.digest, self.graves))
        stored_bytes = backend.size(key)
        if stored_bytes is None:
            return False
        try:
            if not self._is_as_told(key, link, stored_bytes):
                return False
        except (CorruptError, NotFoundError):
            return False
        self.rely_on(link, key)
        return True

    def _is_as_told(self, key: str, link: ObjectLink, stored_bytes: int) -> bool:
        backend = self.store.backend
        if link.kind.compressible:
            found = decode_object(expand(backend.read(key), link.digest), link.digest)
            return found.link(link.digest) == link
        if stored_bytes != link.bytes or backend.local_root is None:
            return stored_bytes == link.bytes
        head = memoryview(backend.read_range(key, 0, HEADER.size))
        kind, links, _, _ = decode_header(head, link.digest)
        return kind is link.kind and (links == 0) == link.leaf

    def rely_on(self, link: ObjectLink, key: str) -> None:
        """Count what lies under `key` as put by this writer."""
        with self._lock:
            self.own[link.digest] = link
            self._adopted.add(key.rpartition("/")[0])

    def _start(self, encoded: EncodedObject) -> None:
        link = encoded.link
        self.store.refuse_purged(link.digest)
        key = object_key(link.digest, self.store.label(link.digest, self.graves))
        self._refuse_after_failure()
        try:
            with self._lock:
                self.own[link.digest] = link
                self._unchecked[key] = link
                self._hold(encoded)
            self._upload(key, encoded)
        except BaseException as error:
            self._failure = error
            raise

    def _upload(self, key: str, encoded: EncodedObject) -> None:
        self._uploads.create(key, stored_form(encoded))

    def _hold(self, encoded: EncodedObject) -> None:
        """Keep a small object until `flush`; the oldest give way, they can be read back."""
        digest, size = encoded.link.digest, encoded.link.bytes
        if size > REMEMBER_UPTO_BYTES or digest in self._pending:
            return
        self._pending[digest] = encoded
        self._pending_bytes += size
        while self._pending_bytes > _PENDING_BYTES:
            oldest = self._pending.pop(next(iter(self._pending)))
            self._pending_bytes -= oldest.link.bytes

    def flush(self) -> None:
        """Make all that was put durable; adopt what was there before, when it is whole.

        Raises:
            StorageError: an object could not be stored, now or before. Begin anew.
            CorruptError: what lies there is damaged, and its bytes are no longer here.
            CommitExpired: what lay there was collected, and its bytes are no longer here.
        """
        with self._lock:
            is_durable = not (self._unchecked or self._adopted or self._syncing)
            if is_durable and self._failure is None:
                return  # a commit asks twice
        # One thread at a time: who comes second may rely on what the first still looks at. What is
        # put meanwhile is of the next flush.
        with self._flushing:
            self._refuse_after_failure()
            try:
                self._flush()
            except BaseException as error:
                self._failure = error
                raise

    def _flush(self) -> None:
        with self._lock:
            adopted, self._adopted = self._adopted, set()
            self._syncing += 1
        finished = self._uploads.finish()
        for key, created in finished.items():
            if not created and key in self._unchecked:
                self._adopt(key, self._unchecked[key])
        backend = self.store.backend
        if adopted and isinstance(backend, KeepsParts):
            # What somebody else linked may not be durable yet.
            backend.sync_folders(adopted)
        self._settle(finished)
        with self._lock:
            self._syncing -= 1

    def _settle(self, keys: Iterable[str]) -> None:
        """What lies under these keys is whole and durable: it is read from there from now on."""
        for key in keys:
            with self._lock:
                link = self._unchecked.pop(key, None)
                encoded = None if link is None else self._pending.get(link.digest)
            if encoded is None:
                continue
            digest = encoded.link.digest
            self.store.remember(digest, encoded.envelope(), self._come.pop(digest, None))
            with self._lock:
                if self._pending.pop(digest, None) is not None:
                    self._pending_bytes -= encoded.link.bytes

    def abort(self) -> None:
        """Take no more, forget what is not durable. What was stored is garbage, and harmless."""
        self._uploads.abort()
        with self._lock:
            self._has_ended = True
            self._pending.clear()
            self._pending_bytes = 0
            self._unchecked.clear()
            self._adopted.clear()

    def refuse_after_end(self) -> None:
        """Raise InvalidInputError if nobody is going to commit what is put now."""
        if self._has_ended:
            raise InvalidInputError(
                f"{self.store.backend.url}: this transaction has ended, and commits nothing more. "
                "Begin another one."
            )

    def _refuse_after_failure(self) -> None:
        self.refuse_after_end()
        # The backend forgets an upload that failed. Without this, a commit that is tried again
        # would find the object among `own` and refer to what was never stored.
        if self._failure is not None:
            raise StorageError(
                f"{self.store.backend.url}: an object of this transaction could not be stored "
                f"({str(self._failure) or type(self._failure).__name__}). Begin it again."
            ) from self._failure

    @property
    def shallow(self) -> frozenset[Digest]:
        return self.store.shallow

    def get(self, digest: Digest) -> Envelope:
        pending = self._pending.get(digest)
        if pending is not None:
            return pending.envelope()
        try:
            return self._readable(digest).get(digest)
        except NotFoundError:
            if digest in self.own:
                self.refuse_after_end()
            raise

    def describe(self, digest: Digest) -> ObjectLink:
        own = self.own.get(digest)
        return own if own is not None else self.store.describe(digest)

    def read_range(self, link: ObjectLink, start: int, stop: int) -> Buffer:
        return self._readable(link.digest).read_range(link, start, stop)

    def read_into(self, link: ObjectLink, start: int, buffer: memoryview) -> None:
        self._readable(link.digest).read_into(link, start, buffer)

    def read_checked(self, link: ObjectLink, start: int, stop: int, tag: bytes) -> Buffer:
        return self._readable(link.digest).read_checked(link, start, stop, tag)

    def read_spans(self, link: ObjectLink, spans: Sequence[CheckedSpan]) -> list[Buffer]:
        return self._readable(link.digest).read_spans(link, spans)

    def map(self, link: ObjectLink) -> memoryview | None:
        return self._readable(link.digest).map(link)

    def _readable(self, digest: Digest) -> ObjectStore:
        """The store, with all that was put visible in it."""
        if digest in self.own and self._unchecked:
            self.flush()
        return self.store

    def _adopt(self, key: str, link: ObjectLink) -> None:
        """Accept what lies under `key` when it is whole, else put the right bytes there."""
        backend = self.store.backend
        encoded = self._pending.get(link.digest)
        try:
            if encoded is None and not link.kind.compressible:
                self._check_size(key, link)
            else:
                decode_object(expand(backend.read(key), link.digest), link.digest)
        except CorruptError:
            if encoded is None:
                raise
            # Same name, same bytes: a repair, on which the commit relies.
            overwrite_durably(backend, key, stored_form(encoded))
        except NotFoundError:
            # A collector took it since it was seen there; the fence will store it once more.
            if encoded is None:
                raise CommitExpired(
                    f"{link.kind.label} {link.digest:.12} was collected while it was being put. "
                    "Add it again."
                ) from None
            backend.create(key, stored_form(encoded))

    def _check_size(self, key: str, link: ObjectLink) -> None:
        backend = self.store.backend
        found = backend.size(key)
        if found is None:
            raise NotFoundError(f"{backend.url} has no key {key!r}")
        if found != link.bytes:
            raise CorruptError(
                f"{key} in {backend.url} has {found} bytes, expected {link.bytes}. It was "
                "damaged after it was stored: `tensorrepo fsck --deep --repair` puts it away; then "
                "repeat the command."
            )
