"""Difference of link graphs: the objects that a commit brings and that its parents have not.

Both sides are walked by links, level by level and at once: what the parents lead to is left out
where it is met, and nothing below it is read. So the cost follows the change, not the size of the
repository, and no payload is parsed. What the parents have elsewhere (a model under another name)
is found by the receiver, which has those objects already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import field
from typing import Final, Protocol

from msgspec import structs

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CollectedError, NotFoundError
from tensorrepo.repo.history.commits import Commit, decode_commit, read_commit, walk
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.objects.envelope import Envelope, EnvelopeReader, Kind, ObjectLink
from tensorrepo.repo.threads import ordered_map

_HELD_BYTES: Final = 16 << 20  # of metadata of one commit that stays in memory until it is copied
_LIKELY_COMMITS: Final = 256


class EnvelopeSource(EnvelopeReader, Protocol):
    """Whoever can give objects as they are stored."""

    def describe(self, digest: Digest) -> ObjectLink:
        """What a parent of the object would say of it."""

    def fetch(self, digest: Digest) -> Envelope:
        """The whole object, past every cache, from whichever copy of it is whole."""

    def read_envelope(self, digest: Digest, start: int, stop: int) -> Buffer:
        """Bytes ``[start, stop)`` of an object that is never compressed, NOT verified."""

    def stream_envelope(self, digest: Digest, start: int, stop: int) -> Iterator[Buffer] | None:
        """As `read_envelope` while it comes; None where it can only be read range by range."""


@dataclass(frozen=True, slots=True)
class NewObject:
    """An object that a commit brings; `envelope` where it was read already."""

    link: ObjectLink
    envelope: Envelope | None = None


@dataclass(frozen=True, slots=True)
class CommitObjects:
    """All that a commit brings, itself included.

    `placements` maps those that its tree names, and that others took the place of, to these, where
    it brings them; `had_placements` where its parents have these, and not those.
    `beyond` are parents that are not brought: history ends here. `purged` are objects that it, and
    none of its parents, leads to, and that the receiver has a twin of.
    """

    digest: Digest
    parents: tuple[Digest, ...]
    objects: tuple[NewObject, ...]
    placements: Mapping[Digest, Digest]
    beyond: tuple[Digest, ...] = ()
    had_placements: Mapping[Digest, Digest] = field(default_factory=dict)
    purged: frozenset[Digest] = frozenset()


class EitherSource:
    """Commits of two repositories, as one graph.

    Args:
        near: the one that answers at once.
        has: whether `near` has an object, as far as a look tells.
        far: the other one.
        shallow: commits at which history ends, at either.
    """

    def __init__(
        self,
        near: EnvelopeReader,
        has: Callable[[Digest], bool],
        far: EnvelopeReader,
        shallow: frozenset[Digest],
    ) -> None:
        self._near, self._has, self._far = near, has, far
        self.shallow = shallow

    def ending_at(self, shallow: frozenset[Digest]) -> EitherSource:
        """The same graph, whose history ends at other commits."""
        return EitherSource(self._near, self._has, self._far, shallow)

    def get(self, digest: Digest) -> Envelope:
        if self._has(digest):
            return self._near.get(digest)
        try:
            return self._far.get(digest)
        except NotFoundError as error:
            taken = error if isinstance(error, CollectedError) else None
        try:
            return self._near.get(digest)
        except NotFoundError as error:
            # Who is told that it was collected looks at the refs again, and begins anew.
            raise taken or error from None


def missing_commits(
    commits: EitherSource,
    wants: Iterable[Digest],
    held: Callable[[], Iterable[Digest]],
    likely: Iterable[Digest] = (),
) -> list[tuple[Digest, Commit]]:
    """Ancestors of `wants`, themselves included, that `held` do not lead to; parents first.

    Args:
        commits: graph of both sides.
        wants: commits to begin with.
        held: gives all commits that the receiver's refs name.
        likely: some of them: a short difference to these is found without reading the others.
    """
    tips, near = list(wants), list(likely)
    if near:
        found = []
        for item in walk(commits, tips, hidden=near):
            found.append(item)
            if len(found) > _LIKELY_COMMITS:
                break
        else:
            return found[::-1]
    return list(walk(commits, tips, hidden=list(held())))[::-1]


@dataclass(frozen=True, slots=True)
class Deepening:
    """What takes the end of a history further back.

    Attributes:
        commits: what is to be brought, parents first.
        ends: those of them at which history ends from then on.
        whole: commits at which it ended, and whose parents are there then.
    """

    commits: tuple[Digest, ...]
    ends: frozenset[Digest]
    whole: frozenset[Digest]


def deepen(
    commits: EitherSource,
    tips: Iterable[Digest],
    had: AbstractSet[Digest],
    ended: frozenset[Digest],
    depth: int | None,
) -> Deepening:
    """What the receiver lacks of the history behind `tips`, `depth` commits back at most.

    Args:
        commits: graph of both sides, which ends only where the sender's does.
        tips: commits to begin with.
        had: all commits that the receiver's refs lead to.
        ended: commits at which its history ends now.
        depth: None: as far as the sender's goes.
    """
    wanted = list(tips)
    near = frozenset[Digest]() if depth is None else history_ends(commits, wanted, depth)
    limited = commits.ending_at(commits.shallow | near)
    reached = dict(walk(limited, wanted))

    def is_end(digest: Digest) -> bool:
        parents = reached[digest].beyond
        return any(each not in had and each not in reached for each in parents)

    ends = frozenset(filter(is_end, reached))
    return Deepening(
        tuple(digest for digest in reversed(reached) if digest not in had),
        ends - had,
        frozenset(digest for digest in ended & reached.keys() if digest not in ends),
    )


def objects_of(
    source: EnvelopeSource,
    digest: Digest,
    *,
    supersedes: Mapping[Digest, Digest],
    shallow: frozenset[Digest],
    threads: int,
    known: EnvelopeReader | None = None,
    purged: Callable[[Digest], bool] = lambda _: False,
    held: Callable[[Digest], Digest | None] | None = None,
) -> CommitObjects:
    """What a commit brings beside what its parents lead to; all of it where history ends.

    Args:
        source: where it is.
        digest: name of the commit.
        supersedes: placements that others took the place of.
        shallow: commits at which history ends.
        threads: number of objects that are read at once.
        known: where what the parents lead to is read; None: from `source`, too.
        purged: whether the receiver purged an object, and has a twin of it; where it has none, this
            raises PurgedError.
        held: what the receiver has where the parents name an object: that, what stands for it
            there, or None, where it has one or the other. None: what stands for it at the source.

    Raises:
        NotFoundError: the source lacks something of it.
        CorruptError: something of it is damaged there.
    """
    walked = _Walk(source, known or source, supersedes, threads, purged, held)
    envelope = source.get(digest)
    parents = decode_commit(envelope.payload).parents
    beyond: tuple[Digest, ...] = ()
    if digest in shallow:
        parents, beyond = (), parents
    for parent in parents:
        with suppress(NotFoundError):  # it only saves work
            walked.had(walked.known.get(parent).links)
    walked.found.append(NewObject(envelope.link(digest), envelope))
    walked.wanted(envelope.links)
    walked.run()
    moved, had = walked.moved_placements()
    found = tuple(walked.found)
    return CommitObjects(digest, parents, found, moved, beyond, had, walked.purged_here)


def history_ends(commits: EnvelopeReader, tips: Iterable[Digest], depth: int) -> frozenset[Digest]:
    """Commits that are `depth` from one of `tips`, and no nearer: 1 is the tips themselves."""
    level = set(tips)
    seen = set(level)
    for _ in range(depth - 1):
        parents = {
            parent for digest in sorted(level) for parent in read_commit(commits, digest).parents
        }
        level = parents - seen
        seen |= level
    return frozenset(one for one in sorted(level) if read_commit(commits, one).parents)


def objects_below(
    source: EnvelopeSource,
    roots: Iterable[Digest],
    *,
    supersedes: Mapping[Digest, Digest],
    threads: int,
    had: Iterable[Digest] = (),
    purged: Callable[[Digest], bool] = lambda _: False,
    held: Callable[[Digest], Digest | None] | None = None,
) -> CommitObjects:
    """All that `roots` lead to and `had` do not, as if a commit brought it."""
    walked = _Walk(source, source, supersedes, threads, purged, held)
    for digest in had:
        with suppress(NotFoundError):  # it saves work, no more
            walked.had([source.describe(digest)])
    links = [source.describe(root) for root in roots]
    walked.wanted(links)
    walked.run()
    first = links[0].digest if links else Digest("")
    moved, other = walked.moved_placements()
    return CommitObjects(first, (), tuple(walked.found), moved, (), other, walked.purged_here)


@dataclass(slots=True)
class _Walk:
    """Both sides of one walk: objects to open next, and all that was met on the side that has.

    Several objects may have one successor. Who has one of them need not have that.
    """

    source: EnvelopeSource
    known: EnvelopeReader
    supersedes: Mapping[Digest, Digest]
    threads: int
    purged: Callable[[Digest], bool] = lambda _: False
    held: Callable[[Digest], Digest | None] | None = None
    found: list[NewObject] = field(default_factory=list)
    placements: dict[Digest, Digest] = field(default_factory=dict)
    _names: dict[Digest, set[Digest]] = field(default_factory=dict)  # of successors
    _purged_wanted: set[Digest] = field(default_factory=set)
    _purged_had: set[Digest] = field(default_factory=set)
    _fresh: dict[Digest, ObjectLink] = field(default_factory=dict)
    _old: dict[Digest, ObjectLink] = field(default_factory=dict)
    _met: set[Digest] = field(default_factory=set)
    _had: set[Digest] = field(default_factory=set)
    _held_bytes: int = 0

    def wanted(self, links: Iterable[ObjectLink]) -> None:
        for link in self._entries(links, self._purged_wanted):
            current = self._resolve(link.digest)
            if current != link.digest:
                self.placements[link.digest] = current
                names = self._names.setdefault(current, {current} & self._met)
                names.add(link.digest)
            elif current in self._names:
                self._names[current].add(current)
            if current not in self._met:
                self._met.add(current)
                self._fresh[current] = self._renamed(current, link)

    def had(self, links: Iterable[ObjectLink]) -> None:
        for link in self._entries(links, self._purged_had):
            if link.digest in self._had:
                continue
            self._had.add(link.digest)
            here = self._resolve(link.digest) if self.held is None else self.held(link.digest)
            if here == link.digest or (here is not None and here not in self._had):
                self._had.add(here)
                self._old[here] = self._renamed(here, link)

    def run(self) -> None:
        """Open what is fresh, level by level, until nothing is."""
        while self._fresh:
            shared = {digest for digest in self._fresh if self._is_shared(digest)}
            for digest in shared:
                del self._fresh[digest]
            # The pages of the two trees come first: trees may differ in depth, entries do not.
            pages = any(
                link.kind is Kind.TREE_PAGE
                for side in (self._fresh, self._old)
                for link in side.values()
            )
            opened = self._take(self._fresh, pages=pages)
            for digest in shared:
                self._old.pop(digest, None)
            more = self._fresh or any(not link.leaf for link in opened)
            behind = self._take(self._old, pages=pages) if more else []
            for link, envelope in zip(opened, self._read(opened), strict=True):
                self._keep(link, envelope)
                if envelope is not None:
                    self.wanted(envelope.links)
            for envelope in self._read(behind, wanted=False):
                if envelope is not None:
                    self.had(envelope.links)

    @property
    def purged_here(self) -> frozenset[Digest]:
        """What is wanted and was purged by the receiver; what the parents have is none of it."""
        return frozenset(self._purged_wanted - self._purged_had)

    def moved_placements(self) -> tuple[dict[Digest, Digest], dict[Digest, Digest]]:
        """Those whose successors are among what was found, and those whose successors are had.

        Of what the parents name the receiver has one or the other.
        """
        found = {item.link.digest for item in self.found}
        moved = {old: new for old, new in self.placements.items() if new in found}
        others = self.placements.items()
        had = {old: new for old, new in others if new not in found and old not in self._had}
        return moved, had

    def _is_shared(self, digest: Digest) -> bool:
        """Whether the receiver has it, or all whose place it takes.

        Those may come to be more: it is looked at again then.
        """
        if digest in self._had:
            return True
        if self._names.get(digest, {digest}) <= self._had:
            self._met.discard(digest)
            return True
        return False

    def _entries(self, links: Iterable[ObjectLink], purged: set[Digest]) -> Iterator[ObjectLink]:
        """Links as they are followed: to no commit, and to nothing that the receiver purged."""
        for link in links:
            if link.kind is Kind.COMMIT:
                continue
            if self.purged(link.digest):
                purged.add(link.digest)
            else:
                yield link

    def _resolve(self, digest: Digest) -> Digest:
        """What took its place at the source."""
        while digest in self.supersedes:
            digest = self.supersedes[digest]
        return digest

    def _renamed(self, current: Digest, link: ObjectLink) -> ObjectLink:
        return link if current == link.digest else self._placement(current, link)

    def _placement(self, current: Digest, link: ObjectLink) -> ObjectLink:
        """What a parent would say of the placement that took the place of `link`."""
        try:
            return self.source.describe(current)
        except NotFoundError:
            return structs.replace(link, digest=current)  # its own reader tells that it is missing

    def _take(self, side: dict[Digest, ObjectLink], *, pages: bool) -> list[ObjectLink]:
        taken = [link for link in side.values() if not pages or link.kind is Kind.TREE_PAGE]
        for link in taken:
            del side[link.digest]
        return taken

    def _read(self, links: list[ObjectLink], *, wanted: bool = True) -> Iterator[Envelope | None]:
        def read(link: ObjectLink) -> Envelope | None:
            if link.leaf:
                return None
            if wanted:
                return self.source.get(link.digest)
            try:
                return self.known.get(link.digest)
            except NotFoundError:  # the other side of a difference only saves work
                return None

        many = sum(not link.leaf for link in links) > 1
        return ordered_map(links, read, threads=self.threads if many else 0, name="walk")

    def _keep(self, link: ObjectLink, envelope: Envelope | None) -> None:
        self._held_bytes += link.bytes if envelope is not None else 0
        held = envelope if self._held_bytes <= _HELD_BYTES else None
        self.found.append(NewObject(link, held))
