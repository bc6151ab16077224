"""Check of all objects that refs reach: present, of their size, and on request whole.

Objects that link to others are read, which verifies them. Of the others, chunks, packs and blobs,
the size is compared with what their parents say: sizes come by listing the store, never by a
request each. A deep check reads every byte from the store, past every cache.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from tensorrepo.repo.errors import CorruptError, NotFoundError
from tensorrepo.repo.history.commits import Commit, read_commit
from tensorrepo.repo.history.trees import Entry, iterate
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Envelope, Kind, ObjectLink
from tensorrepo.repo.objects.incarnations import parse_object_key
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.threads import ordered_map

if TYPE_CHECKING:
    from tensorrepo.repo.log.state import State

READING_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class ObjectFault:
    """An object that is not what it must be.

    Attributes:
        digest: digest of the object.
        kind: its kind; None where the object cannot be read, and no parent tells.
        problem: what is wrong with it.
        commit: newest commit that was found to need it.
        path: path of the entry there that needs it; "" where the commit itself does.
        entry: that entry.
    """

    digest: Digest
    kind: Kind | None
    problem: str
    commit: Digest
    path: str
    entry: Entry | None


@dataclass(slots=True)
class ObjectTotals:
    """What a check looked at, so far; `stored_bytes` is the size of all objects in the store."""

    commits: int = 0
    objects: int = 0
    bytes: int = 0
    stored_bytes: int = 0


def check_objects(
    store: ObjectStore,
    state: State,
    totals: ObjectTotals,
    *,
    tips: Iterable[Digest] | None = None,
    prefix: str = "",
    deep: bool = False,
    summarize: Callable[[Entry], bytes] | None = None,
    progress: Callable[[ObjectTotals], None] = lambda _: None,
) -> Iterator[ObjectFault]:
    """Check all that commits lead to, the newest ones first: faults as they are found.

    Args:
        store: objects of the repository.
        state: refs, and placements that took the place of others.
        totals: counters, which grow while the check goes on.
        tips: commits to begin with; None: those of all refs.
        prefix: path of the one entry, or of the folder of entries, that is checked; "": all.
        deep: whether every byte is read.
        summarize: what makes the summary of an entry from its content; None: none is compared.
        progress: callback that receives the counters now and then.
    """
    roots = sorted(set(state.refs.values())) if tips is None else tips
    check = _Check(
        store, state.supersedes, totals, deep=deep, summarize=summarize, progress=progress
    )
    yield from check.run(roots, prefix)


@dataclass(frozen=True, slots=True)
class _Owner:
    commit: Digest
    path: str = ""
    entry: Entry | None = None


class _Check:
    def __init__(
        self,
        store: ObjectStore,
        supersedes: Mapping[Digest, Digest],
        totals: ObjectTotals,
        *,
        deep: bool,
        summarize: Callable[[Entry], bytes] | None,
        progress: Callable[[ObjectTotals], None],
    ) -> None:
        self._store = store
        self._supersedes = supersedes
        self._totals = totals
        self._deep = deep
        self._summarize = summarize
        self._summaries: dict[Digest, bytes | None] = {}
        self._progress = progress
        self._sizes: dict[Digest, set[int]] = {}
        self._seen: set[Digest] = set()

    def run(self, tips: Iterable[Digest], prefix: str) -> Iterator[ObjectFault]:
        for stored in self._store.backend.list("objects/"):
            if (parsed := parse_object_key(stored.key)) is not None:
                self._sizes.setdefault(parsed[0], set()).add(stored.bytes)
                self._totals.stored_bytes += stored.bytes
        waiting: list[tuple[int, Digest, Commit, list[ObjectLink]]] = []  # a heap, newest first
        found = yield from self._commits(tips)
        while True:
            for digest, commit, pages in found:
                heappush(waiting, (-commit.generation, digest, commit, pages))
            if not waiting:
                return
            _, digest, commit, pages = heappop(waiting)
            self._totals.commits += 1
            yield from self._closure([(each.digest, each) for each in pages], _Owner(digest))
            yield from self._entries(digest, commit.tree, prefix)
            found = yield from self._commits(commit.parents)

    def _commits(
        self, digests: Iterable[Digest]
    ) -> Generator[ObjectFault, None, list[tuple[Digest, Commit, list[ObjectLink]]]]:
        """Those that were not seen yet, and the pages of their trees.

        A commit that cannot be read hides what lies behind it.
        """
        found = []
        for digest in digests:
            if digest in self._seen:
                continue
            self._see(digest)
            try:
                links = self._get(digest).links
                pages = [link for link in links if link.kind is Kind.TREE_PAGE]
                found.append((digest, read_commit(self._store, digest), pages))
            except (CorruptError, NotFoundError) as error:
                yield ObjectFault(digest, Kind.COMMIT, str(error), digest, "", None)
        return found

    def _entries(self, commit: Digest, tree: bytes, prefix: str) -> Iterator[ObjectFault]:
        try:
            for path, entry in iterate(self._store, tree, prefix):
                if not prefix or path == prefix or path.startswith(f"{prefix.rstrip('/')}/"):
                    yield from self._entry(_Owner(commit, path, entry), entry)
        except (CorruptError, NotFoundError):
            pass  # a page of the tree, which was told by now

    def _entry(self, owner: _Owner, entry: Entry) -> Iterator[ObjectFault]:
        roots: list[tuple[Digest, ObjectLink | None]] = [(entry.digest, None)]
        if entry.kind is Kind.BLOB and entry.digest not in self._seen:
            # It may be larger than memory: its header tells what a parent would.
            try:
                roots = [(entry.digest, self._store.describe(entry.digest))]
            except (CorruptError, NotFoundError) as error:
                self._see(entry.digest)
                yield _fault(entry.digest, entry.kind, str(error), owner)
                return
        if entry.storage is not None:
            roots.append((entry.storage, None))
        yield from self._closure(roots, owner)
        yield from self._summary(owner, entry)

    def _summary(self, owner: _Owner, entry: Entry) -> Iterator[ObjectFault]:
        if self._summarize is None:
            return
        if entry.digest not in self._summaries:
            try:
                self._summaries[entry.digest] = self._summarize(entry)
            except (CorruptError, NotFoundError):
                self._summaries[entry.digest] = None  # an object of it, which was told by now
        expected = self._summaries[entry.digest]
        if expected not in (None, entry.summary):
            problem = "its summary in the tree is not that of its content"
            yield _fault(entry.digest, entry.kind, problem, owner)

    def _closure(
        self, pending: list[tuple[Digest, ObjectLink | None]], owner: _Owner
    ) -> Iterator[ObjectFault]:
        """Objects that an entry, or the tree itself, leads to and none before it did."""
        leaves: list[ObjectLink] = []
        while pending:
            digest, link = pending.pop()
            digest = self._supersedes.get(digest, digest)
            if digest in self._seen:
                continue
            self._see(digest)
            if link is not None and link.leaf:
                leaves.append(link)
                continue
            try:
                links = self._get(digest).links
            except (CorruptError, NotFoundError) as error:
                yield _fault(digest, None if link is None else link.kind, str(error), owner)
                continue
            # What a tree leads to beside its pages is looked at by entries.
            pending += [
                (child.digest, child)
                for child in links
                if owner.path or child.kind is Kind.TREE_PAGE
            ]
        yield from self._leaves(leaves, owner)

    def _see(self, digest: Digest) -> None:
        self._seen.add(digest)
        self._totals.objects += 1

    def _get(self, digest: Digest) -> Envelope:
        return self._store.fetch(digest) if self._deep else self._store.get(digest)

    def _leaves(self, leaves: list[ObjectLink], owner: _Owner) -> Iterator[ObjectFault]:
        threads = READING_THREADS if self._deep else 0
        check = self._read if self._deep else self._compare
        for link, problem in zip(leaves, ordered_map(leaves, check, threads=threads), strict=True):
            self._totals.bytes += link.bytes
            self._progress(self._totals)
            if problem:
                yield _fault(link.digest, link.kind, problem, owner)

    def _compare(self, link: ObjectLink) -> str:
        sizes = self._sizes.get(link.digest)
        if not sizes:
            if self._store.promised is not None and not link.kind.compressible:
                return ""  # a lazy clone leaves data at its origin
            return f"{link.kind.label} {link.digest:.12} is missing"
        # What may be stored compressed is smaller by an unknown share.
        if link.kind.compressible or link.bytes in sizes:
            return ""
        found = ", ".join(f"{size:,}" for size in sorted(sizes))
        return f"{link.kind.label} {link.digest:.12}: expected {link.bytes:,} bytes, found {found}"

    def _read(self, link: ObjectLink) -> str:
        try:
            self._store.verify(link)
        except (CorruptError, NotFoundError) as error:
            return str(error)
        return ""


def _fault(digest: Digest, kind: Kind | None, problem: str, owner: _Owner) -> ObjectFault:
    return ObjectFault(digest, kind, problem, owner.commit, owner.path, owner.entry)
