"""Packing of old history: commits, tree pages and small files go from keys of their own into packs.

Only where an object lies changes, never its name, and at each moment it lies in one place at least:

1. a pack with all of them is stored, and read back;
2. a record of the log lists it, so that whoever misses a member under its own key looks there;
3. a condemnation names the members' own keys, and buries nothing: the objects are still here. They
   are deleted, and a record ends it, as of any collection.

A member stays listed until a collection has buried it as garbage. So a writer may rely on a key
that is about to go, and a deletion that comes late does no harm. Packs that are small are joined by
the next that is made, and worn ones made anew, without what was buried since they were made.

Source:
    docs/design/076-history-lies-in-packs.md; docs/spec/objects.md, section "History packs".
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from tensorrepo.repo.changes.gc_collect import (
    MOST_KEYS,
    CollectionRules,
    PackingReport,
    Progress,
    StoreTimes,
    append_record,
    appended_condemnation,
    beside_others,
    condemnation_entry,
    delete_condemned,
    is_known_key,
    log_entry,
    refuse_collection,
)
from tensorrepo.repo.changes.gc_marks import PACKED, READING_THREADS, SOME, ObjectTable
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.ids import Buffer, Digest, digest_bytes
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.repo.log.state import MOST_PACKS, PACKS_FEATURE, PACKS_KEY, State
from tensorrepo.repo.objects.envelope import Kind, decode_object, encode_object
from tensorrepo.repo.objects.history_pack import MOST_ENVELOPE_BYTES, PackTable, PackWriter
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.threads import ordered_map

LEAST_MEMBERS: Final = 256  # of a new pack: fewer wait for the next time
PACK_BYTES: Final = 8 << 20
PACK_MEMBERS: Final = 1 << 17  # whose table has 6 MB
WORN_SHARE: Final = 0.5
_AT_ONCE: Final = 256  # objects that are read before it is asked whether a pack is full


def pack_history(
    repository: RepositoryCore,
    *,
    actor: str,
    rules: CollectionRules,
    progress: Progress = lambda _what, _done, _total: None,
    least: int = LEAST_MEMBERS,
) -> PackingReport:
    """Put commits and tree pages that are older than the grace into packs.

    Safe beside writers and collections, and may be stopped at any moment, as `collect_garbage`.

    Args:
        repository: where.
        actor: who, as the log tells it.
        rules: whose grace spares young objects.
        progress: as of `collect_garbage`.
        least: number of objects for which a pack is made.

    Raises:
        UnsupportedError: the store can only be read, or a newer version uses this repository.
        NotFoundError, CorruptError: something of the history, or a pack, cannot be read. What was
            packed before is packed; nothing else was deleted.
    """
    refuse_collection(repository, repository.log.refresh())
    packing = partial(_Packing.of, repository, actor, rules, progress)
    return beside_others(repository, lambda: packing().run(least))


@dataclass(slots=True)
class _Packing:
    """One pass: list, walk, pack, delete."""

    repository: RepositoryCore
    actor: str
    progress: Progress
    state: State
    latest: float  # the last second of which objects are packed
    tables: list[PackTable]
    rows: ObjectTable

    @classmethod
    def of(
        cls, repository: RepositoryCore, actor: str, rules: CollectionRules, progress: Progress
    ) -> _Packing:
        view = repository.log.refresh()
        moment = StoreTimes.of(repository, view)
        tables = repository.objects.packs.tables()
        rows = ObjectTable(repository.backend, partial(progress, "listing"), tables)
        latest = moment.now - rules.grace_seconds
        return cls(repository, actor, progress, view.state, latest, tables, rows)

    def run(self, least: int) -> PackingReport:
        for table in [*self.tables]:
            self._rewrite(table)
        loose, packed = self._sorted_out()
        waiting: Iterator[int] = iter(loose)
        made = count = 0
        while len(loose) >= least and len(self.tables) + made < MOST_PACKS:
            if not (members := self._pack(waiting, first=not made)):
                break
            packed.extend(members)
            made, count = made + 1, count + len(members)
        freed = 0
        keys = iter(packed)
        while batch := tuple(islice(keys, MOST_KEYS)):
            freed += self._free(batch)
        left = len(self.repository.log.refresh().state.history_packs)
        return PackingReport(count, made, freed, left)

    def _sorted_out(self) -> tuple[array[int], array[int]]:
        """Rows of objects of history that are in no pack, the newest first; keys of those that are.

        Of the former one of each object, and one alone where it lies under several keys.
        """
        loose, packed = array("Q"), array("Q")
        for first in self._history():
            own = [number for number in self._places(first) if self._may_go(number)]
            if self._home(self.rows[first].digest, self.state) is not None:
                packed.extend(own)
            else:
                loose.extend(own[:1])
        return loose, packed

    def _may_go(self, number: int) -> bool:
        """Whether a row is a key of an object that is old and small."""
        row = self.rows[number]
        if row.seconds > self.latest or row.bytes > MOST_ENVELOPE_BYTES or row.label == PACKED:
            return False
        return is_known_key(self.repository.objects, self.state, row)

    def _places(self, first: int) -> Iterator[int]:
        """Rows of the object whose first row is given."""
        digest = self.rows[first].digest
        for number in range(first, len(self.rows)):
            if self.rows[number].digest != digest:
                return
            yield number

    def _home(self, digest: Digest, state: State) -> Digest | None:
        """The pack that has an object for good: none that was made before it was last buried."""
        store = self.repository.objects
        return store.packs.home(digest, store.label(digest, state.graves))

    def _history(self) -> Iterator[int]:
        """First rows of commits and of the pages of their trees, the newest first, each once."""
        objects = self.repository.objects
        roots = sorted({*self.state.refs.values(), *self.state.retained})
        tips = [root for root in roots if objects.describe(root).kind is Kind.COMMIT]
        seen = bytearray(len(self.rows))
        commits = (digest for digest, _ in walk(objects, tips))
        while batch := [*islice(commits, SOME)]:
            level = batch
            while level:
                new = []
                for digest in level:
                    at = self.rows.find(digest_bytes(digest))
                    if at >= 0 and not seen[at]:
                        seen[at] = 1
                        new.append(digest)
                        yield at
                found = [*self._read_all(new, self._children_of)]
                for blob in (blob for _, blobs in found for blob in blobs):
                    at = self.rows.find(digest_bytes(blob))
                    if at >= 0 and not seen[at]:
                        seen[at] = 1
                        yield at
                level = [page for pages, _ in found for page in pages]
            self.progress("looking at history in", sum(seen) if len(batch) < SOME else 0, 0)

    def _read_all(self, items: Sequence[Any], read: Callable[[Any], Any]) -> Iterator[Any]:
        threads = READING_THREADS if self.repository.backend.local_root is None else 0
        return ordered_map(items, read, threads=threads)

    def _children_of(self, digest: Digest) -> tuple[list[Digest], list[Digest]]:
        """Pages of trees that a commit or a page leads to, and small files."""
        links = self.repository.objects.get(digest).links
        small = [link for link in links if link.bytes <= MOST_ENVELOPE_BYTES]
        return (
            [link.digest for link in links if link.kind is Kind.TREE_PAGE],
            [link.digest for link in small if link.kind is Kind.BLOB and link.leaf],
        )

    def _envelope(self, number: int) -> tuple[int, bytes] | None:
        """The bytes of an object, verified; None where it is too large for a pack."""
        digest = self.rows[number].digest
        found = self.repository.objects.fetch(digest)
        encoded = encode_object(found.kind, found.payload, found.links)
        if encoded.link.digest != digest:
            raise CorruptError(f"object {digest:.12} is not what its own parts make")
        if encoded.link.bytes > MOST_ENVELOPE_BYTES:
            return None
        return number, b"".join(encoded.parts)

    def _pack(self, waiting: Iterator[int], *, first: bool) -> list[int]:
        """Make one pack of what waits, and list it; rows of its members, none at the end."""
        writer, members = PackWriter(), []
        while part := [*islice(waiting, _AT_ONCE)]:
            for number, envelope in filter(None, self._read_all(part, self._envelope)):
                writer.add(self.rows[number].digest, envelope)
                members.append(number)
            self.progress("packing", len(members), 0)
            if writer.stored_bytes >= PACK_BYTES or len(writer) >= PACK_MEMBERS:
                break
        if not members:
            return []
        joined = self._join(writer) if first else []
        self._list(writer.payload(self.state.generation), joined)
        return members

    def _join(self, writer: PackWriter) -> list[Digest]:
        """Take in the newest packs, as long as they are not much larger than what there is."""
        joined = []
        for table in reversed(self.tables):
            if table.members > 2 * len(writer) or len(writer) + table.members > PACK_MEMBERS:
                break
            self._take(writer, table)
            joined.append(table.name)
        return joined

    def _rewrite(self, table: PackTable) -> None:
        """Store a pack anew of which more than half is buried, without that."""
        digests = (Digest(raw.hex()) for raw in table.digests())
        kept = sum(not self._is_buried(table, digest) for digest in digests)
        if kept > WORN_SHARE * table.members:
            return
        writer = PackWriter()
        self._take(writer, table)
        self._list(writer.payload(self.state.generation) if kept else None, [table.name])
        self.tables = self.repository.objects.packs.tables()

    def _take(self, writer: PackWriter, table: PackTable) -> None:
        """Add members of a pack, but for those that were buried since it was made."""
        for raw in table.digests():
            digest = Digest(raw.hex())
            if not self._is_buried(table, digest):
                found = self.repository.objects.packs.read(digest)
                decode_object(found, digest)
                writer.add(digest, found)

    def _is_buried(self, table: PackTable, digest: Digest) -> bool:
        store = self.repository.objects
        return store.label(digest, self.state.graves) > table.generation

    def _list(self, payload: list[Buffer] | None, joined: Sequence[Digest]) -> None:
        """Store a pack and let the log list it, in the place of those that it took in."""
        repository, txn = self.repository, secrets.token_hex(16)

        def decide(view: LogView) -> tuple[LogEntry, ...]:
            refuse_collection(repository, view)
            # Put anew for every head: a collection may have condemned what was put before.
            with ObjectWriter(repository.objects, view.state.graves) as writer:
                made = [] if payload is None else [writer.put(Kind.HISTORY_PACK, payload).digest]
                writer.flush()
            listed = [each for each in view.state.history_packs if each not in (*joined, *made)]
            features: Any = view.state.config.get("features", ())
            needed = sorted({*features, PACKS_FEATURE})
            changed = {PACKS_KEY: [*listed, *made], "features": needed}
            return (log_entry("config", self.actor, {"set": changed}, txn),)

        append_record(repository, decide)

    def _free(self, numbers: Sequence[int]) -> int:
        """Delete keys of members, once their packs were read back whole."""
        repository, txn = self.repository, secrets.token_hex(16)
        rows = [self.rows[number] for number in numbers]
        state = repository.log.refresh().state
        whole = {self._home(row.digest, state) for row in rows} - {None}
        for name in filter(None, whole):
            repository.objects.fetch(name)

        def decide(view: LogView) -> tuple[LogEntry, ...]:
            refuse_collection(repository, view)
            # What somebody else packed meanwhile, the next time finds.
            keys = [row.key for row in rows if self._home(row.digest, view.state) in whole]
            return condemnation_entry(repository, view, self.actor, keys, (), (), txn)

        grave = appended_condemnation(repository, decide)
        if grave is None:
            return 0
        return delete_condemned(repository, grave, self.actor, self.progress)
