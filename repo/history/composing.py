"""Commits that are composed where a branch lies: the paths that they change, instead of a tree.

Who commits through a service need not write pages of a tree that another commit may have left
behind by then. A `WantedCommit` says which paths are to name what, and on which commit that was
decided; `compose` makes the commit on whatever the branch leads to, by the same rules as a merge.

Source:
    docs/spec/service.md, section "Commits that the service composes".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, MissingObjectsError, NotFoundError
from tensorrepo.repo.history.commits import Commit, changed_paths, read_commit, write_commit
from tensorrepo.repo.history.merge_trees import Conflict, Drivers, MergeContext, merge_trees
from tensorrepo.repo.history.tree_pages import KINDS, MAX_SUMMARY_BYTES
from tensorrepo.repo.history.trees import EMPTY_TREE, Entry, diff, lookup, same_content, update
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.names import path_key
from tensorrepo.repo.objects.envelope import ObjectSink

MOST_COMPOSED_PATHS: Final = 64  # of one commit: a service composes those of all clients in turn

_Name = Annotated[Digest, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class WantedEntry(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a path is to name: the fields of an `Entry`."""

    kind: int
    digest: _Name
    storage: _Name | None = None
    summary: Annotated[bytes, Meta(max_length=MAX_SUMMARY_BYTES)] = b""


class WantedCommit(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A commit without a tree.

    Attributes:
        txn: name of its transaction.
        ref: what is to lead to it.
        base: the commit that it was decided on; None: the ref did not exist.
        changes: what each path is to name; None: nothing.
        author, message, time_ns, metadata: as a commit has them.
    """

    txn: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
    ref: str
    changes: dict[str, WantedEntry | None]
    author: str
    message: str
    time_ns: int = msgspec.field(name="time")
    base: _Name | None = None
    metadata: dict[str, Any] = {}

    def entries(self) -> dict[str, Entry | None]:
        """The changes, as trees have them. Raises InvalidInputError."""
        return {path: _entry(path, wanted) for path, wanted in self.changes.items()}


def wanted_entry(entry: Entry | None) -> WantedEntry | None:
    """An entry of a tree as a `WantedCommit` has it."""
    if entry is None:
        return None
    return WantedEntry(int(entry.kind), entry.digest, entry.storage, entry.summary)


def _entry(path: str, wanted: WantedEntry | None) -> Entry | None:
    if wanted is None:
        return None
    if wanted.kind not in KINDS:
        raise InvalidInputError(f"{path!r:.120}: kind {wanted.kind} is unknown to this service")
    return Entry(KINDS[wanted.kind], wanted.digest, wanted.storage, wanted.summary)


_DECODER: Final = msgspec.json.Decoder(WantedCommit)


def encode_wanted(wanted: WantedCommit) -> bytes:
    """A wanted commit as a message has it."""
    return msgspec.json.encode(wanted)


def parse_wanted(data: msgspec.Raw) -> WantedCommit:
    """What `encode_wanted` encoded. Raises InvalidInputError."""
    try:
        wanted = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"a commit to be composed: {error}") from None
    if not 0 < len(wanted.changes) <= MOST_COMPOSED_PATHS:
        raise InvalidInputError(
            f"a commit that is to be composed changes 1 to {MOST_COMPOSED_PATHS} paths, this one "
            f"{len(wanted.changes)}: send the commit itself"
        )
    return wanted


@dataclass(frozen=True, slots=True)
class Composed:
    """What became of a wanted commit.

    Attributes:
        commit: its name; None where nothing would change, or there are conflicts.
        conflicts: why it could not be made.
        brought: what its tree names beside what its parent's does, where nothing was merged; None:
            a merge took it from wherever.
    """

    commit: Digest | None
    conflicts: tuple[Conflict, ...] = ()
    brought: tuple[Digest, ...] | None = None


def compose(
    objects: ObjectSink, wanted: WantedCommit, tip: Digest | None, *, drivers: Drivers
) -> Composed:
    """Make the commit on `tip`, and store it with its tree pages.

    What nobody changed since `wanted.base` is set; else all of it is a three-way merge, which joins
    what it can.

    Raises:
        InvalidInputError: a path breaks the grammar, two clash, or an entry is of another kind than
            its object.
        MissingObjectsError: entries name objects that are not there.
        NotFoundError: `wanted.base`, or what it leads to, is not there.
    """
    base, theirs = _tree_of(objects, wanted.base), _tree_of(objects, tip)
    before = {path: lookup(objects, base, path) for path in wanted.changes}
    entries = wanted.entries().items()
    changes = {path: new for path, new in entries if not _is_stored(before[path], new)}
    if not changes:
        return Composed(None)
    _check_objects(objects, changes)
    generation = 0 if tip is None else read_commit(objects, tip).generation
    brought: tuple[Digest, ...] | None = None
    root = _set_where_unchanged(objects, theirs, changes, before, alone=tip == wanted.base)
    if root is not None:
        content = [path for path, new in changes.items() if not same_content(before[path], new)]
        changed: tuple[str, ...] | None = tuple(sorted(content, key=path_key))
        brought = tuple(digest for entry in changes.values() for digest in _named(entry))
    else:
        mine = update(objects, base, changes)
        context = MergeContext(True, "fail", (generation + 1, generation))
        merged = merge_trees(objects, base, mine, theirs, drivers=drivers, context=context)
        if merged.conflicts:
            return Composed(None, merged.conflicts)
        root, changed = merged.root, changed_paths(diff(objects, theirs, merged.root))
    commit = Commit(
        tree=root,
        parents=() if tip is None else (tip,),
        generation=generation + 1,
        author=wanted.author,
        message=wanted.message,
        time_ns=wanted.time_ns,
        metadata=wanted.metadata,
        changed=changed,
    )
    return Composed(write_commit(objects, commit).digest, (), brought)


def _set_where_unchanged(
    objects: ObjectSink,
    theirs: bytes,
    changes: Mapping[str, Entry | None],
    before: Mapping[str, Entry | None],
    *,
    alone: bool,
) -> bytes | None:
    """Theirs with the changes made; None: a merge must say how, or why it cannot be.

    Where it is `alone`, nobody else changed anything, and a clash is the fault of whoever wants it.
    """
    if not alone and any(lookup(objects, theirs, path) != before[path] for path in changes):
        return None
    try:
        return update(objects, theirs, changes)
    except InvalidInputError:  # two paths clash
        if alone:
            raise
        return None


def _tree_of(objects: ObjectSink, commit: Digest | None) -> bytes:
    return EMPTY_TREE if commit is None else read_commit(objects, commit).tree


def _is_stored(old: Entry | None, new: Entry | None) -> bool:
    """Whether a page would have the same bytes."""
    return old == new and (old is None or new is None or old.summary == new.summary)


def _named(entry: Entry | None) -> tuple[Digest, ...]:
    """What a tree that has the entry links to for it."""
    if entry is None:
        return ()
    return (entry.digest,) if entry.storage is None else (entry.digest, entry.storage)


def _check_objects(objects: ObjectSink, changes: Mapping[str, Entry | None]) -> None:
    missing: list[Digest] = []
    for path, entry in changes.items():
        for digest in _named(entry):
            try:
                found = objects.describe(digest)
            except NotFoundError:
                missing.append(digest)
                continue
            if entry is not None and digest == entry.digest and found.kind is not entry.kind:
                raise InvalidInputError(
                    f"{path}: object {digest:.12} is a {found.kind.label}, not a {entry.kind.label}"
                )
    if missing:
        raise MissingObjectsError(
            f"{len(missing)} objects that this needs are not there, such as {missing[0]:.12}: they "
            "were collected, or never came. Send them, then repeat.",
            tuple(missing),
        )
