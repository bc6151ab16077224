"""Commits: canonical encoding, and walks over the commit graph.

A commit is one msgpack array in canonical form: maps sorted by key, every value in its shortest
form. What decodes to a commit but is written in any other way is refused, so that one commit has
one name, and a signature covers all that a reader sees.

Every walk goes by generation, largest first: a commit's children have larger generations, so when
it is its turn all of them have been seen and what they say about it is final. Nothing but the
frontier is kept in memory, whatever the length of the history.

Source:
    docs/spec/trees.md, section "Commit".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import lru_cache
from heapq import heappop, heappush
from itertools import islice
from typing import Any, Final

import msgspec

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError
from tensorrepo.repo.history.tree_pages import MAX_ROOT_BYTES
from tensorrepo.repo.history.trees import EMPTY_TREE, PathChange, diff, root_links
from tensorrepo.repo.ids import Buffer, Digest, digest_bytes, digest_from_bytes, parse_digest
from tensorrepo.repo.json_rules import check_json
from tensorrepo.repo.names import check_path, check_text, path_key
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import (
    EditedLinks,
    EnvelopeReader,
    Kind,
    ObjectLink,
    ObjectSink,
    ObjectSource,
)
from tensorrepo.repo.tables import moment_text

MetadataValue = None | bool | int | float | str | list["MetadataValue"] | dict[str, "MetadataValue"]

VERSION = 1
MAX_PARENTS = 64
MAX_AUTHOR_BYTES = 1 << 10
MAX_MESSAGE_BYTES = 64 << 10
MAX_METADATA_BYTES = 64 << 10
MAX_METADATA_DEPTH = 32
MAX_SIGNATURE_BYTES = 16 << 10
MAX_CHANGED = 256
MAX_COMMIT_BYTES = 2 << 20
SUBJECT_CHARACTERS = 200  # of a message, that the log repeats
_MAX_I64 = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Commit:
    """One state of everything, and where it came from.

    `tree` is the root page of its tree. `generation` is 1 + the largest parent's, 1 without
    parents. `author` reads ``Name <email>``. `time_ns` (UTC) is information, never an order.
    `changed` names the paths that differ from the first parent in key order; None when there are
    more than 256. Without parents, and of a checkpoint, which stands beside its parent and holds
    its own entries alone, they are all that there are. `signature` covers `signed_bytes`.

    Where a repository's history ends at a commit, that is read without `parents`: `beyond` has
    those that it was made with. So no walk goes there, whoever walks.
    """

    tree: bytes = field(repr=False)
    parents: tuple[Digest, ...]
    generation: int
    author: str
    message: str
    time_ns: int
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict)
    changed: tuple[str, ...] | None = None
    signature: bytes | None = None
    beyond: tuple[Digest, ...] = ()

    def __post_init__(self) -> None:
        _check_lineage(self)
        check_text(self.author, "author", limit_bytes=MAX_AUTHOR_BYTES, lines=False)
        if not _reads_as_author(self.author):
            raise InvalidInputError(f"an author reads 'Name <email>', got {self.author!r:.120}")
        check_text(self.message, "commit message", limit_bytes=MAX_MESSAGE_BYTES, lines=True)
        _check_changed(self.changed)
        _check_metadata(self.metadata)


class _Stored(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The array on disk, field by field."""

    version: int
    tree: bytes
    parents: list[bytes]
    generation: int
    author: str
    message: str
    time_ns: int
    metadata: dict[str, Any]
    changed: list[str] | None
    signature: bytes | None


_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_DECODER = msgspec.msgpack.Decoder(_Stored)
_ARRAY = msgspec.msgpack.Decoder(list[msgspec.Raw])
_KNOWN_BYTES: Final = 4 << 20
_KNOWN_EACH_BYTES: Final = 1000  # that a commit takes beside twice its payload


def commit_lines(digest: Digest, commit: Commit) -> tuple[str, ...]:
    """For people: which, by whom, when; then its message, line by line."""
    subject, *body = commit.message.split("\n")
    author, when = commit.author.partition(" <")[0], moment_text(commit.time_ns)
    return (f"commit {digest:.12} by {author}, {when}: {subject}", *body)


# Who commits asks for the parent three times. By digest, which names the same bytes everywhere.
_KNOWN: Final = LimitedCache[Commit](_KNOWN_BYTES)


def encode_commit(commit: Commit) -> bytes:
    return _ENCODER.encode(
        _Stored(
            VERSION,
            commit.tree,
            [digest_bytes(parent) for parent in commit.parents or commit.beyond],
            commit.generation,
            commit.author,
            commit.message,
            commit.time_ns,
            dict(commit.metadata),
            None if commit.changed is None else list(commit.changed),
            commit.signature,
        )
    )


def signed_bytes(commit: Commit) -> bytes:
    """What the signature of `commit` is made over: all of it but the signature."""
    return encode_commit(replace(commit, signature=None))


def decode_commit(payload: Buffer) -> Commit:
    """Parse a commit; its tree page is checked when it is read.

    Raises:
        CorruptError: no commit, or not in canonical form.
        UnsupportedError: a version that this tensorrepo does not know.
    """
    if len(payload) > MAX_COMMIT_BYTES:
        raise CorruptError(f"a commit of {len(payload)} bytes, at most {MAX_COMMIT_BYTES}")
    try:
        stored = _decode_stored(payload)
        commit = Commit(
            stored.tree,
            tuple(digest_from_bytes(parent) for parent in stored.parents),
            stored.generation,
            stored.author,
            stored.message,
            stored.time_ns,
            stored.metadata,
            None if stored.changed is None else tuple(stored.changed),
            stored.signature,
        )
    except (msgspec.MsgspecError, InvalidInputError, RecursionError, UnicodeError) as error:
        raise CorruptError(f"no well-formed commit: {error}") from error
    if _ENCODER.encode(stored) != payload:
        raise CorruptError("a commit that is not written in the canonical form")
    return commit


def _decode_stored(payload: Buffer) -> _Stored:
    try:
        stored = _DECODER.decode(payload)
    except msgspec.MsgspecError:
        fields = _ARRAY.decode(payload)
        if not fields:
            raise CorruptError("no well-formed commit: an empty array") from None
        _check_version(msgspec.msgpack.decode(fields[0], type=int))
        raise
    _check_version(stored.version)
    return stored


def _check_version(version: int) -> None:
    if version != VERSION:
        raise UnsupportedError(
            f"commit version {version}, this tensorrepo reads {VERSION}. Update it."
        )


def read_commit(objects: EnvelopeReader, digest: Digest) -> Commit:
    """The commit of that name, without its parents where history ends at it.

    Raises:
        InvalidInputError: the object is no commit.
    """
    envelope = objects.get(digest)
    if envelope.kind is not Kind.COMMIT:
        raise InvalidInputError(f"object {digest:.12} is a {envelope.kind.label}, not a commit")
    try:
        commit = _KNOWN.get(digest)
        if commit is None:
            commit = decode_commit(envelope.payload)
            _KNOWN.put(digest, commit, _KNOWN_EACH_BYTES + 2 * envelope.payload.nbytes)
        return as_known(objects, digest, commit)
    except (CorruptError, UnsupportedError) as error:
        raise type(error)(f"commit {digest:.12}: {error}") from error


def as_known(objects: EnvelopeReader, digest: Digest, commit: Commit) -> Commit:
    """`commit` with the parents that this repository has: all, or none where it is shallow."""
    if digest not in objects.shallow:
        return commit
    return replace(commit, parents=(), beyond=commit.parents)


def write_commit(objects: ObjectSink, commit: Commit) -> ObjectLink:
    """Store `commit`, linked to its parents and to what its root page names."""
    assert not commit.beyond, "what is here in part was stored whole somewhere else"
    payload = encode_commit(commit)
    link = objects.put(Kind.COMMIT, payload, _links(commit))
    if not commit.metadata:  # else it may have been given in another form than it is read in
        _KNOWN.put(link.digest, commit, _KNOWN_EACH_BYTES + 2 * len(payload))
    return link


def _links(commit: Commit) -> Iterable[Digest]:
    links = _all_links(commit)
    before = _KNOWN.get(commit.parents[0]) if len(commit.parents) == 1 else None
    if before is None:
        return links
    was, now = set(_all_links(before)), set(links)
    return EditedLinks(commit.parents[0], sorted(was - now), sorted(now - was), lambda: links)


def _all_links(commit: Commit) -> tuple[Digest, ...]:
    return (*commit.parents, *root_links(commit.tree))


def changed_paths(changes: Iterable[PathChange]) -> tuple[str, ...] | None:
    """What `Commit.changed` says of `changes` against the first parent; takes 257 at most."""
    paths = [change.path for change in islice(changes, MAX_CHANGED + 1)]
    return None if len(paths) > MAX_CHANGED else tuple(sorted(paths, key=path_key))


def clean_message(text: str) -> str:
    """A message as an editor or a shell gave it, with line feeds and no space at line ends."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def subject_of(message: str) -> str:
    """What the log says of a commit with that message."""
    return message.partition("\n")[0][:SUBJECT_CHARACTERS]


def _check_lineage(commit: Commit) -> None:
    parents = commit.parents or commit.beyond
    if not isinstance(commit.tree, bytes) or not 0 < len(commit.tree) <= MAX_ROOT_BYTES:
        raise InvalidInputError(f"a commit's tree is a root page of 1 to {MAX_ROOT_BYTES} bytes")
    for parent in parents:
        parse_digest(parent)
    if len(set(parents)) != len(parents) or len(parents) > MAX_PARENTS:
        raise InvalidInputError(f"a commit has up to {MAX_PARENTS} parents, each once")
    lowest, highest = (2, _MAX_I64) if parents else (1, 1)
    if not lowest <= commit.generation <= highest:
        raise InvalidInputError(
            f"generation {commit.generation} does not fit {len(parents)} parents"
        )
    if not 0 <= commit.time_ns <= _MAX_I64:
        raise InvalidInputError(f"time {commit.time_ns} ns is not between 1970 and 2262")
    if commit.signature is not None and not 0 < len(commit.signature) <= MAX_SIGNATURE_BYTES:
        raise InvalidInputError(f"a signature has 1 to {MAX_SIGNATURE_BYTES} bytes")


@lru_cache(maxsize=64)  # a walk through history meets few authors, again and again
def _reads_as_author(text: str) -> bool:
    name, opening, email = text.partition(" <")
    brackets = {*"<>"} & {*name, *email[:-1]}
    return bool(name.strip() and opening and email.endswith(">") and not brackets)


def _check_changed(changed: tuple[str, ...] | None) -> None:
    if changed is None:
        return
    keys = [path_key(check_path(path)) for path in changed]
    if len(keys) > MAX_CHANGED or keys != sorted(set(keys)):
        raise InvalidInputError(f"changed paths are up to {MAX_CHANGED}, in key order, each once")


def _check_metadata(metadata: Mapping[str, MetadataValue]) -> None:
    if type(metadata) is dict and not metadata:
        return
    if not isinstance(metadata, Mapping):
        raise InvalidInputError("commit metadata is a mapping from names to JSON values")
    plain = dict(metadata)
    check_json(plain, "commit metadata", MAX_METADATA_DEPTH, exact=True)
    if (size := len(_ENCODER.encode(plain))) > MAX_METADATA_BYTES:
        raise InvalidInputError(
            f"commit metadata takes {size} bytes, at most {MAX_METADATA_BYTES} are allowed; "
            "commit it as a file instead"
        )


_LEFT, _RIGHT, _STALE = 1, 2, 4


class _Frontier:
    """Commits still to be visited, with marks that flow from children to parents."""

    def __init__(self, objects: EnvelopeReader, tips: Mapping[Digest, int]) -> None:
        self._objects = objects
        self._heap: list[tuple[int, int, Digest]] = []
        self._waiting: dict[Digest, tuple[Commit, int]] = {}
        self._stale = 0
        for digest, marks in tips.items():
            self._mark(digest, read_commit(objects, digest), marks)

    @property
    def live(self) -> bool:
        """Whether anything waits that is not stale."""
        return self._stale < len(self._waiting)

    def pop(self) -> tuple[Digest, Commit, int]:
        """The next commit by (generation, digest), with its marks; they are final."""
        digest = heappop(self._heap)[2]
        commit, marks = self._waiting.pop(digest)
        self._stale -= bool(marks & _STALE)
        return digest, commit, marks

    def push_parents(self, digest: Digest, commit: Commit, marks: int) -> None:
        for parent in commit.parents:
            known = self._waiting.get(parent)
            found = known[0] if known else read_commit(self._objects, parent)
            if found.generation >= commit.generation:
                raise CorruptError(
                    f"commit {digest:.12} has generation {commit.generation}, its parent "
                    f"{parent:.12} {found.generation}: a parent's is smaller"
                )
            self._mark(parent, found, marks)

    def _mark(self, digest: Digest, commit: Commit, marks: int) -> None:
        if digest not in self._waiting:
            heappush(self._heap, (-commit.generation, -int(digest, 16), digest))
        before = self._waiting[digest][1] if digest in self._waiting else 0
        self._waiting[digest] = (commit, before | marks)
        self._stale += bool(marks & _STALE) and not before & _STALE


def walk(
    objects: EnvelopeReader, tips: Iterable[Digest], *, hidden: Iterable[Digest] = ()
) -> Iterator[tuple[Digest, Commit]]:
    """Ancestors of `tips`, themselves included, that are no ancestors of `hidden`.

    Children come before parents: by (generation, digest), largest first.
    """
    marks = dict.fromkeys(tips, _LEFT) | dict.fromkeys(hidden, _STALE)
    frontier = _Frontier(objects, marks)
    while frontier.live:
        digest, commit, marked = frontier.pop()
        if not marked & _STALE:
            yield digest, commit
        frontier.push_parents(digest, commit, marked)


def best_common(
    objects: ObjectSource, left: Iterable[Digest], right: Iterable[Digest]
) -> tuple[Digest, ...]:
    """All best common ancestors: common ancestors that no other common ancestor descends from.

    Of two sets of commits, each taken as one commit with all of them as parents. By (generation,
    digest), largest first: the same for both sides swapped.
    """
    marks = dict.fromkeys(left, _LEFT)
    for digest in right:
        marks[digest] = marks.get(digest, 0) | _RIGHT
    frontier = _Frontier(objects, marks)
    best = []
    while frontier.live:
        digest, commit, marked = frontier.pop()
        if marked == _LEFT | _RIGHT:
            best.append(digest)
            marked |= _STALE
        frontier.push_parents(digest, commit, marked)
    return tuple(best)


def is_ancestor(objects: EnvelopeReader, ancestor: Digest, descendant: Digest) -> bool:
    """Whether `descendant` contains `ancestor`; every commit contains itself."""
    return is_contained(objects, ancestor, [descendant])


def is_contained(objects: EnvelopeReader, commit: Digest, tips: Iterable[Digest]) -> bool:
    """Whether one of `tips` contains a commit. They are looked at in turn, what they share once."""
    lowest = read_commit(objects, commit).generation
    seen = set[Digest]()
    for tip in tips:
        frontier = _Frontier(objects, {} if tip in seen else {tip: 0})
        while frontier.live:
            digest, found, _ = frontier.pop()
            if digest == commit:
                return True
            if digest not in seen and found.generation > lowest:
                frontier.push_parents(digest, found, 0)
            seen.add(digest)
    return False


def contained(objects: EnvelopeReader, commits: Iterable[Digest], tip: Digest) -> set[Digest]:
    """Those of `commits` that `tip` contains, by one walk for all of them."""
    wanted, found = set(commits), set[Digest]()
    lowest = min((read_commit(objects, one).generation for one in wanted), default=0)
    for digest, commit in walk(objects, [tip]):
        if commit.generation < lowest or len(found) == len(wanted):
            break
        if digest in wanted:
            found.add(digest)
    return found


def end_of_history(objects: EnvelopeReader, tips: Iterable[Digest]) -> Digest | None:
    """The newest commit behind `tips` whose parents are not here; None where all are."""
    if not objects.shallow:
        return None
    return next((digest for digest, commit in walk(objects, tips) if commit.beyond), None)


def ahead_behind(objects: ObjectSource, a: Digest, b: Digest) -> tuple[int, int]:
    """How many commits `a` has that `b` lacks, and the other way round."""
    frontier = _Frontier(objects, {a: _LEFT, b: _RIGHT} if a != b else {})
    counts = {_LEFT: 0, _RIGHT: 0}
    while frontier.live:
        digest, commit, marked = frontier.pop()
        if marked in counts:
            counts[marked] += 1
        both = marked & (_LEFT | _RIGHT) == _LEFT | _RIGHT
        frontier.push_parents(digest, commit, marked | _STALE if both else marked)
    return counts[_LEFT], counts[_RIGHT]


def touches(objects: ObjectSource, commit: Commit, path: str) -> bool:
    """Whether `path`, or anything beneath it, differs from every parent of `commit`.

    So a merge that took `path` from one of its parents does not touch it: the commit that did
    comes later in the walk. The empty path means the whole tree.
    """
    if commit.changed is not None and not any(_within(name, path) for name in commit.changed):
        return False
    parents = [read_commit(objects, parent).tree for parent in commit.parents] or [EMPTY_TREE]
    known = commit.changed is not None  # `changed` has settled the first parent
    return all(_differs(objects, tree, commit.tree, path) for tree in parents[known:])


def some_changed(objects: ObjectSource, commit: Commit, limit: int) -> tuple[str, ...] | None:
    """Paths that differ from the first parent (from nothing, without one); None above `limit`."""
    if commit.changed is not None:
        return commit.changed if len(commit.changed) <= limit else None
    before = read_commit(objects, commit.parents[0]).tree if commit.parents else EMPTY_TREE
    changes = diff(objects, before, commit.tree)
    paths = tuple(change.path for change in islice(changes, limit + 1))
    return paths if len(paths) <= limit else None


def _differs(objects: ObjectSource, old: bytes, new: bytes, path: str) -> bool:
    return any(_within(change.path, path) for change in diff(objects, old, new, path))


def _within(name: str, path: str) -> bool:
    """Whether `name` is `path`, or lies in the folder `path`."""
    return not path or name == path or name.startswith(path.rstrip("/") + "/")
