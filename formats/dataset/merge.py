"""What comes of two versions of a dataset that grew out of one?

Rows appended on both sides are all kept: the fragments of the side whose commit has the lower
generation first (on a tie, of the side with the smaller first uid), so it does not matter who
merges. Everything else that both sides did is a conflict that says why. No row is read or
rewritten but those that stand inline.

Source:
    docs/spec/dataset.md, section "Merge".
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorrepo.formats.dataset.fragments import read_fragments
from tensorrepo.formats.dataset.read import Dataset, open_dataset
from tensorrepo.formats.dataset.treeread import read_leaf
from tensorrepo.formats.dataset.treewrite import TreeWriter
from tensorrepo.repo.merge import Conflict
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.trees import Entry

if TYPE_CHECKING:
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.merge import MergeContext
    from tensorrepo.repo.objects import ObjectSink

WAITING_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a merge: `added` are the uids of its fragments behind those of the base."""

    dataset: Dataset
    generation: int
    added: tuple[int, ...]


class DatasetMergeDriver:
    """Joins appends to one dataset; see `tensorrepo.repo.merge.MergeDriver`."""

    def merge(
        self,
        objects: ObjectSink,
        path: str,
        base: Entry | None,
        ours: Entry,
        theirs: Entry,
        context: MergeContext,
    ) -> Entry | Conflict:
        """The entry with the rows of both, or why there is none."""

        def conflict(reason: str) -> Conflict:
            old = None if base is None else base.digest
            return Conflict(path, Kind.DATASET, old, ours.digest, theirs.digest, reason)

        if base is None:
            return conflict("both sides made a dataset of that name")
        opened = [open_dataset(objects, entry.digest) for entry in (base, ours, theirs)]
        versions: tuple[Dataset, Dataset, Dataset] = (opened[0], opened[1], opened[2])
        reason = differing_schemas(*versions) or differing_properties(*versions)
        if reason is not None:
            return conflict(reason)
        sides = []
        for dataset, generation in zip(versions[1:], context.generations, strict=True):
            added = added_fragments(versions[0], dataset)
            if added is None:
                return conflict("one side removed or rewrote rows, the other changed the dataset")
            sides.append(Side(dataset, generation, added))
        first, second = ordered(*sides)
        # A base without rows has not chosen groups: each side did, by what its rows weigh.
        if first.added and first.dataset.root.groups != second.dataset.root.groups:
            return conflict("both sides wrote its first rows, and grouped columns differently")
        return Entry(Kind.DATASET, join_appends(objects, versions[0], first, second))


def differing_schemas(base: Dataset, ours: Dataset, theirs: Dataset) -> str | None:
    """Why the columns cannot be joined; None when both sides have those of the base."""
    for side, name in ((ours, "ours"), (theirs, "theirs")):
        if side.schema == base.schema:
            continue
        changed = sorted(
            {column.name for column in side.schema.columns}
            ^ {column.name for column in base.schema.columns}
        )
        what = f"columns {', '.join(changed)}" if changed else "the columns"
        return f"{name} changed {what}; this version joins appended rows only"
    return None


def differing_properties(base: Dataset, ours: Dataset, theirs: Dataset) -> str | None:
    """Why the properties cannot be joined; None when both sides have those of the base."""
    same = ours.root.properties == theirs.root.properties == base.root.properties
    return None if same else "the properties changed; this version joins appended rows only"


def added_fragments(base: Dataset, side: Dataset) -> tuple[int, ...] | None:
    """Uids of the fragments behind those of `base`; None when it is no beginning of `side`."""
    shared = 0
    for one, two in zip(base.root.leaves, side.root.leaves, strict=False):
        if one != two:
            break
        shared += 1
    old, new = _uids(base, shared), _uids(side, shared)
    return new[len(old) :] if new[: len(old)] == old else None


def _uids(dataset: Dataset, first_leaf: int) -> tuple[int, ...]:
    leaves = (
        read_leaf(dataset.objects, dataset.links, entry)[0]
        for entry in dataset.root.leaves[first_leaf:]
    )
    return tuple(uid for leaf in leaves for uid in leaf.fragments["uid"].tolist())


def ordered(ours: Side, theirs: Side) -> tuple[Side, Side]:
    """The side whose rows come first, then the other: the same whoever merges."""

    def key(side: Side) -> tuple[Any, ...]:
        return side.generation, min(side.added, default=-1), side.dataset.digest

    return (ours, theirs) if key(ours) <= key(theirs) else (theirs, ours)


def join_appends(objects: ObjectSink, base: Dataset, first: Side, second: Side) -> Digest:
    """The root of `first` with the fragments that `second` added and `first` lacks behind it."""
    known = set(first.added)
    start = sum(leaf.fragments for leaf in base.root.leaves)
    groups = (first if first.added else second).dataset.root.groups
    with ThreadPoolExecutor(1, "store") as storers:
        schema = first.dataset.schema
        tree = TreeWriter(objects, schema, groups, first.dataset, storers, WAITING_BYTES)
        for fragment in read_fragments(second.dataset, start):
            if fragment.uid not in known:
                tree.add_known(fragment, counted=False)
        return tree.finish(first.dataset.root.properties).digest
