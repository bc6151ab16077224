"""Editor of a dataset's tree: some fragments change in place, the rest is linked.

Fragments neither come nor go here, so leaves keep their boundaries. In a leaf only the page indexes
are written anew that cover a changed fragment, and of the rest what is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import InitVar, field
from typing import Any

from numpy.typing import NDArray

from tensorrepo.formats.dataset.metadata.boundaries import (
    MAX_BYTES,
    ColumnPart,
    ColumnTally,
    FragmentPart,
    IndexParts,
    OpenSpan,
    WaitingPage,
)
from tensorrepo.formats.dataset.metadata.deletions import Deletions
from tensorrepo.formats.dataset.metadata.index import ColumnPages
from tensorrepo.formats.dataset.metadata.manifest import (
    HAS_DELETIONS,
    HAS_PATCHES,
    INLINE_DATA_BYTES,
    FragmentSpan,
    Leaf,
    LeafEntry,
)
from tensorrepo.formats.dataset.metadata.span_write import PatchPart, Room, SpanWriter, leaf_patches
from tensorrepo.formats.dataset.metadata.tree_read import (
    Links,
    covering,
    read_deletions,
    read_index,
    read_leaf,
)
from tensorrepo.formats.dataset.metadata.tree_write import Groups, known_entries, put_root, tallies
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSink


@dataclass(frozen=True, slots=True, eq=False)
class FragmentEdit:
    """What becomes of one fragment.

    Attributes:
        deletions: all of its deleted rows; None: as they were.
        pages: new pages by column id, instead of those there are; patches of these columns go.
        patches: patches by column id, laid over those there are.
    """

    deletions: Deletions | None = None
    pages: Mapping[str, ColumnPart] = field(default_factory=dict)
    patches: Mapping[str, PatchPart] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class TreeEditor:
    """Changes fragments of `base`, from the first to the last. Used by one thread.

    Attributes:
        schema: columns of the result; one more or less is a change too.
        groups: column groups of the result.
        storers: threads that store chunks.
        waiting_bytes: most bytes of the pages that wait for their chunk, and again of the chunks
            on their way to the store.
        tallies: statistics by column, to be put right by whoever knows better.
    """

    objects: ObjectSink
    base: StoredDataset
    schema: Schema
    groups: Groups
    storers: InitVar[ThreadPoolExecutor]
    waiting_bytes: InitVar[int]
    tallies: dict[str, ColumnTally] = field(init=False)
    spans: SpanWriter = field(init=False)
    _leaves: list[LeafEntry] = field(default_factory=list)
    _stored_bytes: NDArray[Any] = field(init=False)  # of the fragments of the leaf that is edited

    def __post_init__(self, storers: ThreadPoolExecutor, waiting_bytes: int) -> None:
        self.tallies = tallies(self.schema, self.base)
        self.spans = SpanWriter(self.objects, storers, waiting_bytes, self._count)

    def edit(self, edits: Iterator[tuple[int, FragmentEdit]], number: int | None = None) -> None:
        """Change the next leaf, or leaf `number`, before which all stay as they are.

        `edits` are fragments, counted within the leaf and ascending, and what becomes of them. More
        are asked for while chunks are written, so that not all of them need be in memory.
        """
        number = len(self._leaves) if number is None else number
        self._keep_up_to(number)
        entry = self.base.root.leaves[number]
        leaf, links = read_leaf(self.base.objects, self.base.links, entry)
        fragments = leaf.fragments.copy()
        self._stored_bytes = fragments["stored_bytes"]
        last = number == len(self.base.root.leaves) - 1
        room = Room(pages=INLINE_DATA_BYTES if last else INLINE_DATA_BYTES // 4)
        payloads = [each.payload for each in leaf.spans if isinstance(each.payload, memoryview)]
        inline = sum(payload.nbytes for payload in payloads)  # stands there, beside what comes
        room.payloads = max(room.payloads - inline, room.payloads // 2)
        editor = _LeafEditor(self, leaf, links, room)
        for at, each in edits:
            editor.edit(at, each)
        changed = editor.finish(fragments)
        if _same(leaf, changed):
            self._leaves.append(entry)
        else:
            self._leaves.append(self.spans.end_leaf(changed, last=last))

    def finish(
        self, properties: Mapping[str, Any] | None = None, lineage: Sequence[Any] | None = None
    ) -> ObjectLink:
        """Store the root; leaves that were not come to are kept."""
        root = self.base.root
        self._keep_up_to(len(root.leaves))
        return put_root(
            self.objects,
            self.schema,
            self.groups,
            self.tallies,
            self._leaves,
            root.properties if properties is None else properties,
            root.lineage if lineage is None else lineage,
        )

    def _keep_up_to(self, number: int) -> None:
        self._leaves += self.base.root.leaves[len(self._leaves) : number]

    # -------------------------------------------------------------------------- for leaf editors

    @property
    def live(self) -> frozenset[str]:
        return frozenset(column.id for column in self.schema.columns)

    def forget(self, part: ColumnPart, fragment: int) -> None:
        """Count pages no more that others take the place of."""
        entries = known_entries(part)
        self.tallies[part.id].count(entries, -1)
        self._stored_bytes[fragment] -= entries["stored_bytes"].sum()

    def _count(self, column: str, page: WaitingPage) -> None:
        self.tallies[column].add(page.encoded().entry, page.tile_bytes)
        stored_bytes = int(page.encoded().entry["stored_bytes"]) + page.tile_bytes
        self._stored_bytes[page.fragment] += stored_bytes


class _LeafEditor:
    """One leaf while it is changed."""

    def __init__(self, tree: TreeEditor, leaf: Leaf, links: Links, room: Room) -> None:
        self._tree = tree
        self._leaf = leaf
        self._links = links
        self._room = room
        self._group_of = {name: group[0] for group in tree.groups for name in group}
        self._groups: dict[str, _GroupEditor] = {}
        self._deletions: dict[int, Deletions] = {}
        self._patches: dict[str, dict[int, PatchPart]] = {}
        self._waiting_bytes = 0  # of patches
        self._replaced: dict[str, set[int]] = {}

    def edit(self, at: int, edit: FragmentEdit) -> None:
        if edit.deletions is not None:
            self._deletions[at] = edit.deletions
        by_group: dict[str, list[ColumnPart]] = {}
        for column, part in edit.pages.items():
            by_group.setdefault(self._group_of[column], []).append(part)
            self._replaced.setdefault(column, set()).add(at)
        for group, parts in by_group.items():
            if group not in self._groups:
                self._groups[group] = _GroupEditor(
                    self._tree, self._leaf, self._links, group, self._room
                )
            self._groups[group].replace(at, parts)
        for column, patch in edit.patches.items():
            self._patches.setdefault(column, {})[at] = patch
            if not isinstance(patch.column.pages, ColumnPages):
                self._waiting_bytes += sum(page.raw_bytes for page in patch.column.pages)
        if self._waiting_bytes > self._tree.spans.waiting_bytes:
            self._store_patches()
        self._tree.spans.store_full([each.open for each in self._groups.values() if each.open])

    def _store_patches(self) -> None:
        """Memory would not hold all patches of the leaf until it ends."""
        uids = self._leaf.fragments["uid"].tolist()
        self._patches = {
            column: self._tree.spans.store_patches(column, parts, uids)
            for column, parts in self._patches.items()
        }
        self._waiting_bytes = 0

    def finish(self, fragments: NDArray[Any]) -> Leaf:
        """The leaf as it became; `fragments` are its records, to be brought up to date."""
        leaf = self._leaf
        uids = fragments["uid"].tolist()
        indexes: list[FragmentSpan] = []
        for group in self._tree.groups:
            if group[0] in self._groups:
                indexes += self._groups[group[0]].finish()
            else:
                indexes += [span for span in leaf.indexes if span.group == group[0]]
        patches = self._end_patches(fragments, uids)
        deletions = self._end_deletions(fragments, uids)
        return Leaf(fragments, tuple(indexes), deletions, patches, leaf.runs)

    def _end_deletions(
        self, fragments: NDArray[Any], uids: Sequence[int]
    ) -> tuple[FragmentSpan, ...]:
        if not self._deletions:
            return self._leaf.deletions
        every = read_deletions(self._tree.base.objects, self._leaf, self._links)
        every |= self._deletions
        for at, each in self._deletions.items():
            fragments["deleted"][at] = each.deleted
            fragments["flags"][at] |= HAS_DELETIONS
        return tuple(self._tree.spans.end_deletions(every, uids, self._room))

    def _end_patches(
        self, fragments: NDArray[Any], uids: Sequence[int]
    ) -> tuple[FragmentSpan, ...]:
        leaf, tree = self._leaf, self._tree
        touched = self._patches.keys() | self._replaced.keys()
        kept = [span for span in leaf.patches if span.group in tree.live - touched]
        known = leaf_patches(tree.base.objects, leaf, self._links, tree.live & touched)
        spans = {column: [span for span in kept if span.group == column] for column in tree.live}
        for column in sorted(touched):
            every = dict(known.get(column, {}))
            for at in self._replaced.get(column, ()):
                for part in every.pop(at, ()):
                    tree.forget(part.column, at)
            for at, part in self._patches.get(column, {}).items():
                every[at] = (*every.get(at, ()), part)
                fragments["flags"][at] |= HAS_PATCHES
            spans[column] = tree.spans.end_patches(column, every, uids, self._room)
        return tuple(span for column in sorted(spans) for span in spans[column])


class _GroupEditor:
    """The page indexes of one column group in one leaf, while some of their pages change."""

    def __init__(self, tree: TreeEditor, leaf: Leaf, links: Links, group: str, room: Room) -> None:
        self._tree = tree
        self._uids = leaf.fragments["uid"].tolist()
        self._links = links
        self._group = group
        self._room = room
        self._todo = covering(leaf.indexes, group, len(leaf.fragments))
        self._parts: IndexParts | None = None  # of the span that is written anew
        self._start = self._next = self._stop = 0  # fragments: of that span, and how far it got
        self._done: list[FragmentSpan] = []
        self.open: OpenSpan | None = None

    def replace(self, at: int, columns: Sequence[ColumnPart]) -> None:
        self._reach(at)
        known = FragmentPart(())
        if self._parts is not None:
            known = self._parts.of(at - self._start, at - self._start + 1)
        for column in known.columns:
            if any(column.id == new.id for new in columns):
                self._tree.forget(column, at)
        self._put(at, known.replaced(columns))
        self._next = at + 1

    def finish(self) -> list[FragmentSpan]:
        self._pass_on(self._stop)
        self._end_open()
        self._done += [span for _, _, span in self._todo if span is not None]
        return self._done

    def _reach(self, at: int) -> None:
        """Go on to fragment `at`, keeping what lies before it."""
        while at >= self._stop:
            self._pass_on(self._stop)
            start, stop, span = self._todo.pop(0)
            if at >= stop and span is not None:
                self._end_open()
                self._done.append(span)
            elif span is not None:
                self._end_open()
                index, _ = read_index(self._tree.base.objects, span, self._links)
                self._parts = IndexParts(index, self._tree.live)
            else:
                self._parts = None
            self._start, self._stop = start, stop
            self._next = start if at < stop else stop
        self._pass_on(at)

    def _pass_on(self, stop: int) -> None:
        """Put fragments up to `stop` in as they are."""
        parts = self._parts
        if parts is not None and stop > self._next:
            low, high = self._next - self._start, stop - self._start
            if parts.are_laid:
                self._put_laid(parts.of(low, high), parts.sizes[low:high])
            else:
                for run in parts.runs(low, high):
                    self._put_run(parts, run)
        if stop >= self._stop:
            self._parts = None
        self._next = max(self._next, stop)

    def _put_laid(self, part: FragmentPart, sizes: Sequence[int]) -> None:
        """Put in several fragments at once, from the next one on."""
        first = self._next
        fits = self.open is not None and self.open.cuts.bytes + sum(sizes) <= MAX_BYTES
        if self.open is None or not fits or not self.open.takes(part, first):
            self._end_open()
            self.open = OpenSpan(self._group, first)
        self.open.add_laid(part, self._uids[first : first + len(sizes)], sizes)

    def _put_run(self, parts: IndexParts, run: range) -> None:
        """Put in fragments of an index in which something stands inline; of several none does.

        Boundaries fall where they would if each were put in alone.
        """
        while run:
            at, part = self._start + run.start, parts.of(run.start, run.stop)
            if len(run) == 1:
                self._put(at, part)
                return
            span = self._span_for(at, part, parts.sizes[run.start])
            uids, sizes = self._uids[at : at + len(run)], parts.sizes[run.start : run.stop]
            some = run[: span.cuts.fitting(uids, sizes)]
            if len(some) < len(run):
                part = parts.of(some.start, some.stop)
            span.add_run(parts, some, part, uids[: len(some)])
            run = run[len(some) :]

    def _put(self, at: int, part: FragmentPart) -> None:
        self._span_for(at, part, part.index_bytes).add_fragment(self._uids[at], at, part)

    def _span_for(self, at: int, part: FragmentPart, size: int) -> OpenSpan:
        """The span that fragment `at` comes to, which takes `size` bytes there."""
        span = self.open
        if span is None or not span.takes(part, at) or span.cuts.must_end_before(size):
            self._end_open()
            self.open = span = OpenSpan(self._group, at)
        return span

    def _end_open(self) -> None:
        if self.open is not None:
            self._done.append(self._tree.spans.end_index(self.open, self._room))
            self.open = None


def _same(one: Leaf, two: Leaf) -> bool:
    pairs = zip(one.spans, two.spans, strict=False)
    return (
        len(one.spans) == len(two.spans)
        and bool((one.fragments == two.fragments).all())
        and all(old is new or old.payload == new.payload for old, new in pairs)
    )
