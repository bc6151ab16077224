"""Check of new commits: everything that they lead to is there, is what links say, and stays.

The writers' rules of garbage collection (`repo.changes.gc_fence`), kept by the service itself at
the head that the record will follow. What the parents of a commit lead to is reachable, and so
stays; of all else each object must lie under the key that every condemnation up to that head
prescribes, or is stored there now (W1, W3, W4). Nothing depends on when an upload came, on what a
client pinned, or on what it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Final

from tensorrepo.api.access.grants import Action
from tensorrepo.api.transfer.offered_objects import OfferedWriter
from tensorrepo.api.transfer.possession import Possession
from tensorrepo.repo.changes import gc_fence
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    CorruptError,
    InvalidInputError,
    MissingObjectsError,
    NotFoundError,
    UnsupportedError,
)
from tensorrepo.repo.history.commits import Commit, decode_commit, is_contained, walk
from tensorrepo.repo.history.tree_pages import decode_page
from tensorrepo.repo.history.trees import root_links
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import (
    HEADER,
    Envelope,
    Kind,
    ObjectLink,
    decode_header,
)
from tensorrepo.repo.threads import ordered_map
from tensorrepo.repo.transfer.difference import CommitObjects, NewObject, objects_below, objects_of

_NEAR_COMMITS: Final = 256
_FEW_TIPS: Final = 64
_REMOTE_THREADS: Final = 16
_MOST_MISSING: Final = 1000  # digests that one answer names
_NOTHING: Final = Envelope(Kind.BLOB, (), memoryview(b""))


@dataclass(slots=True)
class NewCommits:
    """The commits of one append that the repository did not have, checked at one state.

    Attributes:
        writer: what reads, and stores what the commits need.
        state: the head that the record will follow, with the entries before these.
        ends: commits at which history is to end, as the append says.
        possession: what a caller who may read some refs may build upon; None: he reads all.
        verified: commits that were found whole.
        missing: objects that somebody has to bring first.
    """

    writer: OfferedWriter
    state: State
    ends: frozenset[Digest] = frozenset()
    possession: Possession | None = None
    verified: dict[Digest, None] = field(default_factory=dict)
    missing: dict[Digest, None] = field(default_factory=dict)
    made: frozenset[Digest] = frozenset()  # by the service itself, for this append

    def add(self, commit: Digest) -> None:
        """Check that a ref, or a lease, may lead to `commit`.

        Raises:
            InvalidInputError: an object is not what those say that link to it.
        """
        tips = self._tips()
        if commit in tips or commit in self.verified:
            return
        for digest in self._introduced(commit, tips):
            if self.missing:
                return  # what is to come first is told, and all is looked at when it is there
            self._check(digest)
            self.verified[digest] = None

    def add_composed(self, commit: Digest, brought: Iterable[Digest]) -> None:
        """As `add`, of a commit that the service itself made on what a ref leads to.

        Its pages are new, and named by nobody else: what is to be looked at is what it brings.
        """
        links = [self.writer.describe(digest) for digest in brought]
        state = self.state
        if not all(one.leaf and one.digest not in state.purges for one in links):
            self.add(commit)  # what its parent has of what these lead to is left out
            return
        if len(links) == 1:
            self._secure(NewObject(links[0]))
        else:
            self._secure_all([NewObject(link) for link in links])
        self.verified[commit] = None

    def add_kept(self, digest: Digest) -> None:
        """Check that a lease may keep `digest`, which need be no commit. Raises as `add`."""
        if self.get(digest).kind is Kind.COMMIT:
            self.add(digest)
            return
        if self.missing:
            return
        found = objects_below(
            self, [digest], supersedes=self.state.supersedes, threads=self._threads,
            purged=self._has_twin,
        )  # fmt: skip
        self._secure_all(found.objects)
        self._secure_twins(found)

    def refuse_missing(self) -> None:
        """Raises MissingObjectsError with the digests of what is not there."""
        if self.missing:
            named = list(self.missing)[:_MOST_MISSING]
            raise MissingObjectsError(
                f"{len(self.missing)} objects that this needs are not there, such as "
                f"{named[0]:.12}: they were collected, or never came. Send them, then repeat.",
                tuple(named),
            )

    def _tips(self) -> set[Digest]:
        """Commits that the caller may go on from."""
        if self.possession is None:
            return {*self.state.refs.values(), *self.state.retained}
        access = self.possession.access
        refs = self.state.refs.items()
        return {tip for ref, tip in refs if access.may(Action.READ, ref)}

    def _is_hidden(self, digest: Digest) -> bool:
        """Whether the caller may not build upon an object: for him it is not there."""
        if self.possession is None or digest in self.made or digest in self.verified:
            return False
        return not self.possession.has(digest)

    def get(self, digest: Digest) -> Envelope:
        """As an `EnvelopeSource`: what is not there is noted, and reads as nothing."""
        if self._is_hidden(digest):
            self.missing[digest] = None
            return _NOTHING
        try:
            return self.writer.get(digest)
        except NotFoundError:
            self.missing[digest] = None
            return _NOTHING

    @property
    def shallow(self) -> frozenset[Digest]:
        """Commits at which history ends."""
        return self.state.shallow | self.ends

    def describe(self, digest: Digest) -> ObjectLink:
        """See `EnvelopeSource`."""
        return self.writer.describe(digest)

    def fetch(self, digest: Digest) -> Envelope:
        """See `EnvelopeSource`."""
        return self.get(digest)

    def read_envelope(self, digest: Digest, start: int, stop: int) -> bytes:
        """See `EnvelopeSource`."""
        return bytes(self.writer.read_envelope(digest, start, stop))

    def stream_envelope(self, _digest: Digest, _start: int, _stop: int) -> None:
        """See `EnvelopeSource`: nothing of this is read while it comes."""
        return

    def _introduced(self, commit: Digest, tips: set[Digest]) -> list[Digest]:
        """What `commit` brings that no ref leads to, parents first."""
        try:
            near = self._near(commit, tips)
            if near is not None:
                return near
            graph = _Strict(self.writer, self.shallow)
            return [one for one, _ in walk(graph, [commit], hidden=sorted(tips))][::-1]
        except NotFoundError:
            self.missing[commit] = None
            return []

    def _is_reached(self, commit: Digest, tips: set[Digest]) -> bool:
        """Whether one of `tips` leads to a commit; where they are many, it is only looked for."""
        if commit in tips or commit in self.verified:
            return True
        if commit in self.writer.offered or len(tips) > _FEW_TIPS:
            return False
        try:
            return is_contained(self.writer, commit, sorted(tips))
        except (NotFoundError, InvalidInputError):
            return False

    def _near(self, commit: Digest, tips: set[Digest]) -> list[Digest] | None:
        """The same where few commits lie between; None where they do not."""
        found: dict[Digest, int] = {}
        pending = [commit]
        while pending:
            digest = pending.pop()
            if digest in found or self._is_reached(digest, tips):
                continue
            if len(found) == _NEAR_COMMITS:
                return None
            envelope = self.get(digest)
            if envelope is _NOTHING:
                continue
            decoded = _commit_of(envelope, digest)
            found[digest] = decoded.generation
            if digest not in self.shallow:
                pending += decoded.parents
        return sorted(found, key=lambda one: (found[one], one))

    def _check(self, digest: Digest) -> None:
        self._check_generation(digest)
        if self.missing:
            return
        brought = objects_of(
            self,
            digest,
            supersedes=self.state.supersedes,
            shallow=self.shallow,
            threads=self._threads,
            known=self.writer,
            purged=self._has_twin,
        )
        self._secure_all(brought.objects)
        self._secure_twins(brought)

    def _secure_twins(self, brought: CommitObjects) -> None:
        origin = "whoever pushes"
        gc_fence.secure_twins(self.writer, self.state, sorted(brought.purged), origin)

    def _secure_all(self, objects: Sequence[NewObject]) -> None:
        for _ in ordered_map(objects, self._secure, threads=self._threads, name="check"):
            pass

    def _check_generation(self, digest: Digest) -> None:
        commit = _commit_of(self.get(digest), digest)
        if digest in self.shallow:
            return
        reached = self._tips()
        parents = [
            (each, self.writer.get(each) if self._is_reached(each, reached) else self.get(each))
            for each in commit.parents
        ]
        if self.missing:
            return
        above = [_commit_of(envelope, each).generation for each, envelope in parents]
        if commit.generation != 1 + max(above, default=0):
            raise InvalidInputError(
                f"commit {digest:.12} says that it is of generation {commit.generation}, its "
                f"parents make it {1 + max(above, default=0)}"
            )

    def _secure(self, item: NewObject) -> None:
        """One object: it is what its link says, and lies where no decision to delete hits it."""
        link = item.link
        if self._is_hidden(link.digest):
            self.missing[link.digest] = None
        if link.digest in self.missing:
            return
        found = self.writer.own.get(link.digest) or self.writer.take(link.digest)
        if found is None and not self._adopt(link):
            found = self._store_again(link.digest)
            if found is None:
                return
        if found is not None and found != link:
            raise _mismatch(link, found)
        if link.kind in {Kind.COMMIT, Kind.TREE_PAGE}:
            _check_named(item.envelope or self.get(link.digest), link)

    def _adopt(self, link: ObjectLink) -> bool:
        if not self.writer.adopt(link):
            return False
        backend = self.writer.store.backend
        if backend.local_root is None and not link.kind.compressible:
            head = self.writer.store.read_envelope(link.digest, 0, HEADER.size)
            kind, links, _, _ = decode_header(memoryview(head), link.digest)
            return kind is link.kind and (links == 0) == link.leaf
        return True

    def _store_again(self, digest: Digest) -> ObjectLink | None:
        """Put what lies under an older label under the one that is prescribed now."""
        try:
            envelope = self.writer.store.get(digest)
        except (NotFoundError, CorruptError):
            self.missing[digest] = None
            return None
        return self.writer.put_again(envelope)

    def _has_twin(self, digest: Digest) -> bool:
        return digest in self.state.purges and self.writer.store.living(digest) != digest

    @property
    def _threads(self) -> int:
        return 0 if self.writer.store.backend.local_root is not None else _REMOTE_THREADS


@dataclass(frozen=True, slots=True)
class _Strict:
    """Commits as they are here, where what is missing is an error."""

    writer: OfferedWriter
    shallow: frozenset[Digest]

    def get(self, digest: Digest) -> Envelope:
        return self.writer.get(digest)


def _commit_of(envelope: Envelope, digest: Digest) -> Commit:
    if envelope.kind is not Kind.COMMIT:
        raise InvalidInputError(f"object {digest:.12} is a {envelope.kind.label}, not a commit")
    try:
        return decode_commit(envelope.payload)
    except (CorruptError, UnsupportedError) as error:
        raise InvalidInputError(f"commit {digest:.12}: {error}") from error


def _check_named(envelope: Envelope, link: ObjectLink) -> None:
    """Refuse a commit or tree page that names other objects than it links to.

    What it only names would be read by it, but neither kept nor checked.
    """
    linked = {each.digest for each in envelope.links}
    try:
        if link.kind is Kind.COMMIT:
            commit = decode_commit(envelope.payload)
            named: Iterable[Digest] = (*commit.parents, *root_links(commit.tree))
        else:
            named = decode_page(envelope.payload, f"tree page {link.digest:.12}").links()
    except (CorruptError, UnsupportedError) as error:
        raise InvalidInputError(f"{link.kind.label} {link.digest:.12}: {error}") from error
    if linked != set(named):
        raise InvalidInputError(
            f"{link.kind.label} {link.digest:.12} names other objects than it links to"
        )


def _mismatch(link: ObjectLink, found: ObjectLink) -> InvalidInputError:
    return InvalidInputError(
        f"{link.kind.label} {link.digest:.12} is not what the objects say that link to it: "
        f"expected {link.bytes:,} bytes{' and no links' * link.leaf}, found a {found.kind.label} "
        f"of {found.bytes:,}"
    )
