"""Object store for readers: lookup, verification and a cache of small objects.

`ObjectStore` reads: it finds the incarnation of a digest (docs/spec/objects.md, "Keys and labels"),
verifies it, and remembers small ones. `writer.ObjectWriter` stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TypeVar

import msgspec

from tensorrepo.repo.backends.base import (
    Backend,
    BackendReadsOnce,
    ExpectsKeys,
    StreamsRanges,
    TellsState,
)
from tensorrepo.repo.errors import (
    CollectedError,
    CorruptError,
    Error,
    NotFoundError,
    PurgedError,
    StorageError,
)
from tensorrepo.repo.hashing.digests import content_tag, has_digest
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.log.state import Condemnation, State
from tensorrepo.repo.objects.cache import DiskCache, LimitedCache
from tensorrepo.repo.objects.envelope import (
    HEADER,
    ZSTD_MAGIC,
    CheckedSpan,
    Envelope,
    Kind,
    LinkTable,
    ObjectLink,
    decode_header,
    decode_object,
    decode_payload,
    encode_object,
    expand,
    mending,
)
from tensorrepo.repo.objects.history_pack import HistoryPacks
from tensorrepo.repo.objects.incarnations import GraveTable, object_key, parse_object_key
from tensorrepo.repo.objects.mapping import LEAST_MAPPED_BYTES, map_file, map_limit
from tensorrepo.repo.ranges import join_ranges

T = TypeVar("T")
_DIGEST_OF = attrgetter("digest")
_REMEMBERED_BYTES = 64 << 20
REMEMBER_UPTO_BYTES = 1 << 20
_REMEMBERED_LINKS = 1 << 17
_TABLES_BYTES = 1 << 20
VERIFY_BYTES = 8 << 20
_PACK_PAYLOAD = 1 << Kind.HISTORY_PACK.alignment  # behind the header of an object without links
assert HEADER.size < _PACK_PAYLOAD


class ObjectStore:
    """The objects of one repository, read and verified. Thread-safe."""

    def __init__(
        self,
        backend: Backend,
        condemned: Callable[[], tuple[Condemnation, ...]] = tuple,
        refresh: Callable[[], tuple[Condemnation, ...]] = tuple,
        cache: DiskCache | None = None,
        past: Callable[[Digest], bytes | None] | None = None,
        shallow: Callable[[], frozenset[Digest]] = frozenset,
        packs: Callable[[], tuple[Digest, ...]] = tuple,
        standing: Callable[[], State | None] = lambda: None,
    ) -> None:
        """Open the objects of `backend`.

        Args:
            backend: where they lie.
            condemned: graves of the newest state that this process has seen.
            refresh: graves after reading the log anew.
            cache: a disk cache for what comes from far away.
            past: gives commits that are at hand without asking the store for each. Only asked
                for commits that others name as their parents: for who walks back.
            shallow: commits whose parents are not here, by that newest state.
            packs: history packs of that newest state.
            standing: that state, where anything was purged or superseded.
        """
        self.backend = backend
        is_far = backend.local_root is None
        self.cache = cache.of(backend.url) if cache is not None and is_far else None
        # Asked for once: looking for the methods of a protocol costs half as much as a request.
        self._read_once = (
            backend.read_once if isinstance(backend, BackendReadsOnce) else backend.read_range
        )
        self._expecting = backend if isinstance(backend, ExpectsKeys) else None
        self._ways = backend if isinstance(backend, TellsState) else None
        self._condemned = condemned
        self._refresh = refresh
        self._past = past
        self._shallow = shallow
        self.packs = HistoryPacks(packs, self._open_pack)
        self.standing = standing
        self._tables: dict[Digest, GraveTable] = {}
        self._recent = LimitedCache[Envelope](_REMEMBERED_BYTES)
        self._links: dict[Digest, ObjectLink] = {}
        self.tables = LimitedCache[LinkTable](_TABLES_BYTES)  # of pages and commits put here
        self._maps = LimitedCache[memoryview](map_limit())
        # Where the data of a lazy clone is, asked for when it is first needed.
        self.promised: Callable[[], ObjectStore] | None = None
        # The lazy clone that reads here what it left, in the words of errors.
        self.read_for = ""

    @property
    def shallow(self) -> frozenset[Digest]:
        """Commits at which history ends here, in the newest state that this process has seen."""
        return self._shallow()

    def living(self, digest: Digest) -> Digest:
        """What stands for an object now: its twin where it was purged, what took its place where it
        was superseded, else itself.

        Raises:
            PurgedError: it was purged, and has no twin.
        """
        state = self.standing()
        if state is None:
            return digest
        twin = state.resolve(digest)
        if twin == digest and digest in state.purges:
            raise self._purged(digest, state.purges[digest])
        return twin

    def refuse_purged(self, digest: Digest) -> None:
        """Raise PurgedError for what was purged, be it that a twin stands for it."""
        state = self.standing()
        if state is not None and digest in state.purges:
            raise self._purged(digest, state.purges[digest])

    def _purged(self, digest: Digest, generation: int) -> PurgedError:
        if self.read_for:
            return PurgedError(
                f"object {digest:.12} was purged in {self.backend.url}, where {self.read_for}, a "
                "lazy clone, left it. `tensorrepo fetch` in the clone brings what stands for it "
                "now; what was made there of purged data must be made anew."
            )
        return PurgedError(
            f"object {digest:.12} in {self.backend.url} was purged: record {generation} of the log "
            "erased it for good, and it is not taken back. `tensorrepo purge --list` tells why; "
            "read what is there now anew, and make the change on that."
        )

    def get(self, digest: Digest) -> Envelope:
        """The whole object. Raises NotFoundError, or CorruptError when no copy is whole.

        Where it was purged, the twin that stands for it; PurgedError where none does.
        """
        digest = self.living(digest)
        known = self._recent.get(digest)
        if known is not None:
            return known
        if (away := self._away(digest)) is not None:
            return away.get(digest)
        envelope = self._from_cache(digest) or self._from_past(digest) or self._from_store(digest)
        self.remember(digest, envelope)
        return envelope

    def unlinked(self, digest: Digest) -> tuple[Kind, memoryview]:
        """Kind and payload of an object whose links nobody is going to follow; as `get` else.

        Links are most of what parsing and remembering a commit costs. Whoever asks for the object
        again asks the store again.
        """
        digest = self.living(digest)
        known = self._recent.get(digest)
        if known is None and self.promised is None:
            with suppress(NotFoundError, CorruptError):  # `get` looks further, or says what it is
                data = expand(self.backend.read(object_key(digest)), digest)
                if has_digest(data, digest):
                    return decode_payload(data)
        found = known or self.get(digest)
        return found.kind, found.payload

    def fetch(self, digest: Digest) -> Envelope:
        """The whole object from the store itself, past every cache. Raises as `get` does."""
        digest = self.living(digest)
        if (away := self._away(digest)) is not None:
            return away.fetch(digest)
        return self._from_store(digest)

    def stored(self, digest: Digest) -> Envelope:
        """As `fetch`, and never from the origin of a lazy clone: what lies here."""
        return self._from_store(digest)

    def describe(self, digest: Digest) -> ObjectLink:
        """What a parent says of the object, if one was read; else from its own header.

        Of what was purged, under its own name what its twin is.
        """
        linked = self._links.get(digest)
        if linked is not None:
            return linked
        if (living := self.living(digest)) != digest:
            return msgspec.structs.replace(self.describe(living), digest=digest)
        known = self._recent.get(digest)
        if known is not None:
            return known.link(digest)
        if (away := self._away(digest)) is not None:
            return away.describe(digest)
        if self.packs.holds(digest):
            return self.get(digest).link(digest)
        link = self._first(digest, lambda key: self._header(key, digest))
        # A header alone proves nothing, and parents keep what it says for ever: small objects are
        # read whole, which verifies them.
        if link is None or link.bytes <= REMEMBER_UPTO_BYTES:
            return self.get(digest).link(digest)
        return link

    def read_range(self, link: ObjectLink, start: int, stop: int) -> Buffer:
        """Payload bytes ``[start, stop)``, not verified."""
        self.refuse_purged(link.digest)
        if (away := self._away(link.digest)) is not None:
            return away.read_range(link, start, stop)
        if (packed := self._packed(link)) is not None:
            return packed.payload[start:stop]
        offset = self._payload_start(link)
        return self._first(
            link.digest, lambda key: self.backend.read_range(key, offset + start, offset + stop)
        )

    def read_envelope(self, digest: Digest, start: int, stop: int) -> Buffer:
        """Bytes ``[start, stop)`` of an object that is never compressed, not verified."""
        self.refuse_purged(digest)
        if (away := self._away(digest)) is not None:
            return away.read_envelope(digest, start, stop)
        if self.packs.holds(digest):
            found = self.get(digest)
            encoded = encode_object(found.kind, found.payload, found.links)
            return b"".join(encoded.parts)[start:stop]
        return self._first(digest, lambda key: self.backend.read_range(key, start, stop))

    def stream_envelope(self, digest: Digest, start: int, stop: int) -> Iterator[Buffer] | None:
        """As `read_envelope` while it comes; None where the store does not give it so."""
        self.refuse_purged(digest)
        if (away := self._away(digest)) is not None:
            return away.stream_envelope(digest, start, stop)
        backend = self.backend
        if not isinstance(backend, StreamsRanges) or self.packs.holds(digest):
            return None
        stream = backend.stream_range
        return self._first(digest, lambda key: stream(key, start, stop))

    def read_once(self, link: ObjectLink, start: int, stop: int) -> Buffer:
        """As `read_range` without repeating what fails for a moment: the caller does."""
        self.refuse_purged(link.digest)
        if (away := self._away(link.digest)) is not None:
            return away.read_once(link, start, stop)
        if (packed := self._packed(link)) is not None:
            return packed.payload[start:stop]
        offset = self._payload_start(link)
        read = self._read_once
        return self._first(link.digest, lambda key: read(key, offset + start, offset + stop))

    def expect_reads(self, links: Iterable[ObjectLink]) -> None:
        """Several ranges of each of these will be read soon: see `ExpectsReads`."""
        # A lazy clone would have to look whether each is here.
        if self._expecting is not None and self.promised is None:
            self._expecting.expect_keys({object_key(link.digest): link.bytes for link in links})

    def read_into(self, link: ObjectLink, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with payload bytes from `start`, not verified."""
        self.refuse_purged(link.digest)
        if (away := self._away(link.digest)) is not None:
            away.read_into(link, start, buffer)
            return
        if (packed := self._packed(link)) is not None:
            buffer[:] = packed.payload[start : start + buffer.nbytes]
            return
        offset = self._payload_start(link)
        self._first(link.digest, lambda key: self.backend.read_into(key, offset + start, buffer))

    def read_checked(self, link: ObjectLink, start: int, stop: int, tag: bytes) -> Buffer:
        """Payload bytes ``[start, stop)`` whose `content_tag` is `tag`.

        They come from the disk cache when it has them. A damaged answer is asked for once more.

        Raises:
            CorruptError: the bytes differ from `tag`, twice.
        """
        self.refuse_purged(link.digest)
        if (away := self._away(link.digest)) is not None:
            return away.read_checked(link, start, stop, tag)
        name = _span_name(link, start, stop, tag)
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
            f"{self.backend.url}: {link.kind.label} {link.digest:.12}, payload bytes {start} to "
            f"{stop}: expected tag {tag.hex():.16}, found {found.hex():.16}. "
            f"{mending(self, link.digest)}."
        )

    def read_spans(self, link: ObjectLink, spans: Sequence[CheckedSpan]) -> list[Buffer]:
        """As `read_checked` for each of `spans`, those that lie together in one request."""
        self.refuse_purged(link.digest)
        if (away := self._away(link.digest)) is not None:
            return away.read_spans(link, spans)
        found: dict[CheckedSpan, Buffer] = {span: b"" for span in spans if span.start == span.stop}
        missing = []
        for span in dict.fromkeys(span for span in spans if span not in found):
            cached = self.cache.get(_span_name(link, *span)) if self.cache is not None else None
            if cached is None:
                missing.append(span)
            else:
                found[span] = cached
        for start, stop, members in join_ranges([(span.start, span.stop) for span in missing]):
            data = memoryview(self.read_range(link, start, stop))
            for span in (missing[position] for position in members):
                part = data[span.start - start : span.stop - start]
                if content_tag(part) != span.tag:
                    found[span] = self.read_checked(link, *span)  # asks once more, and complains
                    continue
                if self.cache is not None:
                    self.cache.put(_span_name(link, *span), (part,))
                found[span] = part
        return [found[span] for span in spans]

    def place(self, digest: Digest) -> str:
        """See `KnowsPlaces`."""
        return (self._away(digest) or self).backend.url

    def map(self, link: ObjectLink) -> memoryview | None:
        """The payload as it lies on this machine's disk, private and copy-on-write, else None:
        also where the system has no room for a map, and it must be read.
        """
        self.refuse_purged(link.digest)
        if (away := self._away(link.digest)) is not None:
            return away.map(link)
        if self.backend.local_root is None or self._packed(link) is not None:
            return None
        known = self._maps.get(link.digest)
        if known is not None:
            return known
        made = self._mapped(link)
        if made is None:
            self._maps.clear()  # what nobody looks at makes room
            made = self._mapped(link)
        if made is not None:
            self._maps.put(link.digest, made, max(made.nbytes, LEAST_MAPPED_BYTES))
        return made

    def _mapped(self, link: ObjectLink) -> memoryview | None:
        whole = self._first(link.digest, self._map_key)
        if whole is None:
            return None
        if whole.nbytes != link.bytes:
            raise CorruptError(
                f"{link.kind.label} {link.digest:.12}: expected {link.bytes} bytes, "
                f"found {whole.nbytes}. {mending(self, link.digest)}."
            )
        return whole[self._payload_start(link) :]

    def label(self, digest: Digest, graves: Sequence[Condemnation]) -> int:
        """The label that `digest` must be stored under by who knows of `graves`; 0 is no label.

        Where a collection merged tables since and took them, it is the newest label of all. Those
        that are read then may be merged and taken as well, as long as others collect.
        """
        while True:
            try:
                return max((self.table(grave).label(digest) for grave in graves), default=0)
            except NotFoundError:
                before, graves = graves, self._refresh()
                if graves == before:
                    raise

    def known_label(self, digest: Digest, graves: Sequence[Condemnation]) -> int:
        """As `label` by those tables that can be read: enough for who only looks for an object."""
        label = 0
        for grave in graves:
            with suppress(CorruptError, NotFoundError):
                label = max(label, self.table(grave).label(digest))
        return label

    def table(self, grave: Condemnation) -> GraveTable:
        """The table of one condemnation, verified."""
        known = self._tables.get(grave.graves)
        if known is None:
            known = GraveTable(self._from_store(grave.graves, tables=False).payload)
            self._keep_table(grave.graves, known)
        return known

    def _keep_table(self, name: Digest, table: GraveTable) -> None:
        # Collections merge tables: when one of the newest comes, those that were merged go. Those
        # of an older state stay till then, for a writer that asks by them for each object.
        newest = {grave.graves for grave in self._condemned()}
        kept = self._tables
        if name in newest:
            kept = {each: old for each, old in kept.items() if each in newest}
        self._tables = {**kept, name: table}  # a new one: other threads go through the old

    def stored_bytes(self, digest: Digest, label: int) -> int | None:
        """Bytes on disk of one incarnation, None when it is absent."""
        return self.backend.size(object_key(digest, label))

    def find(self, digits: str) -> Iterator[Digest]:
        """Digests that start with `digits` (2 or more), each once."""
        seen: set[Digest] = set()
        first = bytes.fromhex(digits[: len(digits) // 2 * 2])
        for table in self.packs.readable():
            for raw in table.digests(first):
                if not (digest := Digest(raw.hex())).startswith(digits):
                    if digest > digits:
                        break
                elif digest not in seen:
                    seen.add(digest)
                    yield digest
        for stored in self.backend.list(f"objects/{digits[:2]}/"):
            parsed = parse_object_key(stored.key)
            if parsed and parsed[0].startswith(digits) and parsed[0] not in seen:
                seen.add(parsed[0])
                yield parsed[0]

    def forget(self, digests: Iterable[Digest]) -> None:
        """Keep nothing of these objects in memory, but where somebody looks at it."""
        for digest in digests:
            self._recent.drop(digest)
            self._maps.drop(digest)

    def remember(
        self, digest: Digest, envelope: Envelope, come: Sequence[ObjectLink] | None = None
    ) -> None:
        """Keep a verified object in memory, when it is small, and what it says of its children.

        Where `come` says which links the object before it had not, only those are new.
        """
        self._note_way(digest, envelope)
        links = envelope.links if come is None else come
        if len(self._links) + len(links) > _REMEMBERED_LINKS:
            self._links.clear()
        # A tree page links to hundreds: no call of Python for each.
        self._links.update(zip(map(_DIGEST_OF, links), links, strict=True))
        if envelope.payload.nbytes <= REMEMBER_UPTO_BYTES:
            self._recent.put(digest, envelope, _cost(envelope))

    def _note_way(self, digest: Digest, envelope: Envelope) -> None:
        """Tell a backend that reads by ways what an object leads to."""
        if self._ways is not None and envelope.links:
            state = self.standing()
            names = [link.digest for link in envelope.links if link.kind is not Kind.COMMIT]
            self._ways.note_links(digest, names)
            if state is not None:
                self._ways.note_links(digest, [state.resolve(name) for name in names])

    def _packed(self, link: ObjectLink) -> Envelope | None:
        """An object that a history pack has, where its kind may be in one."""
        if not link.kind.may_be_packed or not self.packs.holds(link.digest):
            return None
        return self.get(link.digest)

    def _away(self, digest: Digest) -> ObjectStore | None:
        """Where an object is that a lazy clone left at its origin; None where it is here."""
        if self.promised is None:
            return None
        labels = {0, self.known_label(digest, self._condemned())}
        if self.packs.holds(digest) or any(
            self.stored_bytes(digest, label) is not None for label in labels
        ):
            return None
        return self.promised()

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
        for read in self._copies(digest, tables=tables):
            for _ in range(2):
                try:
                    data = expand(read(), digest)
                    envelope = decode_object(data, digest)
                except NotFoundError:
                    break
                except CorruptError as error:
                    damaged = error
                else:
                    if self.cache is not None and envelope.kind.compressible:
                        self.cache.put(digest, (data,))
                    self._note_way(digest, envelope)
                    return envelope
        if damaged is None:
            if (twin := self.living(digest)) != digest:
                return self._from_store(twin)  # it was purged since this process read the log
            raise self._missing(digest)
        # Who reads through a lazy clone does not know in which of two repositories that was.
        raise CorruptError(f"{self.backend.url}: {damaged}") from damaged

    def _copies(self, digest: Digest, *, tables: bool) -> Iterator[Callable[[], bytes]]:
        """What reads each copy of an object, most likely first, the costly ways last."""
        for number, key in enumerate(self._keys(digest, tables=tables)):
            yield partial(self.backend.read, key)
            if tables and not number:
                yield partial(self.packs.read, digest)
        if tables:  # by now the log was read anew
            yield partial(self.packs.read, digest)

    def _open_pack(self, name: Digest) -> Callable[[int, int], Buffer]:
        """What reads ranges of the payload of a history pack."""
        start = _PACK_PAYLOAD
        if self.backend.local_root is not None:
            whole = self._first(name, self._map_key)
            if whole is not None:
                return lambda first, stop: whole[start + first : start + stop]
        return lambda first, stop: self._first(
            name, lambda key: self.backend.read_range(key, start + first, start + stop)
        )

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
                key = object_key(digest, self.known_label(digest, [grave]))
                if key not in tried:
                    tried.add(key)
                    yield key
        for stored in self.backend.list(f"objects/{digest[:2]}/"):
            parsed = parse_object_key(stored.key)
            if parsed and parsed[0] == digest and stored.key not in tried:
                yield stored.key

    def _header(self, key: str, digest: Digest) -> ObjectLink | None:
        """What the header under `key` says; None when it is compressed."""
        head = self.backend.read_range(key, 0, HEADER.size)
        if bytes(head[:4]) == ZSTD_MAGIC:
            return None
        kind, links, start, payload_bytes = decode_header(memoryview(head), digest)
        if (found := self.backend.size(key)) is None:
            raise NotFoundError(f"no {key} in {self.backend.url}: it was taken while it was read")
        if found != start + payload_bytes:
            raise CorruptError(
                f"{key} in {self.backend.url}: its header promises {start + payload_bytes} bytes, "
                f"found {found}. {mending(self, digest)}."
            )
        return ObjectLink(digest, found, kind, links == 0)

    def _map_key(self, key: str) -> memoryview | None:
        root = self.backend.local_root
        assert root is not None, "only a local store is mapped"
        try:
            return map_file(root / key)
        except FileNotFoundError as error:
            raise NotFoundError(f"no {key} in {self.backend.url}") from error
        except (OSError, ValueError) as error:
            raise StorageError(f"cannot map {key} of {self.backend.url}: {error}") from error

    def _payload_start(self, link: ObjectLink) -> int:
        if link.payload_start is not None:
            return link.payload_start
        head = self._first(link.digest, lambda key: self.backend.read_range(key, 0, HEADER.size))
        return decode_header(memoryview(head), link.digest)[2]

    def _missing(self, digest: Digest) -> Error:
        # Looking for it read the log anew: what was purged since this process last did is told.
        state = self.standing()
        if state is not None and digest in state.purges:
            return self._purged(digest, state.purges[digest])
        # By now every table was asked; of one that cannot be read nothing is known.
        tables = self._tables.values()
        if self.read_for:
            return NotFoundError(
                f"object {digest:.12} is not in {self.backend.url} any more, where {self.read_for}"
                ", a lazy clone, left it. `tensorrepo fetch` in the clone brings what stands there "
                "for it now, if anything does."
            )
        if label := max((table.label(digest) for table in tables), default=0):
            return CollectedError(
                f"object {digest:.12} in {self.backend.url} was collected: no ref led to it any "
                f"more when record {label} of the log was written. Add or fetch it again."
            )
        return NotFoundError(
            f"no object {digest:.12} in {self.backend.url}. If a commit needs it, `tensorrepo fsck "
            "--repair` fetches it from a copy; a shallow or interrupted one may lack it."
        )


def _span_name(link: ObjectLink, start: int, stop: int, tag: bytes) -> str:
    """What a range is called in the disk cache; whoever names other tags is given other bytes."""
    return f"{link.digest}.{start}-{stop}.{tag.hex()}"


def _cost(envelope: Envelope) -> int:
    return envelope.payload.nbytes + 200 * len(envelope.links) + 500
