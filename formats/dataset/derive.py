"""Derived dataset: what a function makes of the rows of another, kept up with it at the cost of
what changed.

A row that is made of one row has that row's id, in every version. So which rows are missing, and
which are too many, follows from the ids of both datasets, also after a derivation that was cut off;
which rows are stale follows from the row diff of the source, between the version that the lineage
of the derived dataset names and today's. Where a function explodes rows, each names the id of its
source row in a column, and all three follow from the row diff.

    stale rows: made anew, set in place -> rows too many: deleted -> missing rows: put behind

Everything is made anew where the function is another one, where the derived dataset does not say
what it was made of, or where that version of the source is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import field
from typing import Any, Final

import msgspec
import numpy as np

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.buffer_codecs import CodecChoice
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.common.provenance import IDENTITY, ProvenanceEdge, edges_of, is_derivation
from tensorrepo.formats.dataset.changing.row_function import (
    SOURCE_PART,
    SOURCE_ROW,
    FunctionCalls,
    MadeRows,
    RowFunction,
    exploded_schema,
)
from tensorrepo.formats.dataset.changing.spool import SpoolWriter
from tensorrepo.formats.dataset.compact import compact_dataset
from tensorrepo.formats.dataset.evolve import add_lineage, set_properties
from tensorrepo.formats.dataset.metadata.row_ids import format_row_id, row_ids
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    live_rows,
    open_dataset,
    page_reader,
    row_id_table,
)
from tensorrepo.formats.dataset.reading.row_read import read_columns
from tensorrepo.formats.dataset.schema.arrow import column_array
from tensorrepo.formats.dataset.schema.coerce import CoercedRows
from tensorrepo.formats.dataset.schema.equality import differing
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.formats.dataset.schema.values import ColumnValues
from tensorrepo.formats.dataset.selecting.select_rows import Chosen, choose_rows
from tensorrepo.formats.dataset.update import delete_rows, set_values
from tensorrepo.formats.dataset.versions.changed_cells import VersionPair
from tensorrepo.formats.dataset.versions.match import RowRanges, emptied
from tensorrepo.formats.dataset.versions.row_diff import updated_rows
from tensorrepo.formats.dataset.write import CHECKPOINT_BYTES, ingest, write_dataset
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSink

_NO_ROWS: Final = np.zeros(0, np.int64)
_CHECKED_ROWS: Final = 1024  # rows of a sample that are compared at once


class DerivationReport(msgspec.Struct, frozen=True):
    """What a derivation did.

    Attributes:
        made: rows of the source that were given to the function because nothing was made of them.
        renewed: rows of the source that had changed since, and were given to it again.
        deleted: rows of the source that are gone, with what was made of them.
        kept: rows of the source that are as they were, and were not read.
        anew: reason why nothing that was there was kept; empty where it was.
        checked: rows of the source that were given to it a second time, with the same result.
    """

    made: int = 0
    renewed: int = 0
    deleted: int = 0
    kept: int = 0
    anew: str = ""
    checked: int = 0


@dataclass(frozen=True, slots=True)
class DerivationOptions:
    """How a derivation is done.

    Attributes:
        schema: columns of the rows; None: those that the first rows have.
        check: share of the rows in ``[0, 1]`` that are made a second time, and compared.
        codec: codec of the pages.
        progress: callback for rows of the source done, and those in all that are to be done.
        checkpoint: callback for a root that holds what was made so far, from time to time.
        checkpoint_bytes: bytes of new rows between two of them.
    """

    schema: Schema | None = None
    check: float = 0.0
    codec: CodecChoice = "auto"
    progress: Callable[[int, int], None] = lambda _done, _total: None
    checkpoint: Callable[[ObjectLink], None] = lambda _link: None
    checkpoint_bytes: int = CHECKPOINT_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class DerivationPlan:
    """What is to be done. Rows are physical ones.

    Attributes:
        missing: rows of the source that nothing was made of, or that are made of anew and put
            behind, as all stale rows of an exploding function.
        stale: rows of the source, ascending, whose rows are set in place.
        stale_places: row of the derived dataset for each of them.
        surplus: rows of the derived dataset that are deleted, ascending.
        renewed: how many rows of the source had changed.
        deleted: how many rows of the source are gone.
        anew: reason why nothing is kept; empty where it is.
    """

    missing: RowRanges
    stale: Ints = field(default_factory=lambda: _NO_ROWS)
    stale_places: Ints = field(default_factory=lambda: _NO_ROWS)
    surplus: Ints = field(default_factory=lambda: _NO_ROWS)
    renewed: int = 0
    deleted: int = 0
    anew: str = ""

    @property
    def rows(self) -> int:
        """Rows of the source that are given to the function."""
        return self.missing.rows + len(self.stale)


def derivation_edge(derived: StoredDataset) -> ProvenanceEdge | None:
    """The edge that says what a dataset was derived from; None where it says two things.

    Raises:
        ConflictError: it was not derived.
    """
    edges = [edge for edge in edges_of(derived.root.lineage) if is_derivation(edge.to_json())]
    if not edges:
        raise ConflictError(
            "a dataset of that name is there, which was not derived, and would be lost. Derive "
            "into one of another name, or remove it first"
        )
    return edges[0] if len(edges) == 1 else None


def plan_derivation(
    source: StoredDataset,
    derived: StoredDataset | None,
    edge: ProvenanceEdge,
    columns: tuple[str, ...],
    *,
    explode: bool,
) -> DerivationPlan:
    """What leads from what was derived to what `edge` says; reads ids and what can differ.

    Raises:
        ConflictError: the dataset, or rows of it, were not derived.
    """
    if derived is None:
        return DerivationPlan(_every_row(source))
    before = derivation_edge(derived)
    if before is None:
        why = "it says of two versions that it was derived from them, as a merge leaves it"
        return DerivationPlan(_every_row(source), anew=why)
    if before.details[IDENTITY] != edge.details[IDENTITY]:
        return DerivationPlan(_every_row(source), anew="the function is another one")
    if before.path != edge.path:
        return DerivationPlan(_every_row(source), anew=f"it was derived from {before.path}")
    try:
        earlier = open_dataset(source.objects, Digest(before.digest), source.outside)
    except NotFoundError:
        why = f"version {before.digest:.12} of {before.path} is gone"
        return DerivationPlan(_every_row(source), anew=why)
    plan = _plan_exploded if explode else _plan_rows
    return plan(source, derived, earlier, columns)


def _every_row(source: StoredDataset) -> RowRanges:
    return VersionPair.of(emptied(source), source, whole=True).matched.added


def _plan_rows(
    source: StoredDataset,
    derived: StoredDataset,
    earlier: StoredDataset,
    columns: tuple[str, ...],
) -> DerivationPlan:
    pair = VersionPair.of(derived, source, whole=True)
    surplus = pair.matched.deleted.expand()
    _check_surplus(derived, earlier, surplus)
    stale = live_rows(source).physical(updated_rows(earlier, source, columns))
    places = pair.matched.both.old_of(stale)
    there = places >= 0
    there[there] = live_rows(derived).live(places[there]) >= 0
    return DerivationPlan(
        pair.matched.added,
        stale[there],
        places[there],
        surplus,
        int(there.sum()),
        len(surplus),
    )


def _check_surplus(derived: StoredDataset, earlier: StoredDataset, surplus: Ints) -> None:
    """Rows that somebody put there would be lost."""
    ids = row_id_table(derived).of(surplus)
    strange = np.flatnonzero(row_id_table(earlier).find(ids) < 0)
    if len(strange):
        raise ConflictError(
            f"{counted(len(strange), 'row')} of the derived dataset, such as "
            f"{format_row_id(ids[strange[0]])}, are of no row of its source: somebody appended "
            "them. Delete them, or derive into a dataset of another name"
        )


def _plan_exploded(
    source: StoredDataset,
    derived: StoredDataset,
    earlier: StoredDataset,
    columns: tuple[str, ...],
) -> DerivationPlan:
    matched = VersionPair.of(earlier, source, whole=True).matched
    stale = live_rows(source).physical(updated_rows(earlier, source, columns))
    gone = matched.deleted.expand()
    old = np.concatenate([row_id_table(earlier).of(gone), row_id_table(source).of(stale)])
    named = {SOURCE_ROW: [format_row_id(each) for each in old]}
    surplus = choose_rows(derived, named, strict=False).rows if len(old) else _NO_ROWS
    missing = np.union1d(matched.added.expand(), stale)
    return DerivationPlan(_ranges(missing), surplus=surplus, renewed=len(stale), deleted=len(gone))


def _ranges(rows: Ints) -> RowRanges:
    """Ascending rows as ranges."""
    if not len(rows):
        return RowRanges(rows, rows)
    apart = np.flatnonzero(np.diff(rows) != 1)
    return RowRanges(rows[np.append(0, apart + 1)], rows[np.append(apart, len(rows) - 1)] + 1)


# ------------------------------------------------------------------------------ doing it


def derive_dataset(
    objects: ObjectSink,
    source: StoredDataset,
    derived: StoredDataset | None,
    function: RowFunction,
    edge: ProvenanceEdge,
    options: DerivationOptions,
) -> tuple[ObjectLink, DerivationReport]:
    """Make a dataset what `function` makes of `source`.

    Args:
        objects: store of the objects.
        source: dataset whose rows the function receives.
        derived: what was derived before; None: nothing.
        function: the function, and how it is called.
        edge: edge of lineage to the source, whose details have the `IDENTITY` of the function.
        options: how it is done.

    Returns:
        Link of the new root, of the old one where nothing changed; and what was done.

    Raises:
        InvalidInputError: what the function gave does not fit; or the check found a difference.
        ConflictError: the dataset, or rows of it, were not derived.
    """
    plan = plan_derivation(source, derived, edge, function.columns, explode=function.explode)
    work = _Work(objects, source, function, edge, options, plan.rows)
    calls = FunctionCalls(source, function)
    is_new = derived is None or plan.anew
    made = work.begun(calls, derived, plan) if derived is None or is_new else derived
    parts = [plan.missing] if is_new else [_ranges(plan.stale), plan.missing]
    with closing(calls.made(made.schema, *parts)) as batches:
        if not is_new:
            made = work.brought_up(batches, made, plan)
        made = work.appended(batches, made, plan.missing)
    if not _says(made, edge):
        made = work.opened(add_lineage(objects, made, [edge]))
    checked = _check(source, made, function, options.check) if options.check else 0
    report = DerivationReport(
        made=plan.rows - plan.renewed,
        renewed=plan.renewed,
        deleted=plan.deleted,
        kept=source.rows - plan.rows,
        anew=plan.anew,
        checked=checked,
    )
    return objects.describe(made.digest), report


def _says(made: StoredDataset, edge: ProvenanceEdge) -> bool:
    """Whether lineage says it already, be it of another commit that has the same source."""
    said = derivation_edge(made)
    return said is not None and (said.path, said.digest, said.details[IDENTITY]) == (
        edge.path,
        edge.digest,
        edge.details[IDENTITY],
    )


@dataclass(slots=True)
class _Work:
    """The steps, which store what they make. `done` counts rows of the source."""

    objects: ObjectSink
    source: StoredDataset
    function: RowFunction
    edge: ProvenanceEdge
    options: DerivationOptions
    total: int
    done: int = 0

    def opened(self, link: ObjectLink) -> StoredDataset:
        return open_dataset(self.objects, link.digest, self.source.outside)

    def begun(
        self, calls: FunctionCalls, derived: StoredDataset | None, plan: DerivationPlan
    ) -> StoredDataset:
        """A dataset without rows, whose columns are known; notes of the one before are kept."""
        schema = self.options.schema
        if schema is None:
            schema = calls.find_schema(plan.missing)
        if self.function.explode:
            schema = exploded_schema(schema)
        made = self.opened(write_dataset(self.objects, schema, (), edges=[self.edge]))
        properties = {} if derived is None else derived.root.properties
        return self.opened(set_properties(self.objects, made, properties)) if properties else made

    def brought_up(
        self, batches: Iterator[MadeRows], derived: StoredDataset, plan: DerivationPlan
    ) -> StoredDataset:
        """What was derived, with stale rows made anew and surplus ones deleted."""
        made = derived
        if len(plan.stale):
            made = self._renewed(batches, made, plan)
        if len(plan.surplus):
            numbers = live_rows(made).live(plan.surplus)
            made = self.opened(delete_rows(self.objects, made, numbers))
        if not self.function.explode and self._has_dead(made, plan.missing):
            # A row that came back: its id would be there twice, once deleted.
            made = self.opened(compact_dataset(self.objects, made, everything=True))
        return made

    def _has_dead(self, made: StoredDataset, missing: RowRanges) -> bool:
        if not made.root.deleted:
            return False
        ids = row_id_table(self.source).of(missing.expand())
        return bool((row_id_table(made).find(ids) >= 0).any())

    def _renewed(
        self, batches: Iterator[MadeRows], derived: StoredDataset, plan: DerivationPlan
    ) -> StoredDataset:
        visible = derived.schema.visible
        places = [derived.schema.names.index(name) for name in visible.names]
        with closing(SpoolWriter()) as writer:
            left = len(plan.stale)
            while left:
                made = next(batches)
                writer.add(visible, [made.values[place] for place in places])
                self._advance(len(made.rows))
                left -= len(made.rows)
            spool = writer.finish(visible)
            order = np.argsort(plan.stale_places, kind="stable")
            chosen = Chosen(plan.stale_places[order], order, len(order))
            sources = {column.name: spool.source(column) for column in visible.columns}
            return self.opened(set_values(self.objects, derived, chosen, sources))

    def appended(
        self, batches: Iterator[MadeRows], made: StoredDataset, missing: RowRanges
    ) -> StoredDataset:
        """With what the function makes of `missing` behind all other rows."""
        if not missing.rows:
            return made
        link = ingest(
            self.objects,
            made.schema.visible.without_ids(),
            self._coerced(batches),
            self._checkpoint,
            base=made,
            checkpoint_bytes=self.options.checkpoint_bytes,
            codec=self.options.codec,
        )
        return self.opened(link)

    def _checkpoint(self, link: ObjectLink, _rows: int) -> None:
        # Rows that nothing was made of leave no id, so what was exploded does not say how far.
        if not self.function.explode:
            self.options.checkpoint(link)

    def _coerced(self, batches: Iterator[MadeRows]) -> Iterator[CoercedRows]:
        table = row_id_table(self.source)
        for made in batches:
            if made.values:
                ids = None if self.function.explode else table.of(made.rows)
                yield CoercedRows(made.values, ids)
            self._advance(len(made.rows))

    def _advance(self, rows: int) -> None:
        self.done += rows
        self.options.progress(self.done, self.total)


# ------------------------------------------------------------------------------ checking


def _check(source: StoredDataset, made: StoredDataset, function: RowFunction, share: float) -> int:
    """Make a sample of all rows again, and compare; says how many.

    Raises:
        InvalidInputError: a row is not what the function makes of it now.
    """
    every = _every_row(source)
    count = min(every.rows, max(1, round(share * every.rows)))
    # Not by chance: who asks again about the same data gets the same answer.
    rng = np.random.default_rng(int(made.digest[:16], 16))
    sample = np.sort(rng.choice(every.rows, count, replace=False)) if count else _NO_ROWS
    rows = live_rows(source).physical(sample)
    for low in range(0, count, _CHECKED_ROWS):
        part = _ranges(rows[low : low + _CHECKED_ROWS])
        with closing(FunctionCalls(source, function).made(made.schema, part)) as batches:
            for again in batches:
                _compare(source, made, function, again)
    return count


def _compare(
    source: StoredDataset, made: StoredDataset, function: RowFunction, again: MadeRows
) -> None:
    names = made.schema.visible.names
    ids = [format_row_id(each) for each in row_id_table(source).of(again.rows)]
    stored = _stored_rows(made, ids, explode=function.explode)
    expected = read_columns([page_reader(made, name) for name in names], stored)
    found = dict(zip(made.schema.names, again.values, strict=False))
    if len(stored) != (again.values[0].rows if found else 0):
        raise _unlike(function, f"one of the rows {ids[0]} to {ids[-1]}", "how many rows it makes")
    for name, values in zip(names, expected, strict=True):
        if name in found:
            storage = made.schema.column(name).storage
            changed = np.flatnonzero(differing(values, found[name], storage, storage))
            if len(changed):
                at = int(changed[0])
                row_id = _texts(made, SOURCE_ROW, found)[at] if function.explode else ids[at]
                raise _unlike(function, f"row {row_id}", f"column {name!r}")


def _stored_rows(made: StoredDataset, ids: list[str], *, explode: bool) -> Ints:
    """Physical rows made of these rows of the source, in their order, and in that of parts."""
    if not explode:
        return row_id_table(made).find(row_ids(ids))
    rows = choose_rows(made, {SOURCE_ROW: ids}, strict=False).rows
    names = (SOURCE_ROW, SOURCE_PART)
    columns = read_columns([page_reader(made, name) for name in names], rows)
    found = dict(zip(names, columns, strict=True))
    place = {row_id: at for at, row_id in enumerate(ids)}
    named, parts = (_texts(made, name, found) for name in names)
    keys = [(place[name], part) for name, part in zip(named, parts, strict=True)]
    order = sorted(range(len(rows)), key=keys.__getitem__)
    return rows[np.array(order, np.int64)]


def _texts(made: StoredDataset, name: str, values: Mapping[str, ColumnValues]) -> list[Any]:
    listed: list[Any] = column_array(made.schema.column(name), values[name]).to_pylist()
    return listed


def _unlike(function: RowFunction, row: str, what: str) -> InvalidInputError:
    return InvalidInputError(
        f"check: {function.name} makes something else of {row} of {function.source} than what is "
        f"stored: {what} differs. It depends on more than the row, such as chance, the time, a "
        "file, or the other rows of its batch. Make it depend on the row alone"
    )
