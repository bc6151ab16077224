"""Merge writer: the changes of one version are put onto another.

Fragments that the other version has more are put behind, with their chunks. Columns that it
replaced or added are linked fragment by fragment where these are the same, so that nothing is
encoded anew; of fragments that compaction moved on one side, an added column is written anew, row
by row id. What is left are single cells, which become patches as an update makes them.

Statistics: bounds are those of both sides; counts are those of the one side and of what the other
added; rows without pages are counted as what their default is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from tensorrepo.formats.common.buffer_codecs import AUTO, Codec, CodecChoice
from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.changing.patch import ValueSource
from tensorrepo.formats.dataset.metadata.boundaries import (
    ColumnPart,
    ColumnTally,
    WaitingPage,
)
from tensorrepo.formats.dataset.metadata.deletions import (
    Deletions,
    pack_deletions,
    unpack_deletions,
)
from tensorrepo.formats.dataset.metadata.manifest import LeafEntry
from tensorrepo.formats.dataset.metadata.row_ids import ids_of_runs, plain_run, runs_of_ids
from tensorrepo.formats.dataset.metadata.span_write import (
    Fragment,
    leaf_fragments,
    read_fragments,
    regrouped,
)
from tensorrepo.formats.dataset.metadata.tree_edit import FragmentEdit
from tensorrepo.formats.dataset.metadata.tree_write import TreeWriter, known_entries
from tensorrepo.formats.dataset.pages.page import HAS_RANGE, PAGE_COMPRESSED, EncodedPage
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    column_index,
    dataset_leaves,
    live_rows,
    open_dataset,
    page_reader,
    row_id_table,
)
from tensorrepo.formats.dataset.reading.overlay import overlay, repeated
from tensorrepo.formats.dataset.reading.row_read import read_chosen
from tensorrepo.formats.dataset.schema.coerce import default_range, default_values
from tensorrepo.formats.dataset.schema.equality import in_memory_form
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import ColumnLayout
from tensorrepo.formats.dataset.schema.values import ColumnValues
from tensorrepo.formats.dataset.schema.widen import convert_values, widen_range
from tensorrepo.formats.dataset.selecting.select_rows import Chosen, by_leaf
from tensorrepo.formats.dataset.update import set_values
from tensorrepo.formats.dataset.versions.merge_rows import CellMoves, RowPlan, Side
from tensorrepo.formats.dataset.versions.merge_schema import MergedRoot
from tensorrepo.formats.dataset.writing.column_write import (
    STEP_BYTES,
    Editing,
    editing,
    page_ends,
    page_filler,
    unread_row,
)
from tensorrepo.formats.dataset.writing.fragment_write import writer_threads
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.ids import Digest, digest_bytes
from tensorrepo.repo.objects.envelope import ObjectSink

BUDGET_BYTES = 64 << 20
WAITING_BYTES = 16 << 20
NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _MergedCounts:
    """Puts statistics right that go on from those of `joined`, which grew out of `onto`."""

    _joined: StoredDataset
    _onto: Side
    _other: Side
    _root: MergedRoot

    def begin(self, tallies: Mapping[str, ColumnTally], *, count_added: bool) -> None:
        """Before anything is edited: bounds of both sides, in the form of the merged columns.

        `count_added` says that fragments behind those of `onto` are not counted yet.
        """
        for column in self._root.schema.columns:
            self._widen(column, tallies[column.id])
        if count_added:
            first = sum(leaf.fragments for leaf in self._onto.dataset.root.leaves)
            for fragment in read_fragments(self._joined, first):
                self._count(fragment, tallies)

    def end(self, tallies: Mapping[str, ColumnTally]) -> None:
        """After all edits: columns that `other` brought count as they did there."""
        for column_id in self._root.brought:
            tally, there = tallies[column_id], _tally(self._other, column_id)
            more = max(0, self._joined.root.rows - self._other.dataset.root.rows)
            column = self._other.columns[column_id]
            tally.nulls = there.nulls + (more if column.default is None else 0)
            tally.stored_bytes, tally.raw_bytes = there.stored_bytes, there.raw_bytes

    def _widen(self, column: Column, tally: ColumnTally) -> None:
        wanted = column.storage.dtype
        mine = self._onto.columns.get(column.id)
        if mine is not None:
            tally.min, tally.max = widen_range(tally.min, tally.max, mine.storage.dtype, wanted)
        theirs = self._other.columns.get(column.id)
        if theirs is not None:
            there = _tally(self._other, column.id)
            tally.cover(*widen_range(there.min, there.max, theirs.storage.dtype, wanted))
        if column.default is not None and (mine is None or theirs is None):
            tally.cover(*default_range(column))

    def _count(self, fragment: Fragment, tallies: Mapping[str, ColumnTally]) -> None:
        """Count one fragment of `other`; its bounds are among those of `other`."""
        counted = set()
        for part in fragment.every_column:
            tallies[part.id].count(known_entries(part))
            counted.add(part.id)
        for column in self._root.schema.columns:
            if column.id not in counted and column.default is None:
                tallies[column.id].nulls += fragment.rows


def _tally(side: Side, column_id: str) -> ColumnTally:
    known = {each.id: each for each in side.dataset.root.statistics}
    return ColumnTally.of(known.get(column_id))


@dataclass(eq=False)
class _CellWriter:
    """Edits `joined`, which is `onto` with what was put behind it."""

    _objects: ObjectSink
    _joined: StoredDataset
    _onto: Side
    _other: Side
    _root: MergedRoot
    _rows: RowPlan

    def __post_init__(self) -> None:
        self._twins = _Twins(self._other.dataset)
        self._columns = {column.id: column for column in self._root.schema.columns}
        self._brought = [
            self._columns[each] for each in self._root.brought if self._has_values(each)
        ]
        cells = self._rows.cells.items()
        self._left = {column: np.ones(len(moves.onto_rows), np.bool_) for column, moves in cells}
        self._patched: dict[str, list[CellMoves]] = {}
        self._linked: dict[str, list[tuple[int, int]]] = {}

    def write(self, *, count_added: bool) -> Digest:
        """Store all of it. `count_added`: what was put behind is not in the statistics yet."""
        root = self._root
        with editing(self._objects, self._joined, BUDGET_BYTES, root.schema, root.groups) as edit:
            counts = _MergedCounts(self._joined, self._onto, self._other, root)
            counts.begin(edit.tree.tallies, count_added=count_added)
            first_row = 0
            for number, entry in enumerate(self._joined.root.leaves):
                if self._touches(first_row, first_row + entry.rows):
                    edit.tree.edit(self._edits(edit, entry, first_row), number)
                first_row += entry.rows
            counts.end(edit.tree.tallies)
            link = edit.tree.finish(root.properties, root.lineage)
        return self._set_cells(open_dataset(self._objects, link.digest, self._joined.outside))

    # -------------------------------------------------------------------------- fragments

    def _has_values(self, column: str) -> bool:
        """Whether `other` has more of a column than its default."""
        index = column_index(self._other.dataset, self._other.columns[column].name)
        return index.patches is not None or any(chunk is not None for chunk in index.chunks)

    def _touches(self, start: int, stop: int) -> bool:
        """Whether anything changes in rows ``[start, stop)`` of a leaf."""
        if start >= self._onto.dataset.root.rows:
            return False
        some = [self._rows.killed, *(moves.onto_rows for moves in self._rows.cells.values())]
        return bool(self._brought) or any(_within(each, start, stop) for each in some)

    def _edits(
        self, edit: Editing, entry: LeafEntry, first_row: int
    ) -> Iterator[tuple[int, FragmentEdit]]:
        """The edits of one leaf; what was put behind needs none."""
        for at, fragment in enumerate(leaf_fragments(self._joined, entry)):
            if first_row >= self._onto.dataset.root.rows:
                return
            deletions = self._deletions(fragment, first_row)
            pages = dict(self._replaced(edit, fragment, at, first_row))
            for column in self._brought:
                part = self._brought_part(edit, column, fragment, at, first_row)
                if part is not None:
                    pages[column.id] = part
            if deletions is not None or pages:
                yield at, FragmentEdit(deletions, pages)
            first_row += fragment.rows

    def _deletions(self, fragment: Fragment, first_row: int) -> Deletions | None:
        killed = self._rows.killed
        low, high = np.searchsorted(killed, [first_row, first_row + fragment.rows])
        if low == high:
            return None
        offsets = killed[low:high] - first_row
        if fragment.deletions is not None:
            offsets = np.union1d(offsets, unpack_deletions(fragment.deletions, fragment.rows))
        return pack_deletions(offsets, fragment.rows)

    # -------------------------------------------------------------------------- columns

    def _replaced(
        self, edit: Editing, fragment: Fragment, at: int, first_row: int
    ) -> Iterator[tuple[str, ColumnPart]]:
        """Pages of columns that `other` wrote anew in a fragment where `onto` set no cell."""
        stop = first_row + fragment.rows
        for column, moves in self._rows.cells.items():
            low, high = np.searchsorted(moves.onto_rows, [first_row, stop])
            if low == high or _within(self._rows.kept.get(column, NO_ROWS), first_row, stop):
                continue
            twin = self._twins.find(fragment)
            part = None if twin is None else twin.part(column)
            if twin is None or part is None or column in twin.fragment.patches:
                continue
            self._left[column][low:high] = False
            self._linked.setdefault(column, []).append((first_row, stop))
            _count_linked(edit, part, at)
            yield column, part

    def _brought_part(
        self, edit: Editing, column: Column, fragment: Fragment, at: int, first_row: int
    ) -> ColumnPart | None:
        """Pages of a column that `other` has more; None: all rows have the default."""
        twin = self._twins.find(fragment)
        if twin is None:
            return self._written(edit, column, fragment, at, first_row)
        patches = twin.fragment.patches.get(column.id, ())
        if patches:
            offsets = np.unique(np.concatenate([each.offsets for each in patches]))
            rows = offsets.astype(np.int64)
            moves = CellMoves(rows + first_row, rows + twin.first_row)
            self._patched.setdefault(column.id, []).append(moves)
        part = twin.part(column.id)
        if part is not None:
            _count_linked(edit, part, at)
        return part

    def _written(
        self, edit: Editing, column: Column, fragment: Fragment, at: int, first_row: int
    ) -> ColumnPart | None:
        """New pages for a fragment that `other` has not, of values that it has by row id."""
        ids = row_id_table(self._joined).of(np.arange(first_row, first_row + fragment.rows))
        rows = row_id_table(self._other.dataset).find(ids)
        if (rows < 0).all():
            return None
        source = self._source(column)
        index = column_index(self._other.dataset, self._other.columns[column.id].name)
        # Compression is tried where `other` tried it.
        codec: CodecChoice = (
            AUTO if (index.entries["codec"] == PAGE_COMPRESSED).any() else Codec.NONE
        )
        row_bytes = max(1.0, index.mean_row_bytes)
        filler = page_filler(column, page_ends(fragment), fragment.rows, row_bytes)
        writer = edit.writer(column, at, fragment.uid, codec, filler)
        is_tiled = column.storage.layout is ColumnLayout.TILED
        step = 1 if is_tiled else max(1, int(STEP_BYTES / row_bytes))
        for start in range(0, fragment.rows, step):
            writer.add(_with_defaults(column, source, rows[start : start + step]))
        return writer.finish()

    # -------------------------------------------------------------------------- cells

    def _set_cells(self, dataset: StoredDataset) -> Digest:
        """Set the cells that were not linked: columns with the same rows together."""
        together: dict[tuple[bytes, bytes], tuple[CellMoves, list[Column]]] = {}
        for column, moves in self._moves():
            alive = live_rows(dataset).live(moves.onto_rows) >= 0
            some = CellMoves(moves.onto_rows[alive], moves.other_rows[alive])
            if len(some.onto_rows):
                key = some.onto_rows.tobytes(), some.other_rows.tobytes()
                together.setdefault(key, (some, []))[1].append(self._columns[column])
        for moves, columns in together.values():
            chosen = Chosen(moves.onto_rows, np.arange(len(moves.onto_rows)), len(moves.onto_rows))
            sources = {column.name: self._placed(column, moves.other_rows) for column in columns}
            link = set_values(self._objects, dataset, chosen, sources, budget_bytes=BUDGET_BYTES)
            dataset = open_dataset(self._objects, link.digest, self._joined.outside)
        return dataset.digest

    def _moves(self) -> Iterator[tuple[str, CellMoves]]:
        for column, moves in self._rows.cells.items():
            left = self._left[column] & self._follows(column, moves.onto_rows)
            yield column, CellMoves(moves.onto_rows[left], moves.other_rows[left])
        for column, pieces in self._patched.items():
            onto_rows = np.concatenate([each.onto_rows for each in pieces])
            yield column, CellMoves(onto_rows, np.concatenate([each.other_rows for each in pieces]))

    def _follows(self, column: str, rows: Ints) -> Bools:
        """Of a hidden column only cells whose source was linked: else they are computed anew."""
        derived = self._columns[column].derived
        wanted = np.full(len(rows), derived is None)
        for start, stop in self._linked.get(derived[0], ()) if derived is not None else ():
            low, high = np.searchsorted(rows, [start, stop])
            wanted[low:high] = True
        return wanted

    def _placed(self, column: Column, other_rows: Ints) -> ValueSource:
        values = self._source(column)
        return lambda _, places: values(other_rows[places])

    def _source(self, column: Column) -> Callable[[Ints], ColumnValues]:
        """Gives values of physical rows of `other`, in the form that the column has now."""
        stored = self._other.columns[column.id]
        reader = page_reader(self._other.dataset, stored.name)
        forms = in_memory_form(stored.storage), in_memory_form(column.storage)
        return lambda rows: convert_values(read_chosen(reader, rows), *forms)


@dataclass(frozen=True, slots=True, eq=False)
class _Twin:
    """A fragment of another version, and the physical row that it begins with there."""

    fragment: Fragment
    first_row: int

    def part(self, column: str) -> ColumnPart | None:
        """The pages of one column; None where its rows have the default."""
        return next((each for each in self.fragment.columns if each.id == column), None)


class _Twins:
    """Finds fragments of a version by uid; quickly, where they are asked for in its order."""

    def __init__(self, dataset: StoredDataset) -> None:
        self._dataset = dataset
        self._loaded: tuple[int, dict[int, _Twin]] = (-1, {})

    @cached_property
    def _leaf_of(self) -> dict[int, int]:
        leaves = enumerate(dataset_leaves(self._dataset))
        return {uid: at for at, (leaf, _) in leaves for uid in leaf.fragments["uid"].tolist()}

    def find(self, fragment: Fragment) -> _Twin | None:
        """The fragment with the same rows; None where there is none."""
        number = self._leaf_of.get(fragment.uid)
        if number is None:
            return None
        if self._loaded[0] != number:
            self._loaded = number, self._load(number)
        twin = self._loaded[1][fragment.uid]
        return twin if twin.fragment.rows == fragment.rows else None

    def _load(self, number: int) -> dict[int, _Twin]:
        leaves = self._dataset.root.leaves
        first_row = sum(entry.rows for entry in leaves[:number])
        twins = {}
        for fragment in leaf_fragments(self._dataset, leaves[number]):
            twins[fragment.uid] = _Twin(fragment, first_row)
            first_row += fragment.rows
        return twins


def _within(rows: Ints, start: int, stop: int) -> bool:
    low, high = np.searchsorted(rows, [start, stop])
    return bool(low < high)


def _with_defaults(
    column: Column, source: Callable[[Ints], ColumnValues], rows: Ints
) -> ColumnValues:
    """Values of `rows`; those below 0 have the default, or what nobody reads."""
    there = np.flatnonzero(rows >= 0)
    if len(there) == len(rows):
        return source(rows)
    has_default = column.default is not None or column.nullable
    nothing = default_values(column) if has_default else unread_row(column)
    filled = repeated(nothing, len(rows))
    return overlay(filled, there, source(rows[there])) if len(there) else filled


def _count_linked(edit: Editing, part: ColumnPart, at: int) -> None:
    """Count pages of another version with a fragment's; bounds of values are united apart."""
    for each in known_entries(part):
        entry = each.copy()
        entry["flags"] &= ~HAS_RANGE & 0xFF
        page = partial(EncodedPage, np.zeros(0, np.uint8), entry, b"")
        counted = WaitingPage(0, page, int(entry["raw_bytes"]), fragment=at)
        edit.tree.spans.count(part.id, counted)


def write_merged(
    objects: ObjectSink, onto: Side, other: Side, root: MergedRoot, rows: RowPlan
) -> Digest:
    """Store `onto` with what `rows` says of `other`; gives the digest of the root."""
    joined = _Joining(objects, onto, other, root, rows).joined()
    same_columns = root.schema == onto.dataset.schema == other.dataset.schema
    same_facts = (joined.root.properties, joined.root.lineage) == (root.properties, root.lineage)
    if same_columns and same_facts and not len(rows.killed) and not rows.cells:
        return joined.digest
    return _CellWriter(objects, joined, onto, other, root, rows).write(count_added=not same_columns)


@dataclass(frozen=True, slots=True, eq=False)
class _Joining:
    """Puts fragments of `other` behind `onto`, and takes deletions back."""

    _objects: ObjectSink
    _onto: Side
    _other: Side
    _root: MergedRoot
    _rows: RowPlan

    def joined(self) -> StoredDataset:
        """`onto` with more rows, under the merged schema; itself where no row came."""
        onto, rows, root = self._onto.dataset, self._rows, self._root
        if not rows.whole and not rows.masked and not len(rows.revived):
            return onto
        same_columns = root.schema == onto.schema == self._other.dataset.schema
        behind = not len(rows.revived)
        with writer_threads() as (_, storers):
            tree = TreeWriter(
                self._objects, root.schema, root.groups, onto, storers, WAITING_BYTES, behind=behind
            )
            if not behind:
                self._put_revived(tree)
            for fragment in self._fragments():
                tree.add_known(self._regrouped(fragment), counted=not same_columns)
            link = tree.finish(root.properties, root.lineage)
        return open_dataset(self._objects, link.digest, onto.outside)

    # -------------------------------------------------------------------------- rows that come back

    def _put_revived(self, tree: TreeWriter) -> None:
        """All of `onto`, some of its rows deleted no more."""
        onto, revived = self._onto.dataset, self._rows.revived
        touched = dict(by_leaf(onto, revived))
        for number, entry in enumerate(onto.root.leaves):
            if number not in touched:
                tree.keep_leaf(onto, entry, last=number == len(onto.root.leaves) - 1)
                continue
            back = {
                each.fragment: revived[each.start : each.stop] - each.first_row
                for each in touched[number]
            }
            for at, fragment in enumerate(leaf_fragments(onto, entry)):
                whole = _revived(fragment, back[at]) if at in back else fragment
                tree.add_known(self._regrouped(whole), counted=True)

    # -------------------------------------------------------------------------- rows that come

    def _fragments(self) -> Iterator[Fragment]:
        """The fragments of `other` that are put behind, in its order."""
        rows, other = self._rows, self._other
        if not rows.masked:
            for fragment in read_fragments(other.pair.new.dataset):
                if fragment.uid in rows.whole:
                    yield fragment
            return
        first_row = 0
        for fragment in read_fragments(other.dataset):
            if fragment.uid in rows.whole:
                yield fragment
            elif fragment.uid in rows.masked:
                yield self._masked(fragment, rows.masked[fragment.uid] - first_row)
            first_row += fragment.rows

    def _masked(self, fragment: Fragment, wanted: Ints) -> Fragment:
        """The fragment with all rows deleted but those at offsets `wanted`.

        The others get ids that no row has: their own are those of rows of `onto`.
        """
        seed = (digest_bytes(each.dataset.digest) for each in (self._onto, self._other))
        uid = int.from_bytes(
            content_tag(b"".join(seed) + fragment.uid.to_bytes(8, "little"))[:8], "little"
        )
        runs = plain_run(fragment.uid, fragment.rows) if fragment.runs is None else fragment.runs
        ids = ids_of_runs(runs)
        hidden = np.ones(fragment.rows, np.bool_)
        hidden[wanted] = False
        offsets = np.flatnonzero(hidden)
        ids["fragment"][offsets], ids["offset"][offsets] = uid, offsets
        deletions = pack_deletions(offsets, fragment.rows) if len(offsets) else None
        return replace(fragment, uid=uid, runs=runs_of_ids(ids), deletions=deletions)

    def _regrouped(self, fragment: Fragment) -> Fragment:
        """The fragment with its columns in the groups of the result."""
        live = frozenset(column.id for column in self._root.schema.columns)
        return regrouped(fragment, self._root.groups, live)


def _revived(fragment: Fragment, offsets: Ints) -> Fragment:
    """The fragment with rows at `offsets` deleted no more."""
    assert fragment.deletions is not None, "its rows are deleted"
    dead = np.setdiff1d(unpack_deletions(fragment.deletions, fragment.rows), offsets)
    return replace(fragment, deletions=pack_deletions(dead, fragment.rows) if len(dead) else None)
