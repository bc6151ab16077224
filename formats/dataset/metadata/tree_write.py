"""Writer of a dataset's tree: chunks, page indexes, leaves, root, in this order.

Leaves of a base that do not change are linked as they are. Appending goes on with the last leaf of
the base, unless a boundary falls behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.dataset.metadata.boundaries import (
    ColumnPart,
    ColumnTally,
    Cuts,
    FragmentPart,
    IndexParts,
    OpenSpan,
    WaitingPage,
)
from tensorrepo.formats.dataset.metadata.deletions import Deletions
from tensorrepo.formats.dataset.metadata.index import ColumnPages
from tensorrepo.formats.dataset.metadata.manifest import (
    FRAGMENT,
    HAS_DELETIONS,
    HAS_PATCHES,
    HAS_RUNS,
    INLINE_DATA_BYTES,
    ColumnStatistics,
    FragmentSpan,
    Leaf,
    LeafEntry,
    Root,
    encode_root,
)
from tensorrepo.formats.dataset.metadata.span_write import (
    Fragment,
    PatchPart,
    Room,
    SpanWriter,
    leaf_fragments,
    leaf_patches,
)
from tensorrepo.formats.dataset.metadata.tree_read import (
    Links,
    read_deletions,
    read_index,
    read_leaf,
    read_runs,
)
from tensorrepo.formats.dataset.pages.page import PAGE_ENTRY
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.coerce import default_range
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, ObjectSink

Groups = tuple[tuple[str, ...], ...]


@dataclass(slots=True, eq=False)
class OpenLeaf:
    """A leaf in the making: its fragments, spans that are complete, and the open one per group."""

    spans: dict[str, list[FragmentSpan]] = field(default_factory=dict)
    open: dict[str, OpenSpan] = field(default_factory=dict)
    uids: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    stored_bytes: list[int] = field(default_factory=list)
    deletions: dict[int, Deletions] = field(default_factory=dict)
    runs: dict[int, NDArray[Any]] = field(default_factory=dict)
    patches: dict[str, dict[int, tuple[PatchPart, ...]]] = field(default_factory=dict)
    cuts: Cuts = field(default_factory=Cuts)
    room: Room = field(default_factory=Room)

    @property
    def fragments(self) -> int:
        return len(self.uids)

    def add(self, uid: int, rows: int, stored_bytes: int) -> None:
        self.uids.append(uid)
        self.rows.append(rows)
        self.stored_bytes.append(stored_bytes)
        self.cuts = self.cuts.add(uid, FRAGMENT.itemsize)

    def records(self) -> NDArray[Any]:
        """FRAGMENT records of all fragments."""
        found = np.zeros(self.fragments, FRAGMENT)
        found["uid"], found["rows"], found["stored_bytes"] = self.uids, self.rows, self.stored_bytes
        for at, each in self.deletions.items():
            found["deleted"][at] = each.deleted
            found["flags"][at] |= HAS_DELETIONS
        for at in self.runs:
            found["flags"][at] |= HAS_RUNS
        for column in self.patches.values():
            found["flags"][list(column)] |= HAS_PATCHES
        return found


class TreeWriter:
    """The objects of one dataset in the making. Used by one thread.

    New fragments come behind those of `base`, whose statistics go on, and whose groups are kept
    when it has rows. Unless `behind`, nothing of it is there yet: `keep_leaf` and `add_known` put
    in what shall stay. `waiting_bytes` bounds the pages that wait for their chunk, and again the
    chunks on their way to the store.
    """

    def __init__(
        self,
        objects: ObjectSink,
        schema: Schema,
        groups: Groups,
        base: StoredDataset | None,
        storers: ThreadPoolExecutor,
        waiting_bytes: int,
        *,
        behind: bool = True,
    ) -> None:
        self._objects = objects
        self._schema = schema
        self._groups = groups
        self._base = base
        self.spans = SpanWriter(objects, storers, waiting_bytes, self._count)
        self._leaves = list(base.root.leaves) if base is not None and behind else []
        self._tallies = tallies(schema, base)
        self._leaf = OpenLeaf()
        if base is not None and self._leaves:
            self._leaf = self._reopened(base)

    def add_known(self, fragment: Fragment, *, counted: bool) -> None:
        """Put a fragment of another version behind those there are, with its chunks.

        Its parts are in the column groups of this dataset; `counted` says that the statistics of
        the base count it already.
        """
        self.add(fragment)
        if not counted:
            self.count(fragment)

    def count(self, fragment: Fragment) -> None:
        """Count the pages of a fragment that stays where it is."""
        for column in fragment.every_column:
            self._tallies[column.id].add_all(known_entries(column))

    def count_absent(self, column: Column, rows: int) -> None:
        """Count rows that have no pages of a column: they have its default, or are null."""
        tally = self._tallies[column.id]
        if column.default is None:
            tally.nulls += rows
        else:
            tally.cover(*default_range(column))

    def keep_leaf(self, dataset: StoredDataset, entry: LeafEntry, *, last: bool = False) -> None:
        """Put a whole leaf of the base behind what is there; linked when boundaries allow it."""
        if self._leaf.cuts.closed:
            self._end_leaf(last=False)
        if not self._leaf.fragments and entry.digest and not last:
            self._leaves.append(entry)
            return
        for fragment in leaf_fragments(dataset, entry):
            self.add_known(fragment, counted=True)

    def forget(self, fragment: Fragment) -> None:
        """Take a fragment of the base, which was not put in, out of the statistics."""
        for column in fragment.every_column:
            self._tallies[column.id].count(known_entries(column), -1)

    def finish(
        self, properties: Mapping[str, Any], lineage: Sequence[Mapping[str, Any]] = ()
    ) -> ObjectLink:
        """Store what is left, and the root."""
        if self._leaf.fragments:
            self._end_leaf(last=True)
        return put_root(
            self._objects,
            self._schema,
            self._groups,
            self._tallies,
            self._leaves,
            properties,
            lineage,
        )

    # -------------------------------------------------------------------------- fragments

    def add(self, fragment: Fragment) -> None:
        """Put a new fragment behind those there are; its pages are counted as they are stored."""
        if self._leaf.cuts.must_end_before(FRAGMENT.itemsize):
            self._end_leaf(last=False)
        leaf = self._leaf
        at = leaf.fragments
        leaf.add(fragment.uid, fragment.rows, fragment.stored_bytes)
        for group, part in fragment.parts.items():
            self._add_part(leaf, group, part, at)
        if fragment.deletions is not None:
            leaf.deletions[at] = fragment.deletions
        if fragment.runs is not None:
            leaf.runs[at] = fragment.runs
        for column, patches in fragment.patches.items():
            leaf.patches.setdefault(column, {})[at] = patches
        self.spans.store_full(list(leaf.open.values()))

    def _add_part(self, leaf: OpenLeaf, group: str, part: FragmentPart, at: int) -> None:
        span = leaf.open.get(group)
        if span is None or not span.takes(part, at) or span.cuts.must_end_before(part.index_bytes):
            self._end_span(leaf, group)
            span = leaf.open[group] = OpenSpan(group, at)
        span.add_fragment(leaf.uids[at], at, part)

    def _count(self, column: str, page: WaitingPage) -> None:
        entry = page.encoded().entry
        self._tallies[column].add(entry, page.tile_bytes)
        self._leaf.stored_bytes[page.fragment] += int(entry["stored_bytes"]) + page.tile_bytes

    # -------------------------------------------------------------------------- leaves

    def _end_span(self, leaf: OpenLeaf, group: str) -> None:
        span = leaf.open.pop(group, None)
        if span is not None and span.fragments:
            leaf.spans.setdefault(group, []).append(self.spans.end_index(span, leaf.room))

    def _end_leaf(self, *, last: bool) -> None:
        leaf, room = self._leaf, self._leaf.room
        room.pages = INLINE_DATA_BYTES if last else 0
        for span in sorted(leaf.open.values(), key=lambda span: span.waiting_bytes):
            self._end_span(leaf, span.group)
        deletions = self.spans.end_deletions(leaf.deletions, leaf.uids, room)
        runs = self.spans.end_runs(leaf.runs, leaf.uids, room)
        patches = [
            span
            for column in self._schema.columns
            if column.id in leaf.patches
            for span in self.spans.end_patches(column.id, leaf.patches[column.id], leaf.uids, room)
        ]
        indexes = [span for group in self._groups for span in leaf.spans.get(group[0], ())]
        whole = Leaf(leaf.records(), *map(tuple, (indexes, deletions, patches, runs)))
        self._leaves.append(self.spans.end_leaf(whole, last=last))
        self._leaf = OpenLeaf()

    # -------------------------------------------------------------------------- the base's tail

    def _reopened(self, base: StoredDataset) -> OpenLeaf:
        """The base's last leaf, to go on with, unless a boundary falls behind it."""
        stored, links = read_leaf(base.objects, base.links, self._leaves[-1])
        leaf = OpenLeaf()
        for uid, rows, stored_bytes in zip(
            stored.fragments["uid"].tolist(),
            stored.fragments["rows"].tolist(),
            stored.fragments["stored_bytes"].tolist(),
            strict=True,
        ):
            leaf.add(uid, rows, stored_bytes)
        if leaf.cuts.closed:
            return OpenLeaf()
        self._leaves.pop()
        live = frozenset(column.id for column in self._schema.columns)
        leaf.deletions = read_deletions(base.objects, stored, links)
        leaf.runs = read_runs(base.objects, stored, links)
        leaf.patches = leaf_patches(base.objects, stored, links, live)
        for group in self._groups:
            spans = [span for span in stored.indexes if span.group == group[0]]
            if spans and spans[-1].stop_fragment == leaf.fragments:
                opened = self._reopened_span(base, spans[-1], links, leaf.uids, live)
                if not opened.cuts.closed:
                    leaf.open[group[0]] = opened
                    spans.pop()
            leaf.spans[group[0]] = spans
            leaf.room.payloads -= sum(
                span.payload.nbytes for span in spans if isinstance(span.payload, memoryview)
            )
        return leaf

    def _reopened_span(
        self,
        base: StoredDataset,
        tail: FragmentSpan,
        links: Links,
        uids: Sequence[int],
        live: frozenset[str],
    ) -> OpenSpan:
        index, _ = read_index(base.objects, tail, links)
        span = OpenSpan(tail.group, tail.first_fragment)
        span.add_parts(IndexParts(index, live), uids[tail.first_fragment :])
        return span


def tallies(schema: Schema, base: StoredDataset | None) -> dict[str, ColumnTally]:
    """Statistics of every column, by id, as those of `base` go on."""
    known = {entry.id: entry for entry in base.root.statistics} if base is not None else {}
    return {column.id: ColumnTally.of(known.get(column.id)) for column in schema.columns}


def put_root(
    objects: ObjectSink,
    schema: Schema,
    groups: Groups,
    counted: Mapping[str, ColumnTally],
    leaves: Sequence[LeafEntry],
    properties: Mapping[str, Any],
    lineage: Sequence[Mapping[str, Any]] = (),
) -> ObjectLink:
    """Store the root of a dataset; `counted` are statistics by column."""
    statistics = tuple(
        ColumnStatistics(column.id, *astuple(counted[column.id])) for column in schema.columns
    )
    rows, deleted = (sum(getattr(leaf, name) for leaf in leaves) for name in ("rows", "deleted"))
    root = Root(
        schema,
        groups,
        rows,
        deleted,
        statistics,
        tuple(leaves),
        dict(properties),
        tuple(map(dict, lineage)),
    )
    return objects.put(Kind.DATASET, encode_root(root), root.links)


def known_entries(part: ColumnPart) -> NDArray[Any]:
    """Entries of the pages that were stored before, laid or inline."""
    if isinstance(part.pages, ColumnPages):
        return part.pages.entries
    known = [page.encoded().entry for page in part.pages if not page.is_new]
    return np.array(known, PAGE_ENTRY)
