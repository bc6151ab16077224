"""How do columns and cells of one version get into another?

Fragments that both have are the same rows, so whole columns of them are linked. Of fragments that
compaction moved on the one side, an added column is written anew, row by row id. Single cells are
set as an update sets them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.codecs.buffers import Codec
from tensorrepo.formats.codecs.choice import AUTO
from tensorrepo.formats.dataset.columns.defaults import default_values
from tensorrepo.formats.dataset.columns.fit import null_values
from tensorrepo.formats.dataset.columns.types import Layout
from tensorrepo.formats.dataset.columns.values import concat
from tensorrepo.formats.dataset.columns.widen import convert_values
from tensorrepo.formats.dataset.comparing.cellequal import in_memory_form
from tensorrepo.formats.dataset.editing.columnwrite import ColumnPartWriter
from tensorrepo.formats.dataset.editing.editwrite import STEP_BYTES, Editing, editing
from tensorrepo.formats.dataset.editing.pagecuts import PageFiller, page_cuts
from tensorrepo.formats.dataset.editing.where import Chosen
from tensorrepo.formats.dataset.evolve import page_ends
from tensorrepo.formats.dataset.merging.mergecounts import MergedCounts
from tensorrepo.formats.dataset.merging.mergerows import CellMoves
from tensorrepo.formats.dataset.pages.page import HAS_RANGE, PAGE_COMPRESSED, EncodedPage
from tensorrepo.formats.dataset.pages.stripes import page_limit
from tensorrepo.formats.dataset.read import (
    Dataset,
    column_index,
    dataset_leaves,
    live_rows,
    open_dataset,
    page_reader,
    row_id_table,
)
from tensorrepo.formats.dataset.rows.overlay import overlay, repeated
from tensorrepo.formats.dataset.rows.rowread import read_chosen
from tensorrepo.formats.dataset.tree.deletions import pack_deletions, unpack_deletions
from tensorrepo.formats.dataset.tree.fragments import Fragment, leaf_fragments
from tensorrepo.formats.dataset.tree.spans import WaitingPage
from tensorrepo.formats.dataset.tree.treeedit import FragmentEdit
from tensorrepo.formats.dataset.tree.treewrite import known_entries
from tensorrepo.formats.dataset.update import set_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tensorrepo.formats.codecs.choice import CodecChoice
    from tensorrepo.formats.dataset.columns.schema import Column
    from tensorrepo.formats.dataset.columns.values import ColumnValues
    from tensorrepo.formats.dataset.editing.newvalues import Source
    from tensorrepo.formats.dataset.merging.mergerows import RowPlan, Side
    from tensorrepo.formats.dataset.merging.mergeschema import MergedRoot
    from tensorrepo.formats.dataset.tree.deletions import Deletions
    from tensorrepo.formats.dataset.tree.manifest import LeafEntry
    from tensorrepo.formats.dataset.tree.spans import ColumnPart
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import ObjectSink

BUDGET_BYTES = 64 << 20
NO_ROWS = np.zeros(0, np.int64)


class CellWriter:
    """Edits `joined`, which is `onto` with what was put behind it."""

    def __init__(
        self,
        objects: ObjectSink,
        joined: Dataset,
        onto: Side,
        other: Side,
        root: MergedRoot,
        rows: RowPlan,
    ) -> None:
        self._objects = objects
        self._joined = joined
        self._onto = onto
        self._other = other
        self._root = root
        self._rows = rows
        self._twins = Twins(other.dataset)
        self._columns = {column.id: column for column in root.schema.columns}
        self._brought = [self._columns[each] for each in root.brought if self._has_values(each)]
        self._left = {
            column: np.ones(len(moves.onto_rows), np.bool_) for column, moves in rows.cells.items()
        }
        self._patched: dict[str, list[CellMoves]] = {}
        self._linked: dict[str, list[tuple[int, int]]] = {}

    def write(self, *, count_added: bool) -> Digest:
        """Store all of it. `count_added`: what was put behind is not in the statistics yet."""
        root = self._root
        with editing(self._objects, self._joined, root.schema, root.groups, BUDGET_BYTES) as edit:
            counts = MergedCounts(self._joined, self._onto, self._other, root)
            counts.begin(edit.tree.tallies, count_added=count_added)
            first_row = 0
            for entry in self._joined.root.leaves:
                if self._touches(first_row, first_row + entry.rows):
                    edit.tree.edit(self._edits(edit, entry, first_row))
                else:
                    edit.tree.keep()
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
        row_bytes = max(1.0, self._row_bytes(column))
        writer = ColumnPartWriter(
            edit.tree.spans,
            column,
            at,
            fragment.uid,
            encoders=edit.encoders,
            codec=self._codec(column),
            waiting_bytes=edit.quarter_bytes,
        )
        limit = page_limit(column.storage, row_bytes, None)
        filler = PageFiller(page_cuts(page_ends(fragment), fragment.rows, limit / row_bytes), limit)
        is_tiled = column.storage.layout is Layout.TILED
        step = 1 if is_tiled else max(1, int(STEP_BYTES / row_bytes))
        for start in range(0, fragment.rows, step):
            values = _with_defaults(column, source, rows[start : start + step])
            if is_tiled:
                writer.add(values)
                continue
            for pieces in filler.add(values):
                writer.add(concat(pieces))
        return writer.finish()

    def _row_bytes(self, column: Column) -> float:
        index = column_index(self._other.dataset, self._other.columns[column.id].name)
        return index.raw_bytes / max(1, index.rows)

    def _codec(self, column: Column) -> CodecChoice:
        """Whether to try compression: where `other` did."""
        index = column_index(self._other.dataset, self._other.columns[column.id].name)
        return AUTO if (index.entries["codec"] == PAGE_COMPRESSED).any() else Codec.NONE

    # -------------------------------------------------------------------------- cells

    def _set_cells(self, dataset: Dataset) -> Digest:
        """Set the cells that were not linked: columns with the same rows together."""
        together: dict[tuple[bytes, bytes], tuple[CellMoves, list[Column]]] = {}
        for column, moves in self._moves():
            some = _alive(dataset, moves)
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
            yield (
                column,
                CellMoves(
                    np.concatenate([each.onto_rows for each in pieces]),
                    np.concatenate([each.other_rows for each in pieces]),
                ),
            )

    def _follows(self, column: str, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Of a hidden column only cells whose source was linked: else they are computed anew."""
        derived = self._columns[column].derived
        wanted = np.ones(len(rows), np.bool_)
        if derived is not None:
            wanted[:] = False
            for start, stop in self._linked.get(derived[0], ()):
                low, high = np.searchsorted(rows, [start, stop])
                wanted[low:high] = True
        return wanted

    def _placed(self, column: Column, other_rows: NDArray[np.int64]) -> Source:
        values = self._source(column)
        return lambda _, places: values(other_rows[places])

    def _source(self, column: Column) -> Callable[[NDArray[np.int64]], ColumnValues]:
        """Gives values of physical rows of `other`, in the form that the column has now."""
        stored = self._other.columns[column.id]
        reader = page_reader(self._other.dataset, stored.name)
        forms = in_memory_form(stored.storage), in_memory_form(column.storage)
        return lambda rows: convert_values(read_chosen(reader, rows), *forms)


@dataclass(frozen=True, slots=True, eq=False)
class Twin:
    """A fragment of another version, and the physical row that it begins with there."""

    fragment: Fragment
    first_row: int

    def part(self, column: str) -> ColumnPart | None:
        """The pages of one column; None where its rows have the default."""
        every = (each for part in self.fragment.parts.values() for each in part.columns)
        return next((each for each in every if each.id == column), None)


class Twins:
    """Finds fragments of a version by uid; quickly, where they are asked for in its order."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._loaded: tuple[int, dict[int, Twin]] = (-1, {})

    @cached_property
    def _leaf_of(self) -> dict[int, int]:
        leaves = dataset_leaves(self._dataset)
        return {
            uid: number
            for number, (leaf, _) in enumerate(leaves)
            for uid in leaf.fragments["uid"].tolist()
        }

    def find(self, fragment: Fragment) -> Twin | None:
        """The fragment with the same rows; None where there is none."""
        number = self._leaf_of.get(fragment.uid)
        if number is None:
            return None
        if self._loaded[0] != number:
            self._loaded = number, self._load(number)
        twin = self._loaded[1][fragment.uid]
        return twin if twin.fragment.rows == fragment.rows else None

    def _load(self, number: int) -> dict[int, Twin]:
        leaves = self._dataset.root.leaves
        first_row = sum(entry.rows for entry in leaves[:number])
        found = {}
        for fragment in leaf_fragments(self._dataset, leaves[number]):
            found[fragment.uid] = Twin(fragment, first_row)
            first_row += fragment.rows
        return found


def _within(rows: NDArray[np.int64], start: int, stop: int) -> bool:
    low, high = np.searchsorted(rows, [start, stop])
    return bool(low < high)


def _alive(dataset: Dataset, moves: CellMoves) -> CellMoves:
    live = live_rows(dataset)
    if live is None:
        return moves
    kept = live.live(moves.onto_rows) >= 0
    return CellMoves(moves.onto_rows[kept], moves.other_rows[kept])


def _with_defaults(
    column: Column,
    source: Callable[[NDArray[np.int64]], ColumnValues],
    rows: NDArray[np.int64],
) -> ColumnValues:
    """Values of `rows`; those below 0 have the default, or what nobody reads."""
    there = np.flatnonzero(rows >= 0)
    if len(there) == len(rows):
        return source(rows)
    if column.default is not None or column.nullable:
        nothing = default_values(column)
    else:
        nothing = replace(null_values(column, 1), valid=None)
    filled = repeated(nothing, len(rows))
    return overlay(filled, there, source(rows[there])) if len(there) else filled


def _count_linked(edit: Editing, part: ColumnPart, at: int) -> None:
    """Count pages of another version with a fragment's; bounds of values are united apart."""
    for each in known_entries(part):
        entry = each.copy()
        entry["flags"] &= ~HAS_RANGE & 0xFF
        page = EncodedPage(np.zeros(0, np.uint8), entry, b"")
        edit.tree.spans.count(part.id, _counted(page, at))


def _counted(page: EncodedPage, fragment: int) -> WaitingPage:
    return WaitingPage(0, lambda: page, int(page.entry["raw_bytes"]), fragment=fragment)
