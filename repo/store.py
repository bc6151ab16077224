"""Where do an object's bytes come from, and are they what their name says?

`ObjectStore` reads: it finds the incarnation of a digest (docs/spec/objects.md, "Keys and labels"),
verifies it, and remembers small ones. `ObjectWriter` stores: it keeps to rules W1 and W2 of
garbage collection (see `fence`) and makes everything durable at once.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import zstandard

from tensorrepo.repo.errors import CommitExpired, CorruptError, NotFoundError, StorageError
from tensorrepo.repo.graves import GraveTable, object_key, parse_object_key
from tensorrepo.repo.ids import content_tag
from tensorrepo.repo.objects import (
    HEADER,
    EncodedObject,
    Envelope,
    Kind,
    Link,
    decode_header,
    decode_object,
    encode_object,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tensorrepo.repo.backends.base import Backend
    from tensorrepo.repo.cache import DiskCache
    from tensorrepo.repo.ids import Buffer, Digest
    from tensorrepo.repo.state import Grave

T = TypeVar("T")
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_COMPRESS_FROM_BYTES = 512
_COMPRESS_UPTO_BYTES = 64 << 20
_SMALLEST_STORED_BYTES = 64  # so that reading the first 32 bytes of any object works
_REMEMBERED_BYTES = 64 << 20
_REMEMBER_UPTO_BYTES = 1 << 20
_PENDING_BYTES = 64 << 20
_REMEMBERED_LINKS = 1 << 17
_MAPS = 4096


class ObjectStore:
    """The objects of one repository, read and verified. Thread-safe."""

    def __init__(
        self,
        backend: Backend,
        condemned: Callable[[], tuple[Grave, ...]] = tuple,
        refresh: Callable[[], tuple[Grave, ...]] = tuple,
        cache: DiskCache | None = None,
        past: Callable[[Digest], bytes | None] | None = None,
    ) -> None:
        """Open the objects of `backend`.

        Args:
            backend: where they lie.
            condemned: graves of the newest state that this process has seen.
            refresh: graves after reading the log anew.
            cache: a disk cache for what comes from far away.
            past: gives commits that are at hand without asking the store for each. Only asked
                for commits that others name as their parents: for who walks back.
        """
        self.backend = backend
        self.cache = cache if backend.local_root is None else None
        self._condemned = condemned
        self._refresh = refresh
        self._past = past
        self._tables: dict[Digest, GraveTable] = {}
        self._recent = _Recent(_REMEMBERED_BYTES)
        self._links: dict[Digest, Link] = {}
        self._maps: OrderedDict[Digest, memoryview] = OrderedDict()
        self._lock = Lock()

    def get(self, digest: Digest) -> Envelope:
        """The whole object. Raises NotFoundError, or CorruptError when no copy is whole."""
        known = self._recent.get(digest)
        if known is not None:
            return known
        envelope = self._from_cache(digest) or self._from_past(digest) or self._from_store(digest)
        self.remember(digest, envelope)
        return envelope

    def describe(self, digest: Digest) -> Link:
        """What a parent says of the object, if one was read; else from its own header."""
        linked = self._links.get(digest)
        if linked is not None:
            return linked
        known = self._recent.get(digest)
        if known is not None:
            return known.link(digest)
        link = self._first(digest, lambda key: self._header(key, digest))
        # A header alone proves nothing, and parents keep what it says for ever: small objects are
        # read whole, which verifies them.
        if link is None or link.bytes <= _REMEMBER_UPTO_BYTES:
            return self.get(digest).link(digest)
        return link

    def read_range(self, link: Link, start: int, stop: int) -> Buffer:
        """Payload bytes ``[start, stop)``, not verified."""
        offset = self._payload_start(link)
        return self._first(
            link.digest, lambda key: self.backend.read_range(key, offset + start, offset + stop)
        )

    def read_into(self, link: Link, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with payload bytes from `start`, not verified."""
        offset = self._payload_start(link)
        self._first(link.digest, lambda key: self.backend.read_into(key, offset + start, buffer))

    def read_checked(self, link: Link, start: int, stop: int, tag: bytes) -> Buffer:
        """Payload bytes ``[start, stop)`` whose `content_tag` is `tag`.

        They come from the disk cache when it has them. A damaged answer is asked for once more.

        Raises:
            CorruptError: the bytes differ from `tag`, twice.
        """
        name = f"{link.digest}.{start}-{stop}"
        if self.cache is not None and (cached := self.cache.get(name)) is not None:
            return cached
        for _ in range(2):
            data = self.read_range(link, start, stop)
            found = content_tag(data)
            if found == tag:
                if self.cache is not None:
                    self.cache.put(name, (data,))
                return data
        raise CorruptError(
            f"{link.kind.label} {link.digest:.12}, payload bytes {start} to {stop}: expected tag "
            f"{tag.hex():.16}, found {found.hex():.16}. Run `tensorrepo doctor`; restore the "
            "object from a copy of the repository."
        )

    def map(self, link: Link) -> memoryview | None:
        """The payload as it lies on this machine's disk, private and copy-on-write, else None."""
        if self.backend.local_root is None:
            return None
        with self._lock:
            known = self._maps.get(link.digest)
            if known is not None:
                self._maps.move_to_end(link.digest)
                return known
        whole = self._first(link.digest, self._map_key)
        if whole.nbytes != link.bytes:
            raise CorruptError(
                f"{link.kind.label} {link.digest:.12}: expected {link.bytes} bytes, "
                f"found {whole.nbytes}. Restore it from a copy of the repository."
            )
        payload = whole[self._payload_start(link) :]
        with self._lock:
            self._maps[link.digest] = payload
            if len(self._maps) > _MAPS:
                self._maps.popitem(last=False)
        return payload

    def label(self, digest: Digest, graves: Sequence[Grave]) -> int:
        """The label that `digest` must be stored under by who knows of `graves`; 0 is no label."""
        return max((self.table(grave).label(digest) for grave in graves), default=0)

    def table(self, grave: Grave) -> GraveTable:
        """The table of one condemnation, verified."""
        known = self._tables.get(grave.graves)
        if known is None:
            known = GraveTable(self._from_store(grave.graves, tables=False).payload)
            self._tables[grave.graves] = known
        return known

    def stored_bytes(self, digest: Digest, label: int) -> int | None:
        """Bytes on disk of one incarnation, None when it is absent."""
        return self.backend.size(object_key(digest, label))

    def find(self, digits: str) -> Iterator[Digest]:
        """Digests that start with `digits` (2 or more), each once."""
        seen: set[Digest] = set()
        for stored in self.backend.list(f"objects/{digits[:2]}/"):
            parsed = parse_object_key(stored.key)
            if parsed and parsed[0].startswith(digits) and parsed[0] not in seen:
                seen.add(parsed[0])
                yield parsed[0]

    def remember(self, digest: Digest, envelope: Envelope) -> None:
        """Keep a verified object in memory, when it is small, and what it says of its children."""
        if len(self._links) + len(envelope.links) > _REMEMBERED_LINKS:
            self._links.clear()
        self._links.update((link.digest, link) for link in envelope.links)
        if envelope.payload.nbytes <= _REMEMBER_UPTO_BYTES:
            self._recent.put(digest, envelope)

    def _from_cache(self, digest: Digest) -> Envelope | None:
        data = self.cache.get(digest) if self.cache is not None else None
        if data is None:
            return None
        try:
            return decode_object(data, digest)
        except CorruptError:
            return None  # the store is the next source; a new copy replaces this one

    def _from_past(self, digest: Digest) -> Envelope | None:
        linked = self._links.get(digest)
        if self._past is None or linked is None or linked.kind is not Kind.COMMIT:
            return None
        data = self._past(digest)
        if data is None:
            return None
        try:
            envelope = decode_object(data, digest)
        except CorruptError:
            return None  # the store is the next source
        if self.cache is not None:
            self.cache.put(digest, (data,))
        return envelope

    def _from_store(self, digest: Digest, *, tables: bool = True) -> Envelope:
        damaged: CorruptError | None = None
        for key in self._keys(digest, tables=tables):
            for _ in range(2):
                try:
                    data = expand(self.backend.read(key), digest)
                    envelope = decode_object(data, digest)
                except NotFoundError:
                    break
                except CorruptError as error:
                    damaged = error
                else:
                    if self.cache is not None and envelope.kind.compressible:
                        self.cache.put(digest, (data,))
                    return envelope
        raise damaged or self._missing(digest)

    def _first(self, digest: Digest, read: Callable[[str], T]) -> T:
        for key in self._keys(digest):
            try:
                return read(key)
            except NotFoundError:
                continue
        raise self._missing(digest)

    def _keys(self, digest: Digest, *, tables: bool = True) -> Iterator[str]:
        """Where to look, most likely first; each key once, the costly ways last."""
        tried = {object_key(digest)}
        yield object_key(digest)
        for graves in (self._condemned, self._refresh) if tables else ():
            for grave in sorted(graves(), key=lambda grave: -grave.generation):
                label = self.table(grave).label(digest)
                key = object_key(digest, label)
                if key not in tried:
                    tried.add(key)
                    yield key
        for stored in self.backend.list(f"objects/{digest[:2]}/"):
            parsed = parse_object_key(stored.key)
            if parsed and parsed[0] == digest and stored.key not in tried:
                yield stored.key

    def _header(self, key: str, digest: Digest) -> Link | None:
        """What the header under `key` says; None when it is compressed."""
        head = self.backend.read_range(key, 0, HEADER.size)
        if bytes(head[:4]) == ZSTD_MAGIC:
            return None
        kind, links, start, payload_bytes = decode_header(memoryview(head), digest)
        found = self.backend.size(key)
        if found != start + payload_bytes:
            raise CorruptError(
                f"{key} in {self.backend.url}: its header promises {start + payload_bytes} bytes, "
                f"found {found}. Restore it from a copy of the repository."
            )
        return Link(digest, found, kind, links == 0)

    def _map_key(self, key: str) -> memoryview:
        root = self.backend.local_root
        assert root is not None, "only a local store is mapped"
        try:
            with (root / key).open("rb") as file:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        except FileNotFoundError as error:
            raise NotFoundError(f"no {key} in {self.backend.url}") from error
        except (OSError, ValueError) as error:
            raise StorageError(f"cannot map {key} of {self.backend.url}: {error}") from error

    def _payload_start(self, link: Link) -> int:
        if link.payload_start is not None:
            return link.payload_start
        head = self._first(link.digest, lambda key: self.backend.read_range(key, 0, HEADER.size))
        return decode_header(memoryview(head), link.digest)[2]

    def _missing(self, digest: Digest) -> NotFoundError:
        return NotFoundError(
            f"no object {digest:.12} in {self.backend.url}. If a commit needs it, run "
            "`tensorrepo doctor`; a shallow or interrupted copy may lack it."
        )


class ObjectWriter:
    """Stores objects of one transaction under the keys that its pin prescribes (rule W1).

    Reads see what was put, also before it is durable. Thread-safe but for `flush`. Once storing
    anything failed, nothing of this writer may be relied on: every later `put` and `flush` says so.
    """

    def __init__(self, store: ObjectStore, graves: tuple[Grave, ...]) -> None:
        self.store = store
        self.graves = graves
        self.own: dict[Digest, Link] = {}
        self._uploads = store.backend.uploads()
        self._unchecked: dict[str, Link] = {}
        # Small objects that are not durable yet, for reading and for repairs; within a limit.
        self._pending: dict[Digest, EncodedObject] = {}
        self._pending_bytes = 0
        self._failure: BaseException | None = None
        self._lock = Lock()

    def put(
        self, kind: Kind, payload: Buffer | Sequence[Buffer], links: Iterable[Digest] = ()
    ) -> Link:
        """Store one object; durable after `flush`. Its parts must not change before that."""
        return self.put_encoded(
            encode_object(kind, payload, [self.describe(digest) for digest in links])
        )

    def put_encoded(self, encoded: EncodedObject) -> Link:
        """Store an object whose links are known to be right."""
        if encoded.link.digest not in self.own or self._failure is not None:
            self._start(encoded)
        return encoded.link

    def put_again(self, envelope: Envelope) -> Link:
        """Store what was read under the label that `graves` prescribe now."""
        encoded = encode_object(envelope.kind, envelope.payload, envelope.links)
        self._start(encoded)
        return encoded.link

    def _start(self, encoded: EncodedObject) -> None:
        link = encoded.link
        key = object_key(link.digest, self.store.label(link.digest, self.graves))
        with self._storing():
            with self._lock:
                self.own[link.digest] = link
                self._unchecked[key] = link
                self._hold(encoded)
            self._uploads.create(key, stored_form(encoded))

    def _hold(self, encoded: EncodedObject) -> None:
        """Keep a small object until `flush`; the oldest give way, they can be read back."""
        digest, size = encoded.link.digest, encoded.link.bytes
        if size > _REMEMBER_UPTO_BYTES or digest in self._pending:
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
        with self._storing():
            for key, created in self._uploads.finish().items():
                if not created and key in self._unchecked:
                    self._adopt(key, self._unchecked[key])
        for digest, encoded in self._pending.items():
            self.store.remember(digest, decode_object(b"".join(encoded.parts)))
        self._forget()

    def abort(self) -> None:
        """Forget what is not durable. What was stored is garbage, and harmless."""
        self._uploads.abort()
        self._forget()

    def _forget(self) -> None:
        self._pending.clear()
        self._pending_bytes = 0
        self._unchecked.clear()

    @contextmanager
    def _storing(self) -> Iterator[None]:
        # The backend forgets an upload that failed. Without this, a commit that is tried again
        # would find the object among `own` and refer to what was never stored.
        if self._failure is not None:
            raise StorageError(
                f"{self.store.backend.url}: an object of this transaction could not be stored "
                f"({self._failure}). Begin it again."
            ) from self._failure
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise

    def get(self, digest: Digest) -> Envelope:
        pending = self._pending.get(digest)
        if pending is not None:
            return decode_object(b"".join(pending.parts))
        return self._readable(digest).get(digest)

    def describe(self, digest: Digest) -> Link:
        own = self.own.get(digest)
        return own if own is not None else self.store.describe(digest)

    def read_range(self, link: Link, start: int, stop: int) -> Buffer:
        return self._readable(link.digest).read_range(link, start, stop)

    def read_into(self, link: Link, start: int, buffer: memoryview) -> None:
        self._readable(link.digest).read_into(link, start, buffer)

    def read_checked(self, link: Link, start: int, stop: int, tag: bytes) -> Buffer:
        return self._readable(link.digest).read_checked(link, start, stop, tag)

    def map(self, link: Link) -> memoryview | None:
        return self._readable(link.digest).map(link)

    def _readable(self, digest: Digest) -> ObjectStore:
        """The store, with all that was put visible in it."""
        if digest in self.own and self._unchecked:
            self.flush()
        return self.store

    def _adopt(self, key: str, link: Link) -> None:
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
            backend.overwrite(key, stored_form(encoded))  # same name, same bytes: a repair
        except NotFoundError:
            # A collector took it since it was seen there; the fence will store it once more.
            if encoded is None:
                raise CommitExpired(
                    f"{link.kind.label} {link.digest:.12} was collected while it was being put. "
                    "Add it again."
                ) from None
            backend.create(key, stored_form(encoded))

    def _check_size(self, key: str, link: Link) -> None:
        backend = self.store.backend
        found = backend.size(key)
        if found is None:
            raise NotFoundError(f"{backend.url} has no key {key!r}")
        if found != link.bytes:
            raise CorruptError(
                f"{key} in {backend.url} has {found} bytes, expected {link.bytes}. It was "
                "damaged after it was stored: delete that one file and repeat the command."
            )


def stored_form(encoded: EncodedObject) -> tuple[Buffer, ...]:
    """The bytes to store: metadata is zstd-compressed where that pays. Names never depend on it."""
    size = encoded.link.bytes
    compressible = encoded.link.kind.compressible
    if not compressible or not _COMPRESS_FROM_BYTES <= size <= _COMPRESS_UPTO_BYTES:
        return encoded.parts
    packed = zstandard.ZstdCompressor(level=3).compress(b"".join(encoded.parts))
    worth = _SMALLEST_STORED_BYTES <= len(packed) <= size * 7 // 8
    return (packed,) if worth else encoded.parts


def expand(data: bytes, digest: Digest) -> bytes:
    """The envelope's own bytes, of what was stored."""
    if data[:4] != ZSTD_MAGIC:
        return data
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= _COMPRESS_UPTO_BYTES:
            raise CorruptError(
                f"object {digest:.12}: its compressed form claims {size} bytes, at most "
                f"{_COMPRESS_UPTO_BYTES} are ever stored so"
            )
        return zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise CorruptError(
            f"object {digest:.12}: its compressed form is damaged: {error}"
        ) from None


class _Recent:
    """The objects used last, within a byte limit."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._items: OrderedDict[Digest, Envelope] = OrderedDict()
        self._lock = Lock()

    def get(self, digest: Digest) -> Envelope | None:
        with self._lock:
            found = self._items.get(digest)
            if found is not None:
                self._items.move_to_end(digest)
            return found

    def put(self, digest: Digest, envelope: Envelope) -> None:
        with self._lock:
            if digest in self._items:
                return
            self._items[digest] = envelope
            self._bytes += _cost(envelope)
            while self._bytes > self._limit_bytes:
                self._bytes -= _cost(self._items.popitem(last=False)[1])


def _cost(envelope: Envelope) -> int:
    return envelope.payload.nbytes + 200 * len(envelope.links) + 500
