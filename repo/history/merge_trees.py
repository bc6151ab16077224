"""Three-way merge of trees, with drivers for each kind of entry.

Paths that only one side changed are taken from it, paths that both changed alike are left. What
both changed differently goes to the driver of its kind, which `formats` implements. The rest are
conflicts: values that say where and why, never a half-merged tree.

`merge`, `revert`, `cherry-pick` and the rebase of a transaction are this one function with
different bases (`pick_sides`).

Source:
    docs/spec/trees.md, section "Merge".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from itertools import islice
from typing import Any, Protocol

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CommitExpired, InvalidInputError
from tensorrepo.repo.history.commits import best_common, end_of_history, read_commit
from tensorrepo.repo.history.trees import (
    EMPTY_TREE,
    Entry,
    PathChange,
    clashes,
    differences,
    lookup,
    same_content,
    update,
)
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.names import check_path, path_key
from tensorrepo.repo.objects.envelope import Kind, ObjectSink, ObjectSource

# How many criss-cross merges on top of each other are untangled; a deeper one takes its first
# base as it is. Any choice is a correct merge, a better one only leaves fewer conflicts.
MAX_VIRTUAL_DEPTH = 32
_REPLAYED_PATHS = 64


@dataclass(frozen=True, slots=True)
class Conflict:
    """One path that cannot be merged by itself, and why.

    `details` tell what inside of the entry is contested, as JSON values, where its driver knows;
    of each, "line" is for people.
    """

    path: str
    kind: Kind | None
    base: Digest | None
    ours: Digest | None
    theirs: Digest | None
    reason: str
    details: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class MergeContext:
    """How a merge was asked for.

    `automatic` says that nobody looks (a rebase of a transaction); `strategy` is "fail", "ours",
    "theirs" or one that only the drivers know; `generations` are those of ours' and theirs'
    commits. `by_path` has other strategies for some paths.
    """

    automatic: bool
    strategy: str
    generations: tuple[int, int]
    by_path: Mapping[str, str] = field(default_factory=dict)

    def at(self, path: str) -> MergeContext:
        """The context for one path: with its own strategy, if it has one."""
        return replace(self, strategy=self.by_path.get(path, self.strategy), by_path={})


class MergeDriver(Protocol):
    """Joins two versions of one entry whose kind it understands.

    `base` is None when there was none, or one of another kind. The same inputs give the same
    entry, whoever merges. What cannot be joined is returned as a `Conflict`; under the strategies
    "ours" and "theirs" the caller then takes that side whole.
    """

    def merge(
        self,
        objects: ObjectSink,
        path: str,
        base: Entry | None,
        ours: Entry,
        theirs: Entry,
        context: MergeContext,
    ) -> Entry | Conflict: ...


Drivers = Mapping[Kind, MergeDriver]
_Versions = tuple[Entry | None, Entry | None, Entry | None]  # of one path: base, ours, theirs


@dataclass(frozen=True, slots=True)
class Merged:
    """The outcome: `changes` lead from ours to `root`.

    With `conflicts`, `root` is ours' and `changes` are only those that could be merged.
    """

    root: bytes
    changes: tuple[PathChange, ...]
    conflicts: tuple[Conflict, ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A tree with the changes of another one made again: root page, and the paths that changed."""

    root: bytes
    changed: tuple[str, ...]


def replay(objects: ObjectSink, base: bytes, mine: bytes, tip: bytes) -> Replayed | None:
    """The few changes from `base` to `mine` on `tip`, where that has none of these paths changed.

    It is what `merge_trees` gives, without a look at what `tip` changed. None: there are too many
    changes, or one does not fit: that is for `merge_trees` to join, or to tell.
    """
    changes = list(islice(differences(objects, base, mine), _REPLAYED_PATHS + 1))
    if len(changes) > _REPLAYED_PATHS:
        return None
    if any(lookup(objects, tip, change.path) != change.old for change in changes):
        return None
    try:
        root = update(objects, tip, {change.path: change.new for change in changes})
    except InvalidInputError:  # two paths clash
        return None
    content = [one.path for one in changes if not same_content(one.old, one.new)]
    return Replayed(root, tuple(sorted(content, key=path_key)))


def merge_trees(
    objects: ObjectSink,
    base: bytes,
    ours: bytes,
    theirs: bytes,
    *,
    drivers: Drivers,
    context: MergeContext,
    unchanged: Iterable[str] = (),
) -> Merged:
    """Join two trees that grew out of `base`; the arguments are root pages.

    The strategies "ours" and "theirs" settle paths that both sides changed. No strategy settles
    a change of a path declared `unchanged`, nor two paths that clash: that takes a rename.

    Args:
        objects: where trees are read, and pages and drivers' objects are stored.
        base: the common ancestor.
        ours: the side that `Merged.changes` start from.
        theirs: the other side.
        drivers: what joins entries, by their kind.
        context: how the merge was asked for.
        unchanged: paths, or folders, that must be the same in `theirs` as in `base`.
    """
    draft = _merge_paths(objects, (base, ours, theirs), drivers, context)
    draft.conflicts += _broken_promises(objects, base, theirs, unchanged)
    draft.conflicts += _clash_conflicts(objects, ours, draft)
    conflicts = {conflict.path: conflict for conflict in reversed(draft.conflicts)}
    changes = [change for path, change in draft.changes.items() if path not in conflicts]
    if conflicts:
        ordered = sorted(conflicts.values(), key=lambda conflict: path_key(conflict.path))
        return Merged(ours, tuple(changes), tuple(ordered))
    root = update(objects, ours, {change.path: change.new for change in changes})
    return Merged(root, tuple(changes), ())


@dataclass(slots=True)
class _Draft:
    """What a merge does to ours, path by path in key order, and what it cannot do."""

    changes: dict[str, PathChange] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)


def _merge_paths(
    objects: ObjectSink, trees: tuple[bytes, bytes, bytes], drivers: Drivers, context: MergeContext
) -> _Draft:
    base, ours, theirs = trees
    here = {change.path: change for change in differences(objects, base, ours)}
    draft = _Draft()
    for there in differences(objects, base, theirs):
        path, old, new = there.path, there.old, there.new
        mine = here[path].new if path in here else old
        merged = _merge_path(objects, path, (old, mine, new), drivers, context)
        if isinstance(merged, Conflict):
            draft.conflicts.append(merged)
        elif merged != mine:
            draft.changes[path] = PathChange(path, mine, merged)
    return draft


def _merge_path(
    objects: ObjectSink, path: str, versions: _Versions, drivers: Drivers, context: MergeContext
) -> Entry | Conflict | None:
    base, ours, theirs = versions
    context = context.at(path)
    if same_content(ours, theirs):
        # Only the storage differs, if anything: keep what ours did, else take what theirs did.
        return theirs if ours == base else ours
    if same_content(base, ours):
        return theirs
    if same_content(base, theirs):
        return ours
    joined = _join(objects, path, versions, drivers, context)
    if isinstance(joined, Conflict) and context.strategy in {"ours", "theirs"}:
        return ours if context.strategy == "ours" else theirs
    return joined


def _join(
    objects: ObjectSink, path: str, versions: _Versions, drivers: Drivers, context: MergeContext
) -> Entry | Conflict:
    base, ours, theirs = versions
    if ours is None or theirs is None:
        gone, kept = ("ours", "theirs") if ours is None else ("theirs", "ours")
        return _conflict(path, versions, f"deleted in {gone}, changed in {kept}")
    if ours.kind != theirs.kind:
        return _conflict(
            path, versions, f"a {ours.kind.label} in ours, a {theirs.kind.label} in theirs"
        )
    if (driver := drivers.get(ours.kind)) is None:
        return _conflict(
            path, versions, f"changed on both sides, and a {ours.kind.label} has no merge"
        )
    comparable = base if base is not None and base.kind == ours.kind else None
    return driver.merge(objects, path, comparable, ours, theirs, context)


def _conflict(path: str, versions: _Versions, reason: str) -> Conflict:
    base, ours, theirs = (entry.digest if entry is not None else None for entry in versions)
    named = next((entry for entry in (*versions[1:], versions[0]) if entry is not None), None)
    return Conflict(path, named.kind if named else None, base, ours, theirs, reason)


def _broken_promises(
    objects: ObjectSource, base: bytes, theirs: bytes, unchanged: Iterable[str]
) -> Iterator[Conflict]:
    for declared in sorted({check_path(path) for path in unchanged}):
        for change in differences(objects, base, theirs, declared):
            inside = change.path == declared or change.path.startswith(declared + "/")
            if inside and not same_content(change.old, change.new):
                yield _conflict(
                    change.path,
                    (change.old, change.old, change.new),
                    f"{declared!r} was declared unchanged, and theirs changed it",
                )


def _clash_conflicts(objects: ObjectSource, ours: bytes, draft: _Draft) -> list[Conflict]:
    """Paths added by theirs that cannot stand beside paths of ours."""
    wanted = {path: change.new for path, change in draft.changes.items()}
    settled = {conflict.path for conflict in draft.conflicts}
    found = []
    for first, second, reason in clashes(objects, ours, wanted):
        if first in settled or second in settled:
            continue
        added, kept = (first, second) if wanted.get(first) is not None else (second, first)
        why = f"{reason}: ours has {kept!r}, theirs added {added!r}"
        found.append(_conflict(added, (None, None, wanted[added]), why))
    return found


def merge_base_tree(
    objects: ObjectSink, ours: Digest, theirs: Digest, *, drivers: Drivers
) -> bytes:
    """Root page of the base for merging two commits: the empty tree if they share no history.

    Several best common ancestors (a criss-cross) are merged with each other first, like `git`
    does; where that conflicts, what *their* base had is kept.
    """
    bases = best_common(objects, (ours,), (theirs,))
    if not bases and (end := end_of_history(objects, (ours, theirs))) is not None:
        raise CommitExpired(
            f"no common ancestor of {ours:.12} and {theirs:.12} is in this repository: it may lie "
            f"before commit {end:.12}, where history was given up. Fetch what lies before it, or "
            "bring the changes over one by one with `tensorrepo cherry-pick`."
        )
    return _virtual_base(objects, bases, drivers, {}, MAX_VIRTUAL_DEPTH)


def _virtual_base(
    objects: ObjectSink,
    bases: tuple[Digest, ...],
    drivers: Drivers,
    done: dict[tuple[Digest, ...], bytes],
    depth: int,
) -> bytes:
    """One tree for several commits; `done` keeps the number of merges below that of base sets."""
    if not bases:
        return EMPTY_TREE
    if bases in done:
        return done[bases]
    commit = read_commit(objects, bases[0])
    root, generation = commit.tree, commit.generation
    for count in range(1, len(bases) if depth else 1):
        other = read_commit(objects, bases[count])
        common = best_common(objects, bases[:count], bases[count : count + 1])
        base = _virtual_base(objects, common, drivers, done, depth - 1)
        context = MergeContext(True, "fail", (generation, other.generation))
        root = _merge_leniently(objects, (base, root, other.tree), drivers, context)
    done[bases] = root
    return root


def _merge_leniently(
    objects: ObjectSink, trees: tuple[bytes, bytes, bytes], drivers: Drivers, context: MergeContext
) -> bytes:
    """Merge, and keep what the base had wherever that is impossible."""
    base, ours, _ = trees
    draft = _merge_paths(objects, trees, drivers, context)
    wanted = {path: change.new for path, change in draft.changes.items()}
    for conflict in draft.conflicts:
        wanted[conflict.path] = lookup(objects, base, conflict.path)
    # Ends: entries of the base never clash with each other, and every round adds some.
    while found := clashes(objects, ours, wanted):
        for path in {path for first, second, _ in found for path in (first, second)}:
            wanted[path] = lookup(objects, base, path)
    return update(objects, ours, wanted)


def pick_sides(
    objects: ObjectSource, commit: Digest, *, revert: bool, mainline: int | None = None
) -> tuple[bytes, bytes]:
    """`base` and `theirs` with which `merge_trees` cherry-picks, or reverts, `commit`.

    Args:
        objects: where the commits are.
        commit: the change to repeat or to undo.
        revert: undo it.
        mainline: the parent, counted from 1, against which the change is taken. A merge needs it.

    Raises:
        InvalidInputError: a merge without `mainline`, or no such parent.
    """
    picked = read_commit(objects, commit)
    if picked.beyond:
        raise CommitExpired(
            f"what commit {commit:.12} changed is not known: its parents are not in this "
            "repository, whose history ends there. Fetch what lies before it."
        )
    if mainline is None and len(picked.parents) > 1:
        raise InvalidInputError(
            f"commit {commit:.12} is a merge of {len(picked.parents)} parents: "
            "say with --mainline which of them its change is taken against (1 is the branch that "
            "was merged into)"
        )
    if mainline is not None and not 1 <= mainline <= len(picked.parents):
        raise InvalidInputError(
            f"commit {commit:.12} has {len(picked.parents)} parents, not a parent {mainline}"
        )
    before = EMPTY_TREE
    if picked.parents:
        before = read_commit(objects, picked.parents[(mainline or 1) - 1]).tree
    return (picked.tree, before) if revert else (before, picked.tree)
