"""Integrity check of the objects of a repository (fsck): digests, links, sizes, labels.

All that the state's roots lead to is walked, commits of the largest generation first: refs,
retained commits, leases, and what the log itself needs. Metadata is read from the store, past every
cache, in each of its incarnations. Of blobs, chunks and packs the size is compared with what links
say of them: sizes come by listing the store, never by a request each. A deep check reads these,
too, and then what nothing leads to. One table in a temporary file holds the listing (`gc_marks`);
beside it an object takes 12 bytes.

Source:
    docs/spec/objects.md; docs/design/077-what-fsck-proves.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from tensorrepo.repo.backends.base import AppendsEntries, StoredKey
from tensorrepo.repo.backends.small_files import SmallFiles
from tensorrepo.repo.backends.sql_log import SqlLogBackend
from tensorrepo.repo.changes.gc_marks import (
    PACKED,
    ObjectTable,
    RawLink,
    StoredRow,
    read_all_small,
    read_small,
    small_files,
)
from tensorrepo.repo.changes.object_content import (
    CLAIM_MASK,
    SIZE_MASK,
    ObjectContent,
    claim_of,
    in_words,
    is_data,
    is_whole_data,
    kind_of,
    raw_claim,
    read_incarnation,
)
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, NotFoundError, StorageError
from tensorrepo.repo.history.commits import Commit, as_known, decode_commit, read_commit
from tensorrepo.repo.history.tree_pages import Page, decode_page, decode_root
from tensorrepo.repo.history.trees import Entry, file_entry
from tensorrepo.repo.ids import Digest, digest_bytes
from tensorrepo.repo.names import folded
from tensorrepo.repo.objects.envelope import (
    LEAF_FLAG,
    Kind,
    ObjectLink,
    pack_links,
)
from tensorrepo.repo.objects.incarnations import decode_key_list, parse_object_key
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.threads import ordered_map

if TYPE_CHECKING:
    from tensorrepo.repo.log.state import State

READING_THREADS: Final = 16  # of objects in a store, where each read waits for an answer
HASHING_THREADS: Final = 4  # of large objects on a disk of this machine
LARGE_BYTES: Final = 1 << 20
SOME: Final = 1 << 10  # objects that are read between two calls of a progress function
_COMMITS: Final = 64  # whose trees are walked together
_WAITING_COMMITS: Final = 1 << 10  # that are kept decoded; others are read again
_KNOWN_ENTRIES: Final = 1 << 16
_SHOWN_KEYS: Final = 100

_MET: Final = 1 << 63  # beside the claim of an object: whether it was met
_MAX_GENERATION: Final = (1 << 32) - 1
_NO_ROW: Final = StoredRow(Digest("0" * 64), 0, PACKED, 0)  # of what was not listed


@dataclass(frozen=True, slots=True)
class ObjectFault:
    """An object that is not what it must be.

    Attributes:
        digest: digest of the object.
        kind: its kind; None where the object cannot be read, and no parent tells.
        problem: what is wrong with it.
        commit: a commit that needs it, of the newest; None where no commit does.
        path: path of the entry there that needs it; "" where the commit itself does.
        entry: that entry.
        needed: whether anything leads to it, or may.
    """

    digest: Digest
    kind: Kind | None
    problem: str
    commit: Digest | None
    path: str
    entry: Entry | None
    needed: bool = True


@dataclass(slots=True)
class ObjectTotals:
    """What a check looked at, so far.

    Attributes:
        commits: commits of the history.
        objects: objects that anything leads to.
        bytes: their bytes, as they are stored.
        stored_bytes: bytes of all objects in the store.
        unknown: keys that are nobody's, the first of them. Nothing deletes them.
        unknown_count: number of all of those.
    """

    commits: int = 0
    objects: int = 0
    bytes: int = 0
    stored_bytes: int = 0
    unknown: list[str] = field(default_factory=list)
    unknown_count: int = 0

    def add_unknown(self, key: str) -> None:
        """Count a key that nothing explains."""
        self.unknown_count += 1
        if len(self.unknown) < _SHOWN_KEYS:
            self.unknown.append(key)


class ContentChecks(NamedTuple):
    """What looks into entries.

    Attributes:
        summarize: makes the summary of an entry from its content.
        decode: decodes all of an entry, and tells what is wrong; asked by a deep check.
    """

    summarize: Callable[[Entry], bytes]
    decode: Callable[[Entry], Iterable[str]]


def check_objects(
    store: ObjectStore,
    state: State,
    totals: ObjectTotals,
    *,
    tips: Iterable[Digest] | None = None,
    prefix: str = "",
    deep: bool = False,
    contents: ContentChecks | None = None,
    is_known: Callable[[str], bool] | None = None,
    collects: bool = True,
    progress: Callable[[ObjectTotals], None] = lambda _: None,
) -> Iterator[ObjectFault]:
    """Check all that roots lead to, the newest commits first: faults as they are found.

    Args:
        store: objects of the repository.
        state: refs and other roots, and placements that took the place of others.
        totals: counters, which grow while the check goes on.
        tips: commits to begin with; None: all roots, and then what nothing leads to.
        prefix: path of the one entry, or of the folder of entries, that is checked; "": all.
        deep: whether every byte is read.
        contents: what looks into entries, beyond their objects.
        is_known: whether a key beside the objects has a meaning; None: they are not looked at.
        collects: whether collections delete here: they do not in a mirror.
        progress: callback that receives the counters now and then.
    """
    with small_files(store.backend) as files:
        check = _Check(store, state, totals, deep, contents, is_known, progress, files)
        yield from check.run(tips, prefix, collects=collects)


class _Owner(NamedTuple):
    commit: Digest | None
    path: str = ""
    entry: Entry | None = None


class _Place(NamedTuple):
    """Where a page lies in its tree: what its parent says of it."""

    level: int
    last: str
    low: str


class _Item(NamedTuple):
    """An object that is to be read; `claim` is what is said of it."""

    raw: bytes
    number: int  # of its first row; -1: the listing has none
    owner: _Owner
    claim: int
    place: _Place | None = None

    @property
    def digest(self) -> Digest:
        return Digest(self.raw.hex())

    @property
    def kind(self) -> Kind | None:
        return kind_of(self.claim)

    @property
    def is_data(self) -> bool:
        """Whether it is said to be what is read by ranges and leads to nothing."""
        return is_data(self.claim)


class _Read(NamedTuple):
    item: _Item
    content: ObjectContent | None
    problems: tuple[str, ...] = ()
    stored_bytes: int = 0  # of all incarnations


_Decoded = tuple[Commit, list[RawLink]]


class _Check:
    def __init__(
        self,
        store: ObjectStore,
        state: State,
        totals: ObjectTotals,
        deep: bool,
        contents: ContentChecks | None,
        is_known: Callable[[str], bool] | None,
        progress: Callable[[ObjectTotals], None],
        files: SmallFiles | None,
    ) -> None:
        self._store = store
        self._files = files  # of one thread, this one
        self._state = state
        self._totals = totals
        self._deep = deep
        self._contents = contents
        self._decodes = deep and store.promised is None  # else data lies elsewhere
        self._progress = progress
        self._supersedes = {
            digest_bytes(old): digest_bytes(state.resolve(old)) for old in state.supersedes
        }
        listing = None if is_known is None else self._objects_of(is_known)
        packs = list(store.packs.readable())
        self._table = ObjectTable(store.backend, packs=packs, listing=listing)
        self._facts = array("Q", bytes(8 * len(self._table)))
        self._generations = array("I", bytes(4 * len(self._table)))  # of commits
        self._unlisted: set[bytes] = set()  # stored after the listing, missing, or promised
        self._pending: list[_Item] = []
        # Commits whose trees are to be walked, the largest generation first, and what was read of
        # those that came last: their turn comes next, but for the tips of old branches.
        self._commits: list[tuple[int, bytes]] = []
        self._decoded: dict[bytes, _Decoded] = {}
        self._entries: list[tuple[Entry, _Owner, ObjectLink | None]] = []
        self._known_entries: set[tuple[Digest, Digest | None, bytes]] = set()
        self._prefix = ""
        self._hides = (
            False  # whether something could not be read, and what it leads to is not known
        )
        totals.stored_bytes += sum(row[1] for row in self._table.rows())

    def _objects_of(self, is_known: Callable[[str], bool]) -> Iterator[StoredKey]:
        """Keys of objects; of the others those that nothing explains are counted."""
        backend = self._store.backend
        # What a service keeps beside the objects is its own, and it lists none of it.
        for stored in backend.list("objects/" if isinstance(backend, AppendsEntries) else ""):
            if stored.key.startswith("objects/"):
                yield stored
            elif not is_known(stored.key):
                self._totals.add_unknown(stored.key)

    def run(
        self, tips: Iterable[Digest] | None, prefix: str, *, collects: bool
    ) -> Iterator[ObjectFault]:
        self._prefix = prefix
        whole = tips is None and not prefix
        for digest in self._tips() if tips is None else tips:
            yield from self._root(digest, _Owner(digest))
        yield from self._walk()
        yield from self._histories()
        if not whole:
            return
        for digest in self._others():
            yield from self._root(digest, _Owner(None))
        yield from self._walk()
        yield from self._histories()  # a lease may keep a commit of none
        if collects:
            yield from self._condemned()
        yield from self._rest()

    def _tips(self) -> list[Digest]:
        """Roots that are commits, or lead to some."""
        state = self._state
        kept = (digest for lease in state.leases.values() for digest in lease.keep)
        return sorted({*state.refs.values(), *state.retained, *kept})

    def _others(self) -> list[Digest]:
        """Roots that the log itself needs."""
        return sorted(set(self._state.roots()) - set(self._tips()))

    # --------------------------------------------------------------------------- the walk

    def _histories(self) -> Iterator[ObjectFault]:
        """Commits and their trees, some at a time: where requests take long, they run together."""
        while self._commits:
            some: list[tuple[bytes, Commit, list[RawLink]]] = []
            while self._commits and len(some) < _COMMITS:
                raw = heappop(self._commits)[1]
                try:
                    held = self._decoded.pop(raw, None)
                    commit, links = held or self._again(raw)
                except (CorruptError, NotFoundError) as error:  # since it was read
                    yield _fault(Digest(raw.hex()), Kind.COMMIT, str(error), _Owner(None))
                    continue
                some.append((raw, commit, links))
                yield from self._parents(raw, commit, links)
            for raw, commit, links in some:
                self._totals.commits += 1
                yield from self._tree(raw, commit, links)
            yield from self._walk()
            yield from self._look_into_entries()

    def _again(self, raw: bytes) -> _Decoded:
        digest = Digest(raw.hex())
        return read_commit(self._store, digest), pack_links(self._store.get(digest).links)

    def _parents(self, raw: bytes, commit: Commit, links: list[RawLink]) -> Iterator[ObjectFault]:
        by_name = {link[0]: link for link in links}
        for parent in commit.parents:
            name = digest_bytes(parent)
            link = by_name.get(name, (name, 0, 0, 0, 0))
            yield from self._follow(raw, link, _Owner(parent))
        yield from self._walk()
        numbers = (self._table.find(digest_bytes(parent)) for parent in commit.parents)
        known = [self._generations[number] if number >= 0 else 0 for number in numbers]
        expected = 1 + max(known, default=commit.generation - 1)
        if all(known) and min(expected, _MAX_GENERATION) != commit.generation:
            problem = f"it is of generation {commit.generation}, by its parents of {expected}"
            digest = Digest(raw.hex())
            yield ObjectFault(digest, Kind.COMMIT, problem, *_Owner(digest))

    def _tree(self, raw: bytes, commit: Commit, links: list[RawLink]) -> Iterator[ObjectFault]:
        owner = _Owner(Digest(raw.hex()))
        try:
            page = decode_root(commit.tree)
        except CorruptError as error:
            yield ObjectFault(Digest(raw.hex()), Kind.COMMIT, str(error), *owner)
            return
        yield from self._page(raw, page, links, owner, "")

    def _page(
        self, raw: bytes, page: Page, links: list[RawLink], owner: _Owner, low: str
    ) -> Iterator[ObjectFault]:
        """What is in a page of a tree: other pages, or entries."""
        by_name = {link[0]: link for link in links}
        for path, entry in page.items:
            name = digest_bytes(entry.digest)
            link = by_name.get(name, (name, 0, 0, 0, 0))
            if page.level:
                place = _Place(page.level - 1, path, low)
                yield from self._follow(raw, link, owner, place=place)
                low = path
            elif self._is_wanted(path):
                yield from self._entry(raw, link, by_name, _Owner(owner.commit, path, entry), entry)

    def _is_wanted(self, path: str) -> bool:
        prefix = self._prefix
        return not prefix or path == prefix or path.startswith(f"{prefix.rstrip('/')}/")

    def _entry(
        self,
        raw: bytes,
        link: RawLink,
        links: dict[bytes, RawLink],
        owner: _Owner,
        entry: Entry,
    ) -> Iterator[ObjectFault]:
        known = (entry.digest, entry.storage, entry.summary)
        if known in self._known_entries:
            return
        if len(self._known_entries) >= _KNOWN_ENTRIES:
            self._known_entries.clear()
        self._known_entries.add(known)
        yield from self._follow(raw, link, owner)
        if entry.storage is not None:
            storage = digest_bytes(entry.storage)
            yield from self._follow(raw, links.get(storage, (storage, 0, 0, 0, 0)), owner)
        if link[3] and link[3] != entry.kind:
            problem = (
                f"the tree calls it a {entry.kind.label}, its link says {in_words(raw_claim(link))}"
            )
            yield _fault(entry.digest, entry.kind, problem, owner)
        parsed = None
        if entry.kind is Kind.BLOB and link[3]:
            size = link[1] | link[2] << 32
            parsed = ObjectLink(entry.digest, size, Kind.BLOB, bool(link[4] & LEAF_FLAG))
        self._entries.append((entry, owner, parsed))
        if len(self._entries) >= SOME:
            yield from self._walk()
            yield from self._look_into_entries()

    def _look_into_entries(self) -> Iterator[ObjectFault]:
        """Compare summaries with contents, and decode contents: all they need was read by now."""
        entries, self._entries = self._entries, []
        for entry, owner, link in entries:
            for problem in self._problems_of(entry, link):
                yield _fault(entry.digest, entry.kind, problem, owner)
            self._progress(self._totals)

    def _problems_of(self, entry: Entry, link: ObjectLink | None) -> Iterator[str]:
        if self._contents is None:
            return
        try:
            made = self._contents.summarize(entry) if link is None else file_entry(link).summary
            # Of what was purged, the tree has the summary from before.
            if made != entry.summary and entry.digest not in self._state.purges:
                yield "its summary in the tree is not that of its content"
            if self._decodes:
                yield from self._contents.decode(entry)
        except (CorruptError, NotFoundError):
            return  # an object of it, which was told by now

    def _root(self, digest: Digest, owner: _Owner) -> Iterator[ObjectFault]:
        raw = digest_bytes(digest)
        yield from self._follow(raw, (raw, 0, 0, 0, 0), owner)

    def _follow(
        self,
        parent: bytes,
        link: RawLink,
        owner: _Owner,
        *,
        place: _Place | None = None,
    ) -> Iterable[ObjectFault]:
        """Come to an object by a link. What was met before is compared with what the link says."""
        raw, claim = link[0], raw_claim(link)
        if raw in self._supersedes:
            raw, claim = self._supersedes[raw], 0
        number = self._table.find(raw)
        if number < 0:
            if raw in self._unlisted:
                return ()
            self._unlisted.add(raw)
        else:
            known = self._facts[number]
            if known:
                if claim and known & CLAIM_MASK and known & CLAIM_MASK != claim:
                    return (_wrong_link(parent, raw, claim, known & CLAIM_MASK, owner),)
                return ()
            self._facts[number] = claim | _MET
        self._totals.objects += 1
        if self._deep or not is_data(claim):
            self._pending.append(_Item(raw, number, owner, claim, place))
            return ()
        if number >= 0 and self._table.is_stored_once(number, claim & SIZE_MASK):
            self._totals.bytes += claim & SIZE_MASK  # as most of all objects are
            return ()
        return self._taken(self._read(_Item(raw, number, owner, claim, place)))

    def _walk(self) -> Iterator[ObjectFault]:
        """Read all that waits, and what it leads to."""
        far = _is_far(self._store)
        while self._pending:
            some = self._pending[-SOME:]
            del self._pending[-SOME:]
            large = [item for item in some if item.claim & SIZE_MASK >= LARGE_BYTES]
            small = [item for item in some if item.claim & SIZE_MASK < LARGE_BYTES]
            if far:
                yield from self._read_on_threads(small, READING_THREADS)
            else:
                yield from self._read_here(small)
            if large:  # else threads are started for nothing
                yield from self._read_on_threads(large, READING_THREADS if far else HASHING_THREADS)
            self._progress(self._totals)

    def _read_on_threads(self, items: list[_Item], threads: int) -> Iterator[ObjectFault]:
        for each in ordered_map(items, self._read, threads=threads):
            yield from self._taken(each)

    def _read_here(self, items: list[_Item]) -> Iterator[ObjectFault]:
        rows = [self._table[item.number] if item.number >= 0 else _NO_ROW for item in items]
        for item, stored in zip(items, read_all_small(self._files, rows), strict=True):
            if stored is not None and item.is_data and self._is_whole(item, stored):
                self._totals.bytes += len(stored)  # as most of all objects are
            else:
                yield from self._taken(self._read(item, stored, self._files))

    def _is_whole(self, item: _Item, stored: bytes) -> bool:
        """Whether data lies under one key, as its link says; False: reading it tells what it is."""
        is_alone = self._table.is_stored_once(item.number, len(stored))
        return is_alone and is_whole_data(stored, item.digest, item.claim)

    def _taken(self, read: _Read) -> Iterator[ObjectFault]:
        item, content = read.item, read.content
        self._totals.bytes += read.stored_bytes
        for problem in read.problems:
            yield _fault(item.digest, item.kind, problem, item.owner)
        if content is None:
            self._hides = True
            return
        if item.number >= 0:
            self._facts[item.number] = content.claim | _MET
        if item.claim and item.claim != content.claim:
            problem = (
                f"it is {in_words(content.claim)}, what links to it says {in_words(item.claim)}"
            )
            yield _fault(item.digest, kind_of(content.claim), problem, item.owner)
        if not content.links and not content.payload:
            return
        kind = kind_of(content.claim)
        try:
            if kind is Kind.COMMIT:
                self._take_commit(item, content)
            elif kind is Kind.TREE_PAGE:
                page = _page_of(item, content)
                low = item.place.low if item.place else ""
                yield from self._page(item.raw, page, content.links, item.owner, low)
            else:
                for link in content.links:
                    yield from self._follow(item.raw, link, item.owner)
        except CorruptError as error:
            self._hides = True
            yield _fault(item.digest, kind, str(error), item.owner)

    def _take_commit(self, item: _Item, content: ObjectContent) -> None:
        commit = decode_commit(content.payload)
        if item.number >= 0:
            self._generations[item.number] = min(commit.generation, _MAX_GENERATION)
        named = {digest_bytes(parent) for parent in commit.parents}
        named |= {digest_bytes(each) for each in decode_root(commit.tree).links()}
        _check_links(f"commit {item.digest:.12}", content.links, named)
        commit = as_known(self._store, item.digest, commit)
        heappush(self._commits, (-commit.generation, item.raw))
        self._decoded[item.raw] = (commit, content.links)
        if len(self._decoded) > _WAITING_COMMITS:
            del self._decoded[next(iter(self._decoded))]  # the oldest; it is read again

    # --------------------------------------------------------------------------- reading

    def _read(
        self, item: _Item, first: bytes | None = None, files: SmallFiles | None = None
    ) -> _Read:
        """Every incarnation of an object; what one of them says, if any is whole.

        Args:
            item: the object.
            first: all bytes under its first key, where somebody read them already.
            files: what reads the others, where this is its thread.
        """
        content: ObjectContent | None = None
        problems: list[str] = []
        stored_bytes = 0
        for row in self._table.rows_of(item.number):
            stored_bytes += row.bytes
            try:
                stored, first = first or read_small(files, row), None
                content = self._incarnation(row, item, stored)
            except NotFoundError:
                continue  # a collector took it since the listing
            except (CorruptError, StorageError) as error:
                if isinstance(error, StorageError) and error.transient:
                    raise
                problems.append(f"{row.key}: {error}")
        if content is not None and problems:
            problems = [f"{each} (another incarnation of it is whole)" for each in problems]
        if content is None and not problems:
            return self._read_unlisted(item)
        return _Read(item, content, tuple(problems), stored_bytes)

    def _read_unlisted(self, item: _Item) -> _Read:
        """What the listing does not have: stored since, left at a lazy clone's origin, or gone."""
        store, digest = self._store, item.digest
        if item.is_data:
            if store.promised is not None:
                return _Read(item, ObjectContent(item.claim, [], b""))
            labels = {0, store.known_label(digest, self._state.graves)}
            sizes = {store.stored_bytes(digest, label) for label in labels} - {None}
            if item.claim & SIZE_MASK in sizes:
                return _Read(item, ObjectContent(item.claim, [], b""))
        try:
            envelope = store.stored(digest)
        except NotFoundError:
            of_commit = Kind.COMMIT if item.owner.commit == digest else None
            kind = item.kind or of_commit
            what = "object" if kind is None else kind.label
            return _Read(item, None, (f"{what} {digest:.12} is missing",))
        except CorruptError as error:
            return _Read(item, None, (str(error),))
        link = envelope.link(digest)
        content = ObjectContent(claim_of(link), pack_links(envelope.links), bytes(envelope.payload))
        return _Read(item, content)

    def _incarnation(self, row: StoredRow, item: _Item, stored: bytes | None) -> ObjectContent:
        """What one key holds, verified as far as this check goes."""
        if item.is_data and not self._deep and row.label != PACKED:  # of a member no size is listed
            expected = item.claim & SIZE_MASK
            if row.bytes != expected:
                raise CorruptError(f"expected {expected:,} bytes, found {row.bytes:,}")
            return ObjectContent(item.claim, [], b"")
        return read_incarnation(self._store, row, deep=self._deep, stored=stored)

    # --------------------------------------------------------------------------- beside the walk

    def _condemned(self) -> Iterator[ObjectFault]:
        """Objects that are needed, and that a collection which has not ended would delete."""
        for grave in self._state.graves:
            if grave.ended:
                continue
            try:
                keys = decode_key_list(self._store.stored(grave.list).payload)
                for digest, _ in filter(None, map(parse_object_key, keys)):
                    number = self._table.find(digest_bytes(digest))
                    if number < 0 or not self._facts[number]:
                        continue
                    label = self._store.known_label(digest, self._state.graves)
                    is_kept = any(row.label == label for row in self._table.rows_of(number))
                    # What was packed is buried by nobody: it stays in its pack.
                    if not is_kept and self._store.packs.home(digest, label) is None:
                        yield ObjectFault(
                            digest,
                            kind_of(self._facts[number]),
                            f"it is needed, and the collection of log record {grave.generation}, "
                            "which goes on, deletes it",
                            *_Owner(None),
                        )
            except (CorruptError, NotFoundError):
                continue  # the list, which was told by now

    def _rest(self) -> Iterator[ObjectFault]:
        """Objects that nothing leads to, which somebody may adopt; labels without a grave."""
        for key in self._table.foreign:
            self._totals.add_unknown(key)
        self._totals.unknown_count += self._table.foreign_count - len(self._table.foreign)
        graves = {grave.generation: grave for grave in self._state.graves}
        previous, is_met = b"", False
        unmet: list[StoredRow] = []
        for number, (raw, _, label, _) in enumerate(self._table.rows()):
            if raw != previous:
                previous, is_met = raw, self._facts[number] != 0
            if label not in (0, PACKED) and not self._explains(graves.get(label), raw):
                self._totals.add_unknown(self._table[number].key)
            if self._deep and not is_met:
                unmet.append(self._table[number])
            if len(unmet) >= SOME:
                yield from self._unreachable(unmet)
                unmet = []
        if unmet:
            yield from self._unreachable(unmet)

    def _explains(self, grave: object, raw: bytes) -> bool:
        """Whether the table of a condemnation has a digest; one that cannot be read is told."""
        if grave is None:
            return False
        with suppress(CorruptError, NotFoundError):
            return bool(self._store.label(Digest(raw.hex()), [grave]))  # type: ignore[list-item]
        return True

    def _unreachable(self, rows: list[StoredRow]) -> Iterator[ObjectFault]:
        threads = READING_THREADS if _is_far(self._store) else HASHING_THREADS
        # What is drawn, one at a time, is read; what is large is read by whoever hashes it.
        pairs = zip(rows, read_all_small(self._files, rows), strict=True)
        problems = ordered_map(pairs, lambda pair: self._problem_of(*pair), threads=threads)
        for row, problem in zip(rows, problems, strict=True):
            if problem:
                leads = (
                    "nothing that can be read leads to it" if self._hides else "nothing needs it"
                )
                told = f"{row.key}: {problem} ({leads})"
                yield ObjectFault(row.digest, None, told, *_Owner(None), needed=self._hides)
        self._progress(self._totals)

    def _problem_of(self, row: StoredRow, stored: bytes | None) -> str:
        try:
            read_incarnation(self._store, row, deep=True, stored=stored)
        except NotFoundError:
            return ""  # a collector took it since the listing
        except (CorruptError, StorageError) as error:
            if isinstance(error, StorageError) and error.transient:
                raise
            return str(error)
        return ""


def _page_of(item: _Item, content: ObjectContent) -> Page:
    """A page of a tree, as its parent says that it is."""
    where = f"tree page {item.digest:.12}"
    page = decode_page(content.payload, where)
    place = item.place
    if place is not None:
        if (page.level, page.last) != (place.level, place.last):
            raise CorruptError(
                f"{where}: expected level {place.level} up to {place.last!r}, found level "
                f"{page.level} up to {page.last!r}"
            )
        if place.low and folded(page.items[0][0]) <= folded(place.low):
            raise CorruptError(f"{where}: {page.items[0][0]!r} is out of order after {place.low!r}")
    _check_links(where, content.links, {digest_bytes(each) for each in page.links()})
    return page


def _check_links(where: str, links: list[RawLink], named: set[bytes]) -> None:
    """Refuse links that are not those which the payload names."""
    if {link[0] for link in links} != named:
        raise CorruptError(f"{where}: it links to {len(links)} objects, its content names others")


def _is_far(store: ObjectStore) -> bool:
    """Whether each read waits for an answer."""
    return store.backend.local_root is None and not store.backend.url.startswith("memory://")


def _wrong_link(parent: bytes, raw: bytes, claim: int, known: int, owner: _Owner) -> ObjectFault:
    problem = f"its link calls {raw.hex():.12} {in_words(claim)}, which is {in_words(known)}"
    return ObjectFault(Digest(parent.hex()), None, problem, *owner)


def _fault(digest: Digest, kind: Kind | None, problem: str, owner: _Owner) -> ObjectFault:
    return ObjectFault(digest, kind, problem, *owner)


def accept_restored_log(repository: RepositoryCore, *, deep: bool) -> bool:
    """Let a log in SQL that was restored from an older backup be written to again.

    Only when every object of every ref is there; gives whether it was done.
    """
    log, backend = repository.log, repository.backend
    if not isinstance(backend, SqlLogBackend) or not backend.is_restored():
        return False
    state = log.refresh().state
    tips = sorted(set(state.refs.values()))
    faults = check_objects(repository.objects, state, ObjectTotals(), tips=tips, deep=deep)
    if any(fault.needed for fault in faults):
        return False
    backend.accept_restored()
    log.read_only = None
    return True
